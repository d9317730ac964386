"""What an output file holds before its first record: checks of the declarations, dimensions, variables, static values."""

import math
from collections.abc import Mapping

import numpy as np

from sphereflow.diagnostics import Variable
from sphereflow.heads import WeightPath

REQUIRED_ATTRIBUTES = ("title", "sphereflow_case", "sphereflow_case_sha256", "sphereflow_status")
"""Global attributes that make a netCDF file one of sphereflow's; the status is "running" unless given."""

SCALAR_CHUNK = 4096
_CHUNK_BYTES = 32768
_OWN_NAMES = {"t", "lat", "lon", "lat_bnds", "lon_bnds", "cell_area", "head_weight", "weights"}
_COMPRESSED = {"compression": "zlib", "complevel": 1, "shuffle": True}


def is_recorded(variable: Variable) -> bool:
    """Whether a variable has a value at every record."""
    return variable.dims[:1] == ("t",)


def check_declarations(variables, attributes, coordinates) -> None:
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
    static = {v.name for v in variables if not is_recorded(v)}
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


def define(dataset, variables, attributes, weight_path, grid, dimensions, coordinates) -> None:
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
    if not is_recorded(declared):
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
