"""The output file of a run: netCDF-4, CF-1.11, one record at a time through one handle.

Choices, and what was measured for them:

* A record is written as: all variables, sync, `t`, sync. A finite `t` on disk therefore means that its record is
  complete, and a killed run keeps every record it had appended.
* The handle stays open for the whole run. While somebody reads a file it cannot be re-opened for writing, but readers
  cannot disturb a handle that is already open; see `reader` for how they get at the data.
* HDF5 cannot survive a flush that fails half way: a full disk makes the whole file unreadable, earlier records
  included. So nothing is written before the system has agreed to a file that is longer by what the record can take at
  most (`_require_room`), which a full disk, a quota and a file-size limit refuse. Should somebody else take the room in
  the meantime, there is a *reserve*, a nameless file of about one record. When a write fails the reserve is given back
  to the disk, the flush is repeated and the file is sound again. HDF5 has by then lost some of the failed record
  (writing it again does not help), so its `t` becomes NaN, which tells readers to leave it out.
* Fields have one record per chunk, compressed (zlib 1, shuffle). Small variables share a chunk between many records and
  stay uncompressed, since a chunk that changes its compressed size on every record is moved in the file every time.
"""

import contextlib
import errno
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import netCDF4
import numpy as np

from sphereflow.diagnostics import Variable
from sphereflow.errors import OutputError, SphereflowError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath
from sphereflow.storage import claim
from sphereflow.storage.definitions import check_declarations, define, is_recorded

CONVENTIONS = "CF-1.11, ACDD-1.3"
_COPIED_AT_ONCE = 16
_SMALL = 2**17  # bytes: more than HDF5's indices or an attribute can take at once
_NETCDF_ERRORS = (OSError, RuntimeError)


