"""Reading output files, also while a run is writing them.

What was measured (netCDF-C 4.10, HDF5 2.2, Linux, local file system):

* HDF5 locks the file of a writer exclusively; a plain `xarray.open_dataset` of it fails with "NetCDF: HDF error" and
  does the writer no harm. HDF5_USE_FILE_LOCKING=FALSE lets a reader in, but only if set before netCDF4 is imported.
* A reader without the lock that works on the file itself is unreliable: with a record every 3 ms, over 90 % of the
  attempts to read thirty variables ended in an HDF error, since the file's indices move while they are followed.
* A copy of the file's bytes in memory, taken while neither size nor modification time changed, was intact in 684 of 684
  attempts next to the same writer; of the copies during which the file changed up to 4 % were damaged.

So `open_run` reads a file that is being written from such a copy (it needs memory for the whole file and shows the run
as it was at that moment), and every other file lazily from disk. No reader ever disturbs a running writer. A file that
is open for lazy reading does keep others from opening it for writing (HDF5's lock): close it before resuming its run.
"""

import os
import time as clock
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import netCDF4
import numpy as np

from sphereflow.errors import CaseError, OutputError
from sphereflow.heads import WeightPath
from sphereflow.names import require_name
from sphereflow.storage.checkpoint import checkpoint_files
from sphereflow.storage.claim import is_being_written
from sphereflow.storage.definitions import REQUIRED_ATTRIBUTES

if TYPE_CHECKING:  # slow to import, and a run from the command line does without
    import xarray as xr

_PATIENCE = 10.0
_PAUSE = 0.02
_NETCDF_ERRORS = (OSError, RuntimeError)
_SERIES = (
    "t", "step", "mass", "density_min", "energy", "weight_work", "dissipation_integral", "edi_residual", "movement_slack_min",
)  # fmt: skip
_UNWRITTEN = netCDF4.default_fillvals["f8"]


def open_run(path: str | os.PathLike) -> "xr.Dataset":
    """Open the output file of a run, finished or not.

    Parameters
    ----------
    path : path-like
        The file; a run may be writing it at this moment (see the module's notes).

    Returns
    -------
    xarray.Dataset
        Lazily loaded, with `t` as float and all attributes; only complete records. Close it, or use `with`. The attribute
        `sphereflow_state`, which is not in the file, says what has become of the run, see `state_of`.

    Raises
    ------
    OutputError
        If the file is missing, cannot be read, is not netCDF or was not written by sphereflow.
    """
    import xarray as xr

    return _open(
        Path(path),
        lambda file: _checked(xr.open_dataset(file, engine="netcdf4"), file, being_written=False),
        lambda image: _checked(xr.open_dataset(xr.backends.NetCDF4DataStore(image)), Path(path), being_written=True),
    )


def state_of(status: str, being_written: bool) -> str:
    """What has become of a run: "running", "interrupted", "failed" or "complete".

    Parameters
    ----------
    status : str
        The file's attribute `sphereflow_status`. A run that was killed leaves "running" behind.
    being_written : bool
        Whether a process holds the file open for writing.
    """
    if being_written:
        return "running"
    return "interrupted" if status == "running" else status.split(":")[0].split(" ")[0]


def read_restart(path: str | os.PathLike) -> bytes | None:
    """The checkpoint at the end of a complete run, or None if the file holds none.

    Raises
    ------
    OutputError
        If the file is missing or cannot be read.
    """
    with _open(Path(path), netCDF4.Dataset, lambda image: image) as dataset:
        group = dataset.groups.get("restart")
        if group is None:
            return None
        group.set_auto_maskandscale(False)
        return group["checkpoint"][: int(group.length)].tobytes()


def read_weight_path(path: str | os.PathLike) -> WeightPath:
    """The weight path of a run, bit for bit as the run used it.

    Parameters
    ----------
    path : path-like
        An output file; a run may be writing it.

    Returns
    -------
    WeightPath

    Raises
    ------
    OutputError
        If the file is missing, cannot be read or holds no weights.
    """
    path = Path(path)
    with _open(path, netCDF4.Dataset, lambda image: image) as dataset:
        dataset.set_auto_maskandscale(False)
        group = dataset.groups.get("weights")
        if group is None or "head_weight" not in dataset.variables or not {"time", "logits"} <= group.variables.keys():
            raise OutputError(f"{path}: holds no weight path (group weights and variable head_weight)")
        arrays = {name: variable[...] for name, variable in group.variables.items()}
        attributes = {name: group.getncattr(name) for name in group.ncattrs()}
        head_weight = dataset["head_weight"][...]
    return WeightPath(head_weight=head_weight, **arrays, **attributes)


