"""The moment generating function of a density: expansion, direct sum, and the choice between them.

The yardstick is the closed form for von Mises-Fisher data, which holds for every matrix, symmetric or not.
"""

import math

import numpy as np
import pytest
from closed_forms import langevin, log_i0, tangent, unit, vmf, vmf_mobility
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ive, logsumexp, sph_harm_y, spherical_in

from sphereflow.grid import GaussGrid
from sphereflow.harmonics import change_degree, coordinate_moments, degrees_and_orders
from sphereflow.kernel import (
    LARGEST_RADIUS,
    direct_sum,
    evaluate_expansion,
    expansion_degree,
    expansion_error,
    expansion_is_accurate,
    log_mobility,
    narrow_kernel,
)
from sphereflow.mobility import DensityExpansion, MobilitySet
from sphereflow.sampling import sampling_grid

GRID = GaussGrid(64)
COARSE = GaussGrid(16)
MU = unit([0.48, 0.6, -0.64])
TOLERANCE = 1e-10


def dirac_coefficients(y, lmax):
    """Coefficients conj(Y_lm(y)) of a unit mass at y."""
    degree, order = degrees_and_orders(lmax)
    return np.conj(sph_harm_y(degree, order, np.arccos(y[2]), np.arctan2(y[1], y[0])))


def matrices_of_norm(norm, seed=0):
    """Positive, negative, indefinite, skew, general: one of each, all of spectral norm `norm`."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    skew = rng.normal(size=(3, 3))
    kinds = {
        "positive": q @ np.diag([1.0, 0.6, 0.3]) @ q.T,
        "negative": -q @ np.diag([1.0, 0.6, 0.3]) @ q.T,
        "indefinite": q @ np.diag([1.0, -0.8, 0.3]) @ q.T,
        "singular": q @ np.diag([1.0, -1.0, 0.0]) @ q.T,
        "skew": skew - skew.T,
        "general": rng.normal(size=(3, 3)),
    }
    return {name: norm * a / np.linalg.norm(a, 2) for name, a in kinds.items()}


def sample_points(seed=0, count=200):
    """Random unit vectors together with both poles, the mass, its antipode and a point a hair from the pole."""
    special = np.array([[0, 0, 1], [0, 0, -1], MU, -MU, unit([1e-9, 0, 1]), [1, 0, 0], [0, -1, 0]])
    return np.concatenate([special, unit(np.random.default_rng(seed).normal(size=(count, 3)))])


def expansion_of(kappa, mu=MU, grid=GRID, tolerance=TOLERANCE):
    return DensityExpansion(grid, vmf(grid.points, mu, kappa), tolerance)


# --- degrees ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("radius", "published"),
    [
        (1, (8, 11, 13)),
        (2, (10, 13, 16)),
        (4.5, (14, 18, 21)),
        (8, (18, 23, 26)),
        (10, (20, 25, 29)),
        (20, (28, 34, 39)),
    ],
)
def test_degrees_are_those_of_the_prototype(radius, published):
    """Relative to the uniform density's mobility i_0(radius), tolerances 1e-6, 1e-9, 1e-12."""
    for tolerance, expected in zip((1e-6, 1e-9, 1e-12), published, strict=True):
        assert abs(expansion_degree(radius, math.log(tolerance) + float(log_i0(radius))) - expected) <= 3


@pytest.mark.parametrize("radius", [0.0625, 0.5, 3.0, 10.0, 47.5])
@pytest.mark.parametrize("log_target", [-25.0, -10.0, 2.0])
def test_the_degree_is_the_smallest_whose_tail_meets_the_target(radius, log_target):
    degree = np.arange(400)
    terms = (2 * degree + 1) * spherical_in(degree, radius)
    tail = np.cumsum(terms[::-1])[::-1]  # tail[l] = sum from l on
    chosen = expansion_degree(radius, log_target)
    assert tail[chosen + 1] <= math.exp(log_target) * (1 + 1e-9)
    assert chosen == 0 or tail[chosen] > math.exp(log_target) * (1 - 1e-9)


