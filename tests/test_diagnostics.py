"""What a run records: each variable against sums over the grid or the tokens, or a closed form."""

import numpy as np
import pytest
from closed_forms import langevin, log_i0, tangent, unit, vmf

from sphereflow.attention import AttentionOperator, Heads
from sphereflow.diagnostics import (
    FIELDS,
    DensitySnapshot,
    cluster_count,
    mean_position,
    particle_variables,
    record,
    relative_entropy,
    run_variables,
    second_moment,
)
from sphereflow.drift import Drift, Experts
from sphereflow.energy import Ledger
from sphereflow.grid import GaussGrid
from sphereflow.particles import TokenOperator
from sphereflow.particles.solver import ParticleSnapshot
from sphereflow.variational import equivalent_kappa, log_vmf_constant, resultant_length

GRID = GaussGrid(24)
MU = unit([0.3, -0.5, 0.8])
RNG = np.random.default_rng(7)
WEIGHT, KAPPA = np.array([0.3, 0.7]), np.array([1.0, 2.0])
LOGITS, VALUES = RNG.normal(size=(2, 2, 3, 3)) * 0.7
EXPERTS = Experts(np.eye(3)[:2], [1.0, 2.0], [[0.0, 0, 1.5], [1.0, 0, 0]], [0.0, 0.4])
MASS = 1.3  # no averages hide a division by the mass, or a missing one
LEDGER = Ledger(0.1, weight_work=0.2, dissipation_integral=0.5, metric_speed_integral=1.1, weight_drift=2.3, weight_ito=4.7)


def snapshot(concentration=None, values=None, drift=None, logits=LOGITS):
    """A density of two clusters; its cells stand for nodes, so that sums over them are integrals."""
    density = MASS * (0.4 * vmf(GRID.points, MU, 4.0) + 0.6 * vmf(GRID.points, -MU, 2.0))
    operator = AttentionOperator(GRID, "attention", 1, 1e-12, two_point=True, drift=drift)
    fields = operator(density, Heads(logits, WEIGHT, values, concentration=concentration))
    tendency = GRID.points[..., 0] * GRID.points[..., 2] + GRID.points[..., 1]
    return DensitySnapshot(fields, tendency, LEDGER, 0.3, 0.01, 17, 9.5)


def softmax_means(x, y, mass, matrices):
    """log m, (H, n), and the means of y under the softmax, (H, n, d), by plain sums."""
    weight = np.exp(np.einsum("ic,hcd,jd->hij", x, matrices, y)) * mass
    m = weight.sum(axis=2)
    return np.log(m), np.einsum("hij,jd->hid", weight, y) / m[..., None]


def expected_inference(x, y, mass, logits, kappa):
    """Surprisal, divergence and resultant at x, by the definitions: sums over all y."""
    d = x.shape[1]
    surprisal = divergence = resultant = 0.0
    for w, a, k in zip(WEIGHT, logits, kappa, strict=True):
        pulls = np.einsum("ic,cd,jd->ij", x, a, y), k * x @ y.T
        q, p = (np.exp(pull) * mass for pull in pulls)
        surprisal = surprisal - w * (np.log(p.sum(axis=1)) + log_vmf_constant(k, d))
        q, p = q / q.sum(axis=1, keepdims=True), p / p.sum(axis=1, keepdims=True)
        divergence = divergence + w * np.sum(q * np.log(q / p), axis=1)
        resultant = resultant + w * np.linalg.norm(q @ y, axis=1)
    return surprisal, divergence, resultant


