"""The comparison: differences at common times beside the differences that sampling explains, and a judgement."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sphereflow.compare.measures import coarsen, spectrum_distance, wasserstein
from sphereflow.compare.noise import QUIET, RESAMPLING_TOLERANCE, Dynamics, Sampler
from sphereflow.compare.sides import SCALARS, Side, common_times, differences, open_side
from sphereflow.errors import CaseError
from sphereflow.particles import TokenOperator

SIGMAS = 4.0  # a difference of more standard deviations (themselves known from few samples) is no sampling noise
DIRECTIONS = {"descend": -1, "ascend": 1}


@dataclass(frozen=True)
class Quantity:
    """One quantity at the compared times.

    Attributes
    ----------
    name : str
    times : ndarray
        The times at which both sides have it.
    a, b : ndarray or None
        Values of both sides, shape (times, ...); None for distances, which are one number for both.
    difference : ndarray, shape (times,)
        |a - b| (Euclidean for vectors and matrices), or the distance.
    expected : ndarray, shape (times,)
        What sampling makes of it on average: the bias taken off a difference, the mean of a distance.
    noise : ndarray, shape (times,)
        Its standard deviation; 0 where neither side is a random sample.
    excess : ndarray, shape (times,)
        What is left after the expected part.
    allowed : ndarray, shape (times,)
        Tolerance and, for Wasserstein distances, the bound of the coarsening's error.
    """

    name: str
    times: np.ndarray
    a: np.ndarray | None
    b: np.ndarray | None
    difference: np.ndarray
    expected: np.ndarray
    noise: np.ndarray
    excess: np.ndarray
    allowed: np.ndarray

    @property
    def sigmas(self) -> np.ndarray:
        """Standard deviations of noise needed to explain what the tolerance does not; infinite without noise."""
        beyond = np.maximum(self.excess - self.allowed, 0.0)
        unexplained = np.where(beyond > 0, np.inf, 0.0)
        return np.divide(beyond, self.noise, out=unexplained, where=self.noise > 0)

    @property
    def agrees(self) -> bool:
        """Whether tolerance and noise explain the difference at every time."""
        return bool(np.all(self.excess <= self.allowed + SIGMAS * self.noise))

    @property
    def worst(self) -> int:
        """Index of the time at which it is hardest to explain."""
        return int(np.argmax(self.excess / np.maximum(self.allowed + SIGMAS * self.noise, 1e-300)))


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes
    ----------
    a, b : Side
    times : ndarray
        The compared times; densities and tokens may be missing at some of them.
    quantities : sequence of Quantity
    spectrum : ndarray, shape (times, degrees), or None
        Distance in each degree 1, 2, ....
    bounds : ndarray, shape (times, 2), or None
        Bounds of the error that coarsening makes in W_1 and W_2.
    tolerance : float
    methods : mapping
        How the noise of "a" and "b" was estimated: none, trajectories or snapshots.
    ignored : sequence of str
        Differences of the models that were overridden.
    notes : sequence of str
    curves : mapping
        Series at all common times, by name: (t, a, b).
    """

    a: Side
    b: Side
    times: np.ndarray
    quantities: Sequence[Quantity]
    spectrum: np.ndarray | None
    bounds: np.ndarray | None
    tolerance: float
    methods: Mapping[str, str]
    ignored: Sequence[str]
    notes: Sequence[str]
    curves: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]

    @property
    def agrees(self) -> bool:
        """Whether every quantity agrees at every time."""
        return all(quantity.agrees for quantity in self.quantities)

    @property
    def verdict(self) -> str:
        """The judgement in words."""
        if not self.agrees:
            worst = max((q for q in self.quantities if not q.agrees), key=lambda q: np.max(q.sigmas))
            k = worst.worst
            noise = f", {worst.sigmas[k]:.1f} sigma of sampling noise" if worst.noise[k] > 0 else ""
            return f"does not agree: {worst.name} is apart by {worst.difference[k]:.3g} at t = {worst.times[k]:g}{noise}"
        if set(self.methods.values()) == {"none"}:
            return f"agrees within the tolerance {self.tolerance:g}"
        return f"agrees within sampling noise ({max(np.max(q.sigmas) for q in self.quantities):.1f} sigma)"

    def to_dict(self) -> dict:
        """Everything as plain values that JSON knows."""
        return {
            "a": _side_facts(self.a), "b": _side_facts(self.b), "agrees": self.agrees, "verdict": self.verdict,
            "tolerance": self.tolerance, "sigmas_allowed": SIGMAS, "sampling_noise": dict(self.methods),
            "overridden": list(self.ignored), "notes": list(self.notes), "t": self.times.tolist(),
            "quantities": {q.name: _quantity_facts(q) for q in self.quantities},
            "spectrum_distance_by_degree": None if self.spectrum is None else self.spectrum.tolist(),
            "coarsening_bound": None if self.bounds is None else {
                f"wasserstein_{p + 1}": self.bounds[:, p].tolist() for p in range(2)
            },
        }  # fmt: skip


