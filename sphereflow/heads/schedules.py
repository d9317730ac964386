"""The laws of the weights, each sampled once into a `WeightPath`.

Schedules
---------
frozen
    A_h is constant.
ornstein-uhlenbeck
    dD = rate (mean - D) dt + sigma dW_sym with sigma^2 = noise_var and dW_sym = (Z + Z^T)/2 sqrt(dt) for standard
    normal Z, so that d<x^T D y> = sigma^2/2 (1 + (x.y)^2) dt for unit x, y. Scheme "exact" draws the Gaussian
    transition D(t+h) = mean + e^{-rate h} (D(t) - mean) + sigma sqrt((1 - e^{-2 rate h})/(2 rate)) (Z + Z^T)/2;
    "euler-maruyama" is the explicit step of the same equation.
oscillating
    dD/dt = F_h(t) - D with a forcing F_h whose entries are constants plus sinusoids of t' = t + phase_h. Scheme "exact"
    evaluates the closed-form solution; "euler" is the explicit step dD = (F_h(t_k) - D) step.
table
    Piecewise linear through the matrices of a file (learned weights), or piecewise constant: layer after layer.

Score-based variational flow
----------------------------
With kind = "svflow" a head has a concentration kappa_h and the likelihood p(x | y) = vMF(x; y, kappa_h) of token x under
each other token y, whose score is kappa_h P_x y. The head's velocity is the mean of that score over a posterior q(y | x):

* posterior = "exact", q = p(y | x) = p(x | y) rho(y) / p(x): since grad p(x) = int p(x|y) kappa_h P_x y rho(y) dy, it is
  grad log p with p(x) = int vMF(x; y, kappa_h) rho(y) dy = C(kappa_h) m_h(x), that is A_h = V_h = kappa_h I;
* posterior = "attention", q = softmax of x . A_h y over rho with logits of their own: V_h = kappa_h I.

Random numbers
--------------
Every head draws from its own generators, one per named stream (initial matrices, noise, phases), seeded by
``SeedSequence((stream, head, number of seed words, *seed))``. A head's weights therefore depend neither on the number of
heads nor on what other streams consume, and a longer path has the shorter one as its bit-identical prefix. The seed
comes last and its length is hashed too because SeedSequence pads with zeros: with the seed in front, head 1 of seed 42
would repeat head 0 of seed (42, 1).
"""

from collections.abc import Callable
from numbers import Integral
from os import PathLike
from typing import NamedTuple

import numpy as np

from sphereflow.errors import CaseError
from sphereflow.heads.path import ROUND_OFF, WeightPath, linear
from sphereflow.limits import require_computable

STREAM_INITIAL = 1
STREAM_NOISE = 2
STREAM_PHASE = 3

_LARGEST_PATH = 4 * 2**30


def head_generator(seed, stream: int, head: int) -> np.random.Generator:
    """Random generator of one head and one named stream (see the module's section on random numbers).

    Parameters
    ----------
    seed : int or sequence of int
        Seed of the case; ensembles append the member's number.
    stream : int
        STREAM_INITIAL, STREAM_NOISE or STREAM_PHASE.
    head : int
        Index of the head.
    """
    words = (int(seed),) if isinstance(seed, Integral) else tuple(int(word) for word in seed)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((stream, head, len(words), *words))))


