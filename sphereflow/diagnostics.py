"""What a run records: one table of variables that makes the output file, its documentation and the restart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import xlogy

from sphereflow import energy
from sphereflow.drift import expert_usage, gate_entropy, load_imbalance
from sphereflow.grid import GaussGrid
from sphereflow.variational import Inference, density_resultant, equivalent_kappa, infer_density, mean_resultant


@dataclass(frozen=True)
class Variable:
    """One variable of an output file.

    Parameters
    ----------
    name : str
        Name in the file.
    dims : tuple of str
        Dimensions; a recorded variable has "t" first, a static one has no "t".
    units, long_name : str
        CF attributes; an empty string leaves the attribute out.
    value : callable, optional
        Computes the variable; files know nothing of it.
    attrs : mapping
        Further CF attributes.
    dtype : str
        Type in the file. Unwritten floats read as NaN.
    """

    name: str
    dims: tuple[str, ...]
    units: str
    long_name: str
    value: Callable | None = None
    attrs: Mapping[str, object] = field(default_factory=dict)
    dtype: str = "f8"


CLUSTER_THRESHOLD = 0.5  # of the largest density
CLUSTER_CONTRAST = 2.0  # times the uniform density: flatter states have no clusters


def mean_position(grid: GaussGrid, density: np.ndarray) -> np.ndarray:
    """First moments int x rho dx, shape (3,)."""
    return np.einsum("ij,ijc->c", density * grid.cell_area[:, None], grid.points)


def second_moment(grid: GaussGrid, density: np.ndarray) -> np.ndarray:
    """Second moments int x x^T rho dx, shape (3, 3); the trace is the mass."""
    x = grid.points.reshape(-1, 3)
    return x.T @ (x * (density * grid.cell_area[:, None]).reshape(-1, 1))


def relative_entropy(grid: GaussGrid, density: np.ndarray) -> float:
    """int rho log(4 pi rho) dx >= 0: zero for the uniform density alone; cells that rounding left below 0 count as empty."""
    density = np.maximum(density, 0.0)
    return float(grid.integrate(xlogy(density, 4 * np.pi * density)))


def cluster_count(grid: GaussGrid, density: np.ndarray) -> int:
    """Number of connected regions where the density exceeds half its maximum; 0 if that maximum is below 2/(4 pi).

    Cells are connected through their faces, across 0 degrees east, and across the poles to the cell half way around.
    """
    largest = density.max()
    if largest < CLUSTER_CONTRAST / (4 * np.pi):
        return 0
    inside = density >= CLUSTER_THRESHOLD * largest
    index = np.arange(density.size).reshape(grid.shape)
    half = grid.nlon // 2
    pairs = [(index, np.roll(index, -1, axis=1)), (index[:-1], index[1:])]
    pairs += [(index[row, :half], index[row, half:]) for row in (0, -1)]
    first, second = (np.concatenate([p[side].ravel() for p in pairs]) for side in (0, 1))
    linked = inside.flat[first] & inside.flat[second]
    links = coo_array((np.ones(linked.sum()), (first[linked], second[linked])), shape=(density.size,) * 2)
    _, label = connected_components(links, directed=False)
    return len(np.unique(label[inside.ravel()]))


class DensitySnapshot:
    """One instant of a density run, as the variables of the output see it.

    Parameters
    ----------
    fields : AttentionFields
        The model's fields of the density.
    tendency : ndarray, shape (nlat, nlon)
        Rate of change of the density by the flow alone.
    ledger : Ledger
        Integrals along the run so far.
    t, dt, step : float, float, int
    weight_variation : float
        int_0^t sum_h w_h |dA_h/dt|_F dt.
    """

    def __init__(self, fields, tendency, ledger, t, dt, step, weight_variation):
        self.fields, self.tendency, self.ledger = fields, tendency, ledger
        self.t, self.dt, self.step, self.weight_variation = t, dt, step, weight_variation
        self.grid, self.density = fields.grid, fields.density

    @cached_property
    def sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Points of the sphere, the nodes (nlat, nlon, 3), and the mass at each, (nlat, nlon), for integrals over rho."""
        return self.grid.points, self.fields.mass_density * self.grid.cell_area[:, None]

    @cached_property
    def inference(self) -> Inference:
        """Surprisal, posterior divergence and resultant at the nodes, of heads with a likelihood."""
        return infer_density(self.fields)

    @cached_property
    def resultant(self) -> np.ndarray:
        """Resultant length of the attention at the nodes, (nlat, nlon)."""
        return density_resultant(self.fields) if self.fields.heads.concentration is None else self.inference.resultant

    @cached_property
    def mean_resultant(self) -> float:
        """Its mean over rho."""
        if self.fields.heads.concentration is None:
            return mean_resultant(self.fields)
        return _over_mass(self, self.inference.resultant)

    @cached_property
    def mass(self) -> float:
        """int rho dx."""
        return float(self.grid.integrate(self.density))

    @cached_property
    def energy(self) -> float:
        """E."""
        return energy.energy(self.fields)

    @cached_property
    def dissipation(self) -> float:
        """P, minus the exact rate of the space-discrete energy."""
        return energy.dissipation(self.fields, self.tendency)

    @cached_property
    def metric_speed_squared(self) -> float:
        """G^2."""
        return energy.metric_speed_squared(self.fields)

    @cached_property
    def metric_slope_squared(self) -> float:
        """S^2."""
        return energy.metric_slope_squared(self.fields)

    @cached_property
    def gradient_flow_defect(self) -> float:
        """Half of int b |v - v_gf|^2 rho."""
        return energy.gradient_flow_defect(self.fields)

    @cached_property
    def mean(self) -> np.ndarray:
        """int x rho dx."""
        return mean_position(self.grid, self.fields.node_density)

    @cached_property
    def second_moment(self) -> np.ndarray:
        """int x x^T rho dx."""
        return second_moment(self.grid, self.fields.node_density)


