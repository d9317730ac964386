"""How fast runs part: W2 from the first run to every other, beside Groenwall's bound from the weights; orders of convergence.

    python postprocess/stability.py reference.nc perturbed.nc [more.nc ...] [-o stability]
    python postprocess/stability.py ENSEMBLE/manifest.json
    python postprocess/stability.py --pairs a1.nc b1.nc a2.nc b2.nc

Runs may be of densities or tokens, on any grids; of an ensemble the complete runs are taken, the first of them as reference.
With --pairs every second run is compared with the one before it instead of the first. Writes NAME.png, NAME.pdf, NAME.csv (a
row for each pair and time) and NAME_sizes.csv (a row for each pair: size of the perturbation and the distances, the largest
over the times or with --at end the last ones; below them the orders fitted, and those of the two smallest perturbations).
Of coarsened densities W2 falls like the square root of a perturbation once that is small against what coarsening blurs (mass
has to hop between fixed sites); W1 and the L1 distance do not.

The panels: W2 and the bound; the mean rates log(W2(t)/W2(0))/t at which W2 grew, of the bound (the mean of C) and of the
linearised flow (token runs of attention); differences of the energy, with the runs' own weights and with those of the
reference; and, for three runs or more, those distances against the size of the perturbation: W2(0), or, if weights differ,
the mean of sum_h w_h |A_h - A'_h| over time. Bars show what coarsening to 600 points can have changed in W2.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

from sphereflow.compare import separation
from sphereflow.errors import CaseError, SphereflowError

COLUMNS = (
    "t", "wasserstein_1", "wasserstein_2", "bound_1", "bound_2", "l1", "energy_difference", "fixed_energy_difference",
    "weight_difference", "exponent", "observed_rate", "linear_rate", "ceiling",
)  # fmt: skip
DISTANCES = {  # name in the table of sizes: column, label, marker
    "wasserstein_1": (r"$W_1$", "x"),
    "wasserstein_2": (r"$W_2$", "o"),
    "l1": (r"$\int|\rho-\rho'|$", "s"),
    "energy_difference": (r"$|\Delta E|$", "^"),
    "fixed_energy_difference": (r"$|\Delta E|$, reference weights", "v"),
}
ROUNDING = 1e-14
SPAN = 1.7  # sizes must differ by this factor before an order is fitted to them


def files_of(names):
    """Files of runs: those named, or the complete ones of a manifest (the file, or the folder it is in).

    Raises
    ------
    CaseError
        If there are fewer than two.
    """
    files = [Path(name) for name in names]
    if len(files) == 1 and (files[0].is_dir() or files[0].suffix == ".json"):
        from sphereflow.ensemble.manifest import Manifest

        manifest = Manifest.load(files[0])
        files = [manifest.file_of(run) for run in manifest.runs if run["status"] == "complete"]
        if len(files) < 2:
            raise CaseError(f"{manifest.path}: {len(files)} of {len(manifest.runs)} runs are complete; two are needed")
    if len(files) < 2:
        raise CaseError("give two runs or more, or the manifest of an ensemble")
    return files


def pairs_of(files, in_pairs):
    """Pairs of files: the first with every other, or the first with the second, the third with the fourth, ....

    Raises
    ------
    CaseError
        If an odd number of files is to be taken in pairs.
    """
    if not in_pairs:
        return [(files[0], file) for file in files[1:]]
    if len(files) % 2:
        raise CaseError(f"--pairs: {len(files)} runs are no pairs")
    return list(zip(files[::2], files[1::2], strict=True))


def names_of(files):
    """Names that tell files apart: without their folders if that is enough."""
    stems = [file.stem for file in files]
    return dict(zip(files, stems if len(set(files)) == len(set(stems)) else map(str, files), strict=True))


def final_values(pairs, at):
    """Distances of the pairs, largest over the times or at the last one, by name; NaN where they are not known."""
    found = {}
    for name in DISTANCES:
        rows = [np.abs(getattr(pair, name)) for pair in pairs]
        found[name] = np.array([row[-1] if at == "end" or np.isnan(row).all() else np.nanmax(row) for row in rows])
    return found


def fitted_order(size, value, smallest=None):
    """Slope of log value against log size by least squares, over the pairs where both are known and not 0; or NaN.

    With `smallest`, over so many pairs with the smallest sizes.
    """
    known = np.isfinite(size) & np.isfinite(value) & (size > 0) & (value > ROUNDING)
    order = np.argsort(size[known])[:smallest]
    x, y = np.log(size[known][order]), np.log(value[known][order])
    if x.size < 2 or np.ptp(x) < np.log(SPAN):
        return np.nan
    return float(np.polyfit(x, y, 1)[0])


def sizes_of(pairs):
    """Sizes of the perturbations, and what they are: of the weights wherever these differ, else of the initial data."""
    weights = np.array([found.weight_size for found in pairs])
    if np.nanmax(weights, initial=0.0) > ROUNDING:
        return weights, r"mean of $\sum_h w_h |A_h - A'_h|$ over time", "weights"
    return np.array([found.input_size for found in pairs]), r"$W_2$ at the start", "initial data"


def write_series(path, labels, pairs):
    """A row for each pair and time."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["reference", "run", *COLUMNS])
        for label, found in zip(labels, pairs, strict=True):
            for row in zip(*(getattr(found, name) for name in COLUMNS), strict=True):
                out.writerow([*label, *(f"{value:.10g}" for value in row)])


