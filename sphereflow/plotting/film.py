"""Animations of a run: one frame for every record.

All frames share one colour scale, whose limits come from the recorded extremes of the density. Frames are drawn, encoded and
forgotten one after the other. A film is written under a temporary name and takes its own when it is complete.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.colors import to_rgb

from sphereflow.errors import CaseError
from sphereflow.plotting.encoding import FASTEST_GIF, FORMATS, has_ffmpeg, write_gif, write_mp4
from sphereflow.plotting.maps import FieldPicture, TokenPicture, draw_colour_bar
from sphereflow.plotting.page import choose_panels
from sphereflow.plotting.records import (
    SAME_TIME,
    check_overlay,
    field,
    grid_of,
    nearest_records,
    overlay_tokens,
    record_times,
    state_note,
    tokens,
)
from sphereflow.plotting.saving import format_of, new_file
from sphereflow.plotting.scales import density_scale
from sphereflow.plotting.sphere import FaceSampler, faces
from sphereflow.plotting.style import BLUE, GREY, RED, TOKENS, new_figure, styled

MOST_FRAMES = 400  # unless told which: longer runs are thinned
DPI = {"gif": 75.0, "mp4": 120.0}
_SIZE = (8.0, 4.5)  # inches


def frame_records(run: xr.Dataset, times=None, every: float | None = None) -> list[int]:
    """Records that the frames of a film show.

    Parameters
    ----------
    run : xarray.Dataset
    times : sequence of float, optional
        Flow times; each shows the nearest record.
    every : float, optional
        Flow time between two frames, instead. Without either all records, thinned evenly to 400 if there are more.

    Raises
    ------
    CaseError
        If both are given, a time lies outside of the records, or `every` is not positive.
    """
    t = record_times(run)
    if times is not None and every is not None:
        raise CaseError("times and every: give one of them")
    if times is not None:
        return nearest_records(run, times)
    if every is not None:
        if not (math.isfinite(every) and every > 0):
            raise CaseError(f"every: {every:g} is not allowed; must be positive")
        if t[-1] - t[0] > 1e6 * every:
            raise CaseError(f"every: {every:g} asks for more than a million frames")
        slack = SAME_TIME * max(abs(t[0]), abs(t[-1]))
        return nearest_records(run, np.minimum(np.arange(t[0], t[-1] + slack, every), t[-1]))
    return sorted(set(np.linspace(0, t.size - 1, min(t.size, MOST_FRAMES)).round().astype(int).tolist()))


def animate_run(
    run: xr.Dataset, path, *, times=None, every: float | None = None, fps: float = 20.0, projection: str = "orthographic",
    view=None, particles: xr.Dataset | None = None, scale: str = "auto", dpi: float | None = None, force: bool = False,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
) -> Path:  # fmt: skip
    """Write a film of the density, or of the tokens, on the sphere.

    Parameters
    ----------
    run : xarray.Dataset
        With `density` or `position`; one record is in memory at a time.
    path : path-like
        .gif or .mp4.
    times, every
        Which records, see `frame_records`.
    fps : float
        Frames per second.
    projection, view, particles, scale
        As in `plot_run`. The tokens of `particles` must cover the times of the frames.
    dpi : float, optional
        Pixels per inch; a frame has 8.0 x 4.5 inches. Default: 75 for GIF, whose size grows with every pixel, and 120 for MP4.
    force : bool
        Keep a file that has the name as NAME.bak instead of refusing.
    on_frame : callable
        Told after every frame how many are done, and how many there are.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    CaseError
        If the run has nothing to show, the options do not fit, or MP4 is asked for where there is no ffmpeg.
    OutputError
        If the file exists or cannot be written; nothing is left behind.
    """
    path = Path(path)
    form = format_of(path, FORMATS)
    dpi = DPI[form] if dpi is None else dpi
    _check(form, path, fps, dpi)
    records = frame_records(run, times, every)
    name = "tokens" if "position" in run and "density" not in run else "density"
    choose_panels(run, [name])
    if particles is not None:
        _check_particles(run, particles, name, records)
    with new_file(path, force) as temporary, styled():
        stage = _Stage(run, name, records, faces(projection, view), particles, scale, dpi)
        frames = _counted(stage.frames(), len(records), on_frame)
        if form == "gif":
            write_gif(temporary, frames, fps, stage.palette)
        else:
            write_mp4(temporary, path, frames, fps)
    return path


def _check(form, path, fps, dpi):
    if not (math.isfinite(fps) and 0.1 <= fps <= 120):
        raise CaseError(f"fps: {fps:g} is not allowed; must be from 0.1 to 120")
    if form == "gif" and fps > FASTEST_GIF:
        raise CaseError(f"fps: {fps:g} is too fast for a GIF, which can show {FASTEST_GIF:g}; write an .mp4")
    if not 20 <= dpi <= 600:
        raise CaseError(f"dpi: {dpi:g} is not allowed; must be from 20 to 600")
    if form == "mp4" and not has_ffmpeg():
        raise CaseError(f"{path}: MP4 needs the program ffmpeg, which is not installed; name a .gif file instead")


def _check_particles(run, particles, name, records):
    check_overlay(particles)
    if name != "density":
        raise CaseError("particles: tokens are laid over a density, and the run has none")
    t = record_times(run)
    nearest_records(particles, [t[records[0]], t[records[-1]]])


def _counted(frames, total, on_frame):
    """The frames; a frame that is asked for means that the one before is done."""
    for done, frame in enumerate(frames):
        if done:
            on_frame(done, total)
        yield frame
    on_frame(total, total)


class _Stage:
    """The figure of a film, in which the state and the time change from frame to frame."""

    def __init__(self, run, name, records, shown, particles, scale, dpi):
        self.run, self.records, self.particles = run, records, particles
        self.t = record_times(run)
        self.shown = (None,) if name == "tokens" and run.sizes["xyz"] != 3 else shown
        self.figure = new_figure(*_SIZE)
        self.figure.set_dpi(dpi)
        self._has_field = name == "density"
        self._write_words()
        boxes = self._face_boxes()
        if self._has_field:
            self._scale = density_scale(*_extremes(run, records), scale)
            draw_colour_bar(self.figure, self._axes(_SIZE[0] - 0.98, 0.95, 0.14, 2.9), self._scale)
        self._pictures = []
        self._moving = [self._dot, self._label]
        for face, box in zip(self.shown, boxes, strict=True):
            axes = self._axes(*box)
            self._pictures.append(self._picture(face, axes, box[3] * dpi))
            self._moving.append(axes)
        for artist in self._moving:  # left out by a draw of the figure
            artist.set_animated(True)

    def _write_words(self):
        """Title, state, the label of the time and a bar of time with a dot that moves."""
        title = str(self.run.attrs.get("title", ""))
        title = title if len(title) <= 88 else title[:86] + " …"
        note = state_note(self.run) or ""
        w, h = _SIZE
        put = dict(va="center", parse_math=False)
        self.figure.text(0.3 / w, (h - 0.22) / h, title, fontsize=11, weight="bold", **put)
        note = note if len(note) <= 110 else note[:108] + " …"
        self.figure.text(0.3 / w, (h - 0.44) / h, note, fontsize=8, color=RED, weight="bold", **put)
        self._label = self.figure.text(0.3 / w, 0.24 / h, "", fontsize=10, **put)
        shown = self.t[self.records]
        first, last = shown.min(), shown.max()
        bar = self._axes(1.75, 0.24, w - 1.75 - 0.35, 0.01)
        bar.set(xlim=(first, last) if last > first else (first - 1, first + 1), ylim=(-1, 1), yticks=[])
        bar.spines[["left", "bottom"]].set_visible(False)
        bar.axhline(0, color="#bbbbbb", lw=2, clip_on=False)
        bar.tick_params(labelsize=7, length=0, pad=5, labelcolor=GREY)
        bar.grid(False)
        (self._dot,) = bar.plot([first], [0], "o", color=BLUE, ms=6, clip_on=False)

    def _face_boxes(self):
        """Left, bottom, width and height of the pictures in inches."""
        room = _SIZE[0] - 0.6 - (0.95 if self._has_field else 0.0)
        aspect = sum(1.0 if face is None else face.half_width for face in self.shown)
        height = min((room - 0.1) / aspect, _SIZE[1] - 1.1)
        left = 0.3 + (room - height * aspect) / 2
        boxes = []
        for face in self.shown:
            width = height * (1.0 if face is None else face.half_width)
            boxes.append((left, 0.5 + (_SIZE[1] - 1.05 - height) / 2, width, height))
            left += width
        return boxes

    @property
    def palette(self) -> np.ndarray:
        """At most 256 colours, uint8 (n, 3), for all frames: greys, the accents, and the scale with and without graticule."""
        greys = np.linspace(0, 1, 40)[:, None] * np.ones(3)
        accents = np.array([to_rgb(name) for name in (BLUE, RED, TOKENS)])
        fading = np.linspace(0, 1, 8)[1:, None, None]
        shades = [(1 - fading) * accents + fading * ground for ground in (0.0, 1.0)]
        parts = [greys, accents, *(shade.reshape(-1, 3) for shade in shades)]
        if self._has_field:
            ramp = colormaps[self._scale.cmap](np.linspace(0, 1, 128))[:, :3]
            parts += [ramp, 0.72 * ramp[::4] + 0.28]
        return np.round(255 * np.concatenate(parts)).astype(np.uint8)

    def _axes(self, left, bottom, width, height):
        w, h = _SIZE
        return self.figure.add_axes((left / w, bottom / h, width / w, height / h))

    def _picture(self, face, axes, pixels):
        if not self._has_field:
            return None, TokenPicture(axes, face, over_field=False)
        sampler = FaceSampler(face, *grid_of(self.run), int(np.clip(round(pixels), 100, 1600)))
        over = TokenPicture(axes, face, over_field=True) if self.particles is not None else None
        return FieldPicture(axes, face, sampler, self._scale), over

    def frames(self) -> Iterator[np.ndarray]:
        """The frames, uint8 (height, width, 3), with even height and width."""
        canvas = self.figure.canvas
        canvas.draw()
        still = canvas.copy_from_bbox(self.figure.bbox)
        for record in self.records:
            time = float(self.t[record])
            values = field(self.run, "density", record) if self._has_field else None
            if self._has_field:
                points = overlay_tokens(self.particles, time) if self.particles is not None else None
            else:
                points = tokens(self.run, record)
            for picture, dots in self._pictures:
                if picture is not None:
                    picture.show(values)
                if dots is not None:
                    dots.show(*points)
            self._label.set_text(f"t = {time:.4g}")
            self._dot.set_xdata([time])
            canvas.restore_region(still)
            for artist in self._moving:
                artist.draw(canvas.get_renderer())
            yield _even(np.asarray(canvas.buffer_rgba()))


def _even(frame):
    """A copy without alpha and without an odd last row or column, which MP4 does not take."""
    height, width = frame.shape[:2]
    return np.ascontiguousarray(frame[: height // 2 * 2, : width // 2 * 2, :3])


def _extremes(run, records):
    """Smallest and largest density over the frames: as recorded, or from the densities."""
    if {"density_min", "density_max"} <= set(run.data_vars):
        low, high = (run[name].values[records] for name in ("density_min", "density_max"))
        finite = np.isfinite(low) & np.isfinite(high)
        if finite.any():
            return float(low[finite].min()), float(high[finite].max())
    pairs = [(values.min(), values.max()) for values in (field(run, "density", record) for record in records)]
    return float(np.nanmin([low for low, _ in pairs])), float(np.nanmax([high for _, high in pairs]))
