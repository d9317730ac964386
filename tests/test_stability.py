"""The Lipschitz constants of the velocity and Groenwall's bound: against velocities, linearised flows and whole runs."""

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from sphereflow import run
from sphereflow.attention import Heads
from sphereflow.compare.measures import Coarse, wasserstein
from sphereflow.heads import WeightPath
from sphereflow.particles import ParticleSolver, TokenOperator
from sphereflow.stability import (
    distance_ceiling,
    growth_exponent,
    growth_rate,
    linear_growth,
    measure_rate,
    position_rate,
    weight_effect,
)

RADII = (0.2, 0.6, 1.0, 2.0, 4.0)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def random_model(rng, radius, kind, heads=2):
    """Logits of a norm, value matrices (None: s A) and the direction."""
    logits = rng.standard_normal((heads, 3, 3))
    logits *= radius / np.linalg.norm(logits, 2, axis=(1, 2))[:, None, None]
    if kind == "values":
        return logits, rng.standard_normal((heads, 3, 3)), 1
    return logits, None, 1 if kind == "ascend" else -1


def random_measure(rng, n):
    """Tokens whose masses differ by orders of magnitude, some of them in clusters."""
    x = unit(rng.standard_normal((n, 3)))
    if rng.uniform() < 0.5:
        x = unit(x[rng.integers(0, n, n)] + 0.1 * rng.standard_normal((n, 3)))
    p = np.exp(3 * rng.standard_normal(n))
    return x, p / p.sum()


def velocity(points, measure, logits, weight, values, direction):
    """v[mu] at any points: tokens without mass."""
    x, p = measure
    everywhere, masses = np.concatenate([x, points]), np.concatenate([p, np.zeros(len(points))])
    fields = TokenOperator("attention", direction)(everywhere, masses, Heads(logits, weight, values))
    return fields.velocity[len(x) :]


@pytest.mark.parametrize("kind", ["descend", "ascend", "values"])
def test_no_geodesic_is_stretched_faster(kind):
    rng, h, fastest = np.random.default_rng(1), 1e-5, 0.0
    for radius in RADII:
        for _ in range(8):
            logits, values, direction = random_model(rng, radius, kind)
            weight = np.array([0.3, 0.7])
            mu = random_measure(rng, 4)
            x = unit(np.concatenate([rng.standard_normal((200, 3)), mu[0]]))
            e = rng.standard_normal(x.shape)
            e = unit(e - np.sum(e * x, axis=1, keepdims=True) * x)
            ahead, behind = (
                np.sum(velocity(np.cos(a) * x + np.sin(a) * e, mu, logits, weight, values, direction)
                       * (np.cos(a) * e - np.sin(a) * x), axis=1)
                for a in (h, -h)
            )  # fmt: skip
            rate = (ahead - behind) / (2 * h)
            bound = position_rate(logits, weight, values, direction)
            assert rate.max() <= bound + 1e-6
            fastest = max(fastest, rate.max() / bound)
    assert fastest > 0.3  # so that the test would find a bound that is a third of what it must be


@pytest.mark.parametrize("kind", ["descend", "ascend", "values"])
def test_velocity_depends_on_the_measure_no_more_than_the_bound(kind):
    rng, worst = np.random.default_rng(2), 0.0
    weight = np.array([0.5, 0.5])
    for radius in RADII:
        for _ in range(12):
            logits, values, direction = random_model(rng, radius, kind)
            mu = random_measure(rng, 5)
            size = 10.0 ** rng.uniform(-4, 0)
            nu = (unit(mu[0] + size * rng.standard_normal((5, 3))), mu[1])
            x = unit(rng.standard_normal((60, 3)))
            apart = [velocity(x, one, logits, weight, values, direction) for one in (mu, nu)]
            distance = wasserstein(*(Coarse(*one, (0.0, 0.0)) for one in (mu, nu)))[1]
            ratio = np.linalg.norm(apart[0] - apart[1], axis=1).max() / distance
            worst = max(worst, ratio / measure_rate(logits, weight, values))
    assert 0.05 < worst <= 1