class RunWriter:
    """Writes one output file; make it with `RunWriter.create` and use it as a context manager.

    Leaving the `with` block by an exception sets the status to "failed: reason" if it still is "running", and closes
    the file in any case.

    Attributes
    ----------
    path : Path
        The file.
    records : int
        Number of complete records in it.
    status : str
        The attribute `sphereflow_status`.
    """

    def __init__(self, path: Path, file: Path, dataset: netCDF4.Dataset, variables: Sequence[Variable], status: str):
        self.path = path
        self.records = 0
        self.status = status
        self._dataset = dataset
        self._recorded = {v.name: dataset[v.name] for v in variables if is_recorded(v)}
        for variable in (*self._recorded.values(), dataset["t"]):  # else every chunk stays in memory, up to 16 MB for each
            chunk = math.prod(variable.chunking()) * variable.dtype.itemsize
            variable.set_var_chunk_cache(size=max(chunk, 2**15), nelems=1, preemption=1.0)
        self._last_time = -math.inf
        self._broken = False
        self._identity = _identity(file)
        self._chunks = [
            (v.chunking()[0], math.prod(v.chunking()) * v.dtype.itemsize) for v in (*self._recorded.values(), dataset["t"])
        ]
        self._reserve = _reserve(path.parent, self._record_size(0))

    @classmethod
    def create(
        cls,
        path: str | os.PathLike,
        *,
        variables: Sequence[Variable],
        attributes: Mapping[str, object],
        weight_path: WeightPath | None,
        grid: GaussGrid | None = None,
        dimensions: Mapping[str, int] | None = None,
        coordinates: Mapping[str, np.ndarray] | None = None,
        force: bool = False,
    ) -> "RunWriter":
        """Create the file with everything but the records.

        Parameters
        ----------
        path : path-like
            Its name; a relative one is resolved now.
        variables : sequence of Variable
            What the file holds besides `t`, the grid and the weights. "t" first in `dims` makes a recorded variable.
        attributes : mapping
            Global attributes: str, int, float or one-dimensional arrays of numbers; must hold `REQUIRED_ATTRIBUTES`.
        weight_path : WeightPath, or None
            Stored whole in the group `weights`, see `read_weight_path`; sizes the dimensions head, row and col. None
            for imported data, whose weights nobody knows.
        grid : GaussGrid, optional
            Makes lat, lon, their bounds and cell_area. None for a run without fields.
        dimensions : mapping of str to int, optional
            Sizes of further dimensions, such as {"particle": 200, "xyz": 3}.
        coordinates : mapping of str to array, optional
            Values of the static variables (those without "t"), one for each.
        force : bool
            Move an existing file to NAME.bak instead of refusing.

        Raises
        ------
        OutputError
            If the file exists, cannot be created or does not fit on the disk. Nothing has then been changed.
        TypeError
            If an attribute has a type that netCDF does not know, such as bool, None or dict.
        ValueError
            If the declarations contradict each other.
        """
        path = Path(os.path.abspath(path))
        attributes = {"Conventions": CONVENTIONS, "sphereflow_status": "running", **attributes}
        check_declarations(variables, attributes, coordinates or {})
        claim.check_target(path, force)
        temporary = claim.temporary_file(path)
        dataset = writer = None
        try:
            dataset = netCDF4.Dataset(temporary, "w", format="NETCDF4")
            define(dataset, variables, attributes, weight_path, grid, dimensions or {}, coordinates or {})
            dataset.sync()
            writer = cls(path, temporary, dataset, variables, attributes["sphereflow_status"])
            claim.install(temporary, path, force)
        except BaseException as error:
            _abandon(dataset, writer)
            temporary.unlink(missing_ok=True)
            if isinstance(error, _NETCDF_ERRORS):
                raise OutputError(f"{path}: cannot create the file: {_cause(error, path)}") from error
            raise
        return writer

    @classmethod
    def reopen(cls, path: str | os.PathLike, *, variables: Sequence[Variable], records: int) -> "RunWriter":
        """Open a file that an earlier run left behind, to go on after its first `records` records; later ones are dropped.

        Raises
        ------
        OutputError
            If the file is missing, holds fewer records or other variables, or another program has it open (a lazy reader
            in this or another process, or a running run), which HDF5's lock forbids.
        """
        path = Path(os.path.abspath(path))
        try:
            dataset = netCDF4.Dataset(path, "a")
        except _NETCDF_ERRORS as error:
            raise OutputError(
                f"{path}: cannot be opened for writing: {getattr(error, 'strerror', None) or error}; if another program has "
                "the file open, for reading too, close it there first"
            ) from error
        writer = None
        try:
            if missing := [v.name for v in variables if v.name not in dataset.variables]:
                raise OutputError(f"{path}: lacks the variables {', '.join(missing)}")
            time = dataset["t"]
            if time.size < records:
                raise OutputError(f"{path}: holds {time.size} records, fewer than {records}")
            writer = cls(path, path, dataset, variables, "running")
            if time.size > records:
                time[records:] = np.nan
            writer.records = records
            writer._last_time = float(time[records - 1]) if records else -math.inf
            writer.set_status("running")
        except BaseException as error:
            _abandon(dataset, writer)
            if isinstance(error, _NETCDF_ERRORS):
                raise OutputError(f"{path}: cannot go on with the file: {_cause(error, path)}") from error
            raise
        return writer

    def copy_records(self, source, records: int) -> None:
        """Take over the first records of another file; nothing may have been appended yet.

        Parameters
        ----------
        source : mapping
            By name, `t` and every recorded variable, as something that slices along its first axis.
        records : int

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._require_open()
        blocks = [slice(k, min(k + _COPIED_AT_ONCE, records)) for k in range(0, records, _COPIED_AT_ONCE)]
        try:
            for name, variable in [*self._recorded.items(), ("t", self._dataset["t"])]:
                for block in blocks:
                    variable[block] = np.asarray(source[name][block])
            self._dataset.sync()
        except _NETCDF_ERRORS as error:
            self._rescue()
            raise OutputError(f"{self.path}: cannot copy the records: {_cause(error, self.path)}") from error
        if records:
            self.records, self._last_time = records, float(source["t"][records - 1])

    def series(self, name: str) -> np.ndarray:
        """Values of a recorded scalar at all records so far."""
        return np.ma.filled(self._recorded[name][: self.records], np.nan)

    def store_restart(self, content: bytes) -> None:
        """Keep the state of the finished run in the group `restart`, from which `resume --extend` goes on.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._require_open()
        try:
            self._require_room(len(content) + _SMALL)
            group = self._dataset.groups.get("restart")
            if group is None:
                group = self._dataset.createGroup("restart")
                group.createDimension("byte", None)
                described = {"long_name": "checkpoint of sphereflow at the last record"}
                group.createVariable("checkpoint", "u1", ("byte",), fill_value=False, chunksizes=(2**16,)).setncatts(described)
            group["checkpoint"][: len(content)] = np.frombuffer(content, np.uint8)
            group.length = len(content)
            self._dataset.sync()
        except _NETCDF_ERRORS as error:
            self._rescue()
            raise OutputError(f"{self.path}: cannot write the final state: {_cause(error, self.path)}") from error

    def note(self, text: str) -> None:
        """Add a line to the attribute `history`."""
        self._require_open()
        history = self._dataset.getncattr("history") if "history" in self._dataset.ncattrs() else ""
        try:
            self._require_room(len(history) + len(text) + _SMALL)
            self._dataset.setncattr("history", f"{history}\n{text}".strip())
            self._dataset.sync()
        except _NETCDF_ERRORS as error:
            raise OutputError(f"{self.path}: cannot be written: {_cause(error, self.path)}") from error

    def append(self, record: Mapping[str, object]) -> None:
        """Write one record and hand it to the operating system.

        Parameters
        ----------
        record : mapping
            `t`, later than in the record before, and an array for every recorded variable, without the axis t.

        Raises
        ------
        OutputError
            If the file cannot be written, for example because the disk is full. The records so far are kept; no more
            can be appended.
        ValueError
            If names are missing or unknown, a shape is wrong, `t` does not increase or the file is closed. Nothing has
            been written.
        TypeError
            If a value cannot be stored as the declared type.
        """
        self._require_open()
        if self._broken:
            raise OutputError(f"{self.path}: an earlier record could not be written; start again from a checkpoint")
        time, values = self._checked(record)
        self._require_its_name()
        try:
            self._require_room(self._record_size(self.records))
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot write the record at t = {time:g}: {_cause(error, self.path)}; the file holds "
                f"{self.records} complete records"
            ) from error
        try:
            self._write(time, values)
        except _NETCDF_ERRORS as error:
            cause = _cause(error, self.path)
            state = f"holds {self.records} complete records" if self._rescue() else "may be damaged"
            raise OutputError(
                f"{self.path}: cannot write the record at t = {time:g}: {cause}; the file {state}"
            ) from error

    def set_status(self, text: str) -> None:
        """Set `sphereflow_status`: "running", "complete", "complete (warning: ...)", "interrupted" or "failed: reason".

        Raises
        ------
        OutputError
            If the file cannot be written.
        ValueError
            For any other text, or if the file is closed.
        """
        self._require_open()
        if text not in ("running", "complete", "interrupted") and not text.startswith(("failed: ", "complete (warning: ")):
            raise ValueError(f"unknown status {text!r}")
        try:
            self._require_room(_SMALL)
            self._dataset.setncattr("sphereflow_status", text)
            self._dataset.sync()
        except _NETCDF_ERRORS as error:
            raise OutputError(f"{self.path}: cannot set the status: {_cause(error, self.path)}") from error
        self.status = text

    def close(self) -> None:
        """Close the file; closing twice is allowed.

        Raises
        ------
        OutputError
            If what is still in memory cannot be written.
        """
        self._reserve.close()
        if not self._dataset.isopen():
            return
        try:
            self._dataset.close()
        except _NETCDF_ERRORS as error:
            raise OutputError(f"{self.path}: cannot close the file: {_cause(error, self.path)}") from error

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if error is None:
            self.close()
            return
        # The error that ended the run is the one to report; trouble with the file is only added to it.
        for action in (lambda: self._set_failed(error), self.close):
            try:
                action()
            except OutputError as trouble:
                error.add_note(str(trouble))

    def _set_failed(self, error: BaseException) -> None:
        if self.status != "running" or not self._dataset.isopen():
            return
        reason = str(error) if isinstance(error, SphereflowError) else f"{type(error).__name__}: {error}"
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed: " + " ".join(reason.split())
        self._reserve.close()  # room for the attribute, should the disk be full
        self.set_status(status)

    def _checked(self, record: Mapping[str, object]) -> tuple[float, dict[str, np.ndarray]]:
        """The time and the arrays of a record, ready to be written."""
        missing, extra = {"t", *self._recorded} - record.keys(), record.keys() - {"t", *self._recorded}
        if missing or extra:
            raise ValueError(f"record lacks {sorted(missing)} and has undeclared {sorted(extra)}")
        time = float(record["t"])
        if not self._last_time < time < math.inf:
            raise ValueError(f"t = {time} does not follow t = {self._last_time}")
        values = {}
        for name, variable in self._recorded.items():
            value = np.asarray(record[name]).astype(variable.dtype, casting="same_kind", copy=False)
            if value.shape != variable.shape[1:]:
                raise ValueError(f"{name} has shape {value.shape}; declared was {variable.shape[1:]}")
            values[name] = value
        return time, values

    def _write(self, time: float, values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            self._recorded[name][self.records] = value
        self._dataset.sync()
        self._dataset["t"][self.records] = time
        self._dataset.sync()
        self.records += 1
        self._last_time = time

    def _rescue(self) -> bool:
        """Give the reserve back to the disk and make the file sound, without the record that failed."""
        self._broken = True
        self._reserve.close()
        try:
            self._dataset["t"][self.records] = np.nan
            self._dataset.sync()
        except _NETCDF_ERRORS:
            return False
        return True

    def _require_open(self) -> None:
        if not self._dataset.isopen():
            raise ValueError(f"{self.path}: the file is closed")

    def _require_its_name(self) -> None:
        """Notice that somebody removed or replaced the file, or its folder, under our hands."""
        try:
            identity = _identity(self.path)
        except OSError as error:
            raise OutputError(f"{self.path}: is gone while the run was writing it: {error.strerror}") from error
        if identity != self._identity:
            raise OutputError(f"{self.path}: was replaced by another file while the run was writing it")

    def _require_room(self, size: int) -> None:
        """Raise OSError if the file cannot grow by so many bytes; its size stays as it is.

        Every other trouble (a file system that cannot tell, a file that is gone) is left to the write itself.
        """
        try:
            with open(self.path, "rb+", buffering=0) as file:
                status = os.stat(file.fileno())
                if (status.st_dev, status.st_ino) == self._identity:
                    try:
                        os.posix_fallocate(file.fileno(), status.st_size, size)
                    finally:
                        file.truncate(status.st_size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise

    def _record_size(self, number: int) -> int:
        """Bytes that a record can take at most: new chunks, of fields and where a shared chunk is full, and HDF5's indices."""
        return sum(size for records, size in self._chunks if number % records == 0) + _SMALL


def _abandon(dataset: netCDF4.Dataset | None, writer: RunWriter | None) -> None:
    """Close what a failed opening left open."""
    if dataset is not None:
        with contextlib.suppress(*_NETCDF_ERRORS):
            dataset.close()
    if writer is not None:
        writer._reserve.close()


def _reserve(folder: Path, size: int):
    """A nameless file that occupies `size` bytes of the disk until it is closed or the process ends."""
    file = tempfile.TemporaryFile(dir=folder, buffering=0)
    try:
        while size > 0:
            size -= file.write(bytes(size))
    except BaseException:
        file.close()
        raise
    return file


def _identity(path: Path) -> tuple[int, int]:
    """What tells a file from all others, whatever its name."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _cause(error: Exception, path: Path) -> str:
    """What the system said; netCDF hides the system's own error, so add what is usually behind it."""
    text = getattr(error, "strerror", None) or str(error)
    free = shutil.disk_usage(path.parent).free
    return f"{text} ({free / 1e6:.1f} MB free on the disk)" if "NetCDF" in text else text