def test_degrees_between_tabulated_radii_are_on_the_safe_side():
    for radius in (0.01, 1.03, 7.77):
        assert expansion_degree(radius, -20.0) >= expansion_degree(16 * radius // 1 / 16, -20.0)
        tail = sum((2 * l + 1) * spherical_in(l, radius) for l in range(expansion_degree(radius, -20.0) + 1, 80))
        assert tail <= math.exp(-20.0)


def test_huge_radii_cost_nothing():
    for radius in (2 * LARGEST_RADIUS, 1e12, 1e300):
        assert expansion_degree(radius, -radius) == LARGEST_RADIUS


# --- the expansion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [MU, np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, -1.0]), unit([-1, 2, 0])])
def test_the_expansion_of_a_point_mass_is_the_plane_wave(y):
    """exp(-|xi|) exp(+-xi . y) at both signs; heads with their own degree; points that fill no whole block."""
    lmax = 60
    for count in (1, 63, 64, 130):
        x = unit(np.random.default_rng(count).normal(size=(count, 3)))
        xi = np.stack([0.0 * x, 1e-12 * x, 0.3 * x, 3.0 * x, 12.0 * x])
        degree = np.array([0, 1, 30, 40, 60])
        plus, minus = evaluate_expansion(xi, dirac_coefficients(y, lmax)[None], lmax, degree)
        scale = -np.linalg.norm(xi, axis=-1)
        np.testing.assert_allclose(plus[0], np.exp(scale + xi @ y), rtol=0, atol=1e-14)
        np.testing.assert_allclose(minus[0], np.exp(scale - xi @ y), rtol=0, atol=1e-14)


def test_a_truncated_expansion_misses_what_the_bound_says():
    """Along the mass the neglected terms all add up: the bound of `expansion_degree` is attained."""
    radius, lmax = 6.0, 60
    for degree in (5, 10, 20):
        plus, _ = evaluate_expansion(radius * MU[None, None], dirac_coefficients(MU, lmax)[None], lmax, np.array([degree]))
        tail = sum((2 * l + 1) * spherical_in(l, radius) for l in range(degree + 1, 80))
        missed = math.exp(radius) * (1 - plus[0, 0, 0])
        assert missed == pytest.approx(tail, rel=1e-6, abs=1e-12)


def test_several_densities_share_one_pass():
    """rho and y_i rho together give what each gives alone; the gradient of a point mass is y exp(xi . y)."""
    lmax = 40
    sets = dirac_coefficients(MU, lmax)[None] * np.array([1.0, *MU])[:, None]
    xi = 4.0 * sample_points()[None]
    plus, minus = evaluate_expansion(xi, sets, lmax)
    for s, factor in enumerate([1.0, *MU]):
        alone = evaluate_expansion(xi, sets[s : s + 1], lmax)
        np.testing.assert_allclose(plus[s], alone[0][0], atol=1e-16)
        np.testing.assert_allclose(minus[s], alone[1][0], atol=1e-16)
        np.testing.assert_allclose(plus[s], factor * np.exp(xi @ MU - 4.0), atol=1e-14)


@pytest.mark.parametrize("radius", [0.0, 1e-9, 1e-3, 0.5, 30.0, 700.0, 1e4])
def test_the_uniform_density_gives_i0_at_any_radius(radius):
    coefficients = np.zeros((1, 66), complex)
    coefficients[0, 0] = 1 / np.sqrt(4 * np.pi)
    plus, minus = evaluate_expansion(radius * sample_points()[None], coefficients, 10)
    expected = -math.expm1(-2 * radius) / (2 * radius) if radius else 1.0
    np.testing.assert_allclose(plus, expected, rtol=1e-13)
    np.testing.assert_allclose(minus, expected, rtol=1e-13)


@pytest.mark.parametrize("radius", [1e-6, 0.1, 2.0, 15.0, 200.0, 3000.0])
def test_each_degree_carries_its_bessel_function(radius):
    """A single harmonic Y_l0 is multiplied by 4 pi i_l(r): also where r is far above or far below l."""
    for l in (1, 2, 7, 30):
        coefficients = np.zeros((1, 31 * 32 // 2), complex)
        coefficients[0, l] = 1.0
        plus, minus = evaluate_expansion(np.array([[[0.0, 0.0, radius]]]), coefficients, 30)
        scaled = math.sqrt(math.pi / (2 * radius)) * ive(l + 0.5, radius)
        expected = 4 * math.pi * scaled * math.sqrt((2 * l + 1) / (4 * math.pi))
        assert plus[0, 0, 0] == pytest.approx(expected, rel=1e-12, abs=1e-300)
        assert minus[0, 0, 0] == pytest.approx((-1) ** l * expected, rel=1e-12, abs=1e-300)


def test_the_accuracy_check_asks_for_digits_left_after_cancellation():
    values = np.array([1.0, 1e-4, 1e-6, 0.0, -1e-3])
    assert expansion_is_accurate(values, 1e-10).tolist() == [True, True, False, False, False]
    assert not expansion_is_accurate(np.array([1e-4]), 1e-12).any()


@pytest.mark.parametrize("kappa", [3.0, 5.0, 20.0])
@pytest.mark.parametrize("radius", [100.0, 1e3, 1e4])
def test_the_error_estimate_of_a_cut_expansion_holds_and_is_not_wild(kappa, radius):
    lmax = GRID.nlat - 1
    x = sample_points(count=2000)
    coefficients = expansion_of(kappa).coefficients(lmax)
    got, _ = evaluate_expansion(radius * x[None], coefficients[None], lmax)
    size = np.linalg.norm(radius * x + kappa * MU, axis=1)
    longer = kappa * (2 * radius * x @ MU + kappa) / (size + radius)  # size - radius without cancellation
    exact = np.exp(longer - log_i0(kappa)) * -np.expm1(-2 * size) / (2 * size)
    error = np.abs(got[0, 0] - exact)
    estimate = expansion_error(np.full(1, radius), coefficients, lmax)[0]
    assert error[exact < 0.1 * exact.max()].max() < estimate, "where it decides"
    assert error.max() < 4 * estimate < 4e3 * error.max()


# --- the direct sum --------------------------------------------------------------------------------------------------


def naive(xi, points, mass):
    weight = mass * np.exp(xi @ points.T)
    return np.log(weight.sum(axis=1)), weight @ points / weight.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_direct_sum_is_the_naive_one(d):
    rng = np.random.default_rng(d)
    xi, points, mass = rng.normal(size=(7, d)), rng.normal(size=(4, d)), np.array([0.5, 0.0, 2.0, 1e-9])
    for got, expected in zip(direct_sum(xi, points, mass), naive(xi, points, mass), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_the_direct_sum_does_not_depend_on_its_chunks():
    rng = np.random.default_rng(0)
    xi, points, mass = rng.normal(size=(50, 3)), unit(rng.normal(size=(30, 3))), rng.uniform(size=30)
    whole = direct_sum(xi, points, mass)
    for chunk in (1, 31, 200):
        for got, expected in zip(direct_sum(xi, points, mass, chunk), whole, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-14)


@pytest.mark.parametrize("size", [1e3, 1e8, 1e300])
def test_the_direct_sum_neither_overflows_nor_leaves_the_ball(size):
    """One mass, however small, stands alone at the top; the mean is that point. Ties are shared by mass."""
    points = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [1.0, 0.0, 0.0]])
    mass = np.array([1e-200, 1.0, 3e-200])
    log_values, mean = direct_sum(np.array([[0.0, 0.0, size], [size, 0.0, size]]), points, mass)
    np.testing.assert_allclose(log_values, size + np.log([1e-200, 4e-200]), rtol=1e-14)
    np.testing.assert_allclose(mean, [[0, 0, 1], [0.75, 0, 0.25]], atol=1e-13)


def test_masses_of_zero_are_never_looked_at():
    points = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    log_values, mean = direct_sum(np.array([[0.0, 0.0, 1e5]]), points, np.array([0.0, 1.0]))
    assert log_values[0] == 0.0
    np.testing.assert_array_equal(mean, [[1.0, 0.0, 0.0]])


# --- both together, against the closed form --------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("norm", [0.1, 1.0, 5.0, 10.0])
def test_mobility_and_gradient_are_right_everywhere_for_any_matrix(kappa, norm):
    """Errors of m and grad m / m at most 1e-9 of m: at random points, the poles, the mass and its antipode."""
    e = expansion_of(kappa)
    x = sample_points()
    points, mass = e.cells
    for name, a in matrices_of_norm(norm).items():
        log_m, mean = log_mobility(x @ a, e.moments_full, GRID.nlat - 1, points, mass, TOLERANCE)
        exact_log, exact_mean = vmf_mobility(x, a, MU, kappa)
        assert np.abs(np.expm1(log_m - exact_log)).max() < 1e-9, name
        assert np.abs(mean - exact_mean).max() < 1e-9, name


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    entries=st.lists(st.floats(-1, 1), min_size=9, max_size=9),
    norm=st.floats(0.0, 10.0),
    kappa=st.floats(1.0, 100.0),
    mu=st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda v: np.linalg.norm(v) > 1e-3),
)
def test_mobility_is_right_for_whatever_matrix_concentration_and_direction(entries, norm, kappa, mu):
    a = np.array(entries).reshape(3, 3)
    a *= norm / max(np.linalg.norm(a, 2), 1e-3)
    mu = unit(mu)
    e = expansion_of(kappa, mu)
    x = np.concatenate([sample_points(count=50), [mu, -mu]])
    points, mass = e.cells
    log_m, mean = log_mobility(x @ a, e.moments_full, GRID.nlat - 1, points, mass, TOLERANCE)
    exact_log, exact_mean = vmf_mobility(x, a, mu, kappa)
    assert np.abs(np.expm1(log_m - exact_log)).max() < 1e-9
    assert np.abs(mean - exact_mean).max() < 1e-9


