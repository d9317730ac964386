r"""The model: from a density and the heads' matrices to potentials, mobilities and velocities.

    m_h(x) = int exp(x . A_h y) rho(y) dy         head mobility
    Phi(x) = sum_h w_h log m_h(x)                 potential of head-averaged softmax attention
    b(x)   = 1 / sum_h w_h / m_h(x)               effective mobility, the weighted harmonic mean
    xi(x)  = sum_h w_h (m_h + m_h^T) / 2          first variation of the energy E = 1/2 int xi rho

Velocities (s = +1 ascend, -1 descend):

    attention      v = s grad Phi, or P_x sum_h w_h V_h grad M / M for general value matrices V_h
    gradient-flow  v = (s / b) grad xi            the gradient flow of E in the metric weighted by b
    unnormalized   v = s grad xi

A local drift u(x) (`sphereflow.drift`), if there is one, is added to each of them.

`attention` and `gradient-flow` are the same where all heads are one and the same symmetric head, and differ otherwise.

Logarithms and reciprocals of the m_h are taken on the coarsest Gauss grid that resolves the result (its coefficients must
have died out), then carried to the full grid by one synthesis; where none does they are taken on the full grid.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from sphereflow.cells import node_values
from sphereflow.drift import Drift
from sphereflow.faces import field_at_faces, gradient_at_faces, vector_at_faces
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import change_degree, degrees_and_orders, get_transform
from sphereflow.mobility import DensityExpansion, MobilitySet, spectral_norm

VELOCITY_MODELS = ("attention", "gradient-flow", "unnormalized")
NONLINEAR_GRIDS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
SMOOTH = 1e-4  # neglected part of a field relative to its variation, below which its coefficients are differentiated
ROUNDING_FLOOR = 2e-14  # relative size of transform noise, below which no tail can be expected to fall


@dataclass(frozen=True)
class Heads:
    """The heads' weights at one instant.

    Attributes
    ----------
    logits : ndarray, shape (H, 3, 3)
        A_h.
    weight : ndarray, shape (H,)
        w_h, positive, adding up to 1.
    values : ndarray, shape (H, 3, 3), or None
        V_h; None stands for V_h = s A_h.
    rate : ndarray, shape (H, 3, 3), or None
        dA_h/dt, for the work of the weights; None where they do not move.
    concentration : ndarray, shape (H,), or None
        kappa_h of the likelihoods of a score-based variational flow.
    """

    logits: np.ndarray
    weight: np.ndarray
    values: np.ndarray | None = None
    rate: np.ndarray | None = None
    concentration: np.ndarray | None = None

    @classmethod
    def on_path(cls, path, t: float, interval: int | None = None, moving: bool = True) -> "Heads":
        """The weights of a `WeightPath` at a time, seen from one smooth piece of it; without their rate unless `moving`."""
        return cls(
            path.logits_at(t, interval),
            path.head_weight,
            path.values_at(t, interval),
            path.rate_at(t, interval) if moving else None,
            path.concentration,
        )

    @cached_property
    def norm(self) -> np.ndarray:
        """Spectral norms of the A_h, shape (H,)."""
        return spectral_norm(self.logits)


@dataclass
class AttentionOperator:
    """Evaluates the model on a grid.

    Parameters
    ----------
    grid : GaussGrid
    velocity : {"attention", "gradient-flow", "unnormalized"}
    direction : int
        s = +1 (ascend) or -1 (descend).
    tolerance : float
        Relative accuracy of mobilities, and of the potential against its own variation.
    backend, nthreads
        Transform library and its threads.
    two_point : bool
        The first-order finite volumes of minimising movements: cell values stand at the nodes, and the gradient at a
        face is the difference of its two nodes. Otherwise both are of fourth order.
    drift : Drift, optional
        Local drift, added to the velocity.

    Attributes
    ----------
    level : dict
        Index in `nonlinear_grids` at which each nonlinear field was last resolved: where the next search starts. It is
        part of a run's state, since the last digits depend on it.
    """

    grid: GaussGrid
    velocity: str = "attention"
    direction: int = -1
    tolerance: float = 1e-10
    backend: str = "auto"
    nthreads: int = 1
    two_point: bool = False
    drift: Drift | None = None
    level: dict[str, int] = field(default_factory=dict)

    @cached_property
    def nonlinear_grids(self) -> tuple[int, ...]:
        """Latitudes of the grids on which logarithms may be taken; the last is the full grid."""
        return (*[n for n in NONLINEAR_GRIDS if 4 * n <= 3 * self.grid.nlat], self.grid.nlat)

    @cached_property
    def drift_at_faces(self) -> tuple[np.ndarray, np.ndarray]:
        """Normal components of the drift at the midpoints of the faces, east and south; it does not change in time."""
        return field_at_faces(self.grid, self.drift)

    @cached_property
    def drift_at_nodes(self) -> np.ndarray:
        """Components of the drift to the south and east at the nodes, (2, nlat, nlon)."""
        return tangent_components(self.grid, np.moveaxis(self.drift(self.grid.points), -1, 0))

    def node_values(self, cells: np.ndarray) -> np.ndarray:
        """Values at the nodes of a field (nlat, nlon) given in the cells."""
        return cells if self.two_point else node_values(self.grid, cells)

    def __call__(self, density: np.ndarray, heads: Heads) -> "AttentionFields":
        """The model's fields for cell means of a density (nlat, nlon) and heads, each computed when first asked for."""
        return AttentionFields(self, density, heads)

    def resolve(self, name: str, smallest: int, compute) -> "NonlinearField":
        """Find the coarsest grid that resolves a field and represent it there.

        Parameters
        ----------
        name : str
            Key under which the level is remembered.
        smallest : int
            Fewest latitudes that `compute` can be called with.
        compute : callable
            From a number of latitudes to nodal values (nlat, 2 nlat).
        """
        grids = self.nonlinear_grids
        for level in range(self.level.get(name, 0), len(grids) - 1):
            if grids[level] < smallest:
                continue
            field = NonlinearField(self, grids[level], compute(grids[level]), is_full=False)
            allowed = self._allowed_tail(field.coefficients)
            if _neglected(field.coefficients, field.lmax) <= allowed:
                self.level[name] = level - self._would_do(level - 1, smallest, field, allowed)
                return field
        last = len(grids) - 1
        field = NonlinearField(self, self.grid.nlat, compute(self.grid.nlat), is_full=True)
        self.level[name] = last
        if last > 0:  # a look at its coefficients costs less than the attempt on a coarser grid every time
            self.level[name] -= self._would_do(last - 1, smallest, field, self._allowed_tail(field.coefficients))
        return field

    def _would_do(self, level: int, smallest: int, field: "NonlinearField", allowed: float) -> bool:
        """Whether a coarser grid would resolve a field too, with a margin; grids below the first one are none."""
        if level < 0 or self.nonlinear_grids[level] < smallest:
            return False
        return _norm(field.coefficients[_from_degree(field.lmax, self.nonlinear_grids[level])]) <= 0.1 * allowed

    def _allowed_tail(self, coefficients):
        size = _norm(coefficients)
        varying = _norm(coefficients[1:])
        return self.tolerance * varying + ROUNDING_FLOOR * max(size, 1.0)

    def _transform(self, nlat, lmax):
        return get_transform(nlat, lmax, self.backend, self.nthreads)

    def level_state(self, fields: "AttentionFields | None", before: dict[str, int]) -> dict:
        """What `restore_level` needs: the levels now, those `before` the present fields, and which of these are computed."""
        resolved = [] if fields is None else fields.resolved
        return {"level": dict(self.level), "level_before": dict(before if resolved else self.level), "resolved": resolved}

    def restore_level(self, state: dict, make_fields: Callable[[], "AttentionFields"]) -> None:
        """Bring back the levels of a `level_state`, such that present and later fields come out bit for bit.

        The last digits of a field depend on the level at which its search began. So the levels go back to those before
        the present fields, and the fields that the saved run had computed by then are computed again.
        """
        self.level.clear()
        self.level.update(state["level_before"])
        if state["resolved"]:
            fields = make_fields()
            for name in state["resolved"]:
                getattr(fields, name)
        self.level.update(state["level"])


