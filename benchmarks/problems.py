"""The densities, heads and cases that the benchmarks share."""

from pathlib import Path

import numpy as np

from sphereflow.attention import AttentionOperator, Heads
from sphereflow.case import load_case
from sphereflow.cells import cell_means
from sphereflow.grid import GaussGrid
from sphereflow.runs import build_solver
from sphereflow.transport import Transport

CASES = Path(__file__).parents[1] / "cases"
TOLERANCE = 1e-10


def clusters(grid: GaussGrid, kappa: float = 20.0) -> np.ndarray:
    """Node values of six von Mises-Fisher clusters at the vertices of an octahedron, turned off the axes."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    density = sum(np.exp(kappa * (sign * grid.points @ axis - 1)) for axis in turn for sign in (1, -1))
    return density / grid.integrate(density)


def random_heads(count: int, norm: float) -> Heads:
    """Frozen random symmetric matrices of a spectral norm, equal weights."""
    a = np.random.default_rng(1).normal(size=(count, 3, 3))
    a = a + a.transpose(0, 2, 1)
    a *= norm / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None]
    return Heads(a, np.full(count, 1 / count))


class Stage:
    """One right-hand side of the density equation on a grid, in the parts that it is made of."""

    def __init__(self, nlat: int, heads: int, norm: float = 2.0, backend: str = "auto", velocity: str = "attention"):
        self.grid = GaussGrid(nlat)
        self.heads = random_heads(heads, norm)
        self.operator = AttentionOperator(self.grid, velocity, -1, TOLERANCE, backend)
        self.mover = Transport(self.grid)
        self.density = self.mover.reconcile(cell_means(self.grid, clusters(self.grid)))
        self.velocity = self.operator(self.density, self.heads).face_velocity
        self.dt = self.mover.step_bound(*self.velocity, 0.3)

    def potential(self):
        """The nonlocal part: mobilities and the potential, to its values at the nodes."""
        return self.operator(self.density, self.heads).potential.values

    def face_velocity(self):
        """The nonlocal part, and the velocities at the faces."""
        return self.operator(self.density, self.heads).face_velocity

    def transport(self):
        """The local part: fluxes, limiters, divergence and the merged cells, with the velocities given."""
        change = self.mover.tendency(self.density, *self.velocity, self.dt)
        return self.mover.reconcile(self.density + self.dt * change)

    def whole(self):
        """The right-hand side and the forward Euler stage with it."""
        change = self.mover.tendency(self.density, *self.face_velocity(), self.dt)
        return self.mover.reconcile(self.density + self.dt * change)


def octahedron(**overrides):
    """The solver of the case octahedron_oscillating.toml with other settings, keys with __ for the dot."""
    changes = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    return build_solver(load_case(CASES / "octahedron_oscillating.toml", changes))
