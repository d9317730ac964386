r"""One block of a transformer on unit tokens, written as a transformer is, in any dimension.

    q_h(j|i) = softmax over j of  (Q_h x_i) . (K_h x_j) + log p_j        attention of head h; A_h = Q_h^T K_h
    a_i      = sum_h w_h O_h V_h sum_j q_h(j|i) x_j                      its value
    u_i      = the feed-forward part: perceptron, experts (`sphereflow.drift`)
    x_i      <- norm(x_i + h (a_i + u_i))                                residual connection, normalisation

RMS normalisation is division by |y| / sqrt d; on tokens measured in units of sqrt d, by |y|, which is `norm` here. The usual
1/sqrt(k) of the logits belongs into Q_h.

Relation to the flow dx/dt = P_x (a + u), x on the sphere (P_x the projection on the tangent plane):

* `tangent=True` projects the update first; the block then *is* the Euler step of `sphereflow.particles`.
* `tangent=False` is the block as it is built. Since x + h a = (1 + h x.a) (x + h/(1 + h x.a) P_x a), it is exactly an Euler
  step whose length h/(1 + h x.a) differs from token to token, where 1 + h x.a > 0: a relative difference of O(h).
* The exponential map moves x by the angle h|P_x a|, the tangent block by arctan(h|P_x a|): they differ by O(h^3), and the
  block as built differs from both by O(h^2), in one step.
"""

from dataclasses import dataclass
from numbers import Real

import numpy as np
from scipy.special import softmax

from sphereflow.drift import Drift
from sphereflow.errors import CaseError, NumericalError
from sphereflow.limits import LARGEST_NUMBER, require_computable

WEIGHT_SUM_TOLERANCE = 1e-9
OFF_SPHERE = 1e-6
_REMEDY = "use a smaller step or smaller matrices"