@pytest.mark.parametrize("kappa", [3.0, 100.0])
@pytest.mark.parametrize("norm", [2.0, 6.0, 10.0])
def test_mobility_sets_are_right_on_any_grid_for_all_heads_at_once(kappa, norm):
    heads = matrices_of_norm(norm, seed=1)
    m = MobilitySet(expansion_of(kappa), np.array(list(heads.values())), gradient=True)
    for nlat in (48, 24) if m.smallest_grid() <= 24 else (48,):
        x = GaussGrid(nlat).points
        log_m, mean = m.log_on(nlat), m.mean_on(nlat)
        for k, (name, a) in enumerate(heads.items()):
            exact_log, exact_mean = vmf_mobility(x, a, MU, kappa)
            assert np.abs(np.expm1(log_m[k] - exact_log)).max() < 1e-9, name
            assert np.abs(np.moveaxis(mean[k], 0, -1) - exact_mean).max() < 1e-9, name


def test_cancellation_sends_a_head_to_the_direct_sum():
    """Beyond |A| ~ 6 the expansion has lost its digits where exp(x . A y) is smallest on the mass."""
    kappa, x = 100.0, np.concatenate([[MU, -MU], sample_points()])
    e = expansion_of(kappa)
    a = np.stack([2 * np.eye(3), 10 * np.eye(3)])
    m = MobilitySet(e, a)
    assert m.pointwise.tolist() == [1]
    exact = vmf_mobility(x, a[1], MU, kappa)[0]
    alone, _ = evaluate_expansion((x @ a[1])[None], e.coefficients(63)[None], 63)
    lost = np.abs(alone[0, 0] * np.exp(10.0 - exact) - 1)
    assert lost[1] > 1e-9 > lost[0], "the expansion alone is wrong at the antipode and right at the mass"
    points, mass = e.cells
    got, _ = log_mobility(x @ a[1], e.moments_full, 63, points, mass, TOLERANCE)
    assert np.abs(np.expm1(got - exact)).max() < 1e-9


