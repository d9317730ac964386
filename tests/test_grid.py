"""The Gauss grid: areas, faces, symmetry, tangent frames and exact integrals."""

from dataclasses import FrozenInstanceError
from itertools import product

import numpy as np
import pytest
from scipy.special import gamma

from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid

SIZES = (8, 10, 32, 128)


def monomial_integral(powers):
    """int x^a y^b z^c over the sphere (Folland 2001)."""
    if any(p % 2 for p in powers):
        return 0.0
    half = [(p + 1) / 2 for p in powers]
    return 2 * np.prod(gamma(half)) / gamma(sum(half))


@pytest.mark.parametrize("nlat", SIZES)
def test_cells_tile_the_sphere_and_faces_carry_the_gauss_weights(nlat):
    grid = GaussGrid(nlat)
    assert grid.shape == (nlat, 2 * nlat) == (grid.nlat, grid.nlon)
    assert grid.nlon * grid.cell_area.sum() == pytest.approx(4 * np.pi, rel=1e-14)
    np.testing.assert_allclose(-np.diff(grid.z_face), grid.weight, atol=1e-14)
    np.testing.assert_allclose(-np.diff(np.cos(grid.colatitude_face)) * grid.dlon, grid.cell_area, atol=1e-14)


@pytest.mark.parametrize("nlat", SIZES)
def test_nodes_run_from_north_to_south_strictly_inside_their_cells(nlat):
    grid = GaussGrid(nlat)
    assert grid.colatitude_face[0] == 0 and grid.colatitude_face[-1] == np.pi
    assert np.all(grid.colatitude_face[:-1] < grid.colatitude)
    assert np.all(grid.colatitude < grid.colatitude_face[1:])
    assert np.all(np.diff(grid.colatitude) > 0)


def test_first_node_and_face_lie_where_the_bessel_function_puts_them():
    grid = GaussGrid(128)
    assert grid.colatitude[0] * 128.5 == pytest.approx(2.4048, abs=1e-3)
    assert grid.colatitude_face[1] * 128.5 == pytest.approx(3.85, abs=5e-3)


@pytest.mark.parametrize("nlat", SIZES)
def test_the_hemispheres_mirror_each_other_exactly(nlat):
    grid = GaussGrid(nlat)
    for values in (grid.z, grid.z_face):
        assert np.array_equal(values, -values[::-1])
    assert np.array_equal(grid.weight, grid.weight[::-1])
    assert grid.z_face[nlat // 2] == 0.0


def test_longitudes_start_at_zero_and_run_east():
    grid = GaussGrid(8)
    np.testing.assert_allclose(grid.longitude, np.arange(16) * np.pi / 8, atol=1e-15)
    np.testing.assert_allclose(grid.points[3, 4], [0, np.sin(grid.colatitude[3]), grid.z[3]], atol=1e-15)


def test_points_and_frames_are_orthonormal_and_right_handed():
    grid = GaussGrid(16)
    frame = np.stack([grid.points, grid.e_theta, grid.e_phi], axis=-2)
    np.testing.assert_allclose(frame @ np.swapaxes(frame, -1, -2), np.broadcast_to(np.eye(3), frame.shape), atol=2e-15)
    np.testing.assert_allclose(np.linalg.det(frame), 1.0, atol=2e-15)
    assert np.all(grid.e_theta[..., 2] < 0), "e_theta points south"
    step = 1e-6
    east = (np.roll(grid.points, -1, axis=1) - np.roll(grid.points, 1, axis=1)) / np.sin(grid.colatitude)[:, None, None]
    assert np.all(np.sum(east * grid.e_phi, axis=-1) > 0), "e_phi points east"
    moved = grid.points + step * grid.e_theta
    assert np.all(np.arccos(moved[..., 2] / np.linalg.norm(moved, axis=-1)) > grid.colatitude[:, None])


@pytest.mark.parametrize("nlat", [8, 12])
def test_integrals_of_polynomials_are_exact_to_degree_2_nlat_minus_1(nlat):
    grid = GaussGrid(nlat)
    x, y, z = np.moveaxis(grid.points, -1, 0)
    highest = 2 * nlat - 1
    for powers in product(range(0, highest + 1, 3), repeat=3):
        if sum(powers) <= highest:
            expected = monomial_integral(powers)
            values = x ** powers[0] * y ** powers[1] * z ** powers[2]
            assert grid.integrate(values) == pytest.approx(expected, abs=1e-13), powers
    assert grid.integrate(z ** (2 * nlat)) != pytest.approx(monomial_integral((0, 0, 2 * nlat)), rel=1e-12)


def test_integrals_of_stacks_keep_the_leading_axes():
    grid = GaussGrid(8)
    stack = np.arange(1.0, 7.0).reshape(2, 3, 1, 1) * np.ones(grid.shape)
    np.testing.assert_allclose(grid.integrate(stack), 4 * np.pi * np.arange(1.0, 7.0).reshape(2, 3), rtol=1e-14)


@pytest.mark.parametrize("nlat", [0, -8, 6, 7, 9, 33])
def test_odd_or_small_grids_are_refused_with_the_key_and_the_value(nlat):
    with pytest.raises(CaseError, match=rf"grid\.nlat: {nlat} .* even and at least 8"):
        GaussGrid(nlat)


def test_grids_are_frozen_and_equal_by_size():
    assert GaussGrid(8) == GaussGrid(8) != GaussGrid(10)
    assert hash(GaussGrid(8)) == hash(GaussGrid(8))
    with pytest.raises(FrozenInstanceError):
        GaussGrid(8).nlat = 10
