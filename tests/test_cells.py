"""Between cell means and node values: order of accuracy, what is kept exactly, and the way through the poles."""

import numpy as np
import pytest
from builders import fitted_order
from closed_forms import point, vmf
from scipy.special import roots_legendre

from sphereflow.cells import area_weighted_moments, cell_means, extended_faces, node_values
from sphereflow.grid import GaussGrid

SIZES = (16, 32, 64)


def smooth(x):
    """A field without symmetry, with structure over either pole."""
    return np.exp(x @ [0.5, -0.3, 0.8]) + np.sin(2 * x[..., 0] * x[..., 1] - x[..., 2] ** 2 + x @ [0.2, 1.0, 0.1])


def exact_means(grid, function, order=8):
    """Cell means by Gauss quadrature in colatitude (area weighted) and longitude, without the package's own moments."""
    node, weight = roots_legendre(order)
    face = grid.colatitude_face
    total, area = 0.0, 0.0
    for a, wa in zip(node, weight, strict=True):
        theta = (face[:-1] + face[1:]) / 2 + a * np.diff(face) / 2
        for b, wb in zip(node, weight, strict=True):
            share = (wa * wb * np.sin(theta))[:, None]
            total = total + share * function(point(theta[:, None], grid.longitude + b * grid.dlon / 2))
            area = area + share
    return total / area


def errors(convert):
    """Largest and root-mean-square error of a conversion on each grid."""
    out = []
    for nlat in SIZES:
        grid = GaussGrid(nlat)
        values, means = smooth(grid.points), exact_means(grid, smooth)
        error = node_values(grid, means) - values if convert is node_values else cell_means(grid, values) - means
        out.append((np.abs(error).max(), np.sqrt(grid.integrate(error**2))))
    return np.array(out).T


@pytest.mark.parametrize("convert", [node_values, cell_means])
def test_conversions_are_of_fourth_order_and_of_third_at_the_poles(convert):
    largest, rms = errors(convert)
    assert fitted_order(SIZES, rms) == pytest.approx(4.0, abs=0.15)
    assert fitted_order(SIZES, largest) > 3.0
    assert rms[-1] < 1e-5


def test_means_and_node_values_differ_at_second_order():
    """What would be lost by taking one for the other: the conversion must beat it by far."""
    grid = GaussGrid(64)
    values, means = smooth(grid.points), exact_means(grid, smooth)
    treated_as_same = np.sqrt(grid.integrate((means - values) ** 2))
    converted = np.sqrt(grid.integrate((node_values(grid, means) - values) ** 2))
    assert converted < 5e-3 * treated_as_same


@pytest.mark.parametrize("convert", [node_values, cell_means])
@pytest.mark.parametrize("nlat", [8, 48])
def test_constants_are_kept(convert, nlat):
    grid = GaussGrid(nlat)
    np.testing.assert_allclose(convert(grid, np.full(grid.shape, 0.7)), 0.7, rtol=1e-13)


@pytest.mark.parametrize("convert", [node_values, cell_means])
@pytest.mark.parametrize("nlat", [8, 16, 48])
def test_mass_is_kept_for_any_field(convert, nlat):
    grid = GaussGrid(nlat)
    field = np.random.default_rng(nlat).uniform(1.0, 2.0, grid.shape)
    assert grid.integrate(convert(grid, field)) == pytest.approx(grid.integrate(field), rel=2e-15)


@pytest.mark.parametrize("cell", [(0, 3), (1, 0), (7, 9), (15, 31)])
def test_mass_stays_in_the_neighbourhood_of_a_single_full_cell(cell):
    """Not spread over the sphere: only the cells within two rings and one column, over the pole included, change."""
    grid = GaussGrid(16)
    field = np.zeros(grid.shape)
    field[cell] = 1 / grid.cell_area[cell[0]]
    out = node_values(grid, field)
    assert grid.integrate(out) == pytest.approx(1.0, rel=1e-14)
    i, j = cell
    near = np.zeros(grid.shape, bool)
    for ring in range(i - 2, i + 3):
        column = j if 0 <= ring < grid.nlat else j + grid.nlat
        ring = -1 - ring if ring < 0 else 2 * grid.nlat - 1 - ring if ring >= grid.nlat else ring
        near[ring, [(column - 1) % grid.nlon, column % grid.nlon, (column + 1) % grid.nlon]] = True
    assert np.all(out[~near] == 0.0)


