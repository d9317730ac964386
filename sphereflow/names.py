"""Names of files: which ones no file can have, and those of results that are named after a run."""

import os
from pathlib import Path

from sphereflow.errors import OutputError


def fault_of(name: str | os.PathLike) -> str | None:
    """What keeps a text from being, or being part of, the name of a file; None if nothing does.

    netCDF takes names in UTF-8 only.
    """
    text = os.fspath(name)
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return None


def require_name(path: str | os.PathLike) -> None:
    """Refuse a path that no file can have.

    Raises
    ------
    OutputError
    """
    if fault := fault_of(path):
        raise OutputError(f"{os.fspath(path)!r}: {fault}; name another file")


def beside(run: str | os.PathLike, suffix: str) -> Path:
    """Default name of a result: that of the run with another suffix.

    Raises
    ------
    OutputError
        If `run` is no name of a file.
    """
    try:
        return Path(run).with_suffix(suffix)
    except ValueError:  # as "." and ""
        raise OutputError(f"{os.fspath(run)!r}: is no name of a file; must be the output file of a run") from None
