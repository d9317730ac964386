"""The page of a run: which panels it has, what each needs, and where they stand.

Positions are in inches and fixed, so that labels cannot collide whatever is drawn: full-width blocks of maps, then curves, two
beside each other.
"""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr

from sphereflow.diagnostics import FIELDS
from sphereflow.errors import CaseError
from sphereflow.plotting import panels
from sphereflow.plotting.choices import check_choice
from sphereflow.plotting.maps import MOST_TOKENS, FieldPicture, TokenPicture, draw_colour_bar
from sphereflow.plotting.records import (
    check_overlay,
    chosen_records,
    field,
    grid_of,
    name_of,
    overlay_tokens,
    provenance,
    record_times,
    state_note,
    tokens,
)
from sphereflow.plotting.scales import ColourScale, density_scale, field_scale
from sphereflow.plotting.sphere import Face, FaceSampler, faces
from sphereflow.plotting.style import GREY, RED, new_figure, settle, styled

WIDTH, MARGIN = 8.27, 0.5  # of a page, inches; an A4 sheet
_TITLE, _CELL_TITLE, _GAP = 0.3, 0.22, 0.12
_BAR = 0.75  # the colour bar with its labels
_LEFT, _BELOW, _ABOVE, _CURVE = 0.62, 0.42, 0.5, 1.45  # of a panel with curves


@dataclass(frozen=True)
class Panel:
    """One subject of a page.

    Attributes
    ----------
    missing : callable
        Takes the run; says what it lacks and how to get it, or None.
    shape : {"maps", "half", "wide"}
        A block of maps, or curves over half of the page's width or all of it.
    draw : callable
        Of curves: takes axes and the run.
    """

    missing: Callable[[xr.Dataset], str | None]
    shape: str = "half"
    draw: Callable | None = None


def _without(variable, kind=""):
    def missing(run):
        return None if variable in run else f"it holds no {variable}{kind}"

    return missing


def _missing_density(run):
    if "density" in run:
        return None
    if "particle" in run.sizes:
        return 'it is a run of tokens, not of a density: "tokens" draws them; a density needs solver.kind = "finite-volume"'
    return 'it holds no density; to store it, run the case with output.fields = ["density"]'


def _missing_tokens(run):
    if "position" in run:
        return None
    if "particle" in run.sizes:
        return 'it holds no positions; to store them, run the case with output.fields = ["position"]'
    return 'it has a density, no tokens; those of a run with solver.kind = "particles" can be laid over it (particles)'


def _missing_spectrum(run):
    if "density" in run:
        return None
    if "position" in run:
        dimension = run.sizes["xyz"]
        return None if dimension == 3 else f"its tokens have dimension {dimension}; spherical harmonics need 3"
    return _missing_tokens(run) if "particle" in run.sizes else _missing_density(run)


def _missing_rates(run):
    return None if any(name in run for name, *_ in panels.RATES) else "it holds no dissipation, metric speed or slope"


PANELS = {
    "density": Panel(_missing_density, "maps"),
    "tokens": Panel(_missing_tokens, "maps"),
    "ledger": Panel(_without("energy"), "wide", panels.draw_ledger),
    "dissipation": Panel(_missing_rates, "half", panels.draw_dissipation),
    "spectrum": Panel(_missing_spectrum, "half"),
    "weights": Panel(_without("logits", " matrices of the heads"), "half", panels.draw_weights),
    "order": Panel(_without("order_parameter"), "half"),
}
# Fields that `what` may name besides; velocity is two of them, gates have an axis more than a map.
EXTRA_FIELDS = {v.name: name for name, made in FIELDS.items() for v in made if name != "density" and len(v.dims) == 3}


