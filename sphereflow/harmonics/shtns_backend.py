"""Transforms by SHTns (built from source against FFTW; the faster of the two)."""

import contextlib
import os
import sys

import numpy as np

from sphereflow.errors import BackendError

MINIMUM_NLAT = 32  # on smaller grids SHTns ends the whole process with a run-time error
MINIMUM_VERSION = (3, 7)


@contextlib.contextmanager
def _quiet_stdout():
    """Drop what is written to standard output: SHTns prints banners there that no verbosity setting silences.

    Both ways are closed, Python's `sys.stdout` (which notebooks replace) and file descriptor 1 beneath it.
    """
    sys.stdout.flush()
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        try:
            saved = os.dup(1)
        except OSError:  # no standard output at all: nothing more to keep quiet
            yield
            return
        try:
            os.dup2(null.fileno(), 1)
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)


def import_shtns():
    """The library; raises BackendError if it is missing, does not load or is too old."""
    try:
        with _quiet_stdout():
            import shtns
    except ImportError as error:
        raise BackendError(
            f"model.backend: shtns cannot be imported ({error}); install FFTW and then "
            "SHTNS_OPENMP=0 pip install 'sphereflow[shtns]', or use backend = \"ducc0\""
        ) from error
    version = tuple(int(part) for part in shtns.__version__.split(".")[:2])
    if version < MINIMUM_VERSION:
        raise BackendError(f"shtns {shtns.__version__} is too old: 3.7 or newer is needed")
    return shtns


class ShtnsTransform:
    """`HarmonicTransform` by SHTns; see `sphereflow.harmonics` for the conventions.

    `polar_opt=0` keeps full accuracy near the poles (the default truncation limits the agreement with ducc0). `sht_quick_init`
    chooses algorithms by the sizes alone; `sht_gauss` would time them, on a busy machine with another choice in each process.
    """

    name = "shtns"

    def __init__(self, nlat: int, lmax: int):
        shtns = import_shtns()
        self.nlat, self.nlon, self.lmax = nlat, 2 * nlat, lmax
        with _quiet_stdout():
            self._sht = shtns.sht(lmax, lmax, norm=shtns.sht_orthonormal, nthreads=1)
            self._sht.set_grid(nlat, 2 * nlat, flags=shtns.sht_quick_init | shtns.SHT_PHI_CONTIGUOUS, polar_opt=0.0)
        self.nlm = self._sht.nlm

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (..., nlm) of fields (..., nlat, nlon)."""
        fields = np.ascontiguousarray(values, dtype=float).reshape(-1, self.nlat, self.nlon)
        out = np.empty((len(fields), self.nlm), complex)
        for one, target in zip(fields, out, strict=True):
            self._sht.spat_to_SH(one, target)
        return out.reshape(*values.shape[:-2], -1)

    def synthesis(self, coefficients: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) of coefficients (..., nlm)."""
        stack = np.ascontiguousarray(coefficients, dtype=complex).reshape(-1, self.nlm)
        out = np.empty((len(stack), self.nlat, self.nlon))
        for one, target in zip(stack, out, strict=True):
            self._sht.SH_to_spat(one, target)
        return out.reshape(*coefficients.shape[:-1], self.nlat, self.nlon)

    def gradient(self, coefficients: np.ndarray) -> np.ndarray:
        """Surface gradients (..., 2, nlat, nlon), components to the south and east."""
        stack = np.ascontiguousarray(coefficients, dtype=complex).reshape(-1, self.nlm)
        out = np.empty((len(stack), 2, self.nlat, self.nlon))
        for one, target in zip(stack, out, strict=True):
            self._sht.SHsph_to_spat(one, target[0], target[1])
        return out.reshape(*coefficients.shape[:-1], 2, self.nlat, self.nlon)
