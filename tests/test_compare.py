"""Distances of measures, sampling noise, and the verdict on pairs of runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import sphereflow
from sphereflow.case import parse_case
from sphereflow.cli import main
from sphereflow.compare import compare, open_side
from sphereflow.compare.measures import Measure, angle, coarsen, spectrum_distance, wasserstein
from sphereflow.compare.noise import Noise, Sampler
from sphereflow.compare.sides import _cell_radius
from sphereflow.errors import CaseError
from sphereflow.grid import gauss_grid
from sphereflow.initial import real_harmonic
from sphereflow.runs import build_solver
from sphereflow.simulation import run_to_end

TABLES = {
    "grid": {"nlat": 32},
    "heads": {"count": 2, "initial": "gaussian-symmetric", "scale": 0.4, "seed": 3, "schedule": "oscillating"},
    "initial": {"kind": "vmf-mixture", "centers": [[1, 0.3, 0.2], [-0.5, 1, -0.4]], "kappa": [3.0, 3.0]},
    "output": {"every": 0.25},
}
SOLVERS = {
    "density": {"kind": "finite-volume"},
    "quadrature": {"kind": "particles", "quadrature": True, "dt": 0.05},
    "tokens": {"kind": "particles", "count": 300, "dt": 0.05, "seed": 1},
    "more tokens": {"kind": "particles", "count": 400, "dt": 0.05, "seed": 2},
}


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def tables(kind, **changes):
    merged = {**TABLES, "solver": {**SOLVERS[kind], "t_end": 0.5}}
    for table, keys in changes.items():
        merged[table] = {**merged.get(table, {}), **keys}
    return merged


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of one case by all solvers, and some that differ."""
    folder = tmp_path_factory.mktemp("runs")
    for name in SOLVERS:
        sphereflow.run(tables(name), folder / f"{name}.nc").close()
    others = {
        "other start": tables("tokens", initial={"centers": [[1, 0.3, 0.2], [0.5, -1, 0.4]]}),
        "other weights": tables("tokens", heads={"seed": 4}),
        "other direction": tables("tokens", model={"direction": "ascend"}),
        "other times": tables("tokens", solver={"t_end": 0.2, "count": 10}, output={"every": 0.2}),
        "scalars only": tables("tokens", output={"fields": []}),
    }
    for name, case in others.items():
        sphereflow.run(case, folder / f"{name}.nc").close()
    flat = {"dimension": 2}
    circle = {**tables("tokens", model=flat), "initial": {"kind": "vertices", "clusters": 3}}
    sphereflow.run(circle, folder / "circle.nc").close()
    circle["solver"] = {**circle["solver"], "seed": 9}
    sphereflow.run(circle, folder / "circle again.nc").close()
    return folder


# --------------------------------------------------------------------------------------------------------- distances
def test_distance_of_two_points_is_their_angle():
    for theta in (1e-9, 0.3, np.pi):
        a, b = (Measure(np.array([[np.cos(x), np.sin(x), 0.0]]), np.ones(1)) for x in (0.2, 0.2 + theta))
        assert wasserstein(coarsen(a), coarsen(b)) == pytest.approx((theta, theta), rel=1e-7)
        assert angle(a.points, b.points)[0] == pytest.approx(theta, rel=1e-7)


def test_wasserstein_of_shares_of_mass():
    poles = np.array([[0, 0, 1.0], [0, 0, -1.0]])
    a, b = Measure(poles, np.array([0.75, 0.25])), Measure(poles, np.array([0.5, 0.5]))
    assert wasserstein(coarsen(a), coarsen(b)) == pytest.approx((0.25 * np.pi, np.sqrt(0.25) * np.pi))


@pytest.mark.parametrize("d", [2, 3, 5])
def test_coarsening_keeps_its_bound(d):
    rng = np.random.default_rng(1)
    a = Measure(unit(rng.standard_normal((500, d)) + np.eye(d)[0]), np.full(500, 1 / 500))
    b = Measure(unit(rng.standard_normal((500, d))), np.full(500, 1 / 500))
    exact, coarse = wasserstein(coarsen(a), coarsen(b)), [coarsen(m, 60) for m in (a, b)]
    assert coarsen(a).bound == (0.0, 0.0)
    for measure, gathered in zip((a, b), coarse, strict=True):
        assert len(gathered.points) <= 60
        assert gathered.masses.sum() == pytest.approx(1.0)
        assert wasserstein(coarsen(measure), gathered)[0] <= gathered.bound[0] * (1 + 1e-9)
    for p in range(2):
        bound = coarse[0].bound[p] + coarse[1].bound[p]
        assert abs(wasserstein(*coarse)[p] - exact[p]) <= bound


