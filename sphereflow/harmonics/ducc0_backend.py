"""Transforms by ducc0 (wheels everywhere, any grid size)."""

from functools import lru_cache

import ducc0
import numpy as np
from scipy.special import roots_legendre, sph_legendre_p_all

DENSE_BELOW = 32  # latitudes

POINT_ACCURACY = 1e-13  # of transforms at scattered points; ducc0 offers down to 3e-14


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

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (..., nlm) of fields (..., nlat, nlon)."""
        fields = np.ascontiguousarray(values, dtype=float).reshape(-1, 1, self.nlat, self.nlon)
        if self.nlat < DENSE_BELOW:
            return _dense_analysis(fields[:, 0], self.lmax).reshape(*values.shape[:-2], -1)
        out = [ducc0.sht.analysis_2d(map=one, spin=0, **self._options)[0] for one in fields]
        return np.array(out).reshape(*values.shape[:-2], -1)

    def synthesis(self, coefficients: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) of coefficients (..., nlm)."""
        return self._synthesis(coefficients, 1, spin=0).reshape(*coefficients.shape[:-1], self.nlat, self.nlon)

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


@lru_cache(maxsize=32)
def _dense_matrices(nlat: int, lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Fourier matrix (nlon, 2 (lmax + 1)), cosines then minus sines, and weighted Legendre functions (m, l, nlat)."""
    z, weight = roots_legendre(nlat)
    angle = np.outer(np.arange(2 * nlat), np.arange(lmax + 1)) * (np.pi / nlat)
    legendre = sph_legendre_p_all(lmax, lmax, np.arccos(z[::-1]))[0, :, : lmax + 1]  # (l, m, nlat)
    weighted = legendre.transpose(1, 0, 2) * weight[::-1] * (np.pi / nlat)
    return np.concatenate([np.cos(angle), -np.sin(angle)], axis=1), np.ascontiguousarray(weighted)


def _dense_analysis(fields: np.ndarray, lmax: int) -> np.ndarray:
    """Analysis of small fields (k, nlat, nlon) by matrix products, (k, nlm).

    ducc0's own gives results on small grids that differ in the last digit from call to call, in about one of 1,000 calls:
    too often for runs that must be resumed bit for bit.
    """
    fourier, legendre = _dense_matrices(fields.shape[1], lmax)
    waves = (fields @ fourier).reshape(*fields.shape[:2], 2, lmax + 1).transpose(3, 1, 0, 2)  # (m, nlat, k, 2)
    sums = legendre @ waves.reshape(lmax + 1, fields.shape[1], -1)
    sums = sums.reshape(lmax + 1, lmax + 1, len(fields), 2)  # (m, l, k, real and imaginary part)
    m, ell = np.nonzero(np.arange(lmax + 1) >= np.arange(lmax + 1)[:, None])
    chosen = sums[m, ell]
    return np.ascontiguousarray((chosen[..., 0] + 1j * chosen[..., 1]).T)
