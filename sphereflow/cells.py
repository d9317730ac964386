r"""Between cell means, which the finite volumes evolve, and node values, which the transforms integrate.

The two differ by h^2/24 times second derivatives (and by the node's distance from the cell's centre). Treating one as the other
would be a second-order error in every moment of the density. The conversion is done in conservation form, so that it keeps the
mass of every neighbourhood even for a cluster of one cell:

* in longitude   value = mean - (second difference of means) / 24,   mean = value + (second difference of values) / 24;
* in colatitude  w_i (value_i - mean_i) = G_{i+1/2} - G_{i-1/2} with the Gauss weights w.

For a function f, G_{i+1/2} is the error of the Gauss rule cut off at that face, sum_{k<=i} w_k (f_k - mean_k). It is
approximated by alpha (difference across the face) + beta (difference of the differences on either side), with the coefficients
that make it exact for cos(theta) and sin(theta): locally all parabolas, also through the poles, where a meridian continues on
the opposite one. Constants are kept.
"""

from functools import lru_cache

import numba
import numpy as np
from scipy.special import roots_legendre

from sphereflow.grid import GaussGrid


def area_weighted_moments(faces: np.ndarray, powers: np.ndarray, origin: float) -> np.ndarray:
    """Area means of (theta - origin)^p over the cells between faces along a meridian, shape (cells, powers).

    The area weight is |sin theta|: a meridian continued through a pole has colatitudes below 0 or beyond pi.
    """
    node, weight = roots_legendre(8)
    half = np.diff(faces)[:, None] / 2
    theta = faces[:-1, None] + half * (1 + node)
    area = weight * np.abs(np.sin(theta))
    moments = np.einsum("cg,cgp->cp", area, (theta[..., None] - origin) ** powers)
    return moments / area.sum(axis=1)[:, None]


def extended_faces(grid: GaussGrid, rings: int) -> np.ndarray:
    """Colatitudes of the faces along a meridian continued `rings` rings beyond either pole."""
    face = grid.colatitude_face
    return np.concatenate([-face[rings:0:-1], face, 2 * np.pi - face[-2 : -rings - 2 : -1]])


@lru_cache(maxsize=16)
def _flux_weights(grid: GaussGrid) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (nlat + 1, 2), alpha and beta of G, for cell means and for node values.

    Face k takes q_k - q_{k-1} and (q_{k+1} - q_k) - (q_{k-1} - q_{k-2}) along the continued meridian. At a pole face G is odd
    under a half turn: there only sin(theta) counts, and beta is 0.
    """
    n, theta = grid.nlat, grid.colatitude
    faces = extended_faces(grid, 2)
    nodes = np.concatenate([-theta[1::-1], theta, 2 * np.pi - theta[:-3:-1]])
    half = np.diff(faces)[:, None] / 2
    gauss, gauss_weight = roots_legendre(8)
    inside = faces[:-1, None] + half * (1 + gauss)
    area = gauss_weight * np.abs(np.sin(inside))
    area /= area.sum(axis=1)[:, None]
    means = np.array([(area * f(inside)).sum(axis=1) for f in (np.cos, np.sin)])
    values = np.array([f(nodes) for f in (np.cos, np.sin)])
    exact = np.zeros((2, n + 1))
    np.cumsum(grid.weight * (values - means)[:, 2:-2], axis=1, out=exact[:, 1:])
    exact[1] -= exact[1, n // 2]  # sin(theta) mirrors at the equator, where its G must vanish
    out = []
    for data in (means, values):
        difference = np.diff(data, axis=1)
        weights = np.zeros((n + 1, 2))
        for k in range(1, n):
            across, around = difference[:, k + 1], difference[:, k + 2] - difference[:, k]
            weights[k] = np.linalg.solve(np.column_stack([across, around]), exact[:, k])
        for k in (0, n):
            weights[k, 0] = exact[1, k] / difference[1, k + 1]
        out.append(weights)
    return out[0], out[1]


def node_values(grid: GaussGrid, means: np.ndarray) -> np.ndarray:
    """Values at the nodes of a field (nlat, nlon) given by cell means; may be slightly negative at steep edges."""
    out = np.empty(grid.shape)
    _convert(means, _flux_weights(grid)[0], 1.0, grid.weight, out)
    return out


def cell_means(grid: GaussGrid, values: np.ndarray) -> np.ndarray:
    """Cell means of a field (nlat, nlon) given at the nodes; non-negative if the values are, and of the same mass."""
    out = np.empty(grid.shape)
    _convert(values, _flux_weights(grid)[1], -1.0, grid.weight, out)
    if values.min() >= 0 > out.min():
        np.maximum(out, 0.0, out=out)
        out *= grid.integrate(values) / grid.integrate(out)
    return out


@numba.njit(cache=True, error_model="numpy")
def row_beyond(q, i, out):
    """Row i of a field continued through the poles: on the other side the meridians half a turn away, written to `out`."""
    nlat, nlon = q.shape
    half = nlon // 2
    if i < 0:
        for j in range(half):
            out[j], out[half + j] = q[-1 - i, half + j], q[-1 - i, j]
    elif i >= nlat:
        for j in range(half):
            out[j], out[half + j] = q[2 * nlat - 1 - i, half + j], q[2 * nlat - 1 - i, j]
    else:
        return q[i]
    return out


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _convert(q, weight, sign, gauss, out):
    """q + sign (G_south - G_north) / w in colatitude, then 1 - sign (second difference) / 24 in longitude."""
    nlat, nlon = q.shape
    flux = np.empty((nlat + 1, nlon))
    for k in numba.prange(nlat + 1):
        alpha, beta = weight[k]
        store, m = np.empty((4, nlon)), np.int64(k)  # in signed arithmetic
        a, b = row_beyond(q, m - 2, store[0]), row_beyond(q, m - 1, store[1])
        c, d = row_beyond(q, m, store[2]), row_beyond(q, m + 1, store[3])
        for j in range(nlon):
            flux[k, j] = alpha * (c[j] - b[j]) + beta * ((d[j] - c[j]) - (b[j] - a[j]))
    share = sign / 24.0
    for i in numba.prange(nlat):
        scale = sign / gauss[i]
        row = np.empty(nlon + 2)  # with the neighbours of the ends
        for j in range(nlon):
            row[j + 1] = q[i, j] + scale * (flux[i + 1, j] - flux[i, j])
        row[0], row[nlon + 1] = row[nlon], row[1]
        for j in range(nlon):
            out[i, j] = row[j + 1] - share * (row[j] - 2.0 * row[j + 1] + row[j + 2])
