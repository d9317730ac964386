r"""Densities and tokens of a run, thinned and packed for a web page.

A density is stored in 16 bits as q = round(Q sqrt((rho - low) / (high - low))), Q = 65535, low and high the extremes of all
times, and read as low + (high - low) (q / Q)^2. As the square roots differ by at most 1 / (2 Q), the error of rho is at most

    sqrt((rho - low) (high - low)) / Q + (high - low) / (4 Q^2),

1.5e-5 of the span at its top, and less below: the square root leaves digits for the thin parts that a logarithmic colour scale
shows, and the offset leaves them for densities that are nearly uniform. A coordinate x of a token is stored as round(32767 x),
with an error of at most 1.6e-5.

Records change little from one to the next: what is compressed (zlib) are the differences of the integers to those of the record
before, modulo 2^16, all low bytes first and then all high ones, which makes a quarter of the plain integers.
"""

import base64
import zlib
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.plotting.records import check_overlay, grid_of, name_of, record_times

LEVELS = 65535
TOKEN_LEVELS = 32767
MOST_FRAMES = 300
MOST_RINGS = 128
FIELD_BYTES = 6_000_000  # compressed; a third more as text
TOKEN_BYTES = 3_600_000  # before compression: positions of many tokens hardly shrink


@dataclass(frozen=True)
class PackedDensity:
    """Densities at some records.

    Attributes
    ----------
    records : ndarray of int, shape (m,)
        Which records of the run.
    grid : GaussGrid
        The grid of the packed values, north to south.
    low, high : float
        Extremes of the packed values over all times; equal only if all values are.
    smallest : float
        The lowest density of these records on the run's own grid.
    data : str
        The compressed integers in base64.
    notes : tuple of str
        What was thinned or changed, in sentences.
    """

    records: np.ndarray
    grid: GaussGrid
    low: float
    high: float
    smallest: float
    data: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PackedTokens:
    """Tokens at some records.

    Attributes
    ----------
    records : ndarray of int, shape (m,)
        Which records of their run.
    t : ndarray, shape (m,)
        Times of these.
    index : ndarray of int, shape (n,)
        Which tokens of the run, from 0.
    weight : ndarray, shape (n,)
        Their weights.
    dimension : int
        Dimension d of the run.
    data : str
        The compressed integers, (m, n, 3), in base64: the first three coordinates, or the two and 0.
    notes : tuple of str
        What was thinned or changed, in sentences.
    """

    records: np.ndarray
    t: np.ndarray
    index: np.ndarray
    weight: np.ndarray
    dimension: int
    data: str
    notes: tuple[str, ...] = field(default=())


def spread(size: int, most: int) -> np.ndarray:
    """At most `most` of the indices 0 .. size - 1, evenly spread, the first and the last among them."""
    return np.unique(np.round(np.linspace(0, size - 1, min(size, most))).astype(int))


def pack(integers: np.ndarray) -> bytes:
    """Compress 16-bit integers; the first axis is time. See the module's notes.

    Parameters
    ----------
    integers : ndarray of uint16 or int16, shape (m, ...)
    """
    plain = np.ascontiguousarray(integers).view(np.uint16).reshape(len(integers), -1)
    change = np.diff(plain, axis=0, prepend=np.zeros_like(plain[:1])).astype("<u2", copy=False)
    return zlib.compress(change.view(np.uint8).reshape(-1, 2).T.tobytes(), 6)


def quantise(density: np.ndarray, low: float, high: float) -> np.ndarray:
    """q of the module's notes, as uint16, for densities between low and high."""
    share = (density - low) / ((high - low) or 1.0)
    return np.round(LEVELS * np.sqrt(np.clip(share, 0.0, 1.0))).astype(np.uint16)


def coarsening(fine: GaussGrid, coarse: GaussGrid) -> tuple[np.ndarray, np.ndarray]:
    """Matrices that take cell means of a grid to those of a coarser one; mass is kept exactly.

    The mean over a coarse cell is that of the piecewise constant density: rings contribute with the share of their height in
    z = cos(colatitude) that lies within, columns with that of their width.

    Returns
    -------
    rings : ndarray, shape (coarse.nlat, fine.nlat)
    columns : ndarray, shape (coarse.nlon, fine.nlon)
        The coarse means are rings @ density @ columns.T.
    """
    rings = _shares(-coarse.z_face, -fine.z_face)
    edges = [(np.arange(-grid.nlon, 2 * grid.nlon + 1) - 0.5) * grid.dlon for grid in (coarse, fine)]
    around = _shares(edges[0][coarse.nlon : 2 * coarse.nlon + 1], edges[1])
    return rings, around.reshape(coarse.nlon, 3, fine.nlon).sum(axis=1)


def _shares(coarse, fine):
    """Share of each coarse interval that each fine one covers; both given by increasing edges."""
    low = np.maximum(coarse[:-1, None], fine[None, :-1])
    high = np.minimum(coarse[1:, None], fine[None, 1:])
    return np.maximum(high - low, 0.0) / np.diff(coarse)[:, None]


