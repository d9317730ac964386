"""The energy ledger closes at the order of the time scheme, for the space-discrete energy."""

from types import SimpleNamespace

import numpy as np
import pytest
from builders import advance_to, fitted_order, frozen_path, random_symmetric, solver, vmf

from sphereflow import energy
from sphereflow.grid import GaussGrid
from sphereflow.heads import sample_weight_path


def heads(schedule, count=3, **more):
    """A weight specification with the defaults of the case file."""
    spec = dict(
        count=count, schedule=schedule, initial="gaussian-symmetric", matrices=None, file=None, scale=1.0, seed=5, step=5e-3,
        values="logits", weights=None, rate=1.0, mean="identity", noise_var=0.0, scheme="exact", phase="equispaced",
    )  # fmt: skip
    return SimpleNamespace(**{**spec, **more})


def smooth_data(grid):
    return 0.6 * vmf(grid, (1, 0.3, 0.5), 4.0) + 0.4 * vmf(grid, (-0.2, -1, 0.3), 3.0)


def residuals(path, velocity, steps, t_end=0.4, nlat=16):
    out = []
    for dt in steps:
        grid = GaussGrid(nlat)
        run = advance_to(solver(grid, smooth_data(grid), path, velocity, -1, fixed_dt=dt), t_end)
        out.append(abs(run.ledger.residual(energy.energy(run.fields))))
    return np.array(out), run.ledger


@pytest.mark.parametrize("velocity", ["attention", "gradient-flow", "unnormalized"])
def test_residual_falls_at_third_order_with_frozen_weights(velocity):
    steps = np.array([0.02, 0.01, 0.005])
    found, ledger = residuals(frozen_path(0.5 * random_symmetric(0, 3)), velocity, steps)
    assert fitted_order(1 / steps, found) == pytest.approx(3, abs=0.3)
    assert found[-1] < 1e-6 * abs(ledger.dissipation_integral)


def test_residual_falls_at_third_order_with_oscillating_weights():
    steps = np.array([0.02, 0.01, 0.005])
    found, ledger = residuals(sample_weight_path(heads("oscillating", scale=0.3), 0.4), "attention", steps)
    assert abs(ledger.weight_work) > 1e-2
    assert fitted_order(1 / steps, found) > 2.7  # int P is of third order, W of fourth: 3.5 here, 3.3 at half the steps


def test_integrals_of_rates_known_at_the_ends_of_steps_are_of_third_order():
    """W and int G^2 along oscillating weights, against a run with much smaller steps; the first step is of second order."""
    grid, path = GaussGrid(16), sample_weight_path(heads("oscillating", scale=0.3), 0.4)
    steps = np.array([0.02, 0.01, 0.005, 0.00125])
    runs = [advance_to(solver(grid, smooth_data(grid), path, "attention", -1, fixed_dt=dt), 0.4).ledger for dt in steps]
    for name in ("weight_work", "metric_speed_integral"):
        values = np.array([getattr(ledger, name) for ledger in runs])
        assert fitted_order(1 / steps[:3], abs(values[:3] - values[3])) > 2.6, name


def test_books_close_under_noise_and_the_parts_add_up():
    """Along a rough path W has a drift, an Ito and a martingale part; the last equals the left-point sum over the noise."""
    grid, t_end = GaussGrid(16), 0.5
    spec = heads("ornstein-uhlenbeck", count=2, noise_var=0.5, step=5e-3, scale=0.3)
    path = sample_weight_path(spec, t_end)
    run = solver(grid, smooth_data(grid), path, "attention", -1)
    left_point, times = 0.0, path.time
    while run.t < t_end:
        k = path.interval_of(run.t)
        if run.t == times[k]:
            jump = path.logits[k + 1] - path.logits[k]
            drift = path.mean + np.exp(-(times[k + 1] - times[k])) * (path.logits[k] - path.mean) - path.logits[k]
            fields = run.operator(run.density, run.heads_at(run.t, k))
            left_point += energy.drift_power(fields, jump - drift)
        run.advance(t_end)
    ledger = run.ledger
    dissipated = abs(ledger.dissipation_integral)
    assert abs(ledger.residual(energy.energy(run.fields))) < 1e-3 * dissipated
    martingale = ledger.weight_work - ledger.weight_drift - ledger.weight_ito
    assert ledger.weight_ito > 1e-3
    assert martingale == pytest.approx(left_point, abs=0.15 * abs(ledger.weight_ito) + 0.02 * abs(left_point))


def test_metric_speed_integral_equals_the_dissipation_for_one_head():
    """One head, attention: the flow is the gradient flow, E(0) - E(T) = int G^2 up to the errors in space and time."""
    values = []
    for tolerance in (1e-5, 1e-8):  # int G^2 is a trapezoidal sum: a tenth of the step, a hundredth of its error
        grid, path = GaussGrid(32), frozen_path(random_symmetric(2, 1))
        run = advance_to(solver(grid, smooth_data(grid), path, error_tolerance=tolerance), 0.5)
        values.append(abs(run.ledger.metric_speed_integral / run.ledger.dissipation_integral - 1))
    assert values[0] < 1e-3
    assert values[1] < 0.1 * values[0]


def test_attention_with_several_heads_is_not_the_gradient_flow():
    """With different heads G^2 does not account for the energy, whatever the resolution; P does."""
    grid = GaussGrid(24)
    run = advance_to(solver(grid, smooth_data(grid), frozen_path(random_symmetric(4, 3) * 1.5), "attention", -1), 1.0)
    ledger = run.ledger
    assert abs(ledger.residual(energy.energy(run.fields))) < 1e-4 * ledger.dissipation_integral
    assert abs(ledger.metric_speed_integral / ledger.dissipation_integral - 1) > 0.05


@pytest.mark.shtns
def test_both_transforms_give_the_same_run():
    densities = []
    for backend in ("shtns", "ducc0"):
        grid = GaussGrid(32)
        path = sample_weight_path(heads("oscillating"), 1.0)
        run = advance_to(solver(grid, smooth_data(grid), path, "attention", -1, backend=backend), 1.0)
        densities.append(run.density)
    assert np.abs(densities[0] - densities[1]).max() < 1e-10 * densities[0].max()
