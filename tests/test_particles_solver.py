"""Token trajectories: orders of the schemes, exact solutions, the ledger, kinks of the weight path."""

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from sphereflow.errors import NumericalError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath, oscillating_forcing
from sphereflow.particles import ParticleSolver, TokenOperator


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def frozen(logits, t_end=10.0, values=None):
    logits = np.asarray(logits, dtype=float)
    nodes = np.stack([logits, logits])
    values = None if values is None else np.broadcast_to(values, nodes.shape)
    return WeightPath(np.array([0.0, t_end]), nodes, np.full(len(logits), 1 / len(logits)), values)


def oscillating(initial, t_end=2.0, step=1e-2, dimension=3):
    """The exact oscillating path on a fine time grid (Hermite: smooth)."""
    time = step * np.arange(round(t_end / step) + 1)
    phase = 2 * np.pi * np.arange(len(initial)) / len(initial)
    relaxed = oscillating_forcing(time, phase, dimension, relaxed=True)
    logits = relaxed + np.exp(-time)[:, None, None, None] * (initial - relaxed[0])
    rate = oscillating_forcing(time, phase, dimension) - logits
    return WeightPath(time, logits, np.full(len(initial), 1 / len(initial)), rate=rate, interpolation="hermite")


def solver(path, x, p=None, scheme="rk4", dt=0.01, velocity="attention", direction=-1):
    p = np.full(len(x), 1 / len(x)) if p is None else p
    return ParticleSolver(TokenOperator(velocity, direction), path, x, p, scheme, dt)


def run(tokens, t_end):
    while tokens.t < t_end:
        tokens.advance(t_end)
    return tokens


def symmetric(rng, count, d=3):
    z = rng.standard_normal((count, d, d))
    return z + z.swapaxes(1, 2)


def fitted_order(steps, errors):
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize(
    ("scheme", "order", "steps"), [("rk4", 4, (0.1, 0.05, 0.025)), ("euler", 1, (0.02, 0.01, 0.005))]
)
def test_order_of_the_schemes(scheme, order, steps, d):
    rng = np.random.default_rng(1)
    path, x = oscillating(0.5 * symmetric(rng, 2, d), t_end=1.0, dimension=d), unit(rng.standard_normal((30, d)))
    exact = run(solver(path, x, dt=0.01), 1.0)
    runs = [run(solver(path, x, scheme=scheme, dt=dt), 1.0) for dt in steps]
    errors = [np.abs(r.positions - exact.positions).max() for r in runs]
    assert fitted_order(steps, errors) == pytest.approx(order, abs=0.15)
    residuals = [abs(r.ledger.residual(r.energy)) for r in runs]
    assert fitted_order(steps, residuals) == pytest.approx(order, abs=0.4)
    assert residuals[-1] < (1e-5 if scheme == "rk4" else 2e-2)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("direction", [-1, 1])
def test_one_token_follows_the_matrix_exponential(d, direction):
    rng = np.random.default_rng(2)
    logits, start = symmetric(rng, 1, d), unit(rng.standard_normal((1, d)))
    found = run(solver(frozen(logits), start, dt=2e-3, direction=direction), 0.5).positions[0]
    exact = expm(direction * 0.5 * logits[0]) @ start[0]
    np.testing.assert_allclose(found, exact / np.linalg.norm(exact), atol=1e-9)


@pytest.mark.parametrize("d", [2, 3, 5])
@pytest.mark.parametrize("direction", [-1, 1])
def test_two_tokens_follow_their_scalar_equation(d, direction):
    beta, omega = 2.0, 0.3
    x = np.zeros((2, d))
    x[0, 0], x[1, :2] = 1.0, (omega, np.sqrt(1 - omega**2))
    found = run(solver(frozen([beta * np.eye(d)]), x, dt=0.01, direction=direction), 1.0).positions

    def rate(_, w):
        return direction * 2 * beta * (1 - w**2) * np.exp(beta * w) / (np.exp(beta) + np.exp(beta * w))

    exact = solve_ivp(rate, (0, 1), [omega], rtol=1e-11, atol=1e-12).y[0, -1]
    assert found[0] @ found[1] == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("axis", [(0, 0, 1), (1, 0, 0), (1, -1, 1)])
def test_moebius_solution(axis):
    """A = 0, V = I: rho_T(u) = (1 - T^2) / (4 pi (1 - u T)^2) with dT/dt = (1 - T^2) |M|(T)."""
    grid, axis, start = GaussGrid(24), unit(np.array(axis, dtype=float)), np.tanh(0.2)
    x = grid.points.reshape(-1, 3)
    p = np.repeat(grid.cell_area, grid.nlon) * (1 - start**2) / (4 * np.pi * (1 - x @ axis * start) ** 2)

    def length(t):
        return 1 / t - (1 - t**2) / (2 * t**2) * np.log((1 + t) / (1 - t))

    path = frozen(np.zeros((1, 3, 3)), values=np.eye(3))
    tokens = run(solver(path, x, p / p.sum(), dt=0.05, direction=1), 1.0)
    end = solve_ivp(lambda _, t: (1 - t**2) * length(t), (0, 1), [start], rtol=1e-11, atol=1e-12).y[0, -1]
    assert end > start + 0.1
    np.testing.assert_allclose(tokens.snapshot().mean, length(end) * axis, atol=1e-7)


