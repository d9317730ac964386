"""One minimising movement: the dual problem of a step, (6) and (7) of the package's docstring, and Newton's method."""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from sphereflow.errors import ConvergenceError
from sphereflow.movement import marching
from sphereflow.movement.graph import CellGraph
from sphereflow.movement.spectrum import KernelSpectrum

SUFFICIENT = 1e-4  # share of the linear gain that a damped step must reach
ROUNDING = 1e-12  # of the squared energy norm: smaller gains of the dual value may be rounding, the residual decides
SHORTEST = 2.0**-20  # damping below which a direction is given up


@dataclass(frozen=True)
class StepSettings:
    """How a step is solved.

    Attributes
    ----------
    tolerance : float
        Of the optimality residual in the energy norm, relative to that of the density; its square bounds the duality
        gap.
    limit : int
        Newton iterations after which the step has failed.
    inner_steps : int
        k, the number of linearised distances a movement is composed of.
    """

    tolerance: float = 1e-10
    limit: int = 40
    inner_steps: int = 1


@dataclass(frozen=True)
class Movement:
    """Result of a step.

    Attributes
    ----------
    density : ndarray, shape (nlat, nlon)
    cost : float
        W^2 / (2 tau), as discretised.
    energy_before, energy : float
        E of the old and of the new density, both at the step's weights.
    slack : float
        F(before) - F(after) - cost, F = -s E; not negative but for the duality gap and rounding.
    iterations : int
        Newton iterations; 0 if the whole energy is taken explicitly.
    gap : float
        Duality gap: the objective is within it of its minimum.
    residuals : tuple of float
        Relative residual before each iteration and at the end.
    """

    density: np.ndarray
    cost: float
    energy_before: float
    energy: float
    slack: float
    iterations: int
    gap: float
    residuals: tuple[float, ...]


@dataclass
class Level:
    """One linearised distance of a movement at given data: its potential, its matrix P and the density it leads to."""

    phi: np.ndarray
    order: np.ndarray
    rate: np.ndarray
    diagonal: np.ndarray
    density: np.ndarray = field(default=None)


class DualProblem:
    """The concave dual of one step.

    Parameters
    ----------
    graph : CellGraph
    conductance : ndarray, shape (N, 4)
        T of the faces.
    density : ndarray, shape (nlat, nlon)
        At the step's start, >= 0.
    tau : float
    spectrum : KernelSpectrum
        Of the weights at the step's end.
    direction : int
        s.
    inner_steps : int
    """

    def __init__(self, graph: CellGraph, conductance, density, tau, spectrum: KernelSpectrum, direction, inner_steps=1):
        self.graph, self.spectrum, self.direction, self.inner_steps = graph, spectrum, direction, inner_steps
        self.scaled = conductance * (tau / inner_steps)
        self.mass = density.ravel() * graph.area
        self.shape = density.shape
        sign = -direction * spectrum.eigenvalue  # F = 1/2 sum sign z^2
        self.sign = sign
        self.start = spectrum.coordinates(density)
        self.implicit = sign > 0
        self.root = np.sqrt(np.maximum(sign, 0.0))
        self.explicit_field = spectrum.field(np.where(self.implicit, 0.0, sign * self.start))
        self.scale = math.sqrt(np.abs(sign) @ self.start**2)

    def _potential(self, eta):
        return self.spectrum.field(self.root * eta)

    def _moment(self, density):
        return self.root * self.spectrum.coordinates(density.reshape(self.shape))

    def evaluate(self, eta: np.ndarray) -> "DualState":
        """Value, gradient and the primal density at a dual point eta (r,); zero where the energy is explicit."""
        data = (self._potential(eta) if self.implicit.any() else 0.0) + self.explicit_field
        graph, levels, data = self.graph, [], data.ravel()
        n = data.size
        for _ in range(self.inner_steps):  # from the movement's end back to its start
            phi, order, rate, diagonal = np.empty(n), np.empty(n, np.int64), np.empty((n, 4)), np.empty(n)
            marching.march(data, graph.neighbour, self.scaled, graph.area, phi, order)
            marching.outflow_rates(phi, graph.neighbour, self.scaled, graph.area, rate, diagonal)
            levels.append(Level(phi, order, rate, diagonal))
            data = phi
        levels.reverse()
        mass, cost = self.mass, 0.0
        for level in levels:
            level.density = np.empty(n)
            marching.downhill(mass, level.order, graph.neighbour, level.rate, level.diagonal, level.density)
            cost += marching.movement_cost(level.phi, level.density, graph.neighbour, level.rate)
            mass = level.density * graph.area
        value = float(self.mass @ levels[0].phi) - 0.5 * float(eta @ eta)
        return DualState(eta, levels, value, self._moment(levels[-1].density) - eta, cost)

    def curvature(self, state: "DualState", direction: np.ndarray) -> np.ndarray:
        """Minus the (generalised) second derivative of the dual value at a state, applied to a direction (r,)."""
        graph = self.graph
        x = self._potential(direction).ravel()
        changes = []
        for level in reversed(state.levels):
            right, x = x * graph.area, np.empty(x.size)
            marching.uphill(right, level.order, graph.neighbour, level.rate, level.diagonal, x)
            changes.append(x)
        change, flow = np.zeros(x.size), np.empty(x.size)
        for level, x in zip(state.levels, reversed(changes), strict=True):
            marching.stiffness(x, level.density, graph.neighbour, self.scaled, level.rate, flow)
            right, change = change * graph.area + flow, np.empty(x.size)
            marching.downhill(right, level.order, graph.neighbour, level.rate, level.diagonal, change)
        return direction + self._moment(change)


