r"""What random tokens are expected to be off by: resampling.

n random tokens are a sample of a density, and what is computed from them is off. It is estimated by the bootstrap, in which the
n tokens stand for the density: samples of m <= n tokens are drawn from them.

* "trajectories": the tokens at t = 0 are resampled and every sample is run anew under the same heads. This is the
  sampling error of a run, since tokens interact: repulsion damps it, clustering makes it grow.
* "snapshots": the tokens of every record are resampled as if they were independent; all that is possible where the
  weights or the first tokens are unknown.

How an error shrinks from m to n tokens depends on what it is an error of.

**Smooth functions** of the measure (E, P, G^2, moments, coefficients of spherical harmonics) spread by n^{-1/2} and have a bias
of n^{-1}. The samples' spread and bias are scaled so.

**Wasserstein distances** have no rate of their own. The fluctuation xi of a sample is a signed measure, each mass of which
is of size n^{-1/2}. W_1 from mu to mu + xi is a norm of xi; only the ever smaller scales that more tokens resolve make it
fall a little slower than n^{-1/2}, like (log n / n)^{1/2} on a surface. So does W_2 of a density with a positive minimum,
through which mass is passed on in small steps. But between clusters with nothing in between, what is too much in one, a
share of n^{-1/2}, has to be carried the whole distance D: W_2^2 ~ D^2 n^{-1/2}, and W_2 falls like n^{-1/4}. The same holds
between coarsened measures, whatever the density, once tokens are closer than the sites. Which rate a run is at cannot be
seen from it, so none is assumed: fluctuations of samples are averaged until they are those of n tokens. With K of them, the
two measures

    mu + a sum_{i <= K/2} xi_i    and    mu + a sum_{i > K/2} xi_i,    a = (m / (n K))^{1/2},

differ by a signed measure with the covariance of the fluctuation of n tokens. They have no negative masses if K <= 4 n / m, for
which a K / 2 <= 1; if K = 4 n / m, mu drops out and they are two samples of 2 n tokens each. Where m = n nothing needs to be
averaged, and a sample is compared with the tokens it was drawn from.

To go from m to n at all takes for granted that the flow carries fluctuations on linearly. Where a sample decides at which of
several places all tokens gather it does not, and the estimates are too small.
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
DISTANCE_SAMPLES = 6  # pairs of measures whose Wasserstein distances are computed
FEWEST_SAMPLES = 4  # of which pairs can be made that tell a standard deviation
WHOLE = 0.99  # samples of so large a share of the effective number of tokens are as large as the run
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
        m / n: variances and biases of the samples times this are those of the run, in smooth functions of the measure.
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
        distances = [np.linalg.norm(spectrum_distance(s, measure)) for s in self.samples[j]]
        return _summary(np.sqrt(self.scale) * np.array(distances))

    def wasserstein(self, j: int, measure: Coarse) -> tuple[np.ndarray, np.ndarray]:
        """Expected W_1, W_2 between the run and the density it samples, and their standard deviations."""
        return _summary(np.array([wasserstein(*pair) for pair in self._pairs(self.samples[j], measure)]))

    def _pairs(self, samples, measure):
        """Pairs of measures that are apart as the run and its density are; see the module."""
        if self.scale > WHOLE:
            yield from ((coarsen(sample), measure) for sample in samples[:DISTANCE_SAMPLES])
            return
        half = max(min(int(2 / self.scale), len(samples) // 2), 1)
        share = np.sqrt(self.scale / (2 * half))
        generator = np.random.default_rng(len(samples))  # any: the splits need only be the same at every call
        for _ in range(DISTANCE_SAMPLES):
            order = generator.permutation(len(samples))
            yield tuple(_mixed(measure, [samples[i] for i in side], share) for side in (order[:half], order[half : 2 * half]))


def _mixed(measure, samples, share):
    """A share of each sample, and of the measure what is left of the mass."""
    left = max(1 - share * len(samples), 0.0)
    points = np.concatenate([measure.points, *(sample.points for sample in samples)])
    masses = np.concatenate([left * measure.masses, *(share * sample.masses for sample in samples)])
    present = masses > 0
    return coarsen(Measure(points[present], masses[present] / masses.sum()))


def _summary(distances):
    """Root mean square and standard deviation of distances."""
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
        Number of samples; FEWEST_SAMPLES are drawn at least.
    seed : int
    """

    def __init__(self, side: Side, records: Sequence[int], dynamics: Dynamics | None, replicas: int, seed: int):
        self.side, self.records, self.dynamics = side, list(records), dynamics
        self.replicas = max(replicas, FEWEST_SAMPLES)
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
