"""How far two runs are apart as time goes on, beside the bound of how far they can be.

Where `verdict` asks whether two runs agree, this asks how fast they part: Wasserstein distances, the distance of densities in
L^1 and differences of the energy at common times, and Groenwall's bound of W_2 from the weights (`sphereflow.stability`).
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sphereflow.attention import Heads
from sphereflow.compare.measures import coarsen, wasserstein
from sphereflow.compare.sides import Side, common_times, open_side
from sphereflow.errors import CaseError
from sphereflow.particles import TokenOperator
from sphereflow.stability import distance_ceiling, growth_exponent, linear_growth

DIRECTIONS = {"descend": -1, "ascend": 1}
ENERGY_TOLERANCE = 1e-12
LINEAR_TOKENS = 300  # an eigenvalue problem of 0.2 s
GAUSS_POINTS, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(3)


@dataclass(frozen=True)
class Separation:
    """Two runs at common times; arrays have shape (times,), NaN where something is not known.

    Attributes
    ----------
    names : pair of str
        The files.
    t : ndarray
    wasserstein_1, wasserstein_2 : ndarray
        Distances with geodesic cost; of the coarsened measures, where these had to be coarsened.
    bound_1, bound_2 : ndarray
        What coarsening, and the size of grid cells, can have changed in them; 0 between tokens that are few enough.
    l1 : ndarray
        Integral of |rho - rho'|, of two densities on the same grid.
    energy_difference : ndarray
        E of the second run less E of the first, each with its own weights.
    fixed_energy_difference : ndarray
        The same with the weights of the first run in both.
    weight_difference : ndarray
        sum_h w_h |A_h - A'_h|_F.
    weight_size : float
        Size of the perturbation of the weights: the mean of that over the time compared (Gauss's rule on every piece between
        nodes of the two weight paths).
    exponent : ndarray
        Gamma(t), the integral of the growth rate C that the weights of the first run allow, from above.
    linear_rate : ndarray
        The rate at which infinitesimal perturbations of the first run's tokens can grow (`sphereflow.stability.linear_growth`);
        known for attention of at most LINEAR_TOKENS tokens.
    ceiling : ndarray
        Bound of W_2 (`sphereflow.stability.distance_ceiling`).
    notes : sequence of str
        What is left out, and why.
    """

    names: tuple[str, str]
    t: np.ndarray
    wasserstein_1: np.ndarray
    wasserstein_2: np.ndarray
    bound_1: np.ndarray
    bound_2: np.ndarray
    l1: np.ndarray
    energy_difference: np.ndarray
    fixed_energy_difference: np.ndarray
    weight_difference: np.ndarray
    weight_size: float
    exponent: np.ndarray
    linear_rate: np.ndarray
    ceiling: np.ndarray
    notes: Sequence[str]

    @property
    def input_size(self) -> float:
        """Size of the perturbation of the initial data: W_2 at the first time."""
        return float(self.wasserstein_2[0])

    @property
    def observed_rate(self) -> np.ndarray:
        """Mean rate of growth log(W_2(t) / W_2(0)) / t so far; NaN at the first time and where a distance is 0."""
        t = self.t - self.t[0]
        growing = (t > 0) & (self.wasserstein_2 > 0) & (self.wasserstein_2[0] > 0)
        ratio = np.divide(self.wasserstein_2, self.wasserstein_2[0], out=np.ones_like(t), where=growing)
        return np.divide(np.log(ratio), t, out=np.full_like(t, np.nan), where=growing)


def separation(first, second, times: int = 41) -> Separation:
    """Follow the distance of two runs.

    Parameters
    ----------
    first, second : path-like
        Output files of sphereflow, or the data of others (.pt, .npz, .csv), of densities or tokens; on any grids.
    times : int
        Number of common times, spread evenly, the first and the last included.

    Raises
    ------
    CaseError
        If the runs have no common times with densities or tokens on both sides, or different dimensions.
    OutputError
        If a file cannot be read.
    """
    if times < 1:
        raise CaseError(f"times: {times} is not allowed; must be >= 1")
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(contextlib.closing(open_side(path))) for path in (first, second))
        if None not in (a.dimension, b.dimension) and a.dimension != b.dimension:
            raise CaseError(f"{a.name} is in dimension {a.dimension}, {b.name} in dimension {b.dimension}")
        pairs = [(i, j) for i, j in zip(*common_times(a, b), strict=True) if a.has_state(i) and b.has_state(j)]
        if not pairs:
            raise CaseError(f"{a.name} and {b.name} have no common time with densities or tokens in both")
        chosen = np.unique(np.linspace(0, len(pairs) - 1, times).round().astype(int))
        return _separated(a, b, np.array(pairs)[chosen])


def _separated(a: Side, b: Side, records) -> Separation:
    """The separation of two open sides at pairs of records."""
    notes = []
    t = a.t[records[:, 0]]
    rows = [_distances(a.measure(i), b.measure(j)) for i, j in records]
    distance, bound = np.moveaxis(np.array(rows), 1, 0)
    exponent, ceiling = _ceiling(a, b, t, distance[0, 1] + bound[0, 1], notes)
    return Separation(
        names=(a.name, b.name), t=t, wasserstein_1=distance[:, 0], wasserstein_2=distance[:, 1],
        bound_1=bound[:, 0], bound_2=bound[:, 1], l1=_l1(a, b, records),
        energy_difference=_energies(a, b, records),
        fixed_energy_difference=_fixed_energies(a, b, records, notes),
        weight_difference=_weight_difference(a, b, t), weight_size=_weight_size(a, b, t), exponent=exponent,
        linear_rate=_linear_rate(a, records, exponent), ceiling=ceiling, notes=notes,
    )  # fmt: skip


def _distances(x, y):
    """W_1, W_2 of two measures, and the bounds of their errors, shape (2, 2)."""
    if x.points.shape == y.points.shape and np.array_equal(x.points, y.points) and np.array_equal(x.masses, y.masses):
        return np.zeros((2, 2))
    x, y = coarsen(x), coarsen(y)
    return np.array([wasserstein(x, y), np.add(x.bound, y.bound)])


def _l1(a, b, records):
    """Integral of |rho - rho'| of densities on one grid."""
    if {a.what, b.what} != {"density"}:
        return np.full(len(records), np.nan)
    densities = [(a.density(i), b.density(j)) for i, j in records]
    if densities[0][0].shape != densities[0][1].shape:
        return np.full(len(records), np.nan)
    return np.array([a.cell_area @ np.abs(x - y).sum(axis=1) for x, y in densities])


