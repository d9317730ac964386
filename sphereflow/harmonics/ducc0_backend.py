"""Transforms by ducc0 (wheels everywhere, any grid size), with Legendre sums by matrix products.

ducc0's own scalar transforms are not used: their last digits depend on where in memory ducc0's tables happen to lie, in about
one of 1,000 calls, on grids of any size and in both directions, which breaks runs that must be resumed bit for bit. (Most
probably the loop that makes the recurrence coefficients of one order m is compiled twice, for tables that lie apart and for
tables that seem to overlap, and only one of the two contracts products and sums.) Its Fourier transforms and its transforms
of spin 1 have no such loop.

A Legendre sum of order m is a product with the matrix of the P_lm at the northern nodes, for even and odd l - m apart:
P_lm(pi - theta) = (-1)^(l + m) P_lm(theta). The matrices take 2 (lmax + 1)^2 nlat bytes, 34 MB for 256 latitudes and all
degrees. Where they would take more than `LARGEST_TABLE`, beyond 600 latitudes and all degrees, ducc0's own transforms serve.
"""

import ducc0
import numpy as np

from sphereflow.grid import gauss_nodes

POINT_ACCURACY = 1e-13  # of transforms at scattered points; ducc0 offers down to 3e-14
LARGEST_TABLE = 2**29  # bytes
ORDERS_AT_ONCE = 32  # whose matrices are padded to the same number of degrees


def point_coefficients(angles: np.ndarray, weights: np.ndarray, lmax: int) -> np.ndarray:
    """Coefficients sum_j weights_j conj(Y_lm(angles_j)), shape (nlm,), of point masses.

    By one thread: more would add up the points in an order that depends on their number.

    Parameters
    ----------
    angles : ndarray, shape (n, 2)
        Colatitudes and longitudes, radians.
    weights : ndarray, shape (n,)
    lmax : int
        Largest degree.
    """
    return ducc0.sht.adjoint_synthesis_general(
        map=weights[None], loc=angles, spin=0, lmax=lmax, mmax=lmax, epsilon=POINT_ACCURACY, nthreads=1
    )[0]


class Ducc0Transform:
    """`HarmonicTransform` by ducc0; see `sphereflow.harmonics` for the conventions."""

    name = "ducc0"

    def __init__(self, nlat: int, lmax: int, nthreads: int = 1):
        self.nlat, self.nlon, self.lmax = nlat, 2 * nlat, lmax
        self._options = dict(lmax=lmax, mmax=lmax, geometry="GL", nthreads=nthreads)
        self._legendre = LegendreSums(nlat, lmax) if 2 * (lmax + 1) ** 2 * nlat <= LARGEST_TABLE else None

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (..., nlm) of fields (..., nlat, nlon)."""
        fields = np.ascontiguousarray(values, dtype=float).reshape(-1, self.nlat, self.nlon)
        if self._legendre is None:
            out = np.array([ducc0.sht.analysis_2d(map=one[None], spin=0, **self._options)[0] for one in fields])
        else:
            waves = ducc0.fft.r2c(fields, axes=[2], nthreads=self._options["nthreads"])
            out = self._legendre.analysis(waves[..., : self.lmax + 1])
        return out.reshape(*values.shape[:-2], -1)

    def synthesis(self, coefficients: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) of coefficients (..., nlm)."""
        shape = (*coefficients.shape[:-1], self.nlat, self.nlon)
        if self._legendre is None:
            return self._synthesis(coefficients, 1, spin=0).reshape(shape)
        stack = np.asarray(coefficients, dtype=complex).reshape(-1, coefficients.shape[-1])
        waves = np.zeros((len(stack), self.nlat, self.nlat + 1), complex)
        waves[..., : self.lmax + 1] = self._legendre.synthesis(stack)
        threads = self._options["nthreads"]
        return ducc0.fft.c2r(waves, axes=[2], lastsize=self.nlon, forward=False, nthreads=threads).reshape(shape)

    def gradient(self, coefficients: np.ndarray) -> np.ndarray:
        """Surface gradients (..., 2, nlat, nlon), components to the south and east."""
        out = self._synthesis(coefficients, 2, spin=1, mode="DERIV1")
        return out.reshape(*coefficients.shape[:-1], 2, self.nlat, self.nlon)

    def _synthesis(self, coefficients, ncomp, **kind):
        stack = np.ascontiguousarray(coefficients, dtype=complex).reshape(-1, 1, coefficients.shape[-1])
        out = np.empty((len(stack), ncomp, self.nlat, self.nlon))
        for one, target in zip(stack, out, strict=True):
            ducc0.sht.synthesis_2d(alm=one, map=target, **kind, **self._options)
        return out


