"""Figures: the only room that draws.

Every function takes a run as `sphereflow.open_run` gives it (an xarray.Dataset) and returns a matplotlib Figure, or writes a
file; nothing is shown and pyplot is not used.

============== ==============================================================================================
``sphere``     projections and the sampling of fields at the pixels of a picture
``scales``     colour scales
``maps``       fields and tokens on the sphere
``panels``     curves: ledger, rates, spectrum, weights, order
``page``       which panels a page has and where they stand
``records``    which records of a run are read, and what became of the run
``film``       animations (``encoding``: GIF and MP4)
``choices``    words that a user chooses from
``saving``     files, all or nothing
``comparison`` the figure of a comparison
============== ==============================================================================================
"""

from sphereflow.plotting.comparison import plot_comparison
from sphereflow.plotting.film import animate_run
from sphereflow.plotting.page import PANELS, choose_panels, plot_run
from sphereflow.plotting.records import open_tokens
from sphereflow.plotting.saving import save_figure
from sphereflow.plotting.single import (
    plot_density,
    plot_dissipation,
    plot_ledger,
    plot_order,
    plot_spectrum,
    plot_tokens,
    plot_weights,
)

__all__ = [
    "PANELS",
    "animate_run",
    "choose_panels",
    "open_tokens",
    "plot_comparison",
    "plot_density",
    "plot_dissipation",
    "plot_ledger",
    "plot_order",
    "plot_run",
    "plot_spectrum",
    "plot_tokens",
    "plot_weights",
    "save_figure",
]
