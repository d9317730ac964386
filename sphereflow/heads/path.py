"""The weights of a run as functions of time.

Smooth paths are stored with their exact time derivatives and interpolated by cubic Hermite polynomials (C^1, fourth
order in the step); the others are piecewise linear, or piecewise constant as the layers of a transformer are, and their
kinks and jumps are the `breakpoints` a time stepper must land on.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import roots_legendre

ROUND_OFF = 1e-12

_KINK = 1e-13
_GAUSS_NODE, _GAUSS_WEIGHT = roots_legendre(5)


@dataclass(frozen=True, eq=False)
class WeightPath:
    """The weights of all heads as functions of time.

    Parameters
    ----------
    time : ndarray, shape (K,)
        Nodes, strictly increasing, K >= 2.
    logits : ndarray, shape (K, H, d, d)
        Logit matrices A_h at the nodes.
    head_weight : ndarray, shape (H,)
        Weights w_h of the heads, positive, of sum 1.
    values : ndarray, shape (K, H, d, d), optional
        Value matrices V_h at the nodes, interpolated linearly. None: V_h = direction * A_h.
    rate : ndarray, shape (K, H, d, d), optional
        dA_h/dt at the nodes; required by "hermite", unused by "linear".
    interpolation : {"linear", "hermite", "step"}
        How A_h is interpolated between nodes; with "step" A_h and V_h keep the values of a node up to the next one.
    mean : ndarray, shape (d, d) or (H, d, d), optional
        Mean of the Ornstein-Uhlenbeck law; None for the other schedules.
    relaxation : float, optional
        Its relaxation rate.
    noise_var : float
        Variance sigma^2 of the noise on the weights; 0 for paths without noise.
    phase : ndarray, shape (H,), optional
        Phases of the oscillating forcing.
    concentration : ndarray, shape (H,), optional
        Concentration kappa_h >= 0 of the von Mises-Fisher likelihood of each head of a score-based variational flow.

    Notes
    -----
    Where a method takes `interval`, the polynomial of that interval is evaluated, also at its right end and beyond: a
    stepper that stays inside one smooth piece can see both ends of it with the piece's own slope. Without it the
    interval is found by bisection, the later one at a node. Evaluating outside the path is a ValueError.
    The arrays are held as read-only views.
    """

    time: np.ndarray
    logits: np.ndarray
    head_weight: np.ndarray
    values: np.ndarray | None = None
    rate: np.ndarray | None = None
    interpolation: str = "linear"
    mean: np.ndarray | None = None
    relaxation: float | None = None
    noise_var: float = 0.0
    phase: np.ndarray | None = None
    concentration: np.ndarray | None = None

    def __post_init__(self):
        for name in ("time", "logits", "head_weight", "values", "rate", "mean", "phase", "concentration"):
            array = getattr(self, name)
            if array is not None:
                array = np.asarray(array, dtype=float).view()
                array.flags.writeable = False
                object.__setattr__(self, name, array)
        if self.time.ndim != 1 or self.time.size < 2 or not np.all(np.diff(self.time) > 0):
            raise ValueError("time must be a strictly increasing vector of at least two nodes")
        if self.logits.ndim != 4 or self.logits.shape[0] != self.time.size:
            raise ValueError(f"logits have shape {self.logits.shape}; expected ({self.time.size}, H, d, d)")
        if self.head_weight.shape != self.logits.shape[1:2]:
            raise ValueError(f"head_weight has shape {self.head_weight.shape}; expected {self.logits.shape[1:2]}")
        for name in ("values", "rate"):
            array = getattr(self, name)
            if array is not None and array.shape != self.logits.shape:
                raise ValueError(f"{name} has shape {array.shape}; expected {self.logits.shape}")
        if self.concentration is not None and self.concentration.shape != self.head_weight.shape:
            raise ValueError(f"concentration has shape {self.concentration.shape}; expected {self.head_weight.shape}")
        if self.interpolation not in ("linear", "hermite", "step"):
            raise ValueError(f"unknown interpolation {self.interpolation!r}")
        if self.interpolation == "hermite" and self.rate is None:
            raise ValueError("hermite interpolation needs the rates")

    @cached_property
    def _nodes(self) -> list:
        """The nodes as Python floats, which bisect faster than an array."""
        return self.time.tolist()

    def interval_of(self, t: float) -> int:
        """Return k with time[k] <= t < time[k + 1] (the last interval also holds its right end).

        Raises
        ------
        ValueError
            If t lies outside the path by more than round-off.
        """
        nodes = self._nodes
        slack = 2 * ROUND_OFF * (nodes[-1] - nodes[0])
        if not nodes[0] - slack <= t <= nodes[-1] + slack:
            raise ValueError(f"t = {t} is outside the weight path, which covers [{nodes[0]}, {nodes[-1]}]")
        return min(max(bisect_right(nodes, t) - 1, 0), len(nodes) - 2)

    def _locate(self, t, interval):
        """Interval, position in it (0 at its left node, 1 at its right node) and its length."""
        k = self.interval_of(t) if interval is None else interval
        length = self._nodes[k + 1] - self._nodes[k]
        return k, (t - self._nodes[k]) / length, length

    def logits_at(self, t: float, interval: int | None = None) -> np.ndarray:
        """Logit matrices A_h(t), shape (H, d, d)."""
        k, s, length = self._locate(t, interval)
        if self.interpolation == "step":
            return self.logits[k]
        if self.interpolation == "linear":
            return linear(s, self.logits[k], self.logits[k + 1])
        return _hermite(s, length, self.logits[k], self.rate[k], self.logits[k + 1], self.rate[k + 1])

    def rate_at(self, t: float, interval: int | None = None) -> np.ndarray:
        """Time derivative dA_h/dt of the interpolated path, shape (H, d, d)."""
        k, s, length = self._locate(t, interval)
        return self._piece_rate(slice(k, k + 1), s, length)[0]

    def values_at(self, t: float, interval: int | None = None) -> np.ndarray | None:
        """Value matrices V_h(t), shape (H, d, d), or None where V_h = direction * A_h."""
        if self.values is None:
            return None
        k, s, _ = self._locate(t, interval)
        if self.interpolation == "step":
            return self.values[k]
        return linear(s, self.values[k], self.values[k + 1])

    def drift_at(self, t: float, interval: int | None = None) -> np.ndarray:
        """Drift of the weights, shape (H, d, d): relaxation (mean - A_h) if the path has such a law, else dA_h/dt."""
        if self.relaxation is None:
            return self.rate_at(t, interval)
        return self.relaxation * (self.mean - self.logits_at(t, interval))

    def _piece_rate(self, pieces: slice, s, length) -> np.ndarray:
        """dA/dt at position s of the given intervals, shape (number of intervals, H, d, d)."""
        following = slice(pieces.start + 1, pieces.stop + 1)
        left, right = self.logits[pieces], self.logits[following]
        if self.interpolation == "step":
            return np.zeros_like(left)
        if self.interpolation == "linear":
            return (right - left) / length
        return _hermite_rate(s, length, left, self.rate[pieces], right, self.rate[following])

    @cached_property
    def breakpoints(self) -> np.ndarray:
        """Interior times where the slope of the logits or values jumps by more than round-off, ascending.

        Hermite paths are C^1 and have none; the breakpoints of a "step" path are all of its interior nodes, where layers
        meet, also where two layers have equal weights.
        """
        if self.interpolation == "step":
            return self.time[1:-1]
        kink = np.zeros(self.time.size - 2, dtype=bool)
        if self.interpolation == "linear":
            kink |= _slope_jumps(self.time, self.logits)
        if self.values is not None:
            kink |= _slope_jumps(self.time, self.values)
        return self.time[1:-1][kink]

    def piece_at(self, t: float) -> int | None:
        """The smooth piece of the path that begins at (or holds) a time, for `interval`; None where all of it is smooth.

        A node that t misses by round-off counts as reached.
        """
        if self.interpolation == "hermite":
            return None
        return self.interval_of(min(t * (1 + ROUND_OFF), self._nodes[-1]))

    def smooth_until(self, t: float, target: float) -> float:
        """`target`, or the next kink of the path if that comes first: how far a step from t may go."""
        kinks = self.breakpoints
        k = np.searchsorted(kinks, t * (1 + ROUND_OFF), side="right")
        return float(kinks[k]) if k < kinks.size and kinks[k] < target * (1 - ROUND_OFF) else target

    def variation(self, t: float) -> float:
        """Length of the weight path, the integral of sum_h w_h |dA_h/dt|_F from the first node to t.

        Exact for linear pieces, five-point Gauss quadrature on each interval for Hermite pieces. The variation of a
        noisy path is that of its interpolant and grows without bound as its step is refined. That of a "step" path is the
        sum of its jumps up to t, one at t included.
        """
        k, s, length = self._locate(t, None)
        part = self._piece_variation(slice(k, k + 1), s, np.full((1, 1, 1, 1), length))
        return float(self._variation_at_nodes[k] + part[0])

    @cached_property
    def _variation_at_nodes(self) -> np.ndarray:
        if self.interpolation == "step":
            return np.concatenate([[0.0], np.cumsum(self._speed(np.diff(self.logits, axis=0)))])
        length = np.diff(self.time)[:, None, None, None]
        pieces = self._piece_variation(slice(0, self.time.size - 1), 1.0, length)
        return np.concatenate([[0.0], np.cumsum(pieces)])

    def _piece_variation(self, pieces: slice, s: float, length: np.ndarray) -> np.ndarray:
        """Variation from the left node to position s of each interval."""
        if self.interpolation == "step":
            return np.zeros(pieces.stop - pieces.start)
        if self.interpolation == "linear":
            speed = 2.0 * self._speed(self._piece_rate(pieces, 0.0, length))
        else:
            speed = sum(
                weight * self._speed(self._piece_rate(pieces, s * (1 + node) / 2, length))
                for node, weight in zip(_GAUSS_NODE, _GAUSS_WEIGHT, strict=True)
            )
        return speed * s * length[:, 0, 0, 0] / 2

    def _speed(self, rate):
        """sum_h w_h |dA_h/dt|_F for rates (..., H, d, d)."""
        return np.linalg.norm(rate, axis=(-2, -1)) @ self.head_weight


def linear(s, left, right):
    """Linear interpolant at position s in [0, 1] of an interval; exactly constant between equal ends."""
    return left + s * (right - left)


def _hermite(s, length, left, left_rate, right, right_rate):
    """Cubic Hermite interpolant at position s in [0, 1] of an interval."""
    r = 1.0 - s
    slopes = (length * s * r * r) * left_rate - (length * s * s * r) * right_rate
    return left + (s * s * (3.0 - 2.0 * s)) * (right - left) + slopes


def _hermite_rate(s, length, left, left_rate, right, right_rate):
    """Time derivative of the cubic Hermite interpolant."""
    r = 1.0 - s
    return (6.0 * s * r / length) * (right - left) + r * (1.0 - 3.0 * s) * left_rate + s * (3.0 * s - 2.0) * right_rate


def _slope_jumps(time, nodes):
    """Interior nodes where the slope of the linear interpolant jumps by more than round-off, boolean (K - 2,)."""
    length = np.diff(time)
    slope = np.diff(nodes, axis=0) / length[:, None, None, None]
    largest = np.abs(slope).max(axis=(1, 2, 3))
    jump = np.abs(np.diff(slope, axis=0)).max(axis=(1, 2, 3))
    # A difference quotient of equal slopes is off by the rounding of both nodes over the interval's length, and by that
    # of the length itself, which is the rounding of t.
    shortest = np.minimum(length[1:], length[:-1])
    steepest = np.maximum(largest[1:], largest[:-1])
    rounding = 4 * np.finfo(float).eps * (np.abs(nodes).max() + np.abs(time).max() * steepest) / shortest
    return jump > _KINK * steepest + rounding