def sample_weight_path(spec, t_end: float, dimension: int = 3, read_arrays: Callable | None = None) -> WeightPath:
    """Sample the weights of a run on [0, t_end] or, on a time grid, to the first node not before t_end.

    Parameters
    ----------
    spec : object
        The [heads] table of a case: attributes count, schedule, initial | matrices | file, scale, seed, step, values,
        weights, and those of its schedule: rate, mean, noise_var, scheme, phase. A count of None is the number of
        matrices given; values of None are those of the table if it has some, else "logits".
    t_end : float
        End of the run, positive.
    dimension : int
        Dimension d >= 2 of the tokens.
    read_arrays : callable, optional
        `read_arrays(path, required, optional=()) -> dict` of float64 arrays (`sphereflow.storage.arrays.read_arrays`);
        needed if the specification names files.

    Returns
    -------
    WeightPath

    Raises
    ------
    CaseError
        If matrices or files cannot be used: wrong shapes, non-finite or non-symmetric entries, a table that does not
        cover the run; the message names the file, the array and what was found and expected.
    """
    if not t_end > 0:
        raise CaseError(f"solver.t_end: {t_end} is not allowed; must be positive")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows is refused below
        pieces = _pieces(spec, t_end, dimension, read_arrays)
    for key, array in pieces.items():
        if key in _MATRICES:
            require_computable(f"heads: {_MATRICES[key]}", array, "give smaller matrices, or another heads.scale or step")
    return WeightPath(head_weight=_head_weights(spec, pieces["logits"].shape[1]), **pieces)


_MATRICES = {"logits": "logit matrices", "values": "value matrices", "rate": "rates of the logit matrices"}


def _pieces(spec, t_end, dimension, read_arrays):
    """What the path of a schedule is made of, besides the weights of the heads."""
    if spec.schedule == "table":
        pieces = _table(spec, t_end, dimension, read_arrays)
    else:
        initial = initial_logits(spec, dimension, read_arrays)
        try:
            schedule = _SCHEDULES[spec.schedule]
        except KeyError:
            raise CaseError(f"heads.schedule: unknown schedule {spec.schedule!r}") from None
        pieces = schedule(spec, t_end, initial)
    nodes = pieces["logits"].shape
    values = _value_matrices(spec, nodes[1:], read_arrays)
    if is_variational(spec):
        pieces["concentration"] = concentrations(spec, nodes[1])
        values = _score_matrices(spec, pieces["concentration"], dimension)
    if values is not None:
        pieces["values"] = np.broadcast_to(values, nodes)
    return pieces


def initial_logits(spec, dimension: int = 3, read_arrays: Callable | None = None) -> np.ndarray:
    """Initial logit matrices, shape (H, d, d): a named family, explicit matrices or a file's "logits", times scale.

    Parameters are those of `sample_weight_path`. "gaussian-symmetric" is Z + Z^T with standard normal Z, so that
    diagonal entries have variance 4 and the others 2.

    Raises
    ------
    CaseError
        If the matrices have the wrong shape or are not finite, or, for the two symmetric schedules, not symmetric.
    """
    shape = (spec.count, dimension, dimension)
    if is_variational(spec) and spec.posterior == "exact":
        return concentrations(spec, spec.count or 1)[:, None, None] * np.eye(dimension)
    if spec.matrices is not None:
        source, initial = "heads.matrices", _given_matrices(spec.matrices, shape, "heads.matrices")
    elif spec.file is not None:
        source, initial = f"{spec.file}: array 'logits'", read_arrays(spec.file, ("logits",))["logits"]
        _check_array(initial, shape, spec.file, "logits", "head, row, col")
    else:
        source, initial = "heads.initial", _named_family(spec, spec.count or 1, dimension)
    if spec.schedule in ("ornstein-uhlenbeck", "oscillating"):
        initial = _symmetric(initial, source, spec.schedule)
    return spec.scale * initial


def is_variational(spec) -> bool:
    """Whether a [heads] table asks for the heads of a score-based variational flow."""
    return getattr(spec, "kind", "attention") == "svflow"


def concentrations(spec, count: int) -> np.ndarray:
    """Concentrations kappa_h of the likelihoods, shape (count,).

    Raises
    ------
    CaseError
        If there is none, a negative or non-finite one, or another number of them than heads.
    """
    if spec.kappa is None:
        raise CaseError('heads.kappa: missing; kind = "svflow" needs a concentration, or one for each head')
    kappa = np.asarray(spec.kappa, dtype=float)
    if kappa.ndim and kappa.shape != (count,):
        raise CaseError(f"heads.kappa: shape {kappa.shape}; expected ({count},), one for each head, or one number")
    if not np.all(np.isfinite(kappa)) or np.any(kappa < 0):
        raise CaseError(f"heads.kappa: {kappa.tolist()} is not allowed; must be finite and >= 0")
    return np.broadcast_to(kappa, count).copy()