def tangent_components(grid: GaussGrid, vector: np.ndarray) -> np.ndarray:
    """Components to the south and east, (2, nlat, nlon), of Cartesian vectors (3, nlat, nlon) at the nodes."""
    u = np.moveaxis(vector, 0, -1)
    return np.stack([np.sum(u * grid.e_theta, axis=-1), np.sum(u * grid.e_phi, axis=-1)])


def _norm(coefficients: np.ndarray) -> float:
    return float(np.sqrt(np.vdot(coefficients, coefficients).real))


@lru_cache(maxsize=128)
def _from_degree(lmax: int, start: float, stop: float = np.inf) -> np.ndarray:
    """Positions of the coefficients with start <= degree < stop."""
    degree, _ = degrees_and_orders(lmax)
    return np.flatnonzero((degree >= start) & (degree < stop))


def _neglected(coefficients: np.ndarray, lmax: int) -> float:
    """Size of what lies beyond the last degree, if it goes on falling as from the last eighth but one to the last eighth."""
    before = _norm(coefficients[_from_degree(lmax, lmax * 6 / 8, lmax * 7 / 8)])
    last = _norm(coefficients[_from_degree(lmax, lmax * 7 / 8)])
    return last * min(1.0, last / before) if before > 0 else last


class NonlinearField:
    """A scalar field with its coefficients, of which the values on some Gauss grid are known.

    Parameters
    ----------
    operator : AttentionOperator
    nlat : int
        Latitudes of that grid.
    values : ndarray, shape (nlat, 2 nlat)
    is_full : bool
        Whether that is the operator's own grid, taken because no coarser one resolves the field. Otherwise the grid
        resolves it, and the coefficients say all.
    """

    def __init__(self, operator: AttentionOperator, nlat: int, values: np.ndarray, is_full: bool):
        self._operator, self._nlat, self._known = operator, nlat, values
        self.lmax, self.is_resolved = nlat - 1, not is_full

    @cached_property
    def coefficients(self) -> np.ndarray:
        """Spherical-harmonic coefficients up to degree `lmax`."""
        return self._operator._transform(self._nlat, self.lmax).analysis(self._known)

    @cached_property
    def is_smooth(self) -> bool:
        """Whether the coefficients give a better gradient than differences of the nodal values."""
        if self.is_resolved:
            return True
        return _neglected(self.coefficients, self.lmax) <= SMOOTH * _norm(self.coefficients[1:])

    @cached_property
    def values(self) -> np.ndarray:
        """Values at the full grid's nodes."""
        if not self.is_resolved:
            return self._known
        return self._operator._transform(self._operator.grid.nlat, self.lmax).synthesis(self.coefficients)