def _scalar(name, long_name, value, units="1", **more):
    return Variable(name, ("t",), units, long_name, value, **more)


def _field(name, long_name, value, units="1", before=(), **attrs):
    dims = ("t", *before, "lat", "lon")
    return Variable(name, dims, units, long_name, value, {"cell_measures": "area: cell_area", **attrs})


SCALARS = (
    _scalar("mass", "total mass", lambda s: s.mass),
    _scalar("energy", "interaction energy E", lambda s: s.energy),
    _scalar(
        "dissipation",
        "dissipation P, the rate at which the flow lowers E: - int grad(xi) . (v rho - kappa grad(rho)), kappa the diffusion",
        lambda s: s.dissipation,
    ),
    _scalar(
        "metric_speed_squared",
        "squared metric speed G^2 = int b |v|^2 rho",
        lambda s: s.metric_speed_squared,
    ),
    _scalar(
        "metric_slope_squared",
        "squared metric slope S^2 = int |grad(xi)|^2 / b rho",
        lambda s: s.metric_slope_squared,
    ),
    _scalar(
        "gradient_flow_defect",
        "gradient-flow defect, half of int b |v - v_gf|^2 rho",
        lambda s: s.gradient_flow_defect,
    ),
    _scalar("weight_work", "work W of the weights since t = 0", lambda s: s.ledger.weight_work),
    _scalar("dissipation_integral", "integral of P since t = 0", lambda s: s.ledger.dissipation_integral),
    _scalar("metric_speed_integral", "integral of G^2 since t = 0", lambda s: s.ledger.metric_speed_integral),
    _scalar(
        "edi_residual",
        "residual of the energy balance, E(t) - E(0) - W + integral of P",
        lambda s: s.ledger.residual(s.energy),
    ),
    _scalar(
        "weight_variation",
        "total variation of the weights, integral of sum_h w_h |dA_h/dt|_F since t = 0",
        lambda s: s.weight_variation,
    ),
    _scalar("entropy", "entropy relative to the uniform density, int rho log(4 pi rho)",
            lambda s: relative_entropy(s.grid, s.density)),
    _scalar("density_min", "smallest density", lambda s: s.density.min(), "m-2"),
    _scalar("density_max", "largest density", lambda s: s.density.max(), "m-2"),
    _scalar("mean_x", "mean position, x component", lambda s: s.mean[0]),
    _scalar("mean_y", "mean position, y component", lambda s: s.mean[1]),
    _scalar("mean_z", "mean position, z component", lambda s: s.mean[2]),
    Variable("second_moment", ("t", "row", "col"), "1", "second moments int x x^T rho",
             lambda s: s.second_moment),
    _scalar("order_parameter", "order parameter |int x rho|", lambda s: np.linalg.norm(s.mean)),
    _scalar("cluster_count", "number of regions denser than half the largest density; 0 where that is below 1 / (2 pi)",
            lambda s: cluster_count(s.grid, s.density), dtype="i4"),
    _scalar("attention_resultant", "mean resultant length sum_h w_h int rho |int y q_h(y|x) dy| of the attention",
            lambda s: s.mean_resultant),
    _scalar("attention_kappa", "concentration of the von Mises-Fisher density of that resultant length",
            lambda s: equivalent_kappa(s.mean_resultant, s.sample[0].shape[-1])),
    _scalar("dt", "last time step", lambda s: s.dt),
    _scalar("step", "number of time steps", lambda s: s.step, dtype="i8"),
)  # fmt: skip