@pytest.mark.parametrize("convert", [node_values, cell_means])
def test_no_pole_is_special_to_a_field_turned_over(convert):
    """Mirrored at the equator or turned in longitude, a field gives the mirrored or turned result."""
    grid = GaussGrid(16)
    field = np.random.default_rng(0).uniform(1.0, 2.0, grid.shape)
    out = convert(grid, field)
    np.testing.assert_allclose(convert(grid, field[::-1])[::-1], out, rtol=1e-12)
    np.testing.assert_allclose(np.roll(convert(grid, np.roll(field, 5, axis=1)), -5, axis=1), out, rtol=1e-12)
    np.testing.assert_allclose(convert(grid, field[:, ::-1])[:, ::-1], out, rtol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_linear_field_is_as_exact_across_the_pole_as_at_the_equator(sign):
    """x and z to the accuracy of the longitudinal parabola alone: in colatitude both are exact by construction."""
    grid = GaussGrid(32)
    for axis in (0, 2):
        field = sign * grid.points[..., axis]
        means = exact_means(grid, lambda x, axis=axis: sign * x[..., axis])
        assert np.abs(node_values(grid, means) - field).max() < 3 * grid.dlon**4 / 640
        assert np.abs(cell_means(grid, field) - means).max() < 3 * grid.dlon**4 / 640


def test_means_of_a_sharp_cluster_are_not_negative_and_keep_its_mass():
    grid = GaussGrid(16)
    values = vmf(grid.points, np.array([0.6, 0.0, 0.8]), 400.0)
    means = cell_means(grid, values)
    assert means.min() == 0.0
    assert grid.integrate(means) == pytest.approx(grid.integrate(values), rel=1e-14)


def test_negative_values_are_left_alone():
    grid = GaussGrid(16)
    field = vmf(grid.points, np.array([0.6, 0.0, 0.8]), 400.0)
    assert cell_means(grid, -field).max() > 0, "undershoots of a field that is not a density stay"
    np.testing.assert_allclose(cell_means(grid, field - 50), cell_means(grid, field + 50) - 100, atol=1e-11)


def test_there_and_back_is_the_identity_to_the_scheme_s_order():
    gap = []
    for nlat in SIZES:
        grid = GaussGrid(nlat)
        values = smooth(grid.points)
        gap.append(np.sqrt(grid.integrate((node_values(grid, cell_means(grid, values)) - values) ** 2)))
    assert fitted_order(SIZES, gap) > 3.8


def test_moments_are_area_weighted_and_mirror_beyond_the_pole():
    grid = GaussGrid(8)
    faces = extended_faces(grid, 3)
    assert len(faces) == grid.nlat + 7
    np.testing.assert_allclose(faces[3:-3], grid.colatitude_face)
    np.testing.assert_allclose(faces[:3], -faces[6:3:-1])
    np.testing.assert_allclose(faces[-3:], 2 * np.pi - faces[-5:-8:-1])
    moments = area_weighted_moments(faces, np.arange(3), 0.0)
    np.testing.assert_allclose(moments[:, 0], 1.0, rtol=1e-14)
    a, b = faces[5], faces[6]
    mean = (np.sin(b) - b * np.cos(b) - np.sin(a) + a * np.cos(a)) / (np.cos(a) - np.cos(b))
    assert moments[5, 1] == pytest.approx(mean, rel=1e-12)
    np.testing.assert_allclose(moments[:3, 1], -moments[5:2:-1, 1], rtol=1e-12)
