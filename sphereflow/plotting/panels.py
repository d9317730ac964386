r"""Curves of a run: each function draws one subject into axes that it is given.

Symbols: E energy, W work of the weights, P dissipation, G metric speed, S metric slope, A_h logit matrices.
"""

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import FuncFormatter

from sphereflow.errors import CaseError
from sphereflow.harmonics import degree_power, get_transform
from sphereflow.plotting.records import field, grid_of, name_of, record_times, tokens
from sphereflow.plotting.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY

TOKEN_DEGREE = 32  # of the spectrum of tokens: beyond it there is their sampling noise only
MOST_CURVES = 1000  # records of a curve that has many lines
SMALLEST = 1e-16  # of the largest value: what a logarithmic axis shows
# Thinner and thinner, so that all are seen where they are equal: G^2 = S^2 = P for a gradient flow.
RATES = (
    ("metric_speed_squared", "$G^2$", BLUE, 2.8),
    ("metric_slope_squared", "$S^2$", ORANGE, 2.0),
    ("dissipation", "$P$", BLACK, 0.9),
    ("gradient_flow_defect", "defect", RED, 1.3),
)


def _line(axes, t, values, **look):
    """A curve; a single record is a dot."""
    marker = {"marker": "o", "ms": 4} if np.size(t) == 1 else {}
    return axes.plot(t, values, **marker, **look)


def _time_axis(axes, t):
    axes.set_xlabel("flow time t")
    if t.size > 1:
        axes.set_xlim(t[0], t[-1])
    else:
        axes.set_xticks(t)


def _plain_ticks(axes):
    """Tick labels that are whole numbers: a common factor would stand where the legend is."""

    def label(value, _):
        low, high = axes.get_ylim()
        return f"{0.0 if abs(value) < 1e-9 * (high - low) else value:.6g}".replace("-", "−")

    axes.yaxis.set_major_formatter(FuncFormatter(label))


def _legend(axes, columns):
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=columns, borderaxespad=0.1)


def draw_ledger(axes, run) -> None:
    """The energy, what changed it, and what is left unexplained: E(t) - E(0) = W - int P dt + residual.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    run : xarray.Dataset
        Must hold `energy`; the other terms are drawn where they are there.
    """
    t, energy = record_times(run), run["energy"].values
    with np.errstate(invalid="ignore"):  # energies that have overflowed
        change = energy - energy[0]
    _line(axes, t, change, color=BLACK, lw=2, label="$E(t) - E(0)$")
    if "weight_work" in run:
        _line(axes, t, run["weight_work"].values, color=BLUE, label="work of the weights $W$")
    if "weight_martingale" in run:
        _line(axes, t, run["weight_martingale"].values, color=SKY, ls="--", label="of it martingale")
    if "dissipation_integral" in run:
        _line(axes, t, -run["dissipation_integral"].values, color=RED, label=r"dissipated, $-\int P\,dt$")
    if "edi_residual" in run:
        residual = run["edi_residual"].values
        finite = np.abs(residual[np.isfinite(residual)])
        largest = finite.max(initial=0.0)
        size = ("0" if largest == 0 else f"{largest:.1e}") if finite.size else "unknown"
        _line(axes, t, residual, color=GREEN, ls=":", lw=2, label=f"residual, at most {size}")
    axes.set(title="Energy and its ledger" + f", E(0) = {energy[0]:.6g}", ylabel="energy")
    axes.axhline(0, color="#999999", lw=0.6, zorder=0)
    _plain_ticks(axes)
    _time_axis(axes, t)
    _legend(axes, 5)


def draw_dissipation(axes, run) -> None:
    """G^2, P, S^2 and the gradient-flow defect on a logarithmic axis; where one is negative, its size is dotted.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    run : xarray.Dataset
        What it does not hold is left out.
    """
    t = record_times(run)
    drawn = {name: run[name].values for name, *_ in RATES if name in run}
    sizes = np.concatenate([np.abs(values[np.isfinite(values)]) for values in drawn.values()])
    largest = sizes.max(initial=0.0)
    for name, symbol, color, width in RATES:
        if name not in drawn:
            continue
        values, look = drawn[name], {"color": color, "lw": width}
        _line(axes, t, np.where(values > 0, values, np.nan), label=symbol, **look)
        if np.any(values < 0):
            _line(axes, t, np.where(values < 0, -values, np.nan), ls=":", label=f"−{symbol}", **look)
    axes.set(title="Rates of the flow")
    _time_axis(axes, t)
    _logarithmic(axes, largest, sizes)
    _legend(axes, 6)


