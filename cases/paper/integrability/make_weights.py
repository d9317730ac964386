"""Make the weights of decaying.toml: python cases/paper/integrability/make_weights.py

Two heads A_h(t) = A_h + (1 + t)^(-p) B_h sin t, one file for each power p. The integral of |dA_h/dt| is finite for p > 1 and
grows without bound, like t^(1 - p) or log t, for p <= 1. Between the times of the table, `STEP` apart, the weights are linear.
"""

from pathlib import Path

import numpy as np

POWERS = (0.5, 1.0, 2.0)
STEP, T_END = 0.2, 200.0
LIMIT = np.array([np.diag([2.4, 2.0, 1.6]), np.diag([1.7, 2.3, 2.0])])
SWING = 1.5 * np.array([[[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 1], [0, 1, 0]]])
FOLDER = Path(__file__).parent


def file_of(power):
    """File of the weights for a power p."""
    return FOLDER / f"decay_p{power:g}.npz"


def weights(power):
    """The arrays of a file by name."""
    t = STEP * np.arange(round(T_END / STEP) + 1)
    size = (1 + t) ** -power * np.sin(t)
    return {"t": t, "logits": LIMIT + size[:, None, None, None] * SWING}


if __name__ == "__main__":
    for power in POWERS:
        np.savez_compressed(file_of(power), **weights(power))
