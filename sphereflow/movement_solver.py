"""A run by minimising movements: the state, the choice of the step's length, the ledger.

Steps end on record times and need no other: of the weight path a step sees its end alone, and the work of the weights
is the jump of the energy from the old weights to the new ones. After it the energy changes by the movement, whose cost
W^2/(2 tau) stands for half the integral of G^2; the ledger's integral of P = -s G^2 is -s times twice the cost, and
`edi_residual` what the first order of the scheme adds to it.
"""

from dataclasses import dataclass, field

import numpy as np

from sphereflow import energy
from sphereflow.attention import AttentionFields, AttentionOperator, Heads
from sphereflow.diagnostics import DensitySnapshot
from sphereflow.energy import Ledger
from sphereflow.errors import ConvergenceError
from sphereflow.heads import WeightPath
from sphereflow.movement import DualProblem, KernelSpectrum, Movement, StepSettings, cell_graph, minimise
from sphereflow.stepping import arrival, steps_to
from sphereflow.transport import Transport

QUICK = 5  # Newton iterations below which a shortened step grows again
GROWTH = 1.2
SHORTEST = 2.0**-10  # of solver.tau: a step that fails at this length ends the run


class MovementSnapshot(DensitySnapshot):
    """An instant of a run by minimising movements, with the account of the last step.

    Parameters
    ----------
    energy : float
        E, as the steps have it.
    movement : Movement or None
        The last step; None at t = 0.
    smallest_slack : float
        Of all steps so far.
    halvings : int
        Steps that failed and were repeated with half the length.
    **state
        Arguments of `DensitySnapshot`.
    """

    def __init__(self, energy, movement, smallest_slack, halvings, **state):
        super().__init__(**state)
        self.energy = energy
        self.movement_cost = movement.cost if movement else 0.0
        self.movement_slack = movement.slack if movement else 0.0
        self.newton_iterations = movement.iterations if movement else 0
        self.smallest_slack, self.halvings = smallest_slack, halvings


