"""The figure of a comparison: curves of both runs, and differences beside the noise that is expected."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sphereflow.errors import OutputError

LABELS = {"energy": "energy E", "dissipation": "dissipation P", "metric_speed_squared": "squared metric speed G²"}


def plot_comparison(comparison, path=None) -> Figure:
    """Draw a comparison.

    Parameters
    ----------
    comparison : sphereflow.compare.Comparison
    path : path-like, optional
        Write the figure there; the suffix decides the format.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    curves = comparison.curves
    figure = Figure(figsize=(4.2 * (len(curves) + 1), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(curves) + 1, squeeze=False)[0]
    names = [Path(side.name).name for side in (comparison.a, comparison.b)]
    for ax, (name, (t, a, b)) in zip(axes, curves.items(), strict=False):
        ax.plot(t, a, label=names[0], lw=2, color="tab:blue")
        ax.plot(t, b, label=names[1], lw=1.5, ls="--", color="tab:orange")
        quantity = next((q for q in comparison.quantities if q.name == name), None)
        if quantity is not None and quantity.noise.any():
            ax.errorbar(
                quantity.times, quantity.a, 2 * quantity.noise, fmt="none", ecolor="0.4", capsize=4,
                label="± 2 σ of sampling", zorder=3,
            )  # fmt: skip
        ax.set(title=LABELS[name], xlabel="t")
        ax.legend(fontsize="small")
    _plot_sigmas(axes[-1], comparison)
    figure.suptitle(comparison.verdict)
    if path is not None:
        try:
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:
            raise OutputError(f"{path}: cannot write the figure: {error}") from None
    return figure


def _plot_sigmas(ax, comparison):
    """Differences over what is allowed: noise and tolerance."""
    from sphereflow.compare.verdict import SIGMAS

    for quantity in comparison.quantities:
        allowed = quantity.allowed + SIGMAS * quantity.noise
        ax.plot(quantity.times, np.divide(quantity.excess, allowed), "o-", ms=4, label=quantity.name)
    ax.axhline(1.0, color="0.3", lw=1)
    ax.set(title="difference / (tolerance + 4 σ)", xlabel="t", ylim=(0, None))
    ax.legend(fontsize="x-small")
