"""Transforms by ducc0 (wheels everywhere, any grid size)."""

import ducc0
import numpy as np


class Ducc0Transform:
    """`HarmonicTransform` by ducc0; see `sphereflow.harmonics` for the conventions."""

    name = "ducc0"

    def __init__(self, nlat: int, lmax: int, nthreads: int = 1):
        self.nlat, self.nlon, self.lmax = nlat, 2 * nlat, lmax
        self._options = dict(lmax=lmax, mmax=lmax, geometry="GL", nthreads=nthreads)

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (..., nlm) of fields (..., nlat, nlon)."""
        fields = np.ascontiguousarray(values, dtype=float).reshape(-1, 1, self.nlat, self.nlon)
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