@dataclass
class MovementSolver:
    """A density that moves by minimising movements under the heads of a weight path.

    Parameters
    ----------
    operator : AttentionOperator
        With `two_point` set.
    path : WeightPath
    density : ndarray, shape (nlat, nlon)
        Cell values at the present time, >= 0.
    tau : float
        Largest step.
    settings : StepSettings

    Attributes
    ----------
    t, dt, step : float, float, int
        Present time, last step's length, number of steps.
    ledger : Ledger
    suggestion : float
        Step length for the next step: tau, or less after a failure.
    movement : Movement or None
        The last step.
    """

    operator: AttentionOperator
    path: WeightPath
    density: np.ndarray
    tau: float
    settings: StepSettings = field(default_factory=StepSettings)
    t: float = 0.0
    dt: float = 0.0
    step: int = 0
    ledger: Ledger | None = None
    suggestion: float | None = None
    movement: Movement | None = None
    smallest_slack: float = 0.0
    halvings: int = 0
    energy: float | None = None
    _fields: AttentionFields | None = field(default=None, repr=False)
    _level_before: dict = field(default_factory=dict, repr=False)
    _spectrum: KernelSpectrum | None = field(default=None, repr=False)

    def __post_init__(self):
        density = np.maximum(self.density, 0.0)  # other solvers may leave negative values of the size of rounding
        integrate = self.operator.grid.integrate
        self.density = density * (integrate(self.density) / integrate(density))
        if self.suggestion is None:
            self.suggestion = self.tau
        if self.energy is None:
            spectrum = self._spectrum_of(self._heads_at(self.t))
            self.energy = spectrum.energy(spectrum.coordinates(self.density))
        if self.ledger is None:
            self.ledger = Ledger(initial_energy=self.energy)

    @property
    def mass(self) -> float:
        """Total mass."""
        return float(self.operator.grid.integrate(self.density))

    @property
    def fields(self) -> AttentionFields:
        """The model's fields at the present state, computed once."""
        if self._fields is None:
            self._level_before = dict(self.operator.level)
            self._fields = self.operator(self.density, self._heads_at(self.t))
        return self._fields

    def _heads_at(self, t: float) -> Heads:
        return Heads.on_path(self.path, t)

    def _spectrum_of(self, heads: Heads) -> KernelSpectrum:
        """The kernel's spectrum; that of the last heads is kept, so that frozen heads have theirs computed once."""
        if self._spectrum is None or not np.array_equal(self._spectrum.logits, heads.logits):
            o = self.operator
            self._spectrum = KernelSpectrum(o.grid, heads.logits, heads.weight, o.tolerance, o.backend, o.nthreads)
        return self._spectrum

    def advance(self, target: float) -> None:
        """Take one step, not beyond `target`, of the largest length that can be solved.

        Raises
        ------
        ConvergenceError
            If a step of 1/1024 of `tau` fails too.
        """
        before = self._noise_rates()
        while True:
            tau = steps_to(self.t, target, self.suggestion)
            try:
                movement = self._try_step(tau, arrival(self.t, tau, target))
                break
            except ConvergenceError as error:
                self._shorten(tau, error)
        self.density, self.movement = movement.density, movement
        self.dt, self.step, self.t = tau, self.step + 1, arrival(self.t, tau, target)
        self._fields = None
        self.smallest_slack = movement.slack if self.step == 1 else min(self.smallest_slack, movement.slack)
        if movement.iterations < QUICK:
            self.suggestion = min(self.tau, GROWTH * self.suggestion)
        self._settle(movement, before)

    def _heads_of_step(self, end: float) -> Heads:
        """The weights under which a step that ends at a time minimises: those at its end, as the scheme is implicit."""
        return self._heads_at(end)

    def _try_step(self, tau: float, end: float) -> Movement:
        operator, heads = self.operator, self._heads_of_step(end)
        graph = cell_graph(operator.grid)
        conductance = graph.conductance(operator(self.density, heads).effective_mobility)
        problem = DualProblem(
            graph,
            conductance,
            self.density,
            tau,
            self._spectrum_of(heads),
            operator.direction,
            self.settings.inner_steps,
        )
        return minimise(problem, self.settings)

    def _shorten(self, tau: float, error: ConvergenceError) -> None:
        """Halve the step after a failure, or give up."""
        if tau <= SHORTEST * self.tau:
            raise ConvergenceError(
                f"the minimising movement of step {self.step + 1} at t = {self.t:.6g} could not be solved, not even "
                f"with a length of {tau:.3g}: {error}; if the residuals stay near rounding, solver.newton_tolerance = "
                f"{self.settings.tolerance:g} is too small, if they still fall, allow more than solver.newton_limit = "
                f"{self.settings.limit}; else try a smaller solver.tau or a finer grid"
            ) from error
        self.suggestion = tau / 2
        self.halvings += 1

    def _settle(self, movement: Movement, before) -> None:
        """Enter a step into the ledger."""
        ledger = self.ledger
        ledger.weight_work += movement.energy_before - self.energy
        ledger.dissipation_integral -= self.operator.direction * 2 * movement.cost
        ledger.metric_speed_integral += 2 * movement.cost
        self.energy = movement.energy
        if before is not None:
            drift, ito = 0.5 * self.dt * (before + self._noise_rates())
            ledger.weight_drift += drift
            ledger.weight_ito += ito

    def _noise_rates(self) -> np.ndarray | None:
        """Work of the drift and Ito rate of noisy weights, integrated by the trapezoidal rule."""
        path, fields = self.path, self.fields
        if path.noise_var == 0:
            return None
        return np.array([energy.drift_power(fields, path.drift_at(self.t)), energy.ito_power(fields, path.noise_var)])

    def state(self) -> dict:
        """Everything `restore` needs to go on bit for bit: arrays and plain values by name."""
        last = self.movement and {name: value for name, value in vars(self.movement).items() if name != "density"}
        return {
            "density": self.density,
            "t": float(self.t),
            "dt": float(self.dt),
            "step": self.step,
            "suggestion": float(self.suggestion),
            "smallest_slack": float(self.smallest_slack),
            "halvings": self.halvings,
            "energy": float(self.energy),
            "ledger": self.ledger.state(),
            "movement": last,
            **self.operator.level_state(self._fields, self._level_before),
        }

    def restore(self, state: dict) -> None:
        """Take up the state of another solver of the same case."""
        self.density, last = np.array(state["density"]), state["movement"]
        for name in ("t", "dt", "step", "suggestion", "smallest_slack", "halvings", "energy"):
            setattr(self, name, state[name])
        self.ledger = Ledger(**state["ledger"])
        self.movement = last and Movement(**{**last, "density": self.density, "residuals": tuple(last["residuals"])})
        self._fields = None
        self.operator.restore_level(state, lambda: self.fields)

    def snapshot(self) -> MovementSnapshot:
        """The present state for the record; its tendency is that of the scheme for infinitely short steps."""
        fields = self.fields
        tendency = Transport(self.operator.grid, "two-point").tendency(self.density, *fields.face_velocity, 0.0)
        return MovementSnapshot(
            self.energy, self.movement, self.smallest_slack, self.halvings,
            fields=fields, tendency=tendency, ledger=self.ledger, t=self.t, dt=self.dt, step=self.step,
            weight_variation=self.path.variation(self.t),
        )  # fmt: skip
