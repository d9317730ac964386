"""Fields and tokens on the sphere, drawn into axes of matplotlib."""

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Circle, Ellipse, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sphereflow.plotting.scales import UNIFORM, ColourScale
from sphereflow.plotting.sphere import Face, FaceSampler, unit_vectors
from sphereflow.plotting.style import BLUE, GREY, TOKENS

MOST_TOKENS = 20_000  # drawn in one picture: more cover each other
_OVERLAP = 0.006  # of the half height: the picture reaches under the rim's line


def prepare(axes, face: Face | None) -> None:
    """Limits, rim and graticule of an axes that shows one face; None is the disc of two coordinates."""
    half_width = 1.0 if face is None else face.half_width
    axes.set(xlim=(-half_width * 1.02, half_width * 1.02), ylim=(-1.02, 1.02), aspect="equal")
    axes.set_axis_off()
    axes.add_patch(rim(axes, face, facecolor="#f2f2f2", edgecolor="none", zorder=0))
    axes.add_patch(rim(axes, face, facecolor="none", edgecolor="#444444", linewidth=0.7, zorder=5))
    if face is None:
        axes.plot([-1, 1], [0, 0], color="#cccccc", lw=0.5, zorder=1)
        axes.plot([0, 0], [-1, 1], color="#cccccc", lw=0.5, zorder=1)


def rim(axes, face: Face | None, **look):
    """The outline of a face as a patch."""
    if face is None or face.projection == "orthographic":
        return Circle((0, 0), 1.0, **look)
    if face.projection == "mollweide":
        return Ellipse((0, 0), 4.0, 2.0, **look)
    return Rectangle((-2, -1), 4.0, 2.0, **look)


def draw_graticule(axes, face: Face, over_field: bool) -> None:
    """Meridians every 45 degrees, parallels every 30, and the poles' letters."""
    color, alpha = ("white", 0.28) if over_field else (GREY, 0.35)
    along = np.linspace(-180, 180, 361)
    lines = [unit_vectors(along, latitude) for latitude in (-60, -30, 0, 30, 60)]
    lines += [unit_vectors(longitude, along[::2] / 2) for longitude in range(0, 360, 45)]
    gap = np.full((1, 3), np.nan)
    x, y = face.plane(np.concatenate([part for line in lines for part in (line, gap)]))
    if face.projection != "orthographic":  # where a line leaves the map at one side and comes back at the other
        x[1:][np.abs(np.diff(x)) > face.half_width] = np.nan
    axes.plot(x, y, color=color, alpha=alpha, lw=0.5, zorder=2, solid_capstyle="butt")
    if face.projection != "orthographic":
        return
    for letter, pole in (("N", [0.0, 0.0, 1.0]), ("S", [0.0, 0.0, -1.0])):
        x, y = face.plane(np.array(pole))
        if np.isfinite(x) and np.hypot(x, y) < 0.93:
            axes.text(
                x, y, letter, color="white" if over_field else GREY, fontsize=6, ha="center", va="center", zorder=6,
                bbox={"boxstyle": "circle,pad=0.15", "facecolor": "#000000" if over_field else "white", "alpha": 0.35, "lw": 0},
            )  # fmt: skip


def draw_colour_bar(figure, axes, scale: ColourScale) -> None:
    """The colour bar of a scale into axes of its own; on a scale of densities a line marks the uniform one."""
    bar = figure.colorbar(ScalarMappable(scale.norm, scale.cmap), cax=axes, extend=scale.extend)
    bar.set_label(scale.label)
    bar.outline.set_linewidth(0.5)
    low, high = scale.norm.vmin, scale.norm.vmax
    if isinstance(scale.norm, LogNorm) and 1e-4 < low < high < 1e5:  # plain numbers read faster than powers
        bar.locator = LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,))
        bar.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        bar.minorformatter = NullFormatter()
        bar.update_ticks()
    if scale.factor == 1 / UNIFORM and low < 1 - scale.offset < high:
        axes.axhline(1 - scale.offset, color="white", lw=0.8)


class FieldPicture:
    """A field on one face, whose values can be exchanged.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    face : Face
    sampler : FaceSampler
    scale : ColourScale
    """

    def __init__(self, axes, face: Face, sampler: FaceSampler, scale: ColourScale):
        self._sampler, self._scale = sampler, scale
        prepare(axes, face)
        shape = (2, round(2 * face.half_width))
        self.image = axes.imshow(
            np.full(shape, np.nan), extent=sampler.extent, origin="lower", norm=scale.norm, cmap=scale.cmap,
            interpolation="bilinear", zorder=1,
        )  # fmt: skip
        axes.set(xlim=(-face.half_width * 1.02, face.half_width * 1.02), ylim=(-1.02, 1.02))
        clip = rim(axes, face, transform=axes.transData)
        self.image.set_clip_path(clip)
        draw_graticule(axes, face, over_field=True)

    def show(self, values: np.ndarray) -> None:
        """Put the values (nlat, nlon) of a field into the picture."""
        self.image.set_data(self._scale(self._sampler(values)))


class TokenPicture:
    """Tokens on one face (of S^2), or their first two coordinates (in other dimensions), which can be moved.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
    face : Face or None
        None draws coordinates 1 and 2.
    over_field : bool
        Whether a field lies below them.
    """

    def __init__(self, axes, face: Face | None, over_field: bool):
        self._axes, self._face, self._over_field = axes, face, over_field
        if not over_field:
            prepare(axes, face)
            if face is not None:
                draw_graticule(axes, face, over_field=False)
        self._dots = None

    def show(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Put tokens (n, d) with their weights (n,) into the picture; a dot's area goes with the weight."""
        if self._dots is not None:
            self._dots.remove()
        count = len(positions)
        step = -(-count // MOST_TOKENS)
        positions, weights = positions[::step], weights[::step]
        x, y = positions[:, :2].T if self._face is None else self._face.plane(positions)
        size = np.clip(2400.0 / len(positions), 0.6, 14.0) * weights / weights.mean()
        look = {"color": TOKENS, "edgecolors": "black"} if self._over_field else {"color": BLUE, "edgecolors": "white"}
        few = len(positions) <= 2000
        self._dots = self._axes.scatter(
            x, y, s=size, **look, linewidths=0.3 if few else 0.0, alpha=0.85 if few else 0.6, zorder=4,
            rasterized=not few, clip_on=False,
        )  # fmt: skip
