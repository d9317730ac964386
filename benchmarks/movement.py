"""The measured figures of docs/choosing-a-solver.md: python benchmarks/movement.py [cost | errors | equilibrium ...]

`cost` times one minimising movement against one transport step and reports the memory of the process; `errors` runs
the problem of cases/movement_vs_transport.toml by both solvers and measures them against quadrature tokens;
`equilibrium` runs cases/movement_equilibrium.toml by both. Each prints one Markdown table. Times are of the process, on
one thread, without compilation.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np

from sphereflow.case import load_case, parse_case
from sphereflow.runs import build_solver

CASES = Path(__file__).parents[1] / "cases"
HEADS = {"count": 3, "initial": "gaussian-symmetric", "seed": 42}


def show(header, rows):
    """Print a Markdown table."""
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(line) + " |")
    print()


def time_per_step(solver, steps=10):
    """Process time of a step in seconds, the first one left out; and the mean number of Newton iterations."""
    solver.advance(solver.path.time[-1])
    start, iterations = time.process_time(), 0
    for _ in range(steps):
        solver.advance(solver.path.time[-1])
        iterations += getattr(getattr(solver, "movement", None), "iterations", 0)
    return (time.process_time() - start) / steps, iterations / steps


def cost():
    """A movement of tau = 0.01 against a transport step on the same grid, three heads, frozen and moving."""
    rows = []
    for nlat in (64, 128):
        for schedule in ("frozen", "oscillating"):
            for direction in ("descend", "ascend"):
                case = {
                    "grid": {"nlat": nlat},
                    "model": {"velocity": "gradient-flow", "direction": direction},
                    "heads": {**HEADS, "schedule": schedule},
                    "initial": {"kind": "octahedron", "kappa": 20.0},
                }
                transport = build_solver(parse_case({**case, "solver": {"kind": "finite-volume", "t_end": 5.0}}))
                movement = build_solver(parse_case({**case, "solver": {"kind": "minimizing-movement", "t_end": 5.0}}))
                (a, _), (b, iterations) = time_per_step(transport), time_per_step(movement)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                rows.append(
                    [f"{nlat} x {2 * nlat}", schedule, direction, f"{1e3 * a:.1f} ms", f"{1e3 * b:.1f} ms",
                     f"{b / a:.1f}", f"{iterations:.1f}", f"{memory:.0f} MB"]
                )  # fmt: skip
    show(["grid", "heads", "direction", "transport step", "movement", "ratio", "Newton iterations", "memory"], rows)


def outcome(overrides, name="movement_vs_transport"):
    """Energies at ten times, first and second moments at the end of a case; process time and number of steps."""
    case = load_case(CASES / f"{name}.toml", overrides)
    solver = build_solver(case)
    times = np.linspace(0, case.solver.t_end, 11)[1:]
    start, energies = time.process_time(), []
    for target in times:
        while solver.t < target:
            solver.advance(target)
        energies.append(solver.energy)
    spent = time.process_time() - start
    snapshot = solver.snapshot()
    return np.array(energies), np.concatenate([snapshot.mean, snapshot.second_moment.ravel()]), spent, solver.step


def errors():
    """Errors of energy (over the run) and of moments (at its end) against quadrature tokens, and the time they cost."""
    reference = outcome(["solver.kind=particles", "solver.quadrature=true", "grid.nlat=48", "output.fields=[]"])
    runs = [
        (f"{name}, {nlat} x {2 * nlat}", [f"grid.nlat={nlat}", *settings])
        for name, settings, sizes in [
            ("finite-volume", ["solver.kind=finite-volume"], (16, 32, 64, 128)),
            ("finite-volume, two-point", ["solver.kind=finite-volume", "solver.reconstruction=two-point"], (32, 64)),
            ("minimizing-movement, tau = 0.1", ["solver.tau=0.1"], (32, 64, 128)),
            ("minimizing-movement, tau = 0.01", ["solver.tau=0.01"], (32, 64, 128)),
            ("minimizing-movement, tau = 0.001", ["solver.tau=0.001"], (32, 64)),
        ]
        for nlat in sizes
    ]
    outcome(["grid.nlat=16"]), outcome(["grid.nlat=16", "solver.kind=finite-volume"])  # compiles
    rows = []
    for name, overrides in runs:
        energies, moments, spent, steps = outcome(overrides)
        rows.append(
            [name, str(steps), f"{spent:.2f} s", f"{np.abs(energies - reference[0]).max():.1e}",
             f"{np.abs(moments - reference[1]).max():.1e}"]
        )  # fmt: skip
    show(["solver", "steps", "time", "error of E", "error of moments"], rows)


def equilibrium():
    """From the initial density to the minimum of the energy."""
    runs = [("minimizing-movement, tau = 100", ["solver.tau=100.0"]), ("minimizing-movement, tau = 10", []),
            ("minimizing-movement, tau = 1", ["solver.tau=1.0"])]  # fmt: skip
    whole = "solver={kind = 'finite-volume', t_end = 1000.0}"
    runs.append(("finite-volume", [whole]))
    rows = []
    for name, overrides in runs:
        energies, moments, spent, steps = outcome(overrides, "movement_equilibrium")
        rows.append([name, str(steps), f"{spent:.1f} s", f"{energies[-1] - 0.5:.1e}", f"{moments[7]:.4f}"])
    show(["solver", "steps", "time", "E - 1/2", "second moment along the kernel"], rows)


SECTIONS = (cost, errors, equilibrium)

if __name__ == "__main__":
    for section in SECTIONS:
        if len(sys.argv) == 1 or section.__name__ in sys.argv[1:]:
            section()
