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
from sphereflow.faces import joined, separate
from sphereflow.heads import WeightPath
from sphereflow.passes import difference, extremes, mass_carried, masses
from sphereflow.prediction import VelocityHistory
from sphereflow.stepping import StepController, StepResult, arrival, integral_over_step, ssprk3_step, steps_to
from sphereflow.transport import Transport

NEGATIVE_TOLERANCE = 1e-14  # of the largest density
PAST_STEPS = 2  # whose rates, besides those of the step at hand, the ledger's integrals use


@dataclass(frozen=True)
class _Step:
    """A step that was tried.

    Attributes
    ----------
    dt, end, moved, error : float
        Its length, the time at its end, the mass that it moved and that of the error estimate.
    rates : ndarray, shape (5,)
        Rates of the ledger at its beginning: `_present_rates` and P.
    fields : AttentionFields or None
        The fields at its end, where its velocities were predicted.
    level_before : dict or None
        The operator's levels before these.
    """

    result: StepResult
    dt: float
    end: float
    moved: float
    error: float
    rates: np.ndarray
    fields: AttentionFields | None = None
    level_before: dict | None = None


@dataclass
class FiniteVolumeSolver:
    """A density that moves by finite volumes and SSPRK3 under the heads of a weight path.

    Under error control the velocities of the second and third stage are predicted (`sphereflow.prediction`) where the error of
    this, measured at the end of every step, stays below the tolerance; otherwise the model is evaluated there too.

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
    forced : {"predicted", "corrected"}, optional
        Make every step so, once the past allows it, whatever the error: for tests of the order.
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
    forced: str | None = None
    _fields: AttentionFields | None = field(default=None, repr=False)
    _level_before: dict = field(default_factory=dict, repr=False)
    _known_rates: tuple[AttentionFields, np.ndarray] | None = field(default=None, repr=False)
    _past: list[tuple[float, np.ndarray]] = field(default_factory=list, repr=False)
    _velocities: VelocityHistory = field(default_factory=VelocityHistory, repr=False)

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
        moved = self.transport.stage_rate(fields.density, tendency, dt)
        power = self._present_rates()[0] if fields is self._fields else energy.weight_power(fields)
        return tendency, np.array([power, energy.dissipation(fields, moved)])

    def _present_rates(self) -> np.ndarray:
        """`_ledger_rates` at the present state, computed once."""
        fields = self.fields
        if self._known_rates is None or self._known_rates[0] is not fields:
            self._known_rates = fields, self._ledger_rates(fields, self._interval)
        return self._known_rates[1]

    def _ledger_rates(self, fields: AttentionFields, interval: int | None) -> np.ndarray:
        """Rates at the present time: work of the weights, G^2 and, under noise, drift and Ito parts."""
        rates, path = np.zeros(4), self.path
        rates[0] = energy.weight_power(fields)
        rates[1] = energy.metric_speed_squared(fields)
        if path.noise_var > 0:
            rates[2] = energy.drift_power(fields, path.drift_at(self.t, interval))
            rates[3] = energy.ito_power(fields, path.noise_var)
        return rates

    def _rates_at_end(self, interval: int | None) -> np.ndarray:
        """Rates at the end of a step within a piece of the path: where the weights jump there, those before the jump count."""
        if self.path.interpolation != "step" or self.path.piece_at(self.t) == interval:
            return self._present_rates()
        return self._ledger_rates(self.operator(self.density, self.heads_at(self.t, interval)), interval)

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
                self._velocities.remember(self.t, joined(*self.fields.face_velocity))
            while True:
                dt = steps_to(self.t, target, self.controller.choose(self._step_bound, self.t, self.step))
                step = self._try_step(dt, arrival(self.t, dt, target))
                if not math.isfinite(step.moved) or self.controller.accept(step.moved, step.error, dt):
                    break
            self._accept(step)

    def _same_piece(self, end: float) -> bool:
        """Whether the path is smooth from the present time to beyond `end`."""
        return self.path.piece_at(end) == self._interval

    @property
    def _predicts(self) -> bool:
        """Whether predictions are to be considered: with a fixed step nothing holds their error below a tolerance."""
        return self.forced is not None or self.controller.fixed_dt is None

    def _try_step(self, dt: float, end: float) -> _Step:
        """A step with predicted velocities where that is accurate enough, or else with the model evaluated in every stage."""
        first, plan = self._rates(self.fields, dt), None
        if self._same_piece(end) and self._predicts and self._velocities.is_full:
            plan = self.forced or self._velocities.plan(dt, self.controller.error_tolerance)
        step = self._predicted_step(dt, end, first, plan) if plan else None
        return self._evaluated_step(dt, end, first) if step is None else step

    def _evaluated_step(self, dt: float, end: float, first: tuple) -> _Step:
        """A step with the model evaluated in every stage; the dissipation is integrated along with it."""
        interval, staged = self._interval, self._is_staged(end)

        def rhs(density, t):
            self._check(density)
            self.evaluations += 1
            return self._rates(self.operator(density, self.heads_at(t, interval, staged)), dt)

        return self._made(ssprk3_step(self.density, self.t, dt, rhs, self.transport.reconcile, first), dt, end, first)

    def _predicted_step(self, dt: float, end: float, first: tuple, plan: str) -> _Step | None:
        """A step with velocities from the past, corrected if planned or else if need be; None if it is not accurate enough.

        The model is evaluated at the end of the step, where an accepted step needs it anyway. What the velocities used are off
        there, carried by the density, is compared with the mass that the step moved, as the error of the step itself is.
        """
        velocities, error, tolerance = self._velocities, 0.0, math.inf if self.forced else self.controller.error_tolerance

        def rhs(density, t):
            self._check(density)
            velocity = at_end if t == self.t + dt else velocities.at(t)
            return self.transport.tendency(density, *self._separate(velocity), dt), np.zeros(2)

        for kind in ("predicted", "corrected"):
            at_end = velocities.at(end)
            result = ssprk3_step(self.density, self.t, dt, rhs, self.transport.reconcile, first)
            self._check(result.state)
            level_before = dict(self.operator.level)
            final = kind == plan or kind == "corrected"  # otherwise the work of the weights is not asked for
            fields = self.operator(result.state, self.heads_at(end, self._interval, final))
            self.evaluations += 1
            step = self._made(result, dt, end, first, fields, level_before)
            missed = self._missed(at_end, fields, step)
            if kind == "predicted":
                error = velocities.prediction_share * missed
                self._velocities.last = dt, error
            else:
                error = velocities.interpolation_share * error / velocities.prediction_share + velocities.end_share * missed
            if final and error <= tolerance:
                return step
            velocities = velocities.with_end(end, joined(*fields.face_velocity))
        return None

    def _made(self, result: StepResult, dt: float, end: float, first: tuple, *more) -> _Step:
        rates = np.append(self._present_rates(), first[1][1])
        area = self.operator.grid.cell_area
        return _Step(result, dt, end, *masses(result.state, result.middle, self.density, area), rates, *more)

    def _missed(self, predicted: np.ndarray, fields: AttentionFields, step: _Step) -> float:
        """Mass that the velocities at the end of a step carry in it beyond the predicted ones, over the mass that it moved."""
        missed = self._separate(difference(joined(*fields.face_velocity), predicted))
        rate = self._advection.tendency(fields.density, *missed, 0.0)
        carried = mass_carried(rate, self.operator.grid.cell_area)
        return step.dt * carried / self.controller.reference(step.moved, step.dt)

    def _is_staged(self, end: float) -> bool:
        """Whether the work of the weights up to `end` is integrated along with the stages: too few ends of steps are known."""
        return len(self._past) < PAST_STEPS or not self._same_piece(end)

    def _accept(self, step: _Step) -> None:
        """Go to the end of a step: state, ledger, and what later steps want to know of it."""
        predicted, staged, same_piece = step.fields is not None, self._is_staged(step.end), self._same_piece(step.end)
        interval = self._interval
        self.density, self.t, self.dt, self.step = step.result.state, step.end, step.dt, self.step + 1
        self._fields, self._level_before = step.fields, step.level_before or {}
        self._check(self.density)
        self.evaluations += not predicted
        lengths, rates = zip(*self._past, (step.dt, step.rates), strict=True)
        last = self._rates(self.fields, step.dt)[1][1] if predicted else 0.0
        *integrals, dissipated = integral_over_step(lengths, [*rates, np.append(self._rates_at_end(interval), last)])
        if staged:
            integrals[0] = step.result.integrals[0]
        self.ledger.add(dissipated if predicted else step.result.integrals[1], *integrals)
        if not same_piece:
            self._past = []
            self._velocities.forget()
            return
        self._past = [*self._past, (step.dt, step.rates)][-PAST_STEPS:]
        if self._velocities.is_full and not predicted:
            missed = self._missed(self._velocities.at(step.end), self.fields, step)
            self._velocities.last = step.dt, self._velocities.prediction_share * missed

    def _separate(self, velocity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """East and south faces of velocities that are joined to one vector."""
        return separate(velocity, self.operator.grid.shape)

    def _check(self, density: np.ndarray) -> None:
        """Stop the run at a non-finite or negative density, of a step or of a stage of it."""
        low, high = extremes(density)
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
            **self._velocities.state(),
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
        self._past = []
        self._velocities.forget()
        if state["piece"] == self._interval:
            self._past = [(float(row[0]), np.array(row[1:])) for row in state["past_steps"]]
            self._velocities.restore(state)
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
