r"""Energy, its rates, and the ledger that closes the books of a run.

    E      = 1/2 sum_h w_h \int\int exp(x . A_h y) rho rho = 1/2 int xi rho
    dE/dt  = (work of the weights) - P,    P = - int xi (d rho / dt)_transport = - int grad xi . (v rho - kappa grad rho)
    G^2    = int b |v|^2 rho               squared metric speed
    S^2    = int |grad xi|^2 / b rho       squared metric slope
    defect = 1/2 int b |v - v_gf|^2 rho >= 0, which is 1/2 (G^2 + S^2) + s P without diffusion (kappa = 0)

Along a run E(t) - E(0) = W(t) - int P dt + residual, with W = int sum_h dE/dA_h : dA_h.
"""

from dataclasses import asdict, dataclass

import numpy as np

from sphereflow.attention import AttentionFields
from sphereflow.harmonics import get_transform, inner_product
from sphereflow.passes import weighted_speed


def energy(fields: AttentionFields) -> float:
    """E = 1/2 int xi rho."""
    variation, lmax = fields.variation_coefficients
    expanded = inner_product(variation, fields.expansion.coefficients(lmax), lmax)
    return 0.5 * (float(expanded) + _pointwise_integral(fields, fields.mass_density))


def _pointwise_integral(fields: AttentionFields, values: np.ndarray) -> float:
    """int xi values over the part of xi that has no coefficients; values (nlat, nlon) at the nodes."""
    part = fields.pointwise_variation
    return 0.0 if part is None else float(fields.grid.integrate(part[0] * values))


def dissipation(fields: AttentionFields, tendency: np.ndarray) -> float:
    """P = - int xi (d rho / dt) for a tendency (nlat, nlon) of the transport.

    With the finite-volume tendency this is minus the exact rate of the space-discrete energy at fixed weights.
    """
    variation, lmax = fields.variation_coefficients
    operator = fields.operator
    transform = get_transform(operator.grid.nlat, lmax, operator.backend, operator.nthreads)
    rate = operator.node_values(tendency)
    expanded = float(inner_product(variation, transform.analysis(rate), lmax))
    if fields.pointwise_variation is None:
        return -expanded
    mass_rate = np.where(fields.node_density > 0, rate, 0.0)  # of the mass density that pointwise sums take
    return -expanded - _pointwise_integral(fields, mass_rate)


def weight_power(fields: AttentionFields) -> float:
    """Rate of work of the weights, sum_h dE/dA_h : dA_h/dt."""
    if not fields.moving:
        return 0.0
    return 0.5 * float(fields.heads.weight @ fields.mobilities.directional_integrals(fields.heads.rate))


def drift_power(fields: AttentionFields, drift: np.ndarray) -> float:
    """The same along the weights' drift (H, 3, 3) alone, without their noise."""
    return 0.5 * float(fields.heads.weight @ fields.mobilities.directional_integrals(drift))


def ito_power(fields: AttentionFields, noise_var: float) -> float:
    r"""Ito rate of weights with noise, 1/2 sum_h w_h \int\int (sigma^2/4)(1 + (x.y)^2) exp(x . A_h y) rho rho."""
    return noise_var / 8 * float(fields.heads.weight @ fields.mobilities.squared_overlap_integrals())


def metric_speed_squared(fields: AttentionFields) -> float:
    """G^2 = int b |v|^2 rho."""
    log_mobility = fields.log_effective_mobility.values
    return weighted_speed(log_mobility, fields.velocity, fields.mass_density, fields.grid.cell_area)


def metric_slope_squared(fields: AttentionFields) -> float:
    """S^2 = int |grad xi|^2 / b rho."""
    slope_squared = np.sum(fields.first_variation_gradient**2, axis=0)
    return float(fields.grid.integrate(slope_squared / fields.effective_mobility * fields.mass_density))


def gradient_flow_defect(fields: AttentionFields) -> float:
    """1/2 int b |v - v_gf|^2 rho, zero if and only if v is the gradient flow's velocity where there is mass."""
    difference = np.sum((fields.velocity - fields.gradient_flow_velocity) ** 2, axis=0)
    return 0.5 * float(fields.grid.integrate(fields.effective_mobility * difference * fields.mass_density))


@dataclass
class Ledger:
    """Integrals along a run; part of its state.

    Attributes
    ----------
    initial_energy : float
        E at t = 0.
    weight_work, dissipation_integral, metric_speed_integral : float
        W, int P and int G^2.
    weight_drift, weight_ito : float
        The parts of W under noise.
    """

    initial_energy: float
    weight_work: float = 0.0
    dissipation_integral: float = 0.0
    metric_speed_integral: float = 0.0
    weight_drift: float = 0.0
    weight_ito: float = 0.0

    def add(self, dissipation, weight_work, metric_speed, weight_drift=0.0, weight_ito=0.0) -> None:
        """Enter the integrals over one step."""
        self.dissipation_integral += dissipation
        self.weight_work += weight_work
        self.metric_speed_integral += metric_speed
        self.weight_drift += weight_drift
        self.weight_ito += weight_ito

    def state(self) -> dict[str, float]:
        """The integrals by name: `Ledger(**state)` is the same ledger."""
        return {name: float(value) for name, value in asdict(self).items()}

    def residual(self, energy_now: float) -> float:
        """E(t) - E(0) - W(t) + int P: what the books do not explain."""
        return energy_now - self.initial_energy - self.weight_work + self.dissipation_integral