def large_matrices():
    for norm in (20.0, 100.0, 700.0, 1e3, 1e4):
        for name in ("positive", "negative", "indefinite", "general"):
            yield pytest.param(matrices_of_norm(norm)[name], id=f"{name}-{norm:g}")


@pytest.mark.parametrize("kappa", [5.0, 20.0])
@pytest.mark.parametrize("a", list(large_matrices()))
def test_large_matrices_are_right_where_the_mass_is(a, kappa):
    """|v - exact| weighted by the density is at most 1e-6 |A|, and |v| <= |A|: for kernels far below the grid."""
    norm = np.linalg.norm(a, 2)
    x = COARSE.points
    m = MobilitySet(expansion_of(kappa), a[None], gradient=True)
    mean = np.moveaxis(m.mean_on(COARSE.nlat)[0], 0, -1)
    exact_log, exact_mean = vmf_mobility(x, a, MU, kappa)
    v, exact = tangent(x, mean @ a.T), tangent(x, exact_mean @ a.T)
    assert np.linalg.norm(v, axis=-1).max() <= norm * (1 + 1e-12)
    density = vmf(x, MU, kappa)
    assert COARSE.integrate(np.linalg.norm(v - exact, axis=-1) * density) < 1e-6 * norm
    assert COARSE.integrate(np.abs(m.log_on(COARSE.nlat)[0] - exact_log) * density) < 1e-6