def test_every_number_of_a_density_is_the_quantity_of_its_name():
    drift = Drift(EXPERTS)
    s = snapshot(KAPPA, VALUES, drift)
    found = record(s, run_variables((), True, True, True, True))
    fields, density = s.fields, s.density
    b, xi = fields.effective_mobility, fields.first_variation
    speed = np.sum(fields.velocity**2, axis=0)
    difference = np.sum((fields.velocity - fields.gradient_flow_velocity) ** 2, axis=0)
    x, mass = GRID.points.reshape(-1, 3), (density * GRID.cell_area[:, None]).ravel()
    surprisal, divergence, resultant = expected_inference(x, x, mass, LOGITS, KAPPA)
    gates = EXPERTS.gates(x)
    usage = mass @ gates / MASS
    expected = {
        "mass": MASS,
        "energy": 0.5 * GRID.integrate(xi * density),
        "dissipation": -GRID.integrate(xi * s.tendency),
        "metric_speed_squared": GRID.integrate(b * speed * density),
        "metric_slope_squared": GRID.integrate(np.sum(fields.first_variation_gradient**2, axis=0) / b * density),
        "gradient_flow_defect": 0.5 * GRID.integrate(b * difference * density),
        "weight_work": 0.2, "dissipation_integral": 0.5, "metric_speed_integral": 1.1,
        "edi_residual": s.energy - 0.1 - 0.2 + 0.5,
        "weight_variation": 9.5, "dt": 0.01, "step": 17,
        "entropy": GRID.integrate(density * np.log(4 * np.pi * density)),
        "density_min": density.min(), "density_max": density.max(),
        "mean_x": mass @ x[:, 0], "mean_y": mass @ x[:, 1], "mean_z": mass @ x[:, 2],
        "second_moment": np.einsum("i,ic,id->cd", mass, x, x),
        "order_parameter": np.sqrt(np.sum((mass @ x) ** 2)),
        "cluster_count": 2,
        "attention_resultant": mass @ resultant / MASS,
        "attention_kappa": equivalent_kappa(mass @ resultant / MASS),
        "weight_drift": 2.3, "weight_ito": 4.7, "weight_martingale": 0.2 - 2.3 - 4.7,
        "marginal_nll": mass @ surprisal / MASS,
        "variational_gap": mass @ divergence / MASS,
        "expert_usage": usage,
        "load_imbalance": np.sum(usage * np.log(2 * usage)),
        "gate_entropy": -mass @ np.sum(gates * np.log(gates), axis=1) / MASS,
        "logits": LOGITS, "values": VALUES,
    }  # fmt: skip
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-8, atol=1e-12, err_msg=name)
    assert expected["variational_gap"] > 0.1 and usage[0] < 0.45 and abs(expected["mean_x"]) > 5e-3


def test_every_field_of_a_density_is_the_quantity_of_its_name():
    s = snapshot(KAPPA, VALUES, Drift(EXPERTS, scale=0.5))
    found = record(s, run_variables(tuple(FIELDS), False, False))
    x, mass = GRID.points.reshape(-1, 3), (s.density * GRID.cell_area[:, None]).ravel()
    log_m, mean = softmax_means(x, x, mass, LOGITS)
    transposed, _ = softmax_means(x, x, mass, LOGITS.transpose(0, 2, 1))
    velocity = np.einsum("h,hcd,hid->ic", WEIGHT, VALUES, mean) + 0.5 * EXPERTS(x)
    longitude, latitude = np.arctan2(x[:, 1], x[:, 0]), np.arcsin(x[:, 2])
    east = np.stack([-np.sin(longitude), np.cos(longitude), 0 * longitude], axis=1)
    north = np.stack([-np.sin(latitude) * np.cos(longitude), -np.sin(latitude) * np.sin(longitude), np.cos(latitude)], axis=1)
    surprisal, divergence, resultant = expected_inference(x, x, mass, LOGITS, KAPPA)
    gates = EXPERTS.gates(x)
    expected = {
        "density": s.density.ravel(),
        "potential": WEIGHT @ log_m,
        "effective_mobility": 1 / (WEIGHT @ np.exp(-log_m)),
        "first_variation": WEIGHT @ (np.exp(log_m) + np.exp(transposed)) / 2,
        "velocity_east": np.sum(tangent(x, velocity) * east, axis=1),
        "velocity_north": np.sum(tangent(x, velocity) * north, axis=1),
        "surprisal": surprisal, "posterior_divergence": divergence, "resultant_length": resultant,
        "local_gate_entropy": -np.sum(gates * np.log(gates), axis=1), "gates": gates.T.ravel(),
    }  # fmt: skip
    assert set(expected) <= set(found)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].ravel(), value, rtol=1e-7, atol=1e-7, err_msg=name)


def test_attention_of_heads_without_a_likelihood_is_a_mean_over_any_mass():
    s = snapshot()
    x, mass = GRID.points.reshape(-1, 3), (s.density * GRID.cell_area[:, None]).ravel()
    resultant = WEIGHT @ np.linalg.norm(softmax_means(x, x, mass, LOGITS)[1], axis=2)
    found = record(s, run_variables(("resultant_length",), False, False))
    np.testing.assert_allclose(found["resultant_length"].ravel(), resultant, atol=1e-9)
    assert found["attention_resultant"] == pytest.approx(mass @ resultant / MASS, rel=1e-9)


def test_a_posterior_that_is_wrong_on_the_diagonal_alone_has_a_gap():
    """Logits that share most of their entries with kappa I are other logits all the same."""
    logits = np.stack([np.diag([1.0, 1.0, 3.0]), 2 * np.eye(3)])
    s = snapshot(KAPPA, None, None, logits)
    x, mass = GRID.points.reshape(-1, 3), (s.density * GRID.cell_area[:, None]).ravel()
    _, divergence, _ = expected_inference(x, x, mass, logits, KAPPA)
    np.testing.assert_allclose(s.inference.posterior_divergence.ravel(), divergence, atol=1e-9)
    assert divergence.max() > 0.05


