r"""Tokens in time: explicit steps followed by normalisation, and the ledger along them.

With v(x) extended to R^d by v(x / |x|) the sphere is invariant, and a Runge-Kutta scheme of R^d keeps its order when
its stages are evaluated at, and its result is moved to, the nearest points of the sphere:

* `rk4`, the classical scheme of fourth order, solves the differential equation;
* `euler`, x <- (x + dt v)/|x + dt v|, is one layer of a transformer: residual connection, then RMS normalisation.

The integrals of the ledger (work of the weights, P, G^2) ride along with the scheme's own weights.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sphereflow.attention import Heads
from sphereflow.energy import Ledger
from sphereflow.errors import NumericalError
from sphereflow.heads import WeightPath
from sphereflow.particles.fields import TokenFields, TokenOperator
from sphereflow.stepping import arrival, steps_to
from sphereflow.variational import Inference

OFF_SPHERE = 1e-6  # of the length of a position; rounding is far below


class Tableau(NamedTuple):
    """An explicit Runge-Kutta scheme each of whose stages uses the one before only."""

    node: tuple[float, ...]
    weight: tuple[float, ...]


SCHEMES = {
    "rk4": Tableau((0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    "euler": Tableau((0.0,), (1.0,)),
}


@dataclass(frozen=True)
class ParticleSnapshot:
    """One instant of a particle run, as the variables of the output see it; fields delegate to `TokenFields`."""

    fields: TokenFields
    ledger: Ledger
    t: float
    dt: float
    step: int
    weight_variation: float

    @property
    def position(self) -> np.ndarray:
        """Unit vectors of the tokens, shape (n, d)."""
        return self.fields.measure.positions

    @property
    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions (n, d) and masses (n,), for integrals over rho."""
        return self.fields.measure.positions, self.fields.measure.weights

    @property
    def inference(self) -> Inference:
        """Surprisal, posterior divergence and resultant at the tokens, of heads with a likelihood."""
        return self.fields.inference

    @property
    def resultant(self) -> np.ndarray:
        """Resultant length of the attention at the tokens, (n,)."""
        return self.fields.resultant

    @cached_property
    def mean_resultant(self) -> float:
        """Its mean over the tokens."""
        return float(self.sample[1] @ self.resultant / self.mass)

    @property
    def mass(self) -> float:
        """sum_i p_i, which nothing changes."""
        return float(self.fields.measure.weights.sum())

    @property
    def mean(self) -> np.ndarray:
        """sum_i p_i x_i, shape (d,)."""
        return self.fields.measure.mean

    @property
    def second_moment(self) -> np.ndarray:
        """sum_i p_i x_i x_i^T, shape (d, d)."""
        return self.fields.measure.second_moment

    @property
    def energy(self) -> float:
        """E."""
        return self.fields.energy

    @property
    def dissipation(self) -> float:
        """P."""
        return self.fields.dissipation

    @property
    def metric_speed_squared(self) -> float:
        """G^2."""
        return self.fields.metric_speed_squared

    @property
    def metric_slope_squared(self) -> float:
        """S^2."""
        return self.fields.metric_slope_squared

    @property
    def gradient_flow_defect(self) -> float:
        """1/2 sum_i p_i b_i |v_i - v_gf,i|^2."""
        return self.fields.gradient_flow_defect


