"""Runs: the finite-volume solver's state and step, and the loop over records that drives any solver.

A solver has `t`, `step`, `dt`, `advance(target)` and `snapshot()`. The loop knows no file format: records go to an observer.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sphereflow import energy
from sphereflow.attention import AttentionFields, AttentionOperator, Heads
from sphereflow.diagnostics import DensitySnapshot
from sphereflow.energy import Ledger
from sphereflow.errors import NumericalError
from sphereflow.heads import WeightPath
from sphereflow.stepping import StepController, arrival, integral_over_step, ssprk3_step, steps_to
from sphereflow.transport import Transport

NEGATIVE_TOLERANCE = 1e-14  # of the largest density
PAST_STEPS = 2  # whose rates, besides those of the step at hand, the ledger's integrals use


@dataclass
class FiniteVolumeSolver:
    """A density that moves by finite volumes and SSPRK3 under the heads of a weight path.

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
    _fields: AttentionFields | None = field(default=None, repr=False)
    _level_before: dict = field(default_factory=dict, repr=False)
    _known_rates: tuple[AttentionFields, np.ndarray] | None = field(default=None, repr=False)
    _past: list[tuple[float, np.ndarray]] = field(default_factory=list, repr=False)

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
        self.evaluations += 1
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
            interval, before = self._interval, self._present_rates()
            while True:
                dt = steps_to(self.t, target, self.controller.choose(self._step_bound, self.t, self.step))
                end = arrival(self.t, dt, target)
                same_piece = self.path.piece_at(end) == interval
                staged = len(self._past) < PAST_STEPS or not same_piece
                result = self._try_step(dt, interval, staged)
                area = self.operator.grid.cell_area
                moved = 0.5 * np.abs(result.state - self.density).sum(axis=1) @ area
                error = 0.5 * np.abs(result.error).sum(axis=1) @ area
                if self.controller.accept(moved, error, dt) or not math.isfinite(moved):
                    break
            self.density, self.t, self.dt, self.step = result.state, end, dt, self.step + 1
            self._fields = None
            self._check(self.density)
            lengths, rates = zip(*self._past, (dt, before), strict=True)
            integrals = integral_over_step(lengths, [*rates, self._present_rates()])
            if staged:
                integrals[0] = result.integrals[0]
            self._past = [*self._past, (dt, before)][-PAST_STEPS:] if same_piece else []
            self.ledger.add(result.integrals[1], *integrals)

    def _try_step(self, dt: float, interval: int | None, staged: bool):
        """A step; with `staged` the work of the weights is integrated along with its stages."""

        def rhs(density, t):
            self._check(density)
            return self._rates(self.operator(density, self.heads_at(t, interval, staged)), dt)

        return ssprk3_step(
            self.density, self.t, dt, rhs, self.transport.reconcile, first=self._rates(self.fields, dt)
        )

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
            "past_steps": np.array([[length, *rates] for length, rates in self._past]).reshape(-1, 5),
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
        past = state["past_steps"] if state["piece"] == self._interval else ()
        self._past = [(float(row[0]), np.array(row[1:])) for row in past]
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
