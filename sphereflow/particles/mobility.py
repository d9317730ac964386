r"""Head mobilities of a token set, at the tokens themselves.

For a matrix B, m(x) = M(B^T x) with M(xi) = sum_j p_j exp(xi . y_j); its logarithm and the softmax mean grad M / M are
all that velocities, energies and their rates need. Two ways to get them:

* on S^2, by the expansion of `sphereflow.kernel`: the coefficients of the measure are one adjoint transform, those of
  y_i rho follow from them exactly on a small Gauss grid, and each token then costs one sum over the degrees that |B|
  needs: O(n L^2);
* by the positive sum over all pairs, O(n^2): for few tokens, in other dimensions, for matrices whose expansion would be
  the longer sum, and for the single tokens at which the expansion would lose digits to cancellation.
"""

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from sphereflow.harmonics import PRODUCT_PAIRS, coordinate_moments, pair_moments, point_coefficients
from sphereflow.kernel import direct_sum, evaluate_expansion, expansion_degree, expansion_is_accurate

CHUNK = 2**13  # tokens handled at a time: their arrays stay in the cache
FEW_PAIRS = 100_000  # up to so many pairs, of all matrices, the direct sum is the faster one
PAIRS_PER_TERM = 0.1  # a pair of the direct sum costs as much as this many (degree, order) terms of the expansion
LARGEST_DEGREE = 256


class TokenMeasure:
    """Point masses on the unit sphere.

    Parameters
    ----------
    positions : ndarray, shape (n, d)
        Unit vectors.
    weights : ndarray, shape (n,)
        Masses p_i >= 0 of sum 1.
    """

    def __init__(self, positions: np.ndarray, weights: np.ndarray):
        self.positions = np.ascontiguousarray(positions, dtype=float)
        self.weights = np.ascontiguousarray(weights, dtype=float)
        self._coefficients: dict[int, np.ndarray] = {}

    @property
    def count(self) -> int:
        """Number of tokens n."""
        return len(self.positions)

    @property
    def dimension(self) -> int:
        """Dimension d of the space around the sphere."""
        return self.positions.shape[1]

    @cached_property
    def mean(self) -> np.ndarray:
        """sum_i p_i x_i, shape (d,)."""
        return self.weights @ self.positions

    @cached_property
    def second_moment(self) -> np.ndarray:
        """sum_i p_i x_i x_i^T, shape (d, d)."""
        return self.positions.T @ (self.weights[:, None] * self.positions)

    @cached_property
    def angles(self) -> np.ndarray:
        """Colatitude and longitude of tokens on S^2, shape (n, 2)."""
        x, y, z = self.positions.T
        return np.stack([np.arctan2(np.hypot(x, y), z), np.arctan2(y, x) % (2 * np.pi)], axis=-1)

    def coefficients(self, lmax: int) -> np.ndarray:
        """Spherical-harmonic coefficients sum_i p_i conj(Y_lm(x_i)) up to degree `lmax`, for tokens on S^2."""
        if lmax not in self._coefficients:
            self._coefficients[lmax] = point_coefficients(self.angles, self.weights, lmax)
        return self._coefficients[lmax]

    def moment_coefficients(self, degree: int, second: bool = False) -> np.ndarray:
        """Coefficients up to `degree` of rho, the y_a rho and, if asked, the y_a y_b rho of PRODUCT_PAIRS."""
        lmax = degree + 2
        rho = self.coefficients(lmax)
        moments = coordinate_moments(rho, lmax, degree)
        return np.concatenate([moments, pair_moments(rho, lmax, degree)]) if second else moments


