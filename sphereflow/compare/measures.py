r"""Measures on the sphere as points with masses, and their distances.

Wasserstein distances have the geodesic cost d(x, y) = angle between x and y and are exact (linear programme) for
measures on few points. Larger ones are coarsened first: every point goes to the nearest of some fixed sites, and the
mass of a site is put at its centroid. That moves mass by known distances, which bounds the error by the triangle
inequality:

    |W_p(mu, nu) - W_p(mu_c, nu_c)| <= (sum_i m_i d(x_i, c_i)^p)^(1/p), added up over both measures.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from sphereflow.harmonics import degree_power, point_coefficients
from sphereflow.particles import TokenMeasure

SITES = 600  # points of a coarsened measure: a linear programme of about 0.1 s
SPECTRUM_DEGREE = 8


@dataclass(frozen=True)
class Measure:
    """Masses on the unit sphere.

    Attributes
    ----------
    points : ndarray, shape (n, d)
        Unit vectors.
    masses : ndarray, shape (n,)
        Positive, of sum 1.
    spread : ndarray, shape (n,), or None
        Radius of the cell that each mass stands for: the largest angle between the point and any point of the cell. However
        the mass is spread in its cell, gathering it at the point moves nothing further. None for tokens, which are points.
    """

    points: np.ndarray
    masses: np.ndarray
    spread: np.ndarray | None = None

    @cached_property
    def _tokens(self) -> TokenMeasure:
        return TokenMeasure(self.points, self.masses)

    @property
    def mean(self) -> np.ndarray:
        """First moments, shape (d,)."""
        return self._tokens.mean

    @property
    def second_moment(self) -> np.ndarray:
        """Second moments, shape (d, d)."""
        return self._tokens.second_moment

    @cached_property
    def coefficients(self) -> np.ndarray:
        """Spherical-harmonic coefficients up to degree SPECTRUM_DEGREE, for d = 3."""
        return point_coefficients(self._tokens.angles, self._tokens.weights, SPECTRUM_DEGREE)


@dataclass(frozen=True)
class Coarse:
    """A measure on few points and, for p = 1 and 2, the bound of what coarsening can have changed in W_p."""

    points: np.ndarray
    masses: np.ndarray
    bound: tuple[float, float]


def spectrum_distance(a: Measure, b: Measure) -> np.ndarray:
    """Distance in each degree l = 1 ... SPECTRUM_DEGREE, (sum_m |a_lm - b_lm|^2)^(1/2) over all orders m."""
    return np.sqrt(degree_power(a.coefficients - b.coefficients, SPECTRUM_DEGREE)[1:])


def coarsen(measure: Measure, sites: int = SITES) -> Coarse:
    """Gather a measure on at most `sites` points; one that has no more is kept as it is."""
    points, masses = measure.points, measure.masses
    spread = np.zeros(len(points)) if measure.spread is None else measure.spread
    if len(points) <= sites:
        return Coarse(points, masses, _bound(masses, spread))
    _, label = KDTree(_sites(points, sites)).query(points)
    _, label = np.unique(label, return_inverse=True)
    total = np.bincount(label, masses)
    center = np.stack([np.bincount(label, masses * x) for x in points.T], axis=-1)
    norm = np.linalg.norm(center, axis=1, keepdims=True)
    first = np.unique(label, return_index=True)[1]
    center = np.where(norm > 1e-9 * total[:, None], center / np.maximum(norm, 1e-300), points[first])
    moved = angle(points, center[label])
    return Coarse(center, total, _bound(masses, moved + spread))


def wasserstein(a: Coarse, b: Coarse) -> tuple[float, float]:
    """W_1 and W_2 with geodesic cost."""
    from ot import emd2  # takes a second to import

    cost = _cost(cdist(a.points, b.points))
    masses = [np.ascontiguousarray(c.masses / c.masses.sum()) for c in (a, b)]
    first, second = (emd2(*masses, cost**p, numItermax=2_000_000) for p in (1, 2))
    return float(max(first, 0.0)), float(np.sqrt(max(second, 0.0)))


def angle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Angles between rows of x and y, accurate for small ones too."""
    return _cost(np.linalg.norm(x - y, axis=-1))


def _cost(chord):
    return 2 * np.arcsin(np.minimum(chord / 2, 1.0))


def _bound(masses, moved):
    masses = masses / masses.sum()
    return float(masses @ moved), float(np.sqrt(masses @ moved**2))


def _sites(points, count):
    """Sites to gather at: a spiral on S^2, equispaced angles on S^1, every k-th point in other dimensions."""
    dimension = points.shape[1]
    if dimension == 2:
        phi = 2 * np.pi * np.arange(count) / count
        return np.stack([np.cos(phi), np.sin(phi)], axis=-1)
    if dimension == 3:
        z = 1 - (2 * np.arange(count) + 1) / count
        phi = np.pi * (1 + np.sqrt(5)) * np.arange(count)
        s = np.sqrt(1 - z**2)
        return np.stack([s * np.cos(phi), s * np.sin(phi), z], axis=-1)
    return points[np.linspace(0, len(points) - 1, count).astype(int)]
