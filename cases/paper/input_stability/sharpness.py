"""How much of the bound C can be reached: the worst token measures that an optimiser finds, one symmetric or general head.

    python cases/paper/input_stability/sharpness.py [--trials 6]

Maximises the growth rate of the linearised flow (`sphereflow.stability.linear_growth`) over the positions and masses of two to
four tokens and over the logit matrix of a given norm, with V = A (ascend) or V = -A (descend), and prints it beside C and its
two parts. What is found is a lower bound of the best possible constant. Some minutes on one core.
"""

import argparse

import numpy as np
from scipy.optimize import minimize

from sphereflow.stability import linear_growth, measure_rate, position_rate

NORMS = (0.5, 1.0, 2.0, 3.0, 5.0)
SMALLEST_MASS = 25.0  # in powers of e below the largest


def parts_of(parameters, tokens, norm):
    """Tokens, masses and logits from free numbers."""
    x, logarithm, matrix = np.split(parameters, [3 * tokens, 4 * tokens])
    x = x.reshape(tokens, 3)
    masses = np.exp(np.clip(logarithm - logarithm.max(), -SMALLEST_MASS, 0.0))
    matrix = matrix.reshape(1, 3, 3)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x, masses / masses.sum(), norm * matrix / np.linalg.norm(matrix, 2, axis=(1, 2))[:, None, None]


def worst(norm, direction, trials, rng):
    """The largest growth rate found."""
    found = 0.0
    for tokens in (2, 3, 4):
        for trial in range(trials):
            start = rng.standard_normal(4 * tokens + 9)
            start[3 * tokens : 4 * tokens] *= 4.0 if trial % 2 else 1.0

            def falling(parameters, tokens=tokens):
                return -linear_growth(*parts_of(parameters, tokens, norm), np.ones(1), None, direction)

            found = max(found, -minimize(falling, start, method="BFGS", options={"maxiter": 80}).fun)
    return found


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=6, help="starts for each norm and number of tokens")
    options = parser.parse_args()
    print("| direction | norm of A | Λ | L | C | largest growth found | C over it |\n|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for name, direction in (("descend", -1), ("ascend", 1)):
        for norm in NORMS:
            logits, weight = norm * np.eye(3)[None], np.ones(1)
            along, across = float(position_rate(logits, weight, None, direction)), float(measure_rate(logits, weight))
            found = worst(norm, direction, options.trials, rng)
            numbers = " | ".join(f"{v:.3g}" for v in (along, across, along + across, found, (along + across) / found))
            print(f"| {name} | {norm:g} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