class TokenMobilities:
    """log m_k and grad M / M of a measure for matrices B_k (K, d, d), evaluated at its own tokens chunk by chunk.

    Parameters
    ----------
    measure : TokenMeasure
    matrices : ndarray, shape (K, d, d)
    tolerance : float
        Relative error asked of m.
    """

    def __init__(self, measure: TokenMeasure, matrices: np.ndarray, tolerance: float):
        self.measure, self.matrices, self.tolerance = measure, matrices, tolerance
        radius = np.linalg.norm(matrices, ord=2, axis=(1, 2))
        self.degree = np.zeros(len(matrices), int)
        self.is_expanded = np.zeros(len(matrices), bool)
        if measure.dimension == 3 and len(matrices) * measure.count**2 > FEW_PAIRS:
            floor = math.log(tolerance) - radius * np.linalg.norm(measure.mean)  # Jensen: M(xi) >= exp(xi . mean)
            self.degree = np.array([_even_degree(*pair) for pair in zip(radius, floor, strict=True)])
            largest = min(LARGEST_DEGREE, math.sqrt(measure.count / PAIRS_PER_TERM))
            self.is_expanded = self.degree <= largest

    def chunks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield (part, log_values (K, c), mean (K, c, d)) for consecutive parts of the tokens; |mean| <= 1."""
        measure = self.measure
        if self.is_expanded.any():
            lmax = self.degree[self.is_expanded].max()
            moments = measure.moment_coefficients(lmax)
        for start in range(0, measure.count, CHUNK):
            part = slice(start, start + CHUNK)
            xi = measure.positions[part] @ self.matrices
            log_values, mean = np.empty(xi.shape[:2]), np.empty(xi.shape)
            missing = np.ones(xi.shape[:2], bool)
            if self.is_expanded.any():
                some = self.is_expanded
                log_values[some], mean[some], missing[some] = self._expanded(xi[some], moments, lmax)
            for k in np.flatnonzero(missing.any(axis=1)):
                here = missing[k]
                log_values[k, here], mean[k, here] = direct_sum(xi[k, here], measure.positions, measure.weights)
            yield part, log_values, mean

    def _expanded(self, xi, moments, lmax):
        """log M, grad M / M and where they are not accurate enough, for the expanded matrices."""
        values, _ = evaluate_expansion(xi, moments, lmax, self.degree[self.is_expanded])
        good = expansion_is_accurate(values[0], self.tolerance)
        safe = np.where(good, values[0], 1.0)
        mean = np.moveaxis(values[1:], 0, -1) / safe[..., None]
        mean /= np.maximum(1.0, np.linalg.norm(mean, axis=-1))[..., None]
        return np.linalg.norm(xi, axis=-1) + np.log(safe), mean, ~good

    def squared_overlap_sums(self) -> np.ndarray:
        """sum_ij p_i p_j (1 + (x_i . x_j)^2) exp(x_i . B_k x_j), shape (K,), for the Ito rate of noisy weights."""
        out = np.zeros(len(self.matrices))
        some = np.flatnonzero(self.is_expanded)
        if some.size:
            lmax = self.degree[some].max()
            moments = self.measure.moment_coefficients(lmax, second=True)
            moments = np.concatenate([moments[:1], moments[4:]])
            for start in range(0, self.measure.count, CHUNK):
                x, p = self.measure.positions[start : start + CHUNK], self.measure.weights[start : start + CHUNK]
                xi = x @ self.matrices[some]
                values, _ = evaluate_expansion(xi, moments, lmax, self.degree[some])
                pairs = np.array([(1.0 if a == b else 2.0) * x[:, a] * x[:, b] for a, b in PRODUCT_PAIRS])
                total = values[0] + np.einsum("pi,pki->ki", pairs, values[1:])
                out[some] += (total * np.exp(np.linalg.norm(xi, axis=-1))) @ p
        for k in np.flatnonzero(~self.is_expanded):
            out[k] = self._squared_overlap_direct(k)
        return out

    def _squared_overlap_direct(self, k):
        x, p = self.measure.positions, self.measure.weights
        rows, total = max(1, 2**21 // len(x)), 0.0
        for start in range(0, len(x), rows):
            part = x[start : start + rows]
            kernel = np.exp(part @ self.matrices[k] @ x.T) * (1 + (part @ x.T) ** 2)
            total += p[start : start + rows] @ (kernel @ p)
        return total


def _even_degree(radius: float, log_target: float) -> int:
    """The expansion's degree, rounded up to an even one of at least 4 so that few small grids are ever built."""
    degree = max(expansion_degree(radius, log_target), 4)
    return degree + degree % 2