def _logarithmic(axes, largest, sizes):
    """A logarithmic axis that leaves out round-off; a linear one if there is nothing positive to show."""
    shown = sizes[sizes > SMALLEST * largest]
    if not shown.size:
        axes.set_ylim(-1, 1)
        axes.text(0.5, 0.6, "all zero", color=GREY, ha="center", va="center", transform=axes.transAxes)
        return
    axes.set_yscale("log")
    axes.set_ylim(0.6 * shown.min(), 1.6 * largest)


def spectrum(run, record: int) -> tuple[np.ndarray, float]:
    """Power of the density in each degree, over that of degree 0.

    Of a density: of its cell means. Of tokens: of the point masses, up to degree 32.

    Parameters
    ----------
    run : xarray.Dataset
        With `density`, or with `position` of tokens on S^2.
    record : int
        Index of the record.

    Returns
    -------
    power : ndarray, shape (L + 1,)
        sum_m |a_lm|^2 / |a_00|^2.
    noise : float
        What independent tokens of the same weights p_i have per order in the mean, sum_i p_i^2; 0 for a density. Sampling gives
        degree l the power (2 l + 1) times it.
    """
    if "density" in run:
        lat, lon = grid_of(run)
        if lon.size != 2 * lat.size or lat.size < 8 or lat.size % 2:
            found = f"{lat.size} x {lon.size}"
            raise CaseError(f"{name_of(run)}: the spectrum needs all nodes of the run's Gauss grid, not {found} of them")
        lmax = lat.size - 1
        coefficients = get_transform(lat.size, lmax, "ducc0").analysis(field(run, "density", record))
        noise = 0.0
    else:
        from sphereflow.particles import TokenMeasure  # half a second, which a density does without

        positions, weights = tokens(run, record)
        lmax, noise = TOKEN_DEGREE, float(np.sum((weights / weights.sum()) ** 2))
        coefficients = TokenMeasure(positions, weights).coefficients(lmax)
    power = degree_power(coefficients, lmax)
    return power / power[0], noise


