"""Energy, its rates and the ledger, each against an independent formula: plain double sums with analytic gradients."""

import numpy as np
import pytest
from builders import fitted_order
from closed_forms import DoubleSums, means_with_node_values, unit, vmf

from sphereflow import energy
from sphereflow.attention import AttentionOperator, Heads
from sphereflow.cells import node_values
from sphereflow.grid import GaussGrid
from sphereflow.transport import Transport

GRID = GaussGrid(32)
SOURCES = GaussGrid(24)  # enough for spectrally exact sums over these densities
MODELS = ("attention", "gradient-flow", "unnormalized")
FIRST, SECOND = unit([1.0, 0.5, 2.0]), unit([-0.3, 1.0, -0.2])


def mixture(x):
    """Two smooth clusters of unequal mass."""
    return 0.7 * vmf(x, FIRST, 3.0) + 0.3 * vmf(x, SECOND, 2.0)


def heads_of(count, symmetric=True, seed=0, rate=False):
    """Random matrices of spectral norm 1 with random weights, moving or not."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(count, 3, 3))
    if symmetric:
        a = a + a.transpose(0, 2, 1)
    a /= np.linalg.norm(a, 2, axis=(1, 2))[:, None, None]
    weight = rng.uniform(0.5, 2.0, count)
    return Heads(a, weight / weight.sum(), rate=rng.normal(size=a.shape) if rate else None)


def fields_of(heads, model="attention", direction=-1, grid=GRID, density=mixture):
    """Fields whose node density is exactly the given one."""
    means = means_with_node_values(grid, density(grid.points), node_values)
    return AttentionOperator(grid, model, direction)(means, heads)


def sums_of(heads, direction=-1, density=mixture, sources=SOURCES):
    return DoubleSums(sources, density(sources.points), heads.logits, heads.weight, direction)


def finite_volume_dissipation(fields):
    tendency = Transport(fields.grid).tendency(fields.density, *fields.face_velocity, 1e-9)
    return energy.dissipation(fields, tendency)


# --- energy and its rates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_energy_is_the_double_sum(count, symmetric):
    heads = heads_of(count, symmetric)
    assert energy.energy(fields_of(heads)) == pytest.approx(sums_of(heads).energy(), rel=1e-10)


def test_energies_known_in_closed_form():
    """D = I: uniform density 1/2 sinh 1; a point mass under D = lambda I tends to exp(lambda)/2."""

    def uniform(x):
        return np.full(x.shape[:-1], 1 / (4 * np.pi))

    identity = Heads(np.eye(3)[None], np.ones(1))
    assert energy.energy(fields_of(identity, density=uniform)) == pytest.approx(np.sinh(1) / 2, rel=1e-12)
    zero = Heads(np.zeros((2, 3, 3)), np.array([0.3, 0.7]))
    assert energy.energy(fields_of(zero)) == pytest.approx(0.5, rel=1e-12)
    grid = GaussGrid(64)
    kappa, strength = 150.0, 2.0
    cluster = fields_of(Heads(strength * np.eye(3)[None], np.ones(1)), grid=grid, density=lambda x: vmf(x, FIRST, kappa))
    assert energy.energy(cluster) == pytest.approx(0.5 * np.exp(strength) * (1 - 2 * strength / kappa), rel=1e-3)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("count", "symmetric"), [(1, True), (2, True), (3, False)])
def test_rates_are_their_own_double_sums(count, symmetric, model, direction):
    heads = heads_of(count, symmetric)
    fields = fields_of(heads, model, direction)
    assert fields.potential.is_resolved
    dissipation, speed, slope, defect = sums_of(heads, direction).rates(model)
    assert energy.metric_speed_squared(fields) == pytest.approx(speed, rel=1e-7)
    assert energy.metric_slope_squared(fields) == pytest.approx(slope, rel=1e-7)
    assert energy.gradient_flow_defect(fields) == pytest.approx(defect, rel=1e-7, abs=1e-14)
    assert finite_volume_dissipation(fields) == pytest.approx(dissipation, rel=1e-3)
    assert 0.5 * (speed + slope) + direction * dissipation == pytest.approx(defect, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("model", "sizes", "order"), [("attention", (16, 32, 64), 3.5), ("gradient-flow", (32, 48, 64), 1.7)])
def test_the_finite_volume_dissipation_converges(model, sizes, order):
    """P of the space-discrete flow tends to - int grad xi . v rho; the logarithmic mean of b is of second order."""
    heads = heads_of(3, symmetric=False)
    dissipation, speed, slope, _ = sums_of(heads).rates(model)
    errors = []
    for nlat in sizes:
        fields = fields_of(heads, model, grid=GaussGrid(nlat))
        errors.append(abs(finite_volume_dissipation(fields) - dissipation))
    assert fitted_order(sizes, errors) > order
    assert errors[-1] < 1e-5 * abs(dissipation)


@pytest.mark.parametrize("direction", [1, -1])
def test_the_defect_closes_the_identity_of_the_three_rates(direction):
    """1/2 (G^2 + S^2) + s P = defect, with each as the package computes it: to the accuracy of P."""
    heads = Heads(np.stack([np.diag([2.0, -1.0, 0.0]), np.diag([-1.0, 2.0, 0.5])]), np.array([0.4, 0.6]))
    fields = fields_of(heads, "attention", direction)
    speed, slope = energy.metric_speed_squared(fields), energy.metric_slope_squared(fields)
    defect = energy.gradient_flow_defect(fields)
    left = 0.5 * (speed + slope) + direction * finite_volume_dissipation(fields)
    assert left == pytest.approx(defect, abs=1e-3 * slope)
    assert defect > 0.05 * slope, "the identity is not tested by 0 = 0"


def test_the_defect_vanishes_for_one_symmetric_head_and_for_the_gradient_flow_alone():
    one = fields_of(heads_of(1))
    speed = energy.metric_speed_squared(one)
    assert energy.gradient_flow_defect(one) < 1e-14 * speed
    assert energy.metric_slope_squared(one) == pytest.approx(speed, rel=1e-7)
    assert finite_volume_dissipation(one) == pytest.approx(speed, rel=1e-3)
    flow = fields_of(heads_of(2), "gradient-flow")
    assert energy.gradient_flow_defect(flow) < 1e-14 * energy.metric_speed_squared(flow)
    assert energy.metric_speed_squared(flow) == pytest.approx(energy.metric_slope_squared(flow), rel=1e-7)
    for fields in (
        fields_of(heads_of(2)),
        fields_of(heads_of(1, symmetric=False)),
        fields_of(heads_of(1), "unnormalized"),
    ):
        assert energy.gradient_flow_defect(fields) > 1e-3 * energy.metric_speed_squared(fields)


def test_attention_of_equal_heads_is_the_gradient_flow():
    """Two heads with the same matrix are one: the defect measures their difference, not their number."""
    a = heads_of(1).logits[0]
    fields = fields_of(Heads(np.stack([a, a]), np.array([0.4, 0.6])))
    assert energy.gradient_flow_defect(fields) < 1e-14 * energy.metric_speed_squared(fields)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("density", [mixture, lambda x: vmf(x, unit([0.1, 0.2, 1.0]), 60.0)])
def test_dissipation_is_minus_the_rate_of_the_space_discrete_energy(model, density):
    """(E(rho + eps q) - E(rho - eps q)) / (2 eps) = -P(q) for the tendency q: exact, as E is quadratic."""
    heads = heads_of(3, symmetric=False)
    fields = fields_of(heads, model, density=density)
    tendency = Transport(GRID).tendency(fields.density, *fields.face_velocity, 1e-9)
    eps = 1e-3 / np.abs(tendency).max()
    operator = AttentionOperator(GRID, model, -1)
    later, earlier = (energy.energy(operator(fields.density + sign * eps * tendency, heads)) for sign in (1, -1))
    assert (later - earlier) / (2 * eps) == pytest.approx(-energy.dissipation(fields, tendency), rel=1e-7)


def test_dissipation_is_linear_in_the_tendency_and_blind_to_none():
    fields = fields_of(heads_of(2))
    assert energy.dissipation(fields, np.zeros(GRID.shape)) == 0.0
    q = means_with_node_values(GRID, GRID.points[..., 0] * GRID.points[..., 2], node_values)
    expected = -GRID.integrate(fields.first_variation * GRID.points[..., 0] * GRID.points[..., 2])
    assert energy.dissipation(fields, q) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("norm", [6.0, 20.0, 60.0])
def test_a_cluster_under_strongly_repelling_heads_keeps_its_digits(norm):
    """xi spans exp(2 |A|) between the cluster and its antipode: coefficients would lose it where the mass is."""
    grid = GaussGrid(32)

    def cluster(x):
        return vmf(x, FIRST, 20.0)

    heads = Heads(-norm * np.diag([1.0, 0.9, 0.8])[None], np.ones(1))
    fields = fields_of(heads, "gradient-flow", -1, grid, cluster)
    sums = sums_of(heads, -1, cluster, grid)
    _, speed, slope, _ = sums.rates("gradient-flow")
    assert energy.energy(fields) == pytest.approx(sums.energy(), rel=1e-8)
    np.testing.assert_allclose(fields.first_variation, sums.variation(grid.points)[0], rtol=1e-8)
    assert energy.metric_speed_squared(fields) == pytest.approx(speed, rel=1e-7)
    assert energy.metric_slope_squared(fields) == pytest.approx(slope, rel=1e-7)
    rate = cluster(grid.points) * grid.points[..., 1]
    expected = -sums.mass @ (sums.variation(sums.y)[0] * sums.y[:, 1])
    assert energy.dissipation(fields, means_with_node_values(grid, rate, node_values)) == pytest.approx(expected, rel=1e-7)
    attention = fields_of(heads, "attention", -1, grid, cluster)
    for one, other in zip(attention.face_velocity, fields.face_velocity, strict=True):
        assert np.abs(one - other).max() < 1e-6 * norm, "one symmetric head: the same flow"
    assert energy.gradient_flow_defect(attention) < 1e-3 * energy.metric_speed_squared(attention)


@pytest.mark.parametrize("model", ["attention", "gradient-flow"])
def test_dissipation_is_the_rate_of_the_energy_for_direct_heads_too(model):
    """The same difference quotient with one expanded head and one that is known point by point."""
    heads = Heads(np.stack([np.diag([1.0, 0.5, -0.5]), -9.0 * np.eye(3)]), np.array([0.4, 0.6]))
    grid = GaussGrid(24)
    fields = fields_of(heads, model, grid=grid, density=lambda x: vmf(x, FIRST, 12.0))
    assert fields.mobilities.pointwise.tolist() == [1] and fields.node_density.min() > 0
    q = 1e-3 * fields.density * np.sin(3 * grid.points[..., 0])
    later, earlier = (energy.energy(AttentionOperator(grid)(fields.density + sign * q, heads)) for sign in (1, -1))
    assert 0.5 * (later - earlier) == pytest.approx(-energy.dissipation(fields, q), rel=1e-6)


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_power_of_the_weights_is_the_derivative_of_the_energy_along_their_rate(symmetric):
    heads = heads_of(3, symmetric, rate=True)
    fields, eps = fields_of(heads), 1e-4

    def shifted(sign):
        return sums_of(Heads(heads.logits + sign * eps * heads.rate, heads.weight)).energy()

    expected = (shifted(1) - shifted(-1)) / (2 * eps)
    assert energy.weight_power(fields) == pytest.approx(expected, rel=1e-7)
    assert energy.drift_power(fields, heads.rate) == pytest.approx(energy.weight_power(fields), rel=1e-14)
    assert energy.drift_power(fields, -2 * heads.rate) == pytest.approx(-2 * energy.weight_power(fields), rel=1e-12)


def test_weights_at_rest_do_no_work():
    still = heads_of(2)
    assert energy.weight_power(fields_of(still)) == 0.0
    assert energy.weight_power(fields_of(Heads(still.logits, still.weight, rate=np.zeros((2, 3, 3))))) == 0.0


@pytest.mark.parametrize("norms", [(1.0, 1.0), (1.0, 8.0), (30.0, 2.0)])
def test_powers_of_the_weights_for_expanded_and_direct_heads_together(norms):
    """A cluster under a repelling head loses the expansion's digits: that head is summed over cells."""
    grid = GaussGrid(24)

    def cluster(x):
        return vmf(x, FIRST, 20.0)

    rng = np.random.default_rng(2)
    logits = np.stack([-norms[0] * np.eye(3), -norms[1] * np.diag([1.0, 0.9, 1.0])])
    heads = Heads(logits, np.array([0.3, 0.7]), rate=rng.normal(size=(2, 3, 3)))
    fields = fields_of(heads, grid=grid, density=cluster)
    sums = sums_of(heads, density=cluster, sources=grid)
    cosine = sums.y @ sums.y.T
    work, ito = 0.0, 0.0
    for w, a, rate in zip(heads.weight, logits, heads.rate, strict=True):
        kernel = np.exp(sums.y @ a @ sums.y.T)
        work += 0.5 * w * sums.mass @ (kernel * (sums.y @ rate @ sums.y.T)) @ sums.mass
        ito += 0.5 * w * sums.mass @ (kernel * 0.25 * 1.7 * (1 + cosine**2)) @ sums.mass
    assert energy.energy(fields) == pytest.approx(sums.energy(), rel=1e-8)
    assert energy.weight_power(fields) == pytest.approx(work, rel=1e-8)
    assert energy.ito_power(fields, 1.7) == pytest.approx(ito, rel=1e-8)


