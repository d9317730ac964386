r"""The interaction kernel as a matrix of low rank, split into its positive and its negative part.

The kernel of the energy, k(x, y) = sum_h w_h (exp(x . A_h y) + exp(x . A_h^T y)) / 2, is band-limited to a degree L
that depends on |A| and a tolerance alone. In real orthonormal harmonics up to L it is a symmetric matrix

    C = \int\int Y(x) k(x, y) Y(y)^T dx dy = V diag(lambda) V^T,

two blocks in fact, of even and of odd degrees, because k(-x, -y) = k(x, y). On a grid with cell masses a rho
everything follows from the coordinates z = V^T (analysis of rho up to degree L):

    E = 1/2 sum lambda z^2,    xi = synthesis of V (lambda z),

and since analysis and synthesis on a Gauss grid are adjoint to each other, xi is the exact gradient of that E,
whatever the density. The signs of lambda are the signs of the kernel. For one symmetric matrix A = A+ - A- they are
known in closed form,

    exp(x . A y) = exp(x . A+ y) cosh(x . A- y) - exp(x . A+ y) sinh(x . A- y),

a difference of two positive semi-definite kernels (all their Taylor coefficients are positive) whose ranges are
orthogonal: the reflection of the eigenvectors of A- keeps the functions of one and reverses those of the other.
The decomposition of C finds that split, and the smallest one for any number of heads.
"""

import math
from functools import lru_cache

import numpy as np

from sphereflow.errors import NumericalError
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import degrees_and_orders, get_transform
from sphereflow.kernel import expansion_degree
from sphereflow.sampling import sampling_grid

HIGHEST_DEGREE = 64
NEGLIGIBLE = 1e-15  # of the largest eigenvalue


def real_coordinates(coefficients: np.ndarray, lmax: int) -> np.ndarray:
    """Coordinates (..., (lmax + 1)^2) in real orthonormal harmonics of complex coefficients (..., nlm)."""
    rest = math.sqrt(2) * coefficients[..., lmax + 1 :]
    return np.concatenate([coefficients[..., : lmax + 1].real, rest.real, rest.imag], axis=-1)


def complex_coefficients(coordinates: np.ndarray, lmax: int) -> np.ndarray:
    """The inverse of `real_coordinates`."""
    zonal, rest = coordinates[..., : lmax + 1], coordinates[..., lmax + 1 :] / math.sqrt(2)
    half = rest.shape[-1] // 2
    return np.concatenate([zonal, rest[..., :half] + 1j * rest[..., half:]], axis=-1)


def coordinate_degrees(lmax: int) -> np.ndarray:
    """Degree l of each real coordinate."""
    degree, _ = degrees_and_orders(lmax)
    return np.concatenate([degree, degree[lmax + 1 :]])


def kernel_degree(logits: np.ndarray, weight: np.ndarray, tolerance: float) -> int:
    """Degree that carries the kernels of all heads to `tolerance` of the smallest energy any density can have.

    By Jensen's inequality E >= 1/2 exp(M . sum_h w_h A_h M), with the mean M of the density, |M| <= 1.
    """
    radius = float(np.linalg.norm(logits, ord=2, axis=(1, 2)).max())
    mean = np.tensordot(weight, logits, 1)
    lowest = min(float(np.linalg.eigvalsh((mean + mean.T) / 2)[0]), 0.0)
    return max(expansion_degree(radius, math.log(tolerance) + lowest), 4)


def resolved_degree(nlat: int, logits: np.ndarray, weight: np.ndarray, tolerance: float) -> int:
    """`kernel_degree`, if a grid of `nlat` latitudes and this method have room for it.

    Raises
    ------
    NumericalError
        If not.
    """
    degree, room = kernel_degree(logits, weight, tolerance), min(nlat - 1, HIGHEST_DEGREE)
    if degree > room:
        size = np.linalg.norm(logits, ord=2, axis=(1, 2)).max()
        raise NumericalError(
            f"the kernel of heads of norm {size:.3g} needs harmonics up to degree {degree} at model.tolerance = "
            f"{tolerance:g}, but minimising movements on {nlat} latitudes go up to {room}; use a larger grid.nlat (up "
            f'to {HIGHEST_DEGREE + 2}), a larger model.tolerance, smaller heads, or solver.kind = "finite-volume"'
        )
    return degree


