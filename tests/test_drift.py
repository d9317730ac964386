"""Local drifts: experts, gates, perceptrons, their diagnostics, and their way into the solvers."""

import numpy as np
import pytest
from builders import advance_to
from closed_forms import normal_components, tangent, unit
from scipy.integrate import solve_ivp
from scipy.stats import norm

from sphereflow import run
from sphereflow.attention import AttentionOperator, Heads
from sphereflow.case import parse_case
from sphereflow.compare import compare
from sphereflow.compare.sides import open_side
from sphereflow.drift import Drift, Experts, Perceptron, expert_usage, gate_entropy, load_imbalance
from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.runs import build_drift, build_solver

RNG = np.random.default_rng(0)
POINTS = unit(RNG.normal(size=(30, 3)))
MEAN, KAPPA, SHARE = unit(RNG.normal(size=(3, 3))), np.array([1.0, 4.0, 9.0]), np.array([0.5, 0.2, 0.3])


def posterior_experts():
    """Experts whose gates are the posterior of a mixture of their densities."""
    log_constant = np.log(KAPPA / (4 * np.pi * np.sinh(KAPPA)))
    return Experts(MEAN, KAPPA, KAPPA[:, None] * MEAN, np.log(SHARE) + log_constant)


def mlp(activation="gelu", width=5, seed=1):
    rng = np.random.default_rng(seed)
    return Perceptron(rng.normal(size=(width, 3)), rng.normal(size=width), rng.normal(size=(3, width)), np.ones(3), activation)


def test_gates_that_are_the_posterior_make_the_drift_the_gradient_of_the_log_mixture():
    def log_mixture(x):
        return np.log(np.sum(SHARE * KAPPA / (4 * np.pi * np.sinh(KAPPA)) * np.exp(KAPPA * (x @ MEAN.T)), axis=-1))

    drift, h = Drift(posterior_experts()), 1e-5
    for e in np.eye(3):
        slope = (log_mixture(unit(POINTS + h * e)) - log_mixture(unit(POINTS - h * e))) / (2 * h)
        np.testing.assert_allclose(slope, drift(POINTS) @ e, atol=1e-8)


def test_one_expert_is_a_score_and_its_flow_is_known():
    """dx/dt = kappa P_x mu: the angle to mu obeys tan(angle/2) = exp(-kappa t) tan(angle(0)/2)."""
    drift = Drift(Experts([[0, 0, 2.0]], [3.0], np.zeros((1, 3)), [0.0]))
    start = unit(np.array([1.0, 0.5, -0.4]))
    end = solve_ivp(lambda t, x: drift(x), (0, 0.7), start, rtol=1e-10, atol=1e-12).y[:, -1]
    assert np.tan(np.arccos(end[2]) / 2) == pytest.approx(np.exp(-2.1) * np.tan(np.arccos(start[2]) / 2), rel=1e-7)


@pytest.mark.parametrize(
    ("activation", "function"), [("relu", lambda s: s * (s > 0)), ("gelu", lambda s: s * norm.cdf(s)), ("tanh", np.tanh)]
)
def test_perceptron_is_two_layers_projected(activation, function):
    net = mlp(activation)
    for x, u in zip(POINTS, Drift(mlp=net, scale=-0.5)(POINTS), strict=True):
        hidden = [function(sum(w * c for w, c in zip(row, x, strict=True)) + b) for row, b in zip(net.w1, net.b1, strict=True)]
        out = net.w2 @ np.array(hidden) + net.b2
        np.testing.assert_allclose(u, -0.5 * (out - (out @ x) * x), atol=1e-14)


def test_usage_imbalance_and_entropy_in_closed_form():
    same = Experts(MEAN, KAPPA, np.zeros((3, 3)), np.zeros(3)).gates(POINTS)
    mass = np.linspace(1, 2, len(POINTS))
    np.testing.assert_allclose(expert_usage(same, mass), np.full(3, 1 / 3), rtol=1e-14)
    assert load_imbalance(np.full(3, 1 / 3)) == pytest.approx(0, abs=1e-15)
    np.testing.assert_allclose(gate_entropy(same), np.log(3), rtol=1e-14)
    assert load_imbalance(np.array([0.0, 1.0, 0.0])) == pytest.approx(np.log(3))
    np.testing.assert_array_equal(gate_entropy(np.eye(3)), 0)
    assert load_imbalance(np.array([0.75, 0.25])) == pytest.approx(0.75 * np.log(1.5) + 0.25 * np.log(0.5))