@pytest.mark.parametrize("radius", [1.0, 3.0, 6.0])
def test_measures_exist_that_need_the_exponential(radius):
    # A small cluster where the kernel is largest, as heavy under the softmax as all the rest, which sits opposite.
    logits, p, step = radius * np.eye(3)[None], np.exp(-2 * radius), 1e-4
    x = np.array([1.0, 0.0, 0.0])
    apart = []
    for a in (0.0, step):
        points = np.array([[np.cos(a), np.sin(a), 0.0], [-1.0, 0.0, 0.0]])
        apart.append(velocity(x[None], (points, np.array([p, 1 - p])), logits, np.ones(1), np.eye(3)[None], 1)[0])
    ratio = np.linalg.norm(apart[1] - apart[0]) / (step * np.sqrt(p))
    assert 0.45 * np.exp(radius) < ratio < measure_rate(logits, np.ones(1), np.eye(3)[None])


def finite_difference_growth(x, p, logits, weight, values, direction, h=1e-5):
    """The largest stretching rate of displacements of all tokens, with the Jacobian of the package's velocity."""
    n, d = x.shape
    frames = np.linalg.svd(np.eye(d) - x[:, :, None] * x[:, None, :])[0][:, :, : d - 1]

    def moved(u):
        y = unit(x + np.einsum("iak,ik->ia", frames, u))
        return TokenOperator("attention", direction)(y, p, Heads(logits, weight, values)).velocity

    columns = [
        (moved(h * e) - moved(-h * e)) / (2 * h) for e in np.eye(n * (d - 1)).reshape(-1, n, d - 1)
    ]  # tangent parts of the difference are the covariant derivative
    jacobian = np.stack([np.einsum("iak,ia->ik", frames, c).ravel() for c in columns], axis=1)
    root = np.repeat(np.sqrt(p), d - 1)
    scaled = root[:, None] * jacobian / root
    return np.linalg.eigvalsh(0.5 * (scaled + scaled.T))[-1]


@pytest.mark.parametrize("kind", ["descend", "ascend", "values"])
def test_linear_growth_is_that_of_the_velocity(kind):
    rng = np.random.default_rng(3)
    weight = np.array([0.3, 0.7])
    for _ in range(10):
        logits, values, direction = random_model(rng, rng.uniform(0.5, 3), kind)
        x, p = random_measure(rng, 5)
        joint = finite_difference_growth(x, p, logits, weight, values, direction)
        # Tokens that split keep the measure's mean in place: the velocity of a massless token beside each of them.
        alone = max(finite_difference_growth_of_massless(y, (x, p), logits, weight, values, direction) for y in x)
        found = linear_growth(x, p, logits, weight, values, direction)
        assert found == pytest.approx(max(joint, alone), rel=1e-5, abs=1e-5)


def finite_difference_growth_of_massless(y, measure, logits, weight, values, direction, h=1e-5):
    """The largest rate at which massless tokens beside y part."""
    frame = np.linalg.svd(np.eye(3) - np.outer(y, y))[0][:, :2].T
    ahead, behind = (velocity(unit(y + s * h * frame), measure, logits, weight, values, direction) for s in (1, -1))
    jacobian = frame @ ((ahead - behind) / (2 * h)).T
    return np.linalg.eigvalsh(0.5 * (jacobian + jacobian.T))[-1]


def test_linear_growth_of_one_cluster():
    # A = V = 2 I, ascending, all mass at x: as a whole it stays where it is moved to, and what splits off comes back.
    x = np.array([[0.0, 0.6, 0.8]])
    assert linear_growth(x, np.ones(1), 2 * np.eye(3)[None], np.ones(1), None, 1) == pytest.approx(0, abs=1e-12)
    # Descending, v = -2 P_x M: what splits off leaves at the rate 2 x.M.
    assert linear_growth(x, np.ones(1), 2 * np.eye(3)[None], np.ones(1), None, -1) == pytest.approx(2)