def _score_matrices(spec, kappa, dimension):
    """V_h = kappa_h I (H, d, d); None for the exact posterior, where V_h = A_h and a potential carries all heads."""
    return None if spec.posterior == "exact" else kappa[:, None, None] * np.eye(dimension)


def _named_family(spec, count, dimension):
    """Initial matrices of a family, drawn from each head's own stream if random."""
    if spec.initial == "gaussian-symmetric":
        draws = (head_generator(spec.seed, STREAM_INITIAL, head) for head in range(count))
        z = np.stack([generator.standard_normal((dimension, dimension)) for generator in draws])
        return z + z.swapaxes(1, 2)
    if spec.initial not in ("identity", "zero"):
        raise CaseError(f"heads.initial: unknown family {spec.initial!r}")
    return np.tile(_named_matrix(spec.initial, dimension), (count, 1, 1))


def _head_weights(spec, count):
    """Weights w_h; equal unless given."""
    if spec.weights is None:
        return np.full(count, 1.0 / count)
    weight = np.asarray(spec.weights, dtype=float)
    if weight.shape != (count,):
        raise CaseError(f"heads.weights: {weight.size} weights for {count} heads")
    if not np.all(weight > 0) or abs(weight.sum() - 1) > 1e-9:
        raise CaseError(f"heads.weights: must be positive and sum to 1; the sum is {weight.sum():.12g}")
    return weight / weight.sum()


def _named_matrix(name, dimension):
    return np.eye(dimension) if name == "identity" else np.zeros((dimension, dimension))


def _value_matrices(spec, shape, read_arrays):
    """Constant value matrices (H, d, d) or (d, d), or None where V = direction * A or a table has its own."""
    if spec.values is None or is_variational(spec):
        return None
    if not isinstance(spec.values, str | PathLike):
        return _given_matrices(spec.values, shape, "heads.values")
    if spec.values == "logits":
        return None
    if spec.values == "identity":
        return np.eye(shape[-1])
    values = read_arrays(spec.values, ("values",))["values"]
    _check_array(values, shape, spec.values, "values", "head, row, col")
    return values


def _given_matrices(entries, shape, key):
    """Matrices written in the case, checked for shape (None: any number) and finiteness."""
    expected = " x ".join("any" if length is None else str(length) for length in shape)
    try:
        array = np.asarray(entries, dtype=float)
    except (TypeError, ValueError):
        raise CaseError(f"{key}: is no array of numbers; expected {expected}") from None
    if not _fits(array, shape):
        raise CaseError(f"{key}: shape {array.shape}; expected {expected}")
    if not np.all(np.isfinite(array)):
        raise CaseError(f"{key}: entries must be finite")
    return array


def _fits(array, shape):
    """Whether an array has a shape in which None stands for any length but 0."""
    if array.ndim != len(shape) or array.size == 0:
        return False
    return all(want in (None, have) for have, want in zip(array.shape, shape, strict=True))


def _check_array(array, shape, file, name, axes):
    """Refuse an array of a file that has another shape (None: any length) or holds non-finite entries."""
    if not _fits(array, shape):
        expected = ", ".join("any" if length is None else str(length) for length in shape)
        raise CaseError(f"{file}: array {name!r} has shape {array.shape}; expected ({expected}) for its axes ({axes})")
    if not np.all(np.isfinite(array)):
        worst = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise CaseError(f"{file}: array {name!r} has the non-finite entry {array[worst]} at index {worst}")


