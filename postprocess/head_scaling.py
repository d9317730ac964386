"""How late means of G^2, S^2 and P depend on the number of heads, or on another key: a power law with its interval.

    sphereflow ensemble cases/paper/head_scaling/ou.toml --members 20 --vary heads.count=1,2,5,10,20,50
    python postprocess/head_scaling.py ou-ensemble

Takes an ensemble (or runs) in which `--key` differs. Each quantity is averaged over time, by default over the second half, and
over the runs with the same value x of the key. A straight line through the logarithms of the means, with equal weights, gives
the exponent b of q ~ x^b, once through all values of the key and once through the three largest; intervals are the 95 %
percentile bootstrap over the runs. A second fit, q = x^b0 (c + d/x) with b0 = --exponent, weighted with the means' errors, says
what the law tends to for large x if that exponent is right.
"""

import argparse

import numpy as np
from _common import (
    COLOURS,
    SYMBOLS,
    add_files,
    bootstrap,
    groups,
    late_mean,
    opened,
    print_table,
    save,
    script,
    settings,
    varied,
    write_table,
)  # fmt: skip

from sphereflow.errors import CaseError
from sphereflow.plotting.style import new_figure, styled

QUANTITIES = ("metric_speed_squared", "metric_slope_squared", "dissipation")


def exponent(x, means):
    """Slope of log(means) over log(x), least squares."""
    return np.polyfit(np.log(x), np.log(means), 1)[0]


def limit(x, means, errors, power):
    """Coefficients (c, d) of means = x^power (c + d/x), weighted least squares."""
    design = x[:, None] ** np.array([power, power - 1])
    return np.linalg.lstsq(design / errors[:, None], means / errors, rcond=None)[0]


def collect(runs, key, quantities, start=None):
    """Values x (k,) of the key and samples {quantity: [one array for each x]}.

    Raises
    ------
    CaseError
        If the key is no positive number everywhere, has fewer than two values, or other keys differ too.
    """
    others = [name for name in varied(runs) if name != key]
    if others:
        raise CaseError(f"{key}: the runs differ in {', '.join(others)} too; give runs that differ in {key} and seeds only")
    values = [settings(run).get(key) for run in runs]
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        raise CaseError(f"{key}: {values[0]!r} is not allowed; must be a positive number in all runs")
    by_value = groups(runs, [key])
    if len(by_value) < 2:
        raise CaseError(f"{key}: is {values[0]} in all runs; a power law needs at least two values")
    samples = {
        name: [np.array([late_mean(run, name, start) for run in some]) for some in by_value.values()] for name in quantities
    }
    for name, found in samples.items():
        if not all(some.mean() > 0 for some in found):
            raise CaseError(f"{name}: has means that are not positive, which follow no power law")
    return np.array([value for (value,) in by_value], dtype=float), samples


def table(x, samples, key):
    """One row for each value of the key: means and standard errors."""
    rows = []
    for index, value in enumerate(x):
        row = {key: f"{value:g}", "runs": len(next(iter(samples.values()))[index])}
        for name, found in samples.items():
            some = found[index]
            row[name] = float(some.mean())
            row[f"{name}_error"] = float(some.std(ddof=1) / np.sqrt(some.size)) if some.size > 1 else float("nan")
        rows.append(row)
    return rows


def fits(x, samples, power):
    """One row for each quantity: exponents over all values and over the three largest, and the limit for large x.

    What too few values or runs leave undetermined is NaN.
    """
    rows, nothing = [], (float("nan"),) * 3
    for name, found in samples.items():
        everywhere = bootstrap(found, lambda some: exponent(x, means(some)))
        far = bootstrap(found[-3:], lambda some: exponent(x[-3:], means(some))) if len(x) > 3 else nothing
        errors = np.array([some.std(ddof=1) / np.sqrt(some.size) if some.size > 1 else 0.0 for some in found])
        known = len(x) > 2 and errors.min() > 0
        tends = bootstrap(found, lambda some, e=errors: limit(x, means(some), e, power)[0]) if known else nothing
        row = {"quantity": name}
        for label, three in (("exponent", everywhere), ("exponent_largest", far), ("limit", tends)):
            row |= {label: three[0], f"{label}_low": three[1], f"{label}_high": three[2]}
        rows.append(row)
    return rows


def means(samples):
    """Means (k,) of groups of samples."""
    return np.array([some.mean() for some in samples])


def draw(x, samples, found, key, power, title):
    """Means over the key on logarithmic axes, and what is left of them once the power is divided out."""
    with styled():
        figure = new_figure(8.27, 3.6)
        left, right = figure.subplots(1, 2)
        for colour, (name, some), row in zip(COLOURS, samples.items(), found, strict=False):
            mean = np.array([s.mean() for s in some])
            error = np.array([1.96 * s.std(ddof=1) / np.sqrt(s.size) if s.size > 1 else 0.0 for s in some])
            symbol = SYMBOLS.get(name, name)
            label = f"{symbol}: b = {row['exponent']:.3f} [{row['exponent_low']:.3f}, {row['exponent_high']:.3f}]"
            left.errorbar(x, mean, error, fmt="o", ms=4, capsize=2, color=colour, label=label)
            fitted = np.exp(np.polyval(np.polyfit(np.log(x), np.log(mean), 1), np.log(x)))
            left.plot(x, fitted, color=colour, lw=1)
            for value, single in zip(x, some, strict=True):
                left.plot(np.full(single.size, value), single, "_", color=colour, alpha=0.35, ms=5)
            scale, look = x**-power, {"fmt": "o-", "ms": 4, "lw": 0.8, "capsize": 2, "color": colour}
            right.errorbar(x, mean * scale, error * scale, **look, label=symbol)
        left.set(xscale="log", yscale="log", xlabel=key, title="Late means")
        left.legend()
        times = "" if power == -1 else f"$^{{{-power:g}}}$"
        right.set(xscale="log", xlabel=key, ylim=(0, None), title=f"Late means times {key}{times}")
        right.legend()
        for axes in (left, right):
            axes.set_xticks(x, [f"{value:g}" for value in x])
            axes.minorticks_off()
        figure.suptitle(title, x=0.01, ha="left", weight="bold", parse_math=False)
        figure.tight_layout()
    return figure


def work(options):
    """Read, fit, print, write."""
    with opened(options.runs) as runs:
        x, samples = collect(runs, options.key, options.quantities, options.start)
        title = runs[0].attrs["title"]
    rows, found = table(x, samples, options.key), fits(x, samples, options.exponent)
    print_table(rows)
    print()
    print_table(found)
    print()
    yield from save(draw(x, samples, found, options.key, options.exponent, title), options.output, options)
    yield write_table(rows, f"{options.output}.csv", options.force)
    yield write_table(found, f"{options.output}_fits.csv", options.force)


def main(arguments=None):
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n")[2])
    add_files(parser, "head_scaling")
    parser.add_argument("--key", default="heads.count", help="key of the case whose values are the abscissa (heads.count)")
    parser.add_argument("--quantities", nargs="+", default=QUANTITIES, metavar="NAME", help="what to average (G^2, S^2, P)")
    parser.add_argument("--start", type=float, metavar="T", help="average from this flow time on (half of the run)")
    parser.add_argument("--exponent", type=float, default=-1.0, metavar="B", help="expected exponent, divided out (-1)")
    return script(work, parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
