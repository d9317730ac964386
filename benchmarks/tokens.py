"""Tokens by the direct sum over all pairs, in numpy: what the solvers are measured against."""

from collections.abc import Callable

import numpy as np


def force(x: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Head-averaged softmax attention on tokens (n, 3), descending, by the direct sum over all pairs."""
    moved = np.einsum("hij,nj->hni", logits, x)
    scores = x @ moved.transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    v = -((weights / weights.sum(-1, keepdims=True)) @ moved).mean(0)
    return v - np.sum(v * x, axis=1, keepdims=True) * x


def energy(x: np.ndarray, logits: np.ndarray) -> float:
    """E = 1/2 mean over heads and pairs of exp(x . A y)."""
    return float(np.mean([0.5 * np.exp(x @ a @ x.T).mean() for a in logits]))


def normalised(x: np.ndarray) -> np.ndarray:
    """Tokens back on the sphere."""
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def euler(x: np.ndarray, logits: np.ndarray, dt: float, force: Callable = force) -> np.ndarray:
    """One transformer layer."""
    return normalised(x + dt * force(x, logits))


def rk4(x: np.ndarray, logits: np.ndarray, dt: float, force: Callable = force) -> np.ndarray:
    """The classical scheme, normalised after every stage."""
    k1 = force(x, logits)
    k2 = force(normalised(x + dt / 2 * k1), logits)
    k3 = force(normalised(x + dt / 2 * k2), logits)
    k4 = force(normalised(x + dt * k3), logits)
    return normalised(x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
