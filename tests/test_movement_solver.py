"""Runs by minimising movements: rates, the limit of short steps, equilibria, the ledger, and what is refused."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from builders import advance_to, fitted_order, random_symmetric
from scipy.special import spherical_in

from sphereflow import open_run
from sphereflow.attention import Heads
from sphereflow.case import parse_case
from sphereflow.cli import main
from sphereflow.diagnostics import cluster_count
from sphereflow.errors import CaseError, ConvergenceError
from sphereflow.harmonics import degrees_and_orders, get_transform
from sphereflow.movement import DualProblem, KernelSpectrum, cell_graph, minimise
from sphereflow.movement_solver import SHORTEST, MovementSolver
from sphereflow.runs import build_solver, run

BLOBS = {"kind": "vmf-mixture", "centers": [[1, 0.3, 0.5], [-0.2, 1, -0.8]], "kappa": [4.0, 2.0], "weights": [0.6, 0.4]}
THREE_HEADS = [
    [[1.5, 0.2, 0.0], [0.2, 0.5, 0.3], [0.0, 0.3, -1.0]],
    [[0.7, 0.2, 0.2], [0.2, 1.2, 0.2], [0.2, 0.2, -0.1]],
    [[-0.5, 0.4, 0.0], [0.4, 1.0, 0.0], [0.0, 0.0, 1.0]],
]
MOVING_HEADS = {"count": 3, "schedule": "oscillating", "initial": "gaussian-symmetric", "scale": 0.5, "seed": 1}


def settings(tau=None, t_end=1.0, **more):
    return {"kind": "minimizing-movement", "t_end": t_end, **({} if tau is None else {"tau": tau}), **more}


def case(nlat, matrices=None, direction="descend", solver=None, initial=None, heads=None, **model):
    """Dictionary of a case."""
    return {
        "grid": {"nlat": nlat},
        "model": {"velocity": "gradient-flow", "direction": direction, **model},
        "heads": heads or {"matrices": np.asarray(matrices, float).tolist()},
        "initial": initial or BLOBS,
        "solver": solver or settings(0.01),
    }


def started(*args, **keywords):
    """Solver of a case at t = 0."""
    return build_solver(parse_case(case(*args, **keywords)))


def history(solver, t_end):
    """All steps of a run: lists of movements and of energies, the first at t = 0."""
    movements, energies = [], [solver.energy]
    while solver.t < t_end:
        solver.advance(t_end)
        movements.append(solver.movement)
        energies.append(solver.energy)
    return movements, np.array(energies)


# --------------------------------------------------------------------------------------------------------- growth rates
@pytest.mark.parametrize("direction", ["ascend", "descend"])
@pytest.mark.parametrize("beta", [1.0, 5.0])
@pytest.mark.parametrize(("degree", "order"), [(1, 0), (1, 1), (2, 0), (2, 2), (3, 0), (3, 2)])
def test_growth_rates_about_the_uniform_density(degree, order, beta, direction):
    """Second order in the spacing (0.86 % at worst), first in tau, which extrapolation removes."""
    exact = degree * (degree + 1) * spherical_in(degree, beta) / spherical_in(0, beta)
    ripple = {"kind": "harmonic", "degree": degree, "order": order, "amplitude": 1e-5}
    transform, place = get_transform(32, 8, "ducc0"), degrees_and_orders(8)
    index = np.flatnonzero((place[0] == degree) & (place[1] == order))[0]
    rates = []
    for tau in (0.02, 0.01):
        solver = started(32, [beta * np.eye(3)], direction, settings(tau), initial=ripple)
        before = transform.analysis(solver.density)[index]
        advance_to(solver, 0.04)
        rates.append(np.log(np.abs(transform.analysis(solver.density)[index] / before)) / solver.t)
    sign = 1 if direction == "ascend" else -1
    assert sign * rates[0] == pytest.approx(np.log(1 + 0.02 * exact) / 0.02, rel=0.01)
    assert sign * (2 * rates[1] - rates[0]) == pytest.approx(exact, rel=0.01)


# --------------------------------------------------------------------------------------------- the limit of short steps
def test_short_steps_follow_the_two_point_transport_scheme():
    """The difference quotient of one step tends to the transport solver's tendency, cell by cell."""
    for direction in ("descend", "ascend"):
        solver = started(24, THREE_HEADS, direction)
        tendency, before = solver.snapshot().tendency, solver.density
        errors = []
        for tau in (1e-3, 1e-4):
            moved = solver._try_step(tau, tau).density
            errors.append(np.abs((moved - before) / tau - tendency).max() / np.abs(tendency).max())
        assert errors[1] < 2e-3 and errors[0] / errors[1] == pytest.approx(10, rel=0.2)


