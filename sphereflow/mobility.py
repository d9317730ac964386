r"""Head mobilities m(x) = M(B^T x) of a density, on whatever grid they are asked for.

`DensityExpansion` holds the coefficients of one density; `MobilitySet` the mobilities of a stack of matrices B for it.

For |B| up to ten or so, m is band-limited to a degree L that depends on |B| and the tolerance alone. It is sampled on the
small Gauss grid that resolves L (the *sampling grid*), analysed there, and known everywhere. Beyond that (L too large for the
grid, or values so small that the coefficients would lose them to round-off) its logarithm is computed point by point.
"""

import math
from functools import cached_property

import numpy as np
import scipy
from scipy.special import logsumexp

from sphereflow.grid import GaussGrid, gauss_grid
from sphereflow.harmonics import change_degree, degrees_and_orders, get_transform
from sphereflow.kernel import direct_sum, expansion_degree, log_mobility
from sphereflow.sampling import GROUP_COST, ExpandedGroup, smallest_grid

ANALYSIS_DEGREE = 40
NEGLIGIBLE = math.log(1e-6)  # of M: degrees of the density that a coarse grid does not have may matter this much
DEGREE_BUCKET = 6  # matrices whose degrees differ by less share a sampling grid
LARGEST_PRODUCT = 600.0  # sum of norms up to which mobilities are multiplied; exp(709) is the largest number
LARGEST_LOG_JUMP = 5.0  # of log rho between neighbouring nodes that a spline is trusted with


