"""The output file of a run: netCDF-4, CF-1.11, one record at a time through one handle.

Choices, and what was measured for them:

* A record is written as: all variables, sync, `t`, sync. A finite `t` on disk therefore means that its record is
  complete, and a killed run keeps every record it had appended.
* The handle stays open for the whole run. While somebody reads a file it cannot be re-opened for writing, but readers
  cannot disturb a handle that is already open; see `reader` for how they get at the data.
* HDF5 cannot survive a flush that fails half way: a full disk makes the whole file unreadable, earlier records
  included. So every writer holds a *reserve*, a nameless file of about one record. When a write fails the reserve is
  given back to the disk, the flush is repeated and the file is sound again. HDF5 has by then lost some of the failed
  record (writing it again does not help), so its `t` becomes NaN, which tells readers to leave it out.
* Fields have one record per chunk, compressed (zlib 1, shuffle). Small variables share a chunk between many records and
  stay uncompressed, since a chunk that changes its compressed size on every record is moved in the file every time.
"""

import contextlib
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

REQUIRED_ATTRIBUTES = ("title", "sphereflow_case", "sphereflow_case_sha256", "sphereflow_status")
"""Global attributes that make a netCDF file one of sphereflow's; the status is "running" unless given."""

CONVENTIONS = "CF-1.11, ACDD-1.3"
SCALAR_CHUNK = 4096
_CHUNK_BYTES = 32768
_OWN_NAMES = {"t", "lat", "lon", "lat_bnds", "lon_bnds", "cell_area", "head_weight", "weights"}
_COMPRESSED = {"compression": "zlib", "complevel": 1, "shuffle": True}
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

    def __init__(self, path: Path, dataset: netCDF4.Dataset, variables: Sequence[Variable], status: str):
        self.path = path
        self.records = 0
        self.status = status
        self._dataset = dataset
        self._recorded = {v.name: dataset[v.name] for v in variables if _is_recorded(v)}
        self._last_time = -math.inf
        self._broken = False
        self._reserve = _reserve(path.parent, self._reserve_size())

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
        _check_declarations(variables, attributes, coordinates or {})
        claim.check_target(path, force)
        temporary = claim.temporary_file(path)
        dataset = writer = None
        try:
            dataset = netCDF4.Dataset(temporary, "w", format="NETCDF4")
            _define(dataset, variables, attributes, weight_path, grid, dimensions or {}, coordinates or {})
            dataset.sync()
            writer = cls(path, dataset, variables, attributes["sphereflow_status"])
            claim.install(temporary, path, force)
        except BaseException as error:
            with contextlib.suppress(*_NETCDF_ERRORS):
                if dataset is not None:
                    dataset.close()
            if writer is not None:
                writer._reserve.close()
            temporary.unlink(missing_ok=True)
            if isinstance(error, _NETCDF_ERRORS):
                raise OutputError(f"{path}: cannot create the file: {_cause(error, path)}") from error
            raise
        return writer

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
        try:
            self._write(time, values)
        except _NETCDF_ERRORS as error:
            cause = _cause(error, self.path)
            state = f"holds {self.records} complete records" if self._rescue() else "may be damaged"
            raise OutputError(
                f"{self.path}: cannot write the record at t = {time:g}: {cause}; the file {state}"
            ) from error

    def set_status(self, text: str) -> None:
        """Set `sphereflow_status`: "running", "complete" or "failed: reason".

        Raises
        ------
        OutputError
            If the file cannot be written.
        ValueError
            For any other text, or if the file is closed.
        """
        self._require_open()
        if text not in ("running", "complete") and not text.startswith("failed: "):
            raise ValueError(f"unknown status {text!r}")
        try:
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
        if isinstance(error, KeyboardInterrupt):
            reason = "interrupted"
        elif isinstance(error, SphereflowError):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {error}"
        self._reserve.close()  # room for the attribute, should the disk be full
        self.set_status("failed: " + " ".join(reason.split()))

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

    def _reserve_size(self) -> int:
        """Bytes of one new chunk for every variable, and some for HDF5's indices."""
        chunks = (math.prod(v.chunking()) * v.dtype.itemsize for v in (*self._recorded.values(), self._dataset["t"]))
        return sum(chunks) + 2**19