@pytest.mark.parametrize("kind", ["descend", "ascend", "values"])
def test_no_linearised_flow_grows_faster(kind):
    rng, best = np.random.default_rng(4), 0.0
    weight = np.array([0.4, 0.6])
    for radius in RADII:
        for _ in range(60):
            logits, values, direction = random_model(rng, radius, kind)
            if rng.uniform() < 0.5:  # equal symmetric heads, and masses that their kernel balances: the worst found
                logits[:] = radius * np.diag([1.0, rng.uniform(-1, 1), rng.uniform(-1, 1)])
                x = unit(np.diag([1.0, -1.0, 1.0]) + 0.2 * rng.standard_normal((3, 3)))
                x[1] = unit(-x[0] + 0.05 * rng.standard_normal(3))
                p = np.array([np.exp(-2 * radius), 1.0, 1e-3])
                p /= p.sum()
            else:
                x, p = random_measure(rng, 4)
            found = linear_growth(x, p, logits, weight, values, direction)
            bound = growth_rate(logits, weight, values, direction)
            assert found <= bound
            best = max(best, found / bound)
    assert best > 0.25


def test_weights_move_the_velocity_no_more_than_the_bound():
    rng, worst = np.random.default_rng(5), 0.0
    weight = np.array([0.2, 0.8])
    for radius in RADII:
        for kind in ("descend", "values"):
            for _ in range(8):
                a, values, direction = random_model(rng, radius, kind)
                size = 10.0 ** rng.uniform(-3, 0)
                b = a + size * rng.standard_normal(a.shape)
                both = None if values is None else (values, values + size * rng.standard_normal(a.shape))
                mu, x = random_measure(rng, 6), unit(rng.standard_normal((50, 3)))
                v = [velocity(x, mu, m, weight, None if both is None else both[i], direction) for i, m in enumerate((a, b))]
                bound = weight_effect((a, b), weight, both)
                worst = max(worst, np.linalg.norm(v[0] - v[1], axis=1).max() / bound)
    assert 0.2 < worst <= 1


def test_uniform_attention_has_the_constant_two():
    # A = 0, V = I: v = P_x M, whose derivative is at most 1 in x and at most 1 in mu.
    assert growth_rate(np.zeros((1, 3, 3)), np.ones(1), np.eye(3)[None], 1) == pytest.approx(2)


def test_bound_rises_with_the_norm_and_never_overflows():
    sizes = np.array([1e-3, 0.1, 0.5, 0.83, 0.84, 1.0, 3.0, 30.0, 1e3, 1e200])
    logits = sizes[:, None, None, None] * np.diag([1.0, -0.5, 0.2])
    for direction in (-1, 1):
        with np.errstate(over="raise"):
            rates = growth_rate(logits, np.ones(1), None, direction)
        assert np.all(np.diff(rates[:8]) > 0) and np.isinf(rates[-2:]).all()


def path_of(logits, times, interpolation="linear", **more):
    return WeightPath(np.asarray(times, float), np.asarray(logits, float), np.ones(1), interpolation=interpolation, **more)


def test_exponent_of_frozen_and_of_layered_weights():
    one, two = np.eye(3)[None], 2 * np.eye(3)[None]
    rate = [float(growth_rate(m, np.ones(1))) for m in (one, two)]
    times = np.array([0.5, 1.0, 1.5, 2.0])
    frozen = growth_exponent(path_of([one, one], [0, 2]), times)
    assert frozen == pytest.approx(rate[0] * (times - 0.5), rel=1e-14)
    layers = growth_exponent(path_of([one, two, two], [0, 1, 2], "step"), times)
    assert layers == pytest.approx([0, 0.5 * rate[0], 0.5 * (rate[0] + rate[1]), 0.5 * rate[0] + rate[1]], rel=1e-14)


def random_path(rng, interpolation, has_values, heads, size, t_end):
    """Weights with up to five nodes, the first and the last of which are at 0 and t_end."""
    time = np.concatenate([[0.0], np.sort(rng.uniform(0, t_end, rng.integers(0, 4))), [t_end]])
    logits, values, rate = size * rng.standard_normal((3, time.size, heads, 3, 3))
    weight = np.array([0.3, 0.7]) if heads == 2 else np.ones(1)
    return WeightPath(time, logits, weight, values if has_values else None, rate / t_end, interpolation)