NOISE_SCALARS = (
    _scalar("weight_drift", "work of the drift of the weights since t = 0", lambda s: s.ledger.weight_drift),
    _scalar("weight_ito", "Ito correction to the work of the weights since t = 0", lambda s: s.ledger.weight_ito),
    _scalar(
        "weight_martingale",
        "martingale part of the work of the weights since t = 0, W - drift - Ito correction",
        lambda s: s.ledger.weight_work - s.ledger.weight_drift - s.ledger.weight_ito,
    ),
)

HEAD_VARIABLES = (
    Variable("logits", ("t", "head", "row", "col"), "1", "logit matrices A_h", lambda s: s.fields.heads.logits),
)
VALUE_VARIABLES = (
    Variable("values", ("t", "head", "row", "col"), "1", "value matrices V_h", lambda s: s.fields.heads.values),
)


def _over_mass(snapshot, values):
    """Mean over rho of values at the points of a snapshot's `sample`."""
    mass = snapshot.sample[1]
    return float(np.sum(mass * values) / mass.sum())


def _gates(snapshot):
    """Gates of the experts at the points of a snapshot's `sample`, shape (..., E)."""
    return snapshot.fields.operator.drift.experts.gates(snapshot.sample[0])


def _usage(snapshot):
    return expert_usage(_gates(snapshot), snapshot.sample[1])


FLOW_SCALARS = (
    _scalar("marginal_nll", "marginal negative log-likelihood - sum_h w_h int rho log p_h",
            lambda s: _over_mass(s, s.inference.surprisal)),
    _scalar("variational_gap", "variational gap sum_h w_h int rho KL(q_h || p_h)",
            lambda s: _over_mass(s, s.inference.posterior_divergence)),
)  # fmt: skip

EXPERT_VARIABLES = (
    Variable("expert_usage", ("t", "expert"), "1", "share int rho g_e of each expert", _usage),
    _scalar("load_imbalance", "load imbalance KL(expert_usage || uniform)", lambda s: load_imbalance(_usage(s))),
    _scalar("gate_entropy", "gate entropy - int rho sum_e g_e log g_e", lambda s: _over_mass(s, gate_entropy(_gates(s)))),
)

FIELDS = {
    "density": (
        _field("density", "token density, total mass 1", lambda s: s.density, "m-2", cell_methods="area: mean"),
    ),
    "potential": (
        _field("potential", "potential Phi = sum_h w_h log m_h", lambda s: s.fields.potential.values),
    ),
    "effective_mobility": (
        _field("effective_mobility", "effective mobility b = 1 / sum_h w_h / m_h",
               lambda s: s.fields.effective_mobility),
    ),
    "first_variation": (
        _field("first_variation", "first variation xi = dE/drho", lambda s: s.fields.first_variation),
    ),
    "velocity": (
        _field("velocity_east", "token velocity, component to the east", lambda s: s.fields.velocity[1]),
        _field("velocity_north", "token velocity, component to the north", lambda s: -s.fields.velocity[0]),
    ),
    "surprisal": (
        _field("surprisal", "surprisal - sum_h w_h log p_h(x)", lambda s: s.inference.surprisal),
    ),
    "posterior_divergence": (
        _field("posterior_divergence", "divergence sum_h w_h KL(q_h || p_h)(x) of the attention from the posterior",
               lambda s: s.inference.posterior_divergence),
    ),
    "resultant_length": (
        _field("resultant_length", "resultant length sum_h w_h |int y q_h(y|x) dy| of the attention",
               lambda s: s.resultant),
    ),
    "local_gate_entropy": (
        _field("local_gate_entropy", "gate entropy - sum_e g_e log g_e at x", lambda s: gate_entropy(_gates(s))),
    ),
    "gates": (
        _field("gates", "gate g_e(x) of each expert", lambda s: np.moveaxis(_gates(s), -1, 0), before=("expert",)),
    ),
}  # fmt: skip