def _symmetric(matrices, source, schedule):
    """The symmetric part of matrices that are symmetric to round-off; others are refused."""
    transposed = matrices.swapaxes(1, 2)
    gap = np.abs(matrices - transposed)
    excess = gap - ROUND_OFF * np.abs(matrices).max(axis=(1, 2), keepdims=True)
    head, row, col = (int(i) for i in np.unravel_index(np.argmax(excess), gap.shape))
    if excess[head, row, col] > 0:
        raise CaseError(
            f"{source}: matrix {head} is not symmetric, as {schedule} requires: entry ({row}, {col}) is "
            f"{matrices[head, row, col]:.17g}, entry ({col}, {row}) is {matrices[head, col, row]:.17g}"
        )
    return 0.5 * matrices + 0.5 * transposed


def _time_grid(spec, t_end, initial):
    """Nodes k * step from 0 to the first one not before t_end."""
    intervals = np.ceil(t_end / spec.step)
    size = (intervals + 1) * initial.nbytes
    if size > _LARGEST_PATH:
        raise CaseError(
            f"heads.step: {spec.step} needs {intervals:.3g} steps to t_end = {t_end}, {size / 2**30:.3g} GiB of "
            f"weights; the largest path is {_LARGEST_PATH / 2**30:.0f} GiB"
        )
    time = spec.step * np.arange(int(intervals) + 2)
    return time[: np.searchsorted(time, t_end) + 1]


def _require_stable(spec, rate):
    """Refuse explicit Euler steps beyond the stability bound of dD/dt = -rate D."""
    if rate * spec.step > 2:
        raise CaseError(f"heads.step: {spec.step} is unstable with scheme {spec.scheme!r}; use at most {2 / rate:.3g}")


def _uses_exact_scheme(spec, other):
    if spec.scheme not in (None, "exact", other):
        raise CaseError(f"heads.scheme: unknown scheme {spec.scheme!r}; {spec.schedule} has 'exact' and {other!r}")
    return spec.scheme != other


def _frozen(spec, t_end, initial):
    return {"time": np.array([0.0, t_end]), "logits": np.stack([initial, initial])}


def _mean_matrices(spec, count, dimension):
    """Mean of the Ornstein-Uhlenbeck law, (d, d) for all heads or (H, d, d)."""
    if isinstance(spec.mean, str):
        if spec.mean not in ("identity", "zero"):
            raise CaseError(f"heads.mean: unknown matrix {spec.mean!r}; 'identity', 'zero' or matrices")
        return _named_matrix(spec.mean, dimension)
    one = np.ndim(spec.mean) == 2
    shape = (1 if one else count, dimension, dimension)
    mean = _given_matrices([spec.mean] if one else spec.mean, shape, "heads.mean")
    mean = _symmetric(mean, "heads.mean", spec.schedule)
    return mean[0] if one else mean


def _ornstein_uhlenbeck(spec, t_end, initial):
    """The Ornstein-Uhlenbeck path: closed form and smooth without noise, otherwise node after node."""
    count, dimension, _ = initial.shape
    time, mean = _time_grid(spec, t_end, initial), _mean_matrices(spec, count, dimension)
    law = {"time": time, "mean": mean, "relaxation": float(spec.rate), "noise_var": float(spec.noise_var)}
    exact = _uses_exact_scheme(spec, "euler-maruyama")
    if exact and spec.noise_var == 0:
        decay = np.exp(-spec.rate * time)[:, None, None, None]
        remainder = -np.expm1(-spec.rate * time)[:, None, None, None]
        rate = -spec.rate * decay * (initial - mean)
        return {**law, "logits": decay * initial + remainder * mean, "rate": rate, "interpolation": "hermite"}

    step = spec.step
    if exact:
        decay = np.exp(-spec.rate * step)
        variance = -np.expm1(-2 * spec.rate * step) / (2 * spec.rate) if spec.rate > 0 else step
    else:
        _require_stable(spec, spec.rate)
        decay, variance = 1 - spec.rate * step, step
    logits = np.empty((time.size, *initial.shape))
    logits[0] = initial
    for head in range(count):
        z = head_generator(spec.seed, STREAM_NOISE, head).standard_normal((time.size - 1, dimension, dimension))
        logits[1:, head] = 0.5 * np.sqrt(spec.noise_var * variance) * (z + z.swapaxes(1, 2))
    for before, after in zip(logits[:-1], logits[1:], strict=True):
        after += mean + decay * (before - mean)
    return {**law, "logits": logits}