def test_logistic_gates_of_a_uniform_density_integrate_to_closed_forms():
    """Two experts, logit difference 2a z: the gate is (1 + tanh(a z))/2, even and odd parts known."""
    grid, a = GaussGrid(32), 1.3
    experts = Experts(np.eye(3)[:2], [1.0, 1.0], [[0, 0, a], [0, 0, -a]], [0.0, 0.0])
    gates, mass = experts.gates(grid.points), np.repeat(grid.cell_area[:, None], grid.nlon, 1) / (4 * np.pi)
    np.testing.assert_allclose(gates[..., 0], (1 + np.tanh(a * grid.points[..., 2])) / 2, atol=1e-15)
    np.testing.assert_allclose(expert_usage(gates, mass), [0.5, 0.5], atol=1e-14)
    upper = mass * (1 + grid.points[..., 2])  # density (1 + z)/(4 pi)
    z = np.linspace(-1, 1, 200001)
    expected = np.trapezoid((1 + np.tanh(a * z)) / 2 * (1 + z) / 2, z)
    assert expert_usage(gates, upper)[0] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("two_point", [False, True])
def test_face_velocity_takes_the_drift_at_the_midpoints_exactly(two_point):
    grid, drift = GaussGrid(16), Drift(posterior_experts(), mlp(), 0.3)
    heads = Heads(np.zeros((1, 3, 3)), np.ones(1))  # no attention at all
    fields = AttentionOperator(grid, two_point=two_point, drift=drift)(np.full(grid.shape, 1 / (4 * np.pi)), heads)
    for found, expected in zip(fields.face_velocity, normal_components(grid, drift), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)
    at_nodes = np.einsum("cij,ijcd->ijd", fields.velocity, np.stack([grid.e_theta, grid.e_phi], axis=2))
    np.testing.assert_allclose(at_nodes, tangent(grid.points, drift(grid.points)), atol=1e-12)


def case_of(model, solver=None, nlat=16, **more):
    return parse_case({
        "grid": {"nlat": nlat}, "model": model,
        "initial": {"kind": "vmf-mixture", "centers": [[1, 0.3, 0.2], [-0.5, 1, -0.4]], "kappa": [2.0, 3.0]},
        "solver": {"t_end": 0.5, **(solver or {})}, **more,
    })  # fmt: skip


EXPERTS = [{"mean": [1, 1, 0], "kappa": 1.5, "gate": [0.5, 0, 0]}, {"mean": [0, 0, -1], "kappa": 0.7, "bias": 0.3}]
MLP = {"w1": [[1, 0.2, 0], [0, -1, 0.5]], "b1": [0.1, 0], "w2": [[0.3, 0], [0, 0.4], [0.2, -0.2]], "b2": [0.1, 0, 0.1]}
FULL = {"experts": EXPERTS, "mlp": MLP, "residual_scale": 0.8}


def test_finite_volumes_converge_to_quadrature_tokens_with_attention_and_drift():
    def moments(nlat, solver):
        s = advance_to(build_solver(case_of(FULL, solver, nlat)), 0.5).snapshot()
        return np.array([s.energy, *s.mean, *s.second_moment.ravel()]), s

    reference, s = moments(24, {"kind": "particles", "quadrature": True, "dt": 0.02})
    assert abs(s.ledger.residual(s.energy)) < 1e-7  # the books close: P holds the work of the drift too
    errors = []
    for nlat in (16, 32):
        found, s = moments(nlat, {})
        errors.append(np.abs(found - reference).max())
        assert s.mass == pytest.approx(1, abs=1e-13) and s.density.min() >= 0
    assert errors[1] < 1.5e-3 and errors[0] / errors[1] > 2.5
    assert abs(s.ledger.residual(s.energy)) < 1e-5


def test_files_give_the_drift_of_the_same_numbers(tmp_path):
    np.savez(tmp_path / "mlp.npz", **{key: np.array(value, float) for key, value in MLP.items()})
    columns = {
        "mean": [e["mean"] for e in EXPERTS], "kappa": [e["kappa"] for e in EXPERTS],
        "gate": [e.get("gate", [0, 0, 0]) for e in EXPERTS], "bias": [e.get("bias", 0) for e in EXPERTS],
    }  # fmt: skip
    np.savez(tmp_path / "experts.npz", **columns)
    files = {"mlp": {"file": str(tmp_path / "mlp.npz")}, "experts_file": str(tmp_path / "experts.npz"), "residual_scale": 0.8}
    one, other = build_drift(case_of(FULL)), build_drift(case_of(files))
    np.testing.assert_array_equal(one(POINTS), other(POINTS))
    again = parse_case(case_of(FULL).to_toml())
    np.testing.assert_array_equal(one(POINTS), build_drift(again)(POINTS))
    assert build_drift(case_of({})) is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"gate": np.full((2, 3), np.nan)}, "experts.npz: the experts' gate has the non-finite entry nan at index"),
        ({"gate": np.ones((2, 4))}, r"gate has shape \(2, 4\); expected \(2, 3\) to go with mean of shape \(2, 3\)"),
        ({"kappa": np.array([1.0, -2.0])}, "kappa of expert 1 is -2; must be >= 0"),
        ({"kappa": np.ones(3)}, r"kappa has shape \(3,\); expected \(2,\) to go with mean of shape \(2, 3\)"),
        ({"mean": np.array([[1.0, 0, 0], [0, 0, 0]])}, "the mean of expert 1 is 0"),
        ({"mean": np.eye(2), "gate": np.eye(2)}, r"mean has shape \(2, 2\); expected \(2, 3\) for tokens in dimension d = 3"),
    ],
)
def test_bad_expert_files_are_refused(tmp_path, arrays, message):
    good = {"mean": np.eye(3)[:2], "kappa": np.ones(2), "gate": np.zeros((2, 3))}
    np.savez(tmp_path / "experts.npz", **(good | arrays))
    case = case_of({"experts_file": str(tmp_path / "experts.npz")})
    with pytest.raises(CaseError, match=message):
        build_solver(case)


