"""The finite volumes against quadrature tokens: Gauss nodes that move with the flow, of spectral accuracy."""

import numpy as np
import pytest

from sphereflow.case import parse_case
from sphereflow.runs import build_solver
from sphereflow.simulation import run_to_end

TIMES = np.array([0.0, 0.25, 0.5, 1.0])
SIZES = (16, 32, 64)
HEADS = {"frozen": {"scale": 0.5}, "oscillating": {}}
MIXTURE = {
    "kind": "vmf-mixture",
    "centers": [[1, 0.3, 0.2], [-0.5, 1, -0.4], [0.2, -0.6, 1]],
    "kappa": [4.0, 3.0, 5.0],
    "weights": [0.5, 0.3, 0.2],
}


def observed(schedule, nlat, solver):
    """E, P, G^2, mean and second moments at the times, shape (4, 12), of smooth data under three heads."""
    case = parse_case({
        "grid": {"nlat": nlat},
        "heads": {"count": 3, "initial": "gaussian-symmetric", "seed": 7, "schedule": schedule, **HEADS[schedule]},
        "initial": MIXTURE,
        "solver": {"t_end": float(TIMES[-1]), **solver},
    })  # fmt: skip
    return np.array([
        [s.energy, s.dissipation, s.metric_speed_squared, *s.mean, *s.second_moment[np.triu_indices(3)]]
        for s in run_to_end(build_solver(case), TIMES)
    ])  # fmt: skip


@pytest.mark.parametrize("schedule", HEADS)
def test_finite_volumes_converge_to_quadrature_tokens(schedule):
    tokens = {"kind": "particles", "quadrature": True, "dt": 0.02}
    reference = observed(schedule, 32, tokens)
    np.testing.assert_allclose(observed(schedule, 28, tokens), reference, atol=1e-10)  # it has converged itself
    errors = [np.abs(observed(schedule, nlat, {"kind": "finite-volume"}) - reference) for nlat in SIZES]
    assert errors[-1].max() < 1e-3
    size = [np.sqrt(np.mean(error[1:] ** 2)) for error in errors]
    order = -np.polyfit(np.log(SIZES), np.log(size), 1)[0]
    assert order >= 1.85