def _side_facts(side):
    facts = {"file": side.name, "kind": side.what, "records": int(side.t.size), "random_tokens": side.is_random}
    return {**facts, "model": dict(side.model)}


def _quantity_facts(q):
    facts = {"t": q.times.tolist()} | ({} if q.a is None else {"a": q.a.tolist(), "b": q.b.tolist()})
    names = ("difference", "expected", "noise", "excess", "allowed", "sigmas")
    numbers = {name: [float(v) if np.isfinite(v) else None for v in getattr(q, name)] for name in names}
    return {**facts, **numbers, "agrees": q.agrees}


def compare(
    first, second, *, times: int = 6, tolerance: float = 1e-3, replicas: int = 16, force: bool = False, seed: int = 0
) -> Comparison:
    """Compare two runs at common times.

    Parameters
    ----------
    first, second : path-like
        Output files of sphereflow (densities, tokens, imported data) or the data of others (.pt, .npz, .csv).
    times : int
        Number of compared times, spread evenly over the common ones, the last included.
    tolerance : float
        What is allowed besides sampling noise: relative to the largest value for E, P and G^2, absolute for moments,
        spectra and distances.
    replicas : int
        Number of samples by which the noise of random tokens is estimated, at least 2.
    force : bool
        Compare runs whose model or weights differ.
    seed : int
        Of the samples.

    Raises
    ------
    CaseError
        If the models, directions or weights differ (the message names how; not with `force`), the dimensions differ,
        the runs have no common times, or nothing in common that can be compared.
    OutputError
        If a file cannot be read.
    """
    _check_settings(times, tolerance, replicas)
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(contextlib.closing(open_side(path))) for path in (first, second)]
        return _compared(*sides, times, tolerance, replicas, force, seed)


def _compared(a, b, times, tolerance, replicas, force, seed):
    """The comparison of two open sides."""
    if None not in (a.dimension, b.dimension) and a.dimension != b.dimension:
        raise CaseError(f"{a.name} is in dimension {a.dimension}, {b.name} in dimension {b.dimension}")
    in_a, in_b = common_times(a, b)
    apart = differences(a, b, a.t[in_a])
    if apart and not force:
        raise CaseError(f"{a.name} and {b.name} differ: {'; '.join(apart)}; use --force to compare them all the same")
    chosen = _chosen(a, b, in_a, in_b, times)
    pair = _Pair(a, b, in_a[chosen], in_b[chosen], tolerance, replicas, seed)
    quantities = [*pair.scalars(), *pair.states()]
    if not quantities:
        raise CaseError(f"{a.name} and {b.name} have nothing in common that can be compared")
    curves = {
        name: (a.t[in_a], a.series[name][in_a], b.series[name][in_b])
        for name in SCALARS
        if name in a.series and name in b.series
    }
    methods = {"a": pair.noise[0].method, "b": pair.noise[1].method}
    return Comparison(a, b, pair.times, quantities, pair.spectrum, pair.bounds, tolerance, methods, apart, pair.notes, curves)


def _check_settings(times, tolerance, replicas):
    for name, value, least in (("times", times, 1), ("replicas", replicas, 2)):
        if value < least:
            raise CaseError(f"{name}: {value} is not allowed; must be >= {least}")
    if not 0 < tolerance < np.inf:
        raise CaseError(f"tolerance: {tolerance:g} is not allowed; must be a finite number > 0")


def _chosen(a, b, in_a, in_b, number):
    """Positions, among the common times, of those to compare: spread evenly, with states where there are any."""
    with_states = [j for j in range(in_a.size) if a.has_state(in_a[j]) and b.has_state(in_b[j])]
    if any(side.is_random and not side.has_start for side in (a, b)):
        return _spread(np.array(with_states, dtype=int), number)
    return np.union1d(_spread(np.arange(in_a.size), number), _spread(np.array(with_states, dtype=int), number))


def _spread(candidates, number):
    picked = np.linspace(0, candidates.size - 1, min(number, candidates.size)).round().astype(int)
    return candidates[np.unique(picked)]