def integrated_bound(distance, path, other, times, direction):
    """Gamma and W_2' = C W_2 + delta by an adaptive scheme, from C and delta at points."""
    nodes = np.unique(np.concatenate([times, path.time, other.time]))
    nodes = nodes[(nodes >= times[0]) & (nodes <= times[-1])]
    found = [[0.0, distance]]
    for a, b in zip(nodes[:-1], nodes[1:], strict=True):
        k, l = (p.interval_of(0.5 * (a + b)) for p in (path, other))

        def rates(t, y, k=k, l=l):
            logits, values = (path.logits_at(t, k), other.logits_at(t, l)), [path.values_at(t, k), other.values_at(t, l)]
            both = None
            if any(v is not None for v in values):
                both = [direction * m if v is None else v for m, v in zip(logits, values, strict=True)]
            c = growth_rate(logits[0], path.head_weight, values[0], direction)
            return [c, c * y[1] + weight_effect(logits, path.head_weight, both)]

        found.append(solve_ivp(rates, (a, b), found[-1], "DOP853", rtol=1e-10, atol=1e-14).y[:, -1])
    return np.array(found)[np.searchsorted(nodes, times)].T


@pytest.mark.parametrize("direction", [-1, 1])
@pytest.mark.parametrize("interpolation", ["linear", "step", "hermite"])
def test_bounds_are_integrals_from_above(interpolation, direction):
    rng = np.random.default_rng([direction + 1, len(interpolation)])
    compared = 0
    for trial in range(16):
        heads, t_end = rng.integers(1, 3), rng.uniform(0.05, 1)
        path = random_path(rng, interpolation, rng.uniform() < 0.5, heads, 10 ** rng.uniform(-3, 0), t_end)
        beside = ("linear", "step", "hermite")[trial % 3]
        other = random_path(rng, beside, rng.uniform() < 0.5, heads, 10 ** rng.uniform(-3, 0), t_end)
        if trial % 5 == 4:
            other = path
        times = np.concatenate([[0.0], np.sort(rng.uniform(0, t_end, rng.choice([0, 1, 5, 40]))), [t_end]])
        start = rng.choice([0.0, 1e-6, 1e-2])
        gamma, distance = integrated_bound(start, path, other, times, direction)
        exponent, ceiling = (
            growth_exponent(path, times, direction), distance_ceiling(start, path, other, times, direction)
        )  # fmt: skip
        rounding = 1 - 1e-8  # of a scheme with a relative tolerance of 1e-10, for whole paths
        assert np.all(exponent >= gamma * rounding) and np.all(exponent <= gamma * 1.001)
        assert np.all(ceiling >= np.minimum(distance, np.pi) * rounding) and np.all(ceiling <= np.pi)
        small = (distance > 0) & (distance < 1)
        assert np.all(ceiling[small] <= 1.01 * distance[small]) and not ceiling[distance == 0].any()
        compared += np.count_nonzero(small[1:])
    assert compared > 30


def test_exponent_of_values_that_fade_as_logits_grow():
    # C vanishes with the values at one end and with the logits it is small at the other: samples of both see nothing.
    one = np.eye(3)[None]
    path = path_of([0 * one, 5 * one], [0, 1], values=np.stack([one, 0 * one]))
    exact = quad(lambda t: (1 - t) * growth_rate(5 * t * one, np.ones(1), one), 0, 1, points=[0.1], epsrel=1e-11)[0]
    assert exact > 13
    for times in (np.array([0.0, 1.0]), np.linspace(0, 1, 7)):
        assert exact <= growth_exponent(path, times)[-1] < 1.001 * exact


def test_exponent_does_not_depend_on_the_times_asked_for():
    rng = np.random.default_rng(7)
    path = random_path(rng, "hermite", True, 2, 1.0, 1.0)
    few, many = (growth_exponent(path, times)[-1] for times in (np.array([0.0, 1.0]), np.linspace(0, 1, 301)))
    assert few == pytest.approx(many, rel=3e-4)


def test_ceiling_of_frozen_weights_in_closed_form():
    a, b = 0.5 * np.eye(3)[None], 0.6 * np.eye(3)[None]
    path, other = path_of([a, a], [0, 1]), path_of([b, b], [0, 1])
    times = np.linspace(0, 1, 2001)
    rate = float(growth_rate(a, np.ones(1)))
    start = 1e-3
    assert distance_ceiling(start, path, path, times) == pytest.approx(start * np.exp(rate * times), rel=1e-12)
    assert not distance_ceiling(0.0, path, path, times).any()
    delta = 0.1 + 0.5 * (0.5 + 0.6) * 0.1
    expected = start * np.exp(rate * times) + delta / rate * np.expm1(rate * times)
    assert distance_ceiling(start, path, other, times) == pytest.approx(np.minimum(expected, np.pi), rel=1e-5)


