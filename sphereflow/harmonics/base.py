"""The transform protocol, the choice of a library, and its self-test."""

import importlib.util
from functools import lru_cache
from typing import Protocol

import numpy as np

from sphereflow.errors import BackendError
from sphereflow.harmonics.coefficients import degrees_and_orders

BACKENDS = ("shtns", "ducc0")
SELF_TEST_TOLERANCE = 1e-11


class HarmonicTransform(Protocol):
    """Transforms between fields on a Gauss grid and coefficients up to a degree `lmax`.

    Every method takes stacks: leading axes are batch axes.
    """

    name: str
    nlat: int
    nlon: int
    lmax: int

    def analysis(self, values: np.ndarray) -> np.ndarray:
        """Coefficients (..., nlm) of fields (..., nlat, nlon), by Gauss quadrature."""

    def synthesis(self, coefficients: np.ndarray) -> np.ndarray:
        """Fields (..., nlat, nlon) of coefficients (..., nlm)."""

    def gradient(self, coefficients: np.ndarray) -> np.ndarray:
        """Surface gradients (..., 2, nlat, nlon) of coefficients (..., nlm); components to the south and east."""


def available_backends() -> dict[str, bool]:
    """Which transform libraries are installed here, by name."""
    return {name: importlib.util.find_spec(name) is not None for name in BACKENDS}


def get_transform(nlat: int, lmax: int, backend: str = "auto", nthreads: int = 1) -> HarmonicTransform:
    """A transform for the Gauss grid with `nlat` x `2 nlat` nodes.

    Parameters
    ----------
    nlat : int
        Number of Gauss latitudes, larger than `lmax`.
    lmax : int
        Largest degree and order.
    backend : {"auto", "shtns", "ducc0"}
        `auto` takes shtns wherever it imports and supports the grid (it needs at least 32 latitudes), else ducc0.
        With "shtns" grids too small for it, such as the kernel's own, are still served by ducc0.
    nthreads : int
        Threads of ducc0; shtns is used with one.

    Raises
    ------
    BackendError
        If the library is unknown, cannot be imported, is too old, or fails the self-test.
    """
    if backend not in ("auto", *BACKENDS):
        raise BackendError(f"model.backend: {backend!r} is not known; must be one of auto, {', '.join(BACKENDS)}")
    if lmax >= nlat:
        raise BackendError(f"a Gauss grid of {nlat} latitudes resolves degrees up to {nlat - 1}, not {lmax}")
    if backend == "auto":
        backend = _preferred_backend()
    return _tested_transform(backend, nlat, lmax, nthreads)


@lru_cache(maxsize=1)
def _preferred_backend() -> str:
    """shtns where it really imports (an installed one may lack FFTW's library), else ducc0."""
    from sphereflow.harmonics import shtns_backend

    try:
        shtns_backend.import_shtns()
    except BackendError:
        return "ducc0"
    return "shtns"


@lru_cache(maxsize=32)
def _tested_transform(backend: str, nlat: int, lmax: int, nthreads: int) -> HarmonicTransform:
    """Build a transform once and test it, at most once per library and process."""
    from sphereflow.harmonics import ducc0_backend

    if backend == "shtns":
        from sphereflow.harmonics import shtns_backend

        _self_test("shtns")
        if nlat >= shtns_backend.MINIMUM_NLAT:
            return shtns_backend.ShtnsTransform(nlat, lmax)
    _self_test("ducc0")
    return ducc0_backend.Ducc0Transform(nlat, lmax, nthreads)


@lru_cache(maxsize=2)
def _self_test(backend: str) -> None:
    """Check Y_10, Y_11 and a round trip on a small grid against their definitions."""
    from sphereflow.harmonics import ducc0_backend

    nlat, lmax = 32, 10
    if backend == "shtns":
        from sphereflow.harmonics import shtns_backend

        transform = shtns_backend.ShtnsTransform(nlat, lmax)
    else:
        transform = ducc0_backend.Ducc0Transform(nlat, lmax, 1)
    z = np.polynomial.legendre.leggauss(nlat)[0][::-1, None]
    lon = np.arange(2 * nlat)[None, :] * np.pi / nlat
    degree, order = degrees_and_orders(lmax)
    y10, y11 = np.zeros((2, degree.size), complex)
    y10[(degree == 1) & (order == 0)] = 1.0
    y11[(degree == 1) & (order == 1)] = 1.0
    expected_10 = np.sqrt(3 / (4 * np.pi)) * z + 0 * lon
    expected_11 = 2 * -np.sqrt(3 / (8 * np.pi)) * np.sqrt(1 - z**2) * np.cos(lon)
    random = np.cos(np.arange(degree.size)) + 1j * np.where(order > 0, np.sin(np.arange(degree.size)), 0.0)
    errors = {
        "Y_10": np.abs(transform.synthesis(y10) - expected_10).max(),
        "Y_11": np.abs(transform.synthesis(y11) - expected_11).max(),
        "round trip": np.abs(transform.analysis(transform.synthesis(random)) - random).max(),
    }
    for what, error in errors.items():
        if not error < SELF_TEST_TOLERANCE:
            raise BackendError(
                f"the transform library {backend} fails its self-test: {what} is off by {error:.1e} "
                f"(allowed {SELF_TEST_TOLERANCE:.0e}); reinstall it or choose another with model.backend"
            )