def test_the_ito_rate_is_the_mean_second_order_change_of_the_energy():
    """The second derivatives of E over the six directions of dW = (Z + Z^T)/2 add up to twice the rate."""
    heads = heads_of(2)
    fields, eps = fields_of(heads), 1e-3
    base, total = sums_of(heads).energy(), 0.0
    for h in range(2):
        for i in range(3):
            for j in range(i, 3):
                step = np.zeros((2, 3, 3))
                step[h, i, j] = step[h, j, i] = 1.0 if i == j else np.sqrt(0.5)
                up, down = (sums_of(Heads(heads.logits + s * eps * step, heads.weight)).energy() for s in (1, -1))
                total += (up - 2 * base + down) / eps**2
    assert energy.ito_power(fields, 1.0) == pytest.approx(0.5 * total, rel=1e-5)
    assert energy.ito_power(fields, 2.0) == pytest.approx(2 * energy.ito_power(fields, 1.0), rel=1e-14)
    assert energy.ito_power(fields, 0.0) == 0.0


# --- ledger ----------------------------------------------------------------------------------------------------------


def test_the_ledger_s_residual_is_what_the_books_leave_open():
    ledger = energy.Ledger(initial_energy=2.0)
    assert ledger.residual(2.0) == 0.0
    ledger.weight_work += 0.5
    ledger.dissipation_integral += 0.25
    assert ledger.residual(2.25) == 0.0
    assert ledger.residual(2.75) == 0.5
    ledger.metric_speed_integral, ledger.weight_drift, ledger.weight_ito = 1.0, 2.0, 3.0
    assert ledger.residual(2.75) == 0.5, "the other columns are reported, not part of the balance"
    assert energy.Ledger(**ledger.state()) == ledger
