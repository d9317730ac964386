"""Compiled loops of the finite-volume transport: parabolas in the cells, their limiter, and the fluxes through the faces.

What they compute is written in `sphereflow.transport`. A task is a block of rings, so that edge values are computed once and
stay in the cache; the result does not depend on the number of threads.
"""

import numba
import numpy as np

from sphereflow.cells import row_beyond

ROWS = 16  # rings that one task works on, with row buffers of its own


@numba.njit(cache=True, error_model="numpy", inline="always")
def _limited_edges(q, left, right):
    """Edge values of the parabola of a cell with mean q >= 0, limited where the data ask for it.

    Edges that are positive as they come are only moved towards the mean so far that the parabola is not negative inside. An
    edge that comes out negative tells of a jump nearby; cut at zero it would hold back the mass of a cell whose velocity points
    through it. In proportion to -edge/q the cell then changes over to the monotone limiter, which flattens local maxima.
    """
    lowest_edge = min(left, right)
    left, right = max(left, 0.0), max(right, 0.0)
    slope = right - left
    curve = 6.0 * q - 3.0 * (left + right)
    if curve < 0.0 and abs(slope) < -curve:  # the parabola's minimum lies inside the cell
        lowest = left + (slope + curve) * (slope + curve) / (4.0 * curve)
        if lowest < 0.0:
            shrink = q / (q - lowest)
            left, right = q + shrink * (left - q), q + shrink * (right - q)
    if lowest_edge < 0.0:
        share = min(1.0, -lowest_edge / q) if q > 0.0 else 1.0
        mono_left, mono_right = left, right
        slope = right - left
        curve = 6.0 * q - 3.0 * (left + right)
        if (right - q) * (q - left) <= 0.0:
            mono_left, mono_right = q, q
        elif slope * curve > slope * slope:
            mono_left = 3.0 * q - 2.0 * right
        elif slope * curve < -slope * slope:
            mono_right = 3.0 * q - 2.0 * left
        left, right = left + share * (mono_left - left), right + share * (mono_right - right)
    return left, right


@numba.njit(cache=True, error_model="numpy")
def _limit_row(q, left, right, n):
    """Limit the edge values of the parabolas of a row of cells, in place (`_limited_edges`).

    A parabola whose edges are positive and add up to less than three times the mean is positive: rows of such cells, most of
    them as a rule, are left after that test.
    """
    doubtful = 0
    for j in range(n):
        doubtful += (min(left[j], right[j]) < 0.0) | (left[j] + right[j] > 3.0 * q[j])
    if doubtful:
        for j in range(n):
            left[j], right[j] = _limited_edges(q[j], left[j], right[j])