class Harmonic(NamedTuple):
    """One term, amplitude * cos(frequency t' + phase), of the entries (row, col) and (col, row) of the forcing F."""

    row: int
    col: int
    amplitude: float
    frequency: float
    phase: float


def oscillating_harmonics(dimension: int) -> tuple[Harmonic, ...]:
    """The oscillating forcing as a table of harmonics.

    d = 2: diagonal 2 +- 1.5 cos t', off-diagonal sin 2t'.
    d = 3: diagonal 2 + 1.5 (cos t', sin t', cos(t' + pi/4)), F_12 = sin 2t', F_13 = sin t', F_23 = cos 2t'.
    d >= 4: diagonal 2 + 1.5 cos(t' + 2 pi i/d), off-diagonal sin(2t' + 2 pi p/P) for pair p of the P in row order.
    """
    sine = -np.pi / 2
    pairs = [(int(row), int(col)) for row, col in zip(*np.triu_indices(dimension, 1), strict=True)]
    if dimension == 2:
        diagonal, others = (0.0, np.pi), [(2.0, sine)]
    elif dimension == 3:
        diagonal, others = (0.0, sine, np.pi / 4), [(2.0, sine), (1.0, sine), (2.0, 0.0)]
    else:
        diagonal = [2 * np.pi * i / dimension for i in range(dimension)]
        others = [(2.0, sine + 2 * np.pi * p / len(pairs)) for p in range(len(pairs))]
    terms = [Harmonic(i, i, 2.0, 0.0, 0.0) for i in range(dimension)]
    terms += [Harmonic(i, i, 1.5, 1.0, phase) for i, phase in enumerate(diagonal)]
    terms += [Harmonic(*pair, 1.0, *term) for pair, term in zip(pairs, others, strict=True)]
    return tuple(terms)


def oscillating_forcing(time, phase: np.ndarray, dimension: int = 3, relaxed: bool = False) -> np.ndarray:
    """Forcing F_h(t) of the oscillating schedule, or the particular solution of dD/dt = F_h - D that it drives.

    A term c cos(w t' + p) with t' = t + phase_h drives c (cos(w t' + p) + w sin(w t' + p))/(1 + w^2).

    Parameters
    ----------
    time : float or ndarray, shape (K,)
        Times.
    phase : ndarray, shape (H,)
        Phases of the heads.
    dimension : int
        Dimension d of the matrices.
    relaxed : bool
        Return the particular solution instead of the forcing.

    Returns
    -------
    ndarray, shape (K, H, d, d), or (H, d, d) for one time
    """
    shifted = np.add.outer(time, phase)
    result = np.zeros((*shifted.shape, dimension, dimension))
    for row, col, amplitude, frequency, offset in oscillating_harmonics(dimension):
        angle = frequency * shifted + offset
        term = np.cos(angle)
        if relaxed:
            term = (term + frequency * np.sin(angle)) / (1 + frequency**2)
        result[..., row, col] += amplitude * term
        result[..., col, row] = result[..., row, col]
    return result


def _phases(spec, count):
    """Phases of the heads: 2 pi h/H, or uniform on the circle from each head's own stream."""
    if spec.phase == "equispaced":
        return 2 * np.pi * np.arange(count) / count
    if spec.phase == "random":
        return np.array([head_generator(spec.seed, STREAM_PHASE, h).uniform(0, 2 * np.pi) for h in range(count)])
    raise CaseError(f"heads.phase: unknown choice {spec.phase!r}; 'equispaced' or 'random'")


