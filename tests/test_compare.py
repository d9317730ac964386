"""Distances of measures, sampling noise, and the verdict on pairs of runs."""

import json

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import sphereflow
from sphereflow.case import parse_case
from sphereflow.cli import main
from sphereflow.compare import compare, open_side
from sphereflow.compare.measures import Measure, angle, coarsen, spectrum_distance, wasserstein
from sphereflow.compare.noise import Sampler
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
    """For tokens that interact: the bootstrap of trajectories predicts the spread of runs with other seeds."""
    times = np.array([0.25, 0.5])
    runs = []
    for seed in range(30):
        solver = build_solver(parse_case(tables("tokens", solver={"seed": [7, seed]})))
        runs.append([[s.energy, *s.mean] for s in run_to_end(solver, times)])
    actual = np.std(runs, axis=0, ddof=1)
    result = compare(folder / "density.nc", folder / "tokens.nc", times=3, replicas=40)
    energy, mean = result.quantities[0], result.quantities[3]
    np.testing.assert_allclose(energy.noise[1:], actual[:, 0], rtol=0.45)
    np.testing.assert_allclose(mean.noise[1:], np.linalg.norm(actual[:, 1:], axis=1), rtol=0.35)
    bias = np.mean(runs, axis=0)[:, 0] - energy.a[1:]
    assert np.abs(bias).max() < 4 * actual[:, 0].max() / np.sqrt(30) + 0.01


def test_noise_of_independent_tokens_matches_the_textbook():
    rng = np.random.default_rng(2)
    x = unit(rng.standard_normal((2000, 3)) + [1.0, 0, 0])

    class Bare:
        t, is_random, has_start = np.array([0.0]), True, True

        def has_state(self, k):
            return True

        def measure(self, k):
            return Measure(x, np.full(2000, 1 / 2000))

    noise = Sampler(Bare(), [0], None, 100, 0).noise
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