@pytest.mark.parametrize("norm", [20.0, 100.0, 300.0])
def test_kernels_that_the_grid_resolves_are_right_whatever_the_density(norm):
    """Also where they look at densities of 1e-35 of the largest."""
    kappa, x = 40.0, sample_points()
    e = expansion_of(kappa)
    points, mass = e.cells
    for name, a in matrices_of_norm(norm).items():
        log_m, mean = log_mobility(x @ a, e.moments_full, 63, points, mass, TOLERANCE)
        exact_log, exact_mean = vmf_mobility(x, a, MU, kappa)
        assert np.abs(log_m - exact_log).max() < 1e-8, name
        assert np.abs(mean - exact_mean).max() < 1e-8, name


def test_kernels_finer_than_the_grid_see_a_smooth_density_between_its_nodes():
    """`narrow_kernel` with the exact log density: log M and the mean of vMF data, for any radius that is large enough."""
    x = sample_points(count=200)
    for kappa, radius in ((5.0, 300.0), (20.0, 700.0), (20.0, 1e4), (60.0, 1e5)):
        peak = np.log(kappa / (2 * np.pi * -np.expm1(-2 * kappa)))
        log_m, mean = narrow_kernel(radius * x, lambda y, k=kappa, c=peak: c + k * (y @ MU - 1))
        exact_log, exact_mean = vmf_mobility(x, radius * np.eye(3), MU, kappa)
        assert np.abs(log_m - exact_log).max() < 1e-8, (kappa, radius)
        assert np.abs(mean - exact_mean).max() < 1e-9, (kappa, radius)


def test_kernels_finer_than_the_grid_are_at_worst_a_cell_off_where_densities_have_no_digits_left():
    """There neither the expansion nor the sum over cells knows the density; the mean still is one of a density."""
    x = sample_points(count=3000)
    e = expansion_of(20.0)
    for name, a in matrices_of_norm(1e4).items():
        _, mean = log_mobility(x @ a, e.moments_full, 63, *e.cells, TOLERANCE)
        assert np.linalg.norm(mean, axis=1).max() <= 1 + 1e-14, name
        if name != "singular":
            assert np.linalg.norm(mean - vmf_mobility(x, a, MU, 20.0)[1], axis=1).max() < 0.5 * np.pi / 64, name


def test_a_density_that_the_grid_does_not_resolve_is_summed_over_its_cells():
    """Its expansion is cut where it still has structure; a kernel as narrow would see that."""
    e, a = expansion_of(400.0, grid=GaussGrid(24)), matrices_of_norm(100.0)["general"]
    assert not e.is_resolved and expansion_of(20.0).is_resolved
    log_m, mean = direct_sum(COARSE.points.reshape(-1, 3) @ a, *e.cells)
    m = MobilitySet(e, a[None])
    np.testing.assert_allclose(m.log_on(16)[0].ravel(), log_m, rtol=1e-12)
    np.testing.assert_allclose(m.mean_on(16)[0].reshape(3, -1).T, mean, atol=1e-12)


def test_a_mobility_that_varies_beyond_its_digits_is_not_known_by_coefficients():
    """Uniform density, A = 25 e_z e_z^T: i_0(25 |z|) is 1 on the equator and 1e9 at the poles."""
    grid = GaussGrid(96)
    a = 25.0 * np.diag([0.0, 0.0, 1.0])
    m = MobilitySet(DensityExpansion(grid, np.full(grid.shape, 1 / (4 * np.pi)), TOLERANCE), a[None])
    x = GaussGrid(64).points
    assert np.abs(m.log_on(64)[0] - log_i0(25 * np.abs(x[..., 2]))).max() < 1e-9


