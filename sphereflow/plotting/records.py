"""What a picture reads of a run: which records, the grid, densities and tokens of single records, what became of the run.

A run may be larger than memory: everything here reads the records it is asked for and nothing else.
"""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xarray as xr

from sphereflow.errors import CaseError
from sphereflow.storage import open_run
from sphereflow.storage.importers import FOREIGN, read_foreign
from sphereflow.storage.reader import case_tables, state_of

CHOSEN = 4  # records of a page, unless told
MOST = 48  # records that still make a readable page
SAME_TIME = 1e-9  # relative


def name_of(run: xr.Dataset) -> str:
    """The file of a run, or "the run" if it comes from no file."""
    return str(run.encoding.get("source", "the run"))


def record_times(run: xr.Dataset) -> np.ndarray:
    """Flow times of the records, shape (m,).

    Raises
    ------
    CaseError
        If the run holds no record, is none, or is an ensemble of several.
    """
    if "t" not in run.variables or run["t"].dims != ("t",):
        raise CaseError(f"{name_of(run)}: has no variable t(t); open it with sphereflow.open_run")
    if run.sizes["t"] == 0:
        raise CaseError(f"{name_of(run)}: holds no record yet, so there is nothing to draw")
    for name in {"density", "position", "energy"} & set(run.data_vars):
        if several := [str(dim) for dim in run[name].dims if dim not in ("t", "lat", "lon", "particle", "xyz")]:
            choice = ", ".join(f"{dim}=0" for dim in several)
            raise CaseError(f"{name_of(run)}: holds several runs along {', '.join(several)}; choose one with .isel({choice})")
    return np.asarray(run["t"].values, dtype=float)


def nearest_records(run: xr.Dataset, times) -> list[int]:
    """Indices of the records nearest to some times, in the order of the times, each once.

    Raises
    ------
    CaseError
        If there is no time, or one lies outside of the records.
    """
    t = record_times(run)
    slack = SAME_TIME * max(abs(t[0]), abs(t[-1]))
    for time in times:
        if not t[0] - slack <= time <= t[-1] + slack:
            covered = f"the one record is at t = {t[0]:g}" if t.size == 1 else f"the records cover {t[0]:g} to {t[-1]:g}"
            raise CaseError(f"{name_of(run)}: there is no time {time:g}; {covered}")
    if not len(times):
        raise CaseError("times: names no time")
    return list(dict.fromkeys(int(np.argmin(np.abs(t - time))) for time in times))


def telling_records(run: xr.Dataset, count: int = CHOSEN) -> list[int]:
    """Records that show a run in few pictures: the first, the last, and some at equal ways between.

    The way is the length of the run's path in the metric, int G dt; if it is not recorded, or nothing moves, the time.

    Parameters
    ----------
    count : int
        Number of records, at most that of the run.
    """
    t = record_times(run)
    usable = _with_tokens(run, t.size)
    way = t
    if "metric_speed_squared" in run:
        speed = np.sqrt(np.maximum(run["metric_speed_squared"].values, 0.0))
        length = np.concatenate([[0.0], np.cumsum(np.diff(t) * (speed[1:] + speed[:-1]) / 2)])
        if np.isfinite(length[-1]) and length[-1] > 0:
            way = length
    way = way[usable]
    wanted = np.linspace(way[0], way[-1], min(count, way.size))
    found = [int(np.argmin(np.abs(way - w))) for w in wanted]
    found[-1] = way.size - 1  # the end, even if nothing has moved for long
    for k in range(1, len(found)):  # equal ways may fall on one record: take the next
        found[k] = max(found[k], found[k - 1] + 1)
    for k in range(len(found) - 1, -1, -1):
        found[k] = min(found[k], way.size - len(found) + k)
    return [int(usable[k]) for k in found]


def _with_tokens(run, size):
    """Records that hold a state: all, but for imported data, where tokens may be known at some times only."""
    if "position" not in run or "sphereflow_import" not in run.attrs:
        return np.arange(size)
    known = np.flatnonzero(np.isfinite(run["position"][:, 0, 0].values))
    return known if known.size else np.arange(size)


def chosen_records(run: xr.Dataset, times) -> list[int]:
    """Records of a page: those nearest to `times`, or telling ones if that is None.

    Raises
    ------
    CaseError
        If a time lies outside of the records, or there are more than a page can hold.
    """
    if times is None:
        return telling_records(run)
    found = nearest_records(run, times)
    if len(found) > MOST:
        raise CaseError(f"times: {len(found)} times are too many for a page, which holds {MOST}; animate shows more")
    return found