class AttentionFields:
    """Everything the model says about one density and one set of heads; fields have shape (nlat, nlon)."""

    def __init__(self, operator: AttentionOperator, density: np.ndarray, heads: Heads):
        self.operator, self.density, self.heads = operator, density, heads
        self.grid = operator.grid
        self.node_density = operator.node_values(density)
        self.expansion = DensityExpansion(
            operator.grid, self.node_density, operator.tolerance, operator.backend, operator.nthreads
        )

    @cached_property
    def mass_density(self) -> np.ndarray:
        """Non-negative node values, for integrals of non-negative functions; see `DensityExpansion.mass_density`."""
        return self.expansion.mass_density

    @cached_property
    def moving(self) -> bool:
        """Whether the weights change at this instant."""
        return self.heads.rate is not None and bool(np.any(self.heads.rate))

    @cached_property
    def mobilities(self) -> MobilitySet:
        """The head mobilities m_h."""
        gradient = self.moving or self._has_general_values
        wanted = self.operator.nonlinear_grids[self.operator.level.get("potential", 0)]
        return MobilitySet(self.expansion, self.heads.logits, gradient, self.heads.norm, wanted)

    @property
    def _has_general_values(self) -> bool:
        return self.heads.values is not None and self.operator.velocity == "attention"

    @cached_property
    def _transposed(self) -> tuple[np.ndarray, MobilitySet | None]:
        """Which heads are not symmetric, and the mobilities of their transposes."""
        skew = np.abs(self.heads.logits - self.heads.logits.transpose(0, 2, 1)).max(axis=(1, 2)) > 0
        if not skew.any():
            return skew, None
        return skew, MobilitySet(self.expansion, self.heads.logits[skew].transpose(0, 2, 1), radius=self.heads.norm[skew])

    @cached_property
    def potential(self) -> NonlinearField:
        """Phi = sum_h w_h log m_h."""
        m = self.mobilities
        return self.operator.resolve(
            "potential", m.smallest_grid(), lambda nlat: m.weighted_log_on(self.heads.weight, nlat)
        )

    @cached_property
    def log_effective_mobility(self) -> NonlinearField:
        """log b, b = 1 / sum_h w_h / m_h (the harmonic mean of the heads)."""
        if len(self.heads.weight) == 1:
            return self.potential
        m, weight = self.mobilities, self.heads.weight
        return self.operator.resolve(
            "effective_mobility", m.smallest_grid(), lambda nlat: m.log_harmonic_mean_on(weight, nlat)
        )

    @cached_property
    def effective_mobility(self) -> np.ndarray:
        """b at the nodes."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_effective_mobility.values)

    @property
    def resolved(self) -> list[str]:
        """Names of the nonlinear fields computed so far, each of which may have moved the operator's `level`."""
        return [name for name in ("potential", "log_effective_mobility") if name in vars(self)]

    @cached_property
    def _variation_parts(self) -> list[tuple[MobilitySet, np.ndarray]]:
        """xi as weighted sums of mobilities: those of A_h, and of A_h^T for the heads that are not symmetric."""
        skew, transposed = self._transposed
        weight = self.heads.weight
        if transposed is None:
            return [(self.mobilities, weight)]
        return [(self.mobilities, np.where(skew, 0.5, 1.0) * weight), (transposed, 0.5 * weight[skew])]

    @cached_property
    def variation_coefficients(self) -> tuple[np.ndarray, int]:
        """Coefficients of xi = sum_h w_h (m_h + m_h^T) / 2, `pointwise_variation` apart, and their largest degree."""
        lmax = max(m.lmax for m, _ in self._variation_parts)
        return sum(change_degree(m.weighted_sum(weight), m.lmax, lmax) for m, weight in self._variation_parts), lmax

    @cached_property
    def pointwise_variation(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The part of xi known point by point: nodal values, and the gradient in R^3 (3, nlat, nlon); or None."""
        sums = [m.pointwise_sum(weight) for m, weight in self._variation_parts if m.pointwise.size]
        return tuple(sum(terms) for terms in zip(*sums, strict=True)) if sums else None

    @cached_property
    def first_variation(self) -> np.ndarray:
        """xi = dE/drho at the nodes."""
        coefficients, lmax = self.variation_coefficients
        values = self.operator._transform(self.grid.nlat, lmax).synthesis(coefficients)
        return values if self.pointwise_variation is None else values + self.pointwise_variation[0]

    @cached_property
    def _attention_vector(self) -> np.ndarray:
        """sum_h w_h V_h grad M / M, Cartesian (3, nlat, nlon), for general value matrices."""
        m, heads = self.mobilities, self.heads
        nlat = self.grid.nlat
        return np.einsum("h,hcd,hdij->cij", heads.weight, heads.values, m.mean_on(nlat))

    @cached_property
    def speed_bound(self) -> float:
        """A bound of |v| for attention: the largest weighted norm of the value matrices."""
        norm = self.heads.norm if self.heads.values is None else spectral_norm(self.heads.values)
        return float(self.heads.weight @ norm)

    @cached_property
    def face_velocity(self) -> tuple[np.ndarray, np.ndarray]:
        """Normal velocities at the faces: east (nlat, nlon) and south (nlat + 1, nlon)."""
        if self.operator.drift is None:
            return self._nonlocal_face_velocity
        return tuple(u + w for u, w in zip(self._nonlocal_face_velocity, self.operator.drift_at_faces, strict=True))

    @cached_property
    def _nonlocal_face_velocity(self) -> tuple[np.ndarray, np.ndarray]:
        """The same without the drift."""
        model, sign, two_point = self.operator.velocity, self.operator.direction, self.operator.two_point
        if model == "attention":
            if self._has_general_values:
                return vector_at_faces(self.grid, self._attention_vector, self.speed_bound)
            return gradient_at_faces(self.grid, self.potential.values, None, sign, self.speed_bound, two_point)
        mobility = self.effective_mobility if model == "gradient-flow" else None
        return gradient_at_faces(self.grid, self.first_variation, mobility, sign, np.inf, two_point)

    @cached_property
    def first_variation_gradient(self) -> np.ndarray:
        """grad xi at the nodes, (2, nlat, nlon): south and east."""
        coefficients, lmax = self.variation_coefficients
        gradient = self.operator._transform(self.grid.nlat, lmax).gradient(coefficients)
        part = self.pointwise_variation
        return gradient if part is None else gradient + tangent_components(self.grid, part[1])

    @cached_property
    def velocity(self) -> np.ndarray:
        """The model's velocity at the nodes, (2, nlat, nlon): south and east."""
        drift = self.operator.drift
        return self._nonlocal_velocity if drift is None else self._nonlocal_velocity + self.operator.drift_at_nodes

    @cached_property
    def _nonlocal_velocity(self) -> np.ndarray:
        """The same without the drift."""
        model, sign = self.operator.velocity, self.operator.direction
        if model == "unnormalized":
            return sign * self.first_variation_gradient
        if model == "gradient-flow":
            return self.gradient_flow_velocity
        if self._has_general_values:
            return tangent_components(self.grid, self._attention_vector)
        if self.potential.is_smooth:
            transform = self.operator._transform(self.grid.nlat, self.potential.lmax)
            return sign * transform.gradient(self.potential.coefficients)
        return self._velocity_from_faces

    @cached_property
    def _velocity_from_faces(self) -> np.ndarray:
        """Node velocities as means of the two faces: bounded where the potential is sharper than the grid."""
        east, south = self._nonlocal_face_velocity
        return np.stack([(south[:-1] + south[1:]) / 2, (east + np.roll(east, 1, axis=1)) / 2])

    @cached_property
    def gradient_flow_velocity(self) -> np.ndarray:
        """(s / b) grad xi at the nodes: the velocity of the gradient flow in the weighted metric."""
        return self.operator.direction * self.first_variation_gradient / self.effective_mobility
