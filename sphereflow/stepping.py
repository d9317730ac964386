r"""Time stepping: the SSPRK3 step, the choice of its length, and landing on given times.

The three-stage, third-order strong-stability-preserving Runge-Kutta scheme (Shu and Osher),

    u1 = u + dt f(u),   u2 = 3/4 u + 1/4 (u1 + dt f(u1)),   u_new = (u + 2 (u2 + dt f(u2))) / 3,

is a convex combination of forward-Euler stages. Quantities that only need to be integrated along the run (the ledger) ride
along with the scheme's own weights 1/6, 1/6, 2/3 at t, t + dt, t + dt/2, or follow from their rates at the ends of the steps
alone (`integral_over_step`), which costs one evaluation in place of three. Heun's second-order result is 2 u2 - u, so the error
estimate u_new - 2 u2 + u comes for free.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sphereflow.errors import NumericalError
from sphereflow.passes import blend

STABLE_CFL = 0.4  # a fixed step beyond this Courant number is refused: the unlimited parabolas go unstable at 0.45
QUIET_RATE = 1e-9  # mass moved per unit time below which the solution counts as stationary
ROUND_OFF_MASS = 1e-11  # mass moved in one step below which differences are rounding noise
SMALLEST_STEP = 1e-9
GROWTH_LIMIT = 2.0
MEMORY_OF_REFUSALS = 2  # accepted steps


@dataclass(frozen=True)
class StepResult:
    """What one step gives: the new state, the integrals over the step, and the second intermediate state u2.

    The difference to Heun's second-order result is state - 2 middle + (the state before).
    """

    state: np.ndarray
    integrals: np.ndarray
    middle: np.ndarray


def ssprk3_step(state: np.ndarray, t: float, dt: float, rhs: Callable, project: Callable, first) -> StepResult:
    """One SSPRK3 step.

    Parameters
    ----------
    state : ndarray
    t, dt : float
    rhs : callable
        rhs(state, t) -> (tendency, rates): the state's rate of change and a vector of rates to be integrated.
    project : callable
        Applied to the state after every stage (may work in place, must return the state).
    first : tuple
        rhs(state, t), known from the choice of dt.
    """
    k1, r1 = first
    u1 = project(blend(0.0, state, 1.0, state, dt, k1))
    k2, r2 = rhs(u1, t + dt)
    u2 = project(blend(0.75, state, 0.25, u1, dt, k2))
    k3, r3 = rhs(u2, t + dt / 2)
    # 1/3 and 2/3 as rounded add up to less than 1: every step would lose 6e-17 of the mass.
    new = project(blend(1 - 2 / 3, state, 2 / 3, u2, dt, k3))
    return StepResult(new, dt * (r1 + r2 + 4 * r3) / 6, u2)


def integral_over_step(lengths: Sequence[float], rates: Sequence[np.ndarray]) -> np.ndarray:
    r"""Integral over the last of some steps of the polynomial through rates known at the steps' ends.

    With h the last step, g the one before it and D_2, D_3 the divided differences of the last three and four rates,

        int f dt = h (f_left + f_right) / 2 - D_2 h^3 / 6 - D_3 (h^4 / 12 + g h^3 / 6):

    of second order with one step (the trapezoidal rule), of third with two, of fourth with three.

    Parameters
    ----------
    lengths : sequence of float
        Lengths of up to three successive steps.
    rates : sequence of ndarray
        Rates at their ends, one more than lengths, oldest first.
    """
    h = lengths[-1]
    integral = 0.5 * h * (rates[-2] + rates[-1])
    slopes = [(right - left) / length for left, right, length in zip(rates[:-1], rates[1:], lengths, strict=True)]
    if len(lengths) > 1:
        g = lengths[-2]
        second = (slopes[-1] - slopes[-2]) / (h + g)
        integral = integral - second * h**3 / 6
        if len(lengths) > 2:
            third = (second - (slopes[-2] - slopes[-3]) / (g + lengths[-3])) / (h + g + lengths[-3])
            integral = integral - third * (h**4 / 12 + g * h**3 / 6)
    return integral


def steps_to(t: float, target: float, dt: float) -> float:
    """The largest step of at most `dt` that reaches `target` in equal steps."""
    remaining = target - t
    return remaining / max(1, math.ceil(remaining / dt * (1 - 1e-12)))


def arrival(t: float, dt: float, target: float) -> float:
    """t + dt, or exactly `target` if the step ends there."""
    return target if t + dt >= target - 1e-9 * dt else t + dt


@dataclass
class StepController:
    """Chooses the step length: the stability bound, the error control, or a fixed step.

    A linear mode growing at rate lambda moves by z = lambda dt in a step; the Heun-SSPRK3 difference is z^3/6 and the error
    of SSPRK3 z^4/24, relative to the mode. The ratio q of the difference to the movement of the step is therefore z^2/6, and
    the relative error of the movement (6 q)^(3/2) / 24. That is held below `error_tolerance`: near an equilibrium, where
    velocities vanish and the Courant number allows any step, it keeps growth rates right. Once less than `QUIET_RATE` of the
    mass moves per unit time, or so little in a step that rounding shows, the error is measured against that instead.

    Where the solution has a kink in time (a limiter that sets in as a cell runs empty) q does not fall with the step, and
    smaller steps would only creep up to the kink: a step that fails again, right away or after a few that passed, and whose q
    fell by less than its length, is accepted.

    Parameters
    ----------
    cfl : float
        Courant number on pi/nlat.
    error_tolerance : float
        Relative error of the movement of one step.
    fixed_dt : float or None
        Use this step and no control.

    Attributes
    ----------
    suggestion : float
        Step length that error control allows next; part of a run's state.
    rejected : int
        Steps that were repeated so far.
    """

    cfl: float = 0.3
    error_tolerance: float = 1e-4
    fixed_dt: float | None = None
    suggestion: float = math.inf
    rejected: int = 0
    _refused: tuple[float, float, int] | None = None

    def state(self) -> dict:
        """The memory of the control, for `restore`."""
        return {"suggestion": float(self.suggestion), "rejected": self.rejected, "refused": self._refused}

    def restore(self, state: dict) -> None:
        """Bring back the memory that `state` returned."""
        self.suggestion, self.rejected = state["suggestion"], state["rejected"]
        self._refused = None if state["refused"] is None else tuple(state["refused"])

    def choose(self, step_bound: Callable[[float], float], t: float, step: int) -> float:
        """Step length before landing; `step_bound(cfl)` is the stability bound at the present state.

        Raises
        ------
        NumericalError
            If a fixed step is beyond the stability bound.
        """
        if self.fixed_dt is None:
            dt = min(step_bound(self.cfl), self.suggestion)
            if not dt > SMALLEST_STEP:
                raise NumericalError(
                    f"the time step fell to {dt:.1e} at step {step}, t = {t:.6g}: the flow is too fast for the grid or the "
                    f"error control cannot be met; try a larger solver.error_tolerance than {self.error_tolerance:g}"
                )
            return dt
        bound = step_bound(STABLE_CFL)
        if self.fixed_dt > bound:
            raise NumericalError(
                f"solver.dt: {self.fixed_dt:g} is beyond the stability bound {bound:.3g} at step {step}, t = {t:.6g}; "
                "choose a smaller dt, or leave it out so that steps follow the flow"
            )
        return self.fixed_dt

    def reference(self, moved: float, dt: float) -> float:
        """The mass that errors of a step are measured against."""
        return max(moved, QUIET_RATE * dt, ROUND_OFF_MASS)

    def accept(self, moved: float, error: float, dt: float) -> bool:
        """Judge a step that moved the mass `moved` with the Heun-SSPRK3 difference `error` (both half L1 norms)."""
        if self.fixed_dt is not None:
            return True
        share = error / self.reference(moved, dt)
        estimate = (6 * share) ** 1.5 / 24
        ratio = (self.error_tolerance / estimate) ** (1 / 3) if estimate > 0 else math.inf
        if estimate <= self.error_tolerance:
            self.suggestion = dt * min(0.9 * ratio, GROWTH_LIMIT)
            self._age_refusal(dt)
            return True
        if self._refused is not None and share > self._refused[1] * dt / self._refused[0]:
            self.suggestion = self._refused[0]
            self._refused = None
            return True
        self.suggestion = dt * max(0.9 * ratio, 0.2)
        self.rejected += 1
        self._refused = (dt, share, 0)
        return False

    def _age_refusal(self, dt: float) -> None:
        """Forget the last refusal once a step as long has passed, or a few shorter ones."""
        if self._refused is not None:
            length, share, age = self._refused
            self._refused = (length, share, age + 1) if dt < length and age < MEMORY_OF_REFUSALS else None
