"""Commands that draw: plot, animate."""

import argparse
import sys
from contextlib import contextmanager
from pathlib import Path

from sphereflow.cli.wording import tell
from sphereflow.errors import CaseError
from sphereflow.names import beside

_PROJECTION = "orthographic (two hemispheres, default), mollweide or equirectangular"


def add_commands(commands):
    """Add the commands of this module to a set of argparse sub-parsers."""
    command = commands.add_parser("plot", help="a page of pictures of a run: density, energy ledger, spectrum, weights")
    command.set_defaults(command=_plot)
    command.add_argument("run", metavar="RUN", help="output file (.nc), finished or not")
    command.add_argument("-o", "--output", metavar="FILE", help="picture (.png, .pdf, .svg); default: RUN with .png")
    command.add_argument(
        "--what", type=_names, metavar="LIST",
        help="of density,tokens,ledger,dissipation,spectrum,weights,order and stored fields such as potential; default: all",
    )  # fmt: skip
    command.add_argument("--times", type=_numbers, metavar="LIST", help="times of the maps, such as 0,5,20; default: four")
    _add_looks(command)
    command.add_argument("--dpi", type=float, default=150.0, metavar="X", help="pixels per inch (default 150)")
    command.add_argument("--force", action="store_true", help="move an existing picture to NAME.bak")

    command = commands.add_parser("animate", help="a film of the density or the tokens of a run")
    command.set_defaults(command=_animate)
    command.add_argument("run", metavar="RUN", help="output file (.nc), finished or not")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="film (.gif, .mp4); default: RUN with .mp4, or .gif where ffmpeg is missing"
    )
    frames = command.add_mutually_exclusive_group()
    frames.add_argument("--times", type=_numbers, metavar="LIST", help="times of the frames, such as 0,0.5,1")
    frames.add_argument("--every", type=float, metavar="DT", help="flow time between frames; default: every record")
    command.add_argument("--fps", type=float, default=20.0, metavar="X", help="frames per second (default 20)")
    _add_looks(command)
    command.add_argument("--dpi", type=float, metavar="X", help="pixels per inch of 8 x 4.5 (default 75 for GIF, 120 for MP4)")
    command.add_argument("--force", action="store_true", help="move an existing film to NAME.bak")
    command.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_looks(command):
    command.add_argument("--projection", default="orthographic", metavar="NAME", help=_PROJECTION)
    command.add_argument("--view", type=_numbers, metavar="LON,LAT", help="centre in degrees, such as --view -40,30")
    command.add_argument("--particles", metavar="B", help="lay the tokens of a run, or data of others, over the density")
    command.add_argument("--scale", default="auto", metavar="NAME", help="of the colours: auto (default), linear or log")


def _names(text):
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text):
    try:
        return [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 0,5,20") from None


def _plot(options):
    from sphereflow.plotting import choose_panels, plot_run, save_figure
    from sphereflow.plotting.saving import FORMATS, check_output
    from sphereflow.storage import open_run

    path = Path(options.output) if options.output is not None else beside(options.run, ".png")
    with open_run(options.run) as run, _tokens(options.particles) as particles:
        check_output(path, FORMATS, options.force)
        for sentence in choose_panels(run, options.what)[1]:
            tell(f"left out {sentence}")
        figure = plot_run(
            run, options.what, options.times, projection=options.projection, view=_view(options), particles=particles,
            scale=options.scale,
        )  # fmt: skip
        save_figure(figure, path, force=options.force, dpi=options.dpi)
    print(path)


def _animate(options):
    from tqdm import tqdm

    from sphereflow.plotting import animate_run
    from sphereflow.plotting.encoding import has_ffmpeg
    from sphereflow.storage import open_run

    suffix = ".mp4" if has_ffmpeg() else ".gif"
    path = Path(options.output) if options.output is not None else beside(options.run, suffix)
    with (
        open_run(options.run) as run,
        _tokens(options.particles) as particles,
        # disable=None draws on a terminal only
        tqdm(desc="frames", unit="", disable=True if options.quiet else None, file=sys.stderr) as bar,
    ):

        def advance(done, total):
            bar.total = total
            bar.update(done - bar.n)

        animate_run(
            run, path, times=options.times, every=options.every, fps=options.fps, projection=options.projection,
            view=_view(options), particles=particles, scale=options.scale, dpi=options.dpi, force=options.force,
            on_frame=advance,
        )  # fmt: skip
    print(path)


def _view(options):
    if options.view is None:
        return None
    if len(options.view) != 2:
        raise CaseError(f"--view: {len(options.view)} numbers; it takes longitude,latitude in degrees")
    return tuple(options.view)


@contextmanager
def _tokens(path):
    """The run whose tokens are laid over, or None; data of others are read as they are."""
    if path is None:
        yield None
        return
    from sphereflow.plotting import open_tokens

    with open_tokens(path) as run:
        yield run
