"""The energy of a run by minimising movements, stair by stair: what each step cost and what it left over.

    python postprocess/energy_staircase.py [movement_equilibrium.nc] [-o energy_staircase.png]

Without the name of a finished run cases/movement_equilibrium.toml is run first, into a temporary folder. The upper
panel shows the energy at the records; the lower one each recorded step's fall of -s E at fixed weights, split into the
movement's cost and the slack of the discrete inequality, which must not be negative. For short steps the two are equal.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sphereflow

ROOT = Path(__file__).parents[1]
CASE = ROOT / "cases/movement_equilibrium.toml"


def draw_energy(axes, run):
    """The energy as a staircase, and its sum of what the weights did."""
    axes.step(run.t, run.energy, where="pre", color="black", label=r"energy $E$")
    if float(np.abs(run.weight_work).max()) > 0:
        flow = run.energy - run.weight_work
        axes.step(run.t, flow, where="pre", color="tab:blue", label=r"$E - W$: without the work of the weights")
    axes.set_ylabel("energy")
    axes.legend(frameon=False)


def draw_account(axes, run):
    """Cost and slack of the recorded steps on a logarithmic scale; negative slacks as red crosses."""
    t, cost, slack = run.t.values[1:], run.movement_cost.values[1:], run.movement_slack.values[1:]
    axes.plot(t, np.where(cost > 0, cost, np.nan), ".", color="tab:orange", label=r"cost $W^2/2\tau$")
    kept = np.where(slack > 0, slack, np.nan)
    axes.plot(t, kept, "o", color="tab:green", markerfacecolor="none", label="slack of the inequality")
    broken = slack < 0
    if broken.any():
        axes.plot(t[broken], -slack[broken], "x", color="tab:red", label="negative slack (its size)")
    axes.set_yscale("log")
    axes.set_xlabel("t")
    axes.set_ylabel("per step")
    axes.legend(frameon=False, title=f"smallest slack of all steps: {float(run.movement_slack_min[-1]):.1e}")


def draw(run):
    """The figure of a run.

    Raises
    ------
    SystemExit
        If the run is not one by minimising movements.
    """
    if "movement_cost" not in run:
        raise SystemExit('energy_staircase: the run has no movement_cost; it needs solver.kind = "minimizing-movement"')
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    draw_energy(above, run)
    draw_account(below, run)
    above.set_title(run.attrs["title"])
    return figure


def main(arguments=None):
    """Draw a finished run, or the case's own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", nargs="?", help="output file of a run (.nc)")
    parser.add_argument("-o", "--output", default="energy_staircase.png", help="picture to write")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        opened = sphereflow.open_run(options.run) if options.run else sphereflow.run(CASE, Path(folder) / "run.nc")
        with opened as run:
            draw(run).savefig(options.output, dpi=150)
    print(options.output)


if __name__ == "__main__":
    main()