def write_sizes(path, labels, pairs, at):
    """A row for each pair, and the fitted orders last; returns the orders by name."""
    size, _, what = sizes_of(pairs)
    values = final_values(pairs, at)
    orders = {name: fitted_order(size, value) for name, value in values.items()}
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["reference", "run", f"size of the perturbation of the {what}", *values])
        for k, label in enumerate(labels):
            out.writerow([*label, f"{size[k]:.10g}", *(f"{value[k]:.10g}" for value in values.values())])
        out.writerow(["fitted order", "", "", *(f"{order:.3f}" for order in orders.values())])
        last = [fitted_order(size, value, 2) for value in values.values()]
        out.writerow(["order of the two smallest", "", "", *(f"{order:.3f}" for order in last)])
    return orders


def draw(labels, pairs, at):
    """The figure."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.88, len(pairs)))
    draw_distances(axes[0, 0], labels, pairs, colors)
    draw_rates(axes[0, 1], pairs, colors)
    draw_energies(axes[1, 0], pairs, colors)
    draw_sizes(axes[1, 1], pairs, at)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", fontsize="small", frameon=False)
    return figure


def draw_distances(axes, labels, pairs, colors):
    """W2 with the coarsening's bars, and the bound."""
    for label, found, color in zip(labels, pairs, colors, strict=True):
        text = label[1] if all(one[0] == labels[0][0] for one in labels) else ", ".join(label)
        axes.plot(found.t, positive(found.wasserstein_2), color=color, label=text)
        if found.bound_2.any():
            upper = found.wasserstein_2 + found.bound_2
            axes.fill_between(found.t, np.maximum(found.wasserstein_2 - found.bound_2, 1e-300), upper, color=color, alpha=0.12)
        axes.plot(found.t, positive(found.ceiling), "--", color=color, lw=1)
    axes.plot([], [], "--", color="0.4", lw=1, label="bound")
    shown = np.concatenate([found.wasserstein_2 for found in pairs])
    lowest = shown[shown > 0].min(initial=np.pi)
    axes.set(title=r"distance $W_2$ (dashed: its bound, at most $\pi$)", xlabel="t", yscale="log", ylim=(lowest / 3, 5))


def draw_rates(axes, pairs, colors):
    """Mean rates of growth; where nothing is apart at the start there are none, see `draw_causes`."""
    if not any(np.isfinite(found.observed_rate).any() for found in pairs):
        draw_causes(axes, pairs, colors)
        return
    for found, color in zip(pairs, colors, strict=True):
        axes.plot(found.t, found.observed_rate, color=color)
    first = pairs[0]
    for rate, style, label in ((mean_rate(first), "--", "bound C"), (mean_linear(first), ":", "linearised flow")):
        if np.isfinite(rate).any():
            axes.plot(first.t, rate, style, color="0.2", label=label)
    axes.set(title=r"mean rate so far, $\log(W_2(t)/W_2(0))/t$", xlabel="t")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.margins(y=0.15)
    axes.legend(fontsize="small", frameon=False, loc="center right")


def draw_causes(axes, pairs, colors):
    """The weights' difference, and the distance of densities in L1."""
    for found, color in zip(pairs, colors, strict=True):
        axes.plot(found.t, positive(found.weight_difference), ":", color=color)
        axes.plot(found.t, positive(found.l1), color=color)
    if any(np.isfinite(found.l1).any() for found in pairs):
        axes.plot([], [], color="0.4", label=r"$\int|\rho-\rho'|$")
    axes.plot([], [], ":", color="0.4", label=r"$\sum_h w_h |A_h - A'_h|$")
    axes.set(title="difference of the weights, and of densities", xlabel="t", yscale="log")
    axes.legend(fontsize="small", frameon=False)


def mean_rate(found):
    """Mean of C from the first time on."""
    t = found.t - found.t[0]
    return np.divide(found.exponent, t, out=np.full_like(t, np.nan), where=t > 0)


def mean_linear(found):
    """Mean of the linearised flow's rate from the first time on (trapezoidal rule)."""
    t, rate = found.t, found.linear_rate
    total = np.concatenate([[0.0], np.cumsum(np.diff(t) * 0.5 * (rate[1:] + rate[:-1]))])
    return np.divide(total, t - t[0], out=np.full_like(t, np.nan), where=t > t[0])


