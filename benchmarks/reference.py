"""The transport scheme of `sphereflow.transport` once more, in plain vectorised numpy.

It is what the compiled loops are measured against, and checked with: both give the same tendency to rounding. Only `ppm` and
no diffusion. The tables of the grid (weights, lengths, groups) are those of a `Transport`.
"""

import numpy as np

from sphereflow.transport import TRIGONOMETRIC_GROUPS, Transport


def tendency(mover: Transport, q: np.ndarray, u: np.ndarray, v: np.ndarray, dt: float) -> np.ndarray:
    """What `Transport.tendency` returns."""
    east, south = _fluxes(mover, q, u, v)
    east, south = _limited_outflow(mover, q, east, south, dt)
    out = -(east - np.roll(east, 1, axis=1) + south[1:] - south[:-1]) / mover.grid.cell_area[:, None]
    return _regrouped(mover, out, False)


def reconcile(mover: Transport, q: np.ndarray) -> np.ndarray:
    """What `Transport.reconcile` returns."""
    return _regrouped(mover, q, True)


def stage(mover: Transport, q: np.ndarray, u: np.ndarray, v: np.ndarray, dt: float) -> np.ndarray:
    """A forward Euler stage."""
    return reconcile(mover, q + dt * tendency(mover, q, u, v, dt))


