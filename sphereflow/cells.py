r"""Between cell means, which the finite volumes evolve, and node values, which the transforms integrate.

The two differ by h^2/24 times second derivatives (and by the node's distance from the cell's centre). Treating one as the other
would be a second-order error in every moment of the density; a three-point parabola in each direction, the meridional one
running through the poles and weighted with the cells' areas, removes it:

* in longitude   value = mean - (second difference of means) / 24,   mean = value + (second difference of values) / 24;
* in colatitude  weights of rings i-1, i, i+1 that are exact for parabolas in theta.

Both maps are linear, keep constants, and are shifted by a constant so that they keep the total mass to round-off.
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
def _weights(grid: GaussGrid) -> tuple[np.ndarray, np.ndarray]:
    """Weights (nlat, 3) of rings i-1, i, i+1 for the value at node i from means, and for the mean of cell i from values."""
    theta, faces = grid.colatitude, extended_faces(grid, 1)
    nodes = np.concatenate([-theta[:1], theta, 2 * np.pi - theta[-1:]])
    powers = np.arange(3)
    value, mean = np.empty((grid.nlat, 3)), np.empty((grid.nlat, 3))
    for i in range(grid.nlat):
        moments = area_weighted_moments(faces[i : i + 4], powers, theta[i])
        value[i] = np.linalg.solve(moments.T, [1.0, 0.0, 0.0])
        at_nodes = (nodes[i : i + 3, None] - theta[i]) ** powers
        mean[i] = np.linalg.solve(at_nodes.T, moments[1])
    return value, mean


def node_values(grid: GaussGrid, means: np.ndarray) -> np.ndarray:
    """Values at the nodes of a field (nlat, nlon) given by cell means; may be slightly negative at steep edges."""
    return _converted(grid, means, _weights(grid)[0], -1.0)


def cell_means(grid: GaussGrid, values: np.ndarray) -> np.ndarray:
    """Cell means of a field (nlat, nlon) given at the nodes; non-negative if the values are, and of the same mass."""
    out = _converted(grid, values, _weights(grid)[1], 1.0)
    if values.min() >= 0 > out.min():
        np.maximum(out, 0.0, out=out)
        out *= grid.integrate(values) / grid.integrate(out)
    return out


def _converted(grid, field, weight, sign):
    out = np.empty(grid.shape)
    _three_point(field, weight, sign / 24.0, out)
    out += grid.integrate(field - out) / (4 * np.pi)
    return out


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _three_point(q, weight, zonal, out):
    """The meridional weights and 1 + zonal * (second difference in longitude), one after the other."""
    nlat, nlon = q.shape
    half = nlon // 2
    for i in numba.prange(nlat):
        a, b, c = weight[i]
        row = np.empty(nlon)
        for j in range(nlon):
            opposite = j + half if j < half else j - half
            north = q[i - 1, j] if i > 0 else q[0, opposite]
            south = q[i + 1, j] if i + 1 < nlat else q[nlat - 1, opposite]
            row[j] = a * north + b * q[i, j] + c * south
        out[i, 0] = row[0] + zonal * (row[nlon - 1] - 2.0 * row[0] + row[1])
        for j in range(1, nlon - 1):
            out[i, j] = row[j] + zonal * (row[j - 1] - 2.0 * row[j] + row[j + 1])
        out[i, nlon - 1] = row[nlon - 1] + zonal * (row[nlon - 2] - 2.0 * row[nlon - 1] + row[0])
