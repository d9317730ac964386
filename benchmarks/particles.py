"""Cost of a particle step: the kernel expansion against the sum over all pairs, and a million tokens.

    python benchmarks/particles.py [--million]

One thread, tokens uniform on S^2, logit matrices of norm 5, one step of RK4 (four evaluations of the force, with the
ledger). The sum over all pairs is measured at 10^4 tokens and scaled by n^2. `--million` adds a step of 10^6 tokens under
four heads and the memory of the process.
"""

import argparse
import resource
import time

import numba
import numpy as np
from scipy.stats import uniform_direction

from sphereflow.heads import WeightPath
from sphereflow.particles import ParticleSolver, TokenOperator, mobility


def seconds_per_step(count, heads, repeats=2):
    """Shortest time of a step, after one to warm up."""
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((heads, 3, 3))
    logits += logits.transpose(0, 2, 1)
    logits *= 5 / np.linalg.norm(logits, ord=2, axis=(1, 2))[:, None, None]
    path = WeightPath(np.array([0.0, 1.0]), np.stack([logits, logits]), np.full(heads, 1 / heads))
    positions = uniform_direction(3).rvs(count, random_state=rng)
    tokens = ParticleSolver(TokenOperator(), path, positions, np.full(count, 1 / count), "rk4", 0.01)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        tokens.advance(1.0)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--million", action="store_true", help="also 10^6 tokens, four heads")
    options = parser.parse_args()
    numba.set_num_threads(1)
    small, large = seconds_per_step(10**4, 1), seconds_per_step(10**5, 1)
    print(f"expansion, n = 1e4: {small:.3g} s a step; n = 1e5: {large:.3g} s")
    if options.million:
        step = seconds_per_step(10**6, 4, repeats=1)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"expansion, n = 1e6, H = 4: {step:.3g} s a step, {memory:.2f} GiB")
    mobility.FEW_PAIRS = 10**18
    pairs = seconds_per_step(10**4, 1, repeats=1)
    print(f"all pairs, n = 1e4: {pairs:.3g} s a step; scaled to n = 1e5: {100 * pairs:.3g} s, {100 * pairs / large:.0f} times")


if __name__ == "__main__":
    main()
