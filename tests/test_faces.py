"""Face velocities: order of accuracy, the logarithmic-mean identity, bounds, poles, and the two-point formula."""

import numpy as np
import pytest
from builders import fitted_order
from closed_forms import normal_components, tangent

from sphereflow.faces import field_at_faces, gradient_at_faces, two_point_conductance, vector_at_faces
from sphereflow.grid import GaussGrid

SIZES = (16, 32, 64)
LINEAR, LINE, TURN = np.array([0.5, -0.3, 0.8]), np.array([0.2, 1.0, 0.1]), np.array([0.9, 0.1, -0.4])
QUADRATIC = np.array([[0.3, 0.2, -0.1], [0.2, -0.5, 0.4], [-0.1, 0.4, 0.6]])


def potential(x):
    return np.exp(x @ LINEAR) + np.sin(np.einsum("...i,ij,...j", x, QUADRATIC, x) + x @ LINE)


def potential_gradient(x):
    phase = np.einsum("...i,ij,...j", x, QUADRATIC, x) + x @ LINE
    return tangent(x, np.exp(x @ LINEAR)[..., None] * LINEAR + np.cos(phase)[..., None] * (2 * x @ QUADRATIC + LINE))


def mobility(x):
    return 2 + np.cos(2 * x @ TURN)


def largest_errors(velocity, expected):
    """Largest error at east and at south faces on each grid, shape (2, sizes)."""
    out = []
    for nlat in SIZES:
        grid = GaussGrid(nlat)
        pairs = zip(velocity(grid), normal_components(grid, expected), strict=True)
        out.append([np.abs(got - right).max() for got, right in pairs])
    return np.array(out).T


def plain(grid):
    return gradient_at_faces(grid, potential(grid.points), None, 1.0, np.inf)


def weighted(grid):
    return gradient_at_faces(grid, potential(grid.points), mobility(grid.points), -1.0, np.inf)


def vector(grid):
    return vector_at_faces(grid, np.moveaxis(potential_gradient(grid.points), -1, 0), np.inf)


@pytest.mark.parametrize(
    ("velocity", "expected", "orders"),
    [
        (plain, potential_gradient, (4.0, 3.0)),
        (vector, potential_gradient, (4.0, 4.0)),
    ],
)
def test_gradients_converge_at_their_order_over_the_poles_too(velocity, expected, orders):
    east, south = largest_errors(velocity, expected)
    assert fitted_order(SIZES, east) == pytest.approx(orders[0], abs=0.2)
    assert fitted_order(SIZES, south) > orders[1] - 0.25
    assert max(east[-1], south[-1]) < 1e-4


def test_a_weighted_gradient_is_of_second_order_in_the_logarithmic_mean():
    east, south = largest_errors(weighted, lambda x: -potential_gradient(x) / mobility(x)[..., None])
    assert fitted_order(SIZES, east) == pytest.approx(2.0, abs=0.2)
    assert fitted_order(SIZES, south) == pytest.approx(2.0, abs=0.2)
    assert max(east[-1], south[-1]) < 3e-3


@pytest.mark.parametrize("contrast", [1e-9, 1e-3, 0.02, 0.3, 5.0])
def test_the_gradient_of_b_over_its_logarithmic_mean_is_the_gradient_of_log_b(contrast):
    """One head: gradient flow and attention are the same number, for nearly equal and for very different neighbours."""
    grid = GaussGrid(16)
    log_b = contrast * np.random.default_rng(0).uniform(-1, 1, grid.shape)
    b = np.exp(log_b)
    flow = gradient_at_faces(grid, b, b, -1.0, np.inf)
    attention = gradient_at_faces(grid, log_b, None, -1.0, np.inf)
    rounding = 1e-15 * (1 + contrast) * grid.nlat**2  # differences of numbers near 1 over the polar rings' short edges
    for one, other in zip(flow, attention, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=20 * rounding)


def test_the_series_of_the_logarithmic_mean_meets_the_logarithm():
    """At |b1 - b0| = 0.01 (b1 + b0), where one formula hands over to the other."""
    grid = GaussGrid(8)
    rings = np.ones(grid.shape)
    for s in (0.0099999, 0.0100001):
        b = rings.copy()
        b[:, 1::2] = (1 + s) / (1 - s)
        east, _ = gradient_at_faces(grid, b, b, 1.0, np.inf)
        exact, _ = gradient_at_faces(grid, np.log(b), None, 1.0, np.inf)
        np.testing.assert_allclose(east, exact, rtol=3e-14)


