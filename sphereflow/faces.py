r"""From nodes to faces: derivatives and interpolation across the faces of the Gauss grid, through the poles.

A *dual edge* joins two neighbouring nodes and crosses one face. The difference of a potential over a dual edge, divided
by its length, is exactly the average of the potential's tangential derivative along that edge. The value at the face
itself follows from the averages over three successive edges by the parabola that has them:

* in longitude (equal spacing): (26 g_0 - g_- - g_+) / 24, fourth order;
* in colatitude: weights of the non-uniform Gauss nodes, third order or better; the first and last edge of a meridian run
  through the pole to the same ring half way around.

Faces are indexed as follows: `east[i, j]` lies between cells (i, j) and (i, j+1); `south[k, j]` between cells (k-1, j) and
(k, j), k = 0 and k = nlat being the poles, where normal velocities are 0.
"""

from dataclasses import dataclass
from functools import lru_cache

import numba
import numpy as np

from sphereflow.cells import row_beyond
from sphereflow.grid import GaussGrid


@dataclass(frozen=True)
class FaceGeometry:
    """Weights of the face operators of one grid; make it with `face_geometry(grid)`.

    Attributes
    ----------
    east_length : ndarray (nlat,)
        Length of the dual edges along each ring, sin(theta_i) dlon.
    south_length : ndarray (nlat + 1,)
        Length of the dual edges along a meridian; the first and last pass through a pole.
    average_weight : ndarray (nlat + 1, 3)
        Point value at face k from the averages over the edges k-1, k, k+1.
    node_weight : ndarray (nlat + 1, 4)
        Point value at face k from the nodes k-2 ... k+1 (cubic).
    """

    east_length: np.ndarray
    south_length: np.ndarray
    average_weight: np.ndarray
    node_weight: np.ndarray


@lru_cache(maxsize=16)
def face_geometry(grid: GaussGrid) -> FaceGeometry:
    """The face weights of a grid, computed once."""
    n = grid.nlat
    theta, face = grid.colatitude, grid.colatitude_face
    nodes = np.concatenate([-theta[1::-1], theta, 2 * np.pi - theta[:-3:-1]])  # nodes -2 ... n+1 of a great circle
    average, node = np.zeros((n + 1, 3)), np.zeros((n + 1, 4))
    for k in range(1, n):
        x = nodes[k : k + 4] - face[k]  # nodes k-2 ... k+1
        powers = np.arange(1, 4)
        moments = (x[1:, None] ** powers - x[:-1, None] ** powers) / (powers * np.diff(x)[:, None])
        average[k] = np.linalg.solve(moments.T, [1.0, 0.0, 0.0])
        node[k] = np.linalg.solve(np.vander(x, increasing=True).T, [1.0, 0.0, 0.0, 0.0])
    return FaceGeometry(np.sin(theta) * grid.dlon, np.diff(nodes)[1:-1], average, node)


def joined(east: np.ndarray, south: np.ndarray) -> np.ndarray:
    """Values at all faces as one vector, for sums of them; not copied if they are parts of one already."""
    whole = east.base
    if whole is not None and whole is south.base and whole.ndim == 1 and whole.size == east.size + south.size:
        return whole
    return np.concatenate([east.ravel(), south.ravel()])


