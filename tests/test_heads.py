"""Head schedules against their laws, and the weight path's interpolation."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.stats import chi2

from sphereflow.errors import CaseError
from sphereflow.heads import WeightPath, head_generator, oscillating_forcing, oscillating_harmonics, sample_weight_path

SYMMETRIC = [[[1.0, 0.5, -0.2], [0.5, -2.0, 0.3], [-0.2, 0.3, 0.7]]]


def heads(**changes):
    """A [heads] table with the keys of all schedules."""
    keys = dict(count=1, schedule="frozen", initial="identity", matrices=None, file=None, scale=1.0, seed=42, step=0.05)
    keys |= dict(values="logits", weights=None, rate=1.0, mean="identity", noise_var=2.0, scheme="exact")
    return SimpleNamespace(**(keys | dict(phase="equispaced") | changes))


def sample(t_end=1.0, dimension=3, **changes):
    return sample_weight_path(heads(**changes), t_end, dimension)


def slope(steps, errors):
    """Order of convergence: slope of log(error) over log(step)."""
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


# ------------------------------------------------------------------------------------------------ frozen and initial


def test_frozen_path_is_constant():
    path = sample(t_end=3.0, count=2, initial="gaussian-symmetric")
    np.testing.assert_array_equal(path.time, [0, 3])
    for t in (0.0, 1.234, 3.0):
        np.testing.assert_array_equal(path.logits_at(t), path.logits[0])
    assert not path.rate_at(1.0).any() and not path.drift_at(1.0).any()
    assert path.variation(3.0) == 0 and path.breakpoints.size == 0 and path.values_at(1.0) is None
    np.testing.assert_array_equal(path.head_weight, [0.5, 0.5])


@pytest.mark.parametrize("name, matrix", [("identity", np.eye(3)), ("zero", np.zeros((3, 3)))])
def test_named_initial_matrices_times_scale(name, matrix):
    np.testing.assert_array_equal(sample(initial=name, count=2, scale=-2.5).logits[0], -2.5 * np.stack([matrix] * 2))


def test_gaussian_symmetric_entries_have_the_variances_of_z_plus_its_transpose():
    count = 4000
    logits = sample(initial="gaussian-symmetric", count=count).logits[0]
    np.testing.assert_array_equal(logits, logits.swapaxes(1, 2))
    for entries, variance in ((logits[:, [0, 1, 2], [0, 1, 2]], 4.0), (logits[:, [0, 0, 1], [1, 2, 2]], 2.0)):
        assert abs(np.mean(entries)) < 4 * np.sqrt(variance / entries.size)
        assert abs(np.mean(entries**2) / variance - 1) < 4 * np.sqrt(2 / entries.size)


def test_a_head_does_not_depend_on_the_number_of_heads_or_on_other_streams():
    both = dict(schedule="ornstein-uhlenbeck", step=0.1)
    few = sample(count=2, initial="gaussian-symmetric", **both).logits
    many = sample(count=7, initial="gaussian-symmetric", **both).logits
    np.testing.assert_array_equal(few, many[:, :2])
    noise = sample(count=2, initial="zero", mean="zero", **both).logits
    decay = np.exp(-0.1 * np.arange(11))[:, None, None, None]
    with_start = sample(count=2, initial="gaussian-symmetric", mean="zero", **both).logits
    np.testing.assert_allclose(with_start, noise + decay * with_start[0], atol=1e-13)


def test_streams_of_different_seeds_heads_and_lengths_of_seeds_differ():
    seeds = [0, 1, 42, [42, 0], [42, 1], [1, 42], [42, 1, 0], [42, 0, 0], [0, 0]]
    keys = [(seed, stream, head) for seed in seeds for stream in (1, 2, 3) for head in (0, 1, 42)]
    draws = {tuple(head_generator(*key).integers(2**63, size=2)) for key in keys}
    assert len(draws) == len(keys)
    assert head_generator(42, 1, 0).random() == head_generator([42], 1, 0).random()


def test_weights_of_heads():
    np.testing.assert_array_equal(sample(count=2, weights=[0.25, 0.75]).head_weight, [0.25, 0.75])
    for weights in ([0.5, 0.6], [1.5, -0.5], [np.nan, 1.0]):
        with pytest.raises(CaseError, match="heads.weights: must be positive and sum to 1"):
            sample(count=2, weights=weights)
    with pytest.raises(CaseError, match="1 weights for 2 heads"):
        sample(count=2, weights=[1.0])


# ------------------------------------------------------------------------------------------------ Ornstein-Uhlenbeck


@pytest.fixture(scope="module")
def ou_ensemble():
    """Many independent heads of one Ornstein-Uhlenbeck path, started away from the mean."""
    return sample(count=6000, schedule="ornstein-uhlenbeck", initial="zero", scheme="exact", rate=0.8, step=0.5)


def assert_variance(samples, variance, known_mean=0.0):
    """The mean square deviation is within its 1e-5 quantiles."""
    n = samples.size
    statistic = np.sum((samples - known_mean) ** 2) / variance
    assert chi2.ppf(1e-5, n) < statistic < chi2.ppf(1 - 1e-5, n)


@pytest.mark.parametrize("node", [1, 2])
def test_exact_transition_has_the_mean_and_covariance_of_the_law(ou_ensemble, node):
    t, rate, noise_var = 0.5 * node, 0.8, 2.0
    logits = ou_ensemble.logits[node]
    mean = (1 - np.exp(-rate * t)) * np.eye(3)
    diagonal = noise_var * (1 - np.exp(-2 * rate * t)) / (2 * rate)
    variance = diagonal * np.where(np.eye(3), 1.0, 0.5)
    assert np.all(np.abs(logits.mean(axis=0) - mean) < 4.5 * np.sqrt(variance / len(logits)))
    for row, col in zip(*np.triu_indices(3), strict=True):
        assert_variance(logits[:, row, col], variance[row, col], mean[row, col])
    upper = (logits - mean)[:, *np.triu_indices(3)] / np.sqrt(variance[np.triu_indices(3)])
    correlation = np.corrcoef(upper.T) - np.eye(6)
    assert np.all(np.abs(correlation) < 4.5 / np.sqrt(len(logits)))


def test_quadratic_form_of_the_noise(ou_ensemble):
    """d<x^T D y> = sigma^2/2 (1 + (x.y)^2) dt, integrated over one transition."""
    x, y = np.array([1.0, 2.0, -1.0]), np.array([0.5, 1.0, 1.5])
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    form = np.einsum("i,hij,j->h", x, ou_ensemble.logits[1], y)
    weight = (1 - np.exp(-2 * 0.8 * 0.5)) / (2 * 0.8)
    assert_variance(form, 2.0 / 2 * (1 + (x @ y) ** 2) * weight, (1 - np.exp(-0.8 * 0.5)) * (x @ y))


def test_transitions_are_stationary_and_correlated_as_e_to_the_minus_lag():
    """Late times have the stationary variance sigma^2/(2 rate), and lag correlation e^{-rate lag}."""
    path = sample(t_end=12.0, count=4000, schedule="ornstein-uhlenbeck", initial="zero", mean="zero", step=0.6)
    late, later = path.logits[-3, :, 0, 0], path.logits[-1, :, 0, 0]
    assert_variance(late, 1.0)
    assert_variance(later, 1.0)
    assert_variance(later - np.exp(-1.2) * late, 1 - np.exp(-2.4))
    assert abs(np.mean(late * later) - np.exp(-1.2)) < 4.5 / np.sqrt(4000)


def test_zero_rate_is_brownian_motion():
    path = sample(count=6000, schedule="ornstein-uhlenbeck", initial="zero", rate=0.0, noise_var=3.0, step=0.25)
    assert_variance(path.logits[-1, :, 1, 1], 3.0)
    assert not path.drift_at(0.3).any()


@pytest.mark.parametrize("schedule", ["ornstein-uhlenbeck", "oscillating"])
@pytest.mark.parametrize("scheme", ["exact", "other"])
@pytest.mark.parametrize("noise_var", [0.0, 2.0])
def test_a_longer_path_has_the_shorter_one_as_its_prefix(schedule, scheme, noise_var):
    other = {"ornstein-uhlenbeck": "euler-maruyama", "oscillating": "euler"}[schedule]
    keys = dict(count=3, schedule=schedule, noise_var=noise_var, initial="gaussian-symmetric", step=0.03)
    keys["scheme"] = other if scheme == "other" else scheme
    short, long = sample(t_end=1.0, **keys), sample(t_end=2.7, **keys)
    assert 1.0 <= short.time[-1] < 1.0 + 0.03 and 2.7 <= long.time[-1]
    n = short.time.size
    np.testing.assert_array_equal(short.time, long.time[:n])
    np.testing.assert_array_equal(short.logits, long.logits[:n])
    assert short.variation(0.71) == pytest.approx(long.variation(0.71), rel=1e-14)


@pytest.mark.parametrize("t_end, step", [(20.0, 5e-3), (0.3, 0.1), (1.0, 0.1), (0.7, 0.1), (1e-3, 0.5), (3 * 0.1, 0.1)])
def test_the_grid_covers_the_run_without_a_spare_interval(t_end, step):
    time = sample(t_end=t_end, schedule="oscillating", step=step).time
    np.testing.assert_array_equal(time, step * np.arange(time.size))
    assert time[-1] >= t_end and time[-2] < t_end


def test_noise_free_path_is_the_smooth_solution():
    path = sample(t_end=2.0, schedule="ornstein-uhlenbeck", matrices=SYMMETRIC, noise_var=0.0, rate=0.7, step=0.1)
    start = np.array(SYMMETRIC)
    assert path.interpolation == "hermite" and path.breakpoints.size == 0
    np.testing.assert_array_equal(path.logits_at(0.0), start)
    for t in (0.05, 0.777, 2.0):
        exact = np.eye(3) + np.exp(-0.7 * t) * (start - np.eye(3))
        np.testing.assert_allclose(path.logits_at(t), exact, atol=3e-7)
        np.testing.assert_allclose(path.drift_at(t), path.rate_at(t), atol=1e-5)
        np.testing.assert_allclose(path.rate_at(t), -0.7 * (exact - np.eye(3)), atol=1e-5)


def test_noisy_path_is_linear_with_a_breakpoint_at_every_interior_node():
    path = sample(count=2, schedule="ornstein-uhlenbeck", step=0.1)
    assert path.interpolation == "linear" and path.rate is None
    np.testing.assert_array_equal(path.breakpoints, path.time[1:-1])
    np.testing.assert_allclose(path.logits_at(0.125), 0.75 * path.logits[1] + 0.25 * path.logits[2], rtol=1e-14)
    np.testing.assert_allclose(path.drift_at(0.125), np.eye(3) - path.logits_at(0.125), rtol=1e-14)
    np.testing.assert_array_equal(path.logits, path.logits.swapaxes(2, 3))
    assert (path.relaxation, path.noise_var) == (1.0, 2.0)


def test_one_mean_for_each_head():
    means = np.array([SYMMETRIC[0], np.diag([1.0, 2.0, 3.0])])
    path = sample(t_end=60.0, count=2, schedule="ornstein-uhlenbeck", mean=means.tolist(), noise_var=0.0)
    np.testing.assert_allclose(path.logits_at(60.0), means, atol=1e-12)
    one = sample(t_end=60.0, count=2, schedule="ornstein-uhlenbeck", mean=SYMMETRIC[0], noise_var=0.0)
    assert one.mean.shape == (3, 3)
    np.testing.assert_allclose(one.logits_at(60.0)[1], SYMMETRIC[0], atol=1e-12)


def test_euler_maruyama_moments_are_those_of_its_recursion():
    """Mean (1 - rate h)^n and variance sigma^2 h (1 - a^{2n})/(1 - a^2) with a = 1 - rate h."""
    keys = dict(count=6000, schedule="ornstein-uhlenbeck", scheme="euler-maruyama", mean="zero", step=0.25, scale=3.0)
    final = sample(**keys).logits[-1, :, 0, 0]
    a, h, n = 0.75, 0.25, 4
    variance = 2.0 * h * (1 - a ** (2 * n)) / (1 - a**2)
    assert abs(final.mean() - 3 * a**n) < 4.5 * np.sqrt(variance / 6000)
    assert_variance(final, variance, 3 * a**n)


def test_euler_maruyama_converges_weakly_with_order_one():
    steps = np.array([0.1, 0.05, 0.025, 0.0125])
    keys = dict(schedule="ornstein-uhlenbeck", initial="zero", scheme="euler-maruyama", noise_var=0.0)
    exact = 1 - np.exp(-1.0)
    errors = [abs(sample(step=step, **keys).logits_at(1.0)[0, 0, 0] - exact) for step in steps]
    assert slope(steps, errors) == pytest.approx(1, abs=0.15)


def test_euler_maruyama_converges_strongly_with_order_one():
    """Driven by the same normal numbers, both schemes differ by O(step) in root mean square (additive noise)."""
    steps, errors = np.array([0.2, 0.1, 0.05, 0.025]), []
    for step in steps:
        keys = dict(count=500, schedule="ornstein-uhlenbeck", initial="zero", mean="zero", step=step)
        exact, euler = sample(**keys), sample(scheme="euler-maruyama", **keys)
        errors.append(np.sqrt(np.mean((exact.logits_at(1.0) - euler.logits_at(1.0)) ** 2)))
    assert slope(steps, errors) == pytest.approx(1, abs=0.15)


# ------------------------------------------------------------------------------------------------------- oscillating


def test_forcing_in_three_dimensions():
    t = 0.37
    phases = np.array([0.0, 1.1])
    for target, s in zip(oscillating_forcing(t, phases), t + phases, strict=True):
        diagonal = [2 + 1.5 * np.cos(s), 2 + 1.5 * np.sin(s), 2 + 1.5 * np.cos(s + np.pi / 4)]
        expected = np.diag(diagonal)
        for pair, value in (((0, 1), np.sin(2 * s)), ((0, 2), np.sin(s)), ((1, 2), np.cos(2 * s))):
            expected[pair] = expected[pair[::-1]] = value
        np.testing.assert_allclose(target, expected, atol=1e-14)


@pytest.mark.parametrize("dimension", [2, 4, 5])
def test_forcing_in_other_dimensions(dimension):
    s = 0.83
    target = oscillating_forcing(s, np.zeros(1), dimension)[0]
    if dimension == 2:
        expected = [[2 + 1.5 * np.cos(s), np.sin(2 * s)], [np.sin(2 * s), 2 - 1.5 * np.cos(s)]]
    else:
        expected = np.diag([2 + 1.5 * np.cos(s + 2 * np.pi * i / dimension) for i in range(dimension)])
        pairs = [(i, j) for i in range(dimension) for j in range(i + 1, dimension)]
        for p, (i, j) in enumerate(pairs):
            expected[i, j] = expected[j, i] = np.sin(2 * s + 2 * np.pi * p / len(pairs))
    np.testing.assert_allclose(target, expected, atol=1e-14)


@pytest.mark.parametrize("dimension", [2, 3, 4])
@pytest.mark.parametrize("phase", ["equispaced", "random"])
def test_oscillating_path_solves_its_equation(dimension, phase):
    keys = dict(count=2, schedule="oscillating", initial="gaussian-symmetric", phase=phase, step=0.02)
    path = sample(t_end=4.0, dimension=dimension, **keys)

    def right_hand_side(t, y):
        return oscillating_forcing(t, path.phase, dimension).ravel() - y

    times = path.time[[50, 120, 200]]
    solution = solve_ivp(right_hand_side, (0, 4.0), path.logits[0].ravel(), "DOP853", times, rtol=1e-11, atol=1e-12)
    for t, expected in zip(times, solution.y.T, strict=True):
        np.testing.assert_allclose(path.logits_at(t).ravel(), expected, atol=2e-10)
        np.testing.assert_allclose(path.rate_at(t).ravel(), right_hand_side(t, expected), atol=2e-10)


def test_oscillating_rates_are_continuous_and_the_path_symmetric():
    path = sample(t_end=2.0, count=3, schedule="oscillating", initial="gaussian-symmetric", step=0.1)
    assert path.breakpoints.size == 0
    for k in range(1, 20):
        left, right = path.rate_at(path.time[k], k - 1), path.rate_at(path.time[k], k)
        np.testing.assert_allclose(left, right, atol=1e-12)
        np.testing.assert_allclose(path.logits_at(path.time[k], k - 1), path.logits_at(path.time[k], k), atol=1e-13)
    np.testing.assert_array_equal(path.logits_at(0.123), path.logits_at(0.123).swapaxes(1, 2))


def test_hermite_interpolation_converges_with_order_four():
    t = np.linspace(0.013, 1.97, 41)
    fine = sample(t_end=2.0, schedule="oscillating", step=1e-3)
    steps, errors, rate_errors = np.array([0.4, 0.2, 0.1, 0.05]), [], []
    for step in steps:
        path = sample(t_end=2.0, schedule="oscillating", step=step)
        errors.append(max(np.abs(path.logits_at(s) - fine.logits_at(s)).max() for s in t))
        rate_errors.append(max(np.abs(path.rate_at(s) - fine.rate_at(s)).max() for s in t))
    assert slope(steps, errors) == pytest.approx(4, abs=0.15)
    assert slope(steps, rate_errors) == pytest.approx(3, abs=0.15)


def test_euler_nodes_are_the_explicit_recursion_and_converge_with_order_one():
    path = sample(t_end=0.4, schedule="oscillating", scheme="euler", step=0.1)
    current = np.eye(3)
    for k in range(4):
        current = current + 0.1 * (oscillating_forcing(0.1 * k, np.zeros(1))[0] - current)
        np.testing.assert_allclose(path.logits[k + 1, 0], current, atol=1e-14)
    assert path.interpolation == "linear" and path.breakpoints.size == 3
    exact = sample(t_end=2.0, schedule="oscillating", step=1e-2).logits_at(2.0)
    steps = np.array([0.1, 0.05, 0.025, 0.0125])
    paths = [sample(t_end=2.0, schedule="oscillating", scheme="euler", step=step) for step in steps]
    assert slope(steps, [np.abs(p.logits_at(2.0) - exact).max() for p in paths]) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("count", [3, 4, 5, 10])
def test_equispaced_phases_cancel_in_the_head_average(count):
    path = sample(count=count, schedule="oscillating")
    average = oscillating_forcing(np.linspace(0, 7, 29), path.phase).mean(axis=1)
    np.testing.assert_allclose(average, np.broadcast_to(2 * np.eye(3), average.shape), atol=1e-14)
    np.testing.assert_allclose(path.phase, 2 * np.pi * np.arange(count) / count)


def test_two_equispaced_phases_do_not_cancel():
    average = oscillating_forcing(np.linspace(0, 7, 29), sample(count=2, schedule="oscillating").phase).mean(axis=1)
    assert np.ptp(average, axis=0).max() > 1


def test_random_phases_fill_the_circle_from_each_heads_own_stream():
    phase = sample(count=400, schedule="oscillating", phase="random", step=1.0).phase
    assert np.all((phase >= 0) & (phase < 2 * np.pi))
    assert abs(np.exp(1j * phase).mean()) < 3.5 / np.sqrt(400)
    np.testing.assert_array_equal(sample(count=3, schedule="oscillating", phase="random").phase, phase[:3])


def test_every_harmonic_entry_is_listed_once_for_each_frequency():
    for dimension in (2, 3, 6):
        terms = oscillating_harmonics(dimension)
        assert len({(term.row, term.col, term.frequency) for term in terms}) == len(terms)
        assert all(term.row <= term.col for term in terms)


# ------------------------------------------------------------------------------------------------------ wrong keys


@pytest.mark.parametrize(
    "changes, words",
    [
        (dict(matrices=[[[1.0, 0.0], [0.0, 1.0]]]), r"heads.matrices: shape \(1, 2, 2\); expected 1 x 3 x 3"),
        (dict(matrices=[[[1.0, 0.0], [0.0]]]), "heads.matrices: is no array of numbers; expected 1 x 3 x 3"),
        (dict(matrices=np.full((1, 3, 3), np.inf)), "heads.matrices: entries must be finite"),
        (dict(values=np.eye(3)), r"heads.values: shape \(3, 3\); expected 1 x 3 x 3"),
        (dict(initial="gaussian"), "unknown family 'gaussian'"),
        (dict(schedule="linear"), "unknown schedule 'linear'"),
        (dict(schedule="oscillating", scheme="euler-maruyama"), "heads.scheme: unknown scheme 'euler-maruyama'"),
        (dict(schedule="oscillating", phase="equal"), "heads.phase: unknown choice 'equal'"),
        (dict(schedule="ornstein-uhlenbeck", mean="one"), "heads.mean: unknown matrix 'one'"),
        (dict(schedule="ornstein-uhlenbeck", mean=np.triu(np.ones((3, 3)))), "heads.mean: matrix 0 is not symmetric"),
        (dict(schedule="ornstein-uhlenbeck", scheme="euler-maruyama", step=0.5, rate=5.0), "unstable .* at most 0.4"),
        (dict(schedule="oscillating", step=1e-12), "heads.step: 1e-12 needs 1e.12 steps"),
    ],
)
def test_unusable_keys_are_refused(changes, words):
    with pytest.raises(CaseError, match=words):
        sample(**changes)


def test_a_run_needs_a_positive_end():
    with pytest.raises(CaseError, match="t_end"):
        sample(t_end=0.0)


# -------------------------------------------------------------------------------------------------------- WeightPath


@pytest.mark.parametrize(
    "schedule, scheme", [("oscillating", None), ("oscillating", "euler"), ("ornstein-uhlenbeck", None)]
)
def test_variation_is_the_integral_of_the_weighted_speed(schedule, scheme):
    keys = dict(schedule=schedule, scheme=scheme, initial="gaussian-symmetric", step=0.1)
    path = sample(t_end=1.0, count=2, weights=[0.3, 0.7], **keys)

    def speed(t):
        return path.head_weight @ np.linalg.norm(path.rate_at(t), axis=(1, 2))

    for t in (0.037, 0.3, 0.64, 1.0):
        pieces = np.append(path.time[path.time < t], t)
        expected = sum(quad(speed, a, b, epsrel=1e-9)[0] for a, b in zip(pieces[:-1], pieces[1:], strict=True))
        assert path.variation(t) == pytest.approx(expected, rel=1e-7)
    assert path.variation(0.0) == 0


def test_variation_of_linear_pieces_is_exact():
    logits = np.zeros((3, 1, 3, 3))
    logits[1, 0, 0, 1], logits[2, 0, 0, 1] = 3.0, -1.0
    path = WeightPath(np.array([0.0, 1.0, 3.0]), logits, np.ones(1))
    assert [path.variation(t) for t in (0.0, 0.5, 1.0, 2.0, 3.0)] == [0.0, 1.5, 3.0, 5.0, 7.0]


def test_pieces_can_be_evaluated_at_both_ends():
    logits = np.zeros((3, 1, 3, 3))
    logits[1], logits[2] = 1.0, -1.0
    path = WeightPath(np.array([0.0, 1.0, 3.0]), logits, np.ones(1))
    assert path.interval_of(0.5) == 0 and path.interval_of(1.0) == 1 and path.interval_of(3.0) == 1
    assert path.rate_at(1.0, 0)[0, 0, 0] == 1 and path.rate_at(1.0, 1)[0, 0, 0] == -1
    assert path.rate_at(1.0)[0, 0, 0] == -1 and path.logits_at(1.0, 0)[0, 0, 0] == 1
    np.testing.assert_array_equal(path.breakpoints, [1.0])


def test_straight_paths_have_no_breakpoints_whatever_the_rounding_of_their_nodes():
    rng = np.random.default_rng(1)
    start, direction = rng.normal(size=(2, 1, 3, 3))
    for size, shift in ((1e-6, 0.0), (1.0, 0.0), (1e3, 1e4)):
        time = shift + np.cumsum(rng.uniform(1e-3, 1e-1, 200))
        logits = start + size * (time - shift)[:, None, None, None] * direction
        assert WeightPath(time, logits, np.ones(1)).breakpoints.size == 0
        bent = logits + 1e-4 * size * np.maximum(time - time[100], 0)[:, None, None, None]
        np.testing.assert_array_equal(WeightPath(time, bent, np.ones(1)).breakpoints, time[100:101])


def test_times_outside_the_path_are_refused_but_not_round_off():
    path = sample(t_end=1.0, schedule="oscillating", step=0.1)
    end = path.time[-1]
    np.testing.assert_allclose(path.logits_at(end * (1 + 1e-13)), path.logits[-1], atol=1e-11)
    for t in (-0.01, end + 0.01, np.nan):
        with pytest.raises(ValueError, match="outside the weight path"):
            path.logits_at(t)


def test_paths_are_read_only_and_checked():
    time, logits = np.array([0.0, 1.0]), np.zeros((2, 1, 3, 3))
    path = WeightPath(time, logits, np.ones(1))
    with pytest.raises(ValueError, match="read-only"):
        path.logits[0] = 1.0
    logits[0] = 1.0  # the caller's array stays writeable
    for arguments in (
        (time[::-1], logits, np.ones(1)),
        (time[:1], logits[:1], np.ones(1)),
        (time, logits[:1], np.ones(1)),
        (time, logits, np.ones(2)),
        (time, logits, np.ones(1), np.zeros((1, 3, 3))),
        (time, logits, np.ones(1), None, None, "hermite"),
        (time, logits, np.ones(1), None, None, "cubic"),
    ):
        with pytest.raises(ValueError, match="time|shape|interpolation"):
            WeightPath(*arguments)
