r"""The model at the tokens: velocities, and the energy with its rates, of a token set.

The same quantities as in `sphereflow.attention` and `sphereflow.energy`, for rho = sum_i p_i delta_{x_i}:

    E   = 1/2 sum_i p_i xi(x_i)              P  = - sum_i p_i grad xi(x_i) . v_i
    G^2 = sum_i p_i b_i |v_i|^2              S^2 = sum_i p_i |grad xi(x_i)|^2 / b_i
    defect = 1/2 sum_i p_i b_i |v_i - v_gf,i|^2
    power of the weights = 1/2 sum_h w_h sum_i p_i m_h(x_i) x_i . (dA_h/dt) (grad M / M)(A_h^T x_i)

dE/dt = power - P holds exactly for the ordinary differential equations, self-interaction included.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sphereflow.attention import Heads
from sphereflow.drift import Drift
from sphereflow.particles.mobility import TokenMeasure, TokenMobilities
from sphereflow.variational import Inference, attention_resultant, infer, likelihood_matrices


@dataclass(frozen=True)
class TokenOperator:
    """Evaluates the model on token sets.

    Parameters
    ----------
    velocity : {"attention", "gradient-flow", "unnormalized"}
    direction : int
        s = +1 (ascend) or -1 (descend).
    tolerance : float
        Relative accuracy of mobilities where the kernel expansion is used.
    drift : Drift, optional
        Local drift, added to the velocity.
    """

    velocity: str = "attention"
    direction: int = -1
    tolerance: float = 1e-10
    drift: Drift | None = None

    def __call__(self, positions: np.ndarray, weights: np.ndarray, heads: Heads) -> "TokenFields":
        """The model's fields at tokens (n, d) of weights (n,)."""
        return TokenFields(self, TokenMeasure(positions, weights), heads)