def carried(path, x, t_end):
    """Tokens of equal mass along the ascending flow."""
    solver = ParticleSolver(TokenOperator("attention", 1), path, x, np.full(len(x), 1 / len(x)), "rk4", 0.02)
    while solver.t < t_end:
        solver.advance(t_end)
    return solver.positions


def test_ceiling_holds_however_few_times_are_asked_for():
    # Weights that part from 0 and an unstable equilibrium: the trapezoidal rule weighs what happens early by half of nothing.
    a, turn = 1.5 * np.eye(3)[None], np.zeros((1, 3, 3))
    turn[0, [0, 1], [1, 0]] = 0.08
    path, other = path_of([a, a], [0, 4]), path_of([a, a + turn], [0, 4])
    x, same = np.concatenate([np.eye(3), -np.eye(3)]), np.full(6, 1 / 6)
    ends = [Coarse(carried(p, x, 4.0), same, (0.0, 0.0)) for p in (path, other)]
    actual = wasserstein(*ends)[1]
    assert actual > 0.44  # the trapezoidal rule over 0 and 4 is at 0.4064
    assert distance_ceiling(0.0, path, other, np.array([0.0, 4.0]), 1)[-1] >= actual
    for end in (0.1, 0.25):
        exact = integrated_bound(0.0, path, other, np.array([0.0, end]), 1)[1, -1]
        assert exact <= distance_ceiling(0.0, path, other, np.array([0.0, end]), 1)[-1] < 1.01 * exact


def late_paths(interpolation):
    """Weights that are the same until t = 1 (linear) or 2 (step), when Gamma is thousands and e^-Gamma underflows."""
    a, turn = np.diag([5.0, 1.0, -2.0])[None], np.zeros((1, 3, 3))
    turn[0, [0, 1], [1, 0]] = 1.0
    return a, a + turn, *(path_of([a, a, m, m], [0, 1, 2, 3], interpolation) for m in (a, a + turn))


def test_ceiling_of_weights_that_part_late():
    _, _, path, other = late_paths("linear")
    times = np.array([0.0, 0.5, 1.0, 1.0001, 1.001, 1.1, 2.0, 3.0])
    ceiling = distance_ceiling(0.0, path, other, times)
    assert not ceiling[:3].any() and np.all(ceiling[5:] == np.pi)
    exact = integrated_bound(0.0, path, other, times[:5], -1)[1]
    assert np.all(exact <= ceiling[:5]) and ceiling[3:5] == pytest.approx(exact[3:], rel=0.01)


def test_ceiling_of_layers_that_part_late():
    a, b, path, other = late_paths("step")
    times = np.array([0.0, 1.0, 1.9, 2.0, 2.0001, 2.001, 2.1, 3.0])
    ceiling = distance_ceiling(0.0, path, other, times)
    assert not ceiling[:4].any() and np.all(ceiling[6:] == np.pi)
    c, delta = growth_rate(a, np.ones(1)), weight_effect((a, b), np.ones(1))
    assert ceiling[4:6] == pytest.approx(delta / c * np.expm1(c * (times[4:6] - 2)), rel=1e-6)


def test_runs_with_weights_that_part_late_stay_below_the_ceiling(tmp_path):
    from sphereflow.compare import separation

    for name, path in zip("ab", late_paths("linear")[2:], strict=True):
        np.savez(tmp_path / f"{name}_heads.npz", t=path.time, logits=path.logits)
        case = {
            "heads": {"schedule": "table", "file": str(tmp_path / f"{name}_heads.npz")},
            "initial": {"kind": "octahedron", "kappa": 20.0},
            "solver": {"kind": "particles", "count": 40, "dt": 0.02, "t_end": 2.0},
            "output": {"every": 0.2},
        }
        run(case, tmp_path / f"{name}.nc").close()
    found = separation(tmp_path / "a.nc", tmp_path / "b.nc")
    parted = found.t > 1.1
    assert not found.wasserstein_2[~parted].any() and found.wasserstein_2[-1] > 0.05
    assert np.all(found.wasserstein_2 <= found.ceiling) and not found.ceiling[~parted].any()


