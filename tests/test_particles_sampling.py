"""Initial tokens: their distribution, their reproducibility, and the convergence of random tokens to the mean field."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import kstest

from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath
from sphereflow.initial import initial_density, real_harmonic
from sphereflow.particles import ParticleSolver, TokenOperator, initial_tokens, quadrature_tokens
from sphereflow.particles.sampling import vertices


def spec(kind, **keys):
    return SimpleNamespace(kind=kind, **keys)


MIXTURE = spec("vmf-mixture", centers=[[0, 0, 2.0], [1, 1, 0]], kappa=[20.0, 3.0], weights=[0.25, 0.75])


def test_tokens_are_reproducible_and_depend_on_the_seed():
    first, weights = initial_tokens(MIXTURE, 100, 3)
    np.testing.assert_array_equal(initial_tokens(MIXTURE, 100, 3)[0], first)
    np.testing.assert_array_equal(weights, np.full(100, 0.01))
    np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1.0, atol=1e-15)
    assert not np.allclose(initial_tokens(MIXTURE, 100, 4)[0], first)
    assert not np.allclose(initial_tokens(MIXTURE, 100, (3, 1))[0], first)


@pytest.mark.parametrize("kappa", [4.0, 1e-7, 1e-9, 1e-100])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_cosine_to_the_centre_of_one_cluster_has_its_law(d, kappa):
    center = np.arange(1.0, d + 1)
    x, _ = initial_tokens(spec("vmf-mixture", centers=[center], kappa=kappa, weights=None), 4000, 1, d)
    u = np.linspace(-1, 1, 20001)[1:-1]
    law = np.exp(kappa * u) * (1 - u**2) ** ((d - 3) / 2)
    cumulative = np.cumsum(law) / law.sum()
    cosine = x @ (center / np.linalg.norm(center))
    assert kstest(cosine, lambda v: np.interp(v, u, cumulative)).pvalue > 1e-3
    # and nothing is preferred around the centre
    across = x - np.outer(cosine, center / np.linalg.norm(center))
    assert np.linalg.norm(across.mean(axis=0)) < 4 / np.sqrt(4000)


@pytest.mark.parametrize(
    "initial",
    [
        MIXTURE,
        spec("uniform"),
        spec("octahedron", kappa=5.0),
        spec("vertices", kappa=5.0),
        spec("harmonic", degree=3, order=-2, amplitude=1.0),
        spec("tokens", file="t.csv", kappa=8.0, normalize=False),
    ],
    ids=lambda s: s.kind,
)
def test_random_tokens_have_the_moments_of_their_density(initial):
    grid = GaussGrid(32)

    def read(path):
        return np.eye(3)[:2], np.array([1.0, 3.0])

    x, _ = initial_tokens(initial, 20000, 2, read_tokens=read)
    nodes, weights = quadrature_tokens(grid, initial, read_tokens=read)
    for features in (lambda y: y, lambda y: (y[:, :, None] * y[:, None, :]).reshape(len(y), -1), lambda y: y**3):
        values = features(nodes)
        mean = weights @ values
        deviation = np.sqrt(weights @ (values - mean) ** 2 / len(x))
        assert np.abs(features(x).mean(axis=0) - mean).max() <= 4.5 * deviation.max()


def test_harmonic_tokens_show_their_amplitude():
    initial = spec("harmonic", degree=4, order=3, amplitude=1.2)
    x, _ = initial_tokens(initial, 20000, 3)
    y = real_harmonic(4, 3, np.arccos(x[:, 2]), np.arctan2(x[:, 1], x[:, 0]))
    assert y.mean() == pytest.approx(1.2 / (4 * np.pi), abs=4 / np.sqrt(4 * np.pi * 20000))


def test_tokens_of_a_density_file_fill_its_cells():
    grid = GaussGrid(8)
    density = np.zeros(grid.shape)
    density[0, 3], density[4, 0] = 2.0, 1.0
    x, _ = initial_tokens(spec("netcdf", file="a.nc", time=None), 3000, 5, read_density=lambda path, time: (density, 8))
    north = x[:, 2] > grid.z_face[1]
    mass = density[[0, 4], [3, 0]] * grid.cell_area[[0, 4]]
    assert north.mean() == pytest.approx(mass[0] / mass.sum(), abs=0.04)
    longitude = np.arctan2(x[:, 1], x[:, 0])
    assert np.abs(longitude[north] - grid.longitude[3]).max() <= grid.dlon / 2
    assert np.abs(longitude[~north]).max() <= grid.dlon / 2
    assert longitude[~north].min() < -0.4 * grid.dlon
    assert ((x[~north, 2] <= grid.z_face[4]) & (x[~north, 2] >= grid.z_face[5])).all()


def test_vertices_of_every_dimension():
    np.testing.assert_array_equal(vertices(5), np.concatenate([np.eye(5), -np.eye(5)]))
    np.testing.assert_allclose(np.linalg.norm(vertices(2, 5), axis=1), 1.0)
    np.testing.assert_allclose(vertices(2, 4), [[1, 0], [0, 1], [-1, 0], [0, -1]], atol=1e-15)
    x, _ = initial_tokens(spec("vertices", kappa=400.0, clusters=5), 500, 1, 2)
    angle = np.arctan2(x[:, 1], x[:, 0])
    off = (angle + np.pi / 5) % (2 * np.pi / 5) - np.pi / 5
    assert np.std(off) == pytest.approx(0.05, rel=0.1)
    assert len(np.unique(np.round((angle - off) / (2 * np.pi / 5)) % 5)) == 5


def test_file_tokens_are_taken_as_they_are_and_checked():
    def read(path):
        return np.array([[1.0, 0, 0], [0, 0.8, 0.6]]), np.array([1.0, 3.0])

    x, weights = initial_tokens(spec("tokens", file="t.csv", kappa=1.0, normalize=False), None, 0, read_tokens=read)
    np.testing.assert_allclose(x, read("")[0])
    np.testing.assert_allclose(weights, [0.25, 0.75])
    with pytest.raises(CaseError, match=r"t.csv: positions have shape \(2, 3\); expected \(n, 5\)"):
        initial_tokens(spec("tokens", file="t.csv", kappa=1.0, normalize=False), None, 0, 5, read_tokens=read)
    with pytest.raises(CaseError, match="'harmonic' is not available in dimension 5"):
        initial_tokens(spec("harmonic"), 10, 0, 5)


def test_quadrature_tokens_carry_the_density():
    grid = GaussGrid(24)
    x, weights = quadrature_tokens(grid, MIXTURE)
    assert weights.sum() == pytest.approx(1.0, abs=1e-14)
    density = initial_density(grid, MIXTURE)
    np.testing.assert_allclose(weights, (density * grid.cell_area[:, None]).ravel(), rtol=1e-12)
    # the mean of a von Mises-Fisher density is coth kappa - 1/kappa along its centre
    lengths = [1 / np.tanh(k) - 1 / k for k in (20.0, 3.0)]
    expected = 0.25 * lengths[0] * np.array([0, 0, 1]) + 0.75 * lengths[1] * np.array([1, 1, 0]) / np.sqrt(2)
    np.testing.assert_allclose(weights @ x, expected, atol=1e-10)


def test_random_tokens_converge_to_the_mean_field_like_the_square_root_of_their_number():
    logits = np.diag([2.0, 1.0, -1.0])[None]
    path = WeightPath(np.array([0.0, 1.0]), np.stack([logits, logits]), np.ones(1))
    initial = spec("vmf-mixture", centers=[[1, 0.3, 0.2], [-0.5, 1, -0.4]], kappa=[4.0, 3.0], weights=None)

    def moments(x, p):
        tokens = ParticleSolver(TokenOperator("attention", 1), path, x, p, max_dt=0.25)
        while tokens.t < 0.5:
            tokens.advance(0.5)
        s = tokens.snapshot()
        return np.array([s.energy, s.metric_speed_squared, *s.mean, *s.second_moment[np.triu_indices(3)]])

    reference = moments(*quadrature_tokens(GaussGrid(24), initial))
    counts, errors = 10 ** np.arange(2, 6), []
    for count, repeats in zip(counts, (40, 20, 8, 2), strict=True):
        found = [moments(*initial_tokens(initial, int(count), (1, repeat))) for repeat in range(repeats)]
        errors.append(np.sqrt(np.mean((np.array(found) - reference) ** 2)))
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)