def _oscillating(spec, t_end, initial):
    """The oscillating path: particular solution plus decaying transient, or explicit Euler nodes."""
    count, dimension, _ = initial.shape
    time, phase = _time_grid(spec, t_end, initial), _phases(spec, count)
    forcing = oscillating_forcing(time, phase, dimension)
    if _uses_exact_scheme(spec, "euler"):
        logits = oscillating_forcing(time, phase, dimension, relaxed=True)
        logits += np.exp(-time)[:, None, None, None] * (initial - logits[0])
        logits[0] = initial  # which the sum above meets to round-off only
        return {"time": time, "logits": logits, "rate": forcing - logits, "interpolation": "hermite", "phase": phase}
    _require_stable(spec, 1.0)
    logits = np.empty((time.size, *initial.shape))
    logits[0] = initial
    for k in range(time.size - 1):
        logits[k + 1] = logits[k] + spec.step * (forcing[k] - logits[k])
    return {"time": time, "logits": logits, "phase": phase}


_SCHEDULES = {"frozen": _frozen, "ornstein-uhlenbeck": _ornstein_uhlenbeck, "oscillating": _oscillating}


def _table(spec, t_end, dimension, read_arrays):
    """The path through a file's nodes, from t = 0: piecewise linear, or piecewise constant with the last layer held on."""
    own_values = spec.values is None and not is_variational(spec)
    arrays = read_arrays(spec.file, ("t", "logits"), ("values",) if own_values else ())
    time = arrays.pop("t")
    layers = getattr(spec, "interpolation", "linear") == "step"
    _check_array(time, (None,), spec.file, "t", "node")
    shape = (time.size, spec.count, dimension, dimension)
    _check_array(arrays["logits"], shape, spec.file, "logits", "t, head, row, col")
    if "values" in arrays:
        _check_array(arrays["values"], arrays["logits"].shape, spec.file, "values", "t, head, row, col")
    if time.size < 2 and not layers:
        raise CaseError(f"{spec.file}: array 't' has {time.size} entries; a table needs at least two")
    if not np.all(np.diff(time) > 0):
        k = int(np.argmin(np.diff(time) > 0))
        pair = f"t[{k}] = {time[k]}, t[{k + 1}] = {time[k + 1]}"
        raise CaseError(f"{spec.file}: array 't' must increase strictly; {pair}")
    if time[0] > 0:
        raise CaseError(f"{spec.file}: the table starts at t = {time[0]}, after the start of the run at t = 0")
    short = time[-1] < t_end * (1 - ROUND_OFF)
    if short and not layers:
        raise CaseError(f"{spec.file}: the table ends at t = {time[-1]}, before t_end = {t_end}")
    arrays["logits"] = spec.scale * arrays["logits"]
    if layers:
        return _layers(time, arrays, t_end if short else None)
    start = int(np.searchsorted(time, 0.0, side="right")) - 1
    s = -time[start] / (time[start + 1] - time[start])
    pieces = {"time": np.concatenate([[0.0], time[start + 1 :]])}
    for name, array in arrays.items():
        first = linear(s, array[start], array[start + 1])
        pieces[name] = np.concatenate([first[None], array[start + 1 :]])
    return pieces


def _layers(time, arrays, end):
    """The piecewise-constant path from t = 0; the last layer lasts until `end` if that is not None."""
    start = int(np.searchsorted(time, 0.0, side="right")) - 1
    pieces = {"time": np.concatenate([[0.0], time[start + 1 :]]), "interpolation": "step"}
    pieces |= {name: array[start:] for name, array in arrays.items()}
    if end is None:
        return pieces
    pieces["time"] = np.append(pieces["time"], end)
    return pieces | {name: np.concatenate([pieces[name], pieces[name][-1:]]) for name in arrays}
