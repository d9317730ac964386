"""Every case of cases/ runs: on a coarse grid for a short while here, as it is with `-m slow`."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from sphereflow import open_run
from sphereflow.case import load_case
from sphereflow.cli import main

FOLDER = Path(__file__).parents[1] / "cases"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
COARSE = {
    "octahedron_oscillating": ["grid.nlat=24", "solver.t_end=2"],
    "octahedron_ou": ["grid.nlat=24", "solver.t_end=2"],
    "octahedron_ou_noise": ["grid.nlat=24", "solver.t_end=1"],
    "two_clusters": ["grid.nlat=24", "solver.t_end=0.5"],
    "rotated": ["grid.nlat=24", "solver.t_end=0.5"],
    "mobius": ["grid.nlat=16", "solver.t_end=4"],
    "growth": ["grid.nlat=16", "solver.t_end=1.5"],
    "table_weights": ["grid.nlat=24", "solver.t_end=2"],
    "movement_ou": ["grid.nlat=32", "solver.t_end=0.4"],
    "movement_equilibrium": ["grid.nlat=16", "solver.t_end=100"],
    "public_oscillating": ["grid.nlat=32", "initial.kappa=100", "solver.t_end=0.5", "solver.error_tolerance=1e-3"],
    "tokens_oscillating": ["solver.t_end=0.5"],
    "tokens_circle": ["solver.t_end=2"],
    "tokens_dimension5": ["solver.t_end=1"],
    "svflow_attention": ["grid.nlat=24", "solver.t_end=0.3"],
    "svflow_experts": ["grid.nlat=24", "solver.t_end=0.5"],
    "mlp_drift": ["grid.nlat=24", "solver.t_end=0.5"],
    "kuramoto": ["solver.t_end=3"],
    "movement_vs_transport": ["grid.nlat=24", "solver.t_end=0.2", "output.every=0.1"],
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """Function that runs a case once, through the command line, and returns its output as an open dataset."""
    folder, opened = tmp_path_factory.mktemp("cases"), {}

    def run(name, overrides=()):
        key = (name, *overrides)
        if key not in opened:
            output = folder / f"{len(opened)}-{name}.nc"
            settings = [word for override in overrides for word in ("--set", override)]
            assert main(["run", str(FOLDER / f"{name}.toml"), *settings, "-o", str(output), "--quiet"]) == 0
            opened[key] = open_run(output)
        return opened[key]

    yield run
    for dataset in opened.values():
        dataset.close()


def check_books(run):
    """The run is complete, keeps its mass and accounts for its energy."""
    assert run.attrs["sphereflow_status"] == "complete"
    assert np.abs(run.mass - 1).max() <= 1e-12
    if "movement_slack_min" in run:  # a scheme of first order that bounds the energy's change instead of resolving it
        assert run.movement_slack_min[1:].min() >= -1e-13 and run.density_min.min() >= 0
        return
    dissipated = np.abs(np.diff(run.dissipation_integral)).sum()
    rounding = 1e-13 * float(run.energy.max())  # all there is where P = 0, as with uniform attention
    assert abs(run.edi_residual[-1]) <= 1e-3 * dissipated + rounding


def test_all_cases_are_run():
    assert set(NAMES) == COARSE.keys()


@pytest.mark.parametrize("name", NAMES)
def test_case_says_what_it_is(name):
    case = load_case(FOLDER / f"{name}.toml")
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert case.title and case.output.file == f"{name}.nc"
    assert 'title = "' in text and f'file = "{name}.nc"' in text and "# What one sees: " in text


@pytest.mark.parametrize("name", NAMES)
def test_case_runs_on_a_coarse_grid(name, result):
    check_books(result(name, COARSE[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_case_runs_as_it_is(name, result):
    check_books(result(name))


def test_table_of_weights_is_what_its_script_makes():
    spec = importlib.util.spec_from_file_location("make_table_weights", FOLDER / "make_table_weights.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.weights()
    with np.load(FOLDER / "table_weights.npz") as stored:
        assert set(stored.files) == made.keys()
        for name, array in made.items():
            # other versions of BLAS may round differently
            np.testing.assert_allclose(stored[name], array, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_two_clusters_on_the_equator_and_on_the_poles(result):
    equator, poles = result("two_clusters"), result("rotated")
    for name in ("energy", "dissipation", "metric_speed_squared"):
        wide = slice(0, 0.5)
        np.testing.assert_allclose(equator[name].sel(t=wide), poles[name].sel(t=wide), rtol=1e-3)
    np.testing.assert_allclose(equator.energy, poles.energy, rtol=5e-3)
    assert equator.cluster_count[-1] == poles.cluster_count[-1] == 2
    p = (1 + float(equator.mean_x[-1])) / 2  # two points on the x axis
    of_two_points = (p**2 + (1 - p) ** 2) * np.exp(3) / 2 + p * (1 - p) * np.exp(-3)
    assert equator.energy[-1] == pytest.approx(of_two_points, rel=0.01)


@pytest.mark.slow
def test_ripple_grows_at_the_rate_that_its_case_states(result):
    run = result("growth").sel(t=slice(0, 0.5))
    rate = np.polyfit(run.t, np.log(run.density_max - 1 / (4 * np.pi)), 1)[0]
    assert rate == pytest.approx(3.36174, rel=3e-3)


@pytest.mark.slow
def test_moebius_flow_follows_the_family_that_its_case_states(result):
    def mean(s):
        return 1 / np.tanh(s) - s / np.sinh(s) ** 2

    run = result("mobius").sel(t=slice(0, 7))
    start = brentq(lambda s: mean(s) - float(run.order_parameter[0]), 1e-3, 1)
    family = solve_ivp(lambda t, s: mean(s), (0, 7), [start], t_eval=run.t, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(run.order_parameter, mean(family.y[0]), atol=1e-4)
    axis = [run[f"mean_{c}"][-1] / run.order_parameter[-1] for c in "xyz"]
    np.testing.assert_allclose(axis, np.array([1, 2, 2]) / 3, atol=1e-4)


@pytest.mark.slow
def test_relaxed_heads_bring_the_energy_near_its_minimum(result):
    run = result("octahedron_ou")
    assert run.energy[-1] == pytest.approx(np.sinh(1) / 2, rel=3e-3)
    assert run.gradient_flow_defect[-1] < 1e-12 < run.gradient_flow_defect[0]


def test_kuramoto_tokens_synchronise_with_constant_cross_ratios(result):
    run = result("kuramoto", COARSE["kuramoto"])
    z = run.position.values[:, ::100] @ np.array([1, 1j])
    a, b, c, d = z[:, 0], z[:, 1], z[:, 2], z[:, 3]
    ratio = (a - c) * (b - d) / ((a - d) * (b - c))
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    assert run.order_parameter[-1] > 3 * run.order_parameter[0]


def test_variational_cases_fall_in_surprisal_and_keep_their_symmetry(result):
    attention, experts = (result(name, COARSE[name]) for name in ("svflow_attention", "svflow_experts"))
    assert (np.diff(attention.marginal_nll) < 0).all() and (attention.variational_gap > 0).all()
    assert (np.diff(attention.attention_resultant) > 0).all()
    np.testing.assert_allclose(experts.variational_gap, 0, atol=1e-9)
    assert (np.diff(experts.gate_entropy) < 0).all() and experts.load_imbalance.max() < 1e-4
