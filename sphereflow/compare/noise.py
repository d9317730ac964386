r"""What random tokens are expected to be off by: resampling.

n random tokens are a sample of a density, and everything computed from them is off by about n^{-1/2} in spread and
n^{-1} in bias. Both are estimated by the bootstrap, in which the n tokens stand for the density: samples of m <= n
tokens are drawn from them, and their spread and bias are scaled from m to n.

* "trajectories": the tokens at t = 0 are resampled and every sample is run anew under the same heads. This is the
  sampling error of a run, since tokens interact: repulsion damps it, clustering makes it grow.
* "snapshots": the tokens of every record are resampled as if they were independent; all that is possible where the
  weights or the first tokens are unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sphereflow.attention import Heads
from sphereflow.compare.measures import Coarse, Measure, coarsen, spectrum_distance, wasserstein
from sphereflow.compare.sides import SCALARS, Side
from sphereflow.heads import WeightPath
from sphereflow.particles import ParticleSolver, TokenOperator

LARGEST_SAMPLE = 256  # tokens of one sample
LARGEST_STEP = 0.1  # of the samples' runs by RK4: their error is far below the noise
SHORTEST_STEP = 0.02  # where kinks of the weight path are closer Euler steps do as well, at a quarter of the cost
DISTANCE_SAMPLES = 6  # samples whose Wasserstein distances are computed
RESAMPLING_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Dynamics:
    """The equation that the tokens follow: how to evaluate it, and its weights."""

    operator: TokenOperator
    path: WeightPath

    def scalars(self, measure: Measure, t: float) -> dict[str, float]:
        """E, P and G^2 of a measure at a time."""
        fields = self.operator(measure.points, measure.masses, Heads.on_path(self.path, t, self.path.piece_at(t)))
        return {name: getattr(fields, name) for name in SCALARS}


@dataclass(frozen=True)
class Noise:
    """Samples of a token run at the compared times.

    Attributes
    ----------
    method : str
        "trajectories" or "snapshots".
    scale : float
        m / n: variances and biases of the samples times this are those of the run.
    samples : list (times) of list (replicas) of Measure
    scalars : list (times) of list (replicas) of dict
        E, P, G^2 of the samples, empty where the weights are unknown.
    """

    method: str
    scale: float
    samples: Sequence[Sequence[Measure]]
    scalars: Sequence[Sequence[Mapping[str, float]]]

    def of(self, j: int, feature: Callable[[Measure, Mapping], object], value) -> tuple[np.ndarray, np.ndarray]:
        """Standard deviation and bias, at the j-th time, of a feature that is `value` for the run itself."""
        found = [feature(*pair) for pair in zip(self.samples[j], self.scalars[j], strict=True)]
        found = np.array([np.asarray(f, dtype=float) for f in found])
        deviation = np.std(found, axis=0, ddof=1) * np.sqrt(self.scale)
        return deviation, (found.mean(axis=0) - value) * self.scale

    def spectrum(self, j: int, measure: Measure) -> tuple[np.ndarray, np.ndarray]:
        """Expected spectrum distance between the run and the density it samples, and its standard deviation."""
        return self._scaled([np.linalg.norm(spectrum_distance(s, measure)) for s in self.samples[j]])

    def wasserstein(self, j: int, measure: Coarse) -> tuple[np.ndarray, np.ndarray]:
        """Expected W_1, W_2 between the run and the density it samples, and their standard deviations."""
        return self._scaled([wasserstein(coarsen(s), measure) for s in self.samples[j][:DISTANCE_SAMPLES]])

    def _scaled(self, distances):
        distances = np.array(distances) * np.sqrt(self.scale)
        return np.sqrt(np.mean(distances**2, axis=0)), distances.std(axis=0, ddof=1)


class _Quiet:
    """The noise of a side that is no random sample."""

    method = "none"

    def of(self, j, feature, value):
        value = np.asarray(value, dtype=float)
        return np.zeros_like(value), np.zeros_like(value)

    def spectrum(self, j, measure):
        return 0.0, 0.0

    def wasserstein(self, j, measure):
        return np.zeros(2), np.zeros(2)


QUIET = _Quiet()


class Sampler:
    """Draws samples from the tokens of a side.

    Parameters
    ----------
    side : Side
        Random tokens.
    records : sequence of int
        Its compared records.
    dynamics : Dynamics or None
        Its equation, as far as it is known.
    replicas : int
        Number of samples, at least 2.
    seed : int
    """

    def __init__(self, side: Side, records: Sequence[int], dynamics: Dynamics | None, replicas: int, seed: int):
        self.side, self.records, self.dynamics, self.replicas = side, list(records), dynamics, replicas
        self.generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence((5, seed))))

    @cached_property
    def noise(self) -> Noise:
        """The samples, at every compared record."""
        side = self.side
        if self.dynamics is not None and side.has_start:
            method, samples, scale = "trajectories", *self._trajectories()
        else:
            method, samples, scale = "snapshots", *self._snapshots()
        scalars = [
            [{} if self.dynamics is None else self.dynamics.scalars(sample, side.t[k]) for sample in at_once]
            for k, at_once in zip(self.records, samples, strict=True)
        ]
        return Noise(method, scale, samples, scalars)

    def _draw(self, measure):
        """One sample of m tokens, and m / n with the effective number n = 1 / sum p^2 of the tokens."""
        number = 1 / np.sum(measure.masses**2)
        size = int(min(round(number), LARGEST_SAMPLE))
        chosen = self.generator.choice(len(measure.masses), size=max(size, 1), p=measure.masses)
        return Measure(measure.points[chosen], np.full(len(chosen), 1 / len(chosen))), len(chosen) / number

    def _snapshots(self):
        drawn = [[self._draw(self.side.measure(k)) for _ in range(self.replicas)] for k in self.records]
        return [[sample for sample, _ in at_once] for at_once in drawn], drawn[0][0][1]

    def _trajectories(self):
        first, samples, scale = self.side.measure(0), [[] for _ in self.records], 1.0
        pieces = np.diff(self.dynamics.path.breakpoints)
        scheme = "euler" if pieces.size and np.median(pieces) < SHORTEST_STEP else "rk4"
        for _ in range(self.replicas):
            sample, scale = self._draw(first)
            tokens = ParticleSolver(
                self.dynamics.operator, self.dynamics.path, sample.points, sample.masses, scheme, LARGEST_STEP
            )
            for k, at_once in zip(self.records, samples, strict=True):
                while tokens.t < self.side.t[k]:
                    tokens.advance(float(self.side.t[k]))
                at_once.append(Measure(tokens.positions, tokens.weights))
        return samples, scale
