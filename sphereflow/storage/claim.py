"""Who may use the name of an output file.

A new file is built under a hidden temporary name in the same folder and takes its final name only when its header is
complete: nobody ever sees half a header, and a creation that fails leaves the folder as it was. Taking the name is one
system call that fails if the name exists, so that of two processes exactly one wins.

A process that writes a netCDF-4 file holds HDF5's lock on it (flock, exclusive) from creation to close; asking for a
shared lock therefore tells whether a file is being written now. Where the file system or HDF5_USE_FILE_LOCKING=FALSE
has switched locks off, no file looks busy.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from sphereflow.errors import OutputError
from sphereflow.names import require_name


def is_being_written(path: Path) -> bool:
    """Whether a process (this one included) holds the file open for writing.

    Raises
    ------
    OSError
        If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def check_target(path: Path, force: bool) -> None:
    """Refuse a name that `install` would refuse, before any work is done.

    Raises
    ------
    OutputError
        If no file can have the name, the folder is missing, the name is taken (without `force`), or what has it is no
        regular file or is being written (with `force`).
    """
    require_name(path)
    try:
        os.stat(path.parent / ".")
    except OSError as error:
        raise OutputError(f"{path}: cannot create the file in {path.parent}: {error.strerror}") from error
    if not os.path.lexists(path):
        return
    if os.path.isdir(path):
        raise OutputError(f"{path}: is a folder; name a file with --output")
    if not force:
        raise _taken(path)
    if not os.path.isfile(path):
        raise OutputError(f"{path}: is not a regular file and cannot be replaced; choose another --output")
    try:
        busy = is_being_written(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot move the old file aside: {error.strerror}") from error
    if busy:
        raise OutputError(f"{path}: another run is writing this file; stop it or choose another --output")


def temporary_file(path: Path) -> Path:
    """Create an empty file next to `path` under a hidden name of its own and return that name.

    Raises
    ------
    OutputError
        If the folder does not take a new file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise OutputError(f"{path}: cannot create the file in {path.parent}: {error.strerror}") from error
    return temporary


def install(temporary: Path, path: Path, force: bool) -> None:
    """Give a finished temporary file its final name; `force` first moves an old file to NAME.bak.

    Raises
    ------
    OutputError
        If the name is taken, see `check_target`. The temporary file is then still there.
    """
    with _only_one_at_a_time(path.parent):
        check_target(path, force)
        try:
            if os.path.lexists(path):
                os.replace(path, backup_name(path))
            _take(temporary, path)
        except FileExistsError as error:
            raise _taken(path) from error
        except OSError as error:
            raise OutputError(f"{path}: cannot create the file: {error.strerror}") from error


def backup_name(path: Path) -> Path:
    """Where `--force` keeps the file that had the name before."""
    return path.with_name(path.name + ".bak")


def _taken(path: Path) -> OutputError:
    return OutputError(
        f"{path}: already exists; use --force to replace it (it is kept as "
        f"{backup_name(path).name}) or choose another --output"
    )


def _take(temporary: Path, path: Path) -> None:
    """Rename without ever replacing a file that is there: FileExistsError instead."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: claim the name with an empty file, then fill it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.replace(temporary, path)
    else:
        os.unlink(temporary)


@contextlib.contextmanager
def _only_one_at_a_time(folder: Path):
    """Hold a lock on the folder, where it has locks: else two --force runs could move each other's file aside."""
    descriptor = None
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
