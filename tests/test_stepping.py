"""SSPRK3, the error estimate, and the choice of steps."""

import math

import numpy as np
import pytest
from builders import fitted_order

from sphereflow.errors import NumericalError
from sphereflow.stepping import StepController, arrival, integral_over_step, ssprk3_step, steps_to


def integrate(dt, t_end=1.0):
    """u' = -u^2 + cos t with an integral of u riding along; returns u, the integral, and the last error estimate."""

    def rhs(u, t):
        return -(u**2) + math.cos(t), np.array([float(u[0])])

    u, integral, steps = np.array([0.5]), 0.0, round(t_end / dt)
    for k in range(steps):
        done = ssprk3_step(u, k * dt, dt, rhs, lambda x: x, rhs(u, k * dt))
        before, u, integral = u, done.state, integral + done.integrals[0]
    return u[0], integral, abs(done.state - 2 * done.middle + before)[0]


def test_third_order_in_state_and_integrals_and_in_the_error_estimate():
    steps = np.array([0.1, 0.05, 0.025, 0.0125])
    found = np.array([integrate(dt) for dt in steps])
    exact = np.array(integrate(1 / 2000))
    assert fitted_order(1 / steps, np.abs(found[:, 0] - exact[0])) == pytest.approx(3, abs=0.15)
    assert fitted_order(1 / steps, np.abs(found[:, 1] - exact[1])) == pytest.approx(3, abs=0.15)
    assert fitted_order(1 / steps, found[:, 2]) == pytest.approx(3, abs=0.15)  # local error of the second-order scheme


def test_error_estimate_of_a_linear_mode():
    """For u' = lambda u the Heun-SSPRK3 difference is z^3/6."""
    z = 0.3
    rhs = lambda u, t: (u, np.zeros(1))  # noqa: E731
    done = ssprk3_step(np.ones(1), 0.0, z, rhs, lambda x: x, rhs(np.ones(1), 0.0))
    assert done.state[0] - 2 * done.middle[0] + 1 == pytest.approx(z**3 / 6, rel=1e-12)
    assert done.state[0] == pytest.approx(1 + z + z**2 / 2 + z**3 / 6, rel=1e-14)


def test_a_state_at_rest_stays_to_the_last_digits():
    """The weights of the stages add up to 1 in floating-point numbers, too: without bias, rounding only wanders.

    1/3 and 2/3 as rounded are 5.6e-17 short of 1, which after 20,000 steps were 1.1e-12 of the mass.
    """
    state = 0.1 + np.random.default_rng(0).random(400)
    at_rest = (np.zeros_like(state), np.zeros(1))
    u = state
    for _ in range(20_000):
        u = ssprk3_step(u, 0.0, 0.1, lambda u, t: at_rest, lambda x: x, at_rest).state
    assert abs(u.sum() / state.sum() - 1) < 3e-14


@pytest.mark.parametrize(
    ("t", "target", "dt", "expected"), [(0, 1, 0.3, 0.25), (0, 1, 2.0, 1.0), (0, 1, math.inf, 1.0), (0.9, 1, 0.1, 0.1)]
)
def test_landing(t, target, dt, expected):
    assert steps_to(t, target, dt) == pytest.approx(expected)


def test_arrival_is_exact():
    t, dt = 0.7, steps_to(0.7, 1.0, 0.1)
    for _ in range(3):
        t = arrival(t, dt, 1.0)
    assert t == 1.0


def test_controller_keeps_the_growth_error_of_a_mode_at_the_tolerance():
    """A mode that grows by z a step is let through iff z^3/24 <= tolerance."""
    tolerance = 1e-4
    limit = (24 * tolerance) ** (1 / 3)
    for z, accepted in ((0.9 * limit, True), (1.1 * limit, False)):
        control = StepController(error_tolerance=tolerance)
        assert control.accept(moved=1e-6 * z, error=1e-6 * z**3 / 6, dt=z) is accepted
        assert control.suggestion == pytest.approx(0.9 * limit, rel=1e-6)


def test_a_kink_is_not_crept_up_to():
    """If halving the step does not reduce the error's share, the step is taken and the old length kept."""
    control = StepController()
    assert not control.accept(1e-3, 1e-3, 0.01)
    smaller = control.suggestion
    assert control.accept(1e-3 * smaller / 0.01, 1e-3 * smaller / 0.01, smaller)
    assert control.suggestion == 0.01


def test_a_kink_beyond_a_step_that_passed_is_not_crept_up_to_either():
    """Alternating failures and successes that close in on a kink end at the second failure."""
    control = StepController()
    assert not control.accept(1e-3, 3e-5, 0.01)
    assert control.accept(3e-4, 1e-12, 0.003)
    assert control.accept(6e-4, 2e-5, 0.006)
    assert control.suggestion == 0.01


def test_a_refusal_is_forgotten_after_a_step_as_long():
    control = StepController()
    assert not control.accept(1e-3, 3e-5, 0.01)
    assert control.accept(1e-3, 1e-12, 0.01)
    assert not control.accept(6e-4, 2e-5, 0.006)


def test_fixed_step_is_obeyed_or_refused():
    control = StepController(fixed_dt=0.1)
    assert control.choose(lambda cfl: cfl, 0.0, 0) == 0.1
    assert control.accept(1.0, 1.0, 0.1)
    with pytest.raises(NumericalError, match=r"solver\.dt: 0\.1 is beyond the stability bound 0\.04 at step 7, t = 0\.5"):
        control.choose(lambda cfl: 0.1 * cfl, 0.5, 7)


def test_vanishing_step_is_reported():
    with pytest.raises(NumericalError, match="error_tolerance"):
        StepController().choose(lambda cfl: 1e-12, 0.0, 3)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_integrals_over_steps_from_rates_at_their_ends(steps):
    """Exact for polynomials of as many degrees as there are steps, and of one order more, whatever the steps' lengths."""
    coefficients = np.array([1.0, 2.0, -3.0, 4.0])[: steps + 1]
    ends = np.array([0.1, 0.2, 0.5, 0.6])[-steps - 1 :]
    got = integral_over_step(np.diff(ends), [np.polynomial.Polynomial(coefficients)(t) for t in ends])
    primitive = np.polynomial.Polynomial(coefficients).integ()
    assert got == pytest.approx(primitive(0.6) - primitive(0.5), rel=1e-13)
    errors, counts = [], np.array([20, 40, 80, 160])
    for count in counts:
        t = np.linspace(0, 1, count + 1) ** 1.3
        parts = [
            integral_over_step(np.diff(t[k - steps : k + 1]), np.cos(3 * t[k - steps : k + 1])) for k in range(steps, count + 1)
        ]
        errors.append(abs(sum(parts) - (np.sin(3) - np.sin(3 * t[steps - 1])) / 3))
    assert fitted_order(counts, errors) == pytest.approx(steps + 1, abs=0.15)
