"""Forces, energies and rates of token sets, against plain double sums and closed forms."""

import numpy as np
import pytest
from scipy.special import logsumexp

from sphereflow.attention import Heads
from sphereflow.grid import GaussGrid
from sphereflow.kernel import direct_sum
from sphereflow.particles import TokenMeasure, TokenOperator, mobility
from sphereflow.particles.mobility import TokenMobilities


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def random_tokens(rng, n, d=3):
    weights = rng.uniform(0.1, 1.0, n)
    return unit(rng.standard_normal((n, d))), weights / weights.sum()


def random_heads(rng, count, d=3, norm=3.0, symmetric=True, values=False):
    logits = rng.standard_normal((count, d, d))
    if symmetric:
        logits = logits + logits.transpose(0, 2, 1)
    logits *= norm / np.linalg.norm(logits, ord=2, axis=(1, 2))[:, None, None]
    weight = rng.uniform(0.5, 1.0, count)
    v = rng.standard_normal((count, d, d)) if values else None
    return Heads(logits, weight / weight.sum(), v, rng.standard_normal((count, d, d)))


def plain_sums(x, p, heads, velocity, direction):
    """The model by dense double sums, straight from its definition."""
    kernel = np.exp(np.einsum("ia,hab,jb->hij", x, heads.logits, x))
    m = kernel @ p
    mean = np.einsum("hij,j,jc->hic", kernel, p, x) / m[..., None]
    project = np.eye(x.shape[1]) - x[:, :, None] * x[:, None, :]
    m_t = np.swapaxes(kernel, 1, 2) @ p
    xi = np.einsum("h,hi->i", heads.weight, 0.5 * (m + m_t))
    forward = np.einsum("hij,j,hab,jb->hia", kernel, p, heads.logits, x)
    backward = np.einsum("hji,j,hba,jb->hia", kernel, p, heads.logits, x)
    gradient = np.einsum("iab,h,hib->ia", project, heads.weight, 0.5 * (forward + backward))
    b = 1 / np.einsum("h,hi->i", heads.weight, 1 / m)
    flow = direction * gradient / b[:, None]
    matrices = direction * heads.logits if heads.values is None else heads.values
    v = {
        "attention": np.einsum("iab,h,hbc,hic->ia", project, heads.weight, matrices, mean),
        "gradient-flow": flow,
        "unnormalized": direction * gradient,
    }[velocity]
    power = 0.5 * np.einsum("h,i,j,hij,ia,hab,jb->", heads.weight, p, p, kernel, x, heads.rate, x, optimize=True)
    overlap = 0.5 * np.einsum("h,i,j,hij,ij->", heads.weight, p, p, kernel, 1 + (x @ x.T) ** 2, optimize=True)
    return {
        "velocity": v, "first_variation": xi, "first_variation_gradient": gradient, "gradient_flow_velocity": flow,
        "effective_mobility": b, "energy": 0.5 * p @ xi, "dissipation": -p @ np.sum(gradient * v, axis=1),
        "metric_speed_squared": p @ (b * np.sum(v**2, axis=1)),
        "metric_slope_squared": p @ (np.sum(gradient**2, axis=1) / b),
        "gradient_flow_defect": 0.5 * p @ (b * np.sum((v - flow) ** 2, axis=1)),
        "weight_power": power, "ito": overlap,
    }  # fmt: skip


@pytest.fixture
def always_expanded(monkeypatch):
    """Use the kernel expansion for any number of tokens, in chunks that do not divide it."""
    monkeypatch.setattr(mobility, "FEW_PAIRS", 0)
    monkeypatch.setattr(mobility, "PAIRS_PER_TERM", 1e-9)
    monkeypatch.setattr(mobility, "CHUNK", 97)


def token_sets():
    rng = np.random.default_rng(1)
    poles = np.array([[0, 0, 1.0], [0, 0, -1.0]])
    half = unit(rng.standard_normal((150, 3)))
    sets = {f"random {n}": unit(rng.standard_normal((n, 3))) for n in (1, 2, 7, 300, 2000)}
    sets |= {
        "both poles": np.concatenate([poles] * 5),
        "one pole": poles[:1].repeat(4, axis=0),
        "close to a pole": unit(poles[0] + 1e-9 * rng.standard_normal((200, 3))),
        "antipodal": np.concatenate([half, -half]),
        "coincident": half[:3].repeat(100, axis=0),
        "one cluster": unit(half[0] + 0.01 * rng.standard_normal((200, 3))),
    }
    return sets


