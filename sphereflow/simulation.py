"""Runs: the finite-volume solver's state and step, and the loop over records that drives any solver.

A solver has `t`, `step`, `dt`, `advance(target)` and `snapshot()`. The loop knows no file format: records go to an observer.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sphereflow import energy
from sphereflow.attention import AttentionFields, AttentionOperator, Heads
from sphereflow.diagnostics import DensitySnapshot
from sphereflow.energy import Ledger
from sphereflow.errors import NumericalError
from sphereflow.heads import WeightPath
from sphereflow.stepping import StepController, StepHistory, StepResult, arrival, integral_over_step, ssprk3_step, steps_to
from sphereflow.transport import Transport

NEGATIVE_TOLERANCE = 1e-14  # of the largest density
PAST_STEPS = 2  # whose rates, besides those of the step at hand, the ledger's integrals use
PREDICTION_POINTS = 4  # instants from which velocities are predicted
PREDICTION_MARGIN = 0.7  # share of the tolerance that a predicted step may be expected to use up


@dataclass
class _Step:
    """A step that was tried."""

    dt: float
    end: float
    same_piece: bool
    staged: bool
    predicted: bool
    predicted_velocity: np.ndarray | None  # at its end, where the past allows
    rates: np.ndarray  # at its beginning
    result: StepResult
    fields: AttentionFields | None = None  # at its end, where they confirmed a prediction
    level_before: dict = field(default_factory=dict)


@dataclass
class FiniteVolumeSolver:
    """A density that moves by finite volumes and SSPRK3 under the heads of a weight path.

    Under error control the velocities of the second and third stage are predicted from those at the last instants wherever
    the error of this, measured at the end of every step, stays below the tolerance; otherwise the model is evaluated there too.

    Parameters
    ----------
    operator : AttentionOperator
    transport : Transport
    path : WeightPath
    controller : StepController
    density : ndarray, shape (nlat, nlon)
        At the present time, as left by `Transport.reconcile`.

    Attributes
    ----------
    t, dt, step : float, float, int
        Present time, last step's length, number of steps.
    ledger : Ledger
    evaluations : int
        How often the model was evaluated since t = 0, at the ends of steps and in their stages.
    always_predict : bool
        Predict the velocities of stages whatever the error, for tests of the order.
    """

    operator: AttentionOperator
    transport: Transport
    path: WeightPath
    controller: StepController
    density: np.ndarray
    t: float = 0.0
    dt: float = 0.0
    step: int = 0
    ledger: Ledger | None = None
    evaluations: int = 0
    always_predict: bool = False
    _fields: AttentionFields | None = field(default=None, repr=False)
    _level_before: dict = field(default_factory=dict, repr=False)
    _known_rates: tuple[AttentionFields, np.ndarray] | None = field(default=None, repr=False)
    _past: list[tuple[float, np.ndarray]] = field(default_factory=list, repr=False)
    _history: StepHistory = field(default_factory=lambda: StepHistory(PREDICTION_POINTS), repr=False)
    _prediction: tuple[float, float] | None = field(default=None, repr=False)

    def __post_init__(self):
        self.density = self.transport.reconcile(np.array(self.density, dtype=float))
        if self.ledger is None:
            self.ledger = Ledger(initial_energy=energy.energy(self.fields))

    def heads_at(self, t: float, interval: int | None, moving: bool = True) -> Heads:
        """The weights at a time, seen from one smooth piece of the path; without their rate unless `moving`."""
        return Heads.on_path(self.path, t, interval, moving)

    @property
    def fields(self) -> AttentionFields:
        """The model's fields at the present state, computed once."""
        if self._fields is None:
            self._level_before = dict(self.operator.level)
            self._fields = self.operator(self.density, self.heads_at(self.t, self._interval))
        return self._fields

    @property
    def energy(self) -> float:
        """E at the present time."""
        return energy.energy(self.fields)

    @property
    def mass(self) -> float:
        """Total mass."""
        return float(self.operator.grid.integrate(self.density))

    @cached_property
    def _advection(self) -> Transport:
        """The transport without its diffusion."""
        return replace(self.transport, diffusion=0.0) if self.transport.diffusion > 0 else self.transport

    @property
    def _interval(self) -> int | None:
        """The smooth piece of the weight path that begins at (or holds) the present time."""
        return self.path.piece_at(self.t)

    def _step_bound(self, cfl: float) -> float:
        return self.transport.step_bound(*self.fields.face_velocity, cfl)

    def _rates(self, fields: AttentionFields, dt: float) -> tuple[np.ndarray, np.ndarray]:
        """The tendency and the ledger's rates (work of the weights, dissipation) of one stage.

        The dissipation counts the limiter of the merged polar cells too, as it acts on a forward-Euler stage: where it is
        idle the stage moves by the tendency itself.
        """
        tendency = self.transport.tendency(fields.density, *fields.face_velocity, dt)
        moved = (self.transport.reconcile(fields.density + dt * tendency) - fields.density) / dt
        power = self._present_rates()[0] if fields is self._fields else energy.weight_power(fields)
        return tendency, np.array([power, energy.dissipation(fields, moved)])

    def _present_rates(self) -> np.ndarray:
        """Rates of the ledger at the present state: work of the weights, G^2 and, under noise, drift and Ito parts."""
        fields, path = self.fields, self.path
        if self._known_rates is not None and self._known_rates[0] is fields:
            return self._known_rates[1]
        rates = np.zeros(4)
        rates[0] = energy.weight_power(fields)
        rates[1] = energy.metric_speed_squared(fields)
        if path.noise_var > 0:
            rates[2] = energy.drift_power(fields, path.drift_at(self.t, self._interval))
            rates[3] = energy.ito_power(fields, path.noise_var)
        self._known_rates = fields, rates
        return rates

    def advance(self, target: float) -> None:
        """Take one accepted step, not beyond `target` nor beyond the next kink of the weight path.

        Raises
        ------
        NumericalError
            If the density becomes non-finite or negative, or a fixed step is unstable.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            target = self.path.smooth_until(self.t, target)
            if self._predicts:
                self._history.remember(self.t, self._joined_velocity(self.fields))
            while True:
                dt = steps_to(self.t, target, self.controller.choose(self._step_bound, self.t, self.step))
                step = self._try_step(dt, arrival(self.t, dt, target))
                moved = self._mass(step.result.state - self.density)
                if not math.isfinite(moved):
                    break
                if step.predicted and not self._is_confirmed(step, moved):
                    continue
                if self.controller.accept(moved, self._mass(step.result.error), dt):
                    break
            self._accept(step, moved)

    def _try_step(self, dt: float, end: float) -> "_Step":
        """A step with the model evaluated in every stage or, where that is accurate enough, with predicted velocities.

        In a predicted step the work of the weights and the dissipation follow from their rates at the ends of steps; in others
        the dissipation is integrated along with the stages, and so is the work (`staged`) while few ends are known.
        """
        interval = self._interval
        same_piece = self.path.piece_at(end) == interval
        staged = len(self._past) < PAST_STEPS or not same_piece
        predicted = same_piece and self._may_predict(dt)
        first = self._rates(self.fields, dt)

        def evaluated(density, t):
            self._check(density)
            self.evaluations += 1
            return self._rates(self.operator(density, self.heads_at(t, interval, staged)), dt)

        at_end = self._history.at(end) if same_piece and self._history.is_full else None

        def from_history(density, t):
            self._check(density)
            velocity = at_end if t == self.t + dt else self._history.at(t)
            return self.transport.tendency(density, *self._separate(velocity), dt), np.zeros(2)

        rhs = from_history if predicted else evaluated
        result = ssprk3_step(self.density, self.t, dt, rhs, self.transport.reconcile, first)
        rates = np.append(self._present_rates(), first[1][1])
        return _Step(dt, end, same_piece, staged, predicted, at_end, rates, result)

    def _accept(self, step: "_Step", moved: float) -> None:
        """Go to the end of a step: state, ledger, and what later steps want to know of it."""
        self.density, self.t, self.dt, self.step = step.result.state, step.end, step.dt, self.step + 1
        self._fields = None
        self._check(self.density)
        if step.predicted:
            self._fields, self._level_before = step.fields, step.level_before
        else:
            self.evaluations += 1
        lengths, rates = zip(*self._past, (step.dt, step.rates), strict=True)
        last = self._rates(self.fields, step.dt)[1][1] if step.predicted else 0.0
        *integrals, dissipated = integral_over_step(lengths, [*rates, np.append(self._present_rates(), last)])
        if step.staged:
            integrals[0] = step.result.integrals[0]
        self.ledger.add(dissipated if step.predicted else step.result.integrals[1], *integrals)
        if not step.same_piece:
            self._past, self._prediction = [], None
            self._history.forget()
            return
        self._past = [*self._past, (step.dt, step.rates)][-PAST_STEPS:]
        if step.predicted_velocity is not None and not step.predicted:
            self._prediction = step.dt, self._prediction_error(self.fields, step, moved)

    @property
    def _predicts(self) -> bool:
        """Whether predicted steps are to be considered: with a fixed step nothing holds their error below a tolerance."""
        return self.always_predict or self.controller.fixed_dt is None

    def _may_predict(self, dt: float) -> bool:
        """Whether velocities predicted for a step of length dt are expected to be accurate enough."""
        if self.always_predict or not self._history.is_full:
            return self._history.is_full
        if self._prediction is None:
            return False
        length, error = self._prediction
        return error * (dt / length) ** self._history.points <= PREDICTION_MARGIN * self.controller.error_tolerance

    def _is_confirmed(self, step: "_Step", moved: float) -> bool:
        """Whether the velocities found at the end of a predicted step are close enough to the predicted ones.

        If so, the fields evaluated for this are those of the step's end.
        """
        self.evaluations += 1
        step.level_before = dict(self.operator.level)
        step.fields = self.operator(step.result.state, self.heads_at(step.end, self._interval))
        error = self._prediction_error(step.fields, step, moved)
        self._prediction = step.dt, error
        return self.always_predict or error <= self.controller.error_tolerance

    def _prediction_error(self, fields: AttentionFields, step: "_Step", moved: float) -> float:
        """Error of a predicted step, whether or not it was one, relative to the mass that the step moved.

        From the velocities found at its end and those predicted, whose difference is let carry the density.
        """
        difference = self._joined_velocity(fields) - step.predicted_velocity
        lost = self._mass(self._advection.tendency(fields.density, *self._separate(difference), 0.0)) * step.dt
        return self._history.share * lost / self.controller.reference(moved, step.dt)

    def _joined_velocity(self, fields: AttentionFields) -> np.ndarray:
        """The velocities at all faces as one vector."""
        return np.concatenate([part.ravel() for part in fields.face_velocity])

    def _separate(self, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The inverse of `_joined_velocity`: east and south faces."""
        nlat, nlon = self.operator.grid.shape
        return velocity[: nlat * nlon].reshape(nlat, nlon), velocity[nlat * nlon :].reshape(nlat + 1, nlon)

    def _mass(self, change: np.ndarray) -> float:
        """The mass that a change of the density moves."""
        return float(0.5 * np.abs(change).sum(axis=1) @ self.operator.grid.cell_area)

    def _check(self, density: np.ndarray) -> None:
        """Stop the run at a non-finite or negative density, of a step or of a stage of it."""
        low, high = density.min(), density.max()
        if math.isfinite(low) and math.isfinite(high) and low >= -NEGATIVE_TOLERANCE * high:
            return
        bad = ~np.isfinite(density)
        where = np.argmax(bad) if bad.any() else np.argmin(density)
        i, j = np.unravel_index(where, density.shape)
        latitude = 90 - np.degrees(self.operator.grid.colatitude[i])
        longitude = np.degrees(self.operator.grid.longitude[j])
        raise NumericalError(
            f"the density became {density[i, j]:.3e} at step {self.step}, t = {self.t:.6g}, cell ({i}, {j}) "
            f"(latitude {latitude:.2f}, longitude {longitude:.2f} degrees); try a smaller solver.cfl or a finer grid"
        )

    def state(self) -> dict:
        """Everything `restore` needs to go on bit for bit: arrays and plain values by name."""
        return {
            "density": self.density,
            "t": float(self.t),
            "dt": float(self.dt),
            "step": self.step,
            "evaluations": self.evaluations,
            "ledger": self.ledger.state(),
            "controller": self.controller.state(),
            "piece": self._interval,
            "past_steps": np.array([[length, *rates] for length, rates in self._past]).reshape(-1, 6),
            "past_times": self._history.times[-PREDICTION_POINTS + 1 :],
            "past_velocities": np.array(self._history.values[-PREDICTION_POINTS + 1 :]),
            "prediction": self._prediction,
            **self.operator.level_state(self._fields, self._level_before),
        }

    def restore(self, state: dict) -> None:
        """Take up the state of another solver of the same case."""
        self.density = np.array(state["density"])
        self.t, self.dt, self.step = state["t"], state["dt"], state["step"]
        self.evaluations = state["evaluations"]
        self.ledger = Ledger(**state["ledger"])
        self.controller.restore(state["controller"])
        # in a run that is extended another piece of the path may begin where the old path ended
        self._past, self._prediction = [], None
        self._history.forget()
        if state["piece"] == self._interval:
            self._past = [(float(row[0]), np.array(row[1:])) for row in state["past_steps"]]
            self._prediction = None if state["prediction"] is None else tuple(state["prediction"])
            for t, velocity in zip(state["past_times"], state["past_velocities"], strict=True):
                self._history.remember(t, np.array(velocity))
        self._fields = self._known_rates = None
        self.operator.restore_level(state, lambda: self.fields)

    def snapshot(self) -> DensitySnapshot:
        """The present state for the record."""
        fields = self.fields
        tendency = self.transport.tendency(self.density, *fields.face_velocity, self.dt)
        return DensitySnapshot(
            fields, tendency, self.ledger, self.t, self.dt, self.step, self.path.variation(self.t)
        )


def record_times(t_end: float, every: float) -> np.ndarray:
    """0, every, 2 every, ..., and t_end."""
    count = math.floor(t_end / every * (1 + 1e-12))
    times = every * np.arange(count + 1)
    if times[-1] < t_end * (1 - 1e-12):
        return np.append(times, t_end)
    times[-1] = t_end
    return times


def run_to_end(solver, times: np.ndarray, on_step: Callable[[], None] = lambda: None) -> Iterator:
    """Advance a solver through the record times; yields its snapshot at each, `solver.t` itself included.

    Parameters
    ----------
    solver
        Any solver.
    times : ndarray
        Increasing record times; those before `solver.t` are skipped.
    on_step : callable
        Called after every step.
    """
    for target in times[times >= solver.t]:
        while solver.t < target:
            solver.advance(target)
            on_step()
        yield solver.snapshot()
