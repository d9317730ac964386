"""All finished runs of an ensemble as one dataset, from which nothing is read before it is needed.

One file for each variation is looked at for names and shapes; runs of a variation differ in their seeds only and have the same.
Blocks of the dataset belong to one run each. Reading a number opens its file, and closes it again: an open dataset keeps
nobody from going on with its runs.
"""

import itertools
import os
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr
from xarray.backends.locks import HDF5_LOCK, NETCDFC_LOCK, combine_locks

from sphereflow.case import setting
from sphereflow.ensemble.manifest import Manifest
from sphereflow.errors import CaseError, OutputError
from sphereflow.storage import open_run

_LOCK = combine_locks([NETCDFC_LOCK, HDF5_LOCK])
_BLOCK_BYTES = 2**26
_SMALL_BYTES = 2**12  # series up to this size are read together and remembered: opening a file costs more than reading it
_SAME_TIME = 1e-9  # times that agree so far, relative to the last one, are the same record
_ATTRIBUTES = ("Conventions", "title", "source", "references")


def open_ensemble(manifest: str | os.PathLike) -> xr.Dataset:
    """Open the finished runs of an ensemble as one lazy dataset.

    Parameters
    ----------
    manifest : path-like
        The manifest, or the folder it is in; the ensemble may be incomplete or still running.

    Returns
    -------
    xarray.Dataset
        Variables of the runs over the dimensions (member, varied keys, t, ...), backed by dask. The dimension of a varied key
        is named like the key with "_" for ".", `heads_count`, and has the values as coordinates (as text where they are
        no single numbers or words). Runs that are not complete are NaN; so are times that a run does not have, and what lies
        behind the end of a dimension without coordinates (head, particle, expert) that is shorter in a run than in others:
        integers are therefore floats. Variables whose coordinates differ from variation to variation, as all fields do when
        grid.nlat is varied, are left out with a warning; the attribute `sphereflow_left_out` names them.
        `member_status` says what has become of each run ("complete", "complete (warning: ...)", "failed: ...", "interrupted",
        "pending"), `member_file` where its file is.

    Raises
    ------
    OutputError
        If the manifest or a file cannot be read, or no run is complete.
    CaseError
        If dask is not installed.
    """
    try:
        import dask.array  # noqa: F401
    except ImportError as error:
        raise CaseError(f"open_ensemble needs dask ({error}); install it with: pip install dask") from None
    manifest = Manifest.load(manifest)
    layout = _Layout(manifest)
    variables = layout.recorded() | layout.static()
    coordinates = layout.coordinates()
    for name in layout.coordinate_names & variables.keys():
        coordinates[name] = variables.pop(name)
    first = next(iter(layout.templates.values())).attributes
    attributes = {name: first[name] for name in _ATTRIBUTES if name in first}
    attributes["sphereflow_manifest"] = str(manifest.path)
    if layout.left_out:
        attributes["sphereflow_left_out"] = ", ".join(sorted(layout.left_out))
        warnings.warn(
            f"{manifest.path}: left out, because their coordinates differ between runs: {attributes['sphereflow_left_out']}",
            stacklevel=2,
        )
    if layout.padded:
        attributes["sphereflow_padded"] = ", ".join(sorted(layout.padded))
    return xr.Dataset({**variables, **layout.about_runs()}, coordinates, attributes)


class _Template:
    """What the runs of one variation have in common, read from one of their files."""

    def __init__(self, path: Path):
        with open_run(path) as run:
            self.attributes = dict(run.attrs)
            self.time = run["t"].values
            self.time_attributes = dict(run["t"].attrs)
            self.coordinate_names = set(run.coords)
            self.recorded, self.static = {}, {}
            for name, variable in run.variables.items():
                if name == "t":
                    continue
                if variable.dims[:1] == ("t",):
                    self.recorded[name] = (variable.dims[1:], variable.shape[1:], variable.dtype, dict(variable.attrs))
                else:
                    self.static[name] = variable.load()


