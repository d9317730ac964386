"""How the pictures look: settings of matplotlib that hold inside of sphereflow's functions only, and colours.

Every figure is made under `styled()`, which starts from matplotlib's defaults: neither do the user's settings change the
pictures nor the pictures the user's settings. No function uses pyplot, so that nothing is shown, kept or closed unasked.
"""

from contextlib import contextmanager

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which all kinds of colour vision tell apart.
BLACK, BLUE, ORANGE, GREEN, RED, SKY, PINK = "#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
GREY = "#666666"
TOKENS = "#40E0FF"  # on magma, which has no blue as light
SEQUENTIAL, DIVERGING = "magma", "RdBu_r"  # both told apart with any colour vision; magma is perceptually uniform

STYLE = {
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": True,
    "axes.formatter.limits": (-4, 4),
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,
}
_TICK_SIZES = {"length": "size", "width": "width", "pad": "pad"}


@contextmanager
def styled():
    """matplotlib's defaults with STYLE on top, for the body of a with statement."""
    with matplotlib.style.context(["default", STYLE]):
        yield


def settle(figure: Figure) -> None:
    """Fix the look of ticks and grid lines, which matplotlib would take from the settings in force when it draws them."""
    rc = matplotlib.rcParams
    grid = {f"grid_{name}": rc[f"grid.{name}"] for name in ("color", "linewidth", "linestyle", "alpha")}
    for axes in figure.axes:
        for axis in ("x", "y"):
            look = {"color": rc[f"{axis}tick.color"], "labelcolor": rc[f"{axis}tick.color"], "labelsize": rc["font.size"]}
            for which in ("major", "minor"):
                sizes = {key: rc[f"{axis}tick.{which}.{name}"] for key, name in _TICK_SIZES.items()}
                axes.tick_params(axis=axis, which=which, direction=rc[f"{axis}tick.direction"], **look, **sizes, **grid)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that no window and no pyplot knows."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure
