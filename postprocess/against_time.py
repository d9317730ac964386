"""Quantities of runs against time: one panel for each quantity, one colour for each value of a key, bands over seeds.

    python postprocess/against_time.py oscillating-ensemble --quantities metric_speed_squared energy --panels heads.phase
    python postprocess/against_time.py decaying-ensemble --log-time --quantities metric_speed_squared weight_variation
    python postprocess/against_time.py oscillating-ensemble --period 6.283185307179586

Takes runs, ensembles, or both. The colours go with the first key in which the cases differ (or `--colours`), the columns of
panels with another (`--panels`); curves are medians over all runs that agree in both, bands reach from the 10 % to the 90 %
quantile. The CSV has a row for each such group: means over time from `--start` (half of the run) on, and the errors of these
means over the runs. With `--slopes` it has the exponents of q ~ (1 + t)^b then, from means over `--period` (2 pi) if there are
three whole ones. With `--period T` alone it has the amplitudes of the harmonics k = 1, 2, ... of the period T in the
quantity `--harmonics-of`, after a straight line is taken off, from the last whole number of periods.
"""

import argparse
import textwrap

import numpy as np
from _common import (
    COLOURS,
    SYMBOLS,
    add_files,
    groups,
    late_mean,
    opened,
    print_table,
    save,
    script,
    series,
    varied,
    write_table,
)  # fmt: skip
from scipy.integrate import cumulative_trapezoid

from sphereflow.errors import CaseError
from sphereflow.plotting.style import new_figure, styled

QUANTITIES = ("metric_speed_squared", "energy")
HARMONICS = 12


def harmonics(t, values, period, count=HARMONICS, start=None):
    """Amplitudes (count,) of the harmonics k = 1 ... count of a period in the last whole periods from `start` on.

    Least squares of a straight line and the sines and cosines of all harmonics.

    Raises
    ------
    CaseError
        If there is no whole period from `start` (None: the middle) on, or it has too few records.
    """
    start = (t[0] + t[-1]) / 2 if start is None else start
    whole = int((t[-1] - start) * (1 + 1e-9) / period)
    late = t >= t[-1] - whole * period * (1 + 1e-9)
    if whole < 1 or late.sum() < 2 * count + 3:
        raise CaseError(f"--period: {period:g} is not allowed; from t = {start:g} on there must be a whole period of the "
                        f"run with at least {2 * count + 3} records")  # fmt: skip
    angle = 2 * np.pi / period * np.outer(t[late], np.arange(1, count + 1))
    design = np.column_stack([np.ones(late.sum()), t[late] - t[late].mean(), np.cos(angle), np.sin(angle)])
    found = np.linalg.lstsq(design, values[late], rcond=None)[0]
    return np.hypot(found[2 : 2 + count], found[2 + count :])


def slope(t, values, period, start=None):
    """Exponent b of q ~ (1 + t)^b from `start` (None: the middle) on: a line through the logarithms of means over periods.

    NaN if a mean is not positive.

    Raises
    ------
    CaseError
        If fewer than three whole periods are left.
    """
    start = (t[0] + t[-1]) / 2 if start is None else start
    count = int((t[-1] - start) * (1 + 1e-9) / period)
    if count < 3:
        raise CaseError(f"--slopes: from t = {start:g} on there are {count} periods of {period:g}; three are needed")
    edges = t[-1] - period * np.arange(count, -1, -1)
    integral = np.interp(edges, t, cumulative_trapezoid(values, t, initial=0))
    means = np.diff(integral) / period
    if not (means > 0).all():
        return float("nan")
    return float(np.polyfit(np.log(1 + (edges[1:] + edges[:-1]) / 2), np.log(means), 1)[0])


def together(runs, name):
    """Times (m,) and values (runs, m) of a quantity on the times of the first run.

    Raises
    ------
    CaseError
        If the runs have no records at equal times.
    """
    t = runs[0]["t"].values
    if any(run.sizes["t"] != t.size or not np.allclose(run["t"].values, t, rtol=1e-9, atol=1e-12) for run in runs):
        raise CaseError("output.every: runs that are drawn as one curve must have the same records; they differ in their times")
    return t, np.array([series(run, name) for run in runs])