@dataclass
class DualState:
    """A dual point with all that was computed there."""

    eta: np.ndarray
    levels: list[Level]
    value: float
    gradient: np.ndarray
    cost: float

    @property
    def residual(self) -> float:
        """Norm of the gradient; half its square is the duality gap."""
        return float(np.linalg.norm(self.gradient))


def minimise(problem: DualProblem, settings: StepSettings) -> Movement:
    """Solve a step by Newton's method for its dual.

    Parameters
    ----------
    problem : DualProblem
    settings : StepSettings

    Returns
    -------
    Movement

    Raises
    ------
    ConvergenceError
        If the residual is not below the tolerance after the allowed number of iterations; the message has its history.
    """
    state = problem.evaluate(problem.root * problem.start)
    residuals = [state.residual / problem.scale]
    while not residuals[-1] <= settings.tolerance:
        if not math.isfinite(residuals[-1]):
            raise ConvergenceError("the density or the effective mobility is not finite")
        if len(residuals) > settings.limit:
            raise ConvergenceError(
                f"no convergence in {settings.limit} Newton iterations, residuals {history(residuals)}"
            )
        state = _newton_step(problem, state, residuals)
        residuals.append(state.residual / problem.scale)
    return _movement(problem, state, tuple(residuals))


def history(residuals) -> str:
    """Residuals as text."""
    return " ".join(f"{residual:.1e}" for residual in residuals)


def _newton_step(problem, state, residuals):
    """The next dual point: a Newton direction by conjugate gradients, damped until the dual value grows enough."""
    size = state.gradient.size
    matrix = LinearOperator((size, size), lambda v: problem.curvature(state, v), dtype=float)
    accuracy = min(max(residuals[-1], 1e-6), 1e-2)
    direction, _ = cg(matrix, state.gradient, rtol=accuracy, maxiter=200)
    slope, damping = float(state.gradient @ direction), 1.0
    small = ROUNDING * problem.scale**2
    while damping > SHORTEST:
        trial = problem.evaluate(state.eta + damping * direction)
        if damping * slope > small:
            better = trial.value - state.value >= SUFFICIENT * damping * slope
        else:
            better = trial.residual < state.residual
        if better:
            return trial
        damping /= 2
    raise ConvergenceError(
        f"no step along the Newton direction improves the dual value, residuals {history(residuals)}"
    )


def _movement(problem, state, residuals):
    density = state.levels[-1].density
    density = (density * (problem.mass.sum() / (density @ problem.graph.area))).reshape(problem.shape)  # rounding only
    before = (problem.mass / problem.graph.area).reshape(problem.shape)
    lost = problem.spectrum.coordinates(before - density)  # the difference first: slack is not lost to cancellation
    drop = 0.5 * float((problem.sign * lost) @ (2 * problem.start - lost))
    return Movement(
        density=density,
        cost=state.cost,
        energy_before=problem.spectrum.energy(problem.start),
        energy=problem.spectrum.energy(problem.spectrum.coordinates(density)),
        slack=drop - state.cost,
        iterations=len(residuals) - 1,
        gap=0.5 * state.residual**2,
        residuals=residuals,
    )