class _Pair:
    """Both sides at the compared times."""

    def __init__(self, a, b, in_a, in_b, tolerance, replicas, seed):
        self.sides, self.records, self.tolerance = (a, b), (in_a, in_b), tolerance
        self.times, self.notes = a.t[in_a], []
        self.measures = tuple(
            [side.measure(k) if side.has_state(k) else None for k in r]
            for side, r in zip(self.sides, self.records, strict=True)
        )
        self.complete = np.flatnonzero([None not in pair for pair in zip(*self.measures, strict=True)])
        self.dynamics = self._dynamics()
        self.noise = tuple(
            Sampler(side, r, self.dynamics, replicas, seed + i).noise if side.is_random else QUIET
            for i, (side, r) in enumerate(zip(self.sides, self.records, strict=True))
        )
        self.spectrum = self.bounds = None
        self.notes += [
            f"{side.name} holds no tokens and no density: its sampling noise, if it has any, is unknown"
            for side in self.sides
            if side.what == "series"
        ]

    def _dynamics(self):
        """The equation of the side that knows it."""
        for side in self.sides:
            if side.path is not None and {"velocity", "direction"} <= side.model.keys():
                direction = DIRECTIONS[side.model["direction"]]
                operator = TokenOperator(side.model["velocity"], direction, RESAMPLING_TOLERANCE, side.drift)
                return Dynamics(operator, side.path)
        self.notes.append("the weights are unknown: what needs them is left out")
        return None

    def _difference(self, name, values, at, feature, scale):
        """A quantity that both sides have, from its values (times, ...) and how to compute it for a sample."""
        values = [np.asarray(v, dtype=float) for v in values]
        noise = [[n.of(j, feature, v[i]) for i, j in enumerate(at)] for n, v in zip(self.noise, values, strict=True)]
        deviation, bias = (np.array([[pair[i] for pair in side] for side in noise]) for i in (0, 1))
        axes = tuple(range(1, values[0].ndim))
        offset = values[0] - values[1]
        expected = bias[0] - bias[1]
        size = [np.sqrt(np.sum(v**2, axis=axes)) for v in (offset, expected, offset - expected)]
        spread = np.sqrt(np.sum(deviation**2, axis=(0, *(axis + 1 for axis in axes))))
        allowed = np.full(len(at), self.tolerance * scale)
        return Quantity(name, self.times[at], *values, *size[:2], spread, size[2], allowed)

    def scalars(self):
        """E, P and G^2; evaluated for tokens whose file does not hold them, if the other side knows the weights."""
        for name in SCALARS:
            values = np.array([self._series(i, name) for i in (0, 1)])
            at = np.flatnonzero(np.isfinite(values).all(axis=0))
            if at.size and not (self.dynamics is None and self.noise != (QUIET, QUIET)):
                scale = np.abs(values[:, at]).max()
                feature = _scalar_feature(name)
                yield self._difference(name, values[:, at], at, feature, scale)

    def _series(self, i, name):
        """Values of one side at the compared times, NaN where they are unknown."""
        side = self.sides[i]
        if name in side.series:
            return side.series[name][self.records[i]]
        if self.dynamics is not None and side.what != "series":
            self.notes.append(f"{side.name} holds no {name}: evaluated with the weights of {self.sides[1 - i].name}")
            return [
                np.nan if measure is None else self.dynamics.scalars(measure, t)[name]
                for measure, t in zip(self.measures[i], self.times, strict=True)
            ]
        return np.full(self.times.size, np.nan)

    def states(self):
        """Moments, spectra and Wasserstein distances, where both sides have a density or tokens."""
        at = self.complete
        if not at.size:
            self.notes.append("there is no time with densities or tokens on both sides: moments and distances are left out")
            return
        sides = [[side[j] for j in at] for side in self.measures]
        for name, attribute in (("mean", "mean"), ("second moments", "second_moment")):
            values = [[getattr(m, attribute) for m in side] for side in sides]
            yield self._difference(name, values, at, _moment_feature(attribute), 1.0)
        if sides[0][0].points.shape[1] == 3:
            self.spectrum = np.array([spectrum_distance(x, y) for x, y in zip(*sides, strict=True)])
            expected, spread = self._expected(lambda noise, j, measure: noise.spectrum(j, measure), sides)
            total = np.sqrt(np.sum(self.spectrum**2, axis=1))
            yield self._distance("spectrum distance", total, expected, spread, 0.0)
        yield from self._wasserstein(sides)

    def _wasserstein(self, sides):
        coarse = [[coarsen(m) for m in side] for side in sides]
        found = np.array([wasserstein(x, y) for x, y in zip(*coarse, strict=True)])
        self.bounds = np.array([np.add(x.bound, y.bound) for x, y in zip(*coarse, strict=True)])
        expected, spread = self._expected(lambda noise, j, measure: noise.wasserstein(j, measure), coarse)
        for p in (0, 1):
            yield self._distance(f"wasserstein_{p + 1}", found[:, p], expected[:, p], spread[:, p], self.bounds[:, p])

    def _expected(self, evaluate, sides):
        """Expected distance and its deviation, (times, ...) each, from the squares of both sides'."""
        parts = [
            np.array([evaluate(noise, j, measure) for j, measure in zip(self.complete, side, strict=True)])
            for noise, side in zip(self.noise, sides, strict=True)
        ]
        both = np.sqrt(parts[0] ** 2 + parts[1] ** 2)
        return both[:, 0], both[:, 1]

    def _distance(self, name, found, expected, spread, bound):
        allowed = self.tolerance + np.broadcast_to(bound, found.shape)
        excess = np.maximum(found - expected, 0.0)
        return Quantity(name, self.times[self.complete], None, None, found, expected, spread, excess, allowed)


def _scalar_feature(name):
    return lambda measure, scalars: scalars[name]


def _moment_feature(attribute):
    return lambda measure, scalars: getattr(measure, attribute)