class LegendreSums:
    """Sums over degrees (synthesis) and over the Gauss latitudes (analysis) of orthonormal Legendre functions.

    Parameters
    ----------
    nlat, lmax : int
    """

    def __init__(self, nlat: int, lmax: int):
        self.nlat, self.lmax, self.nlm = nlat, lmax, (lmax + 1) * (lmax + 2) // 2
        self.half = (nlat + 1) // 2
        theta, weight = gauss_nodes(nlat)
        self._weight = weight[:, None] * (np.pi / nlat)
        if nlat % 2:
            self._weight[-1] /= 2  # the equator is its own mirror image
        starts = range(0, lmax + 1, ORDERS_AT_ONCE)
        blocks = [(slice(m, min(m + ORDERS_AT_ONCE, lmax + 1)), parity) for m in starts for parity in (0, 1)]
        self._blocks = [(*block, *self._places(*block)) for block in blocks]
        self._tables = _legendre_tables(theta, lmax, [block[:3] for block in self._blocks])

    def _places(self, orders: slice, parity: int) -> tuple[np.ndarray, np.ndarray]:
        """Which entries (order, degree) of a block's matrix exist, and the positions of these coefficients."""
        m = np.arange(orders.start, orders.stop)[:, None]
        degree = m + parity + 2 * np.arange((self.lmax - orders.start - parity) // 2 + 1)
        exists = degree <= self.lmax
        return exists, (m * (2 * self.lmax + 1 - m) // 2 + degree)[exists]

    def analysis(self, waves: np.ndarray) -> np.ndarray:
        """Coefficients (k, nlm) of the Fourier coefficients (k, nlat, lmax + 1) along the rings."""
        north, south = waves[:, : self.half], waves[:, : -self.half - 1 : -1]
        folded = [_by_order((north + south) * self._weight), _by_order((north - south) * self._weight)]
        out = np.empty((len(waves), self.nlm), complex)
        for (orders, parity, exists, position), table in zip(self._blocks, self._tables, strict=True):
            out[:, position] = _product(table, folded[parity][:, orders])[:, exists]
        return out

    def synthesis(self, coefficients: np.ndarray) -> np.ndarray:
        """Fourier coefficients (k, nlat, lmax + 1) along the rings of coefficients (k, nlm)."""
        parts = np.empty((2, len(coefficients), self.lmax + 1, self.half), complex)
        for (orders, parity, exists, position), table in zip(self._blocks, self._tables, strict=True):
            padded = np.zeros((len(coefficients), *exists.shape), complex)
            padded[:, exists] = coefficients[:, position]
            parts[parity][:, orders] = _product(table.swapaxes(1, 2), padded)
        even, odd = parts.swapaxes(2, 3)
        return np.concatenate([even + odd, (even - odd)[:, self.nlat // 2 - 1 :: -1]], axis=1)


def _by_order(waves: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(waves.swapaxes(1, 2))


def _product(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Real matrices (m, a, b) times complex vectors (k, m, b), one by one: last digits do not depend on the stack's height."""
    columns = vectors[..., None].view(float)  # real and imaginary parts, (k, m, b, 2)
    return (matrices @ columns).view(complex)[..., 0]


def _legendre_tables(theta: np.ndarray, lmax: int, blocks) -> list[np.ndarray]:
    """P_lm(theta) as matrices (order, degree, node), one stack for each block (orders, parity, exists); 0 beyond lmax.

    By the recurrence in l at fixed m, P_lm = a_lm (cos(theta) P_{l-1,m} - P_{l-2,m} / a_{l-1,m}) with
    a_lm = sqrt((4 l^2 - 1) / (l^2 - m^2)), from P_mm = -sqrt((2m + 1) / 2m) sin(theta) P_{m-1,m-1}.
    """
    tables = [np.zeros((*exists.shape, theta.size)) for _, _, exists in blocks]
    cos, sin, order = np.cos(theta), np.sin(theta), np.arange(lmax + 1)
    older, newer = np.zeros((2, lmax + 1, theta.size))
    before, diagonal = np.zeros((lmax + 1, 1)), np.full(theta.size, np.sqrt(1 / (4 * np.pi)))  # 1 / a_{l-1,m}, P_mm
    for degree in range(lmax + 1):
        ratio = np.sqrt((4 * degree**2 - 1) / (degree**2 - order[:degree, None] ** 2.0))
        older[:degree] = ratio * (cos * newer[:degree] - before[:degree] * older[:degree])
        older, newer = newer, older
        newer[degree] = diagonal
        before[:degree] = 1 / ratio
        diagonal = -np.sqrt((2 * degree + 3) / (2 * degree + 2)) * sin * diagonal
        for (orders, parity, _), table in zip(blocks, tables, strict=True):
            mine = np.arange(orders.start, min(orders.stop, degree + 1))
            mine = mine[(degree - mine) % 2 == parity]
            table[mine - orders.start, (degree - mine) // 2] = newer[mine]
    return tables
