r"""Head mobilities m(x) = M(B^T x) of a density, on whatever grid they are asked for.

`DensityExpansion` holds the coefficients of one density; `MobilitySet` the mobilities of a stack of matrices B for it.

For |B| up to ten or so, m is band-limited to a degree L that depends on |B| and the tolerance alone. It is sampled on the
small Gauss grid that resolves L (the *sampling grid*), analysed there, and known everywhere. Beyond that (L too large for the
grid, or values so small that the coefficients would lose them to round-off) its logarithm is computed point by point.
"""

import math
from functools import cached_property, lru_cache

import numpy as np

from sphereflow.grid import GaussGrid
from sphereflow.harmonics import degrees_and_orders, get_transform
from sphereflow.kernel import (
    EPSILON_GROWTH,
    direct_sum,
    evaluate_expansion,
    expansion_degree,
    expansion_is_accurate,
    log_mobility,
)

PRODUCT_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


@lru_cache(maxsize=32)
def gauss_grid(nlat: int) -> GaussGrid:
    """A shared grid; its tables are computed once."""
    return GaussGrid(nlat)


def change_degree(coefficients: np.ndarray, lmax: int, new_lmax: int) -> np.ndarray:
    """Truncate or zero-pad coefficients (..., nlm) from degree `lmax` to `new_lmax`."""
    if new_lmax == lmax:
        return coefficients
    low = min(lmax, new_lmax)
    degree, order = degrees_and_orders(low)
    out = np.zeros((*coefficients.shape[:-1], (new_lmax + 1) * (new_lmax + 2) // 2), complex)
    out[..., coefficient_index(degree, order, new_lmax)] = coefficients[..., coefficient_index(degree, order, lmax)]
    return out


def coefficient_index(degree, order, lmax: int):
    """Position of the coefficient (degree, order) in an array up to degree `lmax`."""
    return order * (2 * lmax + 1 - order) // 2 + degree


class DensityExpansion:
    """A density on its grid together with its spherical-harmonic coefficients.

    Parameters
    ----------
    grid : GaussGrid
    density : ndarray, shape (nlat, nlon)
        Values at the nodes.
    tolerance : float
        Relative error asked of mobilities.
    backend, nthreads : see `get_transform`.
    """

    def __init__(self, grid: GaussGrid, density: np.ndarray, tolerance: float, backend: str = "auto", nthreads: int = 1):
        self.grid, self.density, self.tolerance = grid, density, tolerance
        self.backend, self.nthreads = backend, nthreads
        self._low: dict[int, np.ndarray] = {}

    def transform(self, nlat: int, lmax: int):
        """The transform of a Gauss grid with this density's library and threads."""
        return get_transform(nlat, lmax, self.backend, self.nthreads)

    def coefficients(self, lmax: int) -> np.ndarray:
        """rho_lm up to degree `lmax` (at most nlat - 1)."""
        if lmax not in self._low:
            self._low[lmax] = self.transform(self.grid.nlat, lmax).analysis(self.density)
        return self._low[lmax]

    @cached_property
    def mean(self) -> np.ndarray:
        """int y rho(y) dy, shape (3,)."""
        ring = self.density * self.grid.cell_area[:, None]
        lon = self.grid.longitude
        by_longitude = np.sin(self.grid.colatitude) @ ring
        return np.array([by_longitude @ np.cos(lon), by_longitude @ np.sin(lon), self.grid.z @ ring.sum(axis=1)])

    @cached_property
    def moments_full(self) -> np.ndarray:
        """Coefficients (4, nlm) of rho, y_i rho to the grid's largest degree, for point-by-point evaluation."""
        weighted = np.concatenate([self.density[None], np.moveaxis(self.grid.points, -1, 0) * self.density])
        return self.transform(self.grid.nlat, self.grid.nlat - 1).analysis(weighted)

    @cached_property
    def is_resolved(self) -> bool:
        """Whether the coefficients have died out at the grid's largest degrees (then expansions may be cut there)."""
        lmax = self.grid.nlat - 1
        degree, _ = degrees_and_orders(lmax)
        top = self.moments_full[0][degree > 0.9 * lmax]
        return bool(np.abs(top).max() <= self.tolerance * np.abs(self.moments_full[0]).max())

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (N, 3) and masses (N,) >= 0 of the nodes, for positive sums."""
        mass = (np.maximum(self.density, 0.0) * self.grid.cell_area[:, None]).ravel()
        return self.grid.points.reshape(-1, 3), mass


class SamplingGrid:
    """The small Gauss grid on which functions band-limited to `degree` are sampled, with room for two degrees more.

    Products of a degree-(L+2) density with degree-(L+2) functions are integrated exactly.
    """

    def __init__(self, degree: int):
        self.degree = degree
        self.lmax = degree + 2
        self.nlat = degree + 3 + (degree + 3) % 2
        self.grid = gauss_grid(self.nlat)
        self.north = self.grid.points[: self.nlat // 2].reshape(-1, 3)
        self.area = self.grid.cell_area[:, None]

    def whole(self, plus: np.ndarray, minus: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) from values at the northern nodes and at their antipodes."""
        half = (*plus.shape[:-1], self.nlat // 2, self.grid.nlon)
        south = np.roll(minus.reshape(half)[..., ::-1, :], self.nlat, axis=-1)
        return np.concatenate([plus.reshape(half), south], axis=-2)


@lru_cache(maxsize=64)
def sampling_grid(degree: int) -> SamplingGrid:
    """The shared sampling grid of a degree."""
    return SamplingGrid(degree)


class MobilitySet:
    r"""Mobilities m_k(x) = M(B_k^T x) of one density for matrices B_k (K, 3, 3).

    Parameters
    ----------
    expansion : DensityExpansion
    matrices : ndarray, shape (K, 3, 3)
    gradient : bool
        Whether grad M will be asked for too (`mean_on`, `directional_integral`).
    """

    def __init__(self, expansion: DensityExpansion, matrices: np.ndarray, gradient: bool = False):
        self.expansion, self.matrices = expansion, matrices
        self.radius = np.linalg.norm(matrices, ord=2, axis=(1, 2))
        tolerance, nlat = expansion.tolerance, expansion.grid.nlat
        floor = math.log(tolerance) - self.radius * np.linalg.norm(expansion.mean)  # Jensen: M(xi) >= exp(xi . mean)
        self.degree = np.array([expansion_degree(*pair) for pair in zip(self.radius, floor, strict=True)])
        self.expanded = np.flatnonzero(4 * (self.degree + 3) <= 3 * nlat)
        self.pointwise = np.flatnonzero(4 * (self.degree + 3) > 3 * nlat)
        self.values = self.gradient = None
        self._pointwise: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        if self.expanded.size:
            degree = max(int(self.degree[self.expanded].max()), 4)
            self.sampling = sampling_grid(degree + degree % 2)
            self._sample(gradient)

    @cached_property
    def _low_pass(self) -> np.ndarray:
        """The density's low degrees on the sampling grid (signed)."""
        s = self.sampling
        return self.expansion.transform(s.nlat, s.lmax).synthesis(self.expansion.coefficients(s.lmax))

    def _moments(self, factors: np.ndarray) -> np.ndarray:
        """Coefficients up to the sampling degree of factor * rho for factors on the sampling grid."""
        s = self.sampling
        return self.expansion.transform(s.nlat, s.degree).analysis(factors * self._low_pass)

    def _sample(self, gradient: bool) -> None:
        """M (and grad M) at the sampling nodes; matrices whose values come out too inaccurate become pointwise."""
        s = self.sampling
        sets = change_degree(self.expansion.coefficients(s.lmax), s.lmax, s.degree)[None]
        if gradient:
            sets = np.concatenate([sets, self._moments(np.moveaxis(s.grid.points, -1, 0))])
        plus, minus = self._sum(sets)
        radius = self._sampling_radius
        tolerance, epsilon = self.expansion.tolerance, EPSILON_GROWTH * np.finfo(float).eps
        accurate = np.minimum(plus[0], minus[0]).min(axis=-1, initial=1.0)
        scale = np.exp(np.minimum(radius, 700.0))
        plus, minus = plus * scale, minus * scale
        smallest = np.minimum(plus[0], minus[0]).min(axis=-1)
        largest = np.maximum(plus[0], minus[0]).max(axis=-1)
        good = expansion_is_accurate(accurate, tolerance) & (smallest * tolerance > epsilon * largest)
        if not good.all():
            self.pointwise = np.sort(np.concatenate([self.pointwise, self.expanded[~good]]))
            self.expanded = self.expanded[good]
            plus, minus = plus[:, good], minus[:, good]
        whole = s.whole(plus, minus)
        self.values = whole[0]
        self.gradient = np.moveaxis(whole[1:], 0, 1) if gradient else None

    @property
    def _sampling_radius(self) -> np.ndarray:
        """|xi| at the northern sampling nodes for the matrices that are expanded (their number falls while sampling)."""
        return np.linalg.norm(self.sampling.north @ self.matrices[self.expanded], axis=-1)

    def _sum(self, sets):
        s = self.sampling
        xi = s.north @ self.matrices[self.expanded]
        return evaluate_expansion(xi, sets, s.degree, self.degree[self.expanded])

    @cached_property
    def coefficients(self) -> np.ndarray:
        """m_lm of the expanded matrices, (len(expanded), nlm) up to the sampling degree."""
        s = self.sampling
        return self.expansion.transform(s.nlat, s.degree).analysis(self.values)

    @cached_property
    def _gradient_coefficients(self) -> np.ndarray:
        s = self.sampling
        return self.expansion.transform(s.nlat, s.degree).analysis(self.gradient)

    def _pointwise_on(self, nlat: int) -> tuple[np.ndarray, np.ndarray]:
        """log m (K', nlat, nlon) and mean (K', 3, nlat, nlon) of the pointwise matrices on a Gauss grid."""
        if nlat not in self._pointwise:
            e, grid = self.expansion, gauss_grid(nlat)
            x, (points, mass) = grid.points.reshape(-1, 3), e.cells
            lmax = e.grid.nlat - 1
            log_values, means = [], []
            for k in self.pointwise:
                xi = x @ self.matrices[k]
                if self.degree[k] <= lmax or e.is_resolved:
                    value, mean = log_mobility(xi, e.moments_full, lmax, points, mass, e.tolerance)
                else:  # a kernel narrower than the grid and a density with structure at the grid's scale
                    value, mean = direct_sum(xi, points, mass)
                log_values.append(value.reshape(grid.shape))
                means.append(mean.T.reshape(3, *grid.shape))
            self._pointwise[nlat] = np.array(log_values), np.array(means)
        return self._pointwise[nlat]

    def smallest_grid(self) -> int:
        """Fewest latitudes on which all expanded mobilities can be synthesised."""
        return self.sampling.degree + 1 if self.expanded.size else 0

    def log_on(self, nlat: int) -> np.ndarray:
        """log m_k on the Gauss grid with `nlat` latitudes, shape (K, nlat, 2 nlat)."""
        out = np.empty((len(self.matrices), nlat, 2 * nlat))
        if self.expanded.size:
            out[self.expanded] = np.log(self._synthesis(nlat, self.coefficients))
        if self.pointwise.size:
            out[self.pointwise] = self._pointwise_on(nlat)[0]
        return out

    def mean_on(self, nlat: int) -> np.ndarray:
        """Softmax mean grad M / M of each matrix on a Gauss grid, shape (K, 3, nlat, 2 nlat)."""
        out = np.empty((len(self.matrices), 3, nlat, 2 * nlat))
        if self.expanded.size:
            out[self.expanded] = self._synthesis(nlat, self._gradient_coefficients)
            out[self.expanded] /= self._synthesis(nlat, self.coefficients)[:, None]
        if self.pointwise.size:
            out[self.pointwise] = self._pointwise_on(nlat)[1]
        return out

    def _synthesis(self, nlat, coefficients):
        return self.expansion.transform(nlat, self.sampling.degree).synthesis(coefficients)

    @property
    def lmax(self) -> int:
        """Degree to which weighted sums of the mobilities are represented."""
        return self.expansion.grid.nlat - 1 if self.pointwise.size else self.sampling.degree

    def weighted_sum(self, weight: np.ndarray) -> np.ndarray:
        """Coefficients of sum_k weight_k m_k up to degree `self.lmax`."""
        out = np.zeros((self.lmax + 1) * (self.lmax + 2) // 2, complex)
        if self.expanded.size:
            s = self.sampling
            values = np.tensordot(weight[self.expanded], self.values, 1)
            low = self.expansion.transform(s.nlat, s.degree).analysis(values)
            out += change_degree(low, s.degree, self.lmax)
        if self.pointwise.size:
            nlat = self.expansion.grid.nlat
            with np.errstate(over="ignore"):
                values = np.tensordot(weight[self.pointwise], np.exp(self._pointwise_on(nlat)[0]), 1)
            out += self.expansion.transform(nlat, nlat - 1).analysis(values)
        return out

    def directional_integrals(self, direction: np.ndarray) -> np.ndarray:
        r"""int rho(x) d/dB m_k(x) : direction_k dx = \int\int x . direction_k y exp(x . B_k y) rho rho, shape (K,).

        Twice the derivative of head k's energy along `direction` (K, 3, 3).
        """
        out = np.empty(len(self.matrices))
        if self.expanded.size:
            s = self.sampling
            along = s.grid.points @ direction[self.expanded][:, None]  # (k, nlat, nlon, 3): direction^T x
            integrand = np.einsum("kijc,kcij->kij", along, self.gradient)
            out[self.expanded] = s.grid.integrate(integrand * self._low_pass)
        if self.pointwise.size:
            grid = self.expansion.grid
            log_values, mean = self._pointwise_on(grid.nlat)
            along = grid.points @ direction[self.pointwise][:, None]
            with np.errstate(over="ignore"):
                values = np.exp(log_values) * np.einsum("kijc,kcij->kij", along, mean)
            out[self.pointwise] = grid.integrate(values * self.expansion.density)
        return out

    def squared_overlap_integrals(self) -> np.ndarray:
        r"""\int\int (1 + (x . y)^2) exp(x . B_k y) rho(x) rho(y) dx dy, shape (K,): the Ito rate's integral."""
        out = np.empty(len(self.matrices))
        if self.expanded.size:
            s = self.sampling
            pairs = np.array([s.grid.points[..., i] * s.grid.points[..., j] for i, j in PRODUCT_PAIRS])
            plus, minus = self._sum(self._moments(pairs))
            scale = np.exp(self._sampling_radius)
            twice = np.array([1.0 if i == j else 2.0 for i, j in PRODUCT_PAIRS])
            second = np.einsum("p,pij,pkij->kij", twice, pairs, s.whole(plus * scale, minus * scale))
            out[self.expanded] = s.grid.integrate((self.values + second) * self._low_pass)
        if self.pointwise.size:
            out[self.pointwise] = [self._squared_overlap_direct(k) for k in self.pointwise]
        return out

    def _squared_overlap_direct(self, k, rows=64):
        """The same by the double sum over cells, for matrices beyond the expansion."""
        points, mass = self.expansion.cells
        total = 0.0
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, len(points), rows):
                x = points[start : start + rows]
                kernel = np.exp(x @ self.matrices[k] @ points.T) * (1 + (x @ points.T) ** 2)
                total += mass[start : start + rows] @ (kernel @ mass)
        return total