def _reserve(folder: Path, size: int):
    """A nameless file that occupies `size` bytes of the disk until it is closed or the process ends."""
    file = tempfile.TemporaryFile(dir=folder, buffering=0)
    while size > 0:
        size -= file.write(bytes(size))
    return file


def _is_recorded(variable: Variable) -> bool:
    return variable.dims[:1] == ("t",)


def _check_declarations(variables, attributes, coordinates) -> None:
    """Find contradictions and unusable attributes before a file is made."""
    missing = [name for name in REQUIRED_ATTRIBUTES if name not in attributes]
    if missing:
        raise ValueError(f"global attributes lack {missing}")
    names = [v.name for v in variables]
    wrong = {name for name in names if name in _OWN_NAMES or names.count(name) > 1}
    if wrong:
        raise ValueError(f"variables declared twice or already part of every file: {sorted(wrong)}")
    if misplaced := [v.name for v in variables if "t" in v.dims[1:]]:
        raise ValueError(f"t is not the first dimension of {misplaced}")
    static = {v.name for v in variables if not _is_recorded(v)}
    if static != coordinates.keys():
        raise ValueError(f"static variables {sorted(static)} but values for {sorted(coordinates)}")
    for name, value in attributes.items():
        _check_attribute(name, value)
    for variable in variables:
        for name, value in variable.attrs.items():
            _check_attribute(f"{variable.name}:{name}", value)


def _check_attribute(name: str, value: object) -> None:
    if isinstance(value, str):
        return
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.ndim > 1 or array.size == 0:
        raise TypeError(f"attribute {name}: {value!r} is neither text nor numbers")


def _define(dataset, variables, attributes, weight_path, grid, dimensions, coordinates) -> None:
    """Dimensions, variables and everything static."""
    dataset.setncatts(attributes)
    sizes = {"t": None, **dimensions}
    if weight_path is not None:
        heads, size = weight_path.logits.shape[1:3]
        sizes |= {"head": heads, "row": size, "col": size}
    if grid is not None:
        sizes |= {"lat": grid.nlat, "lon": grid.nlon, "bnds": 2}
    unknown = {dim for v in variables for dim in v.dims} - sizes.keys()
    if unknown:
        raise ValueError(f"dimensions without a size: {sorted(unknown)}")
    if empty := [name for name, length in sizes.items() if length is not None and length < 1]:
        raise ValueError(f"dimensions without elements: {empty}")
    for name, length in sizes.items():
        dataset.createDimension(name, length)
    time = dataset.createVariable("t", "f8", ("t",), chunksizes=(SCALAR_CHUNK,))
    time.long_name = "flow time, dimensionless"  # and nothing else: units would make it a date, a standard_name too
    if grid is not None:
        _define_grid(dataset, grid)
    if weight_path is not None:
        described = {"long_name": "weight of each head", "units": "1"}
        _static(dataset, "head_weight", ("head",), weight_path.head_weight, described)
    for variable in variables:
        _define_variable(dataset, variable, sizes, coordinates)
    if weight_path is not None:
        _define_weights(dataset.createGroup("weights"), weight_path)


def _static(group, name: str, dims: tuple[str, ...], values, attributes: Mapping[str, object]) -> None:
    """A variable that is written here and now; like all coordinates and bounds it has no _FillValue."""
    values = np.asarray(values)
    variable = group.createVariable(name, values.dtype, dims, fill_value=False)
    variable.setncatts(attributes)
    variable[...] = values