def read_density(path: str | os.PathLike, time: float | None = None) -> tuple[np.ndarray, int]:
    """The density of the record nearest to a time.

    Parameters
    ----------
    path : path-like
        An output file of a run on a grid.
    time : float, optional
        Flow time; None takes the last record.

    Returns
    -------
    density : ndarray, shape (nlat, nlon)
        float64, north to south.
    nlat : int
        Size of its grid.

    Raises
    ------
    OutputError
        If the file cannot be opened, see `open_run`.
    CaseError
        If `time` lies outside the records (beyond round-off), or the file has no density.
    """
    with open_run(path) as run:
        if "density" not in run or run.sizes["t"] == 0:
            raise CaseError(f"{path}: holds no density")
        first, last = run["t"].values[[0, -1]]
        if time is None:
            time = last
        slack = 1e-9 * max(abs(first), abs(last))
        if not first - slack <= time <= last + slack:
            raise CaseError(f"{path}: time {time:g} is outside the records, which cover [{first:g}, {last:g}]")
        density = run["density"].sel(t=time, method="nearest").transpose("lat", "lon")
        return np.ascontiguousarray(density.values, dtype=float), density.sizes["lat"]


def run_summary(path: str | os.PathLike) -> dict:
    """What an output file holds, and the run's conservation and energy ledger.

    Parameters
    ----------
    path : path-like
        An output file; a run may be writing it.

    Returns
    -------
    dict
        Plain values that JSON knows; None where the file lacks the variable or the number is not finite.

        `path`, `bytes`, `status`, `state` (running, interrupted, failed or complete: see `state_of`), `being_written`,
        `checkpoints` (names of the checkpoint files beside it), `title`, `created`, `source`, `backend`, `versions`,
        `case_sha256`, `solver`, `t_end`, `velocity`, `nlat`, `nlon`, `heads`, `particles`, `records`, `steps`,
        `t_first`, `t_last`;
        `mass_drift` (max over records of abs(mass - 1)), `density_min` (over all records), `energy_first`,
        `energy_last`, `weight_work` (W at the last record), `dissipation_integral`, `edi_residual` (both at the last
        record), `edi_residual_relative` (its size over the integral of abs(P), as resolved by the records) and, of
        minimising movements, `movement_slack_min` (at the last record).

    Raises
    ------
    OutputError
        If the file cannot be opened, see `open_run`.
    """
    path = Path(path)
    attributes, sizes, series, state = _open(
        path,
        lambda file: _content(netCDF4.Dataset(file), path, being_written=False),
        lambda image: _content(image, path, being_written=True),
    )
    case = case_tables(attributes)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "status": attributes["sphereflow_status"],
        "state": state,
        "being_written": state == "running",
        "checkpoints": [str(file) for file in checkpoint_files(path) if file.exists()],
        "title": attributes["title"],
        "created": attributes.get("date_created"),
        "source": attributes.get("source"),
        "backend": attributes.get("sphereflow_backend"),
        "versions": attributes.get("sphereflow_versions"),
        "case_sha256": attributes["sphereflow_case_sha256"],
        "solver": case.get("solver", {}).get("kind"),
        "t_end": case.get("solver", {}).get("t_end"),
        "velocity": case.get("model", {}).get("velocity"),
        "nlat": sizes.get("lat"),
        "nlon": sizes.get("lon"),
        "heads": sizes.get("head"),
        "particles": sizes.get("particle"),
        "records": series["t"].size,
        "steps": None if (steps := _last(series["step"])) is None else int(steps),
        "t_first": _number(series["t"][:1]),
        "t_last": _last(series["t"]),
        **_ledger(series),
    }


def _content(dataset: netCDF4.Dataset, path: Path, being_written: bool):
    """Attributes, sizes of dimensions, the series of `run_summary` in complete records, and the state; closes the file."""
    with dataset:
        attributes = {name: dataset.getncattr(name) for name in dataset.ncattrs()}
        time = dataset.variables.get("t")
        _require_run(attributes, None if time is None else time.dimensions, path)
        series = {name: np.empty(0) for name in _SERIES}
        for name in series.keys() & dataset.variables.keys():
            series[name] = np.ma.filled(np.ma.asarray(dataset[name][...], dtype=float), np.nan)
        complete = _complete_records(series["t"])
        sizes = {name: dimension.size for name, dimension in dataset.dimensions.items()}
        state = state_of(attributes["sphereflow_status"], being_written)
        return attributes, sizes, {name: values[:complete] for name, values in series.items()}, state