class _Layout:
    """How the runs of an ensemble fit into one dataset."""

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.vary = manifest.content["vary"]
        self.dims = ("member", *(key.replace(".", "_") for key in self.vary))
        self.shape = (manifest.content["members"], *(len(values) for values in self.vary.values()))
        self.runs = dict(zip(itertools.product(*map(range, self.shape)), manifest.runs, strict=True))
        self.files = {index: str(manifest.file_of(run)) for index, run in self.runs.items() if run["status"] == "complete"}
        self.templates = {}
        for index, file in self.files.items():
            if index[1:] not in self.templates:
                self.templates[index[1:]] = _Template(Path(file))
        if not self.templates:
            raise OutputError(f"{manifest.path}: no run is complete yet")
        self.coordinate_names = set().union(*(template.coordinate_names for template in self.templates.values())) - {"t"}
        self.left_out, self.padded = set(), set()
        self.sizes = self._common_sizes()
        self.time, self.positions = self._common_times()

    def _common_sizes(self) -> dict[str, int | None]:
        """Largest size of every dimension, None for those whose coordinates differ."""
        sizes, values = {}, {}
        for template in self.templates.values():
            found = {}
            for dims, shape, _, _ in template.recorded.values():
                found |= zip(dims, shape, strict=True)
            for variable in template.static.values():
                found |= variable.sizes
            for dim, size in found.items():
                if sizes.setdefault(dim, size) not in (None, size):
                    self.padded.add(dim)
                own = template.static.get(dim)
                if own is None:
                    sizes[dim] = max(sizes[dim], size)
                elif not np.array_equal(values.setdefault(dim, own.values), own.values):
                    sizes[dim] = None
        self.padded -= {dim for dim, size in sizes.items() if size is None}
        return sizes

    def _common_times(self) -> tuple[np.ndarray, dict]:
        """All times of records, and at which of them each variation has its records."""
        every = np.unique(np.concatenate([template.time for template in self.templates.values()]))
        time = every[np.concatenate([[True], np.diff(every) > _SAME_TIME * np.abs(every).max()])]
        middles = (time[1:] + time[:-1]) / 2
        return time, {index: np.searchsorted(middles, template.time) for index, template in self.templates.items()}

    def _common(self, kind: str) -> dict:
        """Names of all variables of a kind that have a place, each with those templates that have it."""
        names = {}
        for index, template in self.templates.items():
            for name, variable in getattr(template, kind).items():
                dims = variable[0] if kind == "recorded" else variable.dims
                if any(self.sizes[dim] is None for dim in dims):
                    self.left_out.add(name)
                else:
                    names.setdefault(name, {})[index] = variable
        # a variable that has other dimensions elsewhere, or other variables under its name, has no place either
        for name, found in list(names.items()):
            if len({variable[0] if kind == "recorded" else variable.dims for variable in found.values()}) > 1:
                self.left_out.add(name)
                del names[name]
        return names

    def recorded(self) -> dict[str, xr.Variable]:
        """Variables with a value at every record."""
        import dask.array as da

        result = {}
        for name, found in self._common("recorded").items():
            dims, _, _, attributes = next(iter(found.values()))
            dtype = np.result_type(*(variable[2] for variable in found.values()))
            dtype = dtype if dtype.kind == "f" else np.dtype(float)
            rest = tuple(self.sizes[dim] for dim in dims)
            files = {index: file for index, file in self.files.items() if index[1:] in found}
            source = _Stacked(name, self.shape, self.time, rest, dtype, files, self.positions)
            per_record = int(np.prod(rest, initial=1)) * dtype.itemsize
            chunks = (*(1,) * len(self.shape), max(1, min(self.time.size, _BLOCK_BYTES // max(1, per_record))), *rest)
            meta = np.empty((0,) * len(source.shape), dtype)
            data = da.from_array(source, chunks=chunks, name=False, meta=meta, fancy=False)
            result[name] = xr.Variable((*self.dims, "t", *dims), data, attributes)
        return result

    def static(self) -> dict[str, xr.Variable]:
        """Variables without time: as they are where all variations have the same, else over the varied keys."""
        result = {}
        for name, found in self._common("static").items():
            first = next(iter(found.values()))
            if len(found) == len(self.templates) and all(variable.identical(first) for variable in found.values()):
                result[name] = first
                continue
            if first.dtype.kind not in "iuf":
                self.left_out.add(name)
                continue
            values = np.full((*self.shape[1:], *(self.sizes[dim] for dim in first.dims)), np.nan)
            for index, variable in found.items():
                values[index][tuple(slice(length) for length in variable.shape)] = variable.values
            result[name] = xr.Variable((*self.dims[1:], *first.dims), values, first.attrs)
        return result

    def coordinates(self) -> dict[str, xr.Variable]:
        """Members, values of the varied keys, and times."""
        described = next(iter(self.templates.values())).time_attributes
        result = {"member": xr.Variable("member", np.arange(self.shape[0]), {"long_name": "member of the ensemble"})}
        for dim, (key, values) in zip(self.dims[1:], self.vary.items(), strict=True):
            result[dim] = xr.Variable(dim, _as_coordinate(values), {"long_name": key})
        return {**result, "t": xr.Variable("t", self.time, described)}

    def about_runs(self) -> Mapping[str, xr.Variable]:
        """What has become of each run, and where its file is."""
        status = np.array([_status(run) for run in self.runs.values()], dtype=str).reshape(self.shape)
        file = np.array([str(self.manifest.file_of(run)) for run in self.runs.values()], dtype=str).reshape(self.shape)
        return {
            "member_status": xr.Variable(self.dims, status, {"long_name": "what has become of the run"}),
            "member_file": xr.Variable(self.dims, file, {"long_name": "output file of the run"}),
        }


def _status(run: Mapping) -> str:
    if run["warning"]:
        return f"complete (warning: {run['warning']})"
    return f"failed: {run['error']}" if run["status"] == "failed" else run["status"]


def _as_coordinate(values: list) -> np.ndarray:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    words = all(isinstance(value, str) for value in values)
    return np.array(values if numbers or words else [setting("", value)[1:] for value in values])


class _Stacked:
    """One variable of all runs as what dask asks of an array: a shape, a type, and slices of it.

    Parameters
    ----------
    name : str
    shape : tuple of int
        Numbers of members and of values of the varied keys.
    time : ndarray
        Times of the dataset.
    rest : tuple of int
        Sizes of the dimensions after time.
    dtype : dtype
    files : dict
        By index of the run; those that are not complete are missing.
    positions : dict
        By index of the variation: index of the dataset's time for each of its records, increasing.
    """

    def __init__(self, name, shape, time, rest, dtype, files, positions):
        self._name, self._leading, self._files, self._positions = name, len(shape), files, positions
        self.shape, self.dtype, self.ndim = (*shape, time.size, *rest), np.dtype(dtype), len(shape) + 1 + len(rest)

    def __getitem__(self, index):
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *(slice(None),) * (self.ndim - len(index)))
        ranges = [range(size)[part] if isinstance(part, slice) else range(part, part + 1) for part, size in self._pairs(index)]
        leading, (times, *rest) = ranges[: self._leading], ranges[self._leading :]
        result = np.full([len(part) for part in ranges], np.nan, self.dtype)
        for place in itertools.product(*(range(len(part)) for part in leading)):
            run = tuple(part[k] for part, k in zip(leading, place, strict=True))
            if run in self._files:
                self._read(run, times, rest, result[place])
        return result[tuple(slice(None) if isinstance(part, slice) else 0 for part in index)]

    def _pairs(self, index):
        return [
            (part if isinstance(part, slice) else int(part) % size, size) for part, size in zip(index, self.shape, strict=True)
        ]

    def _read(self, run, times: range, rest, target) -> None:
        """Fill in the records of a run that belong to some of the dataset's times."""
        positions = self._positions[run[1:]]
        order = slice(None) if times.step > 0 else slice(None, None, -1)
        wanted = times[order]
        records = np.flatnonzero(np.isin(positions, wanted)) if len(wanted) else np.empty(0, int)
        if records.size == 0:
            return
        block = slice(int(records[0]), int(records[-1]) + 1)
        values = _values(self._files[run], self._name, block)[records - records[0]]
        whole = np.full((len(wanted), *self.shape[self._leading + 1 :]), np.nan, self.dtype)
        there = np.searchsorted(wanted, positions[records])
        whole[(there, *(slice(length) for length in values.shape[1:]))] = values
        target[order] = whole[(slice(None), *map(_as_slice, rest))]


def _as_slice(part: range) -> slice:
    return slice(part.start, part.stop if part.stop >= 0 else None, part.step)


def _values(file: str, name: str, records: slice) -> np.ndarray:
    """Some records of a variable of a file."""
    small = _small_series(file, os.stat(file).st_mtime_ns)
    if name in small:
        return small[name][records]
    with _reading(file) as run:
        return run[name][records]


@lru_cache(maxsize=2048)
def _small_series(file: str, _modified: int) -> dict[str, np.ndarray]:
    """All small series of a file, read at once."""
    with _reading(file) as run:
        series = {name: variable for name, variable in run.variables.items() if variable.dimensions[:1] == ("t",)}
        return {name: v[...] for name, v in series.items() if v.size * v.dtype.itemsize <= _SMALL_BYTES}


@contextmanager
def _reading(file: str):
    """A file of a finished run, for one thread at a time.

    dask computes with threads, netCDF-C cannot; xarray locks its own reading, but not the opening of files, and crashes. The
    lock is xarray's, so that its datasets can be computed together with ours.
    """
    with _LOCK:
        try:
            run = netCDF4.Dataset(file)
        except OSError as error:
            raise OutputError(f"{file}: cannot be read: {error.strerror or error}") from error
        try:
            run.set_auto_maskandscale(False)  # what was never written is NaN as it is
            yield run
        finally:
            run.close()