@dataclass
class ParticleSolver:
    """Tokens that move under the heads of a weight path.

    Parameters
    ----------
    operator : TokenOperator
    path : WeightPath
    positions : ndarray, shape (n, d)
        Unit vectors at the present time.
    weights : ndarray, shape (n,)
        Masses p_i >= 0 of sum 1.
    scheme : {"rk4", "euler"}
    max_dt : float
        Steps are this long, or shorter where a record time or a kink of the weight path must be met.

    Attributes
    ----------
    t, dt, step : float, float, int
        Present time, last step's length, number of steps.
    ledger : Ledger
    """

    operator: TokenOperator
    path: WeightPath
    positions: np.ndarray
    weights: np.ndarray
    scheme: str = "rk4"
    max_dt: float = 5e-3
    t: float = 0.0
    dt: float = 0.0
    step: int = 0
    ledger: Ledger | None = None
    _fields: TokenFields | None = field(default=None, repr=False)

    def __post_init__(self):
        self.positions = np.array(self.positions, dtype=float)
        self.weights = np.array(self.weights, dtype=float)
        if self.ledger is None:
            self.ledger = Ledger(initial_energy=self.fields.energy)

    @property
    def fields(self) -> TokenFields:
        """The model's fields at the present state, computed once."""
        if self._fields is None:
            self._fields = self._evaluate(self.positions, self.t, self.path.piece_at(self.t))
        return self._fields

    @property
    def energy(self) -> float:
        """E at the present time."""
        return self.fields.energy

    @property
    def mass(self) -> float:
        """Total mass."""
        return float(self.weights.sum())

    def _evaluate(self, positions, t, piece) -> TokenFields:
        fields = self.operator(positions, self.weights, Heads.on_path(self.path, t, piece))
        self._require_tokens("velocity", fields.velocity, np.isfinite(fields.velocity).all(axis=1))
        return fields

    def advance(self, target: float) -> None:
        """Take one step, not beyond `target` nor beyond the next kink of the weight path.

        Raises
        ------
        NumericalError
            If a token's velocity becomes non-finite, or its position no point of the sphere.
        """
        with np.errstate(over="ignore", invalid="ignore"):  # energies of huge matrices are infinite, velocities are not
            self._step(self.path.smooth_until(self.t, target))
            length = np.linalg.norm(self.positions, axis=1)  # 0 or NaN where a step was too long for its square
        self._require_tokens("position", self.positions, np.abs(length - 1) < OFF_SPHERE)

    def _step(self, target: float) -> None:
        piece, dt = self.path.piece_at(self.t), steps_to(self.t, target, self.max_dt)
        before = self._noise_rates()
        tableau = SCHEMES[self.scheme]
        slope, rates = np.zeros_like(self.positions), np.zeros(3)
        velocity = self.fields.velocity
        for node, weight in zip(tableau.node, tableau.weight, strict=True):
            fields = self.fields
            if node > 0:
                fields = self._evaluate(_normalised(self.positions + node * dt * velocity), self.t + node * dt, piece)
            velocity = fields.velocity
            slope += weight * velocity
            rates += weight * np.array([fields.weight_power, fields.dissipation, fields.metric_speed_squared])
        self.positions = _normalised(self.positions + dt * slope)
        self.t, self.dt, self.step = arrival(self.t, dt, target), dt, self.step + 1
        self._fields = None
        ledger = self.ledger
        ledger.weight_work += dt * rates[0]
        ledger.dissipation_integral += dt * rates[1]
        ledger.metric_speed_integral += dt * rates[2]
        if before is not None:
            drift, ito = 0.5 * dt * (before + self._noise_rates())
            ledger.weight_drift += drift
            ledger.weight_ito += ito

    def _noise_rates(self) -> np.ndarray | None:
        """Work of the drift and Ito rate of noisy weights, integrated by the trapezoidal rule."""
        path = self.path
        if path.noise_var == 0:
            return None
        drift = path.drift_at(self.t, path.piece_at(self.t))
        return np.array([self.fields.power_along(drift), self.fields.ito_power(path.noise_var)])

    def _require_tokens(self, what: str, vectors: np.ndarray, good: np.ndarray) -> None:
        """Stop the run at a token whose position or velocity is none; `good` (n,) tells which are."""
        if good.all():
            return
        token = int(np.argmin(good))
        raise NumericalError(
            f"the {what} of token {token} became {vectors[token]} at step {self.step}, t = {self.t:.6g}; "
            "try a smaller solver.dt, or smaller matrices or drifts"
        )

    def state(self) -> dict:
        """Everything `restore` needs to go on bit for bit: arrays and plain values by name."""
        return {
            "positions": self.positions,
            "weights": self.weights,
            "t": float(self.t),
            "dt": float(self.dt),
            "step": self.step,
            "ledger": self.ledger.state(),
        }

    def restore(self, state: dict) -> None:
        """Take up the state of another solver of the same case."""
        self.positions, self.weights = np.array(state["positions"]), np.array(state["weights"])
        self.t, self.dt, self.step = state["t"], state["dt"], state["step"]
        self.ledger = Ledger(**state["ledger"])
        self._fields = None

    def snapshot(self) -> ParticleSnapshot:
        """The present state for the record."""
        return ParticleSnapshot(self.fields, self.ledger, self.t, self.dt, self.step, self.path.variation(self.t))


def _normalised(vectors):
    with np.errstate(over="ignore", invalid="ignore"):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