def run_variables(
    fields: Sequence[str], with_noise: bool, with_values: bool, with_likelihood: bool = False, with_experts: bool = False
) -> tuple[Variable, ...]:
    """The recorded variables of a density run.

    Parameters
    ----------
    fields : sequence of str
        Names of `FIELDS`.
    with_noise, with_values : bool
        Whether the weights carry noise, and whether there are value matrices of their own.
    with_likelihood, with_experts : bool
        Whether the heads are those of a variational flow, and whether experts are part of a drift.
    """
    chosen = tuple(variable for name in FIELDS if name in fields for variable in FIELDS[name])
    noise = NOISE_SCALARS if with_noise else ()
    values = VALUE_VARIABLES if with_values else ()
    flow = FLOW_SCALARS if with_likelihood else ()
    experts = EXPERT_VARIABLES if with_experts else ()
    return (*chosen, *SCALARS, *noise, *flow, *experts, *HEAD_VARIABLES, *values)


MOVEMENT_SCALARS = (
    _scalar("movement_cost", "cost W^2 / (2 tau) of the last step", lambda s: s.movement_cost),
    _scalar(
        "movement_slack",
        "slack of the last step's energy inequality, -s E before and after it, minus its cost, at its weights",
        lambda s: s.movement_slack,
    ),
    _scalar("movement_slack_min", "smallest slack of all steps since t = 0", lambda s: s.smallest_slack),
    _scalar("newton_iterations", "Newton iterations of the last step", lambda s: s.newton_iterations, dtype="i4"),
    _scalar("step_halvings", "steps repeated with half the length since t = 0", lambda s: s.halvings, dtype="i8"),
)


def movement_variables(fields: Sequence[str], with_noise: bool, with_values: bool, **features: bool) -> tuple[Variable, ...]:
    """The variables of a run by minimising movements: those of `run_variables` and the account of the last step."""
    return (*run_variables(fields, with_noise, with_values, **features), *MOVEMENT_SCALARS)


MOMENTS = ("mean_x", "mean_y", "mean_z", "second_moment", "order_parameter")
DENSITY_ONLY = ("entropy", "density_min", "density_max", "cluster_count")
POSITION = Variable("position", ("t", "particle", "xyz"), "1", "unit vectors of the tokens", lambda s: s.position)
TOKEN_FIELDS = {
    name: tuple(Variable(v.name, (*v.dims[:-2], "particle"), v.units, v.long_name, v.value) for v in FIELDS[name])
    for name in ("surprisal", "posterior_divergence", "resultant_length", "local_gate_entropy", "gates")
}
PARTICLE_WEIGHT = Variable("particle_weight", ("particle",), "1", "weight of each token, total 1")
MEAN_VECTOR = Variable("mean", ("t", "row"), "1", "mean position int x rho", lambda s: s.mean)


def particle_variables(
    fields: Sequence[str],
    with_noise: bool,
    with_values: bool,
    dimension: int = 3,
    with_likelihood: bool = False,
    with_experts: bool = False,
) -> tuple[Variable, ...]:
    """The variables of a particle run: those of `run_variables` that need no density, and the tokens.

    Parameters
    ----------
    fields : sequence of str
        "position", and names of `TOKEN_FIELDS`.
    with_noise, with_values, with_likelihood, with_experts : bool
        As in `run_variables`.
    dimension : int
        Dimension d; beyond 3 the mean is one vector instead of mean_x, mean_y, mean_z.
    """
    absent = {*DENSITY_ONLY, *MOMENTS}
    every = run_variables((), with_noise, with_values, with_likelihood, with_experts)
    shared = tuple(v for v in every if v.name not in absent)
    chosen = tuple(variable for name in TOKEN_FIELDS if name in fields for variable in TOKEN_FIELDS[name])
    position = (POSITION,) if "position" in fields else ()
    return (*position, *chosen, PARTICLE_WEIGHT, *shared, *moment_variables(dimension))


def moment_variables(dimension: int) -> tuple[Variable, ...]:
    """Moments of tokens in dimension d: mean_x, ... or, beyond 3, the vector mean; second moments; order parameter."""
    absent = ("mean_x", "mean_y", "mean_z")[dimension if dimension <= 3 else 0 :]
    mean = (MEAN_VECTOR,) if dimension > 3 else ()
    return (*(v for v in SCALARS if v.name in MOMENTS and v.name not in absent), *mean)


def record(snapshot, variables: Sequence[Variable]) -> dict[str, np.ndarray]:
    """Values of the variables for one snapshot, by name; overflow of energies at huge weights reads as inf or NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        recorded = [variable for variable in variables if variable.value is not None]
        return {variable.name: np.asarray(variable.value(snapshot)) for variable in recorded}