def test_ceiling_of_weights_that_meet_and_part_while_nothing_grows():
    # A = 0 has C = 0, so that W_2 <= int delta; delta = |B| + |B|^2 / 2 with |B| = |t - 1/3|.
    zero, one = np.zeros((1, 3, 3)), np.eye(3)[None]
    path, other = path_of([zero, zero], [0, 1]), path_of([-one / 3, 2 * one / 3], [0, 1])
    exact = (1 / 3) ** 2 / 2 + (2 / 3) ** 2 / 2 + (1 / 3) ** 3 / 6 + (2 / 3) ** 3 / 6
    found = distance_ceiling(0.0, path, other, np.array([0.0, 1.0]))[-1]
    assert exact <= found < 1.002 * exact
    assert np.isnan(distance_ceiling(np.nan, path, other, np.array([0.0, 1.0]))).all()  # not a bound of nothing


def test_ceiling_evaluates_nothing_beyond_the_largest_distance(monkeypatch):
    from sphereflow import stability

    rng, pieces = np.random.default_rng(8), []
    path, other = (random_path(rng, "hermite", False, 2, 2.0, 40.0) for _ in range(2))
    bounds = stability._bounds
    monkeypatch.setattr(stability, "_bounds", lambda p, left, *rest: pieces.append(left.size) or bounds(p, left, *rest))
    assert distance_ceiling(0.0, path, other, np.linspace(0, 40, 41))[-1] == np.pi
    assert sum(pieces) < 10_000  # 4096 parts of one piece are enough; 41 pieces of them took 15 s and a gigabyte


def test_ceiling_ends_at_the_largest_distance():
    strong = 50 * np.eye(3)[None]
    path = path_of([strong, strong], [0, 9])
    assert distance_ceiling(1e-9, path, path, np.array([0.0, 9.0])) == pytest.approx([1e-9, np.pi])


def test_ceiling_refuses_other_heads():
    one, pair = np.eye(3)[None], np.stack([np.eye(3)] * 2)
    other = WeightPath(np.array([0.0, 1.0]), np.stack([pair, pair]), np.full(2, 0.5))
    with pytest.raises(ValueError, match="different heads"):
        distance_ceiling(0.1, path_of([one, one], [0, 1]), other, np.array([0.0, 1.0]))


def test_ceiling_of_logits_values_beside_the_same_given_values():
    a = np.eye(3)[None]
    given = path_of([a, a], [0, 1], values=np.stack([-a, -a]))
    times = np.array([0.0, 1.0])
    assert distance_ceiling(0.0, path_of([a, a], [0, 1]), given, times, -1).max() == 0
    assert distance_ceiling(0.0, path_of([a, a], [0, 1]), given, times, 1).max() > 1


@pytest.mark.parametrize("direction", ["descend", "ascend"])
def test_runs_stay_below_the_ceiling(tmp_path, direction):
    from sphereflow.compare import separation

    rng = np.random.default_rng(6)
    x = unit(rng.standard_normal((40, 3)))
    for name, points in (("a", x), ("b", unit(x + 0.01 * rng.standard_normal(x.shape)))):
        np.savez(tmp_path / f"{name}.npz", positions=points)
        case = {
            "model": {"direction": direction},
            "heads": {"matrices": [[[1.0, 0.2, 0], [0, 0.5, 0], [0, 0, -0.5]]]},
            "initial": {"kind": "tokens", "file": str(tmp_path / f"{name}.npz")},
            "solver": {"kind": "particles", "t_end": 2.0, "dt": 0.05, "count": None},
            "output": {"every": 0.25},
        }
        del case["solver"]["count"]
        run(case, tmp_path / f"{name}.nc").close()
    found = separation(tmp_path / "a.nc", tmp_path / "b.nc")
    assert found.t == pytest.approx(np.arange(9) * 0.25)
    assert np.all(found.wasserstein_2 <= found.ceiling * (1 + 1e-12)) and found.ceiling[0] == found.wasserstein_2[0]
    assert 0 < found.wasserstein_2[0] < 0.03 and not found.bound_2.any() and not found.notes
