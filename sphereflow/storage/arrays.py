"""Readers of the arrays a case may name: weights, tables of weights and token sets.

The rooms that use the arrays check what they mean (shapes, finite entries); here a path becomes float64 arrays or an
error that names the file and what is wrong with it.
"""

import contextlib
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import netCDF4
import numpy as np

from sphereflow.errors import CaseError

_NETCDF_SUFFIXES = (".nc", ".nc4", ".cdf")
_DAMAGED = "is damaged or not of the format its name promises"


def read_arrays(path: str | Path, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Read named arrays from a .npz archive or a netCDF file.

    Parameters
    ----------
    path : str or Path
        File; its suffix (.npz, .nc, .nc4, .cdf) decides the format.
    required, optional : sequence of str
        Names of the arrays; those of `optional` may be missing.

    Returns
    -------
    dict of str to ndarray
        float64 arrays in C order, of whatever shape the file holds.

    Raises
    ------
    CaseError
        If the file is missing, damaged or of another format, lacks a required array (the message lists those it has),
        or an array does not hold real numbers. Pickled objects are never loaded.
    """
    path = Path(path)
    require_file(path)
    if path.suffix == ".npz":
        return _read_npz(path, required, optional)
    if path.suffix in _NETCDF_SUFFIXES:
        return _read_netcdf(path, required, optional)
    raise CaseError(f"{path}: cannot read arrays from {path.suffix or 'a file without suffix'}; use .npz or .nc")


def read_tokens(path: str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a token set: positions (n, columns) and weights (n,) or None.

    Parameters
    ----------
    path : str or Path
        A .npz or netCDF file with the array `positions` and optionally `weights`, or a .csv file with the columns
        x, y, z and optionally weight, with or without a header line of these names.

    Returns
    -------
    positions : ndarray
        As in the file; neither shape nor norm is checked.
    weights : ndarray or None

    Raises
    ------
    CaseError
        As `read_arrays`; also a .csv file with other columns or with entries that are not numbers.
    """
    path = Path(path)
    if path.suffix != ".csv":
        arrays = read_arrays(path, ("positions",), ("weights",))
        return arrays["positions"], arrays.get("weights")
    require_file(path)
    header, table = read_csv(path)
    if header and header not in (["x", "y", "z"], ["x", "y", "z", "weight"]):
        raise CaseError(f"{path}: columns {', '.join(header)}; expected x, y, z and optionally weight")
    if table.size == 0:
        return np.empty((0, 3)), None
    if table.shape[1] not in (3, 4):
        raise CaseError(f"{path}: {table.shape[1]} columns; expected x, y, z and optionally weight")
    return table[:, :3], table[:, 3] if table.shape[1] == 4 else None


def read_csv(path: Path) -> tuple[list[str] | None, np.ndarray]:
    """Column names of a .csv file in small letters, None if its first line is no header, and its numbers (rows, columns).

    Raises
    ------
    CaseError
        Which names the line and the column of what is no number, or of a row longer or shorter than the others.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            header = [name.strip().strip('"').lower() for name in file.readline().split(",")]
        named = any(name[:1].isalpha() and name not in ("nan", "inf", "infinity") for name in header)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data")
            table = np.loadtxt(path, delimiter=",", skiprows=int(named), ndmin=2, encoding="utf-8-sig")
        fault = "rows do not fit the header" if named and table.size and table.shape[1] != len(header) else None
    except UnicodeDecodeError as error:
        raise CaseError(f"{path}: byte {error.start} is not UTF-8; must be a table of numbers") from None
    except (ValueError, OSError) as error:
        fault = str(error)
    if fault is not None:
        fault = _first_fault(path, len(header) if named else None) or fault
        raise CaseError(f"{path}: cannot be read as a table of numbers: {fault}")
    return (header if named else None), table


def _first_fault(path, width):
    """Where a .csv file of `width` named columns (None: it has no header) goes wrong first, in words, or None."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            content = line.partition("#")[0].rstrip("\n")
            if not content or (number == 1 and width is not None):
                continue
            cells = content.split(",")
            for column, cell in enumerate(cells, 1):
                try:
                    float(cell)
                except ValueError:
                    return f"line {number}, column {column}: {cell.strip()!r} is no number"
            width = len(cells) if width is None else width
            if len(cells) != width:
                return f"line {number} has the wrong number of columns, {len(cells)}; must be {width}"
    return None


def require_file(path: Path) -> None:
    """Raise a CaseError if a path is not a file."""
    if not path.exists():
        raise CaseError(f"{path}: no such file")
    if not path.is_file():
        raise CaseError(f"{path}: not a file")


def _require_names(path, required, names):
    missing = [name for name in required if name not in names]
    if missing:
        listed = ", ".join(sorted(names)) or "none"
        raise CaseError(f"{path}: no array {', '.join(map(repr, missing))}; the file has: {listed}")


def _real(path, name, array):
    """The array as float64 in C order, or an error if it does not hold real numbers."""
    array = np.asarray(array)
    if array.dtype.kind not in "fiu":
        raise CaseError(f"{path}: array {name!r} has dtype {array.dtype}; expected real numbers")
    return np.ascontiguousarray(array, dtype=float).reshape(array.shape)


def array_names(path: Path) -> list[str]:
    """Names of the arrays in a .npz archive or of the variables in a netCDF file.

    Raises
    ------
    CaseError
        If the file is damaged or of another format.
    """
    if path.suffix == ".npz":
        with _opened_npz(path) as archive:
            return archive.files
    try:
        with netCDF4.Dataset(path) as dataset:
            return list(dataset.variables)
    except (OSError, RuntimeError) as error:
        raise CaseError(f"{path}: {_DAMAGED}: {error}") from None


def read_all_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of real numbers in a .npz archive, as float64; arrays of text or objects are left out.

    Raises
    ------
    CaseError
        If the file is damaged or no such archive.
    """
    with _opened_npz(path) as archive:
        names = [name for name in archive.files if _kind_of(archive, name) in "fiu"]
    return _read_npz(path, names, ())


def _kind_of(archive, name):
    """Kind of numbers of an array in an archive; objects count as "O" without being loaded."""
    try:
        return archive[name].dtype.kind
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return "O"


@contextmanager
def _opened_npz(path) -> Iterator[np.lib.npyio.NpzFile]:
    with ExitStack() as stack:
        try:
            # opened here: numpy leaves a file open that turns out to be no archive
            archive = np.load(stack.enter_context(open(path, "rb")), allow_pickle=False)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise CaseError(f"{path}: {_DAMAGED}: {error}") from None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise CaseError(f"{path}: holds one array without a name; expected a .npz archive (numpy.savez)")
        yield archive


def _read_npz(path, required, optional):
    arrays = {}
    with _opened_npz(path) as archive:
        _require_names(path, required, archive.files)
        for name in (*required, *(name for name in optional if name in archive.files)):
            try:
                array = archive[name]
            except ValueError as error:
                # numpy's answer to object arrays, and to a header it cannot parse
                raise CaseError(f"{path}: array {name!r} cannot be read: {error}") from None
            except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
                raise CaseError(f"{path}: {_DAMAGED}: array {name!r}: {error}") from None
            arrays[name] = _real(path, name, array)
    return arrays


def _read_netcdf(path, required, optional):
    try:
        dataset = netCDF4.Dataset(path)
    except (OSError, RuntimeError) as error:
        raise CaseError(f"{path}: {_DAMAGED}: {error}") from None
    arrays = {}
    with dataset:
        _require_names(path, required, dataset.variables)
        for name in (*required, *(name for name in optional if name in dataset.variables)):
            try:
                array = dataset.variables[name][...]
            except (OSError, RuntimeError) as error:
                raise CaseError(f"{path}: {_DAMAGED}: array {name!r}: {error}") from None
            if np.ma.is_masked(array):
                raise CaseError(f"{path}: array {name!r} has {np.ma.count_masked(array)} missing entries")
            arrays[name] = _real(path, name, np.ma.getdata(array))
    return arrays