@pytest.mark.parametrize("nlat", [8, 12, 34])
def test_no_point_of_a_cell_is_further_from_its_node_than_the_radius(nlat):
    grid, rng = gauss_grid(nlat), np.random.default_rng(3)
    radius, faces = _cell_radius(grid), grid.colatitude_face

    def away(theta, phi):
        return angle(polar(theta, phi), polar(grid.colatitude, 0.0))

    def polar(theta, phi):
        theta, phi = np.broadcast_arrays(theta, phi)
        return np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)

    share = rng.uniform(size=(1000, 2, nlat))
    inside = away(faces[:-1] + share[:, 0] * np.diff(faces), (share[:, 1] - 0.5) * grid.dlon)
    assert np.all(inside <= radius * (1 + 1e-12)) and np.all(inside.max(axis=0) > 0.9 * radius)
    corners = np.maximum(away(faces[:-1], grid.dlon / 2), away(faces[1:], grid.dlon / 2))
    np.testing.assert_allclose(radius, corners, rtol=1e-12)


def test_spectrum_distance_finds_the_degree():
    grid = gauss_grid(24)
    area = np.repeat(grid.cell_area, grid.nlon) / (4 * np.pi)
    y = real_harmonic(4, -3, grid.colatitude[:, None], grid.longitude).ravel()
    flat, bumpy = (Measure(grid.points.reshape(-1, 3), area * (1 + e * y)) for e in (0.0, 0.3))
    expected = np.zeros(8)
    expected[3] = 0.3 / (4 * np.pi)
    np.testing.assert_allclose(spectrum_distance(flat, bumpy), expected, atol=1e-12)
    turned = Measure(Rotation.from_rotvec([0.3, 1.0, -0.4]).apply(bumpy.points), bumpy.masses)
    np.testing.assert_allclose(spectrum_distance(flat, turned), expected, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------ verdicts
def test_density_and_quadrature_tokens_agree_within_the_tolerance(folder):
    result = compare(folder / "density.nc", folder / "quadrature.nc")
    assert result.agrees
    assert result.verdict == "agrees within the tolerance 0.001"
    names = [q.name for q in result.quantities]
    assert names == [
        "energy", "dissipation", "metric_speed_squared", "mean", "second moments", "spectrum distance", "wasserstein_1",
        "wasserstein_2",
    ]  # fmt: skip
    np.testing.assert_allclose(result.times, [0.0, 0.25, 0.5])
    assert not compare(folder / "density.nc", folder / "quadrature.nc", tolerance=1e-9).agrees


@pytest.mark.parametrize(("a", "b"), [("density", "tokens"), ("tokens", "quadrature"), ("tokens", "more tokens")])
def test_random_tokens_agree_within_sampling_noise(a, b, folder):
    result = compare(folder / f"{a}.nc", folder / f"{b}.nc")
    assert result.agrees
    assert "agrees within sampling noise" in result.verdict
    assert "trajectories" in result.methods.values()
    energy = result.quantities[0]
    assert (energy.difference > 10 * energy.allowed).any()  # which no tolerance would have explained


def test_another_start_does_not_agree(folder, capsys):
    files = [str(folder / "density.nc"), str(folder / "other start.nc")]
    result = compare(*files)
    assert not result.agrees
    assert result.verdict.startswith("does not agree: ")
    quick = ["--times", "1", "--replicas", "8"]
    assert main(["compare", *files, *quick]) == 0
    assert main(["compare", *files, *quick, "--require"]) == 1
    assert "<-- does not agree" in capsys.readouterr().out
    assert main(["compare", files[0], str(folder / "tokens.nc"), "--require", *quick]) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other weights", r"the logit matrices differ by up to [\d.]+ \(at t = "),
        ("other direction", "model.direction is 'descend' and 'ascend'"),
    ],
)
def test_other_models_are_refused_unless_forced(name, text, folder):
    with pytest.raises(CaseError, match=text) as caught:
        compare(folder / "tokens.nc", folder / f"{name}.nc")
    assert "--force" in str(caught.value)
    result = compare(folder / "tokens.nc", folder / f"{name}.nc", force=True, times=2, replicas=2)
    assert len(result.ignored) == 1
    assert result.times.size == 2


def test_runs_that_have_nothing_in_common(folder):
    with pytest.raises(CaseError, match="is in dimension 3, .* in dimension 2"):
        compare(folder / "tokens.nc", folder / "circle.nc")
    late = folder / "late.npz"
    np.savez(late, t=[7.0, 8.0], E=[1.0, 1.0])
    with pytest.raises(CaseError, match="no common times: 3 records from t = 0 to 0.5, spaced 0.25 and 2 records"):
        compare(folder / "tokens.nc", late)
    assert compare(folder / "tokens.nc", folder / "other times.nc").times.tolist() == [0.0]
    for settings in ({"times": 0}, {"replicas": 1}, {"tolerance": 0.0}):
        with pytest.raises(CaseError, match=next(iter(settings))):
            compare(folder / "tokens.nc", folder / "density.nc", **settings)


