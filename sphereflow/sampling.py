r"""Groups of heads whose mobilities are sampled together: the small Gauss grids and what is summed on them.

A function band-limited to degree L is known everywhere from its values on a Gauss grid that resolves L. One compiled sum
(`sphereflow.kernel`) gives the values of all heads of a group at the northern nodes and their antipodes, and here they are
scaled, laid out, and, where only integrals of them are asked for, summed without being stored.
"""

import math
from functools import cached_property, lru_cache

import numba
import numpy as np

from sphereflow.grid import gauss_grid
from sphereflow.harmonics import PRODUCT_PAIRS, change_degree, coordinate_moments, inner_product, pair_moments
from sphereflow.kernel import EPSILON_GROWTH, evaluate_expansion, expansion_is_accurate

GROUP_COST = 1500  # of a group's transforms between two grids, in points at which one matrix's mobility could be sampled
GRADIENT_COST = 2  # of a point where the gradient is sampled too
LARGEST_EXPONENT = 700.0  # exp(709) is the largest number


class SamplingGrid:
    """A Gauss grid on which functions band-limited to `degree` are sampled, with room for one degree more.

    Products of a density up to degree L + 1 with functions up to degree L + 1 are integrated exactly.
    """

    def __init__(self, degree: int, nlat: int):
        self.degree = degree
        self.lmax = degree + 1
        self.nlat = nlat
        self.grid = gauss_grid(nlat)
        self.north = self.grid.points[: nlat // 2].reshape(-1, 3)
        self.area = self.grid.cell_area[:, None]

    def whole(self, plus: np.ndarray, minus: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) from values at the northern nodes and at their antipodes."""
        half = (*plus.shape[:-1], self.nlat // 2, self.grid.nlon)
        south = np.roll(minus.reshape(half)[..., ::-1, :], self.nlat, axis=-1)
        return np.concatenate([plus.reshape(half), south], axis=-2)

    def halves(self, field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse of `whole` for one field (nlat, nlon): values at the northern nodes and at their antipodes."""
        north, south = field[: self.nlat // 2], field[: self.nlat // 2 - 1 : -1]
        return north.ravel(), np.roll(south, self.nlat, axis=-1).ravel()


def smallest_grid(degree: int) -> int:
    """Fewest latitudes of a sampling grid for a degree."""
    return max(degree + 2 + degree % 2, 8)


@lru_cache(maxsize=64)
def sampling_grid(degree: int, nlat: int = 0) -> SamplingGrid:
    """The shared sampling grid of a degree, with `nlat` latitudes or as few as will do."""
    return SamplingGrid(degree, nlat or smallest_grid(degree))


class ExpandedGroup:
    r"""Matrices B_k of similar norm whose mobilities are sampled together on one sampling grid.

    Parameters
    ----------
    expansion : DensityExpansion
    index : ndarray of int
        Positions of these matrices in their `MobilitySet`.
    matrices : ndarray, shape (k, 3, 3)
    degree : ndarray of int, shape (k,)
        Degree each of them needs.
    gradient : bool
        Whether grad M is sampled too.
    wanted : int
        Latitudes of the grid on which the values will be wanted: they are sampled right there where the additional points
        cost less than the transforms that this saves.

    Attributes
    ----------
    values : ndarray, shape (k, n, 2n)
        m_k at the sampling nodes.
    accurate : ndarray of bool, shape (k,)
        Whether the values keep the tolerance, both here and after a synthesis elsewhere.
    """

    def __init__(self, expansion, index, matrices, degree, gradient: bool, wanted: int = 0):
        self.expansion, self.index, self.matrices, self.degree = expansion, index, matrices, degree
        self._synthesised = None
        largest = max(int(degree.max()), 4)
        largest += largest % 2
        few = smallest_grid(largest)
        more = len(matrices) * (wanted**2 - few**2) * (GRADIENT_COST if gradient else 1)
        self.sampling = s = sampling_grid(largest, wanted if 0 < more <= GROUP_COST else few)
        self._xi = s.north @ matrices
        rho = expansion.coefficients(s.lmax)
        sets = coordinate_moments(rho, s.lmax, s.degree) if gradient else change_degree(rho, s.lmax, s.degree)[None]
        self._scaled = evaluate_expansion(self._xi, sets, s.degree, degree)
        self.values, self._scale = np.empty((len(matrices), *s.grid.shape)), np.empty(self._xi.shape[:2])
        extremes = np.empty((3, len(matrices)))
        _lay_out(self._scaled, self._xi, self.values, self._scale, extremes)
        unscaled, smallest, largest = extremes
        rounding = EPSILON_GROWTH * np.finfo(float).eps * largest
        self.accurate = expansion_is_accurate(unscaled, expansion.tolerance)
        self.accurate &= smallest * expansion.tolerance > rounding

    def keep(self, chosen: np.ndarray) -> "ExpandedGroup":
        """Drop the matrices that are not chosen, in place."""
        for name in ("index", "matrices", "degree", "accurate", "values", "_xi", "_scale"):
            setattr(self, name, getattr(self, name)[chosen])
        self._scaled = self._scaled[:, :, chosen]
        return self

    @cached_property
    def gradient(self) -> np.ndarray:
        """grad M(B_k^T x) at the sampling nodes, shape (k, 3, n, 2n)."""
        return np.moveaxis(self.sampling.whole(*(self._scaled[:, 1:] * self._scale)), 0, 1)

    @cached_property
    def low_pass(self) -> np.ndarray:
        """The density's low degrees on the sampling grid (signed)."""
        s = self.sampling
        return self.expansion.transform(s.nlat, s.lmax).synthesis(self.expansion.coefficients(s.lmax))

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients up to the sampling degree of values at the sampling nodes."""
        return self.expansion.transform(self.sampling.nlat, self.sampling.degree).analysis(values)

    def synthesis(self, coefficients: np.ndarray, nlat: int) -> np.ndarray:
        """Values on a Gauss grid of coefficients up to the sampling degree; a coarser grid leaves out what it cannot hold."""
        lmax = min(self.sampling.degree, nlat - 1)
        return self.expansion.transform(nlat, lmax).synthesis(change_degree(coefficients, self.sampling.degree, lmax))

    def values_on(self, nlat: int) -> np.ndarray:
        """m_k on a Gauss grid, shape (k, nlat, 2 nlat); those of the last grid asked for are kept."""
        if nlat == self.sampling.nlat:
            return self.values
        if self._synthesised is None or self._synthesised.shape[1] != nlat:
            self._synthesised = self.synthesis(self.coefficients, nlat)
        return self._synthesised

    @cached_property
    def coefficients(self) -> np.ndarray:
        """m_lm, shape (k, nlm)."""
        return self.analysis(self.values)

    @cached_property
    def gradient_coefficients(self) -> np.ndarray:
        """Coefficients of the components of grad M(B_k^T x), shape (k, 3, nlm)."""
        return self.analysis(self.gradient)

    def directional_integrals(self, direction: np.ndarray) -> np.ndarray:
        """See `MobilitySet.directional_integrals`."""
        out = np.empty(len(self.matrices))
        weights = self.sampling.halves(self.low_pass * self.sampling.area)
        _sum_along(self._scaled, self._scale, self.sampling.north, *weights, direction, out)
        return out

    def squared_overlap_integrals(self) -> np.ndarray:
        """See `MobilitySet.squared_overlap_integrals`."""
        s, lmax = self.sampling, self.sampling.degree + 2
        moments = pair_moments(self.expansion.coefficients(lmax), lmax, s.degree)
        second = self.analysis(s.whole(*(evaluate_expansion(self._xi, moments, s.degree, self.degree) * self._scale)))
        twice = np.array([1.0 if i == j else 2.0 for i, j in PRODUCT_PAIRS])
        overlap = twice @ inner_product(moments[:, None], second, s.degree)
        return s.grid.integrate(self.values * self.low_pass) + overlap


@numba.njit(cache=True, error_model="numpy")
def _lay_out(scaled, xi, values, scale, extremes):
    """M at the sampling nodes from exp(-|xi|) M at the northern ones and their antipodes.

    Parameters
    ----------
    scaled : ndarray, shape (2, nset, k, n)
        As `evaluate_expansion` returns them; the first set counts.
    xi : ndarray, shape (k, n, 3)
    values, scale : ndarray, shape (k, nlat, nlon) and (k, n)
        Filled with M and with exp(|xi|).
    extremes : ndarray, shape (3, k)
        Filled with the smallest exp(-|xi|) M, the smallest and the largest M.
    """
    nlat, nlon = values.shape[1:]
    for k in range(len(xi)):
        unscaled, smallest, largest = np.inf, np.inf, -np.inf
        for p in range(xi.shape[1]):
            r = math.sqrt(xi[k, p, 0] ** 2 + xi[k, p, 1] ** 2 + xi[k, p, 2] ** 2)
            factor = math.exp(min(r, LARGEST_EXPONENT))
            scale[k, p] = factor
            i, j = p // nlon, p % nlon
            opposite = j + nlat if j < nlat else j - nlat
            for side in range(2):
                value = scaled[side, 0, k, p]
                unscaled = min(unscaled, value)
                value *= factor
                smallest, largest = min(smallest, value), max(largest, value)
                if side == 0:
                    values[k, i, j] = value
                else:
                    values[k, nlat - 1 - i, opposite] = value
        extremes[0, k], extremes[1, k], extremes[2, k] = unscaled, smallest, largest


@numba.njit(cache=True, error_model="numpy")
def _sum_along(scaled, scale, north, weight, opposite_weight, direction, out):
    """sum_x weight(x) x . direction_k grad M(B_k^T x) over the sampling nodes x, for all matrices k."""
    for k in range(len(direction)):
        d, total = direction[k], 0.0
        for p in range(len(north)):
            x, y, z = north[p, 0], north[p, 1], north[p, 2]
            along = 0.0
            for c in range(3):
                difference = weight[p] * scaled[0, 1 + c, k, p] - opposite_weight[p] * scaled[1, 1 + c, k, p]
                along += (x * d[0, c] + y * d[1, c] + z * d[2, c]) * difference
            total += scale[k, p] * along
        out[k] = total
