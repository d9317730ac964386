"""The page itself: its data, its scripts and the template become one file that loads nothing.

Text from files is escaped by the template engine. The page's own policy (Content-Security-Policy) allows the one script and the
one style sheet it was made with, by their hashes, and no connection at all.
"""

import base64
import contextlib
import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.colors import LogNorm

from sphereflow.errors import CaseError
from sphereflow.names import beside
from sphereflow.plotting.records import record_times, state_note
from sphereflow.plotting.saving import new_file
from sphereflow.plotting.scales import UNIFORM, density_scale
from sphereflow.plotting.style import SEQUENTIAL, TOKENS
from sphereflow.report import facts
from sphereflow.report.packing import LEVELS, TOKEN_LEVELS, PackedDensity, PackedTokens, pack_density, pack_tokens
from sphereflow.report.series import collect
from sphereflow.storage import open_run, run_summary

SCRIPTS = ("uPlot.iife.min.js", "codec.js", "sphere.js", "curves.js", "page.js")
LICENCE = "uPlot.LICENSE.txt"  # asks to be part of every copy
STYLES = ("uPlot.min.css", "page.css")


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes
    ----------
    path : Path
    bytes : int
        Size of the file.
    frames : int
        Times that the slider has; 0 without a sphere.
    notes : tuple of str
        What was thinned, in sentences, as on the page.
    """

    path: Path
    bytes: int
    frames: int
    notes: tuple[str, ...]


def write_report(run, output=None, *, particles=None, force: bool = False) -> Report:
    """Write a run as one self-contained web page.

    Parameters
    ----------
    run : path-like
        Output file of a run, finished or not.
    output : path-like, optional
        The page; the name of the run with the suffix .html by default.
    particles : path-like, optional
        A token run whose tokens are laid over the density, at the records nearest in time.
    force : bool
        Keep a file that has the name as NAME.bak instead of refusing.

    Raises
    ------
    OutputError
        If a run cannot be read, or the page exists or cannot be written.
    CaseError
        If the run is empty, `particles` holds no tokens of the sphere S^2 or none at these times, or there is no density to lay
        them over.
    """
    output = beside(run, ".html") if output is None else Path(output)
    if any(source is not None and _same(output, source) for source in (run, particles)):
        raise CaseError(f"{output}: is the run itself; name another file for the page")
    with new_file(output, force) as temporary, contextlib.ExitStack() as stack:
        dataset = stack.enter_context(open_run(run))
        other = None if particles is None else stack.enter_context(open_run(particles))
        text, frames, notes = _compose(dataset, run_summary(run), other, particles)
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return Report(output, os.stat(output).st_size, frames, notes)


def _same(path, other):
    """Whether two names are those of one file that is there."""
    with contextlib.suppress(OSError):
        return os.path.samefile(path, other)
    return False


def _compose(run, summary, particles, particles_path):
    """The page as text, the number of frames, and the notes on what was thinned."""
    t = record_times(run)
    density, tokens, frame, frame_times = _states(run, particles, t)
    curves, notes = collect(run)
    notes = [*(density.notes if density else ()), *(tokens.notes if tokens else ()), *notes]
    data = {
        "frames": [float(f"{value:.12g}") for value in frame_times],
        "density": _density_data(density),
        "tokens": _tokens_data(tokens, frame),
        "palette": [list(colour) for colour in _palette()],
        "tokenColour": TOKENS,
        "curves": curves,
    }
    script, style = _joined(SCRIPTS), _joined(STYLES)
    script = f"/*\n{_joined((LICENCE,))}\n*/\n{script}"
    text = _template().render(
        title=run.attrs.get("title") or Path(summary["path"]).name,
        summary=run.attrs.get("summary", ""),
        note=state_note(run),
        case=run.attrs.get("sphereflow_case", ""),
        conservation=facts.conservation(summary),
        provenance=facts.provenance(run, summary, particles, particles_path),
        thinned=notes,
        missing=facts.nothing_to_see(run),
        sources={"density-data": density, "tokens-data": tokens},
        data=data,
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
    )
    return text, len(frame_times), tuple(notes)


def _states(run, particles, t):
    """Packed density and tokens (None where there are none), the token record of each frame, and the times of the frames."""
    if particles is not None and "density" not in run:
        raise CaseError(
            'particles: the run holds no density to lay tokens over; it needs output.fields = ["density"]'
            if "position" not in run
            else "particles: the run holds tokens itself, and no density to lay others over"
        )
    if "density" in run:
        density = pack_density(run)
        times = t[density.records]
        tokens, frame = (None, None) if particles is None else pack_tokens(particles, times)
        return density, tokens, frame, times
    if "position" in run:
        tokens, frame = pack_tokens(run)
        return None, tokens, frame, tokens.t
    return None, None, None, np.empty(0)


def _density_data(density: PackedDensity | None):
    if density is None:
        return None
    grid = density.grid
    scale = density_scale(density.low, density.high)
    floor = density_scale(density.low, density.high, "log").norm.vmin * UNIFORM if density.high > 0 else None
    return {
        "nlat": grid.nlat,
        "nlon": grid.nlon,
        "colatitude": grid.colatitude.tolist(),
        "faces": grid.colatitude_face.tolist(),
        "levels": LEVELS,
        "low": density.low,
        "high": density.high,
        "uniform": UNIFORM,
        "logarithmic": isinstance(scale.norm, LogNorm),
        "floor": floor,
    }


def _tokens_data(tokens: PackedTokens | None, frame):
    if tokens is None:
        return None
    size = np.sqrt(np.clip(tokens.weight / tokens.weight.mean(), 0.1, 4.0))
    return {
        "levels": TOKEN_LEVELS,
        "count": len(tokens.index),
        "t": [float(f"{value:.12g}") for value in tokens.t],
        "frame": frame.tolist(),
        "index": tokens.index.tolist(),
        "size": [round(float(s), 3) for s in size],
        "weight": [float(f"{w:.4g}") for w in tokens.weight],
        "dimension": tokens.dimension,
    }


def _palette():
    """256 colours of the density, as integers of 0 to 255."""
    return matplotlib.colormaps[SEQUENTIAL](np.arange(256), bytes=True)[:, :3].tolist()


def _template():
    environment = Environment(
        loader=PackageLoader("sphereflow.report", "page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html")


def _joined(names):
    folder = resources.files("sphereflow.report") / "page"
    return "\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names)


def _hash(text):
    """Hash of an inline script or style as a policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
