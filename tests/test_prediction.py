"""Velocities of later stages predicted from earlier steps: the polynomial, its order, and the control of its error."""

import numpy as np
import pytest
from builders import advance_to, fitted_order, frozen_path, random_symmetric, solver, vmf
from test_ledger import heads, smooth_data

from sphereflow import energy
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath, sample_weight_path
from sphereflow.prediction import POINTS, VelocityHistory
from sphereflow.stepping import ssprk3_step


def filled(points, times, function):
    history = VelocityHistory(points)
    for t in times:
        history.remember(t, function(t))
    return history


@pytest.mark.parametrize("points", [1, 2, 3, 4])
def test_polynomials_are_continued_exactly(points):
    """Up to degree n - 1, at uneven instants, from the last n of them."""
    polynomials = np.random.default_rng(points).standard_normal((points, 7))

    def function(t):
        return t ** np.arange(points) @ polynomials

    history = filled(points, [-3.0, 0.1, 0.3, 0.35, 0.7, 0.8], function)
    assert history.is_full
    for t in (0.8, 0.95, 1.4):
        np.testing.assert_allclose(history.at(t), function(t), rtol=1e-10, atol=1e-10)
    history.forget()
    assert not history.is_full


@pytest.mark.parametrize("points", [2, 3, 4])
def test_shares_are_the_errors_of_steps_with_predicted_rates(points):
    """u' = f(t) with f from its past: the step is off by `prediction_share` dt times what the prediction misses at its end.

    With the right value at the end known as well it is off by `interpolation_share` of the same, and a wrong value there enters
    with `end_share`. The quadrature error of the scheme, which is there with f known as well, is taken off.
    """
    dt, t = 0.01, 1.0

    def known(s):
        return np.array([np.exp(3 * s)])

    def step(rate):
        unused = np.zeros(1)
        return ssprk3_step(np.zeros(1), t, dt, lambda u, s: (rate(s), unused), lambda u: u, (rate(t), unused)).state[0]

    history = filled(points, [t - k * dt for k in reversed(range(points))], known)
    missed = dt * (known(t + dt) - history.at(t + dt))[0]
    corrected = history.with_end(t + dt, known(t + dt))
    assert (step(known) - step(history.at)) / missed == pytest.approx(history.prediction_share, rel=0.03)
    assert abs(step(known) - step(corrected.at)) / missed == pytest.approx(history.interpolation_share, rel=0.06)
    off = history.with_end(t + dt, known(t + dt) + 0.1)
    assert (step(off.at) - step(corrected.at)) / (0.1 * dt) == pytest.approx(history.end_share, rel=1e-6)


@pytest.mark.parametrize("forced", ["predicted", "corrected"])
@pytest.mark.parametrize("velocity", ["attention", "gradient-flow"])
@pytest.mark.parametrize("moving", [False, True])
def test_predicted_and_corrected_steps_are_of_third_order(forced, velocity, moving):
    """Every step so as soon as the past allows: density, ledger and energy converge as with evaluated stages."""
    path = sample_weight_path(heads("oscillating", scale=0.3), 0.4) if moving else frozen_path(0.5 * random_symmetric(0, 3))
    steps, grid, extra = np.array([0.02, 0.01, 0.005]), GaussGrid(16), {"predicted": 0, "corrected": 1}[forced]

    def run(dt, forced):
        made = solver(grid, smooth_data(grid), path, velocity, -1, fixed_dt=dt)
        made.forced = forced
        return advance_to(made, 0.4)

    exact = run(0.001, None)
    runs = [run(dt, forced) for dt in steps]
    assert [made.evaluations for made in runs] == [(1 + extra) * made.step + (2 - extra) * (POINTS - 1) for made in runs]
    assert fitted_order(1 / steps, [np.abs(made.density - exact.density).max() for made in runs]) > 2.7
    residuals = [abs(made.ledger.residual(energy.energy(made.fields))) for made in runs]
    assert fitted_order(1 / steps, residuals) > 2.7
    assert residuals[-1] < 1e-5 * abs(exact.ledger.dissipation_integral)


def distance(run, density):
    """Mass by which the density of a run differs from another."""
    return 0.5 * run.operator.grid.integrate(np.abs(run.density - density))


def recorded(run, times):
    for t in times:
        advance_to(run, t)
    return run


def test_where_steps_are_short_one_evaluation_serves_each():
    grid, path = GaussGrid(32), frozen_path(random_symmetric(2, 3))
    run = recorded(solver(grid, smooth_data(grid), path, "attention", -1), np.linspace(0, 1, 31))
    assert run.evaluations <= run.step + 3 * POINTS
    exact = advance_to(solver(grid, smooth_data(grid), path, "attention", -1, error_tolerance=1e-7), 1.0)
    moved = distance(exact, smooth_data(grid))
    assert distance(run, exact.density) < 2e-4 * moved  # twice the tolerance: the step's error and the prediction's


def test_weights_that_turn_too_fast_are_evaluated_in_every_stage():
    """The error asked for is met although the past says little about what comes."""
    grid, path = GaussGrid(16), sample_weight_path(heads("oscillating", scale=0.3, rate=40.0), 0.5)
    run = advance_to(solver(grid, smooth_data(grid), path, "attention", -1), 0.5)
    assert run.evaluations > 2.5 * run.step
    exact = advance_to(solver(grid, smooth_data(grid), path, "attention", -1, error_tolerance=1e-8), 0.5)
    assert distance(run, exact.density) < 5e-4 * distance(exact, smooth_data(grid))


def test_a_prediction_that_does_not_come_true_is_taken_back():
    """Weights that stand still and then, within a smooth piece, swing round: the step is repeated with evaluated stages."""
    first, times, width = 0.5 * random_symmetric(0, 2), np.linspace(0, 1, 401), 0.02
    swing = np.tanh((times - 0.6) / width)[:, None, None, None]
    logits, rate = first * (1 - 0.75 * (1 + swing)), -0.75 * first * (1 - swing**2) / width
    path = WeightPath(times, logits, np.full(2, 0.5), rate=rate, interpolation="hermite")
    grid = GaussGrid(16)
    run = solver(grid, smooth_data(grid), path, "attention", -1)
    taken_back = 0
    for t in np.linspace(0, 1, 41)[1:]:
        evaluations, rejected = run.evaluations, run.controller.rejected
        run.advance(t)
        taken_back += run.evaluations - evaluations == 5 and run.controller.rejected == rejected
    advance_to(run, 1.0)
    assert taken_back > 0
    exact = advance_to(solver(grid, smooth_data(grid), path, "attention", -1, error_tolerance=1e-8), 1.0)
    assert distance(run, exact.density) < 1e-3 * distance(exact, smooth_data(grid))


def test_the_past_ends_at_a_kink_of_the_weights():
    """Pieces of fewer steps than the prediction needs: every stage is evaluated."""
    grid = GaussGrid(16)
    path = sample_weight_path(heads("ornstein-uhlenbeck", count=2, noise_var=0.5, step=5e-3, scale=0.3), 0.1)
    run = advance_to(solver(grid, smooth_data(grid), path, "attention", -1), 0.1)
    assert run.evaluations == 3 * run.step


def test_a_fixed_step_is_never_predicted():
    grid = GaussGrid(16)
    run = advance_to(solver(grid, vmf(grid, (0, 0, 1), 2.0), frozen_path(random_symmetric(2, 1)), fixed_dt=0.01), 0.2)
    assert run.evaluations == 3 * run.step