def turnover(dissipation_integral: np.ndarray) -> float:
    """int |P| dt as resolved by the values of int P dt in records; not finite where these have overflowed."""
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.abs(np.diff(dissipation_integral))))


def _ledger(series: dict[str, np.ndarray]) -> dict[str, float | None]:
    """The conservation and energy entries of `run_summary`."""
    residual = _last(series["edi_residual"])
    dissipated = turnover(series["dissipation_integral"])
    comparable = residual is not None and 0.0 < dissipated < np.inf
    return {
        "mass_drift": _number(np.abs(series["mass"] - 1.0).max(keepdims=True, initial=0.0)[: series["mass"].size]),
        "density_min": _number(series["density_min"].min(keepdims=True, initial=np.inf)),
        "energy_first": _number(series["energy"][:1]),
        "energy_last": _last(series["energy"]),
        "weight_work": _last(series["weight_work"]),
        "dissipation_integral": _last(series["dissipation_integral"]),
        "edi_residual": residual,
        "movement_slack_min": _last(series["movement_slack_min"]),
        "edi_residual_relative": abs(residual) / dissipated if comparable else None,
    }


def _last(values: np.ndarray) -> float | None:
    return _number(values[-1:])


def _number(value: np.ndarray) -> float | None:
    """The first number of an array, or None if there is none or it is not finite."""
    return float(value[0]) if value.size and np.isfinite(value[0]) else None


def case_tables(attributes: dict) -> dict:
    """The tables of the case in the attributes of a run; empty if they hold none, as those of imported data do."""
    try:
        return tomllib.loads(attributes["sphereflow_case"])
    except (KeyError, tomllib.TOMLDecodeError, TypeError):
        return {}


def _require_run(attributes: Collection[str], time_dimensions: tuple[str, ...] | None, path: Path) -> None:
    """Refuse a file that was not written by sphereflow."""
    missing = [f"attribute {name}" for name in REQUIRED_ATTRIBUTES if name not in attributes]
    if time_dimensions != ("t",):
        missing.append("variable t(t)")
    if missing:
        raise OutputError(f"{path}: is not an output file of sphereflow: it lacks {', '.join(missing)}")


def _checked(dataset: "xr.Dataset", path: Path, being_written: bool) -> "xr.Dataset":
    """The complete records of a dataset, which is closed if it was not written by sphereflow."""
    try:
        _require_run(dataset.attrs, dataset["t"].dims if "t" in dataset.variables else None, path)
        dataset.attrs["sphereflow_state"] = state_of(dataset.attrs["sphereflow_status"], being_written)
        complete = _complete_records(dataset["t"].values)
    except BaseException:
        dataset.close()
        raise
    return dataset if complete == dataset.sizes["t"] else dataset.isel(t=slice(complete))


def _complete_records(time: np.ndarray) -> int:
    """Number of leading records whose `t`, written last, is there."""
    incomplete = ~np.isfinite(time) | (time == _UNWRITTEN)
    return int(np.argmax(incomplete)) if incomplete.any() else time.size


def _open(path: Path, from_disk, from_image):
    """Open a file from disk, or from a copy in memory while somebody writes it.

    Parameters
    ----------
    path : Path
        The file.
    from_disk : callable
        Opens a path.
    from_image : callable
        Makes the same kind of object from a netCDF4.Dataset that is held in memory.
    """
    deadline = clock.monotonic() + _PATIENCE
    while True:
        busy = _busy(path)
        try:
            return from_image(_snapshot(path)) if busy else from_disk(path)
        except _NETCDF_ERRORS as error:
            # A copy was spoilt, or a writer came between the question and the opening; else it is the file itself.
            if not (busy or _busy(path)) or clock.monotonic() > deadline:
                raise OutputError(f"{path}: {_reason(error)}") from error
        clock.sleep(_PAUSE)


def _busy(path: Path) -> bool:
    """`is_being_written` for a file that must be there."""
    require_name(path)
    if os.path.isdir(path):
        raise OutputError(f"{path}: is a folder")
    try:
        return is_being_written(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot read the file: {error.strerror}") from error


def _snapshot(path: Path) -> netCDF4.Dataset:
    """The file as it is now, copied to memory; BlockingIOError if it changed meanwhile."""
    with open(path, "rb") as file:
        before = os.fstat(file.fileno())
        image = file.read()
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise BlockingIOError(0, "the run that writes it leaves no time for a copy; try again when it has ended")
    return netCDF4.Dataset(path, memory=image)


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    if "NetCDF" in text:
        return f"is not a readable netCDF file ({text})"
    return f"cannot read the file: {text}"