def draw(found, colours, panels, quantities, options, title):
    """The figure: rows of quantities, columns of the panels' key."""
    columns = list(dict.fromkeys(key[1] for key in found))
    names = list(dict.fromkeys(key[0] for key in found))
    with styled():
        figure = new_figure(max(5.2, 3.7 * len(columns) + 0.9), 0.5 + 2.3 * len(quantities))
        grid = figure.subplots(len(quantities), len(columns), squeeze=False, sharex=True, sharey="row")
        for (colour, column), runs in found.items():
            look = {"color": COLOURS[names.index(colour) % len(COLOURS)], "lw": 1.1}
            for axes, name in zip(grid[:, columns.index(column)], quantities, strict=True):
                t, values = together(runs, name)
                x = 1 + t if options.log_time else t
                axes.plot(x, np.median(values, axis=0), label=None if colour is None else f"{colour}", **look)
                if len(runs) > 1:
                    axes.fill_between(x, *np.quantile(values, [0.1, 0.9], axis=0), color=look["color"], alpha=0.18, lw=0)
        for row, name in zip(grid, quantities, strict=True):
            row[0].set_ylabel(SYMBOLS.get(name, name))
            positive = all((series(run, name) >= 0).all() for runs in found.values() for run in runs)
            for axes in row:
                if options.log_time:
                    axes.set_xscale("log")
                if name in options.log and positive:
                    axes.set_yscale("log")
        for axes, column in zip(grid[0], columns, strict=True):
            axes.set_title("" if panels is None else f"{panels} = {column}")
        for axes in grid[-1]:
            axes.set_xlabel("1 + t" if options.log_time else "flow time t")
        if colours is not None:
            found_lines = [pair for axes in grid[0] for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
            handles = {label: handle for handle, label in found_lines}
            handles = {str(name): handles[str(name)] for name in names}
            corner = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
            grid[0, -1].legend(handles.values(), handles.keys(), title=colours, fontsize=7, **corner)
        wrapped = "\n".join(textwrap.wrap(title, int(13 * figure.get_figwidth())))
        figure.suptitle(wrapped, x=0.01, ha="left", weight="bold", parse_math=False)
        figure.tight_layout()
    return figure


def table(found, colours, panels, quantities, options):
    """A row for each group."""
    rows = []
    for (colour, column), runs in found.items():
        row = {key: value for key, value in ((colours, colour), (panels, column)) if key is not None}
        row["runs"] = len(runs)
        for name in quantities:
            means = np.array([late_mean(run, name, options.start) for run in runs])
            row[name] = float(means.mean())
            row[f"{name}_error"] = float(means.std(ddof=1) / np.sqrt(means.size)) if means.size > 1 else float("nan")
        if options.slopes:
            period = options.period or 2 * np.pi
            for name in quantities:
                each = [slope(run["t"].values, series(run, name), period, options.start) for run in runs]
                row[f"{name}_slope"] = float(np.median(each))
        elif options.period is not None:
            each = [harmonics(run["t"].values, series(run, options.harmonics_of), options.period, start=options.start)
                    for run in runs]  # fmt: skip
            row |= {f"harmonic_{k + 1}": float(value) for k, value in enumerate(np.median(each, axis=0))}
        rows.append(row)
    return rows


def work(options):
    """Read, draw, print, write."""
    with opened(options.runs) as runs:
        keys = varied(runs)
        panels = options.panels
        colours = options.colours or next((key for key in keys if key != panels), None)
        found = {}
        for pair, some in groups(runs, [colours, panels]).items():
            found[pair] = some
        rows = table(found, colours, panels, options.quantities, options)
        print_table(rows)
        print()
        figure = draw(found, colours, panels, options.quantities, options, options.title or runs[0].attrs["title"])
    yield from save(figure, options.output, options)
    yield write_table(rows, f"{options.output}.csv", options.force)


def main(arguments=None):
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n")[2])
    add_files(parser, "against_time")
    parser.add_argument("--quantities", nargs="+", default=list(QUANTITIES), metavar="NAME", help="recorded quantities to draw")
    parser.add_argument("--colours", metavar="KEY", help="key that the colours go with (the first that differs)")
    parser.add_argument("--panels", metavar="KEY", help="key that the columns of panels go with (none)")
    parser.add_argument("--log", nargs="*", default=["metric_speed_squared", "metric_slope_squared"], metavar="NAME",
                        help="quantities on a logarithmic axis, if they are never negative (G^2 and S^2)")  # fmt: skip
    parser.add_argument("--log-time", action="store_true", help="a logarithmic axis of 1 + t")
    parser.add_argument("--start", type=float, metavar="T", help="means are taken from this flow time on (half of the run)")
    parser.add_argument("--period", type=float, metavar="T", help="also tabulate harmonics of this period")
    parser.add_argument("--slopes", action="store_true", help="tabulate exponents of power laws in 1 + t instead")
    parser.add_argument("--harmonics-of", default="energy", metavar="NAME", help="quantity whose harmonics are taken (energy)")
    parser.add_argument("--title", help="heading of the figure (the first run's title)")
    return script(work, parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