@pytest.mark.parametrize("norm", [700.0, 1e4, 1e7, 1e12, 1e150])
@pytest.mark.parametrize("kappa", [2.0, 20.0, 400.0])
def test_no_matrix_makes_velocities_infinite_or_larger_than_itself(norm, kappa):
    """With densities that the grid resolves (kappa 2) and does not resolve."""
    x = COARSE.points
    a = np.array([matrices_of_norm(norm)[name] for name in ("negative", "singular", "general")])
    m = MobilitySet(expansion_of(kappa, grid=GaussGrid(24)), a, gradient=True)
    log_m, mean = m.log_on(COARSE.nlat), np.moveaxis(m.mean_on(COARSE.nlat), 1, -1)
    assert np.isfinite(log_m).all() and np.abs(log_m).max() <= norm * (1 + 1e-12) + 1e-9
    for k in range(len(a)):
        assert np.linalg.norm(tangent(x, mean[k] @ a[k].T), axis=-1).max() <= norm * (1 + 1e-12)


def test_the_zero_matrix_has_mobility_one_and_the_mean_of_the_density():
    m = MobilitySet(expansion_of(7.0), np.zeros((1, 3, 3)), gradient=True)
    np.testing.assert_allclose(m.log_on(24), 0.0, atol=1e-13)
    mean = np.broadcast_to((langevin(7.0) * MU)[:, None, None], (3, 24, 48))
    np.testing.assert_allclose(m.mean_on(24)[0], mean, atol=1e-13)


def test_the_mean_of_a_density_is_its_first_moment():
    np.testing.assert_allclose(expansion_of(7.0).mean, langevin(7.0) * MU, atol=1e-14)


# --- sampling grid and sums over heads -------------------------------------------------------------------------------


def test_values_at_northern_nodes_and_antipodes_fill_the_sampling_grid():
    s = sampling_grid(10)
    assert s.nlat >= s.degree + 2 and s.nlat % 2 == 0
    c = np.array([0.3, -0.5, 0.7])
    np.testing.assert_allclose(s.whole(np.exp(s.north @ c), np.exp(-s.north @ c)), np.exp(s.grid.points @ c), rtol=1e-14)


def test_moments_of_the_low_degrees_are_those_of_the_whole_density():
    """(y_i rho)_lm needs rho to degree l + 1 and nothing beyond: for any density."""
    e, degree = DensityExpansion(GRID, np.random.default_rng(1).uniform(size=GRID.shape), TOLERANCE), 20
    got = coordinate_moments(e.coefficients(degree + 1), degree + 1, degree)
    for i, factor in enumerate((1.0, *np.moveaxis(GRID.points, -1, 0))):
        expected = e.transform(64, 63).analysis(factor * e.density)
        np.testing.assert_allclose(got[i], change_degree(expected, 63, degree), atol=1e-14)


def test_sampling_on_the_wanted_grid_saves_the_transforms_and_changes_nothing():
    e, heads = expansion_of(7.0), np.stack(list(matrices_of_norm(3.0).values()))
    direction = np.random.default_rng(3).normal(size=heads.shape)
    own = MobilitySet(e, heads, gradient=True)
    (few,) = (group.sampling.nlat for group in own.groups)
    there = MobilitySet(e, heads, gradient=True, wanted=few + 2)
    assert [group.sampling.nlat for group in there.groups] == [few + 2]
    np.testing.assert_allclose(there.log_on(few + 2), own.log_on(few + 2), rtol=0, atol=1e-9)
    np.testing.assert_allclose(there.log_on(few + 12), own.log_on(few + 12), rtol=0, atol=1e-9)
    np.testing.assert_allclose(there.directional_integrals(direction), own.directional_integrals(direction), rtol=1e-9)
    np.testing.assert_allclose(there.squared_overlap_integrals(), own.squared_overlap_integrals(), rtol=1e-9)
    elsewhere = MobilitySet(e, heads, wanted=200)
    assert elsewhere.groups[0].sampling.nlat == few, "much finer than needed: not sampled there"


def test_change_of_degree_pads_and_cuts():
    degree, order = degrees_and_orders(6)
    a = (degree + 100j * order).astype(complex)
    for new in (3, 6, 9):
        d, o = degrees_and_orders(new)
        expected = np.where(d <= 6, d + 100j * o, 0)
        assert np.array_equal(change_degree(a, 6, new), expected)


