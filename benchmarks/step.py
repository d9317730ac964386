"""A step of the density against a step of tokens by the direct sum, for the same ten oscillating heads.

    python benchmarks/step.py

Tokens: n = 200, the direct O(n^2) sum in numpy, explicit Euler (one evaluation of the force) and RK4 (four). Density: one step
of `cases/octahedron_oscillating.toml` at 64 x 128 with everything the ledger needs (three evaluations, third order). One
thread, medians, all in one process.
"""

import time
from pathlib import Path

import numba
import numpy as np

from sphereflow.case import load_case
from sphereflow.runs import build_solver

CASE = Path(__file__).parent.parent / "cases" / "octahedron_oscillating.toml"
TOKENS, REPEATS = 200, 40


def force(x, logits):
    """Head-averaged softmax attention on tokens (n, 3), descending, by the direct sum."""
    moved = np.einsum("hij,nj->hni", logits, x)
    scores = x @ moved.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    v = -((weights / weights.sum(-1, keepdims=True)) @ moved).mean(0)
    return v - np.sum(v * x, axis=1, keepdims=True) * x


def normalised(x):
    """Tokens back on the sphere."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def euler(x, logits, dt):
    """One transformer layer."""
    return normalised(x + dt * force(x, logits))


def rk4(x, logits, dt):
    """The classical scheme, normalised after every stage."""
    k1 = force(x, logits)
    k2 = force(normalised(x + dt / 2 * k1), logits)
    k3 = force(normalised(x + dt / 2 * k2), logits)
    k4 = force(normalised(x + dt * k3), logits)
    return normalised(x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4))


def seconds(function):
    """Wall time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main():
    """Print the table."""
    numba.set_num_threads(1)
    solver = build_solver(load_case(CASE))
    x = normalised(np.random.default_rng(0).standard_normal((TOKENS, 3)))
    rows = {
        "tokens, Euler": lambda: euler(x, solver.heads_at(solver.t, None).logits, 5e-3),
        "tokens, RK4": lambda: rk4(x, solver.heads_at(solver.t, None).logits, 5e-3),
        "density, SSPRK3": lambda: solver.advance(20.0),
    }
    for function in rows.values():
        function()
    times = {name: np.median([seconds(f) for _ in range(REPEATS)]) for name, f in rows.items()}
    density = times["density, SSPRK3"]
    print(f"ten heads; density {solver.operator.grid.nlat} x {solver.operator.grid.nlon}, {TOKENS} tokens")
    for name, value in times.items():
        print(f"{name:18s} {value * 1e3:7.2f} ms   density step / this {density / value:.2f}")


if __name__ == "__main__":
    main()