@pytest.mark.parametrize("direction", ["descend", "ascend"])
@pytest.mark.parametrize("matrices", [THREE_HEADS[:1], THREE_HEADS], ids=["H=1", "H=3"])
def test_first_order_in_the_step_to_the_transport_solver(matrices, direction):
    transport = {"kind": "finite-volume", "t_end": 0.4, "reconstruction": "two-point", "error_tolerance": 1e-6}
    reference = advance_to(started(24, matrices, direction, transport), 0.4)
    steps, errors, energies = [0.04, 0.02, 0.01, 0.005], [], []
    for tau in steps:
        solver = advance_to(started(24, matrices, direction, settings(tau)), 0.4)
        errors.append(solver.operator.grid.integrate(np.abs(solver.density - reference.density)))
        energies.append(abs(solver.energy - reference.energy))
    assert fitted_order(1 / np.array(steps), errors) == pytest.approx(1, abs=0.15)
    assert fitted_order(1 / np.array(steps), energies) == pytest.approx(1, abs=0.15)
    assert errors[-1] < 0.01


def test_attention_of_one_symmetric_head_is_the_same_run():
    runs = [
        advance_to(started(24, THREE_HEADS[:1], velocity=velocity), 0.1) for velocity in ("attention", "gradient-flow")
    ]
    np.testing.assert_array_equal(runs[0].density, runs[1].density)


# ----------------------------------------------------------------------------------------------------------- equilibria
def test_long_steps_reach_the_uniform_density():
    solver = started(24, [np.eye(3)], solver=settings(10.0, 2000.0))
    advance_to(solver, 100.0)
    assert solver.energy == pytest.approx(0.5 * np.sinh(1), abs=1e-6)
    advance_to(solver, 2000.0)
    assert solver.energy == pytest.approx(0.5 * np.sinh(1), abs=1e-8)


def test_long_steps_gather_mass_in_the_kernel_of_the_head():
    solver = started(24, [np.diag([1.0, 0.0, 1.0])], solver=settings(10.0, 500.0))
    _, energies = history(solver, 500.0)
    assert solver.energy == pytest.approx(0.5, abs=1e-3) and np.all(np.diff(energies) < 0)
    assert solver.snapshot().second_moment[1, 1] > 0.98


@pytest.mark.parametrize("centers", [[[1, 0.4, 0.3]], [[1, 0.4, 0.3], [-1, 0.2, 0.1]]], ids=["one", "two"])
def test_ascent_ends_in_one_or_two_clusters_at_the_top_eigenvector(centers):
    """All mass of either side ends in the cells next to +-e, and E is that of their nodes: the error of the grid."""
    initial = {"kind": "vmf-mixture", "centers": centers, "kappa": 5.0}
    matrix = np.diag([3.0, 1.0, 1.0])
    solver = started(32, [matrix], "ascend", settings(0.1, 20.0), initial=initial)
    movements, energies = history(solver, 20.0)
    grid = solver.operator.grid
    assert np.all(np.diff(energies) > -1e-13) and all(movement.iterations == 0 for movement in movements)
    assert cluster_count(grid, solver.density) == len(centers)
    assert np.count_nonzero(solver.density > 1e-6 * solver.density.max()) <= 4 * len(centers)
    share = grid.integrate(solver.density * (grid.points[..., 0] > 0))
    node = grid.points[15, 0]  # (cos, 0, sin) of half a spacing: the equator is a face
    same, opposite = (np.exp(sign * node @ matrix @ node) for sign in (1, -1))
    at_nodes = 0.5 * (share**2 + (1 - share) ** 2) * same + share * (1 - share) * opposite
    assert solver.energy == pytest.approx(at_nodes, rel=3e-3)
    if len(centers) == 1:
        assert solver.energy == pytest.approx(0.5 * np.exp(3), rel=5e-3)