def choose_panels(run: xr.Dataset, what=None) -> tuple[list[str], list[str]]:
    """The panels of a page.

    Parameters
    ----------
    run : xarray.Dataset
    what : sequence of str, optional
        Names of PANELS and of fields on the sphere; None takes all of PANELS that the run can fill.

    Returns
    -------
    chosen, left_out : list of str
        Names, and for those left out (never those asked for by name) a sentence each.

    Raises
    ------
    CaseError
        If a name is unknown, or the run lacks what it needs; the message says how to store it.
    """
    if what is None:
        reasons = {name: panel.missing(run) for name, panel in PANELS.items()}
        chosen = [name for name, reason in reasons.items() if reason is None]
        if not chosen:
            raise CaseError(f"{name_of(run)}: holds nothing that can be drawn")
        # Of density and tokens a run has one; that it has not the other is no news.
        silent = "density" if "particle" in run.sizes else "tokens"
        left_out = [f"{name}: {reason}" for name, reason in reasons.items() if reason is not None and name != silent]
        return chosen, left_out
    if not what:
        raise CaseError(f"what: names no panel; it may hold {', '.join(PANELS)}")
    for name in what:
        _check_name(run, name)
    return list(dict.fromkeys(what)), []


def _check_name(run, name):
    if name in PANELS:
        if (reason := PANELS[name].missing(run)) is not None:
            raise CaseError(f"{name_of(run)}: cannot draw {name}: {reason}")
    elif name in EXTRA_FIELDS:
        if name not in run:
            raise CaseError(
                f"{name_of(run)}: holds no {name}; to store it, run the case with output.fields = "
                f'["density", "{EXTRA_FIELDS[name]}"]'
            )
    else:
        check_choice("what", name, (*PANELS, *EXTRA_FIELDS))


def plot_run(
    run: xr.Dataset, what=None, times=None, *, projection: str = "orthographic", view=None, particles: xr.Dataset | None = None,
    scale: str = "auto",
):  # fmt: skip
    """Draw a run on one page.

    Parameters
    ----------
    run : xarray.Dataset
        From `sphereflow.open_run`; only what is drawn is read.
    what : sequence of str, optional
        Panels, of density, tokens, ledger, dissipation, spectrum, weights, order, or fields such as potential. Default: all
        panels that the run can fill.
    times : sequence of float, optional
        Flow times of maps and spectra, each of which shows the nearest record. Default: four that divide the way of the
        density, int G dt, into equal parts.
    projection : {"orthographic", "mollweide", "equirectangular"}
    view : (float, float), optional
        Longitude and latitude at the centre, degrees.
    particles : xarray.Dataset, optional
        A run of tokens that is laid over the density.
    scale : {"auto", "linear", "log"}
        Of the colours; all maps of a quantity share one. See `sphereflow.plotting.scales.density_scale`.

    Returns
    -------
    matplotlib.figure.Figure
        Unknown to pyplot; `save_figure` or its own `savefig` writes it.

    Raises
    ------
    CaseError
        If the run lacks what is asked for by name, or a time lies outside of its records.
    """
    chosen, _ = choose_panels(run, what)
    record_times(run)
    records = chosen_records(run, times)
    if particles is not None:
        check_overlay(particles)
        if "density" not in chosen:
            raise CaseError("particles: tokens are laid over the density, which is not drawn")
    blocks = [
        _map_block(run, name, records, faces(projection, view), particles, scale)
        for name in chosen
        if name not in PANELS or PANELS[name].shape == "maps"
    ]
    blocks += _curve_blocks(run, [name for name in chosen if name in PANELS and PANELS[name].shape != "maps"], records)
    with styled():
        return _page(run, blocks)


@dataclass(frozen=True)
class _Block:
    """A part of the page over its whole width: height in inches, and what draws it, given the figure and its lower edge."""

    height: float
    draw: Callable


def _page(run, blocks):
    title = textwrap.wrap(str(run.attrs.get("title", "")), 70, max_lines=3, placeholder=" …") or [""]
    note = textwrap.wrap(state_note(run) or "", 110, max_lines=3, placeholder=" …")
    head = 0.35 + 0.2 * len(title) + 0.16 * len(note)
    height = head + sum(block.height for block in blocks) + 0.3
    figure = new_figure(WIDTH, height)
    y = height - 0.28
    for line in title:
        figure.text(MARGIN / WIDTH, y / height, line, fontsize=11.5, weight="bold", va="center", parse_math=False)
        y -= 0.2
    for line in note:
        figure.text(MARGIN / WIDTH, y / height, line, fontsize=8, color=RED, weight="bold", va="center", parse_math=False)
        y -= 0.16
    figure.text(MARGIN / WIDTH, 0.14 / height, provenance(run), fontsize=6, color=GREY, va="center", parse_math=False)
    y = height - head
    for block in blocks:
        y -= block.height
        block.draw(figure, y)
    settle(figure)
    return figure


