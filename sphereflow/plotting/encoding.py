"""Films from frames: GIF by pillow, MP4 by the program ffmpeg."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from sphereflow.errors import OutputError

FORMATS = ("gif", "mp4")
FASTEST_GIF = 50.0  # frames per second: a GIF counts hundredths of a second, and viewers slow down below two of them


def has_ffmpeg() -> bool:
    """Whether MP4 can be written here."""
    return shutil.which("ffmpeg") is not None


def write_gif(file: Path, frames: Iterator[np.ndarray], fps: float, palette: np.ndarray) -> None:
    """Encode frames as an endless GIF.

    All frames have one palette and are not dithered: what stands still does not flicker.

    Parameters
    ----------
    file : Path
        Where to write.
    frames : iterator of ndarray
        uint8 (height, width, 3).
    fps : float
        Frames per second; each frame lasts a whole number of hundredths of a second.
    palette : ndarray, shape (n, 3)
        The colours, uint8, at most 256; every pixel gets the nearest.
    """
    colours = Image.new("P", (1, 1))
    colours.putpalette(palette.tobytes())
    made = (Image.fromarray(frame).quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames)
    first = next(made)
    duration = max(round(100 / fps), 1) * 10
    options = {"duration": duration, "loop": 0, "optimize": False, "disposal": 1}
    with open(file, "wb") as out:  # pillow itself would not close it after Ctrl-C
        first.save(out, format="GIF", save_all=True, append_images=made, **options)


def write_mp4(file: Path, path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    """Encode frames as MP4 in colours that all players know (yuv420p, H.264 where ffmpeg has it).

    Parameters
    ----------
    file : Path
        Where to write.
    path : Path
        The name to use in errors.
    frames : iterator of ndarray
        uint8 (height, width, 3), both even.
    fps : float
        Frames per second.

    Raises
    ------
    OutputError
        If ffmpeg fails; the message ends with what it said last.
    """
    first = next(frames)
    height, width = first.shape[:2]
    command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", f"{fps:g}", "-i", "-", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(file)]
    with tempfile.TemporaryFile() as log:
        # A session of its own keeps Ctrl-C from it: it is ended by us, not by the terminal.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        try:
            process.stdin.write(first.data)
            for frame in frames:
                process.stdin.write(frame.data)
            process.stdin.close()
            process.wait()
        except BrokenPipeError:  # it ended before us: why is in its log
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            _close(process.stdin)
        if process.returncode != 0:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            raise OutputError(f"{path}: ffmpeg cannot write the film: {said[-1] if said else 'it gave no reason'}")


def _close(pipe):
    """Close a pipe that may be broken."""
    try:
        pipe.close()
    except BrokenPipeError:
        pass
