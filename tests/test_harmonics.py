"""Spherical-harmonic transforms: the conventions written out, both libraries, and the self-test that guards them."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import sph_harm_y

from sphereflow.errors import BackendError
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import (
    PRODUCT_PAIRS,
    available_backends,
    base,
    degrees_and_orders,
    ducc0_backend,
    get_transform,
    inner_product,
    pair_moments,
    shtns_backend,
    times_coordinates,
)

GRID = GaussGrid(32)
LMAX = 12
SHTNS = pytest.param("shtns", marks=pytest.mark.shtns)


@pytest.fixture(params=["ducc0", SHTNS])
def transform(request):
    """Each library on a grid that both can serve."""
    return get_transform(GRID.nlat, LMAX, request.param)


@pytest.fixture
def fresh_choice():
    """Forget tested transforms before and after."""
    caches = (base._self_test, base._tested_transform, base._preferred_backend)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def random_coefficients(seed, *batch, lmax=LMAX):
    degree, order = degrees_and_orders(lmax)
    rng = np.random.default_rng(seed)
    shape = (*batch, degree.size)
    return rng.normal(size=shape) + 1j * np.where(order > 0, rng.normal(size=shape), 0.0)


def unit_coefficients(l, m, factor=1.0):
    degree, order = degrees_and_orders(LMAX)
    return np.where((degree == l) & (order == m), factor, 0.0).astype(complex)


def test_the_library_asked_for_is_used(transform, request):
    assert transform.name == request.node.callspec.params["transform"]
    assert (transform.nlat, transform.nlon, transform.lmax) == (32, 64, LMAX)


def test_low_harmonics_are_those_written_in_the_conventions(transform):
    theta, phi = GRID.colatitude[:, None], GRID.longitude[None, :]
    y10 = np.sqrt(3 / (4 * np.pi)) * np.cos(theta) + 0 * phi
    y11 = -np.sqrt(3 / (8 * np.pi)) * np.sin(theta) * np.exp(1j * phi)
    np.testing.assert_allclose(transform.synthesis(unit_coefficients(0, 0)), 1 / np.sqrt(4 * np.pi), atol=1e-14)
    np.testing.assert_allclose(transform.synthesis(unit_coefficients(1, 0)), y10, atol=1e-14)
    np.testing.assert_allclose(transform.synthesis(unit_coefficients(1, 1)), 2 * y11.real, atol=1e-14)
    np.testing.assert_allclose(transform.synthesis(unit_coefficients(1, 1, 1j)), -2 * y11.imag, atol=1e-14)


def test_every_harmonic_is_scipys_and_they_are_orthonormal(transform):
    degree, order = degrees_and_orders(LMAX)
    theta, phi = GRID.colatitude[:, None], GRID.longitude[None, :]
    y = np.array([sph_harm_y(l, m, theta, phi) for l, m in zip(degree, order, strict=True)])
    double = np.where(order > 0, 2.0, 1.0)[:, None, None]
    identity = np.eye(degree.size)
    np.testing.assert_allclose(transform.synthesis(identity), double * y.real, atol=2e-14)
    imaginary = identity[order > 0] * 1j
    np.testing.assert_allclose(transform.synthesis(imaginary), (-double * y.imag)[order > 0], atol=2e-14)
    weighted = (y * GRID.cell_area[:, None]).reshape(degree.size, -1)
    np.testing.assert_allclose(weighted @ y.reshape(degree.size, -1).conj().T, identity, atol=1e-13)
    np.testing.assert_allclose(transform.analysis(y.real) + 1j * transform.analysis(y.imag), identity, atol=1e-13)


def test_coefficients_lie_where_the_conventions_say():
    degree, order = degrees_and_orders(LMAX)
    assert degree.size == (LMAX + 1) * (LMAX + 2) // 2
    for l, m in [(0, 0), (5, 0), (1, 1), (7, 3), (LMAX, LMAX)]:
        index = m * (2 * LMAX + 1 - m) // 2 + l
        assert (degree[index], order[index]) == (l, m)
    with pytest.raises(ValueError):
        degree[0] = 1


def test_round_trip_and_parseval_on_stacks(transform):
    a, b = random_coefficients(1, 2, 3), random_coefficients(2, 2, 3)
    fa, fb = transform.synthesis(a), transform.synthesis(b)
    assert fa.shape == (2, 3, 32, 64)
    np.testing.assert_allclose(transform.analysis(fa), a, atol=1e-13)
    np.testing.assert_allclose(inner_product(a, b, LMAX), GRID.integrate(fa * fb), rtol=1e-12, atol=1e-12)
    assert inner_product(a[0, 0], a[0, 0], LMAX) == pytest.approx(GRID.integrate(fa[0, 0] ** 2), rel=1e-13)


def test_batches_equal_one_by_one_whatever_the_memory_layout(transform):
    a = random_coefficients(3, 4)
    fields = transform.synthesis(a)
    one_by_one = np.array([transform.synthesis(one) for one in a])
    assert np.array_equal(fields, one_by_one)
    assert np.array_equal(transform.gradient(a), np.array([transform.gradient(one) for one in a]))
    assert np.array_equal(transform.analysis(np.asfortranarray(fields)), transform.analysis(fields))
    assert np.array_equal(transform.synthesis(np.asfortranarray(a)), fields)
    assert np.array_equal(transform.analysis(fields[::2, :, :]), transform.analysis(fields)[::2])


@pytest.fixture
def shuffled_heap():
    """Function that moves small blocks of memory, so that the tables a library makes in a call lie elsewhere each time."""
    libc, held, rng = ctypes.CDLL(None), [], np.random.default_rng(5)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def shuffle(lmax):
        sizes = np.concatenate([8 * (lmax + np.arange(-1, 8)), 16 * (lmax + np.arange(6)), 8 * (2 * lmax + np.arange(4))])
        held.extend(libc.malloc(ctypes.c_size_t(int(size))) for size in rng.choice(sizes, 6))
        while len(held) > 400:
            libc.free(held.pop(int(rng.integers(len(held)))))

    yield shuffle
    for block in held:
        libc.free(block)


@pytest.mark.parametrize("backend", ["ducc0", SHTNS])
@pytest.mark.parametrize("nlat, lmax", [(16, 13), (16, 15), (40, 12)])
def test_last_digits_do_not_depend_on_the_memory_layout(backend, nlat, lmax, shuffled_heap):
    transform = get_transform(nlat, lmax, backend)
    coefficients = random_coefficients(8, lmax=lmax)
    values = transform.synthesis(coefficients)
    seen = set()
    for _ in range(500):
        shuffled_heap(lmax)
        results = transform.analysis(values), transform.synthesis(coefficients), transform.gradient(coefficients)
        seen.add(b"".join(result.tobytes() for result in results))
    assert len(seen) == 1


def test_analysis_is_gauss_quadrature(transform):
    """Also of data that no grid resolves: the finite-volume mass and the degree-0 coefficient are the same number."""
    values = np.random.default_rng(4).uniform(size=GRID.shape)
    theta, phi = GRID.colatitude[:, None], GRID.longitude[None, :]
    coefficients = transform.analysis(values)
    degree, order = degrees_and_orders(LMAX)
    for l, m in [(0, 0), (3, 0), (5, 2), (LMAX, LMAX)]:
        expected = np.sum(values * np.conj(sph_harm_y(l, m, theta, phi)) * GRID.cell_area[:, None])
        got = coefficients[(degree == l) & (order == m)][0]
        assert got == pytest.approx(expected, abs=1e-14)
    assert coefficients[0].real * np.sqrt(4 * np.pi) == pytest.approx(GRID.integrate(values), rel=1e-14)


def test_gradients_of_polynomials_are_their_tangential_derivatives(transform):
    """f = c.x + x.M x has gradient P_x (c + 2 M x), components to the south and to the east."""
    c, m = np.array([0.3, -0.7, 0.5]), np.array([[1.0, 0.4, -0.2], [0.4, -0.3, 0.6], [-0.2, 0.6, 0.1]])
    x = GRID.points
    euclidean = c + 2 * x @ m
    expected = np.array([np.sum(euclidean * GRID.e_theta, axis=-1), np.sum(euclidean * GRID.e_phi, axis=-1)])
    field = x @ c + np.einsum("ijc,cd,ijd->ij", x, m, x)
    np.testing.assert_allclose(transform.gradient(transform.analysis(field)), expected, atol=1e-13)


def test_gradients_agree_with_finite_differences(transform):
    a = random_coefficients(5)
    step = 1e-6
    degree, order = degrees_and_orders(LMAX)

    def value(theta, phi):
        y = sph_harm_y(degree, order, theta, phi)
        return np.sum(np.where(order > 0, 2, 1) * (a * y).real)

    gradient = transform.gradient(a)
    for i, j in [(0, 0), (3, 17), (16, 40), (31, 63)]:
        theta, phi = GRID.colatitude[i], GRID.longitude[j]
        south = (value(theta + step, phi) - value(theta - step, phi)) / (2 * step)
        east = (value(theta, phi + step) - value(theta, phi - step)) / (2 * step * np.sin(theta))
        np.testing.assert_allclose(gradient[:, i, j], [south, east], rtol=1e-6, atol=1e-6)


@pytest.mark.shtns
@pytest.mark.parametrize(("nlat", "lmax"), [(32, 31), (48, 20), (64, 63)])
def test_both_libraries_agree(nlat, lmax):
    a, b = get_transform(nlat, lmax, "shtns"), get_transform(nlat, lmax, "ducc0")
    assert (a.name, b.name) == ("shtns", "ducc0")
    coefficients = random_coefficients(6, lmax=lmax) / (1 + degrees_and_orders(lmax)[0])
    field, gradient = a.synthesis(coefficients), a.gradient(coefficients)
    assert np.abs(b.synthesis(coefficients) - field).max() < 1e-12 * np.abs(field).max()
    assert np.abs(b.gradient(coefficients) - gradient).max() < 1e-12 * np.abs(gradient).max()
    assert np.abs(a.analysis(field) - b.analysis(field)).max() < 1e-12 * np.abs(coefficients).max()


@pytest.mark.shtns
def test_grids_too_small_for_shtns_are_served_by_ducc0():
    assert get_transform(16, 8, "shtns").name == "ducc0"
    assert get_transform(32, 8, "shtns").name == "shtns"
    assert get_transform(32, 8, "auto").name == "shtns"


@pytest.mark.shtns
def test_shtns_prints_nothing():
    program = "from sphereflow.harmonics import get_transform; print(get_transform(32, 10, 'shtns').name)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "shtns\n"


def test_auto_takes_ducc0_where_shtns_does_not_load(fresh_choice, monkeypatch):
    def missing_fftw():
        raise BackendError("shtns cannot be imported (libfftw3.so.3: cannot open shared object file)")

    monkeypatch.setattr(shtns_backend, "import_shtns", missing_fftw)
    assert get_transform(32, 8, "auto").name == "ducc0"
    with pytest.raises(BackendError, match="libfftw3"):
        get_transform(32, 8, "shtns")


def test_missing_or_old_shtns_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "shtns", None)
    with pytest.raises(BackendError, match=r"shtns cannot be imported .*; install FFTW .* or use backend = \"ducc0\""):
        shtns_backend.import_shtns()
    monkeypatch.setitem(sys.modules, "shtns", type("Old", (), {"__version__": "3.6.9"}))
    with pytest.raises(BackendError, match=r"shtns 3\.6\.9 is too old: 3\.7"):
        shtns_backend.import_shtns()


def broken(method, change):
    """A ducc0 transform whose one method is wrong."""

    def wrong(self, values):
        return change(getattr(super(kind, self), method)(values))

    kind = type("Broken", (ducc0_backend.Ducc0Transform,), {method: wrong})
    return kind


@pytest.mark.parametrize(
    ("method", "change", "what"),
    [
        ("synthesis", lambda f: f * (1 + 1e-9), "Y_10"),
        ("synthesis", lambda f: f * np.nan, "Y_10"),
        ("synthesis", lambda f: np.roll(f, 1, axis=-1), "Y_11"),
        ("analysis", lambda a: np.conj(a), "round trip"),
        ("analysis", lambda a: a * (1 - 1e-10), "round trip"),
    ],
)
def test_a_library_that_fails_its_self_test_is_refused(fresh_choice, monkeypatch, method, change, what):
    monkeypatch.setattr(ducc0_backend, "Ducc0Transform", broken(method, change))
    with pytest.raises(BackendError, match=rf"ducc0 fails its self-test: {what} is off by .*model\.backend"):
        get_transform(16, 8, "ducc0")


def test_unknown_backends_are_refused_by_name():
    with pytest.raises(BackendError, match=r"model\.backend: 'fftw' is not known; must be one of auto, shtns, ducc0"):
        get_transform(32, 10, "fftw")


@pytest.mark.parametrize("lmax", [32, 40])
def test_degrees_beyond_the_grid_are_refused(lmax):
    with pytest.raises(BackendError, match=f"32 latitudes resolves degrees up to 31, not {lmax}"):
        get_transform(32, lmax, "ducc0")


def test_transforms_are_built_once():
    assert get_transform(16, 8, "ducc0") is get_transform(16, 8, "ducc0")
    assert available_backends()["ducc0"]


def test_multiplication_by_the_coordinates_is_exact():
    """(x_a f)_lm from the coefficients of f against the analysis of the product on a grid that resolves it."""
    rng = np.random.default_rng(4)
    transform = get_transform(GRID.nlat, LMAX, "ducc0")
    _, order = degrees_and_orders(LMAX)
    f = rng.normal(size=order.size) + 1j * np.where(order > 0, rng.normal(size=order.size), 0.0)
    values, points = transform.synthesis(f), np.moveaxis(GRID.points, -1, 0)
    expected = get_transform(GRID.nlat, LMAX - 1, "ducc0").analysis(points * values)
    np.testing.assert_allclose(times_coordinates(f, LMAX), expected, atol=1e-13)
    np.testing.assert_allclose(times_coordinates(np.array([f, 2 * f]), LMAX), [expected, 2 * expected], atol=1e-13)
    pairs = np.array([points[a] * points[b] for a, b in PRODUCT_PAIRS])
    expected = get_transform(GRID.nlat, LMAX - 2, "ducc0").analysis(pairs * values)
    np.testing.assert_allclose(pair_moments(f, LMAX, LMAX - 2), expected, atol=1e-13)