def _axes(figure, left, bottom, width, height, **options):
    """Axes at a place in inches."""
    w, h = figure.get_size_inches()
    return figure.add_axes((left / w, bottom / h, width / w, height / h), **options)


# Maps ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Maps:
    """What a block of maps shows: one cell for every record, each with one axes for every face."""

    run: xr.Dataset
    name: str
    records: list[int]
    faces: tuple[Face | None, ...]
    particles: xr.Dataset | None
    scale: ColourScale | None
    fields: list[np.ndarray]

    @property
    def aspect(self) -> float:
        return sum(1.0 if face is None else face.half_width for face in self.faces)

    @property
    def columns(self) -> int:
        return min(len(self.records), 2 if self.aspect == 2 else 4)

    @property
    def cell(self) -> float:
        """Height of a picture in inches."""
        room = WIDTH - 2 * MARGIN - _BAR - (self.columns - 1) * 0.15
        return min(room / self.columns / self.aspect, 2.6 if self.aspect == 2 else 3.0)

    @property
    def rows(self) -> int:
        return -(-len(self.records) // self.columns)

    @property
    def height(self) -> float:
        return _TITLE + self.rows * (self.cell + _CELL_TITLE + _GAP) + 0.1


def _map_block(run, name, records, shown, particles, scale):
    if name == "tokens":
        on_sphere = run.sizes["xyz"] == 3
        maps = _Maps(run, name, records, shown if on_sphere else (None,), None, None, [])
    else:
        values = [field(run, name, record) for record in records]
        finite = [v[np.isfinite(v)] for v in values]
        low = min((v.min() for v in finite if v.size), default=np.nan)
        high = max((v.max() for v in finite if v.size), default=np.nan)
        label = run[name].attrs.get("long_name", name)
        colours = density_scale(low, high, scale) if name == "density" else field_scale(low, high, name, scale)
        maps = _Maps(run, name, records, shown, particles if name == "density" else None, colours, values)
        if name != "density":
            return _Block(maps.height, partial(_draw_maps, maps, _plain(label)))
    return _Block(maps.height, partial(_draw_maps, maps, _heading(maps)))


def _plain(text):
    return text[:1].upper() + text[1:]


def _heading(maps):
    if maps.faces[0] is None:
        return f"{token_count(maps.run)} tokens in dimension {maps.run.sizes['xyz']}: coordinates 1 and 2"
    overlay = f", with the tokens of {name_of(maps.particles).rpartition('/')[2]}" if maps.particles is not None else ""
    return f"{token_count(maps.run)} tokens" if maps.name == "tokens" else f"Density{overlay}"


def token_count(run) -> str:
    """Number of tokens of a run, such as 600, or "20000 of 1000000" where only some of them are drawn."""
    count = run.sizes["particle"]
    return str(count) if count <= MOST_TOKENS else f"{-(-count // -(-count // MOST_TOKENS))} of {count}"


def where_faces_are(shown) -> str:
    """A caption: which points of the sphere are at the centres of the faces."""
    places = [place(face.longitude, face.latitude) for face in shown]
    if len(places) == 2:
        return f"left: front, centre {places[0]}; right: back, centre {places[1]}"
    return f"{shown[0].projection.capitalize()}, centre {places[0]}"


def place(longitude: float, latitude: float) -> str:
    """A point of the sphere in words, such as 30° E 25° N."""
    longitude = (longitude + 180.0) % 360.0 - 180.0
    east = f"{abs(longitude):g}°" + (" W" if longitude < 0 else " E")
    north = f"{abs(latitude):g}°" + (" S" if latitude < 0 else " N")
    return f"{east} {north}"


def _draw_maps(maps, heading, figure, bottom):
    height = figure.get_size_inches()[1]
    top = bottom + maps.height
    figure.text(MARGIN / WIDTH, (top - 0.12) / height, heading, fontsize=9, weight="bold", va="center", parse_math=False)
    if maps.faces[0] is not None:
        caption = where_faces_are(maps.faces)
        figure.text(1 - MARGIN / WIDTH, (top - 0.12) / height, caption, fontsize=7, color=GREY, va="center", ha="right")
    size, wide = maps.cell, maps.cell * maps.aspect
    samplers = [FaceSampler(face, *grid_of(maps.run), _pixels(size)) for face in maps.faces] if maps.fields else []
    t = record_times(maps.run)
    for k, record in enumerate(maps.records):
        row, column = divmod(k, maps.columns)
        left = MARGIN + column * (wide + 0.15)
        low = top - _TITLE - (row + 1) * (size + _CELL_TITLE + _GAP) + _GAP
        x, y = (left + wide / 2) / WIDTH, (low + size + _CELL_TITLE / 2) / height
        lost = maps.fields and not np.isfinite(maps.fields[k]).any()
        figure.text(x, y, f"t = {t[record]:.6g}" + (": not finite" if lost else ""), fontsize=8, ha="center", va="center")
        for face in maps.faces:
            width = size * (1.0 if face is None else face.half_width)
            axes = _axes(figure, left, low, width, size)
            left += width
            _draw_face(maps, axes, face, samplers, k, float(t[record]))
    if maps.scale is not None:
        tall = min(maps.rows * (size + _CELL_TITLE + _GAP) - _GAP - _CELL_TITLE, 3.0)
        middle = (top - _TITLE - _CELL_TITLE + bottom + 0.1 + _GAP) / 2
        left = MARGIN + maps.columns * wide + (maps.columns - 1) * 0.15 + 0.12
        draw_colour_bar(figure, _axes(figure, left, middle - tall / 2, 0.12, tall), maps.scale)


def _pixels(inches):
    """Pixels that a picture of some inches deserves: as many as a screen or a printer shows."""
    return int(np.clip(round(200 * inches), 200, 800))


def _draw_face(maps, axes, face, samplers, k, time):
    if maps.fields:
        FieldPicture(axes, face, samplers[maps.faces.index(face)], maps.scale).show(maps.fields[k])
        if maps.particles is not None:
            TokenPicture(axes, face, over_field=True).show(*overlay_tokens(maps.particles, time))
    else:
        TokenPicture(axes, face, over_field=False).show(*tokens(maps.run, maps.records[k]))


# Curves ----------------------------------------------------------------------------------------------------------------


def _curve_blocks(run, names, records):
    """Rows of one wide panel or two narrow ones; a narrow one that is alone is made wide."""
    rows, waiting = [], []
    for name in names:
        if PANELS[name].shape == "wide":
            rows.append([name])
        else:
            waiting.append(name)
    rows += [waiting[k : k + 2] for k in range(0, len(waiting), 2)]
    return [_Block(_ABOVE + _CURVE + _BELOW, partial(_draw_row, run, row, records)) for row in rows]


def _draw_row(run, names, records, figure, bottom):
    width = (WIDTH - 2 * MARGIN + 0.1) / len(names)
    for k, name in enumerate(names):
        left = MARGIN - 0.1 + k * width + _LEFT
        box = (left, bottom + _BELOW, width - _LEFT - (0.1 if k + 1 == len(names) else 0.05), _CURVE)
        if name == "order" and "cluster_count" in run:
            left, low, wide, high = box
            axes = _axes(figure, left, low + 0.42 * high, wide, 0.58 * high)
            panels.draw_order([axes, _axes(figure, left, low, wide, 0.32 * high)], run)
        else:
            axes = _axes(figure, *box)
            _draw_curves(name, axes, run, records)
        axes.set_title(axes.get_title(loc="left"), loc="left", pad=19)


def _draw_curves(name, axes, run, records):
    if name == "spectrum":
        panels.draw_spectrum(axes, run, records)
    elif name == "order":
        panels.draw_order([axes], run)
    else:
        PANELS[name].draw(axes, run)
