"""The model's fields against plain double sums over the nodes and against closed forms for von Mises-Fisher data."""

import numpy as np
import pytest
from builders import fitted_order
from closed_forms import DoubleSums, means_with_node_values, normal_components, tangent, unit, vmf, vmf_mobility
from scipy.spatial.transform import Rotation
from scipy.special import sph_harm_y

from sphereflow.attention import AttentionOperator, Heads
from sphereflow.cells import node_values
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import degrees_and_orders
from sphereflow.mobility import MobilitySet

GRID = GaussGrid(32)
SOURCES = GaussGrid(20)  # enough for spectrally exact sums over smooth densities
MODELS = ("attention", "gradient-flow", "unnormalized")
FIRST, SECOND = unit([1.0, 0.5, 2.0]), unit([-0.3, 1.0, -0.2])


def mixture(x):
    """Two smooth clusters of unequal mass."""
    return 0.7 * vmf(x, FIRST, 3.0) + 0.3 * vmf(x, SECOND, 2.0)


def random_heads(count, seed=0, norm=1.0, symmetric=False):
    """Random matrices of spectral norm `norm` with random weights."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(count, 3, 3))
    if symmetric:
        a = a + a.transpose(0, 2, 1)
    weight = rng.uniform(0.5, 2.0, count)
    return Heads(norm * a / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None], weight / weight.sum())


def fields_of(heads, model="attention", direction=-1, density=mixture, grid=GRID, sources=SOURCES, **more):
    """Fields whose node density is exactly the given one, and plain sums over the nodes of a grid of sources."""
    values = density(grid.points)
    operator = AttentionOperator(grid, model, direction, **more)
    fields = operator(means_with_node_values(grid, values, node_values), heads)
    return fields, DoubleSums(sources, density(sources.points), heads.logits, heads.weight, direction)


def at_nodes(vectors, grid=GRID):
    """Components to the south and to the east of Cartesian vectors at the nodes."""
    return np.stack([np.sum(vectors * grid.e_theta, axis=-1), np.sum(vectors * grid.e_phi, axis=-1)])


# --- scalar fields ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_fields_are_the_double_sums(count, symmetric):
    heads = random_heads(count, symmetric=symmetric)
    fields, sums = fields_of(heads)
    x = GRID.points
    np.testing.assert_allclose(fields.node_density, mixture(x), rtol=1e-13)
    np.testing.assert_allclose(fields.potential.values, sums.potential(x)[0], atol=1e-9)
    np.testing.assert_allclose(fields.effective_mobility, sums.effective_mobility(x), rtol=1e-9)
    np.testing.assert_allclose(fields.first_variation, sums.variation(x)[0], rtol=1e-9)


def test_the_first_variation_uses_the_transposes():
    """xi of A and of A^T are the same field, and it is not m unless A is symmetric."""
    heads = random_heads(2)
    turned = Heads(heads.logits.transpose(0, 2, 1), heads.weight)
    one, other = fields_of(heads)[0].first_variation, fields_of(turned)[0].first_variation
    np.testing.assert_allclose(one, other, rtol=1e-10)
    mobility = np.tensordot(heads.weight, np.exp(fields_of(heads)[0].mobilities.log_on(32)), 1)
    assert np.abs(one - mobility).max() > 0.01


def test_only_the_skew_heads_are_symmetrised():
    """A mix of symmetric and non-symmetric heads: each weight counts once."""
    a, b = random_heads(1, 1, symmetric=True).logits[0], random_heads(1, 2).logits[0]
    fields, sums = fields_of(Heads(np.array([a, b, a]), np.array([0.5, 0.2, 0.3])))
    np.testing.assert_allclose(fields.first_variation, sums.variation(GRID.points)[0], rtol=1e-9)


def test_the_first_variation_is_the_derivative_of_the_energy():
    """E(rho + eps q) - E(rho - eps q) = 2 eps int xi q for any q: E is quadratic."""
    heads = random_heads(2)
    fields, sums = fields_of(heads)

    def q(x):
        return np.sin(2 * x[..., 0]) * x[..., 2]

    def energy(eps):
        rho = mixture(SOURCES.points) + eps * q(SOURCES.points)
        return DoubleSums(SOURCES, rho, heads.logits, heads.weight, 1).energy()

    difference = (energy(1.0) - energy(-1.0)) / 2
    assert GRID.integrate(fields.first_variation * q(GRID.points)) == pytest.approx(difference, rel=1e-8)


def test_the_effective_mobility_is_a_harmonic_mean_and_bounded_by_the_heads():
    heads = Heads(np.stack([2 * np.eye(3), -2 * np.eye(3)]), np.array([0.25, 0.75]))
    fields, _ = fields_of(heads)
    m = np.exp(fields.mobilities.log_on(GRID.nlat))
    np.testing.assert_allclose(1 / fields.effective_mobility, 0.25 / m[0] + 0.75 / m[1], rtol=1e-9)
    assert np.all(fields.effective_mobility <= m.max(axis=0)) and np.all(fields.effective_mobility >= m.min(axis=0))


def test_for_one_head_the_effective_mobility_is_that_head_s():
    fields, sums = fields_of(random_heads(1))
    mobility = sums.mobility(GRID.points, fields.heads.logits[0])[0]
    np.testing.assert_allclose(fields.effective_mobility, mobility, rtol=1e-9)


# --- velocities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("count", [1, 3])
def test_node_velocities_are_the_double_sums(count, model, direction):
    fields, sums = fields_of(random_heads(count), model, direction)
    expected = at_nodes(sums.velocity(GRID.points, model))
    assert fields.potential.is_resolved, "the spectral gradient is what is tested"
    np.testing.assert_allclose(fields.velocity, expected, atol=2e-8 * np.abs(expected).max())
    np.testing.assert_allclose(fields.first_variation_gradient, at_nodes(sums.variation(GRID.points)[1]), atol=1e-8)
    flow = at_nodes(sums.velocity(GRID.points, "gradient-flow"))
    np.testing.assert_allclose(fields.gradient_flow_velocity, flow, atol=1e-8)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("model", MODELS)
def test_face_velocities_converge_to_the_closed_form(model, direction):
    """Two heads on von Mises-Fisher data, whose m, Phi and xi are known at every point."""
    heads = random_heads(2, seed=3, norm=2.0)
    kappa = 3.0

    def exact(x):
        m, slope, phi = [], 0.0, 0.0
        for w, a in zip(heads.weight, heads.logits, strict=True):
            log_m, mean = vmf_mobility(x, a, FIRST, kappa)
            log_t, mean_t = vmf_mobility(x, a.T, FIRST, kappa)
            m.append(np.exp(log_m))
            phi = phi + w * mean @ a.T
            slope = slope + 0.5 * w * (np.exp(log_m)[..., None] * mean @ a.T + np.exp(log_t)[..., None] * mean_t @ a)
        b = 1 / np.tensordot(heads.weight, 1 / np.array(m), 1)
        vector = {"attention": phi, "unnormalized": slope, "gradient-flow": slope / b[..., None]}[model]
        return direction * tangent(x, vector)

    sizes, errors = (16, 32, 64), []
    for nlat in sizes:
        grid = GaussGrid(nlat)
        fields, _ = fields_of(heads, model, direction, lambda x: vmf(x, FIRST, kappa), grid)
        pairs = list(zip(fields.face_velocity, normal_components(grid, exact), strict=True))
        errors.append(max(np.abs(got - right).max() / np.abs(right).max() for got, right in pairs))
    assert fitted_order(sizes, errors) > (1.85 if model == "gradient-flow" else 2.6)
    assert errors[-1] < 1e-3


def test_for_one_symmetric_head_attention_and_gradient_flow_have_the_same_face_velocities():
    heads = random_heads(1, norm=3.0, symmetric=True)
    attention, flow = (fields_of(heads, model)[0].face_velocity for model in ("attention", "gradient-flow"))
    for one, other in zip(attention, flow, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-8)
    for heads in (random_heads(1, norm=3.0), random_heads(2, norm=3.0, symmetric=True)):
        attention, flow = (fields_of(heads, model)[0].face_velocity for model in ("attention", "gradient-flow"))
        assert np.abs(attention[0] - flow[0]).max() > 1e-2, "a non-symmetric head, or two, make a difference"


def test_general_value_matrices_give_the_vector_field():
    heads = random_heads(3, norm=2.0)
    values = np.random.default_rng(9).normal(size=(3, 3, 3))
    heads = Heads(heads.logits, heads.weight, values)
    sizes, errors = (16, 32, 64), []
    for nlat in sizes:
        grid = GaussGrid(nlat)
        fields, _ = fields_of(heads, density=lambda x: vmf(x, FIRST, 3.0), grid=grid)

        def exact(x):
            total = 0.0
            for w, a, v in zip(heads.weight, heads.logits, values, strict=True):
                total = total + w * vmf_mobility(x, a, FIRST, 3.0)[1] @ v.T
            return tangent(x, total)

        np.testing.assert_allclose(fields.velocity, at_nodes(exact(grid.points), grid), atol=1e-9)
        pairs = zip(fields.face_velocity, normal_components(grid, exact), strict=True)
        errors.append(max(np.abs(got - right).max() for got, right in pairs))
    assert fitted_order(sizes, errors) > 3.7
    assert errors[-1] < 1e-4


@pytest.mark.parametrize("direction", [1, -1])
def test_values_equal_to_the_signed_logits_change_nothing(direction):
    heads = random_heads(2, norm=2.0)
    same = Heads(heads.logits, heads.weight, direction * heads.logits)
    gradient, vector = (fields_of(h, "attention", direction)[0] for h in (heads, same))
    np.testing.assert_allclose(vector.velocity, gradient.velocity, atol=1e-8)
    for one, other in zip(vector.face_velocity, gradient.face_velocity, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_value_matrices_matter_to_attention_alone():
    heads = random_heads(2)
    given = Heads(heads.logits, heads.weight, np.stack([np.eye(3)] * 2))
    for model in ("gradient-flow", "unnormalized"):
        one, other = (fields_of(h, model)[0].face_velocity for h in (heads, given))
        assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def test_the_mobius_field_is_the_projected_mean():
    """A = 0, V = I: v = P_x M."""
    heads = Heads(np.zeros((1, 3, 3)), np.ones(1), np.eye(3)[None])
    fields, _ = fields_of(heads)
    mean = np.array([GRID.integrate(mixture(GRID.points) * GRID.points[..., i]) for i in range(3)])
    np.testing.assert_allclose(fields.velocity, at_nodes(tangent(GRID.points, mean)), atol=1e-12)
    expected = normal_components(GRID, lambda x: mean)
    for got, right in zip(fields.face_velocity, expected, strict=True):
        np.testing.assert_allclose(got, right, atol=1e-12)


@pytest.mark.parametrize("norm", [30.0, 1e3, 1e4])
@pytest.mark.parametrize("sign", [1, -1])
def test_velocities_of_huge_matrices_are_finite_and_bounded(norm, sign):
    grid = GaussGrid(24)
    heads = Heads(sign * norm * np.diag([1.0, 0.5, -0.2])[None], np.ones(1))
    fields, _ = fields_of(heads, grid=grid, density=lambda x: vmf(x, FIRST, 20.0))
    for velocity in (*fields.face_velocity, fields.velocity):
        assert np.abs(velocity).max() <= norm * (1 + 1e-12)
    assert fields.speed_bound == pytest.approx(norm)
    general = Heads(heads.logits, heads.weight, np.diag([0.1, 0.2, -0.3])[None])
    fields, _ = fields_of(general, grid=grid, density=lambda x: vmf(x, FIRST, 20.0))
    for velocity in (*fields.face_velocity, fields.velocity):
        assert np.abs(velocity).max() <= 0.3 * (1 + 1e-12)


# --- resolution of the nonlinear fields ------------------------------------------------------------------------------


def with_level(level, heads, grid):
    operator = AttentionOperator(grid, level={"potential": level, "effective_mobility": level})
    return operator, operator(mixture(grid.points), heads)


def test_the_result_does_not_depend_on_the_level_that_the_search_starts_from():
    grid = GaussGrid(64)
    heads = random_heads(3, norm=2.0)
    operator, reference = with_level(0, heads, grid)
    assert operator.nonlinear_grids == (24, 32, 48, 64)
    assert AttentionOperator(GaussGrid(40)).nonlinear_grids == (24, 40), "a grid nearly as fine would save nothing"
    assert reference.potential.is_resolved
    on_full_grid = np.tensordot(heads.weight, reference.mobilities.log_on(64), 1)
    np.testing.assert_allclose(reference.potential.values, on_full_grid, atol=1e-9)
    for level in (1, 2, 3):
        _, fields = with_level(level, heads, grid)
        np.testing.assert_allclose(fields.potential.values, reference.potential.values, atol=1e-9)
        np.testing.assert_allclose(fields.effective_mobility, reference.effective_mobility, rtol=1e-9)


def test_an_easy_potential_is_carried_down_one_grid_at_a_time():
    grid = GaussGrid(64)
    heads = random_heads(2, norm=0.5)
    operator, fields = with_level(2, heads, grid)
    assert fields.potential.lmax == 47 and operator.level["potential"] == 1
    fields = operator(mixture(grid.points), heads)
    assert fields.potential.lmax == 31 and operator.level["potential"] == 0
    fields = operator(mixture(grid.points), heads)
    assert fields.potential.lmax == 23 and operator.level["potential"] == 0


def test_a_harder_potential_climbs_and_the_search_remembers_where_it_ended():
    grid = GaussGrid(64)
    operator = AttentionOperator(grid)
    fields = operator(mixture(grid.points), random_heads(2, norm=4.0))
    assert fields.potential.is_resolved
    lmax = fields.potential.lmax
    assert lmax > 23 and operator.nonlinear_grids[operator.level["potential"]] == lmax + 1


def test_a_potential_that_no_smaller_grid_resolves_is_taken_on_the_full_grid():
    """Two opposite clusters under a sharp kernel: log m has a kink between them."""
    heads = Heads(9.0 * np.eye(3)[None], np.ones(1))
    axis = np.array([0.0, 0.6, 0.8])

    def clusters(x):
        return 0.5 * (vmf(x, axis, 30.0) + vmf(x, -axis, 30.0))

    fields, sums = fields_of(heads, density=clusters, direction=1, sources=GRID)
    assert not fields.potential.is_resolved
    np.testing.assert_allclose(fields.potential.values, sums.potential(GRID.points)[0], rtol=1e-9)
    east, south = fields.face_velocity
    np.testing.assert_allclose(fields.velocity[0], (south[1:] + south[:-1]) / 2)
    np.testing.assert_allclose(fields.velocity[1], (east + np.roll(east, 1, axis=1)) / 2)
    coefficients = fields.potential.coefficients
    assert coefficients[0].real == pytest.approx(GRID.integrate(fields.potential.values) / np.sqrt(4 * np.pi), rel=1e-12)


def test_after_a_failure_the_full_grid_is_taken_until_a_coarser_one_would_do(monkeypatch):
    grid = GaussGrid(64)
    operator, tried = AttentionOperator(grid), []
    sampled = MobilitySet.weighted_log_on
    monkeypatch.setattr(MobilitySet, "weighted_log_on", lambda self, w, nlat: tried.append(nlat) or sampled(self, w, nlat))

    def grids_tried(norm, density):
        tried.clear()
        fields = operator(density, Heads(norm * np.eye(3)[None], np.ones(1)))
        assert fields.potential.values.shape == grid.shape
        return list(tried)

    clusters = 0.5 * (vmf(grid.points, FIRST, 60.0) + vmf(grid.points, -FIRST, 60.0))
    assert grids_tried(12.0, clusters)[-1] == 64 and operator.level["potential"] == 3
    assert grids_tried(12.0, clusters) == [64]
    assert [grids_tried(0.5, mixture(grid.points)) for _ in range(4)] == [[64], [48], [32], [24]]


# --- symmetries and backends -----------------------------------------------------------------------------------------


def synthesis_at(x, coefficients, lmax):
    """A field of given coefficients at any points (n, 3)."""
    degree, order = degrees_and_orders(lmax)
    theta, phi = np.arccos(x[:, 2]), np.arctan2(x[:, 1], x[:, 0])
    y = sph_harm_y(degree[:, None], order[:, None], theta, phi)
    return np.sum(np.where(order > 0, 2, 1)[:, None] * (coefficients[:, None] * y).real, axis=0)


@pytest.mark.parametrize("model", MODELS)
def test_fields_turn_with_the_data(model):
    """(rho, A) -> (R rho, R A R^T) turns Phi and xi: at points of a grid whose pole was on the equator."""
    turn = Rotation.from_euler("zyz", [0.4, np.pi / 2, 1.1]).as_matrix()
    heads = random_heads(2, norm=1.5)
    turned = Heads(turn @ heads.logits @ turn.T, heads.weight)
    first, _ = fields_of(heads, model)
    second, _ = fields_of(turned, model, density=lambda x: mixture(x @ turn))
    x = unit(np.random.default_rng(0).normal(size=(20, 3)))
    for name in ("potential", "variation_coefficients"):
        values = []
        for fields, points in ((first, x), (second, x @ turn.T)):
            field = getattr(fields, name)
            coefficients, lmax = field if isinstance(field, tuple) else (field.coefficients, field.lmax)
            values.append(synthesis_at(points, coefficients, lmax))
        np.testing.assert_allclose(values[0], values[1], atol=1e-9)


@pytest.mark.shtns
@pytest.mark.parametrize("model", MODELS)
def test_both_transform_libraries_give_the_same_fields(model):
    grid = GaussGrid(48)
    one, other = (fields_of(random_heads(3, norm=2.0), model, grid=grid, backend=b)[0] for b in ("shtns", "ducc0"))
    scale = max(np.abs(one.velocity).max(), 1.0)
    for name in ("first_variation", "effective_mobility", "velocity"):
        assert np.abs(getattr(one, name) - getattr(other, name)).max() < 1e-10 * scale, name
    assert np.abs(one.potential.values - other.potential.values).max() < 1e-10
    for a, b in zip(one.face_velocity, other.face_velocity, strict=True):
        assert np.abs(a - b).max() < 1e-10 * scale


def test_the_first_order_operator_takes_cell_values_for_node_values():
    heads = random_heads(1)
    density = mixture(GRID.points)
    fields = AttentionOperator(GRID, two_point=True)(density, heads)
    assert np.array_equal(fields.node_density, density)
    phi = fields.potential.values
    expected = -(np.roll(phi, -1, 1) - phi) / (np.sin(GRID.colatitude)[:, None] * GRID.dlon)
    np.testing.assert_allclose(fields.face_velocity[0], expected, atol=1e-11)