def _through_poles(field: np.ndarray, rings: int, sign: float = 1.0) -> np.ndarray:
    """A field with `rings` more rows beyond each pole: the meridians on the other side."""
    turned = sign * np.roll(field, field.shape[1] // 2, axis=1)
    return np.concatenate([turned[rings - 1 :: -1] if rings > 1 else turned[:1], field, turned[: -rings - 1 : -1]])


def _limited_edges(q, left, right):
    lowest_edge = np.minimum(left, right)
    left, right = np.maximum(left, 0.0), np.maximum(right, 0.0)
    slope, curve = right - left, 6 * q - 3 * (left + right)
    inside = (curve < 0) & (np.abs(slope) < -curve)
    lowest = left + np.divide((slope + curve) ** 2, 4 * curve, out=np.zeros_like(q), where=inside)
    below = inside & (lowest < 0)
    shrink = np.divide(q, q - lowest, out=np.ones_like(q), where=below)
    left, right = q + shrink * (left - q), q + shrink * (right - q)
    slope, curve = right - left, 6 * q - 3 * (left + right)
    extremum = (right - q) * (q - left) <= 0
    steep_left = ~extremum & (slope * curve > slope**2)
    steep_right = ~extremum & (slope * curve < -(slope**2))
    mono_left = np.where(extremum, q, np.where(steep_left, 3 * q - 2 * right, left))
    mono_right = np.where(extremum, q, np.where(steep_right, 3 * q - 2 * left, right))
    share = np.minimum(1.0, np.divide(-lowest_edge, q, out=np.ones_like(q), where=q > 0))
    share = np.where(lowest_edge < 0, share, 0.0)
    return left + share * (mono_left - left), right + share * (mono_right - right)


def _zonal_edges(q, limited=True):
    west = (7 * (np.roll(q, 1, axis=-1) + q) - (np.roll(q, 2, axis=-1) + np.roll(q, -1, axis=-1))) / 12
    east = np.roll(west, -1, axis=-1)
    return _limited_edges(q, west, east) if limited else (west, east)


def _bounded(difference, value):
    return np.clip(difference, -4 * value, 4 * value)


def _fluxes(mover, q, u, v):
    """Mass per time through the east faces and through the faces between rings."""
    east_length, south_length = mover._lengths
    from_means, from_nodes, spread = mover._line_weights
    wide = _through_poles(q, 2)
    weight = mover._edge_weight[1:-1, :, None]
    edges = sum(weight[:, k] * wide[k : k + q.shape[0] + 1] for k in range(4))
    north, south = _limited_edges(q, edges[:-1], edges[1:])

    above, below = wide[1:-3], wide[3:-1]
    row = sum(from_means[:, k, None] * part for k, part in enumerate((above, q, below)))
    west, east = _zonal_edges(np.minimum(np.maximum(row, 0.0), 2 * q))
    faster = _through_poles(u, 1, -1.0)  # eastward beyond the pole is westward here
    mean = sum(from_nodes[:, k, None] * faster[k : k + q.shape[0]] for k in range(3))
    value = np.where(u > 0, east, np.roll(west, -1, axis=1))
    across = below - above
    slope = 0.5 * (across + np.roll(across, -1, axis=1))
    covariance = spread[:, None] * _bounded(slope, value) * (faster[2:] - faster[:-2])
    flux_east = east_length[:, None] * (value * mean + covariance)

    flux_south = np.zeros_like(v)
    inner = v[1:-1]
    upwind = np.where(inner > 0, south[:-1], north[1:])
    before, after = np.roll(inner, 1, axis=1), np.roll(inner, -1, axis=1)
    mean = inner + (before - 2 * inner + after) / 24
    change = _bounded(np.roll(upwind, -1, axis=1) - np.roll(upwind, 1, axis=1), upwind)
    flux_south[1:-1] = south_length[1:-1, None] * (upwind * mean + change * (after - before) / 48)
    return flux_east, flux_south


def _groups(mover):
    """Group sizes and the rings that have them."""
    for m in np.unique(mover.group_size):
        yield int(m), np.flatnonzero(mover.group_size == m)


def _limited_outflow(mover, q, east, south, dt):
    keep = np.ones_like(q)
    leaving_south = np.maximum(south[1:], 0.0) + np.maximum(-south[:-1], 0.0)
    for m, rings in _groups(mover):
        grouped = (len(rings), -1, m)
        last = east[rings].reshape(grouped)[..., -1]
        leaving = np.maximum(last, 0.0) + np.maximum(-np.roll(last, 1, axis=1), 0.0)
        leaving = leaving + leaving_south[rings].reshape(grouped).sum(axis=-1)
        mass = np.maximum(q[rings].reshape(grouped).sum(axis=-1), 0.0) * mover.grid.cell_area[rings, None]
        over = leaving * dt > mass
        share = np.divide(mass, leaving * dt, out=np.ones_like(mass), where=over)
        keep[rings] = np.repeat(share, m, axis=1)
    east = east * np.where(east > 0, keep, np.roll(keep, -1, axis=1))
    south = south.copy()
    south[1:-1] *= np.where(south[1:-1] > 0, keep[:-1], keep[1:])
    return east, south


def _regrouped(mover, q, limited):
    """Group means, spread over their cells."""
    out = q.copy()
    for m, rings in _groups(mover):
        if m > 1:
            mean = q[rings].reshape(len(rings), -1, m).mean(axis=-1)
            few = mean.shape[1] <= TRIGONOMETRIC_GROUPS
            spread = _trigonometric if few else _parabolic
            out[rings] = spread(mover, rings, mean, m, limited).reshape(len(rings), -1)
    return out


def _trigonometric(mover, rings, mean, m, limited):
    n = mean.shape[1]
    kernel = mover._polar_spread[np.minimum(rings, mover.grid.nlat - 1 - rings)][:, :n, :m]
    shifted = mean[:, (np.arange(n)[:, None] + np.arange(n)) % n]
    out = np.einsum("rdj,rgd->rgj", kernel, shifted)
    if not limited:
        return out
    lowest, full = out.min(axis=-1), mean > 0
    shrink = np.divide(mean, mean - lowest, out=np.zeros_like(mean), where=full)
    shrink = np.where(lowest < 0, shrink, 1.0)
    return mean[..., None] + shrink[..., None] * (out - mean[..., None])


def _parabolic(_mover, _rings, mean, m, limited):
    west, east = _zonal_edges(mean, limited)
    slope, curve = (east - west)[..., None], (6 * mean - 3 * (west + east))[..., None]
    x = (2 * np.arange(m) + 1) / (2 * m)
    return west[..., None] + (slope + curve) * x - curve * (x * x + 1 / (12 * m * m))