def draw_energies(axes, pairs, colors):
    """Sizes of the energy's differences."""
    for found, color in zip(pairs, colors, strict=True):
        axes.plot(found.t, positive(np.abs(found.energy_difference)), color=color)
        axes.plot(found.t, positive(np.abs(found.fixed_energy_difference)), ":", color=color)
    if not any(np.any(np.abs(found.energy_difference) > ROUNDING) for found in pairs):
        axes.text(0.5, 0.5, "none, or energies not known", ha="center", transform=axes.transAxes, color="0.4")
    axes.plot([], [], "-", color="0.4", label="own weights")
    axes.plot([], [], ":", color="0.4", label="weights of the reference")
    axes.set(title=r"difference of the energy, $|E'-E|$", xlabel="t", yscale="log")
    axes.legend(fontsize="small", frameon=False)


def draw_sizes(axes, pairs, at):
    """Distances against the size of the perturbation, with the fitted order."""
    size, label, _ = sizes_of(pairs)
    if np.unique(np.round(np.log(size[size > 0]), 6)).size < 2:
        axes.axis("off")
        axes.text(0.5, 0.5, "one size of perturbation only:\nno order of convergence", ha="center", color="0.4")
        return
    values = final_values(pairs, at)
    for name, (text, marker) in DISTANCES.items():
        value = values[name]
        shown = (size > 0) & (value > ROUNDING)
        if shown.any():
            order = fitted_order(size, value)
            axes.plot(size[shown], value[shown], marker, label=text + (f": order {order:.2f}" if np.isfinite(order) else ""))
            ends = np.array([size[shown].min(), size[shown].max()])
            middle = np.exp(np.mean(np.log(value[shown]) - order * np.log(size[shown])))
            axes.plot(ends, middle * ends**order, color="0.6", lw=0.8, zorder=0)
    when = "at the end" if at == "end" else "largest over time"
    axes.set(title=f"{when}, against the perturbation", xlabel=label, xscale="log", yscale="log")
    ticks = np.geomspace(size[size > 0].min(), size.max(), 3)
    axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize="small", frameon=False)


def positive(values):
    """Values for a logarithmic scale: NaN where they are not positive."""
    return np.where(values > ROUNDING, values, np.nan)


def report(labels, pairs, orders):
    """What was found, in lines."""
    yield f"{'runs':32s} {'W2(0)':>10s} {'W2(end)':>10s} {'largest':>10s} {'rate':>8s} {'linear':>8s} {'C':>10s} {'bound':>8s}"
    for label, found in zip(labels, pairs, strict=True):
        w, rate = found.wasserstein_2, found.observed_rate
        fastest = np.nanmax(rate) if np.isfinite(rate).any() else np.nan
        yield (
            f"{', '.join(label):32s} {w[0]:10.3e} {w[-1]:10.3e} {w.max():10.3e} {fastest:8.3g} {mean_linear(found)[-1]:8.3g}"
            f" {mean_rate(found)[-1]:10.4g} {found.ceiling[-1]:8.3g}"
        )
        if found.bound_2.any():
            yield f"{'':32s} coarsening can have changed W2 by up to {found.bound_2.max():.2g}"
        yield from (f"{'':32s} {note}" for note in found.notes)
    known = {name: order for name, order in orders.items() if np.isfinite(order)}
    if known:
        yield "fitted orders: " + ", ".join(f"{name} {order:.2f}" for name, order in known.items())


def main(arguments=None):
    """Compare, draw and write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=__doc__.partition("\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("runs", nargs="+", metavar="RUN", help="output files of runs, the reference first; or a manifest")
    parser.add_argument("--pairs", action="store_true", help="compare the first with the second, and so on")
    parser.add_argument("--at", choices=("largest", "end"), default="largest", help="distances that orders are fitted to")
    parser.add_argument("-o", "--output", default="stability", metavar="NAME", help="files to write, without their suffix")
    parser.add_argument("--times", type=int, default=41, help="number of compared times, 41 unless given")
    options = parser.parse_args(arguments)
    try:
        files = files_of(options.runs)
        chosen = pairs_of(files, options.pairs)
        pairs = [separation(*pair, options.times) for pair in chosen]
    except SphereflowError as error:
        print(f"stability: {error}", file=sys.stderr)
        return error.exit_code
    names, name = names_of(files), Path(options.output)
    labels = [tuple(names[file] for file in pair) for pair in chosen]
    name.parent.mkdir(parents=True, exist_ok=True)
    written = [name.with_name(name.name + end) for end in (".csv", "_sizes.csv", ".png", ".pdf")]
    write_series(written[0], labels, pairs)
    orders = write_sizes(written[1], labels, pairs, options.at)
    figure = draw(labels, pairs, options.at)
    for path in written[2:]:
        figure.savefig(path, dpi=150)
    print("\n".join([*report(labels, pairs, orders), *map(str, written)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