def _energies(a, b, records):
    if "energy" not in a.series or "energy" not in b.series:
        return np.full(len(records), np.nan)
    return b.series["energy"][records[:, 1]] - a.series["energy"][records[:, 0]]


def _fixed_energies(a, b, records, notes):
    """E of both states with the weights of the first run."""
    if a.path is None:
        notes.append(f"{a.name} holds no weights: energies at fixed weights and the bound are left out")
        return np.full(len(records), np.nan)
    operator = TokenOperator(tolerance=ENERGY_TOLERANCE)
    found = []
    for i, j in records:
        heads = Heads(a.path.logits_at(a.t[i]), a.path.head_weight)
        pair = [operator(m.points, m.masses, heads).energy for m in (a.measure(i), b.measure(j))]
        found.append(pair[1] - pair[0])
    return np.array(found)


def _weight_difference(a, b, t):
    """sum_h w_h |A_h - A'_h|_F, with the w_h of the first run, at some times."""
    if a.path is None or b.path is None or a.path.logits.shape[1:] != b.path.logits.shape[1:]:
        return np.full(t.size, np.nan)
    apart = np.stack([a.path.logits_at(s) - b.path.logits_at(s) for s in t])
    return np.linalg.norm(apart, axis=(-2, -1)) @ a.path.head_weight


def _weight_size(a, b, t):
    """Mean over time of that difference; pieces end at the nodes of the paths: records may miss a quick relaxation.

    Gauss's points lie inside of the pieces, where weights that jump at nodes have one value.
    """
    if a.path is None or b.path is None:
        return np.nan
    nodes = np.concatenate([side.path.time for side in (a, b)])
    nodes = np.unique(np.concatenate([t, nodes[(nodes > t[0]) & (nodes < t[-1])]]))
    if nodes.size == 1:
        return float(_weight_difference(a, b, nodes)[0])
    length = np.diff(nodes)[:, None]
    points = nodes[:-1, None] + length * (1 + GAUSS_POINTS) / 2
    apart = _weight_difference(a, b, points.ravel()).reshape(points.shape)
    return float(np.sum(length / 2 * GAUSS_WEIGHTS * apart) / (nodes[-1] - nodes[0]))


def _ceiling(a, b, t, start, notes):
    """Gamma(t) and the bound of W_2, NaN where the model has none."""
    unknown = np.full(t.size, np.nan)
    reason = _no_bound(a, b)
    if reason:
        notes.append(f"no bound of the distance: {reason}")
        return unknown, unknown
    direction = DIRECTIONS[a.model["direction"]]
    try:
        return growth_exponent(a.path, t, direction), distance_ceiling(start, a.path, b.path, t, direction)
    except ValueError as error:
        notes.append(f"no bound of the distance: {error}")
        return growth_exponent(a.path, t, direction), unknown


def _linear_rate(a, records, exponent):
    """Growth rates of the flow linearised at the states of the first run."""
    if a.what != "tokens" or np.isnan(exponent).all() or a.measure(records[0, 0]).points.shape[0] > LINEAR_TOKENS:
        return np.full(len(records), np.nan)
    rates = []
    for i in records[:, 0]:
        tokens, heads = a.measure(i), Heads.on_path(a.path, a.t[i])
        direction = DIRECTIONS[a.model["direction"]]
        rates.append(linear_growth(tokens.points, tokens.masses, heads.logits, heads.weight, heads.values, direction))
    return np.array(rates)


def _no_bound(a, b):
    """Why the bound does not hold for these runs, or None."""
    for side in (a, b):
        if side.path is None or not {"velocity", "direction"} <= side.model.keys():
            return f"{side.name} holds no weights or no model"
        if side.drift is not None:
            return f"{side.name} has a local drift (model.experts or model.mlp), whose constant is not known"
        if side.model["velocity"] != "attention" and not _is_one_symmetric_head(side):
            return f"{side.name} has model.velocity = {side.model['velocity']!r}; the bound is that of attention"
    for key in ("direction", "diffusion"):
        if a.model.get(key) != b.model.get(key):
            return f"model.{key} is {a.model.get(key)!r} and {b.model.get(key)!r}"
    return None


def _is_one_symmetric_head(side):
    """Whether gradient-flow is attention."""
    logits = side.path.logits
    symmetric = np.abs(logits - logits.swapaxes(-1, -2)).max() <= 1e-12 * np.abs(logits).max()
    return side.model["velocity"] == "gradient-flow" and logits.shape[1] == 1 and bool(symmetric)