@pytest.mark.parametrize("d", [2, 3, 4, 5])
def test_every_number_of_tokens_is_the_quantity_of_its_name(d):
    rng = np.random.default_rng(d)
    x, p = unit(rng.normal(size=(12, d))), rng.dirichlet(np.ones(12))
    logits, values = rng.normal(size=(2, 2, d, d)) * 0.7
    experts = Experts(rng.normal(size=(3, d)), [1.0, 2.0, 0.5], rng.normal(size=(3, d)), [0.1, 0.0, 0.4])
    heads = Heads(logits, WEIGHT, values, concentration=KAPPA)
    fields = TokenOperator("attention", 1, 1e-13, Drift(experts))(x, p, heads)
    found = record(ParticleSnapshot(fields, LEDGER, 0.3, 0.01, 17, 9.5), particle_variables((), True, True, d, True, True))
    surprisal, divergence, resultant = expected_inference(x, x, p, logits, KAPPA)
    gates = experts.gates(x)
    usage, mean, length = p @ gates, p @ x, p @ resultant
    expected = {
        "mass": 1.0,
        "weight_variation": 9.5, "dt": 0.01, "step": 17, "edi_residual": fields.energy - 0.1 - 0.2 + 0.5,
        "second_moment": np.einsum("i,ic,id->cd", p, x, x), "order_parameter": np.sqrt(mean @ mean),
        "marginal_nll": p @ surprisal, "variational_gap": p @ divergence,
        "attention_resultant": length,
        "expert_usage": usage, "load_imbalance": np.sum(usage * np.log(3 * usage)),
        "gate_entropy": -p @ np.sum(gates * np.log(gates), axis=1),
        "logits": logits, "values": values,
    }  # fmt: skip
    expected |= {"mean": mean} if d > 3 else {f"mean_{c}": m for c, m in zip("xyz", mean, strict=False)}
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert resultant_length(found["attention_kappa"], d) == pytest.approx(length, rel=1e-9)
    assert {name for name in found if name.startswith("mean")} == {name for name in expected if name.startswith("mean")}


def test_moments_and_entropy_of_a_von_mises_fisher_density():
    kappa = 5.0
    density, length = vmf(GRID.points, MU, kappa), langevin(kappa)
    np.testing.assert_allclose(mean_position(GRID, density), length * MU, atol=1e-10)
    expected = length / kappa * np.eye(3) + (1 - 3 * length / kappa) * np.outer(MU, MU)
    np.testing.assert_allclose(second_moment(GRID, density), expected, atol=1e-10)
    assert relative_entropy(GRID, density) == pytest.approx(kappa * length - log_i0(kappa), abs=1e-10)
    assert relative_entropy(GRID, np.full(GRID.shape, 1 / (4 * np.pi))) == pytest.approx(0, abs=1e-13)
    half = np.where(GRID.points[..., 2] > 0, 1 / (2 * np.pi), 0.0)  # no mass in the south: no NaN either
    assert relative_entropy(GRID, half) == pytest.approx(np.log(2), abs=1e-12)
    half[half == 0] = -1e-24  # what rounding leaves of empty cells
    assert relative_entropy(GRID, half) == pytest.approx(np.log(2), abs=1e-12)


NORTH, SOUTH, HALF = 0, GRID.nlat - 1, GRID.nlon // 2


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        ([(5, 0), (5, 1)], 1),
        ([(5, 0), (5, 2)], 2),
        ([(5, 0), (5, GRID.nlon - 1)], 1),  # across 0 degrees east
        ([(5, 3), (6, 3)], 1),
        ([(5, 3), (7, 3)], 2),
        ([(5, 3), (6, 4)], 2),  # corners are no faces
        ([(NORTH, 2), (NORTH, 2 + HALF)], 1),  # across the pole
        ([(SOUTH, 2), (SOUTH, 2 + HALF)], 1),
        ([(NORTH, 2), (SOUTH, 2)], 2),
        ([(1, 2), (1, 2 + HALF)], 2),
        ([(5, 0), (9, 9), (14, 20)], 3),
    ],
)
def test_clusters_are_cells_that_share_faces(cells, count):
    density = np.full(GRID.shape, 0.01)
    for cell in cells:
        density[cell] = 1.0
    assert cluster_count(GRID, density) == count


def test_clusters_are_denser_than_half_the_largest_density_and_than_twice_the_uniform_one():
    density = np.zeros(GRID.shape)
    density[5, [0, 2]] = 1.0
    for between, count in ((0.51, 1), (0.49, 2)):
        density[5, 1] = between
        assert cluster_count(GRID, density) == count
    for contrast, count in ((1.99, 0), (2.01, 1)):
        flat = np.full(GRID.shape, 0.5 / (4 * np.pi))
        flat[5, 0] = contrast / (4 * np.pi)
        assert cluster_count(GRID, flat) == count
