"""Figures of one subject each: short cuts to `plot_run`."""

from sphereflow.plotting.page import plot_run


def plot_density(run, times=None, **options):
    """The density at some times on the sphere.

    Parameters
    ----------
    run : xarray.Dataset
        With `density`.
    times : sequence of float, optional
        Flow times; default: four that divide the way of the density into equal parts.
    **options
        `projection`, `view`, `particles`, `scale` of `plot_run`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    CaseError
        If the run holds no density or a time lies outside of its records.
    """
    return plot_run(run, ["density"], times, **options)


def plot_tokens(run, times=None, **options):
    """The tokens of a run at some times: on the sphere S^2, or their first two coordinates in other dimensions.

    Parameters
    ----------
    run : xarray.Dataset
        With `position`.
    times : sequence of float, optional
    **options
        `projection`, `view` of `plot_run`.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    CaseError
        If the run holds no tokens or a time lies outside of its records.
    """
    return plot_run(run, ["tokens"], times, **options)


def plot_ledger(run):
    """The energy ledger, see `sphereflow.plotting.panels.draw_ledger`; returns a Figure."""
    return plot_run(run, ["ledger"])


def plot_dissipation(run):
    """G^2, P, S^2 and the gradient-flow defect, see `sphereflow.plotting.panels.draw_dissipation`; returns a Figure."""
    return plot_run(run, ["dissipation"])


def plot_spectrum(run, times=None):
    """The spectrum by degree at some times, see `sphereflow.plotting.panels.draw_spectrum`; returns a Figure."""
    return plot_run(run, ["spectrum"], times)


def plot_weights(run):
    """Eigenvalues of the heads' matrices, see `sphereflow.plotting.panels.draw_weights`; returns a Figure."""
    return plot_run(run, ["weights"])


def plot_order(run):
    """Order parameter and clusters, see `sphereflow.plotting.panels.draw_order`; returns a Figure."""
    return plot_run(run, ["order"])