def spectral_norm(matrices: np.ndarray) -> np.ndarray:
    """Largest singular values of matrices (K, 3, 3)."""
    return np.sqrt(np.linalg.eigvalsh(matrices.transpose(0, 2, 1) @ matrices)[:, -1])


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

    def __init__(
        self, grid: GaussGrid, density: np.ndarray, tolerance: float, backend: str = "auto", nthreads: int = 1
    ):
        self.grid, self.density, self.tolerance = grid, density, tolerance
        self.backend, self.nthreads = backend, nthreads
        self._low: dict[int, np.ndarray] = {}

    def transform(self, nlat: int, lmax: int):
        """The transform of a Gauss grid with this density's library and threads."""
        return get_transform(nlat, lmax, self.backend, self.nthreads)

    def coefficients(self, lmax: int) -> np.ndarray:
        """rho_lm up to degree `lmax` (at most nlat - 1); one analysis serves all small degrees."""
        highest = self.grid.nlat - 1
        done = min(ANALYSIS_DEGREE, highest) if lmax <= ANALYSIS_DEGREE else highest
        if done not in self._low:
            self._low[done] = self.transform(self.grid.nlat, done).analysis(self.density)
        return change_degree(self._low[done], done, lmax)

    @cached_property
    def mean(self) -> np.ndarray:
        """int y rho(y) dy, shape (3,), from the coefficients of degree 1."""
        _, a10, a11 = self.coefficients(1)
        along, across = np.sqrt(4 * np.pi / 3), np.sqrt(8 * np.pi / 3)
        return np.array([-across * a11.real, across * a11.imag, along * a10.real])

    @cached_property
    def mass_density(self) -> np.ndarray:
        """Non-negative node values: what every sum point by point takes, so that it stays positive.

        It differs from the density only where cells jump so much that the conversion from means undershoots.
        """
        return np.maximum(self.density, 0.0)

    @cached_property
    def moments_full(self) -> np.ndarray:
        """Coefficients (4, nlm) of rho, y_i rho to the grid's largest degree, for point-by-point evaluation."""
        density = self.mass_density
        weighted = np.concatenate([density[None], np.moveaxis(self.grid.points, -1, 0) * density])
        return self.transform(self.grid.nlat, self.grid.nlat - 1).analysis(weighted)

    @cached_property
    def is_resolved(self) -> bool:
        """Whether the coefficients have died out at the grid's largest degrees (then expansions may be cut there)."""
        lmax = self.grid.nlat - 1
        degree, _ = degrees_and_orders(lmax)
        top = self.moments_full[0][degree > 0.9 * lmax]
        return bool(np.abs(top).max() <= self.tolerance * np.abs(self.moments_full[0]).max())

    @cached_property
    def log_density(self):
        """log rho between the nodes, a quintic spline in (colatitude, longitude) continued through the poles.

        None where the density is not positive or varies too much from node to node to be interpolated.
        """
        if self.density.min() <= 0:
            return None
        grid, rows = self.grid, 6
        values, half = np.log(self.density), self.grid.nlon // 2
        if max(np.abs(np.diff(values, axis=0)).max(), np.abs(np.diff(values, axis=1)).max()) > LARGEST_LOG_JUMP:
            return None
        turned = np.roll(values, half, axis=1)
        values = np.concatenate([turned[rows - 1 :: -1], values, turned[: -rows - 1 : -1]])
        values = np.concatenate([values[:, -rows:], values, values[:, :rows]], axis=1)
        theta, lon = grid.colatitude, grid.longitude
        theta = np.concatenate([-theta[rows - 1 :: -1], theta, 2 * np.pi - theta[: -rows - 1 : -1]])
        lon = np.concatenate([lon[-rows:] - 2 * np.pi, lon, lon[:rows] + 2 * np.pi])
        spline = scipy.interpolate.RectBivariateSpline(theta, lon, values, kx=5, ky=5, s=0)

        def evaluate(y):
            return spline.ev(np.arctan2(np.hypot(y[:, 0], y[:, 1]), y[:, 2]), np.arctan2(y[:, 1], y[:, 0]) % (2 * np.pi))

        return evaluate

    @cached_property
    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (N, 3) and masses (N,) >= 0 of the nodes, for positive sums."""
        mass = (self.mass_density * self.grid.cell_area[:, None]).ravel()
        return self.grid.points.reshape(-1, 3), mass


def _grouped(index: np.ndarray, degree: np.ndarray) -> list[np.ndarray]:
    """Matrices that share a sampling grid: those of similar degree, and few small ones together with larger ones."""
    bucket = -(-degree // DEGREE_BUCKET)
    out, waiting = [], index[:0]
    for number in np.unique(bucket[index]):
        found = index[bucket[index] == number]
        if waiting.size:
            more = smallest_grid(int(degree[found].max())) ** 2 - smallest_grid(int(degree[waiting].max())) ** 2
            if waiting.size * more <= GROUP_COST:
                found = np.sort(np.concatenate([waiting, found]))
            else:
                out.append(waiting)
        waiting = found
    return [*out, waiting] if waiting.size else out


class MobilitySet:
    r"""Mobilities m_k(x) = M(B_k^T x) of one density for matrices B_k (K, 3, 3).

    Parameters
    ----------
    expansion : DensityExpansion
    matrices : ndarray, shape (K, 3, 3)
    gradient : bool
        Whether grad M will be asked for too (`mean_on`, `directional_integrals`).
    radius : ndarray, shape (K,), optional
        `spectral_norm(matrices)`, where it is known.
    wanted : int
        Latitudes of the grid on which `log_on` and the like will be asked for; a hint.
    """

    def __init__(self, expansion: DensityExpansion, matrices: np.ndarray, gradient=False, radius=None, wanted=0):
        self.expansion, self.matrices = expansion, matrices
        self.radius = spectral_norm(matrices) if radius is None else radius
        floor = math.log(expansion.tolerance) - self.radius * np.linalg.norm(
            expansion.mean
        )  # Jensen: M(xi) >= exp(xi . mean)
        self.degree = np.array([expansion_degree(*pair) for pair in zip(self.radius, floor, strict=True)])
        self._pointwise: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        nlat = expansion.grid.nlat
        expandable = 4 * (self.degree + 3) <= 3 * nlat
        for k in np.flatnonzero(~expandable):
            expandable[k] = expansion_degree(self.radius[k], NEGLIGIBLE) < nlat
        self.groups, refused = [], [np.flatnonzero(~expandable)]
        for index in _grouped(np.flatnonzero(expandable), self.degree):
            group = ExpandedGroup(expansion, index, matrices[index], self.degree[index], gradient, wanted)
            if not group.accurate.all():
                refused.append(index[~group.accurate])
                group.keep(group.accurate)
            if group.index.size:
                self.groups.append(group)
        self.pointwise = np.sort(np.concatenate(refused))

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
                    value, mean = log_mobility(xi, e.moments_full, lmax, points, mass, e.tolerance, e.log_density)
                else:  # a kernel narrower than the grid and a density with structure at the grid's scale
                    value, mean = direct_sum(xi, points, mass)
                log_values.append(value.reshape(grid.shape))
                means.append(mean.T.reshape(3, *grid.shape))
            self._pointwise[nlat] = np.array(log_values), np.array(means)
        return self._pointwise[nlat]

    def smallest_grid(self) -> int:
        """Fewest latitudes on which all expanded mobilities can be synthesised."""
        return max((group.sampling.degree + 1 for group in self.groups), default=0)

    def log_on(self, nlat: int) -> np.ndarray:
        """log m_k on the Gauss grid with `nlat` latitudes, shape (K, nlat, 2 nlat)."""
        out = np.empty((len(self.matrices), nlat, 2 * nlat))
        for group in self.groups:
            out[group.index] = np.log(group.values_on(nlat))
        if self.pointwise.size:
            out[self.pointwise] = self._pointwise_on(nlat)[0]
        return out

    def weighted_log_on(self, weight: np.ndarray, nlat: int) -> np.ndarray:
        """sum_k weight_k log m_k on a Gauss grid, shape (nlat, 2 nlat).

        Mobilities of equal weight are multiplied before the logarithm is taken, a few at a time, so that the product neither
        overflows nor underflows: |log m_k| <= |B_k|.
        """
        out = np.zeros((nlat, 2 * nlat))
        for group in self.groups:
            values = group.values_on(nlat)
            order = np.lexsort((self.radius[group.index], weight[group.index]))
            product, budget, current = None, 0.0, None
            for k in order:
                w, radius = weight[group.index[k]], self.radius[group.index[k]]
                if product is not None and (w != current or budget + radius > LARGEST_PRODUCT):
                    out += current * np.log(product)
                    product = None
                if product is None:
                    product, budget, current = values[k].copy(), radius, w
                else:
                    product *= values[k]
                    budget += radius
            out += current * np.log(product)
        if self.pointwise.size:
            out += np.tensordot(weight[self.pointwise], self._pointwise_on(nlat)[0], 1)
        return out

    def log_harmonic_mean_on(self, weight: np.ndarray, nlat: int) -> np.ndarray:
        """log of 1 / sum_k weight_k / m_k on a Gauss grid, shape (nlat, 2 nlat)."""
        inverse = np.zeros((nlat, 2 * nlat))
        for group in self.groups:
            inverse += np.tensordot(weight[group.index], 1 / group.values_on(nlat), 1)
        if not self.pointwise.size:
            return -np.log(inverse)
        minus_log = -self._pointwise_on(nlat)[0]
        with np.errstate(divide="ignore"):
            minus_log = np.concatenate([minus_log, np.log(inverse)[None]])
        weights = np.append(weight[self.pointwise], 1.0)
        return -logsumexp(minus_log, axis=0, b=weights[:, None, None])

    def mean_on(self, nlat: int) -> np.ndarray:
        """Softmax mean grad M / M of each matrix on a Gauss grid, shape (K, 3, nlat, 2 nlat)."""
        out = np.empty((len(self.matrices), 3, nlat, 2 * nlat))
        for group in self.groups:
            out[group.index] = group.synthesis(group.gradient_coefficients, nlat)
            out[group.index] /= group.values_on(nlat)[:, None]
        if self.pointwise.size:
            out[self.pointwise] = self._pointwise_on(nlat)[1]
        return out

    @property
    def lmax(self) -> int:
        """Degree to which weighted sums of the expanded mobilities are represented, at most that of the density's grid."""
        return min(max((group.sampling.degree for group in self.groups), default=4), self.expansion.grid.nlat - 1)

    def weighted_sum(self, weight: np.ndarray) -> np.ndarray:
        """Coefficients up to degree `self.lmax` of sum_k weight_k m_k over the expanded matrices."""
        out = np.zeros((self.lmax + 1) * (self.lmax + 2) // 2, complex)
        for group in self.groups:
            values = np.tensordot(weight[group.index], group.values, 1)
            out += change_degree(group.analysis(values), group.sampling.degree, self.lmax)
        return out

    def pointwise_sum(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """sum_k weight_k m_k over the other matrices at the nodes of the density, and its gradient in R^3.

        Not as coefficients: these mobilities may span more decades than the digits of a coefficient.

        Returns
        -------
        values : ndarray, shape (nlat, nlon)
        gradient : ndarray, shape (3, nlat, nlon)
        """
        log_values, mean = self._pointwise_on(self.expansion.grid.nlat)
        with np.errstate(over="ignore", invalid="ignore"):
            share = weight[self.pointwise, None, None] * np.exp(log_values)
            return share.sum(axis=0), np.einsum("kij,kcd,kdij->cij", share, self.matrices[self.pointwise], mean)

    def directional_integrals(self, direction: np.ndarray) -> np.ndarray:
        r"""int rho(x) d/dB m_k(x) : direction_k dx = \int\int x . direction_k y exp(x . B_k y) rho rho, shape (K,).

        Twice the derivative of head k's energy along `direction` (K, 3, 3).
        """
        out = np.empty(len(self.matrices))
        for group in self.groups:
            out[group.index] = group.directional_integrals(direction[group.index])
        if self.pointwise.size:
            grid = self.expansion.grid
            log_values, mean = self._pointwise_on(grid.nlat)
            along = grid.points @ direction[self.pointwise][:, None]
            with np.errstate(over="ignore"):
                values = np.exp(log_values) * np.einsum("kijc,kcij->kij", along, mean)
            out[self.pointwise] = grid.integrate(values * self.expansion.mass_density)
        return out

    def squared_overlap_integrals(self) -> np.ndarray:
        r"""\int\int (1 + (x . y)^2) exp(x . B_k y) rho(x) rho(y) dx dy, shape (K,): the Ito rate's integral."""
        out = np.empty(len(self.matrices))
        for group in self.groups:
            out[group.index] = group.squared_overlap_integrals()
        for k in self.pointwise:
            out[k] = self._squared_overlap_direct(k)
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