class TokenFields:
    """What the model says about one token set and one set of heads.

    Attributes
    ----------
    velocity : ndarray, shape (n, d)
        v at the tokens, tangent to the sphere.
    first_variation : ndarray, shape (n,)
        xi = dE/drho.
    first_variation_gradient : ndarray, shape (n, d)
        Surface gradient of xi.
    gradient_flow_velocity : ndarray, shape (n, d)
        (s / b) grad xi.
    log_effective_mobility : ndarray, shape (n,)
        log b.
    weight_power : float
        Rate of work of the weights, sum_h dE/dA_h : dA_h/dt.
    """

    def __init__(self, operator: TokenOperator, measure: TokenMeasure, heads: Heads):
        self.operator, self.measure, self.heads = operator, measure, heads
        n, d = measure.positions.shape
        self.velocity = np.empty((n, d))
        self.first_variation = np.empty(n)
        self.first_variation_gradient = np.empty((n, d))
        self.gradient_flow_velocity = np.empty((n, d))
        self.log_effective_mobility = np.empty(n)
        self.weight_power = 0.0
        skew = np.abs(heads.logits - heads.logits.transpose(0, 2, 1)).max(axis=(1, 2)) > 0
        matrices = np.concatenate([heads.logits, heads.logits[skew].transpose(0, 2, 1)])
        share = np.concatenate([np.where(skew, 0.5, 1.0) * heads.weight, 0.5 * heads.weight[skew]])
        with np.errstate(over="ignore", invalid="ignore"):  # energies of huge matrices are infinite, velocities are not
            for chunk in TokenMobilities(measure, matrices, operator.tolerance).chunks():
                self._reduce(*chunk, matrices, share)

    def _reduce(self, part, log_m, mean, matrices, share):
        """Reduce the mobilities of one chunk of tokens over the heads.

        log_m (K, c) and mean (K, c, d) belong to the matrices (K, d, d): first those of the heads, then the transposes
        of the heads that are not symmetric; `share` (K,) is the part of each in xi.
        """
        heads, operator = self.heads, self.operator
        x, count = self.measure.positions[part], len(heads.weight)
        log_b = _log_harmonic_mean(log_m[:count], heads.weight)
        along = _tangent(x, mean @ matrices.transpose(0, 2, 1))
        self.log_effective_mobility[part] = log_b
        self.first_variation[part] = share @ np.exp(log_m)
        self.first_variation_gradient[part] = _weighted(share[:, None] * np.exp(log_m), along)
        flow = operator.direction * _weighted(share[:, None] * np.exp(log_m - log_b), along)
        self.gradient_flow_velocity[part] = flow
        if operator.velocity == "gradient-flow":
            self.velocity[part] = flow
        elif operator.velocity == "unnormalized":
            self.velocity[part] = operator.direction * self.first_variation_gradient[part]
        elif heads.values is None:
            self.velocity[part] = operator.direction * np.tensordot(heads.weight, along[:count], 1)
        else:
            attention = mean[:count] @ heads.values.transpose(0, 2, 1)
            self.velocity[part] = _tangent(x, np.tensordot(heads.weight, attention, 1))
        if operator.drift is not None:
            self.velocity[part] += operator.drift(x)
        if heads.rate is not None and heads.rate.any():
            self.weight_power += self._power(part, heads.rate, log_m[:count], mean[:count])

    def _power(self, part, rate, log_m, mean):
        """Share of one chunk of tokens in sum_h dE/dA_h : rate_h."""
        pull = np.einsum("hic,hic->hi", self.measure.positions[part] @ rate, mean)
        return 0.5 * float(self.heads.weight @ ((np.exp(log_m) * pull) @ self.measure.weights[part]))

    @cached_property
    def effective_mobility(self) -> np.ndarray:
        """b at the tokens, shape (n,)."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_effective_mobility)

    def _sum(self, values):
        return float(self.measure.weights @ values)

    @cached_property
    def energy(self) -> float:
        """E."""
        return 0.5 * self._sum(self.first_variation)

    @cached_property
    def dissipation(self) -> float:
        """P."""
        return -self._sum(np.einsum("ic,ic->i", self.first_variation_gradient, self.velocity))

    @cached_property
    def metric_speed_squared(self) -> float:
        """G^2."""
        return self._sum(self.effective_mobility * np.sum(self.velocity**2, axis=1))

    @cached_property
    def metric_slope_squared(self) -> float:
        """S^2."""
        return self._sum(self.effective_mobility * np.sum(self.gradient_flow_velocity**2, axis=1))

    @cached_property
    def gradient_flow_defect(self) -> float:
        """1/2 sum_i p_i b_i |v_i - v_gf,i|^2."""
        difference = np.sum((self.velocity - self.gradient_flow_velocity) ** 2, axis=1)
        return 0.5 * self._sum(self.effective_mobility * difference)

    @cached_property
    def inference(self) -> Inference:
        """Surprisal, posterior divergence and resultant of heads with a likelihood, arrays (n,)."""
        heads, measure = self.heads, self.measure
        count, n = len(heads.weight), measure.count
        out = Inference(np.empty(n), np.empty(n), np.empty(n))
        matrices = np.concatenate([heads.logits, likelihood_matrices(heads)])
        for part, log_m, mean in TokenMobilities(measure, matrices, self.operator.tolerance).chunks():
            found = infer(measure.positions[part], heads, log_m[:count], mean[:count], log_m[count:])
            for name in ("surprisal", "posterior_divergence", "resultant"):
                getattr(out, name)[part] = getattr(found, name)
        return out

    @cached_property
    def resultant(self) -> np.ndarray:
        """Resultant length of the attention at the tokens, shape (n,); for any heads."""
        if self.heads.concentration is not None:
            return self.inference.resultant
        out = np.empty(self.measure.count)
        for part, _, mean in TokenMobilities(self.measure, self.heads.logits, self.operator.tolerance).chunks():
            out[part] = attention_resultant(self.heads, mean)
        return out

    def power_along(self, rate: np.ndarray) -> float:
        """sum_h dE/dA_h : rate_h for another rate of the logits (H, d, d), such as their drift without noise."""
        mobilities = TokenMobilities(self.measure, self.heads.logits, self.operator.tolerance)
        return sum(self._power(part, rate, log_m, mean) for part, log_m, mean in mobilities.chunks())

    def ito_power(self, noise_var: float) -> float:
        r"""Ito rate of weights with noise.

        1/2 sum_h w_h sum_ij p_i p_j (sigma^2/4) (1 + (x_i . x_j)^2) exp(x_i . A_h x_j), sigma^2 = `noise_var`.
        """
        sums = TokenMobilities(self.measure, self.heads.logits, self.operator.tolerance).squared_overlap_sums()
        return noise_var / 8 * float(self.heads.weight @ sums)


def _log_harmonic_mean(log_m, weight):
    """log of 1 / sum_h weight_h / m_h, (c,), from log m (H, c)."""
    least = log_m.min(axis=0)
    return least - np.log(weight @ np.exp(least - log_m))


def _tangent(x, vectors):
    """Tangential parts of vectors (..., c, d) at points x (c, d)."""
    return vectors - np.sum(vectors * x, axis=-1, keepdims=True) * x


def _weighted(weight, vectors):
    """sum_k weight_ki vectors_kic, shape (c, d)."""
    return np.einsum("ki,kic->ic", weight, vectors)
