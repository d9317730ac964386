"""Writing pictures: all or nothing, and never over another file unless told to."""

from contextlib import contextmanager
from pathlib import Path

from sphereflow.errors import CaseError, OutputError
from sphereflow.storage.claim import check_target, install, temporary_file

FORMATS = ("png", "pdf", "svg")


def format_of(path: Path, formats: tuple[str, ...]) -> str:
    """The format that the suffix of a file name asks for.

    Raises
    ------
    CaseError
        If it is none of `formats`.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix in formats:
        return suffix
    *most, last = (f".{name}" for name in formats)
    found = f"the suffix {path.suffix}" if path.suffix else "no suffix"
    raise CaseError(f"{path}: has {found}, which is no format of this command; name a file {', '.join(most)} or {last}")


@contextmanager
def new_file(path: Path, force: bool = False):
    """A temporary file, for the body of a with statement, that becomes `path` when the body has ended well.

    Whatever else happens, an error or Ctrl-C, nothing is left behind. `force` keeps a file that is there as NAME.bak.

    Raises
    ------
    OutputError
        If the name is taken, or the folder or the disk does not take the file.
    """
    check_target(path, force)
    temporary = temporary_file(path)
    try:
        yield temporary
        install(temporary, path, force)
    except OSError as error:
        raise OutputError(f"{path}: cannot write the file: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_output(path: Path, formats: tuple[str, ...], force: bool = False) -> None:
    """Refuse a file name before any work is done, as `new_file` and `format_of` would."""
    format_of(path, formats)
    check_target(path, force)


def save_figure(figure, path, *, force: bool = False, dpi: float = 150) -> Path:
    """Write a figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    path : path-like
        The suffix decides the format: .png, .pdf or .svg.
    force : bool
        Keep a file that has the name as NAME.bak instead of refusing.
    dpi : float
        Pixels per inch, of a PNG and of the pictures inside of the others.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    CaseError
        If the suffix is none of these, or `dpi` is not from 20 to 1200.
    OutputError
        If the file exists or cannot be written.
    """
    path = Path(path)
    if not 20 <= dpi <= 1200:
        raise CaseError(f"dpi: {dpi:g} is not allowed; must be from 20 to 1200")
    form = format_of(path, FORMATS)
    with new_file(path, force) as temporary:
        figure.savefig(temporary, format=form, dpi=dpi)
    return path