def test_bare_series_are_compared_as_far_as_they_go(folder):
    result = compare(folder / "scalars only.nc", folder / "tokens.nc")
    assert [q.name for q in result.quantities] == ["energy", "dissipation", "metric_speed_squared"]
    assert result.agrees
    assert "no time with densities or tokens on both sides" in " ".join(result.notes)


def test_circle_runs_have_no_spectrum(folder):
    result = compare(folder / "circle.nc", folder / "circle again.nc")
    assert result.agrees
    assert result.spectrum is None
    assert {"mean", "wasserstein_2"} <= {q.name for q in result.quantities}


def test_bare_tokens_of_others_get_their_energies_from_the_other_side(folder):
    with sphereflow.open_run(folder / "tokens.nc") as run:
        np.savez(folder / "bare.npz", t=run.t, positions=run.position)
    result = compare(folder / "bare.npz", folder / "tokens.nc", replicas=4)
    assert any("evaluated with the weights of" in note for note in result.notes)
    for quantity in result.quantities:
        assert quantity.difference.max() < 1e-7, quantity.name
    assert compare(folder / "density.nc", folder / "bare.npz").agrees


def test_json_and_figure(folder, capsys):
    figure = folder / "figure.png"
    files = [str(folder / "density.nc"), str(folder / "tokens.nc")]
    assert main(["compare", *files, "--replicas", "8", "--json", "--plot", str(figure)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] is True
    assert len(found["quantities"]["mean"]["a"][0]) == 3
    assert len(found["spectrum_distance_by_degree"][0]) == 8
    assert found["coarsening_bound"]["wasserstein_1"][0] > 0
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert main(["compare", *files, "--times", "1", "--plot", str(folder / "none" / "figure.png")]) == 4
    assert main(["compare", files[0], str(folder / "missing.nc")]) == 4


# --------------------------------------------------------------------------------------------------------------- noise
def test_estimated_noise_is_the_spread_of_independent_runs(folder):
    """For tokens that interact: the bootstrap of trajectories predicts how runs with other seeds spread about the density."""
    times = np.array([0.25, 0.5])
    runs, distances, side = [], [], open_side(folder / "density.nc")
    density = [coarsen(side.measure(k)) for k in (1, 2)]
    side.close()
    for seed in range(30):
        solver = build_solver(parse_case(tables("tokens", solver={"seed": [7, seed]})))
        found = list(run_to_end(solver, times))
        runs.append([[s.energy, *s.mean] for s in found])
        if seed < 10:
            tokens = [coarsen(equal(s.position)) for s in found]
            distances.append([wasserstein(*pair) for pair in zip(tokens, density, strict=True)])
    actual = np.std(runs, axis=0, ddof=1)
    result = compare(folder / "density.nc", folder / "tokens.nc", times=3, replicas=40)
    energy, mean = result.quantities[0], result.quantities[3]
    np.testing.assert_allclose(energy.noise[1:], actual[:, 0], rtol=0.45)
    np.testing.assert_allclose(mean.noise[1:], np.linalg.norm(actual[:, 1:], axis=1), rtol=0.35)
    expected = np.stack([q.expected[1:] for q in result.quantities[-2:]], axis=1)
    np.testing.assert_allclose(expected, root_mean_square(distances), rtol=0.3)
    bias = np.mean(runs, axis=0)[:, 0] - energy.a[1:]
    assert np.abs(bias).max() < 4 * actual[:, 0].max() / np.sqrt(30) + 0.01


def equal(x):
    return Measure(x, np.full(len(x), 1 / len(x)))


def noise_of(x, seed, replicas=16):
    """The noise of bare tokens."""
    side = SimpleNamespace(t=np.zeros(1), is_random=True, has_start=True, has_state=lambda k: True, measure=lambda k: equal(x))
    return Sampler(side, [0], None, replicas, seed).noise


APART = 2.0  # angle between the clusters


def clusters(n, seed):
    """Tokens that are in either of two narrow clusters by the toss of a coin."""
    rng = np.random.default_rng(seed)
    centers = np.array([[0.0, 0.0, 1.0], [np.sin(APART), 0.0, np.cos(APART)]])
    return unit(centers[rng.integers(0, 2, n)] + 0.01 * rng.standard_normal((n, 3)))


def smooth(n, seed):
    return unit(np.random.default_rng(seed).standard_normal((n, 3)) + [0.5, 0, 0])


def root_mean_square(values):
    return np.sqrt(np.mean(np.square(values), axis=0))


def slope(numbers, values):
    return np.polynomial.polynomial.polyfit(np.log(numbers), np.log(values), 1)[1]


def test_noise_of_wasserstein_2_between_clusters_falls_like_the_fourth_root():
    # The share in a cluster is off by Z / (2 sqrt(n)), Z normal, which has to be carried to the other one:
    # E W_2^2 = APART^2 E|Z| / (2 sqrt(n)) = APART^2 / sqrt(2 pi n).
    numbers, draws = np.array([300, 1200, 4800, 19200]), 12
    found = np.array([
        root_mean_square([noise_of(x, k).wasserstein(0, coarsen(equal(x)))[0][1] for k, x in enumerate(samples)])
        for samples in ([clusters(n, [n, k]) for k in range(draws)] for n in numbers)
    ])  # fmt: skip
    exact = APART * (2 * np.pi * numbers) ** -0.25
    # |Z| spreads by 0.76 of its mean; six pairs of shared samples leave half of that, W_2 has half of it again, and 12 draws
    # a twentieth in all. Four times that, for every number and for the slope over a range of log 64 (0.016).
    assert found == pytest.approx(exact, rel=0.2)
    assert slope(numbers, found) == pytest.approx(-0.25, abs=0.064)
    reference = coarsen(equal(clusters(200_000, 0)))
    fresh = root_mean_square([wasserstein(coarsen(equal(clusters(1200, [1, k]))), reference)[1] for k in range(60)])
    assert found[1] == pytest.approx(fresh, rel=0.3)


def test_noise_of_distances_of_a_smooth_density():
    numbers = np.array([300, 2400, 19200])
    reference, found, fresh = coarsen(equal(smooth(200_000, 0))), [], []
    for n in numbers:
        samples = [smooth(n, [n, k]) for k in range(6)]
        fresh.append(root_mean_square([wasserstein(coarsen(equal(x)), reference) for x in samples]))
        estimates = [noise_of(x, k).wasserstein(0, coarsen(equal(x)))[0] for k, x in enumerate(samples[:2])]
        found.append(root_mean_square(estimates))
    np.testing.assert_allclose(found, fresh, rtol=0.3)
    # W_1 like (log n / n)^(1/2), which is n^-0.43 here; an estimate is known to some per cent, its slope to 0.01 or 0.02.
    assert slope(numbers, np.sqrt(np.log(numbers) / numbers)) == pytest.approx(-0.434, abs=1e-3)
    assert slope(numbers, np.array(found)[:, 0]) == pytest.approx(-0.434, abs=0.06)


@pytest.mark.parametrize("number", [256, 280, 512, 1200, 5000])
def test_pairs_are_apart_by_the_fluctuation_of_the_run(number):
    # Two points, samples of 256 tokens: what is at the first is off by (4n)^(-1/2). Of 256 tokens a sample is compared with the
    # run; of 512 the run drops out of the pair.
    rng, poles, apart = np.random.default_rng(number), np.array([[0, 0, 1.0], [0, 0, -1.0]]), []

    def shares(p, n, **more):
        share = rng.binomial(n, p, **more) / n
        return np.stack([share, 1 - share], axis=-1)

    for _ in range(400):
        run = Measure(poles, shares(0.5, number))
        samples = [Measure(poles, masses) for masses in shares(run.masses[0], 256, size=16)]
        for pair in Noise("snapshots", 256 / number, [samples], [[{}] * 16])._pairs(samples, coarsen(run)):
            assert all(np.all(one.masses > 0) and one.masses.sum() == pytest.approx(1) for one in pair)
            first, second = (one.masses[one.points[:, 2] > 0].sum() for one in pair)
            apart.append(first - second)
    # Four times the spread of a mean of squares of which two of each six, at least, are independent.
    assert np.mean(np.square(apart)) * 4 * number == pytest.approx(1, abs=4 * np.sqrt(2 / 800))


def test_noise_of_independent_tokens_matches_the_textbook():
    rng = np.random.default_rng(2)
    x = unit(rng.standard_normal((2000, 3)) + [1.0, 0, 0])

    noise = noise_of(x, 0, 100)
    deviation, bias = noise.of(0, lambda m, _: m.mean, x.mean(axis=0))
    assert noise.method == "snapshots"
    np.testing.assert_allclose(deviation, x.std(axis=0) / np.sqrt(2000), rtol=0.25)
    assert np.abs(bias).max() < 1e-3


def test_sides_say_what_they_are(folder):
    names = ("density", "tokens", "quadrature", "scalars only")
    density, tokens, quadrature, scalars = (open_side(folder / f"{name}.nc") for name in names)
    assert (density.what, scalars.what) == ("density", "series")
    assert (tokens.what, tokens.is_random, quadrature.is_random) == ("tokens", True, False)
    assert density.measure(0).masses.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(density.measure(0).mean, quadrature.measure(0).mean, atol=1e-4)
    for side in (density, tokens, quadrature, scalars):
        side.close()