def pack_density(run: xr.Dataset) -> PackedDensity:
    """Densities of a run, thinned until they fit: at most 300 records, 128 rings and 6 MB compressed.

    Raises
    ------
    CaseError
        If the run is empty, has no grid of its own or no finite density.
    """
    total = record_times(run).size
    lat, lon = grid_of(run)
    if lon.size != 2 * lat.size:
        raise CaseError(f"{name_of(run)}: the grid is {lat.size} x {lon.size}; a run's own has twice as many columns as rings")
    fine = GaussGrid(lat.size)
    grid = fine if fine.nlat <= MOST_RINGS else GaussGrid(MOST_RINGS)
    records, values, lowest = _read_density(run, spread(total, MOST_FRAMES), fine, grid)
    if not records.size:
        raise CaseError(f"{name_of(run)}: no record has a finite density")
    low, high = float(values.min()), float(values.max())
    integers = quantise(values, low, high)
    kept = np.arange(records.size)
    while len(packed := pack(integers[kept])) > FIELD_BYTES and kept.size > 2:
        kept = spread(records.size, max(2, int(0.95 * kept.size * FIELD_BYTES / len(packed))))
    notes = [_density_note(kept.size, total, fine, grid)]
    if records.size < min(total, MOST_FRAMES):
        notes.append("Records whose density is not finite are left out.")
    data = base64.b64encode(packed).decode("ascii")
    return PackedDensity(records[kept], grid, low, high, lowest, data, tuple(notes))


def _read_density(run, records, fine, grid):
    """Finite records, their densities on the packed grid, and the lowest density on the run's own."""
    rings, columns = (None, None) if grid is fine else coarsening(fine, grid)
    usable, values, lowest = [], [], np.inf
    for record in records:
        density = np.asarray(run["density"].isel(t=record).transpose("lat", "lon").values, dtype=float)
        if np.isfinite(density).all():
            usable.append(record)
            lowest = min(lowest, float(density.min()))
            values.append(density if rings is None else rings @ density @ columns.T)
    return np.array(usable, dtype=int), np.array(values), lowest


def _density_note(kept, total, fine, grid):
    records = f"all {total} records" if kept == total else f"{kept} of {total} records, evenly spread,"
    cells = f"the grid of the run, {fine.nlat} × {fine.nlon}"
    if grid is not fine:
        cells = f"{grid.nlat} × {grid.nlon} cells (means over those of the run, {fine.nlat} × {fine.nlon}; mass is kept)"
    return (
        f"Density: {records} on {cells}; 16 bits for each value, rounded by at most 1.6·10⁻⁵ of the span between the smallest "
        "and the largest density of all times, and by less where the density is small."
    )


def pack_tokens(particles: xr.Dataset, times: np.ndarray | None = None) -> tuple[PackedTokens, np.ndarray]:
    """Tokens of a run, thinned until they fit: at most 300 records, and 3.6 MB before compression.

    Parameters
    ----------
    particles : xarray.Dataset
        A run with positions.
    times : ndarray, shape (m,), optional
        Times at which they are wanted, increasing; None takes the records of the run.

    Returns
    -------
    PackedTokens
    frame : ndarray of int, shape (m,) or that of the records chosen
        For each of the times the packed record that is nearest to it, or -1 if none is near: nearer than half the larger of
        the spacings of the times and of the records.

    Raises
    ------
    CaseError
        If the run is empty, or has no tokens, or none at these times.
    """
    t = record_times(particles)
    if times is not None:
        check_overlay(particles)
    weight = _weights(particles)
    known = np.flatnonzero(np.isfinite(particles["position"][:, int(np.argmax(weight > 0)), 0].values))
    if not known.size:
        raise CaseError(f"{name_of(particles)}: holds no finite positions of tokens")
    if times is None:
        records = known[spread(known.size, MOST_FRAMES)]
        frame = np.arange(records.size)
    else:
        wanted = _nearest(t[known], times)
        chosen, frame = np.unique(known[wanted[wanted >= 0]], return_inverse=True)
        if not chosen.size:
            raise CaseError(
                f"particles: {name_of(particles)} has tokens at t = {t[known[0]]:g} to {t[known[-1]]:g}, but none near the "
                f"times of the density, {times[0]:g} to {times[-1]:g}"
            )
        records, frame = chosen, _filled(frame, wanted >= 0)
    return _packed_tokens(particles, records, weight, t.size), frame


def _nearest(t, times):
    """Index of the nearest entry of t for each time, -1 where it is too far away."""
    index = np.abs(times[:, None] - t[None, :]).argmin(axis=1)
    spacing = max((np.diff(values).max() for values in (t, times) if values.size > 1), default=0.0)
    allowed = 0.5 * spacing + 1e-9 * max(1.0, abs(times[-1]))
    return np.where(np.abs(t[index] - times) <= allowed, index, -1)


def _filled(values, where):
    out = np.full(where.shape, -1)
    out[where] = values
    return out


def _weights(particles):
    count = particles.sizes["particle"]
    return particles["particle_weight"].values if "particle_weight" in particles else np.full(count, 1 / count)


def _packed_tokens(particles, records, weight, total):
    count, dimension = particles.sizes["particle"], particles.sizes["xyz"]
    present = np.flatnonzero(weight > 0)
    index = present[spread(present.size, max(1, TOKEN_BYTES // (6 * records.size)))]
    position = np.zeros((records.size, index.size, 3))
    shown = min(dimension, 3)
    for k, record in enumerate(records):  # one record at a time: the whole may be larger than memory
        values = particles["position"].isel(t=record).transpose("particle", "xyz").values
        position[k, :, :shown] = values[index, :shown]
    integers = np.round(TOKEN_LEVELS * np.nan_to_num(position)).astype(np.int16)
    tokens = f"all {count} tokens" if index.size == count else f"{index.size} of {count} tokens, evenly picked,"
    when = f"all {total} records" if records.size == total else f"{records.size} of {total} records"
    notes = [f"Tokens: {tokens} at {when}; 16 bits for each coordinate, with an error of at most 1.6·10⁻⁵."]
    if dimension == 2:
        notes.append("The tokens live on the circle, which is drawn as the equator.")
    if dimension > 3:
        notes.append(f"The tokens have {dimension} coordinates, of which the first three are drawn: inside of the sphere.")
    data = base64.b64encode(pack(integers)).decode("ascii")
    return PackedTokens(
        records, particles["t"].values[records], index, weight[index], dimension, data, tuple(notes)
    )