def test_clusters_repel_when_descending_and_merge_when_ascending():
    rng = np.random.default_rng(3)
    x = unit(rng.standard_normal((40, 3)))
    down = run(solver(frozen([np.eye(3)]), x, dt=0.1, direction=-1), 10.0)
    assert down.energy == pytest.approx(0.5 * np.sinh(1), rel=1e-3)
    up = run(solver(frozen([2 * np.eye(3)]), x, dt=0.1, direction=1), 10.0)
    assert up.energy > 0.8 * 0.5 * np.exp(2)


def test_euler_is_a_residual_layer_with_normalisation():
    rng = np.random.default_rng(4)
    x, logits = unit(rng.standard_normal((20, 5))), symmetric(rng, 2, 5)
    tokens = solver(frozen(logits), x, scheme="euler", dt=0.1)
    tokens.advance(1.0)
    scores = np.einsum("ia,hab,jb->hij", x, logits, x)
    share = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    layer = -0.5 * np.einsum("hij,hab,jb->ia", share, logits, x)
    layer -= np.sum(layer * x, axis=1, keepdims=True) * x
    np.testing.assert_allclose(tokens.positions, unit(x + 0.1 * layer), atol=1e-13)


def test_steps_meet_the_kinks_of_the_weight_path_and_the_target():
    rng = np.random.default_rng(5)
    time = 0.005 * np.arange(101)
    path = WeightPath(time, rng.standard_normal((101, 1, 3, 3)), np.ones(1))
    tokens, seen = solver(path, unit(rng.standard_normal((5, 3))), dt=0.01), []
    for target in 0.1 * np.arange(1, 6):  # 0.1 * 3 is not 0.005 * 60
        while tokens.t < target:
            tokens.advance(target)
            seen.append(tokens.t)
    np.testing.assert_allclose(seen, time[1:], rtol=1e-12)
    assert tokens.step == 100


def test_ledger_is_of_fourth_order_on_a_path_with_kinks():
    rng = np.random.default_rng(6)
    nodes = symmetric(rng, 6).reshape(6, 1, 3, 3)
    path = WeightPath(0.1 * np.arange(6), nodes, np.ones(1))
    x = unit(rng.standard_normal((20, 3)))
    steps = (0.05, 0.025, 0.0125)
    runs = [run(solver(path, x, dt=dt), 0.5) for dt in steps]
    residuals = [abs(r.ledger.residual(r.energy)) for r in runs]
    assert fitted_order(steps, residuals) == pytest.approx(4, abs=0.4)
    assert residuals[-1] < 1e-4


def test_work_of_noisy_weights_is_split():
    """The mean over many paths of W - drift - Ito, a martingale, is zero within its error; the Ito part is not."""
    rng = np.random.default_rng(7)
    x, step, count = unit(rng.standard_normal((8, 3))), 0.02, 60
    parts = []
    for _ in range(count):
        logits = np.empty((11, 1, 3, 3))
        logits[0] = np.eye(3)
        for k in range(10):
            noise = rng.standard_normal((3, 3))
            logits[k + 1] = logits[k] + step * (np.eye(3) - logits[k]) + np.sqrt(2 * step) * (noise + noise.T) / 2
        path = WeightPath(step * np.arange(11), logits, np.ones(1), mean=np.eye(3), relaxation=1.0, noise_var=2.0)
        ledger = run(solver(path, x, dt=step), 0.2).ledger
        martingale = ledger.weight_work - ledger.weight_drift - ledger.weight_ito
        parts.append((martingale, ledger.weight_ito))
    martingale, ito = np.mean(parts, axis=0)
    error = np.std(parts, axis=0)[0] / np.sqrt(count)
    assert abs(martingale) < 3 * error
    assert ito > 4 * error


@pytest.mark.parametrize("scheme", ["rk4", "euler"])
def test_huge_matrices_keep_tokens_finite(scheme):
    """The public code loses its tokens from a norm of 710 on, without a word."""
    rng = np.random.default_rng(9)
    tokens = solver(frozen(1000 * symmetric(rng, 2)), unit(rng.standard_normal((300, 3))), scheme=scheme, dt=1e-4)
    run(tokens, 1e-3)
    np.testing.assert_allclose(np.linalg.norm(tokens.positions, axis=1), 1.0, atol=1e-15)


def test_a_velocity_that_is_not_finite_stops_the_run():
    tokens = solver(frozen([np.eye(3)]), np.eye(3))
    tokens.positions[1] = np.nan
    with np.errstate(all="ignore"), pytest.raises(NumericalError, match="token 0 .* step 0"):
        tokens.advance(1.0)


def test_snapshot_of_a_run():
    rng = np.random.default_rng(8)
    x, p = unit(rng.standard_normal((10, 3))), np.full(10, 0.1)
    tokens = run(solver(oscillating(symmetric(rng, 2)), x, p), 0.1)
    snapshot = tokens.snapshot()
    np.testing.assert_allclose(np.linalg.norm(snapshot.position, axis=1), 1.0, atol=1e-15)
    np.testing.assert_allclose(snapshot.mean, tokens.positions.mean(axis=0), atol=1e-15)
    np.testing.assert_allclose(snapshot.second_moment, tokens.positions.T @ tokens.positions / 10, atol=1e-15)
    assert (snapshot.t, snapshot.step, snapshot.mass) == (tokens.t, 10, pytest.approx(1.0, abs=1e-15))
    assert snapshot.weight_variation == pytest.approx(tokens.path.variation(0.1))