def test_linear_in_the_factor_and_zero_for_constants_and_at_the_poles():
    grid = GaussGrid(16)
    values = potential(grid.points)
    up, down = (gradient_at_faces(grid, values, None, factor, np.inf) for factor in (1.0, -2.0))
    for one, other in zip(up, down, strict=True):
        np.testing.assert_allclose(other, -2 * one, rtol=1e-14)
    assert np.all(up[1][[0, -1]] == 0.0)
    for velocity in gradient_at_faces(grid, np.full(grid.shape, 3.0), values + 5, 1.0, np.inf):
        assert np.all(velocity == 0.0)
    for velocity in vector_at_faces(grid, np.moveaxis(grid.points, -1, 0), np.inf):
        assert np.abs(velocity).max() < 1e-4, "a radial field has no tangential part"


def test_the_bound_clips_to_both_sides_and_only_there():
    grid = GaussGrid(16)
    free, clipped = (gradient_at_faces(grid, potential(grid.points), None, 1.0, bound) for bound in (np.inf, 0.5))
    of_vector = vector_at_faces(grid, np.moveaxis(potential_gradient(grid.points), -1, 0), 0.5)
    for one, other, third in zip(free, clipped, of_vector, strict=True):
        assert one.max() > 0.5 and one.min() < -0.5
        assert np.array_equal(other, np.clip(one, -0.5, 0.5))
        assert third.max() == 0.5 and third.min() == -0.5


def test_symmetries_of_the_grid_are_those_of_the_face_velocities():
    grid = GaussGrid(16)
    values = np.random.default_rng(1).uniform(1, 2, grid.shape)
    b = np.random.default_rng(2).uniform(1, 2, grid.shape)
    east, south = gradient_at_faces(grid, values, b, 1.0, np.inf)
    turned = gradient_at_faces(grid, np.roll(values, 3, 1), np.roll(b, 3, 1), 1.0, np.inf)
    np.testing.assert_allclose(np.roll(turned[0], -3, 1), east, rtol=1e-12)
    np.testing.assert_allclose(np.roll(turned[1], -3, 1), south, rtol=1e-12)
    mirrored = gradient_at_faces(grid, values[::-1], b[::-1], 1.0, np.inf)
    np.testing.assert_allclose(mirrored[0][::-1], east, rtol=1e-11)
    np.testing.assert_allclose(-mirrored[1][::-1], south, rtol=1e-11, atol=1e-12)


def test_constant_vectors_are_reproduced_over_the_poles():
    """A translation of space, P_x c: the Cartesian components are constants, exact through cubic interpolation."""
    grid = GaussGrid(8)
    c = np.array([0.3, -0.5, 0.7])
    field = np.broadcast_to(c[:, None, None], (3, *grid.shape))
    for got, right in zip(vector_at_faces(grid, field, np.inf), normal_components(grid, lambda x: c), strict=True):
        np.testing.assert_allclose(got, right, atol=1e-14)


def test_known_fields_are_taken_at_the_midpoints_of_the_faces():
    grid = GaussGrid(8)
    expected = normal_components(grid, potential_gradient)
    radial = field_at_faces(grid, lambda x: potential_gradient(x) + 3.0 * x)
    for got, right in zip(radial, expected, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-13)


def test_two_point_velocities_and_conductances_are_plain_differences():
    """T (phi_L - phi_K) = face length times two-point velocity, with and without a mobility."""
    grid = GaussGrid(16)
    values, b = potential(grid.points), mobility(grid.points)
    for weight in (None, b):
        east, south = gradient_at_faces(grid, values, weight, 1.0, np.inf, two_point=True)
        across, along = two_point_conductance(grid, weight)
        lengths = np.diff(grid.colatitude_face)[:, None], np.sin(grid.colatitude_face)[:, None] * grid.dlon
        np.testing.assert_allclose(lengths[0] * east, across * (np.roll(values, -1, 1) - values), rtol=1e-11, atol=1e-14)
        difference = values[1:] - values[:-1]
        np.testing.assert_allclose((lengths[1] * south)[1:-1], along[1:-1] * difference, rtol=1e-11, atol=1e-14)
        assert np.all(along[[0, -1]] == 0.0)
    i, j = 5, 7
    mean = (b[i, j + 1] - b[i, j]) / np.log(b[i, j + 1] / b[i, j])
    plain_east, weighted_east = two_point_conductance(grid, None)[0], two_point_conductance(grid, b)[0]
    assert weighted_east[i, j] == pytest.approx(plain_east[i, j] / mean, rel=1e-12)
    distance = np.sin(grid.colatitude[i]) * grid.dlon
    assert plain_east[i, j] == pytest.approx(np.diff(grid.colatitude_face)[i] / distance, rel=1e-13)