def mixed_heads():
    """Expanded heads, one too large for that, and one that turns out after sampling to have lost its digits."""
    turn = np.array([[0.0, -0.3, 0.2], [0.3, 0.0, -0.1], [-0.2, 0.1, 0.0]])
    across = unit(np.cross(MU, [1.0, 0.0, 0.0]))
    large, lost, harmless = 40.0 * (np.diag([1.0, -1.0, 0.5]) + turn), -6.5 * (np.eye(3) + turn), np.outer(across, across)
    return np.stack([np.eye(3), lost, matrices_of_norm(2.0)["general"], large, 6.9 * harmless])


def test_sums_over_expanded_and_pointwise_heads_are_double_sums():
    e = expansion_of(20.0, grid=GaussGrid(40))
    heads, (points, mass) = mixed_heads(), e.cells
    m = MobilitySet(e, heads, gradient=True)
    assert m.pointwise.tolist() == [1, 3] and m.degree[1] <= 27, "one refused before, one after sampling"
    assert sorted(np.concatenate([group.index for group in m.groups])) == [0, 2, 4]
    direction = np.random.default_rng(3).normal(size=heads.shape)
    weight = np.array([0.3, 0.2, 0.2, 0.1, 0.2])
    along, squared, total, by_hand = [], [], 0.0, 0.0
    overlap = (points @ points.T) ** 2
    for k, (a, d) in enumerate(zip(heads, direction, strict=True)):
        kernel = np.exp(points @ a @ points.T) * mass
        moment = kernel @ points
        along.append(mass @ np.sum((points @ d) * moment, axis=1))
        squared.append(mass @ (kernel.sum(axis=1) + np.sum(kernel * overlap, axis=1)))
        total = total + weight[k] * kernel.sum(axis=1)
        by_hand = by_hand + (weight[k] * moment @ a.T if k in m.pointwise else 0.0)
    np.testing.assert_allclose(m.directional_integrals(direction), along, rtol=1e-9)
    np.testing.assert_allclose(m.squared_overlap_integrals(), squared, rtol=1e-9)
    field, gradient = m.pointwise_sum(weight)
    field = field + e.transform(40, m.lmax).synthesis(m.weighted_sum(weight))
    np.testing.assert_allclose(field.ravel(), total, rtol=1e-9)
    np.testing.assert_allclose(gradient.reshape(3, -1).T, by_hand, rtol=1e-9, atol=1e-9 * np.abs(by_hand).min())


@pytest.mark.parametrize("weight", ["equal", "different"])
def test_products_of_many_mobilities_neither_overflow_nor_differ_from_sums_of_logarithms(weight):
    """Under a diffuse density heads of norm 8 are expanded: the product of all would be of size exp(800)."""
    rng = np.random.default_rng(5)
    heads = 8.0 * np.linalg.qr(rng.normal(size=(160, 3, 3)))[0]
    heads[-1] = 60.0 * np.eye(3)
    weight = np.full(160, 1 / 160) if weight == "equal" else rng.choice([0.5, 1.0, 2.0], 160) / 160
    e = DensityExpansion(GRID, vmf(GRID.points, MU, 0.5), TOLERANCE)
    m = MobilitySet(e, heads)
    assert m.pointwise.tolist() == [159]
    with pytest.raises(FloatingPointError, match="overflow"):
        np.prod(np.exp(m.log_on(48)), axis=0)
    np.testing.assert_allclose(m.weighted_log_on(weight, 48), np.tensordot(weight, m.log_on(48), 1), atol=1e-12)


@pytest.mark.parametrize("chosen", [[0, 2, 4], [1, 3], [0, 1, 2, 3, 4]])
def test_the_harmonic_mean_joins_expanded_and_pointwise_heads(chosen):
    """log 1 / sum_k w_k / m_k, also where one head is of size exp(-40) and another of size exp(40)."""
    heads = mixed_heads()[chosen]
    weight = np.arange(1.0, len(heads) + 1)
    weight /= weight.sum()
    m = MobilitySet(expansion_of(20.0, grid=GaussGrid(40)), heads)
    expected = -logsumexp(-m.log_on(40), axis=0, b=weight[:, None, None])
    np.testing.assert_allclose(m.log_harmonic_mean_on(weight, 40), expected, atol=1e-12)