def test_a_perceptron_file_without_an_array_is_refused(tmp_path):
    np.savez(tmp_path / "mlp.npz", w1=np.ones((2, 3)), b1=np.ones(2), w2=np.ones((3, 2)))
    with pytest.raises(CaseError, match="no array 'b2'"):
        build_solver(case_of({"mlp": {"file": str(tmp_path / "mlp.npz")}}))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"experts": [{"mean": [1, 0, 0], "kappa": -1.0}]}, r"model.experts\[0\].kappa: -1.0 is not allowed; must be >= 0"),
        ({"experts": [{"mean": [1, 0], "kappa": 1.0}]}, r"model.experts\[0\].mean: \[1, 0\] is not .* a vector of 3"),
        ({"experts": [{"mean": [1, 0, 0], "kappa": 1.0, "gate": [float("nan"), 0, 0]}]},
         r"model.experts\[0\].gate\[0\]: nan is not allowed; must be a finite number"),
        ({"experts": [{"mean": [1, 0, 0], "kapa": 1.0}]}, r"model.experts\[0\].kapa: unknown key; did you mean kappa\?"),
        ({"experts": []}, "model.experts: .* must be a non-empty list of tables"),
        ({"mlp": {**MLP, "activation": "gellu"}}, 'model.mlp.activation: "gellu" is not allowed; .* relu, gelu, tanh; did you'),
        ({"mlp": {**MLP, "b1": [1, 2, 3]}}, r"b1 has shape \(3,\); expected \(2,\) to go with w1 of shape \(2, 3\)"),
        ({"mlp": {**MLP, "w1": [[1, 2], [3, 4]], "w2": [[1, 2], [3, 4]], "b2": [0, 0]}},
         r"\(2, 2\); expected \(2, 3\) for tokens"),
        ({"mlp": {**MLP, "w1": [[1, 2, 3], [4]]}}, "model.mlp.w1: .* rows of numbers, all of the same length"),
        ({"mlp": {"w1": [[1, 2, 3]], "b1": [1]}}, "model.mlp: w2, b2 missing; must have file, or all of w1, b1, w2, b2"),
        ({"mlp": {**MLP, "file": "x.npz"}}, "model.mlp: file and w1, b1, w2, b2 are not allowed together"),
        ({"experts": EXPERTS, "experts_file": "x.npz"}, "model.experts_file: is not allowed together with model.experts"),
        ({"residual_scale": 2.0}, "model.residual_scale: 2.0 is not allowed without a local drift"),
    ],
)  # fmt: skip
def test_bad_drifts_of_a_case_are_named(model, message):
    with pytest.raises(CaseError, match=message):
        case_of(model)


@pytest.mark.parametrize("model", [{"experts": EXPERTS}, {"mlp": MLP}])
def test_minimising_movements_refuse_a_drift_with_the_reason(model):
    with pytest.raises(CaseError, match="a local drift is not the gradient of the energy that a step minimises"):
        case_of(model, {"kind": "minimizing-movement"})


@pytest.mark.parametrize("solver", [{}, {"kind": "particles", "count": 60, "dt": 0.05}])
def test_a_run_goes_on_from_its_state_with_its_drift(solver):
    case = case_of(FULL, solver)
    whole = build_solver(case)
    for _ in range(3):
        whole.advance(0.5)
    again = build_solver(case, state=whole.state())
    for one in (whole, again):
        advance_to(one, 0.5)
    np.testing.assert_array_equal(whole.snapshot().sample[1], again.snapshot().sample[1])
    np.testing.assert_array_equal(whole.snapshot().sample[0], again.snapshot().sample[0])


def test_a_density_and_tokens_with_the_same_drift_are_found_to_agree(tmp_path):
    for name, solver in (("density", {}), ("tokens", {"kind": "particles", "count": 200, "dt": 0.05})):
        run(case_of(FULL, solver, output={"every": 0.25}), tmp_path / f"{name}.nc").close()
    side = open_side(tmp_path / "tokens.nc")
    np.testing.assert_array_equal(side.drift(POINTS), build_drift(case_of(FULL))(POINTS))
    side.close()
    assert compare(tmp_path / "density.nc", tmp_path / "tokens.nc", replicas=8).agrees
