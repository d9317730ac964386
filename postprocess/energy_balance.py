"""What balances the energy of runs, P or G^2: the curves of one run, or residuals of many by number of heads, step, model.

    python postprocess/energy_balance.py octahedron_oscillating.nc
    python postprocess/energy_balance.py density-ensemble --abscissa solver.dt

Always E(t) - E(0) = W - int P dt, up to the time step's error, for every velocity model. The same with - s G^2 in the place of
P (s = -1 for flows that descend, 1 for those that ascend) holds for gradient flows only. For each run, or group of runs that
differ in seeds only, the CSV has

    change, work    E(T) - E(0) and the work W of the weights
    P, G2, defect   integrals over time of P, G^2 and of the gradient-flow defect, half of int b |v - v_gf|^2 rho
    residual_P      (change - work + P)/G2
    residual_G2     (change - work - s G2)/G2

as medians over the runs, with the smallest and largest residuals. Of runs that differ in seeds only the first one's curves are
drawn.
"""

import argparse

import numpy as np
from _common import COLOURS, add_files, groups, opened, print_table, save, script, series, settings, varied, write_table

from sphereflow.errors import CaseError
from sphereflow.plotting.panels import draw_ledger
from sphereflow.plotting.style import new_figure, styled

NEEDED = ("energy", "weight_work", "dissipation_integral", "metric_speed_integral", "gradient_flow_defect")


def direction(run):
    """The sign s of a run's velocity."""
    return 1 if settings(run).get("model.direction") == "ascend" else -1


def balance(run):
    """The columns of one run, see the head of this file, as a dictionary.

    Raises
    ------
    CaseError
        If the run lacks one of the quantities, or nothing moved in it.
    """
    energy, work, dissipated, speed, defect = (series(run, name) for name in NEEDED)
    sign = direction(run)
    change = energy[-1] - energy[0]
    if not speed[-1] > 0:
        raise CaseError(f"{run.encoding.get('source', 'the run')}: the integral of G^2 is {speed[-1]:g}; nothing has moved")
    return {
        "change": change, "work": work[-1], "P": dissipated[-1], "G2": speed[-1],
        "defect": float(np.trapezoid(defect, run["t"].values)),
        "residual_P": (change - work[-1] + dissipated[-1]) / speed[-1],
        "residual_G2": (change - work[-1] - sign * speed[-1]) / speed[-1],
    }  # fmt: skip


def table(found, keys):
    """A row for each group of runs."""
    rows = []
    for values, runs in found.items():
        each = [balance(run) for run in runs]
        row = {**dict(zip(keys, values, strict=True)), "runs": len(runs)}
        for name in each[0]:
            row[name] = float(np.median([one[name] for one in each]))
        for name in ("residual_P", "residual_G2"):
            some = [one[name] for one in each]
            row |= {f"{name}_least": float(min(some)), f"{name}_most": float(max(some))}
        rows.append(row)
    return rows


def draw_one(run):
    """Curves of one run: its ledger, and what the balance leaves over with P and with G^2."""
    t = run["t"].values
    energy, work, dissipated, speed, _ = (series(run, name) for name in NEEDED)
    change = energy - energy[0] - work
    with styled():
        figure = new_figure(8.27, 5.0)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, 1])
        draw_ledger(above, run)
        above.set_title(above.get_title(loc="left"), pad=20)  # the legend stands below it
        sign = "+-"[direction(run) > 0]
        with_speed = change - direction(run) * speed
        below.plot(t, with_speed, color=COLOURS[1], lw=1.6, label=rf"$E(t) - E(0) - W {sign} \int G^2\,dt$")
        below.plot(t, change + dissipated, color=COLOURS[0], lw=1.2, label=r"$E(t) - E(0) - W + \int P\,dt$")
        below.axhline(0, color="#999999", lw=0.6, zorder=0)
        below.set(xlabel="flow time t", ylabel="left over")
        below.legend()
        figure.suptitle(run.attrs["title"], x=0.01, ha="left", weight="bold", parse_math=False)
        figure.tight_layout()
    return figure


def draw_many(rows, keys, abscissa, title):
    """Sizes of both residuals over a key, a line for each combination of the others, bars over the runs."""
    others = [key for key in keys if key != abscissa]
    lines = {}
    for row in rows:
        lines.setdefault(tuple(row[key] for key in others), []).append(row)
    with styled():
        figure = new_figure(8.27, 3.8)
        pair = figure.subplots(1, 2, sharey=True)
        for colour, (values, some) in enumerate(lines.items()):
            x = [row[abscissa] for row in some]
            label = ", ".join(str(value) for value in values) or None
            look = {"color": COLOURS[colour % len(COLOURS)], "ls": "-" if colour < len(COLOURS) else "--", "lw": 1, "ms": 4}
            for axes, name in zip(pair, ("residual_P", "residual_G2"), strict=True):
                size = np.array([abs(row[name]) for row in some])
                axes.plot(x, np.where(size > 0, size, np.nan), "o", label=label, **look)
        for axes, symbol in zip(pair, ("P", "G^2"), strict=True):
            axes.set(yscale="log", xlabel=abscissa, title=f"balance with ${symbol}$")
            x = sorted({row[abscissa] for row in rows})
            if all(isinstance(value, int | float) and value > 0 for value in x):
                axes.set_xscale("log")
                axes.set_xticks(x, [f"{value:g}" for value in x])
                axes.minorticks_off()
        pair[0].set_ylabel(r"|residual| / $\int G^2\,dt$, median")
        if others:
            pair[1].legend(title=", ".join(others), fontsize=6.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.suptitle(title, x=0.01, ha="left", weight="bold", parse_math=False)
        figure.tight_layout()
    return figure


def work(options):
    """Read, print, draw, write."""
    with opened(options.runs) as runs:
        keys = varied(runs)
        abscissa = options.abscissa or ("solver.dt" if "solver.dt" in keys else keys[0] if keys else None)
        if options.abscissa and options.abscissa not in keys:
            known = ", ".join(keys) or "none"
            raise CaseError(f"--abscissa: {options.abscissa} is the same in all runs; those that differ: {known}")
        rows = table(groups(runs, keys), keys)
        print_table(rows)
        print()
        title = options.title or runs[0].attrs["title"]
        figure = draw_one(runs[0]) if abscissa is None else draw_many(rows, keys, abscissa, title)
    yield from save(figure, options.output, options)
    yield write_table(rows, f"{options.output}.csv", options.force)


def main(arguments=None):
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog="\n\n".join(__doc__.split("\n\n")[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add_files(parser, "energy_balance")
    parser.add_argument("--abscissa", metavar="KEY", help="key of the case to draw residuals over (solver.dt if it differs)")
    parser.add_argument("--title", help="heading of a figure of many runs (the first run's title)")
    return script(work, parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
