"""Weights that are constant from one layer to the next: what the solvers owe to their jumps.

Inside a layer nothing does work on the energy. Where the weights jump, E jumps with them at a fixed state, and the ledger
enters that jump as work of the weights. Layer k of a "step" path acts on [t_k, t_{k+1}); steps end where layers meet, so
that L layers of length h, taken in Euler steps of h, are exactly L transformer blocks (`sphereflow.transformer`).
"""

from sphereflow import energy
from sphereflow.attention import Heads
from sphereflow.movement_solver import MovementSolver
from sphereflow.particles import ParticleSolver
from sphereflow.simulation import FiniteVolumeSolver


class LayerJumps:
    """Mixed into a solver: `advance` that also enters the energy's jump between layers into the ledger."""

    def advance(self, target: float) -> None:
        """Take one step as the solver does."""
        before = self.path.piece_at(self.t)
        super().advance(target)
        if self.path.piece_at(self.t) != before:
            self.ledger.weight_work += self.energy - self._energy_under(before)


class LayeredDensity(LayerJumps, FiniteVolumeSolver):
    """Finite volumes under layers."""

    def _energy_under(self, piece):
        return energy.energy(self.operator(self.density, self.heads_at(self.t, piece)))


class LayeredTokens(LayerJumps, ParticleSolver):
    """Tokens under layers."""

    def _energy_under(self, piece):
        return self._evaluate(self.positions, self.t, piece).energy


class LayeredMovement(MovementSolver):
    """Minimising movements under layers: each step lies in one layer and minimises under its weights."""

    def advance(self, target: float) -> None:
        """Take one step, not beyond `target` nor beyond the end of the layer."""
        before = self.path.piece_at(self.t)
        super().advance(self.path.smooth_until(self.t, target))
        if self.path.piece_at(self.t) != before:
            spectrum, old = self._spectrum_of(self._heads_at(self.t)), self.energy
            self.energy = spectrum.energy(spectrum.coordinates(self.density))
            self.ledger.weight_work += self.energy - old

    def _heads_of_step(self, end: float) -> Heads:
        return self._heads_at(self.t)
