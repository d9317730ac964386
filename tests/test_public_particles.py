"""Replays of results of the public particle code of arXiv 2605.18870 (tests/data/public_particles, see its README).

The same tokens with the same explicit Euler steps must give the same numbers; the density that starts from the same
tokens, smoothed, must come close.
"""

from pathlib import Path

import numpy as np
import pytest

from sphereflow.case import parse_case
from sphereflow.runs import build_solver
from sphereflow.simulation import run_to_end

DATA = Path(__file__).parent / "data" / "public_particles"
HEADS = {
    "s2_oscillating_H1": {"schedule": "oscillating", "scheme": "euler"},
    "s2_oscillating_H10": {"schedule": "oscillating", "scheme": "euler"},
    "s2_ou_noise0_H1": {"schedule": "ornstein-uhlenbeck", "scheme": "euler-maruyama", "noise_var": 0},
}


def replay_case(name, folder, solver, kappa=50.0, **more):
    """A case with the result's initial tokens and weights."""
    with np.load(DATA / f"{name}.npz") as result:
        np.savez(folder / "tokens.npz", positions=result["x_first"])
        matrices = result["D0"].tolist()
    return parse_case({
        "model": {"velocity": "attention", "direction": "descend"},
        "heads": {**HEADS[name], "step": 5e-3, "matrices": matrices},
        "initial": {"kind": "tokens", "file": str(folder / "tokens.npz"), "kappa": kappa},
        "solver": solver,
        **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "t_end"), [("s2_oscillating_H1", 20.0), ("s2_ou_noise0_H1", 20.0), ("s2_oscillating_H10", 1.0)]
)
def test_euler_tokens_repeat_the_public_results(name, t_end, tmp_path):
    solver = build_solver(
        replay_case(name, tmp_path, {"kind": "particles", "scheme": "euler", "dt": 5e-3, "t_end": t_end})
    )
    with np.load(DATA / f"{name}.npz") as result:
        records = result["t"] <= t_end * (1 + 1e-12)
        expected = {key: result[key][records] for key in ("t", "E", "G2", "dE_int", "G2_int")}
        last = result["x_last"]
    found = {key: [] for key in ("E", "G2", "dE_int", "G2_int")}
    for snapshot in run_to_end(solver, expected["t"]):
        found["E"].append(snapshot.energy)
        found["G2"].append(snapshot.metric_speed_squared)
        found["dE_int"].append(solver.ledger.weight_work)
        found["G2_int"].append(solver.ledger.metric_speed_integral)
    for key, values in found.items():
        np.testing.assert_allclose(values, expected[key], atol=1e-9, err_msg=key)
    if t_end == 20.0:
        np.testing.assert_allclose(solver.positions, last, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s2_oscillating_H1", "s2_oscillating_H10"])
def test_density_of_the_smoothed_tokens_comes_close(name, tmp_path):
    case = replay_case(name, tmp_path, {"kind": "finite-volume", "t_end": 20.0}, kappa=400.0, grid={"nlat": 64})
    times = np.array([0.0, 14.0, 15.0, 16.0, 17.0, 18.0, 19.0, 20.0])
    snapshots = list(run_to_end(build_solver(case), times))[1:]
    with np.load(DATA / f"{name}.npz") as result:
        index = np.searchsorted(result["t"], times[1:] - 1e-9)
        energy, speed = result["E"][index], result["G2"][index]
    np.testing.assert_allclose([s.energy for s in snapshots], energy, rtol=0.05)
    if name == "s2_oscillating_H1":
        assert snapshots[-1].metric_speed_squared == pytest.approx(speed[-1], rel=0.15)
