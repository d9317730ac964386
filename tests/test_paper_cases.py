"""The experiments of cases/paper: cases are valid and run, predictions agree with independent sums, tables are fresh."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sphereflow import run
from sphereflow.case import load_case
from sphereflow.heads.schedules import oscillating_forcing

FOLDER = Path(__file__).parents[1] / "cases/paper"
CASES = sorted(FOLDER.glob("*/*.toml"))
COARSE = {
    "head_scaling/ou": ["grid.nlat=16", "heads.count=2", "solver.t_end=0.5"],
    "oscillating_weights/oscillating": ["grid.nlat=16", "heads.count=3", "solver.t_end=0.5"],
    "energy_identity/density": ["grid.nlat=16", "initial.kappa=5", "solver.t_end=0.5"],
    "energy_identity/tokens": ["solver.count=50", "solver.scheme=rk4", "solver.dt=0.02", "solver.t_end=0.5"],
    "energy_identity/public": ["solver.scheme=rk4", "solver.dt=0.05", "solver.t_end=0.5"],
    "integrability/decaying": ["grid.nlat=16", "solver.t_end=2"],
    "integrability/relaxing": ["grid.nlat=16", "solver.t_end=0.5"],
    "integrability/oscillating": ["grid.nlat=16", "solver.t_end=0.5"],
}


def script(name):
    """A script of the folder as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, FOLDER / name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case_is_valid_and_has_a_title(path):
    assert load_case(path).title


@pytest.mark.parametrize("name", COARSE)
def test_case_runs_on_a_coarse_grid_and_keeps_its_books(name, tmp_path):
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert "# What one sees: " in text and f"docs/experiments/{name.split('/')[0].replace('_', '-')}.md" in text
    with run(FOLDER / f"{name}.toml", tmp_path / "run.nc", overrides=COARSE[name]) as out:
        assert out.attrs["sphereflow_status"].startswith("complete") and np.abs(out.mass - 1).max() < 1e-12
        dissipated = np.abs(np.diff(out.dissipation_integral)).sum()
        assert abs(out.edi_residual[-1]) < 2e-3 * dissipated


def test_tables_of_decaying_weights_are_what_their_script_makes():
    made = script("integrability/make_weights.py")
    assert sorted(FOLDER.glob("integrability/*.npz")) == sorted(made.file_of(power) for power in made.POWERS)
    for power in made.POWERS:
        with np.load(made.file_of(power)) as stored:
            for name, array in made.weights(power).items():
                np.testing.assert_allclose(stored[name], array, rtol=1e-13, atol=1e-13)


def test_predicted_force_of_many_heads_is_that_of_random_matrices():
    """Without the density's answer H G^2 = E|grad log m|^2/E[1/m] over the stationary law, here drawn directly."""
    limits, rates = script("head_scaling/predict.py").predict(paths=25)
    rng, at = np.random.default_rng(0), np.array([0.0, 0.0, 1.0])
    z = rng.standard_normal((50_000, 3, 3))
    a = np.eye(3) + 0.5 * (z + z.swapaxes(1, 2))  # variance 1 on the diagonal, 1/2 beside it
    r = np.linalg.norm(a @ at, axis=1)
    m = np.sinh(r) / r
    slope = ((1 / np.tanh(r) - 1 / r) / r)[:, None] * (a @ (a @ at)[:, :, None])[:, :, 0]  # grad of log m, with its normal part
    tangent = np.sum(slope[:, :2] ** 2, axis=1)
    b = 1 / np.mean(1 / m)
    expected = {"G2": b * tangent.mean(), "S2": np.mean(m**2 * tangent) / b, "P": np.mean(m * tangent)}
    for name, value in expected.items():
        answered, error, bare = limits[name]
        assert bare == pytest.approx(value, rel=0.25), name  # few paths
        assert 0.5 * bare < answered < bare and error < 0.15 * bare
    assert rates[2] > rates[4] > rates[6] > 0


def test_density_answers_like_its_equation():
    """A constant force is screened at the rate lambda: f + k delta rho = f exp(-lambda t)."""
    answer = script("head_scaling/predict.py").answer
    step, k, degree = 0.05, 0.7, 2
    t = step * np.arange(200)
    density = answer(np.ones((t.size, 1)), k, degree, step)[:, 0]
    np.testing.assert_allclose(1 + k * density, np.exp(-6 * k / (4 * np.pi) * t), atol=1e-12)


def test_harmonics_left_by_equally_spaced_heads_are_the_speed_of_their_mean():
    made = script("oscillating_weights/predict.py")
    points, mass = made.density_at_rest(["grid.nlat=8", "initial.kappa=3", "solver.t_end=1", "output.every=1"])
    assert mass.sum() == pytest.approx(1)
    velocity, mobility = made.loop(points, mass)
    power, b = made.harmonics(velocity, mobility, mass), 1 / np.mean(1 / mobility, axis=0)
    for heads, size in ((2, 1e-3), (5, 1e-7)):
        mean = sum(np.roll(velocity, -made.PHASES * h // heads, axis=0) for h in range(heads)) / heads
        left = np.sum((mean - mean.mean(axis=0)) ** 2, axis=2).mean(axis=0) @ (b * mass)
        assert left == pytest.approx(power[heads::heads].sum(), rel=1e-4) and left > size
    t, energy = 2 * np.pi * np.arange(made.PHASES) / made.PHASES, mobility @ mass / 2
    second = np.hypot(energy @ np.cos(2 * t), energy @ np.sin(2 * t)) * 2 / made.PHASES
    assert made.energy_amplitudes(mass, mobility)[2] == pytest.approx(second) and second > 1e-2


def test_equally_spaced_phases_leave_only_multiples_of_the_number_of_heads():
    """The mean forcing is constant from three heads on; the mean of its square, of orders up to four, from five on."""
    t = np.linspace(0, 2 * np.pi, 50)
    for heads in range(1, 8):
        forcing = oscillating_forcing(t, 2 * np.pi * np.arange(heads) / heads)
        for product, first in ((forcing, 3), (forcing @ forcing, 5)):
            still = np.ptp(product.mean(axis=1), axis=0).max() < 1e-12
            assert still == (heads >= first), heads