@lru_cache(maxsize=4)
def _weighted_harmonics(degree: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """For even and odd degrees: places among the coordinates, and Y times quadrature weight at the northern nodes."""
    sampling = sampling_grid(degree)
    unit = complex_coefficients(np.eye((degree + 1) ** 2), degree)
    values = get_transform(sampling.nlat, degree, "ducc0").synthesis(unit)  # (coordinates, nlat, nlon)
    north = (values * sampling.area)[:, : sampling.nlat // 2].reshape(len(unit), -1)
    parity = coordinate_degrees(degree) % 2
    return tuple((np.flatnonzero(parity == p), np.ascontiguousarray(north[parity == p])) for p in (0, 1))


def kernel_blocks(logits: np.ndarray, weight: np.ndarray, degree: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The matrix C by quadrature on the sampling grid: places and block, for the even and for the odd degrees."""
    north = sampling_grid(degree).north
    same, opposite = np.zeros((2, len(north), len(north)))  # k(x, y) and k(x, -y)
    for w, matrix in zip(weight, logits, strict=True):
        value = np.exp(north @ matrix @ north.T)
        same += w * value
        opposite += w / value
    blocks = []
    for sign, (index, harmonics) in zip((1, -1), _weighted_harmonics(degree), strict=True):
        block = 2 * harmonics @ (same + sign * opposite) @ harmonics.T  # the southern half doubles the northern
        blocks.append((index, (block + block.T) / 2))
    return blocks


class KernelSpectrum:
    """The energy of one set of heads on one grid, through the eigenvectors of its kernel.

    Eigenvalues of either sign are kept, those below `NEGLIGIBLE` of the largest are not: they are rounding.

    Parameters
    ----------
    grid : GaussGrid
    logits : ndarray, shape (H, 3, 3)
    weight : ndarray, shape (H,)
    tolerance : float
        Relative accuracy of the kernel.
    backend, nthreads : see `get_transform`.

    Attributes
    ----------
    degree : int
    eigenvalue : ndarray, shape (r,)
        The eigenvalues lambda that are not negligible.

    Raises
    ------
    NumericalError
        If the kernel is narrower than the grid or than this method is made for.
    """

    def __init__(self, grid: GaussGrid, logits, weight, tolerance: float, backend: str = "auto", nthreads: int = 1):
        self.grid, self.logits, self.weight = grid, np.array(logits), np.array(weight)
        self.degree = resolved_degree(grid.nlat, self.logits, self.weight, tolerance)
        self._transform = get_transform(grid.nlat, self.degree, backend, nthreads)
        index, values, vectors = [], [], []
        for positions, block in kernel_blocks(self.logits, self.weight, self.degree):
            value, vector = np.linalg.eigh(block)
            index.append(positions)
            values.append(value)
            vectors.append(vector)
        largest = max(np.abs(value).max() for value in values)
        keep = [np.abs(value) > NEGLIGIBLE * largest for value in values]
        self._blocks = [(i, np.ascontiguousarray(v[:, k])) for i, v, k in zip(index, vectors, keep, strict=True)]
        self.eigenvalue = np.concatenate([value[k] for value, k in zip(values, keep, strict=True)])

    def coordinates(self, density: np.ndarray) -> np.ndarray:
        """z = V^T (coefficients of the density), shape (r,)."""
        q = real_coordinates(self._transform.analysis(density), self.degree)
        return np.concatenate([q[index] @ vectors for index, vectors in self._blocks])

    def field(self, z: np.ndarray) -> np.ndarray:
        """The function V z at the nodes, (nlat, nlon): the adjoint of `coordinates` with respect to cell areas."""
        q, start = np.empty((self.degree + 1) ** 2), 0
        for index, vectors in self._blocks:
            q[index] = vectors @ z[start : start + vectors.shape[1]]
            start += vectors.shape[1]
        return self._transform.synthesis(complex_coefficients(q, self.degree))

    def energy(self, z: np.ndarray) -> float:
        """E of a density with coordinates z."""
        return 0.5 * float(self.eigenvalue @ z**2)

    def first_variation(self, z: np.ndarray) -> np.ndarray:
        """xi = dE/drho at the nodes."""
        return self.field(self.eigenvalue * z)
