r"""How fast two solutions of the model can part: Lipschitz constants of the velocity, and Groenwall's bound of W_2.

The velocity of `attention` is v[mu](x) = P_x sum_h w_h V_h M_h(x), M_h(x) being the mean of y under the softmax
pi_h(dy) ~ exp(z . y) mu(dy) with z = A_h^T x. Let r_h = |A_h| (spectral norm), and let W_2 have the geodesic cost.

**In x.** For a unit tangent vector e, with C_h the covariance of pi_h,

    e . (grad_e v) = sum_h w_h (e . V_h C_h A_h^T e - x . V_h M_h).

In the unit ball C_h <= 1 - |M_h|^2. So the rate at which v stretches geodesics is at most

    Lambda = sum_h w_h |V_h| max_m (r_h (1 - m^2) + m),    the maximum being r_h + 1/(4 r_h) for r_h >= 1/2, else 1,

and if V_h = -A_h the first term is negative, whatever A_h, so that Lambda = sum_h w_h r_h.

**In mu.** Move the points y of mu along geodesics with velocities u, of L^2(mu)-norm |u|. Then M_h changes at the rate
E_pi[u + (y - M_h)(z . u)]. The density k/m of pi, k = exp(z . y), has an L^2(mu)-norm of at most cosh r, by
Kantorovich's inequality for k in [e^-r, e^r], and |z . u| <= |P_y z| |u|, |y - M_h| <= 2. Hence
|v[mu](x) - v[nu](x)| <= L W_2(mu, nu) with

    L = sum_h w_h |V_h| S(r_h),    S(r) = cosh r + min(2 r cosh r, sqrt(1 + 2r) e^(r - 1/2)).

(The second of the two is sharper for r > 0.83. k = e^(z . y) and k |P_y z| are never at their largest together:
(E k)^2 >= 4a (E k - a), a = e^-r, bounds its L^2-norm over m by the largest value over 0 < s < 2r of
sqrt(s (2r - s)) e^s / (2 sqrt(e^s - 1)), which s/(1 - e^-s) <= 1 + s puts below sqrt(1 + 2r) e^(r - 1/2) / 2.)

**In the weights.** dM_h = C_h dA_h^T x, so |v_A - v_B| <= sum_h w_h (|V_A - V_B| + 1/2 (|V_A| + |V_B|) |A_h - B_h|).

**Groenwall.** The optimal plan of the initial data, carried along both flows, stays a plan. Along it the first variation of
the geodesic distance gives, for two solutions whose weights differ by delta(t) in the last sense,

    W_2(t) <= e^Gamma(t) (W_2(0) + int_0^t e^-Gamma(s) delta(s) ds),    Gamma(t) = int_0^t (Lambda + L) ds.

The same holds with diffusion, since the heat flow of a sphere contracts W_2.

**At one state.** How fast infinitesimal perturbations of given tokens really grow is the largest eigenvalue of the symmetric
part of the linearised flow in L^2(mu) (`linear_growth`): the least constant that would do at this state.
"""

import numpy as np

from sphereflow.heads import WeightPath


def position_rate(
    logits: np.ndarray, head_weight: np.ndarray, values: np.ndarray | None = None, direction: int = -1
) -> np.ndarray:
    """Bound Lambda of the rate at which the velocity of `attention` stretches a geodesic, for any density.

    Parameters
    ----------
    logits : ndarray, shape (..., H, d, d)
        A_h.
    head_weight : ndarray, shape (H,)
        w_h.
    values : ndarray, shape (..., H, d, d), or None
        V_h; None stands for V_h = direction * A_h.
    direction : {-1, 1}
        Sign s of V_h = s A_h.

    Returns
    -------
    ndarray, shape (...)
        Lambda, per unit of time.
    """
    norm = _norm(logits)
    if values is None and direction < 0:
        return norm @ head_weight
    largest = np.where(norm >= 0.5, norm + 0.25 / np.maximum(norm, 0.5), 1.0)
    with np.errstate(over="ignore"):
        return (_value_norm(norm, values) * largest) @ head_weight