def grid_of(run: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes, north to south, and longitudes of the nodes of a run, degrees.

    Raises
    ------
    CaseError
        If the data are not on a grid that goes around the sphere, such as a region cut out of a run.
    """
    lat, lon = (np.asarray(run[name].values, dtype=float) for name in ("lat", "lon"))
    whole = lat.size > 1 and lon.size > 2 and np.all(np.diff(lat) < 0) and np.all(np.diff(lon) > 0)
    spacing = 360.0 / lon.size
    if not (whole and np.allclose(np.diff(lon), spacing, rtol=0, atol=1e-6) and abs(lat).max() < 90):
        raise CaseError(
            f"{name_of(run)}: the grid must cover the sphere, lat from north to south and lon evenly around the circle, as in "
            "a run's own file"
        )
    return lat, lon


def field(run: xr.Dataset, name: str, record: int) -> np.ndarray:
    """A field at one record, shape (nlat, nlon)."""
    return np.asarray(run[name].isel(t=record).transpose("lat", "lon").values, dtype=float)


def tokens(run: xr.Dataset, record: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n, d) and weights (n,) of the tokens at one record; tokens without weight are left out.

    Raises
    ------
    CaseError
        If the record has no positions.
    """
    position = np.asarray(run["position"].isel(t=record).transpose("particle", "xyz").values, dtype=float)
    count = len(position)
    weight = np.asarray(run["particle_weight"].values, float) if "particle_weight" in run else np.full(count, 1 / count)
    present = weight > 0
    if not np.isfinite(position[present]).all():
        time = float(run["t"][record])
        known = run["t"].values[np.isfinite(run["position"][:, 0, 0].values)]
        where = f"only at t = {', '.join(f'{t:g}' for t in known)}" if 0 < known.size <= 6 else f"at {known.size} records only"
        raise CaseError(f"{name_of(run)}: has no positions of the tokens at t = {time:g}, but {where}")
    return position[present], weight[present]


def overlay_tokens(particles: xr.Dataset, time: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of another run at a time, as from `tokens`.

    Raises
    ------
    CaseError
        If that run has no tokens of S^2, or none at that time.
    """
    check_overlay(particles)
    return tokens(particles, nearest_records(particles, [time])[0])


@contextmanager
def open_tokens(path):
    """Open a run of tokens to lay over a density, for the body of a with statement.

    Parameters
    ----------
    path : path-like
        An output file of sphereflow, or data of others as `sphereflow.storage.importers.read_foreign` takes them.

    Yields
    ------
    xarray.Dataset
        With `position` and `particle_weight` where the data have tokens.

    Raises
    ------
    CaseError, OutputError
        If the file cannot be read.
    """
    if Path(path).suffix not in FOREIGN:
        with open_run(path) as run:
            yield run
        return
    data = read_foreign(path)
    run = xr.Dataset(coords={"t": data.t}, attrs={"sphereflow_import": "{}"})
    if data.position is not None:
        run["position"] = ("t", "particle", "xyz"), data.position
        run["particle_weight"] = "particle", data.weight
    run.encoding["source"] = str(path)
    yield run


def check_overlay(particles: xr.Dataset) -> None:
    """Refuse what has no tokens of S^2 to lay over a density."""
    if "position" not in particles:
        raise CaseError(
            f"particles: {name_of(particles)} holds no positions of tokens; it must be a run with solver.kind = "
            '"particles" and output.fields = ["position"]'
        )
    dimension = particles.sizes["xyz"]
    if dimension != 3:
        raise CaseError(f"particles: the tokens of {name_of(particles)} have dimension {dimension}; a density has 3")


def state_note(run: xr.Dataset) -> str | None:
    """What a reader of a picture must know of a run that is not complete, in words; None if there is nothing."""
    status = str(run.attrs.get("sphereflow_status", "complete"))
    state = run.attrs.get("sphereflow_state") or state_of(status, being_written=False)
    if state == "complete":
        return None if status == "complete" else status
    t = record_times(run)
    end = case_tables(run.attrs).get("solver", {}).get("t_end")
    reached = f"{t.size} record{'s' * (t.size != 1)}, up to t = {t[-1]:g}" + (f" of {end:g}" if end is not None else "")
    reason = status.partition(": ")[2] if state == "failed" else ""
    return f"{state}: {reached}" + (f" ({reason})" if reason else "")


def provenance(run: xr.Dataset) -> str:
    """One line on where a picture comes from: the program, the day, the case."""
    parts = [run.attrs.get("source"), str(run.attrs.get("date_created", ""))[:10]]
    if digest := run.attrs.get("sphereflow_case_sha256"):
        parts.append(f"case {digest[:12]}")
    return " · ".join(str(part) for part in parts if part)