@numba.njit(cache=True, error_model="numpy", parallel=True)
def fluxes(
    q, u, v, weight, line_from_means, line_from_nodes, spread, east_length, south_length,
    zonal, meridional, group, ppm, diffusive, fx, fy,
):  # fmt: skip
    """Fluxes (mass per time) through the east faces, fx, and the faces between rings, fy; positive to east and south."""
    nlat, nlon = q.shape
    fy[0, :] = 0.0
    fy[nlat, :] = 0.0
    for task in numba.prange((nlat + ROWS - 1) // ROWS):
        first, end = task * ROWS, min((task + 1) * ROWS, nlat)
        rows = np.empty((12, nlon + 3))
        edge, following, north, south, before = rows[7], rows[8], rows[9], rows[10], rows[11]
        start = max(first - 1, 0)  # the southern edges of the ring before are needed as well
        if ppm:
            _meridional_edges(q, start, weight[start + 1], rows, edge)
        for i in range(start, end):
            if ppm:
                _meridional_edges(q, i + 1, weight[i + 2], rows, following)
                for j in range(nlon):
                    north[j], south[j] = edge[j], following[j]
                _limit_row(q[i], north, south, nlon)
            if i >= first:
                if ppm:
                    _zonal_fluxes(
                        i, q, u, line_from_means[i], line_from_nodes[i], spread[i], east_length[i], rows, fx[i]
                    )
                    if i > 0:
                        _ring_fluxes(before, north, v[i], south_length[i], rows, fy[i])
                else:
                    _upwind_fluxes(i, q, u, v, east_length[i], south_length[i], fx, fy)
                if diffusive:
                    _zonal_diffusion(q[i], zonal[i], group[i], fx[i])
                    for j in range(nlon if i > 0 else 0):
                        fy[i, j] -= meridional[i] * (q[i, j] - q[i - 1, j])
            edge, following = following, edge
            south, before = before, south


@numba.njit(cache=True, error_model="numpy")
def _meridional_edges(q, k, w, store, out):
    """Fourth-order edge values between rings k-1 and k, from the rings k-2 to k+1."""
    nlon = q.shape[1]
    a, b = row_beyond(q, k - 2, store[0]), row_beyond(q, k - 1, store[1])
    c, d = row_beyond(q, k, store[2]), row_beyond(q, k + 1, store[3])
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    for j in range(nlon):
        out[j] = w0 * a[j] + w1 * b[j] + w2 * c[j] + w3 * d[j]


@numba.njit(cache=True, error_model="numpy")
def _upwind_fluxes(i, q, u, v, east_length, south_length, fx, fy):
    """First-order fluxes through the east faces of ring i and the faces to its north."""
    nlon = q.shape[1]
    for j in range(nlon):
        fx[i, j] = east_length * u[i, j] * (q[i, j] if u[i, j] > 0.0 else q[i, j + 1 if j + 1 < nlon else 0])
        if i > 0:
            fy[i, j] = south_length * (q[i - 1, j] if v[i, j] > 0.0 else q[i, j]) * v[i, j]


@numba.njit(cache=True, error_model="numpy", inline="always")
def _bounded(difference, value):
    """A difference over two cells, at most 4 times the value between: corrections must vanish where there is no mass.

    Otherwise the outflow limiter would have to stop them, at a strength that depends on the time step.
    """
    return min(max(difference, -4.0 * value), 4.0 * value)


@numba.njit(cache=True, error_model="numpy")
def _ring_fluxes(above, below, v, length, rows, flux):
    """Fluxes between two rings from the upwind edge values, means over longitude, and velocities at midpoints."""
    n = len(v)
    q, w = rows[0], rows[1]  # with the neighbours of the ends
    for j in range(n):
        w[j + 1] = v[j]
        a, b = above[j], below[j]
        q[j + 1] = a if v[j] > 0.0 else b
    w[0], w[n + 1], q[0], q[n + 1] = w[n], w[1], q[n], q[1]
    for j in range(n):
        mean = w[j + 1] + (w[j] - 2.0 * w[j + 1] + w[j + 2]) * (1.0 / 24.0)
        flux[j] = length * (q[j + 1] * mean + _bounded(q[j + 2] - q[j], q[j + 1]) * (w[j + 2] - w[j]) * (1.0 / 48.0))


@numba.njit(cache=True, error_model="numpy")
def _zonal_fluxes(i, q, u, line_from_means, line_from_nodes, spread, length, rows, flux):
    """Fluxes through the east faces of ring i: means along the face in theta, and the covariance of q and u along it."""
    nlat, n = q.shape
    here, above, below = q[i], row_beyond(q, i - 1, rows[0]), row_beyond(q, i + 1, rows[1])
    a, b, c = line_from_means[0], line_from_means[1], line_from_means[2]
    d, e, f = line_from_nodes[0], line_from_nodes[1], line_from_nodes[2]
    across, row, west, east = rows[3], rows[4], rows[5], rows[6]
    for j in range(n):
        across[j] = below[j] - above[j]
        row[j + 2] = min(max(a * above[j] + b * here[j] + c * below[j], 0.0), 2.0 * here[j])
    across[n] = across[0]
    zonal_edges(row, west, east, n, True)
    up, down = row_beyond(u, i - 1, rows[0]), row_beyond(u, i + 1, rows[1])
    up_sign = -1.0 if i == 0 else 1.0  # eastward beyond the pole is westward here
    down_sign = -1.0 if i == nlat - 1 else 1.0
    mid = u[i]
    for j in range(n):
        over, under = up_sign * up[j], down_sign * down[j]
        mean = d * over + e * mid[j] + f * under
        ours, theirs = east[j], west[j + 1]
        value = ours if mid[j] > 0.0 else theirs
        slope = 0.5 * (across[j] + across[j + 1])
        flux[j] = length * (value * mean + spread * _bounded(slope, value) * (under - over))


@numba.njit(cache=True, error_model="numpy")
def zonal_edges(row, west, east, n, limited):
    """West and east edge values of the parabolas of a periodic row of n cells.

    `row` has the cells from 2 on and room for one more; its ends are filled here. `west` gets the first cell once more at n.
    """
    row[0], row[1], row[n + 2] = row[n], row[n + 1], row[2]
    for j in range(n):
        west[j] = (7.0 * (row[j + 1] + row[j + 2]) - (row[j] + row[j + 3])) * (1.0 / 12.0)
    west[n] = west[0]
    for j in range(n):
        east[j] = west[j + 1]
    if limited:
        _limit_row(row[2:], west, east, n)
        west[n] = west[0]


@numba.njit(cache=True, error_model="numpy")
def _zonal_diffusion(q, conductance, m, flux):
    """Diffusive flux between merged cells, from the difference of their means."""
    n = len(q)
    for start in range(0, n, m):
        here, there = 0.0, 0.0
        following = start + m if start + m < n else 0
        for j in range(m):
            here += q[start + j]
            there += q[following + j]
        flux[start + m - 1] -= conductance * (there - here) / m