def draw_spectrum(axes, run, records) -> None:
    """The spectrum by degree at some records, see `spectrum`, and the level of independent tokens.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    run : xarray.Dataset
        With `density`, or with `position` of tokens on S^2.
    records : sequence of int
    """
    t = record_times(run)
    shades = [BLACK, BLUE, SKY, GREEN, ORANGE, RED, PINK]
    shades = [shades[round(k * 6 / max(len(records) - 1, 1)) if len(records) > 1 else 1] for k in range(len(records))]
    labelled = {0, len(records) // 2, len(records) - 1} if len(records) > 4 else set(range(len(records)))
    sizes = []
    for k, record in enumerate(records):
        power, noise = spectrum(run, record)
        sizes.append(power[1:][np.isfinite(power[1:])])
        label = f"t = {t[record]:.4g}" if k in labelled else None
        # Symmetric densities have no odd degrees: what is left there is round-off, and the line goes on to the next even one.
        shown = np.flatnonzero(power[1:] > SMALLEST * power[1:].max(initial=0.0)) + 1
        axes.plot(shown, power[shown], "o-", color=shades[k], lw=0.8, ms=2, label=label)
    if noise:
        degree = np.arange(1, power.size)
        axes.plot(degree, (2 * degree + 1) * noise, color=GREY, ls="--", lw=1)
        axes.text(0.99, 0.03, "dashed: independent tokens", transform=axes.transAxes, ha="right", fontsize=7, color=GREY)
    sizes = np.concatenate(sizes)
    axes.set(title="Spectrum of the density", xlabel="degree $l$", ylabel="power / power at 0", xlim=(0, power.size))
    _logarithmic(axes, max(sizes.max(initial=0.0), SMALLEST), sizes)
    _legend(axes, 5)


def draw_weights(axes, run) -> None:
    """Eigenvalues of the logit matrices A_h, one thin line for every head, coloured by rank.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    run : xarray.Dataset
        With `logits`; value matrices of their own, `values`, are dashed. Of complex eigenvalues the real parts are drawn.
    """
    t = record_times(run)
    step = -(-t.size // MOST_CURVES)
    t = t[::step]
    complex_ones = False
    for name, style in (("logits", "-"), ("values", "--")):
        if name not in run:
            continue
        matrices = run[name][::step].transpose("t", "head", "row", "col").values
        usable = np.isfinite(matrices).all(axis=(-1, -2))
        there = usable.any(axis=0)  # members of an ensemble with fewer heads are padded with NaN
        matrices, usable = matrices[:, there], usable[:, there]
        heads = int(there.sum())
        eigenvalues = np.linalg.eigvals(np.where(usable[..., None, None], matrices, 0.0))
        size = np.abs(matrices[usable]).max(initial=0.0)
        complex_ones |= bool(np.any(np.abs(eigenvalues.imag) > 1e-9 * max(size, np.finfo(float).tiny)))
        ranked = np.where(usable[..., None], np.sort(eigenvalues.real, axis=-1)[..., ::-1], np.nan)
        _draw_ranks(axes, t, ranked, style, name == "values")
    matrix = "$A_h$" if "values" not in run else "$A_h$, dashed $V_h$"
    count = f"{heads} head{'s' * (heads != 1)}"
    axes.set(title=f"Eigenvalues of {matrix}, {count}", ylabel="real part" if complex_ones else "eigenvalue")
    _time_axis(axes, t)
    axes.autoscale_view(scalex=t.size == 1)
    _plain_ticks(axes)
    _legend(axes, 5)


def _draw_ranks(axes, t, ranked, style, dashed):
    """Lines of eigenvalues (records, heads, ranks)."""
    count = ranked.shape[-1]
    colors = {1: [BLUE], 2: [RED, BLUE], 3: [RED, GREY, BLUE]}.get(count, [RED, ORANGE, GREY, SKY, BLUE])
    names = {1: [""], 2: ["larger", "smaller"], 3: ["largest", "middle", "smallest"]}.get(
        count, [f"{k + 1}." for k in range(count)]
    )
    heads = max(ranked.shape[1], 1)
    look = {"lw": 1.3 if heads <= 4 else 0.8, "alpha": float(np.clip(4 / heads, 0.25, 0.9)), "linestyle": style}
    for rank in range(count):
        color = colors[rank % len(colors)]
        if not dashed:
            axes.plot([], [], color=color, label=names[rank] or None)
        if t.size == 1:
            axes.plot(np.full(heads, t[0]), ranked[0, :, rank], "_" if dashed else "o", color=color, ms=4, alpha=look["alpha"])
            continue
        lines = np.stack([np.broadcast_to(t[:, None], ranked.shape[:2]), ranked[..., rank]], axis=-1)
        axes.add_collection(LineCollection(lines.swapaxes(0, 1), colors=color, **look))


def draw_order(axes_pair, run) -> None:
    """Order parameter and largest second moment above, number of clusters below.

    Parameters
    ----------
    axes_pair : sequence of matplotlib.axes.Axes
        One or two; the second is for `cluster_count`, of runs that record it.
    run : xarray.Dataset
        With `order_parameter`; `second_moment` and `cluster_count` where they are there.
    """
    t, upper = record_times(run), axes_pair[0]
    _line(upper, t, run["order_parameter"].values, color=BLUE, label="order parameter")
    if "second_moment" in run:
        moments = run["second_moment"].transpose("t", "row", "col").values
        usable = np.isfinite(moments).all(axis=(1, 2))
        largest = np.linalg.eigvalsh(np.where(usable[:, None, None], moments, 0.0))[:, -1]
        label = "largest second moment"
        _line(upper, t, np.where(usable, largest, np.nan), color=ORANGE, label=label)
        dimension = moments.shape[-1]
        upper.axhline(1 / dimension, color=ORANGE, lw=0.7, ls=":")
    upper.set(title="Order", ylim=(-0.03, 1.03))
    _time_axis(axes_pair[-1], t)
    _legend(upper, 2)
    if len(axes_pair) == 1:
        return
    lower = axes_pair[1]
    count = run["cluster_count"].values
    if t.size == 1:
        _line(lower, t, count, color=GREEN)
    else:
        lower.step(t, count, where="post", color=GREEN)
    lower.set(ylabel="clusters", ylim=(-0.4, max(float(np.nanmax(count)), 1.0) + 0.6))
    lower.yaxis.get_major_locator().set_params(integer=True, nbins=4)
    upper.set_xlim(lower.get_xlim())
    upper.tick_params(labelbottom=False)