# ---------------------------------------------------------------------------------------- the inequality and the ledger
@pytest.mark.parametrize("direction", ["descend", "ascend"])
@pytest.mark.parametrize("tau", [1e-3, 0.05, 1.0, 10.0])
def test_energy_falls_by_more_than_the_cost_at_every_step(tau, direction):
    """Indefinite heads, frozen: F(after) + cost <= F(before), and with it a monotone energy."""
    solver = started(24, THREE_HEADS, direction, settings(tau, 10 * tau, inner_steps=2))
    movements, energies = history(solver, 10 * tau)
    drops = np.diff(energies) * (1 if direction == "ascend" else -1)
    for movement, drop in zip(movements, drops, strict=True):
        assert movement.slack >= 0 and movement.cost >= 0 and movement.density.min() >= 0
        assert drop == pytest.approx(movement.cost + movement.slack, abs=1e-13)
    assert drops.min() >= 0 and abs(solver.mass - 1) <= 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_runs_keep_the_inequality_sign_and_mass(seed):
    """Strong and weak heads, sharp and smooth densities, empty cells, steps from 1e-3 to 10: no step may even fail."""
    rng = np.random.default_rng(seed)
    count, tau, scale = rng.integers(1, 4), 10 ** rng.uniform(-3, 1), rng.uniform(0.1, 4)
    centers, kappa = rng.normal(size=(2, 3)).tolist(), (10 ** rng.uniform(-0.5, 2, 2)).tolist()
    for direction in ("descend", "ascend"):
        solver = started(
            32, scale * random_symmetric(seed, count), direction,
            settings(tau, 100 * tau, inner_steps=int(rng.integers(1, 4))),
            initial={"kind": "vmf-mixture", "centers": centers, "kappa": kappa},
        )  # fmt: skip
        if seed % 3 == 0:
            density = np.where(solver.density < np.median(solver.density), 0.0, solver.density)
            density /= solver.operator.grid.integrate(density)
            solver = MovementSolver(solver.operator, solver.path, density, tau, solver.settings)
        for _ in range(6):
            solver.advance(100 * tau)
            movement, spectrum = solver.movement, solver._spectrum
            scale_of_energy = np.abs(spectrum.eigenvalue) @ spectrum.coordinates(solver.density) ** 2
            assert movement.slack >= -movement.gap - 1e-14 * scale_of_energy and movement.density.min() >= 0
        assert abs(solver.mass - 1) <= 1e-13 and solver.halvings == 0


@pytest.mark.parametrize(
    "heads",
    [
        MOVING_HEADS,
        {"count": 2, "schedule": "ornstein-uhlenbeck", "rate": 1.0, "mean": "identity", "noise_var": 1.0, "seed": 3},
    ],
    ids=["oscillating", "noise"],
)
def test_ledger_closes_under_moving_weights(heads):
    solver = started(32, heads=heads, solver=settings(0.02))
    start, moved = solver.energy, 0.0
    for _ in range(8):
        before = solver.energy
        work = solver.ledger.weight_work
        solver.advance(1.0)
        work = solver.ledger.weight_work - work
        assert solver.energy - before == pytest.approx(work - solver.movement.cost - solver.movement.slack, abs=1e-14)
        assert solver.movement.slack >= 0
        moved += 2 * solver.movement.cost
    ledger = solver.ledger
    assert ledger.metric_speed_integral == pytest.approx(moved) == ledger.dissipation_integral
    assert abs(ledger.weight_work) > 1e-3
    assert solver.energy - start == pytest.approx(
        ledger.weight_work - ledger.dissipation_integral + ledger.residual(solver.energy), abs=1e-14
    )
    if "noise_var" in heads:
        assert np.isfinite([ledger.weight_drift, ledger.weight_ito]).all() and ledger.weight_ito > 0


def test_step_sees_the_weights_at_its_end_and_the_density_at_its_start():
    solver, end = started(32, heads=MOVING_HEADS, solver=settings(0.1)), 0.1
    operator, start = solver.operator, solver.density
    heads = Heads.on_path(solver.path, end)
    graph = cell_graph(operator.grid)
    conductance = graph.conductance(operator(start, heads).effective_mobility)
    spectrum = KernelSpectrum(operator.grid, heads.logits, heads.weight, operator.tolerance)
    expected = minimise(DualProblem(graph, conductance, start, end, spectrum, -1), solver.settings)
    solver.advance(end)
    np.testing.assert_array_equal(solver.density, expected.density)