@pytest.mark.parametrize("name", token_sets())
def test_expansion_agrees_with_the_direct_sum(name, always_expanded):
    rng = np.random.default_rng(2)
    x = token_sets()[name]
    p = rng.uniform(0.1, 1.0, len(x))
    p /= p.sum()
    for norm in (0.0, 0.1, 1.0, 5.0, 10.0):
        matrices = rng.standard_normal((4, 3, 3))
        matrices[0] += matrices[0].T
        matrices[1] = -matrices[1] @ matrices[1].T  # the kernel is smallest where the tokens are
        matrices[2] = matrices[2] @ matrices[2].T
        matrices *= norm / np.linalg.norm(matrices, ord=2, axis=(1, 2))[:, None, None]
        found = TokenMobilities(TokenMeasure(x, p), matrices, 1e-10)
        assert found.is_expanded.all()
        log_values, mean = (np.concatenate(part, axis=1) for part in list(zip(*found.chunks(), strict=True))[1:])
        for k, matrix in enumerate(matrices):
            expected = direct_sum(x @ matrix, x, p)
            np.testing.assert_allclose(np.expm1(log_values[k] - expected[0]), 0.0, atol=1e-9)
            np.testing.assert_allclose(mean[k], expected[1], atol=1e-9)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("velocity", ["attention", "gradient-flow", "unnormalized"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_fields_agree_with_plain_sums(d, velocity, symmetric, always_expanded):
    rng = np.random.default_rng(3)
    x, p = random_tokens(rng, 130, d)
    heads = random_heads(rng, 3, d, symmetric=symmetric)
    for direction in (-1, 1):
        fields = TokenOperator(velocity, direction)(x, p, heads)
        expected = plain_sums(x, p, heads, velocity, direction)
        for name, value in expected.items():
            if name != "ito":
                np.testing.assert_allclose(getattr(fields, name), value, rtol=1e-9, atol=1e-10, err_msg=name)
        assert fields.power_along(heads.rate) == pytest.approx(expected["weight_power"], rel=1e-9)
        assert fields.ito_power(2.0) == pytest.approx(0.5 * expected["ito"], rel=1e-9)
        assert np.abs(np.sum(fields.velocity * x, axis=1)).max() < 1e-13


def test_general_value_matrices_against_plain_sums(always_expanded):
    rng = np.random.default_rng(4)
    for d in (2, 3, 5):
        x, p = random_tokens(rng, 80, d)
        heads = random_heads(rng, 3, d, symmetric=False, values=True)
        fields = TokenOperator("attention", -1)(x, p, heads)
        expected = plain_sums(x, p, heads, "attention", -1)
        np.testing.assert_allclose(fields.velocity, expected["velocity"], rtol=1e-9, atol=1e-10)
        assert fields.gradient_flow_defect == pytest.approx(expected["gradient_flow_defect"], rel=1e-9)


@pytest.mark.parametrize("velocity", ["attention", "gradient-flow", "unnormalized"])
def test_rates_are_the_derivatives_of_the_energy(velocity):
    rng = np.random.default_rng(5)
    x, p = random_tokens(rng, 40)
    heads = random_heads(rng, 3, symmetric=False)
    operator = TokenOperator(velocity, -1)
    fields, h = operator(x, p, heads), 1e-5

    def energy(s, r):
        moved = unit(x + s * fields.velocity)
        return operator(moved, p, Heads(heads.logits + r * heads.rate, heads.weight)).energy

    assert (energy(h, 0) - energy(-h, 0)) / (2 * h) == pytest.approx(-fields.dissipation, rel=1e-7)
    assert (energy(0, h) - energy(0, -h)) / (2 * h) == pytest.approx(fields.weight_power, rel=1e-7)


def test_defect_vanishes_for_one_head_and_for_the_gradient_flow_only():
    rng = np.random.default_rng(6)
    x, p = random_tokens(rng, 60)
    one, three = random_heads(rng, 1), random_heads(rng, 3)
    assert TokenOperator("attention")(x, p, one).gradient_flow_defect < 1e-20
    assert TokenOperator("gradient-flow")(x, p, three).gradient_flow_defect < 1e-20
    fields = TokenOperator("attention", -1)(x, p, three)
    speeds = fields.metric_speed_squared + fields.metric_slope_squared
    assert fields.gradient_flow_defect == pytest.approx(0.5 * speeds - fields.dissipation, rel=1e-9)
    assert fields.gradient_flow_defect > 1e-3


def test_von_mises_fisher_quadrature_tokens_against_the_closed_form():
    grid, kappa = GaussGrid(32), 4.0
    center = unit(np.array([1.0, 2.0, -2.0]))
    x = grid.points.reshape(-1, 3)
    p = np.repeat(grid.cell_area, grid.nlon) * np.exp(kappa * (x @ center - 1))
    p /= p.sum()
    rng = np.random.default_rng(7)
    for symmetric in (True, False):
        heads = random_heads(rng, 1, norm=5.0, symmetric=symmetric)
        fields = TokenOperator("attention", 1)(x, p, heads)
        z = x @ heads.logits[0] + kappa * center
        r = np.linalg.norm(z, axis=1)
        mean = z / r[:, None] * (1 / np.tanh(r) - 1 / r)[:, None]
        force = mean @ heads.logits[0].T
        force -= np.sum(force * x, axis=1)[:, None] * x
        np.testing.assert_allclose(fields.velocity, force, atol=1e-9)
        b = np.sinh(r) / r / (np.sinh(kappa) / kappa)
        np.testing.assert_allclose(fields.effective_mobility, b, rtol=1e-9)


@pytest.mark.parametrize("norm", [30.0, 1e3, 1e4])
def test_huge_matrices_keep_velocities_finite_and_bounded(norm):
    rng = np.random.default_rng(8)
    x, p = random_tokens(rng, 400)
    heads = random_heads(rng, 2, norm=norm)
    for direction in (-1, 1):
        speed = np.linalg.norm(TokenOperator("attention", direction)(x, p, heads).velocity, axis=1)
        assert np.isfinite(speed).all()
        assert speed.max() <= norm * (1 + 1e-12)
        pairs = np.einsum("ia,hab,jb->hij", x, heads.logits, x) + np.log(p)
        share = np.exp(pairs - logsumexp(pairs, axis=2, keepdims=True))
        force = direction * np.einsum("h,hab,hib->ia", heads.weight, heads.logits, share @ x)
        force -= np.sum(force * x, axis=1)[:, None] * x
        np.testing.assert_allclose(np.linalg.norm(force, axis=1), speed, rtol=1e-9, atol=1e-8 * norm)


def test_few_tokens_and_other_dimensions_use_the_direct_sum():
    rng = np.random.default_rng(9)
    matrices = random_heads(rng, 1).logits
    assert not TokenMobilities(TokenMeasure(*random_tokens(rng, 200)), matrices, 1e-10).is_expanded.any()
    assert TokenMobilities(TokenMeasure(*random_tokens(rng, 2000)), matrices, 1e-10).is_expanded.all()
    assert not TokenMobilities(TokenMeasure(*random_tokens(rng, 2000)), 100 * matrices, 1e-10).is_expanded.any()
    circle = TokenMeasure(*random_tokens(rng, 2000, 2))
    assert not TokenMobilities(circle, random_heads(rng, 1, 2).logits, 1e-10).is_expanded.any()


def test_coefficients_of_a_measure_are_its_moments():
    rng = np.random.default_rng(10)
    x, p = random_tokens(rng, 50)
    measure = TokenMeasure(x, p)
    rho = measure.coefficients(4)
    y1 = np.sqrt(3 / (4 * np.pi))
    assert rho[0].real == pytest.approx(1 / np.sqrt(4 * np.pi), rel=1e-12)
    assert rho[1].real == pytest.approx(y1 * (p @ x[:, 2]), rel=1e-11)
    assert rho[5] == pytest.approx(-y1 / np.sqrt(2) * (p @ (x[:, 0] - 1j * x[:, 1])), rel=1e-11)
    expected = np.concatenate([rho[None], [TokenMeasure(x, p * x[:, a]).coefficients(4) for a in range(3)]])
    np.testing.assert_allclose(measure.moment_coefficients(4), expected, atol=1e-13)
    product = TokenMeasure(x, p * x[:, 0] * x[:, 1]).coefficients(4)
    np.testing.assert_allclose(measure.moment_coefficients(4, second=True)[5], product, atol=1e-13)
