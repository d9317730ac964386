r"""Local drifts: what a token does by itself, whatever the others do, added to its attention.

In a transformer this is the feed-forward part of a block. With scale s = `model.residual_scale`,

    u(x) = s P_x [ sum_e g_e(x) kappa_e mu_e  +  W_2 act(W_1 x + b_1) + b_2 ],      g(x) = softmax(W_g x + b_g),

P_x being the projection on the tangent plane. The first sum is a mixture of experts: expert e is the von Mises-Fisher
density of mean mu_e and concentration kappa_e, its contribution that density's score, kappa_e P_x mu_e, and the gates
play the posterior over experts. With W_g = (kappa_e mu_e)^T and b_g = the logarithms of weight times normalisation they
are the posterior of a mixture of these densities, and the drift is the gradient of the mixture's logarithm.

A drift has no part in the energy E: the dissipation P (`sphereflow.energy`) of a run contains it through v and may then
have either sign.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from scipy.special import erf, softmax, xlogy

from sphereflow.errors import CaseError
from sphereflow.limits import require_computable


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function of x, (x/2) (1 + erf(x / sqrt 2)): the exact form."""
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


ACTIVATIONS: dict[str, Callable] = {"relu": relu, "gelu": gelu, "tanh": np.tanh}


@dataclass(frozen=True, eq=False)
class Experts:
    """von Mises-Fisher experts under softmax gates.

    Parameters
    ----------
    mean : ndarray, shape (E, d)
        Means mu_e; normalised to unit length.
    kappa : ndarray, shape (E,)
        Concentrations, >= 0.
    gate : ndarray, shape (E, d)
        W_g.
    bias : ndarray, shape (E,)
        b_g.

    Raises
    ------
    CaseError
        If shapes do not match, an entry is not finite, a mean is 0 or a concentration negative.
    """

    mean: np.ndarray
    kappa: np.ndarray
    gate: np.ndarray
    bias: np.ndarray

    def __post_init__(self):
        mean = _array(self.mean, "the experts' mean", (None, None))
        count, d = mean.shape
        shapes = {"kappa": (count,), "gate": (count, d), "bias": (count,)}
        for name, shape in shapes.items():
            object.__setattr__(self, name, _array(getattr(self, name), f"the experts' {name}", shape, mean, "mean"))
        largest = np.abs(mean).max(axis=1, keepdims=True)
        if not largest.all():
            raise CaseError(f"the mean of expert {int(np.argmin(largest))} is 0; it must have a direction")
        mean = mean / largest  # whose squares do not underflow
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        if (self.kappa < 0).any():
            worst = int(np.argmin(self.kappa))
            raise CaseError(f"kappa of expert {worst} is {self.kappa[worst]:g}; must be >= 0")
        object.__setattr__(self, "mean", mean / length)

    def gates(self, x: np.ndarray) -> np.ndarray:
        """g(x), shape (..., E), at points (..., d)."""
        return softmax(x @ self.gate.T + self.bias, axis=-1)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """sum_e g_e(x) kappa_e mu_e, not projected, at points (..., d)."""
        return (self.gates(x) * self.kappa) @ self.mean


@dataclass(frozen=True, eq=False)
class Perceptron:
    """A two-layer perceptron W_2 act(W_1 x + b_1) + b_2.

    Parameters
    ----------
    w1 : ndarray, shape (width, d)
    b1 : ndarray, shape (width,)
    w2 : ndarray, shape (d, width)
    b2 : ndarray, shape (d,)
    activation : {"relu", "gelu", "tanh"}

    Raises
    ------
    CaseError
        If shapes do not match, an entry is not finite, or there is no such activation.
    """

    w1: np.ndarray
    b1: np.ndarray
    w2: np.ndarray
    b2: np.ndarray
    activation: str = "gelu"

    def __post_init__(self):
        w1 = _array(self.w1, "the perceptron's w1", (None, None))
        width, d = w1.shape
        object.__setattr__(self, "w1", w1)
        for name, shape in {"b1": (width,), "w2": (d, width), "b2": (d,)}.items():
            object.__setattr__(self, name, _array(getattr(self, name), f"the perceptron's {name}", shape, w1, "w1"))
        if self.activation not in ACTIVATIONS:
            raise CaseError(f"activation {self.activation!r} does not exist; must be one of {', '.join(ACTIVATIONS)}")

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The output, not projected, at points (..., d)."""
        return ACTIVATIONS[self.activation](x @ self.w1.T + self.b1) @ self.w2.T + self.b2


@dataclass(frozen=True, eq=False)
class Drift:
    """The local drift u(x) of a model; at least one of its two parts is given.

    Parameters
    ----------
    experts : Experts, optional
    mlp : Perceptron, optional
    scale : float
        Factor of both.
    """

    experts: Experts | None = None
    mlp: Perceptron | None = None
    scale: float = 1.0

    @property
    def dimension(self) -> int:
        """Dimension d of the tokens."""
        return self.experts.mean.shape[1] if self.experts is not None else self.mlp.w1.shape[1]

    def require_dimension(self, dimension: int) -> "Drift":
        """The drift itself, if its tokens have d = `dimension` entries; else CaseError with both shapes."""
        experts, mlp = self.experts, self.mlp
        parts = {"experts' mean": experts and experts.mean, "perceptron's w1": mlp and mlp.w1}
        for name, array in parts.items():
            if array is not None and array.shape[1] != dimension:
                raise CaseError(
                    f"the {name} has shape {array.shape}; expected ({array.shape[0]}, {dimension}) for tokens in dimension "
                    f"d = {dimension}"
                )
        return self

    def ambient(self, x: np.ndarray) -> np.ndarray:
        """The drift before projection, s [...], at points (..., d)."""
        return self.scale * sum(part(x) for part in (self.experts, self.mlp) if part is not None)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """u(x), tangent to the sphere, at unit vectors (..., d)."""
        vector = self.ambient(x)
        return vector - np.sum(vector * x, axis=-1, keepdims=True) * x


def expert_usage(gates: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Share u_e = int rho g_e of the tokens that each expert serves, shape (E,), of sum 1.

    Parameters
    ----------
    gates : ndarray, shape (..., E)
    mass : ndarray, shape (...)
        Mass at each point; divided by its total.
    """
    return np.tensordot(mass, gates, mass.ndim) / mass.sum()