def test_residual_of_the_ledger_is_of_first_order():
    residuals, steps = [], (0.04, 0.02, 0.01)
    for tau in steps:
        solver = advance_to(started(24, THREE_HEADS, solver=settings(tau)), 0.4)
        residuals.append(abs(solver.ledger.residual(solver.energy)))
    assert fitted_order(1 / np.array(steps), residuals) == pytest.approx(1, abs=0.15)


def test_recorded_rates_agree_with_the_steps():
    """P = -s G^2 for a gradient flow; the cost of a short step is G^2 tau / 2."""
    solver = advance_to(started(32, THREE_HEADS, solver=settings(1e-3)), 0.01)
    snapshot = solver.snapshot()
    assert snapshot.dissipation == pytest.approx(2 * snapshot.movement_cost / solver.dt, rel=5e-3)
    # with densities and gradients at the nodes instead of upwind ones at the faces: the grid's error
    assert snapshot.metric_speed_squared == pytest.approx(snapshot.dissipation, rel=0.06)
    assert snapshot.gradient_flow_defect <= 1e-12
    from_fields = 0.5 * solver.operator.grid.integrate(solver.fields.first_variation * solver.density)
    assert snapshot.energy == pytest.approx(from_fields, rel=1e-9)


# ------------------------------------------------------------------------------------------------ symmetry and backends
def test_rotated_runs_agree_within_the_error_of_the_grid():
    """(rho, A) turned so that the z axis becomes x: the poles of one run lie on the equator of the other."""
    turn = np.array([[0.0, 0, 1], [1, 0, 0], [0, 1, 0]])
    sizes, differences = [16, 24, 32], []
    for nlat in sizes:
        energies = []
        for rotation in (np.eye(3), turn):
            centers = (np.array(BLOBS["centers"]) @ rotation.T).tolist()
            matrices = rotation @ np.array(THREE_HEADS) @ rotation.T
            solver = started(
                nlat, matrices, solver=settings(0.05), initial={**BLOBS, "centers": centers}, tolerance=1e-6
            )
            energies.append(history(solver, 0.5)[1])
        differences.append(np.abs(energies[0] - energies[1]).max())
    assert differences[-1] < 2e-3 * energies[0][0]
    assert fitted_order(sizes, differences) > 0.85


@pytest.mark.shtns
def test_both_transform_libraries_give_the_same_run():
    runs = [
        advance_to(started(32, heads=MOVING_HEADS, solver=settings(0.05), backend=name), 0.2)
        for name in ("shtns", "ducc0")
    ]
    np.testing.assert_allclose(runs[0].density, runs[1].density, rtol=1e-10, atol=1e-12)
    assert runs[0].energy == pytest.approx(runs[1].energy, rel=1e-12)


# ------------------------------------------------------------------------------------------------- steps that must fail
def test_failed_steps_are_halved_and_grow_again(monkeypatch):
    solver = started(16, THREE_HEADS[:1], solver=settings(0.1), tolerance=1e-6)
    attempt = MovementSolver._try_step

    def stubborn(self, tau, end):
        if tau > 0.03 and self.t < 0.1:
            raise ConvergenceError("stubborn")
        return attempt(self, tau, end)

    monkeypatch.setattr(MovementSolver, "_try_step", stubborn)
    solver.advance(1.0)
    assert solver.halvings == 2 and solver.dt == solver.t == 0.025 and solver.suggestion == pytest.approx(0.03)
    advance_to(solver, 1.0)
    assert solver.suggestion == 0.1 and solver.t == 1.0


def test_run_that_cannot_converge_ends_with_advice_and_a_readable_file(tmp_path, capsys):
    output = tmp_path / "out.nc"
    data = case(16, THREE_HEADS[:1], solver=settings(0.5, newton_tolerance=1e-14, newton_limit=1), tolerance=1e-6)
    with pytest.raises(ConvergenceError, match="not even with a length of") as caught:
        run(data, output)
    text = str(caught.value)
    assert "residuals" in text and "solver.newton_tolerance = 1e-14" in text and caught.value.exit_code == 3
    with open_run(output) as opened:
        assert opened.sizes["t"] == 1 and opened.attrs["sphereflow_status"].startswith("failed")
    assert SHORTEST < 1e-2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """File of a finished run with a record at every step."""
    path = tmp_path_factory.mktemp("movement") / "out.nc"
    data = case(24, THREE_HEADS, solver=settings(0.05, 0.2)) | {"output": {"every": 0.05, "fields": ["velocity"]}}
    run(data, path).close()
    return path


