"""Initial densities against their closed-form integrals and moments, and the inputs that are refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import eval_legendre, spherical_in

from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.initial import check_tokens, initial_density, real_harmonic
from sphereflow.storage.arrays import read_tokens

GRID = GaussGrid(32)
TILTED = np.array([2.0, -1.0, 2.0]) / 3.0


def density(grid=GRID, read_density=None, **keys):
    keys = {"weights": None, "time": None, "normalize": False} | keys
    return initial_density(grid, SimpleNamespace(**keys), read_tokens=read_tokens, read_density=read_density)


def mean(field, grid=GRID):
    """Integral of x times the density."""
    return np.array([grid.integrate(field * grid.points[..., i]) for i in range(3)])


def second_moment(field, grid=GRID):
    return np.array(
        [[grid.integrate(field * grid.points[..., i] * grid.points[..., j]) for i in range(3)] for j in range(3)]
    )


def resultant(kappa):
    """Length of the mean of a von Mises-Fisher density."""
    return 1 / np.tanh(kappa) - 1 / kappa


@pytest.mark.parametrize(
    "keys",
    [
        dict(kind="uniform"),
        dict(kind="vmf-mixture", centers=[[1, 0, 0], [0, 3, 4]], kappa=[50.0, 2.0], weights=[0.3, 0.7]),
        dict(kind="octahedron", kappa=40.0),
        dict(kind="harmonic", degree=3, order=-2, amplitude=0.7),
    ],
)
def test_densities_are_nonnegative_and_have_mass_one(keys):
    field = density(**keys)
    assert field.shape == GRID.shape and field.dtype == np.float64 and field.flags.c_contiguous
    assert field.min() >= 0
    assert GRID.integrate(field) == pytest.approx(1, abs=4e-16)


def test_uniform():
    np.testing.assert_allclose(density(kind="uniform"), 1 / (4 * np.pi), rtol=1e-15)


@pytest.mark.parametrize("kappa", [1e-12, 1e-3, 1.0, 50.0, 80.0])
@pytest.mark.parametrize("center", [TILTED, [0, 0, 1], [0, 0, -1]])
def test_vmf_mean_and_second_moment(kappa, center):
    """The mean is L(kappa) c with L = coth - 1/kappa; the second moment 1/3 + (1 - 3 L/kappa)(c c^T - 1/3)."""
    field = density(kind="vmf-mixture", centers=[np.multiply(7.0, center)], kappa=kappa)
    length = kappa / 3 if kappa < 1e-2 else resultant(kappa)  # to O(kappa^3)
    np.testing.assert_allclose(mean(field), np.multiply(length, center), atol=1e-9)
    alignment = kappa**2 / 15 if kappa < 1e-2 else 1 - 3 * length / kappa
    expected = np.eye(3) / 3 + alignment * (np.outer(center, center) - np.eye(3) / 3)
    np.testing.assert_allclose(second_moment(field), expected, atol=1e-9)


@pytest.mark.parametrize("degree", [1, 2, 5, 9])
def test_vmf_legendre_moments_are_bessel_ratios(degree):
    field = density(kind="vmf-mixture", centers=[TILTED], kappa=20.0)
    moment = GRID.integrate(field * eval_legendre(degree, GRID.points @ TILTED))
    assert moment == pytest.approx(spherical_in(degree, 20.0) / spherical_in(0, 20.0), abs=1e-12)


def test_vmf_of_kappa_zero_is_uniform():
    np.testing.assert_allclose(density(kind="vmf-mixture", centers=[[1, 2, 3]], kappa=0.0), 1 / (4 * np.pi), rtol=1e-14)


def test_mixture_is_the_weighted_sum_of_its_components():
    centers, kappa, weights = [[1, 0, 0], [0, 0, 1], [1, 1, 1]], [5.0, 30.0, 12.0], [0.2, 0.5, 0.3]
    one_by_one = [density(kind="vmf-mixture", centers=[c], kappa=[k]) for c, k in zip(centers, kappa, strict=True)]
    expected = np.einsum("n,nij->ij", weights, one_by_one)
    mixture = dict(kind="vmf-mixture", centers=centers, kappa=kappa)
    np.testing.assert_allclose(density(**mixture, weights=weights), expected, rtol=1e-11)
    np.testing.assert_allclose(density(**mixture, weights=[2.0, 5.0, 3.0]), expected, rtol=1e-11)
    np.testing.assert_allclose(density(**mixture), np.mean(one_by_one, axis=0), rtol=1e-11)


def test_centres_of_any_length_are_normalised():
    reference = density(kind="vmf-mixture", centers=[[0.6, 0.0, 0.8]], kappa=9.0)
    for length in (1e-300, 5.0, 1e300):
        field = density(kind="vmf-mixture", centers=[[0.6 * length, 0.0, 0.8 * length]], kappa=9.0)
        np.testing.assert_allclose(field, reference, rtol=1e-13)


@pytest.mark.parametrize("nlat", [8, 16, 32])
@pytest.mark.parametrize("center", [[0, 0, 1], [1, 0, 0], TILTED])
def test_the_announced_concentration_is_resolved_and_twice_it_is_not(nlat, center):
    keys = dict(grid=GaussGrid(nlat), kind="vmf-mixture", centers=[center])
    assert density(kappa=0.22 * nlat**2, **keys).min() >= 0
    with pytest.raises(CaseError, match="too large"):
        density(kappa=0.6 * nlat**2, **keys)


@pytest.mark.parametrize("kappa", [1e3, 1e4, 1e20, 1e300, 1.7e308])
@pytest.mark.parametrize("center", [[0, 0, 1], TILTED, None])
def test_unresolved_concentrations_are_refused_without_overflow(kappa, center):
    center = GRID.points[7, 3] if center is None else center
    with pytest.raises(CaseError, match=r"initial.kappa\[1\]: .* too large for grid.nlat = 32, .* up to about 225"):
        density(kind="vmf-mixture", centers=[[1, 0, 0], center], kappa=[1.0, kappa])


def test_octahedron_has_the_moments_of_its_vertices():
    field = density(kind="octahedron", kappa=40.0)
    np.testing.assert_allclose(mean(field), 0, atol=1e-12)
    np.testing.assert_allclose(second_moment(field), np.eye(3) / 3, atol=1e-12)
    cubic = GRID.integrate(field * (GRID.points**4).sum(axis=-1))
    # sum_i x_i^4 = 3/5 + a degree-4 harmonic that is 2/5 at the vertices
    assert cubic == pytest.approx(0.6 + 0.4 * spherical_in(4, 40.0) / spherical_in(0, 40.0), abs=1e-12)


@pytest.mark.parametrize("degree, order", [(1, 0), (1, 1), (1, -1), (2, 0), (4, 3), (4, -4), (7, -2)])
def test_harmonic_projections(degree, order):
    """The coefficient of Y_lm in the density is amplitude/(4 pi), all others but the constant vanish."""
    field = density(kind="harmonic", degree=degree, order=order, amplitude=0.4)
    for other_degree in (1, 2, 4, 7):
        for other_order in range(-other_degree, other_degree + 1):
            y = real_harmonic(other_degree, other_order, GRID.colatitude[:, None], GRID.longitude)
            expected = 0.4 / (4 * np.pi) if (other_degree, other_order) == (degree, order) else 0.0
            assert GRID.integrate(field * y) == pytest.approx(expected, abs=1e-14)


def test_real_harmonics_of_degree_one_are_the_coordinates():
    x, y, z = np.moveaxis(GRID.points, -1, 0)
    scale = np.sqrt(3 / (4 * np.pi))
    for order, expected in ((0, z), (1, -x), (-1, -y)):
        harmonic = real_harmonic(1, order, GRID.colatitude[:, None], GRID.longitude)
        np.testing.assert_allclose(harmonic, scale * expected, atol=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
def test_harmonic_of_the_largest_amplitude_is_allowed_and_a_larger_one_refused(sign):
    keys = dict(kind="harmonic", degree=2, order=0)
    with pytest.raises(CaseError, match="makes the density negative; .* largest absolute value is") as error:
        density(amplitude=sign * 5.0, **keys)
    largest = float(str(error.value).split()[-1])
    # Y_20 = sqrt(5/4pi) (3 z^2 - 1)/2 falls to -1/2 at the equator and rises to 1 at the poles
    limit = {1: 2, -1: 1}[sign] / np.sqrt(5 / (4 * np.pi))
    assert limit <= largest < 1.01 * limit
    field = density(amplitude=sign * largest, **keys)
    assert 0 <= field.min() < 1e-9
    with pytest.raises(CaseError):
        density(amplitude=sign * largest * (1 + 1e-6), **keys)


@pytest.mark.parametrize(
    "keys, words",
    [
        (dict(kind="ring"), "initial.kind: unknown kind 'ring'"),
        (dict(kind="harmonic", degree=32, order=0, amplitude=0.1), "initial.degree: 32 .* grid.nlat - 1 = 31"),
        (dict(kind="harmonic", degree=2, order=-3, amplitude=0.1), "initial.order: -3"),
        (dict(kind="vmf-mixture", centers=[[1, 0]], kappa=1.0), r"initial.centers: shape \(1, 2\)"),
        (dict(kind="vmf-mixture", centers=[[0, 0, 0]], kappa=1.0), "initial.centers: must be finite and nonzero"),
        (dict(kind="vmf-mixture", centers=[[1, 0, np.nan]], kappa=1.0), "initial.centers: must be finite"),
        (dict(kind="vmf-mixture", centers=[[1, 0, 0]], kappa=[1.0, 2.0]), r"initial.kappa: shape \(2,\)"),
        (dict(kind="vmf-mixture", centers=[[1, 0, 0]], kappa=-1.0), "initial.kappa: must be finite and nonnegative"),
        (dict(kind="vmf-mixture", centers=[[1, 0, 0]], kappa=1.0, weights=[1, 1]), r"initial.weights: shape \(2,\)"),
        (dict(kind="vmf-mixture", centers=[[1, 0, 0]], kappa=1.0, weights=[0]), "initial.weights: .* not all zero"),
        (dict(kind="octahedron", kappa=np.inf), "initial.kappa: must be finite"),
        (dict(kind="octahedron", kappa=1e5), "initial.kappa: 100000 is too large"),
    ],
)
def test_unusable_parameters_are_refused(keys, words):
    with pytest.raises(CaseError, match=words):
        density(**keys)


# ------------------------------------------------------------------------------------------------------------ tokens


@pytest.fixture
def token_file(tmp_path):
    """Writer of token files: arrays to .npz, text to .csv."""

    def write(content, name="tokens.npz"):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            np.savez(path, **content)
        return str(path)

    return write


def random_tokens(count):
    x = np.random.default_rng(3).normal(size=(count, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 31.0)])
def test_smoothed_tokens_are_the_mixture_at_their_positions(token_file, weights):
    x = random_tokens(30)
    arrays = {"positions": x} if weights is None else {"positions": x, "weights": weights}
    field = density(kind="tokens", file=token_file(arrays), kappa=60.0)
    expected = density(kind="vmf-mixture", centers=x, kappa=60.0, weights=weights)
    np.testing.assert_allclose(field, expected, rtol=1e-12)
    center = np.average(x, axis=0, weights=weights)
    np.testing.assert_allclose(mean(field), resultant(60.0) * center, atol=1e-12)


def test_blocks_of_tokens_add_up(token_file, monkeypatch):
    file = token_file({"positions": random_tokens(23)})
    whole = density(kind="tokens", file=file, kappa=30.0)
    monkeypatch.setattr("sphereflow.initial._BLOCK", 5 * GRID.nlat * GRID.nlon)
    np.testing.assert_allclose(density(kind="tokens", file=file, kappa=30.0), whole, rtol=1e-13)


@pytest.mark.parametrize("text", ["", "x,y,z\n", "\ufeffx,y,z\n", '"x", "y", "z"\n', "X,Y,Z\n"])
def test_token_tables_with_and_without_a_header(token_file, text):
    x = random_tokens(4)
    file = token_file(text + "".join(",".join(map(repr, row)) + "\n" for row in x.tolist()), "tokens.csv")
    positions, weights = read_tokens(file)
    np.testing.assert_array_equal(positions, x)
    assert weights is None


def test_token_table_with_weights(token_file):
    positions, weights = read_tokens(token_file("x,y,z,weight\n1,0,0,2\n0,0,-1,0.5\n", "tokens.csv"))
    np.testing.assert_array_equal(positions, [[1, 0, 0], [0, 0, -1]])
    np.testing.assert_array_equal(weights, [2, 0.5])


def test_one_token_in_a_table(token_file):
    field = density(kind="tokens", file=token_file("0,0,1\n", "tokens.csv"), kappa=20.0)
    np.testing.assert_allclose(mean(field), [0, 0, resultant(20.0)], atol=1e-12)


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "holds no tokens"),
        ("x,y,z\n", "holds no tokens"),
        ("x,y\n1,0\n", "columns x, y; expected x, y, z and optionally weight"),
        ("z,y,x\n1,0,0\n", "columns z, y, x; expected x, y, z"),
        ("1,0\n0,1\n", "2 columns; expected x, y, z"),
        ("1,0,0,1,1\n", "5 columns; expected x, y, z"),
        ("x,y,z\n1,0,0\n1,zero,0\n", "cannot be read as a table of numbers: .*'zero'"),
        ("1,0,0\n1,0\n", "cannot be read as a table of numbers"),
        ("nan,0,0\n", "the position of token 0 is not finite"),
        ("1,0,0\n0,inf,0\n", "the position of token 1 is not finite"),
        ("1,0,0\n0,1.1,0\n0,0,0.95\n", "token 1 has norm 1.1, off the unit sphere by more than 1e-06"),
        ("x,y,z,weight\n1,0,0,-1\n", "weights: must be finite, nonnegative"),
        ("x,y,z,weight\n1,0,0,0\n", "weights: must be finite, nonnegative and not all zero"),
    ],
)
def test_token_tables_that_cannot_be_used_are_refused(token_file, text, words):
    file = token_file(text, "tokens.csv")
    with pytest.raises(CaseError, match=words) as error:
        density(kind="tokens", file=file, kappa=10.0)
    assert str(error.value).startswith(file)


@pytest.mark.parametrize(
    "arrays, words",
    [
        ({"x": np.eye(3)}, "no array 'positions'; the file has: x"),
        ({"positions": np.eye(2)}, r"positions have shape \(2, 2\); expected \(n, 3\)"),
        ({"positions": np.ones(3)}, r"positions have shape \(3,\); expected \(n, 3\)"),
        ({"positions": np.ones((0, 3))}, "holds no tokens"),
        ({"positions": np.eye(3), "weights": np.ones(2)}, r"weights: shape \(2,\); expected \(3,\)"),
        ({"positions": np.eye(3), "weights": np.array([1, np.nan, 1])}, "weights: must be finite"),
    ],
)
def test_token_archives_that_cannot_be_used_are_refused(token_file, arrays, words):
    with pytest.raises(CaseError, match=words):
        density(kind="tokens", file=token_file(arrays), kappa=10.0)


def test_missing_token_file(tmp_path):
    with pytest.raises(CaseError, match="none.csv: no such file"):
        density(kind="tokens", file=str(tmp_path / "none.csv"), kappa=10.0)


def test_tokens_off_the_sphere_are_projected_on_request_and_within_round_off_always(token_file):
    x = random_tokens(8)
    reference = density(kind="tokens", file=token_file({"positions": x}), kappa=10.0)
    long = token_file({"positions": x * np.arange(1, 9)[:, None]}, "long.npz")
    np.testing.assert_allclose(density(kind="tokens", file=long, kappa=10.0, normalize=True), reference, rtol=1e-12)
    rounded = token_file({"positions": x * (1 + 5e-7)}, "rounded.npz")
    np.testing.assert_allclose(density(kind="tokens", file=rounded, kappa=10.0), reference, rtol=1e-12)
    origin = token_file({"positions": x * (np.arange(8) != 5)[:, None]}, "origin.npz")
    with pytest.raises(CaseError, match="token 5 is at the origin"):
        density(kind="tokens", file=origin, kappa=10.0, normalize=True)


def test_too_sharp_tokens_are_refused_even_if_their_errors_cancel_in_the_sum(token_file):
    """Many tokens have the right mass on average where each of them has not."""
    file = token_file({"positions": random_tokens(2000)})
    grid = GaussGrid(8)
    with pytest.raises(CaseError, match=r"initial.kappa \(token \d+ of .*npz\): 60 is too large for grid.nlat = 8"):
        density(grid=grid, kind="tokens", file=file, kappa=60.0)


def test_checked_tokens_have_unit_norm_and_weights_of_sum_one():
    positions, weights = check_tokens(np.diag([1.0, 1 + 9e-7, 1.0, 1.0]), None, "tokens.npz", dimension=4)
    np.testing.assert_array_equal(positions, np.eye(4))
    np.testing.assert_array_equal(weights, np.full(4, 0.25))
    _, weights = check_tokens(np.eye(3), np.array([1e308, 1e308, 0.0]), "tokens.npz")
    np.testing.assert_array_equal(weights, [0.5, 0.5, 0.0])


# ------------------------------------------------------------------------------------------------------------ netcdf


def reader(field, nlat=32):
    """A reader that remembers what it was asked for."""

    def read_density(path, time):
        read_density.asked = (path, time)
        return field, nlat

    return read_density


def test_density_of_an_earlier_run_is_taken_as_it_is():
    field = density(kind="octahedron", kappa=30.0)
    read = reader(field)
    np.testing.assert_allclose(density(kind="netcdf", file="run.nc", time=1.5, read_density=read), field, rtol=1e-15)
    assert read.asked == ("run.nc", 1.5)


def test_round_off_negatives_of_a_file_become_zero():
    field = density(kind="octahedron", kappa=30.0)
    field[3, 4] = -1e-16
    restarted = density(kind="netcdf", file="run.nc", read_density=reader(field))
    assert restarted[3, 4] == 0 and GRID.integrate(restarted) == pytest.approx(1, abs=4e-16)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda field: field[::2, ::2], r"shape \(16, 32\), the grid of the case \(32, 64\); use grid.nlat = 16"),
        (lambda field: np.where(field == field.max(), np.nan, field), "the density is not finite"),
        (lambda field: field - 0.01, "the density is negative; its least value is -0.0"),
        (lambda field: 2 * field, "has mass 2 instead of 1"),
        (lambda field: 0 * field, "has mass 0 instead of 1"),
    ],
)
def test_files_that_hold_no_density_for_this_grid_are_refused(change, words):
    field = change(density(kind="octahedron", kappa=30.0))
    with pytest.raises(CaseError, match=words):
        density(kind="netcdf", file="run.nc", read_density=reader(field, nlat=field.shape[0]))