@dataclass(frozen=True, eq=False)
class TransformerBlock:
    """Multi-head attention, feed-forward part, residual connection and normalisation on unit tokens (n, d).

    Parameters
    ----------
    query, key : ndarray, shape (H, k, d)
        Q_h and K_h.
    value : ndarray, shape (H, m, d)
        V_h; m = d if there is no `output`.
    output : ndarray, shape (H, d, m), optional
        O_h; None stands for the identity.
    head_weight : ndarray, shape (H,), optional
        w_h > 0 of sum 1 within 1e-9; 1/H by default.
    step : float
        h > 0.
    drift : Drift, optional
        The feed-forward part.
    tangent : bool
        Whether the update is projected on the tangent plane before it is added.
    sequential : bool
        Whether the feed-forward part acts on the normalised result of the attention, as it does in most transformers,
        instead of on the same tokens: the two differ by O(h^2).
    causal : bool
        Whether token i attends to tokens j <= i only.

    Raises
    ------
    CaseError
        If shapes do not match (both are named), an entry is not finite or too large to compute with, there is no head, or
        the heads' weights or the step are not as above. The methods raise it for tokens, likewise.
    NumericalError
        By the methods, if a token cannot be normalised: its update is too large, or cancels it.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray | None = None
    head_weight: np.ndarray | None = None
    step: float = 1.0
    drift: Drift | None = None
    tangent: bool = True
    sequential: bool = False
    causal: bool = False

    def __post_init__(self):
        for name in ("query", "key", "value", "output", "head_weight"):
            if (array := getattr(self, name)) is not None:
                object.__setattr__(self, name, _array(name, array))
        if self.query.ndim != 3 or not self.query.size:
            raise CaseError(f"query has shape {self.query.shape}; expected (H, k, d), none of them 0")
        count, size, d = self.query.shape
        if self.head_weight is None:
            object.__setattr__(self, "head_weight", np.full(count, 1 / count))
        inner = self.value.shape[1] if self.value.ndim == 3 and self.output is not None else d
        expected = {"key": (count, size, d), "value": (count, inner, d), "output": (count, d, inner), "head_weight": (count,)}
        for name, shape in expected.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                given = self.query.shape
                raise CaseError(f"{name} has shape {array.shape}; expected {shape} to go with query of shape {given}")
        _require_weights(self.head_weight)
        if not isinstance(self.step, Real) or not 0 < self.step <= LARGEST_NUMBER:
            raise CaseError(f"step: {self.step!r} is not allowed; must be a number > 0 and <= {LARGEST_NUMBER:g}")
        if self.drift is not None:
            self.drift.require_dimension(d)

    @classmethod
    def from_matrices(cls, logits: np.ndarray, values: np.ndarray, **more) -> "TransformerBlock":
        """The block of logit matrices A_h and value matrices V_h, (H, d, d): Q = I, K = A."""
        logits = _array("logits", logits)
        if logits.ndim != 3 or logits.shape[1] != logits.shape[2]:
            raise CaseError(f"logits have shape {logits.shape}; expected (H, d, d)")
        return cls(np.broadcast_to(np.eye(logits.shape[1]), logits.shape), logits, values, **more)

    def attention(self, tokens: np.ndarray, token_weight: np.ndarray | None = None) -> np.ndarray:
        """a_i, shape (n, d), not projected.

        Parameters
        ----------
        tokens : ndarray, shape (n, d)
        token_weight : ndarray, shape (n,), optional
            p_j >= 0, not all 0; the same for all tokens by default. With `causal`, p_0 > 0: the first token sees itself only.
        """
        x = self._tokens(tokens)
        q, k = np.einsum("hkd,nd->hnk", self.query, x), np.einsum("hkd,nd->hnk", self.key, x)
        logits = q @ k.transpose(0, 2, 1)
        if token_weight is not None:
            token_weight = self._token_weights(token_weight, len(x))
            with np.errstate(divide="ignore"):
                logits = logits + np.log(token_weight)
        if self.causal:
            logits = np.where(np.tri(len(x), dtype=bool), logits, -np.inf)
        value = softmax(logits, axis=-1) @ x @ self.value.transpose(0, 2, 1)
        if self.output is not None:
            value = value @ self.output.transpose(0, 2, 1)
        return np.tensordot(self.head_weight, value, 1)

    def forward(self, tokens: np.ndarray, token_weight: np.ndarray | None = None) -> np.ndarray:
        """The tokens after the block, (n, d), unit vectors; parameters as in `attention`."""
        x = self._tokens(tokens)
        update = self.attention(x, token_weight)
        if self.drift is None:
            return self._residual(x, update)
        if not self.sequential:
            return self._residual(x, update + self.drift.ambient(x))
        x = self._residual(x, update)
        return self._residual(x, self.drift.ambient(x))

    __call__ = forward

    def exponential_step(self, tokens: np.ndarray, token_weight: np.ndarray | None = None) -> np.ndarray:
        """The tokens moved along great circles, exp_x(h P_x (a + u)), (n, d); parameters as in `attention`."""
        x = self._tokens(tokens)
        update = self.attention(x, token_weight)
        if self.drift is not None:
            update = update + self.drift.ambient(x)
        velocity = self.step * _tangent(x, update)
        angle = _lengths(velocity)
        if not np.isfinite(angle).all():
            token = int(np.argmin(np.isfinite(angle)))
            raise NumericalError(f"token {token} cannot be moved: its velocity has the length {angle[token, 0]:g}; {_REMEDY}")
        return np.cos(angle) * x + np.sinc(angle / np.pi) * velocity

    def _residual(self, x, update):
        return _normalised(x + self.step * (_tangent(x, update) if self.tangent else update))

    def _tokens(self, tokens):
        x = _array("tokens", tokens)
        if x.ndim != 2 or x.shape[1] != self.query.shape[2] or not len(x):
            given, d = self.query.shape, self.query.shape[2]
            raise CaseError(f"tokens have shape {x.shape}; expected (n, {d}) with n >= 1 for query of {given}")
        length = np.linalg.norm(x, axis=1)
        worst = int(np.argmax(np.abs(length - 1)))
        if abs(length[worst] - 1) > OFF_SPHERE:
            raise CaseError(f"token {worst} has the length {length[worst]:.9g}; tokens must be unit vectors")
        return x

    def _token_weights(self, token_weight, count):
        p = _array("token_weight", token_weight)
        if p.shape != (count,):
            given = (count, self.query.shape[2])
            raise CaseError(f"token_weight has shape {p.shape}; expected ({count},) to go with tokens of shape {given}")
        if (p < 0).any() or not p.any() or (self.causal and p[0] == 0):
            first = ", the first one > 0 as it sees itself only" if self.causal else ""
            raise CaseError(f"token_weight: must be >= 0 and not all 0{first}; the least is {p.min():g}")
        return p


def _array(name, entries):
    """An array of numbers that can be computed with."""
    try:
        array = np.asarray(entries, dtype=float)
    except (TypeError, ValueError):
        raise CaseError(f"{name} is no array of numbers") from None
    if not np.isfinite(array).all():
        raise CaseError(f"{name} has non-finite entries")
    require_computable(name, array, "give smaller numbers")
    return array


def _require_weights(weight):
    if not (weight > 0).all():
        head = int(np.argmin(weight))
        raise CaseError(f"head_weight[{head}] is {weight[head]:g}; must be > 0")
    if abs(weight.sum() - 1) > WEIGHT_SUM_TOLERANCE:
        raise CaseError(f"head_weight sums to {weight.sum():.12g}; must sum to 1 within {WEIGHT_SUM_TOLERANCE:g}")


def _tangent(x, vectors):
    return vectors - np.sum(vectors * x, axis=1, keepdims=True) * x


def _lengths(vectors):
    """Lengths (n, 1); infinite where a square overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.linalg.norm(vectors, axis=1, keepdims=True)


def _normalised(vectors):
    length = _lengths(vectors)
    good = (length > 0) & np.isfinite(length)
    if not good.all():
        token = int(np.argmin(good))
        raise NumericalError(
            f"token {token} cannot be normalised: with its update its length is {length[token, 0]:g}; {_REMEDY}"
        )
    return vectors / length