def test_run_writes_the_account_of_every_step(finished):
    with open_run(finished) as out:
        assert out.step.values.tolist() == [0, 1, 2, 3, 4] and np.all(out.dt[1:] == pytest.approx(0.05))
        assert np.all(out.movement_slack[1:] > 0) and np.all(out.movement_cost[1:] > 0)
        assert float(out.movement_slack_min[-1]) == float(out.movement_slack[1:].min())
        assert np.all(out.newton_iterations[1:] > 0) and out.step_halvings[-1] == 0
        drop = -np.diff(out.energy)
        np.testing.assert_allclose(drop, out.movement_cost[1:] + out.movement_slack[1:], atol=1e-14)
        assert {"velocity_east", "velocity_north"} <= set(out)


def test_staircase_is_drawn(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    source = Path(__file__).parents[1] / "postprocess/energy_staircase.py"
    spec = importlib.util.spec_from_file_location("energy_staircase", source)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    picture = tmp_path / "stairs.png"
    script.main([str(finished), "-o", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert capsys.readouterr().out.strip() == str(picture)


# --------------------------------------------------------------------------------------------- what is refused, and why
REFUSED = [
    (
        {"velocity": "attention"},
        'model.velocity: "attention" .* 3 heads; must be "gradient-flow": the softmax attention',
    ),
    ({"velocity": "unnormalized"}, 'model.velocity: "unnormalized" .* must be "gradient-flow": distances'),
    ({"diffusion": 0.1}, "model.diffusion: 0.1 is not allowed .* must be 0: the Laplacian"),
    ({"solver": settings(tau=0.0)}, "solver.tau: 0.0 is not allowed; must be > 0"),
    ({"solver": settings(inner_steps=0)}, "solver.inner_steps: 0 is not allowed; must be >= 1"),
    ({"solver": settings(newton_tolerance=-1.0)}, "solver.newton_tolerance: -1.0 is not allowed; must be > 0"),
    ({"solver": settings(cfl=0.3)}, 'solver.cfl: 0.3 is not allowed with kind = "minimizing-movement"'),
    ({"solver": settings(taus=0.3)}, "solver.taus: unknown key; did you mean tau?"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_case_that_makes_no_sense_is_refused_with_the_reason(change, message):
    with pytest.raises(CaseError, match=message):
        started(24, THREE_HEADS, **change)


@pytest.mark.parametrize(
    ("heads", "model", "message"),
    [
        (
            {"matrices": [[[1, 2, 0], [0, 1, 0], [0, 0, 1]]]},
            {"velocity": "attention"},
            "the logit matrix is not symmetric",
        ),
        (
            {"initial": "identity", "values": "identity"},
            {"velocity": "attention"},
            'heads.values: "identity" .* must be "lo',
        ),
        (
            {"initial": "identity", "values": "identity"},
            {},
            'heads.values: "identity" is not allowed with model.velocity',
        ),
        (
            {"initial": "identity", "scale": 8.0},
            {},
            "heads: the kernel of heads of norm 8 needs harmonics up to degree 26",
        ),
    ],
)
def test_weights_without_an_energy_or_too_large_for_the_grid_are_refused(heads, model, message):
    with pytest.raises(CaseError, match=message):
        started(24, heads=heads, **model)


def test_command_line_refuses_before_writing(tmp_path, capsys):
    path = tmp_path / "case.toml"
    path.write_text(
        '[heads]\ncount = 3\n[initial]\nkind = "uniform"\n[solver]\nkind = "minimizing-movement"\nt_end = 1\n', "utf-8"
    )
    assert main(["run", str(path), "-o", str(tmp_path / "out.nc")]) == 2
    assert 'must be "gradient-flow"' in capsys.readouterr().err and not (tmp_path / "out.nc").exists()
