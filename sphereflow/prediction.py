r"""Velocities in the later stages of a Runge-Kutta step from those at the ends of steps.

The model costs much more than the rest of a right-hand side, and its velocities are smooth in time. With v known at the present
instant and at n - 1 before it, v at t + dt and t + dt/2, where the second and third stage of SSPRK3 want it, is taken from the
polynomial through them: the model is evaluated once a step, at its end. What is missed at t + dt,

    v - v* = h_1 dt^n v^(n) / n!,    h_c = prod_k (c + k), k = 0 ... n - 1     (equal steps)

is seen there, and the step is off by dt times the same for v* in the stages, weighted 1/6 at c = 1 and 2/3 at c = 1/2: for
n = 4 by 0.35 of dt (v - v*), an error of order dt^5, one more than SSPRK3's own.

Where that is too much the step is *corrected*: made again with the polynomial through n - 1 of those instants and the velocity
found at t + dt. This interpolates at t + dt/2 (0.03 instead of 0.35), and what it misses at t + dt, since that velocity is of
the uncorrected state, enters with the weight of that point in the step, 0.38. Two evaluations instead of three.
"""

import math

import numpy as np

from sphereflow.passes import weighted_sum

POINTS = 4
MARGIN = 0.7  # share of the tolerance that a step may be expected to use up
STAGES = ((1 / 6, 1.0), (2 / 3, 0.5))  # weights and times of the stages that take predicted velocities


def _product(c: float, first: int, points: int) -> float:
    """prod_k |c + k| / (1 + k - first) over k = first ... first + points - 1."""
    return math.prod(abs(c + k) / (1 + k - first) for k in range(first, first + points))


class VelocityHistory:
    """Face velocities, joined to one vector, at the ends of the last steps.

    Parameters
    ----------
    points : int
        Instants n <= 4 that are kept, the present one included.

    Attributes
    ----------
    times, values : list
        The known instants, oldest first.
    last : tuple of float, or None
        Length of the last step whose prediction was judged, and the relative error that it made or would have made.
    """

    def __init__(self, points: int = POINTS):
        self.points = points
        self.times: list[float] = []
        self.values: list[np.ndarray] = []
        self.last: tuple[float, float] | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many instants are known as are wanted."""
        return len(self.times) == self.points

    @property
    def prediction_share(self) -> float:
        """Error of a predicted step over dt times what the prediction misses at its end."""
        return sum(weight * _product(c, 0, self.points) for weight, c in STAGES)

    @property
    def interpolation_share(self) -> float:
        """Error of the interpolation in a corrected step over dt times what the prediction missed at its end."""
        return sum(weight * _product(c, -1, self.points) for weight, c in STAGES)

    @property
    def end_share(self) -> float:
        """Weight in a corrected step of the velocity at its end."""
        return sum(weight * _product(c, 0, self.points - 1) for weight, c in STAGES)

    def remember(self, t: float, value: np.ndarray) -> None:
        """Enter the velocities at a time after all that are known; the oldest fall out."""
        if self.is_full:
            del self.times[0], self.values[0]
        self.times.append(t)
        self.values.append(value)

    def forget(self) -> None:
        """Forget everything: what follows is not the smooth continuation of what was."""
        self.times.clear()
        self.values.clear()
        self.last = None

    def at(self, t: float) -> np.ndarray:
        """The polynomial through the known instants, at a time."""
        weights = [
            math.prod((t - other) / (known - other) for other in self.times[:i] + self.times[i + 1 :])
            for i, known in enumerate(self.times)
        ]
        return weighted_sum(weights, self.values)

    def with_end(self, t: float, value: np.ndarray) -> "VelocityHistory":
        """A copy that knows the velocities at the end of the step at hand, for its correction."""
        out = VelocityHistory(self.points)
        out.times, out.values = list(self.times), list(self.values)
        out.remember(t, value)
        return out

    def plan(self, dt: float, tolerance: float) -> str | None:
        """How a step of length dt is expected to be accurate enough: "predicted", "corrected", or neither (None)."""
        if not self.is_full or self.last is None:
            return None
        length, error = self.last
        error *= (dt / length) ** self.points
        if error <= MARGIN * tolerance:
            return "predicted"
        return "corrected" if error * self.interpolation_share / self.prediction_share <= MARGIN * tolerance else None

    def state(self) -> dict:
        """What `restore` needs: the instants that will still be known at the end of the next step."""
        kept = slice(1 - self.points, None)
        return {"past_times": self.times[kept], "past_velocities": np.array(self.values[kept]), "past_prediction": self.last}

    def restore(self, state: dict) -> None:
        """Bring back a `state`; further entries of the dictionary do not matter."""
        self.forget()
        for t, value in zip(state["past_times"], state["past_velocities"], strict=True):
            self.remember(t, np.array(value))
        self.last = None if state["past_prediction"] is None else tuple(state["past_prediction"])