def measure_rate(logits: np.ndarray, head_weight: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """Bound L of |v[mu](x) - v[nu](x)| / W_2(mu, nu) for the velocity of `attention`, at any x of the sphere.

    Parameters and the shape of the result are those of `position_rate`; infinite where exp(|A_h|) overflows.
    """
    norm = _norm(logits)
    with np.errstate(over="ignore"):
        cosh = np.cosh(norm)
        steep = np.minimum(2 * norm * cosh, np.sqrt(1 + 2 * norm) * np.exp(norm - 0.5))
        return (_value_norm(norm, values) * (cosh + steep)) @ head_weight


def growth_rate(
    logits: np.ndarray, head_weight: np.ndarray, values: np.ndarray | None = None, direction: int = -1
) -> np.ndarray:
    """Bound C = Lambda + L of the rate at which W_2 between two solutions of `attention` grows: d/dt W_2 <= C W_2.

    Parameters and the shape of the result are those of `position_rate`.
    """
    return position_rate(logits, head_weight, values, direction) + measure_rate(logits, head_weight, values)


def weight_effect(
    logits: tuple[np.ndarray, np.ndarray],
    head_weight: np.ndarray,
    values: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """Bound delta of |v_A(x) - v_B(x)| for one density and two sets of weights, at any x of the sphere.

    Parameters
    ----------
    logits : pair of ndarray, shape (..., H, d, d) each
        A_h and B_h.
    head_weight : ndarray, shape (H,)
        Weights of the heads, the same for both.
    values : pair of ndarray, shape (..., H, d, d) each, or None
        Value matrices of both; None stands for V = s A in both, with the same sign s.

    Returns
    -------
    ndarray, shape (...)
    """
    norms = [_norm(one) for one in (logits if values is None else values)]
    apart = _norm(logits[0] - logits[1])
    values_apart = apart if values is None else _norm(values[0] - values[1])
    return (values_apart + 0.5 * (norms[0] + norms[1]) * apart) @ head_weight


def growth_exponent(path: WeightPath, times: np.ndarray, direction: int = -1) -> np.ndarray:
    """Gamma(t), the integral of C from the first of `times` to each of them.

    By the trapezoidal rule over the nodes of the path, which errs upwards on linear pieces (C is a convex function of A but for
    one kink); exact for "step" paths.

    Parameters
    ----------
    path : WeightPath
    times : ndarray, shape (m,)
        Ascending, inside of the path.
    direction : {-1, 1}

    Returns
    -------
    ndarray, shape (m,)
    """
    nodes = _nodes((path,), times)
    rate = growth_rate(*_matrices(path, nodes), direction)
    return _integral(path, nodes, rate)[np.searchsorted(nodes, times)]


def distance_ceiling(
    distance: float, path: WeightPath, other: WeightPath, times: np.ndarray, direction: int = -1
) -> np.ndarray:
    """Groenwall's bound of W_2 between two solutions of `attention`, not beyond pi, the largest distance there is.

    Parameters
    ----------
    distance : float
        W_2 at the first of `times`, or a bound of it.
    path, other : WeightPath
        Weights of the two solutions; `head_weight` must be the same.
    times : ndarray, shape (m,)
        Ascending, inside of both paths.
    direction : {-1, 1}

    Returns
    -------
    ndarray, shape (m,)

    Raises
    ------
    ValueError
        If the two have different numbers of heads, or different weights of the heads.
    """
    if path.logits.shape[1:] != other.logits.shape[1:] or not np.allclose(path.head_weight, other.head_weight, 1e-8, 0):
        raise ValueError("the two paths have different heads")
    nodes = _nodes((path, other), times)
    (logits, weight, values), (logits_b, _, values_b) = (_matrices(one, nodes) for one in (path, other))
    exponent = _integral(path, nodes, growth_rate(logits, weight, values, direction))
    if (values is None) != (values_b is None):
        values, values_b = (direction * a if v is None else v for a, v in ((logits, values), (logits_b, values_b)))
    effect = weight_effect((logits, logits_b), weight, None if values is None else (values, values_b))
    with np.errstate(over="ignore", invalid="ignore"):
        forced = _integral(path, nodes, np.where(effect > 0, np.exp(-exponent) * effect, 0.0))
        start = distance + forced
        ceiling = np.where(start > 0, np.exp(exponent) * start, 0.0)
    return np.minimum(ceiling, np.pi)[np.searchsorted(nodes, times)]


def linear_growth(
    positions: np.ndarray,
    weights: np.ndarray,
    logits: np.ndarray,
    head_weight: np.ndarray,
    values: np.ndarray | None = None,
    direction: int = -1,
) -> float:
    """Largest rate at which W_2 between a token measure and one infinitely near grows under `attention`.

    The displacements u_i of the tokens change by J u, J_ij = delta_ij S_i + sum_h w_h P_i V_h pi_ij (1 + (x_j - M_i) z_i^T) P_j
    with S_i the derivative in x. The result is the largest eigenvalue of the symmetric part of J in the norm
    (sum_i p_i |u_i|^2)^(1/2), or of an S_i if that is larger (a token that splits with its centre at rest).

    Parameters
    ----------
    positions : ndarray, shape (n, d)
        Unit vectors; costs O(n^3 d^3).
    weights : ndarray, shape (n,)
        Positive masses.
    logits : ndarray, shape (H, d, d)
    head_weight : ndarray, shape (H,)
    values : ndarray, shape (H, d, d), or None
        None stands for V_h = direction * A_h.
    direction : {-1, 1}
    """
    x, (n, d) = positions, positions.shape
    tangent = np.eye(d) - x[:, :, None] * x[:, None, :]
    own, others = np.zeros((n, d, d)), np.zeros((n, n, d, d))
    for a, w, v in zip(logits, head_weight, direction * logits if values is None else values, strict=True):
        z = x @ a
        power = z @ x.T
        softmax = np.exp(power - power.max(axis=1, keepdims=True)) * weights
        softmax /= softmax.sum(axis=1, keepdims=True)
        mean = softmax @ x
        covariance = np.einsum("ij,ja,jb->iab", softmax, x, x) - mean[:, :, None] * mean[:, None, :]
        own += w * (v @ covariance @ a.T - np.einsum("ia,ia->i", x, mean @ v.T)[:, None, None] * np.eye(d))
        pulled = np.eye(d) + (x[None, :, :, None] - mean[:, None, :, None]) * z[:, None, None, :]
        others += w * softmax[:, :, None, None] * (v @ pulled)
    own = tangent @ own @ tangent
    root = np.sqrt(weights)
    jacobian = (root[:, None] / root)[:, :, None, None] * (tangent[:, None] @ others @ tangent[None])
    jacobian[np.arange(n), np.arange(n)] += own
    matrix = jacobian.transpose(0, 2, 1, 3).reshape(n * d, n * d)
    # P_i leaves the normals an eigenvalue of 0: moved below all others, so that negative rates are seen.
    normal = np.einsum("ia,ib->iab", x, x) * (np.abs(matrix).sum(axis=1).max() + 1.0)
    blocks = matrix.reshape(n, d, n, d)
    blocks[np.arange(n), :, np.arange(n), :] -= normal
    splitting = np.linalg.eigvalsh(0.5 * (own + own.transpose(0, 2, 1)) - normal).max()
    return float(max(np.linalg.eigvalsh(0.5 * (matrix + matrix.T))[-1], splitting))


def _nodes(paths, times):
    """Times at which integrals over the paths are sampled: their nodes, and `times`."""
    return np.unique(np.concatenate([times, *[p.time[(p.time > times[0]) & (p.time < times[-1])] for p in paths]]))


def _matrices(path, times):
    """A_h (m, H, d, d), w_h, and V_h or None, at some times."""
    logits = np.stack([path.logits_at(t) for t in times])
    values = None if path.values is None else np.stack([path.values_at(t) for t in times])
    return logits, path.head_weight, values


def _integral(path, nodes, rate):
    """Integral of a rate from the first node to each node."""
    before = rate[:-1] if path.interpolation == "step" else 0.5 * (rate[:-1] + rate[1:])
    return np.concatenate([[0.0], np.cumsum(np.diff(nodes) * before)])


def _norm(matrices):
    """Largest singular values, for any number of leading axes."""
    return np.linalg.norm(matrices, ord=2, axis=(-2, -1))


def _value_norm(norm, values):
    return norm if values is None else _norm(values)