def separate(values: np.ndarray, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `joined`: views of the east faces (nlat, nlon) and the faces between rings (nlat + 1, nlon)."""
    nlat, nlon = shape
    return values[: nlat * nlon].reshape(nlat, nlon), values[nlat * nlon :].reshape(nlat + 1, nlon)


def gradient_at_faces(
    grid: GaussGrid, potential: np.ndarray, mobility: np.ndarray | None, factor: float, bound: float, two_point=False
):
    """Normal velocity factor * grad(potential) / mobility at the faces.

    Parameters
    ----------
    potential : ndarray, shape (nlat, nlon)
        Scalar field at the nodes.
    mobility : ndarray, shape (nlat, nlon), or None
        Positive field; each dual edge takes the logarithmic mean of its two nodes, so that with potential = mobility the
        result is the gradient of log(mobility), number for number. None stands for 1.
    factor : float
        Multiplies the result, +1 or -1 for ascending or descending.
    bound : float
        Largest speed that the exact field can have; the reconstruction is clipped to it.
    two_point : bool
        Whether to take the average over the one edge that crosses the face for the value at the face (second order).

    Returns
    -------
    east : ndarray, shape (nlat, nlon)
    south : ndarray, shape (nlat + 1, nlon)
    """
    geometry = face_geometry(grid)
    east, south = separate(np.empty((2 * grid.nlat + 1) * grid.nlon), grid.shape)
    weighted = mobility is not None
    _gradient_at_faces(
        potential, mobility if weighted else potential, weighted, two_point, factor, bound, *_edge_arguments(geometry),
        east, south,
    )  # fmt: skip
    return east, south


def _edge_arguments(geometry: FaceGeometry):
    return geometry.east_length, geometry.south_length, geometry.average_weight


@numba.njit(cache=True, error_model="numpy", inline="always")
def _edge_average(p0, p1, b0, b1):
    """(p1 - p0) / logarithmic mean of b0, b1; the series is used where b1/b0 is near 1."""
    difference = p1 - p0
    s = (b1 - b0) / (b1 + b0)
    if abs(s) < 1e-2:  # log(b1/b0)/(b1-b0) = (2/(b1+b0)) (1 + s^2/3 + s^4/5 + ...)
        q = s * s
        return difference * (2.0 / (b1 + b0)) * (1.0 + q * (1.0 / 3.0 + q * (0.2 + q * (1.0 / 7.0 + q / 9.0))))
    return difference * np.log(b1 / b0) / (b1 - b0)


@numba.njit(cache=True, error_model="numpy")
def _edge_averages(p0, p1, b0, b1, weighted, scale, out):
    """scale times `_edge_average`, over rows."""
    for j in range(len(out)):
        out[j] = scale * (p1[j] - p0[j])
    if weighted:
        for j in range(len(out)):
            out[j] = scale * _edge_average(p0[j], p1[j], b0[j], b1[j])


@numba.njit(cache=True, parallel=True, error_model="numpy")
def _gradient_at_faces(p, b, weighted, two_point, factor, bound, east_length, south_length, weight, east, south):
    nlat, nlon = p.shape
    edges = np.empty((nlat + 1, nlon))
    for k in numba.prange(nlat + 1):
        store, m = np.empty((4, nlon)), np.int64(k)  # in signed arithmetic
        p0, p1 = row_beyond(p, m - 1, store[0]), row_beyond(p, m, store[1])
        b0, b1 = (row_beyond(b, m - 1, store[2]), row_beyond(b, m, store[3])) if weighted else (p0, p1)
        _edge_averages(p0, p1, b0, b1, weighted, factor / south_length[k], edges[k])
    for k in numba.prange(nlat + 1):
        if k == 0 or k == nlat:
            south[k, :] = 0.0
        elif two_point:
            for j in range(nlon):
                south[k, j] = min(max(edges[k, j], -bound), bound)
        else:
            above, here, below = weight[k]
            for j in range(nlon):
                u = above * edges[k - 1, j] + here * edges[k, j] + below * edges[k + 1, j]
                south[k, j] = min(max(u, -bound), bound)
    for i in numba.prange(nlat):
        g = np.empty(nlon + 2)  # with the neighbours of the ends
        _edge_averages(p[i, :-1], p[i, 1:], b[i, :-1], b[i, 1:], weighted, factor / east_length[i], g[1:nlon])
        _edge_averages(p[i, -1:], p[i, :1], b[i, -1:], b[i, :1], weighted, factor / east_length[i], g[nlon : nlon + 1])
        g[0], g[nlon + 1] = g[nlon], g[1]
        for j in range(nlon):
            u = g[j + 1] if two_point else (26.0 * g[j + 1] - g[j] - g[j + 2]) * (1.0 / 24.0)
            east[i, j] = min(max(u, -bound), bound)


def two_point_conductance(grid: GaussGrid, mobility: np.ndarray | None):
    """Face length over (distance of the two nodes times mobility), the mobility's logarithmic mean being taken.

    Times the difference of a potential this is a flux by the first-order two-point formula.

    Parameters
    ----------
    mobility : ndarray, shape (nlat, nlon), or None
        Positive, at the nodes; None stands for 1.

    Returns
    -------
    east : ndarray, shape (nlat, nlon)
    south : ndarray, shape (nlat + 1, nlon)
        0 at the poles.
    """
    geometry = face_geometry(grid)
    east = np.repeat(np.diff(grid.colatitude_face) / geometry.east_length, grid.nlon).reshape(grid.shape)
    south = np.zeros((grid.nlat + 1, grid.nlon))
    south[1:-1] = (np.sin(grid.colatitude_face) * grid.dlon / geometry.south_length)[1:-1, None]
    if mobility is not None:
        _divide_by_logarithmic_mean(mobility, east, south)
    return east, south


@numba.njit(cache=True, error_model="numpy")
def _divide_by_logarithmic_mean(b, east, south):
    nlat, nlon = b.shape
    for i in range(nlat):
        for j in range(nlon):
            following = j + 1 if j + 1 < nlon else 0
            east[i, j] *= _edge_average(0.0, 1.0, b[i, j], b[i, following])
            if i > 0:
                south[i, j] *= _edge_average(0.0, 1.0, b[i - 1, j], b[i, j])


def field_at_faces(grid: GaussGrid, field):
    """Normal components of a known vector field at the midpoints of the faces, exactly.

    Parameters
    ----------
    field : callable
        From points (..., 3) of the sphere to Cartesian vectors (..., 3), which need not be tangent.

    Returns
    -------
    east : ndarray, shape (nlat, nlon)
    south : ndarray, shape (nlat + 1, nlon)
    """
    lon, half = grid.longitude, grid.longitude + grid.dlon / 2
    zero, sine = np.zeros_like(lon), np.sin(grid.colatitude)[:, None, None]
    around = np.stack([np.cos(half), np.sin(half), zero], axis=-1)
    pole = np.array([0.0, 0.0, 1.0])
    vector = field(sine * around + grid.z[:, None, None] * pole)
    east = vector[..., 1] * np.cos(half) - vector[..., 0] * np.sin(half)
    z, s = grid.z_face[:, None, None], np.sin(grid.colatitude_face)[:, None, None]
    away = np.stack([np.cos(lon), np.sin(lon), zero], axis=-1)
    south = np.sum(field(s * away + z * pole) * (z * away - s * pole), axis=-1)
    south[[0, -1]] = 0.0
    return east, south


def vector_at_faces(grid: GaussGrid, vector: np.ndarray, bound: float):
    """Normal components at the faces of a Cartesian vector field given at the nodes.

    The three components are smooth scalars, also across the poles; each is interpolated to the face by a cubic and then
    projected on the face's normal (e_phi or e_theta).

    Parameters
    ----------
    vector : ndarray, shape (3, nlat, nlon)
        Cartesian components at the nodes; need not be tangent.
    bound : float
        Largest speed the exact field can have; the result is clipped to it.

    Returns
    -------
    east : ndarray, shape (nlat, nlon)
    south : ndarray, shape (nlat + 1, nlon)
    """
    geometry = face_geometry(grid)
    half = grid.nlon // 2
    ring = (9 * (vector + np.roll(vector, -1, -1)) - np.roll(vector, 1, -1) - np.roll(vector, -2, -1)) / 16
    lon = grid.longitude + grid.dlon / 2
    east = ring[1] * np.cos(lon) - ring[0] * np.sin(lon)
    turned = np.roll(vector, half, -1)
    extended = np.concatenate([turned[:, 1::-1], vector, turned[:, :-3:-1]], axis=1)
    stacked = np.lib.stride_tricks.sliding_window_view(extended, 4, axis=1)  # (3, nlat + 1, nlon, 4): nodes k-2 ... k+1
    meridian = np.einsum("ckjw,kw->ckj", stacked, geometry.node_weight)
    z, s = grid.z_face[:, None], np.sin(grid.colatitude_face)[:, None]
    south = z * (np.cos(grid.longitude) * meridian[0] + np.sin(grid.longitude) * meridian[1]) - s * meridian[2]
    south[[0, -1]] = 0.0
    return np.clip(east, -bound, bound), np.clip(south, -bound, bound)