def load_imbalance(usage: np.ndarray) -> float:
    """KL(usage || uniform) = sum_e u_e log(E u_e): 0 for equal loads, log E if one expert does all."""
    return float(np.sum(xlogy(usage, len(usage) * usage)))


def gate_entropy(gates: np.ndarray) -> np.ndarray:
    """- sum_e g_e log g_e at each point, shape (...): 0 where one expert decides, log E where none does."""
    return -np.sum(xlogy(gates, gates), axis=-1)


def make_drift(spec, dimension: int, read_arrays: Callable | None = None) -> Drift | None:
    """The local drift that a [model] table describes, or None.

    Parameters
    ----------
    spec : object
        Attributes experts (None or objects with mean, kappa, gate, bias), experts_file, mlp (None or an object with file or
        w1, b1, w2, b2, and activation) and residual_scale.
    dimension : int
        Dimension d of the tokens.
    read_arrays : callable, optional
        As in `heads.sample_weight_path`; needed if files are named.

    Raises
    ------
    CaseError
        If numbers or files cannot be used.
    """
    experts = mlp = None
    if spec.experts is not None:
        rows = [(e.mean, e.kappa, (0.0,) * dimension if e.gate is None else e.gate, e.bias) for e in spec.experts]
        experts = Experts(*zip(*rows, strict=True))
    elif spec.experts_file is not None:
        with _named(spec.experts_file):
            arrays = read_arrays(spec.experts_file, ("mean", "kappa", "gate"), ("bias",))
            experts = Experts(**{"bias": np.zeros(arrays["gate"].shape[:1])} | arrays)
            Drift(experts).require_dimension(dimension)  # here, where the error can name the file
    if spec.mlp is not None:
        names = ("w1", "b1", "w2", "b2")
        if spec.mlp.file is None:
            mlp = Perceptron(*(getattr(spec.mlp, name) for name in names), spec.mlp.activation)
        else:
            with _named(spec.mlp.file):
                mlp = Perceptron(**read_arrays(spec.mlp.file, names), activation=spec.mlp.activation)
                Drift(mlp=mlp).require_dimension(dimension)
    if experts is None and mlp is None:
        return None
    return Drift(experts, mlp, spec.residual_scale).require_dimension(dimension)


@contextmanager
def _named(file):
    """Put a file's name in front of errors in its arrays."""
    try:
        yield
    except CaseError as error:
        raise CaseError(f"{error}" if str(error).startswith(str(file)) else f"{file}: {error}") from None


def _array(entries, name, shape, other=None, other_name=""):
    """An array of finite numbers of a given shape (None: any length), or an error that names it, and the other shape."""
    try:
        array = np.array(entries, dtype=float)
    except (TypeError, ValueError):
        raise CaseError(f"{name} is no array of numbers") from None
    fits = array.ndim == len(shape) and array.size and all(w in (None, n) for w, n in zip(shape, array.shape, strict=True))
    if not fits:
        expected = ", ".join("any" if n is None else str(n) for n in shape)
        expected = f"({expected},)" if len(shape) == 1 else f"({expected})"
        because = f" to go with {other_name} of shape {other.shape}" if other is not None else ""
        raise CaseError(f"{name} has shape {array.shape}; expected {expected}{because}")
    if not np.isfinite(array).all():
        worst = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise CaseError(f"{name} has the non-finite entry {array[worst]} at index {worst}")
    require_computable(name, array, "give smaller numbers")
    array.flags.writeable = False
    return array