def _define_grid(dataset, grid) -> None:
    """Coordinates in degrees, their bounds from the faces of the cells, and the areas of the cells."""
    spacing = 360.0 / grid.nlon  # not from radians: multiples of it are then exact and ds.sel(lon=90) finds its column
    lat, lon = 90.0 - np.degrees(grid.colatitude), spacing * np.arange(grid.nlon)
    for name, values, standard_name, units, axis in (
        ("lat", lat, "latitude", "degrees_north", "Y"),
        ("lon", lon, "longitude", "degrees_east", "X"),
    ):
        attributes = {"standard_name": standard_name, "long_name": standard_name, "units": units, "axis": axis}
        _static(dataset, name, (name,), values, {**attributes, "bounds": f"{name}_bnds"})
    face = 90.0 - np.degrees(grid.colatitude_face)
    _static(dataset, "lat_bnds", ("lat", "bnds"), np.stack([face[:-1], face[1:]], axis=-1), {})
    _static(dataset, "lon_bnds", ("lon", "bnds"), np.stack([lon - spacing / 2, lon + spacing / 2], axis=-1), {})
    area = np.broadcast_to(grid.cell_area[:, None], (grid.nlat, grid.nlon))
    attributes = {
        "standard_name": "cell_area",
        "long_name": "area of the grid cell, sphere of radius 1 m",
        "units": "m2",
    }
    _static(dataset, "cell_area", ("lat", "lon"), area, attributes)


def _define_variable(dataset, declared: Variable, sizes, coordinates) -> None:
    attributes = {"long_name": declared.long_name, "units": declared.units}
    attributes = {name: text for name, text in attributes.items() if text}
    on_grid = declared.dims[-2:] == ("lat", "lon")
    if on_grid:
        attributes["cell_measures"] = "area: cell_area"
    attributes |= declared.attrs
    if not _is_recorded(declared):
        values = np.asarray(coordinates[declared.name]).astype(declared.dtype, casting="same_kind")
        shape = tuple(sizes[dim] for dim in declared.dims)
        if values.shape != shape:
            raise ValueError(f"{declared.name} has shape {values.shape}; declared was {shape}")
        _static(dataset, declared.name, declared.dims, values, attributes)
        return
    record_shape = [sizes[dim] for dim in declared.dims[1:]]
    dtype = np.dtype(declared.dtype)
    per_chunk = 1 if on_grid else _records_per_chunk(math.prod(record_shape) * dtype.itemsize, len(record_shape))
    variable = dataset.createVariable(
        declared.name,
        dtype,
        declared.dims,
        chunksizes=(per_chunk, *record_shape),
        fill_value=np.nan if dtype.kind == "f" else None,
        **(_COMPRESSED if per_chunk == 1 else {}),
    )
    variable.setncatts(attributes)


def _records_per_chunk(record_bytes: int, rank: int) -> int:
    """Records in a chunk of a variable without a grid: 4096 for scalars, else chunks of about 32 KiB."""
    return SCALAR_CHUNK if rank == 0 else max(1, _CHUNK_BYTES // record_bytes)


def _define_weights(group, path: WeightPath) -> None:
    """The whole weight path, such that `read_weight_path` gives it back bit for bit."""
    group.createDimension("node", path.time.size)
    group.setncatts({"interpolation": path.interpolation, "noise_var": float(path.noise_var)})
    if path.relaxation is not None:
        group.relaxation = float(path.relaxation)
    nodes = ("node", "head", "row", "col")
    for name, dims, long_name in (
        ("time", nodes[:1], "flow time of the nodes of the weight path"),
        ("logits", nodes, "logit matrices of the heads"),
        ("rate", nodes, "time derivative of the logit matrices"),
        ("values", nodes, "value matrices of the heads"),
        ("mean", nodes[1:], "mean of the Ornstein-Uhlenbeck law"),
        ("phase", ("head",), "phase of the forcing of each head, radians"),
        ("concentration", ("head",), "concentration of the von Mises-Fisher likelihood of each head"),
    ):
        values = getattr(path, name)
        if values is not None:
            _static(group, name, dims[-np.ndim(values) :], values, {"long_name": long_name})


def _cause(error: Exception, path: Path) -> str:
    """What the system said; netCDF hides the system's own error, so add what is usually behind it."""
    text = getattr(error, "strerror", None) or str(error)
    free = shutil.disk_usage(path.parent).free
    return f"{text} ({free / 1e6:.1f} MB free on the disk)" if "NetCDF" in text else text
