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

**Integrals from above.** What `growth_exponent` and `distance_ceiling` return are upper bounds, not quadratures of samples. Cut
the time where a path has a node or a value is asked for. On such a piece A is a polynomial of degree q = 1 or 3, and with its
Bezier points A_i and the Bernstein polynomials B_i >= 0, sum B_i = 1,

    |A| <= sum_i B_i |A_i|,    f(|A|) <= sum_i B_i f(|A_i|)  for f convex and rising (Jensen),

so that products are at most |V| f(|A|) <= sum_ij B_i B_j |V_i| f(|A_j|), whose mean over the piece is known: sum_ij Q_ij |V_i|
f(|A_j|). 1, r + 1/(4r) (above 1/2, else 1), and each of the two bounds that S is the smaller of are convex and rising; the
better of the two may be taken for every head and piece. |A - B| and |V_A - V_B| are treated like |A|. Bezier points stay near
their curve: halving a piece leaves a quarter of the excess.

**At one state.** How fast infinitesimal perturbations of given tokens really grow is the largest eigenvalue of the symmetric
part of the linearised flow in L^2(mu) (`linear_growth`): the least constant that would do at this state.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import comb

from sphereflow.heads import WeightPath

EXCESS = 1e-4  # of upper bounds of integrals of C, relative
EFFECT_EXCESS = 1e-3  # of those of integrals of delta on a piece: in W_2 it is not multiplied as that of C is
LARGEST_GROWTH = 0.01  # integral of C over a part: the effect of weights that change is known no better than this, relatively
MOST_PARTS = 4096  # of a piece: a bound that needs more passes pi early in the piece
STEADY = 1e-12  # relative; what rounding makes of a constant
LARGEST_EXPONENT = 700.0  # e^700 is finite
BLOCK = 64  # pieces evaluated at a time


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
    with np.errstate(over="ignore"):
        return (_value_norm(norm, values) * _position_factor(norm, values is None and direction < 0)) @ head_weight


def measure_rate(logits: np.ndarray, head_weight: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
    """Bound L of |v[mu](x) - v[nu](x)| / W_2(mu, nu) for the velocity of `attention`, at any x of the sphere.

    Parameters and the shape of the result are those of `position_rate`; infinite where exp(|A_h|) overflows.
    """
    norm = _norm(logits)
    with np.errstate(over="ignore"):
        return (_value_norm(norm, values) * np.minimum(*_measure_factors(norm))) @ head_weight


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
    """Gamma(t), the integral of C from the first of `times` to each of them, from above.

    An upper bound, see the module; pieces are split until it exceeds the integral by about EXCESS of it. Exact, but for
    rounding, where the weights are constant.

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
    growth = [split.growth.sum() for block in _blocks(nodes) for split in _split((path,), block, direction)]
    return np.concatenate([[0.0], np.cumsum(growth)])[np.searchsorted(nodes, times)]


def distance_ceiling(
    distance: float, path: WeightPath, other: WeightPath, times: np.ndarray, direction: int = -1
) -> np.ndarray:
    """Groenwall's bound of W_2 between two solutions of `attention`, not beyond pi, the largest distance there is.

    It is a bound, but for rounding, however few times are asked for: from the beginning of a piece of length h to its end,

        W_2  ->  min(pi, e^G W_2 + min(e^G D, h delta_max (e^(h C_max) - 1) / (h C_max)))

    with G >= int C, D >= int delta, C_max >= C and delta_max >= delta on the piece. Proof: by Groenwall W_2 at its end is at
    most e^(int C) W_2 + int e^(int_s^h C) delta ds. C is not negative, so the exponential in the integral is at most e^G, and
    at most e^(C_max (h - s)): these give the two bounds of the second term. W_2 never exceeds pi, and the right side rises with
    W_2, so that the bound passes from piece to piece. Pieces are cut at the nodes of both paths, so that every path is seen
    with its own interpolation; where the weights change they are split further, until G is small and D near int delta: what is
    returned exceeds Groenwall's integral by about a per cent.

    Parameters
    ----------
    distance : float
        W_2 at the first of `times`, or a bound of it.
    path, other : WeightPath
        Weights of the two solutions; `head_weight` must be the same. C is that of the first.
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
    reached = [min(float(distance), np.pi)]
    for block in _blocks(nodes):
        for split in _split((path, other), block, direction):
            reached.append(_carried(reached[-1], split))
            if reached[-1] >= np.pi:  # and stays there: nothing that follows needs to be evaluated
                break
        if reached[-1] >= np.pi:
            break
    ceiling = np.full(nodes.size, np.pi)
    ceiling[: len(reached)] = reached
    return ceiling[np.searchsorted(nodes, times)]


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
    """Where pieces are cut: at the nodes of the paths, and at `times`."""
    return np.unique(np.concatenate([times, *[p.time[(p.time > times[0]) & (p.time < times[-1])] for p in paths]]))


def _blocks(nodes):
    """The pieces between the nodes, so many at a time, by their nodes."""
    return (nodes[k : k + BLOCK + 1] for k in range(0, nodes.size - 1, BLOCK))


class _Bounds(NamedTuple):
    """Upper bounds on pieces, shape (pieces,) each: of the integrals of C and delta, and h times those of their maxima."""

    growth: np.ndarray
    growth_top: np.ndarray
    effect: np.ndarray
    effect_top: np.ndarray


def _split(paths, nodes, direction):
    """The bounds on each of the pieces between some nodes: a `_Bounds` of the parts it was split into, in their order.

    Few pieces are evaluated at a time, since they may have many parts and may not all be asked for.
    """
    whole, halves = (_bounds(paths, *_equal_parts(nodes, np.full(nodes.size - 1, n)), direction) for n in (1, 2))
    parts = np.maximum(_enough(whole.growth, halves.growth, EXCESS), _enough(whole.effect, halves.effect, EFFECT_EXCESS))
    with np.errstate(invalid="ignore"):
        steady = (whole.growth_top <= whole.growth * (1 + STEADY)) & (whole.effect_top <= whole.effect * (1 + STEADY))
    parts = np.maximum(parts, np.where((whole.effect > 0) & ~steady, whole.growth / LARGEST_GROWTH, 1.0))
    parts = np.ceil(np.clip(parts, 1, MOST_PARTS)).astype(int)
    together = np.flatnonzero(np.diff(np.cumsum(parts) // MOST_PARTS)) + 1
    for few in np.split(np.arange(parts.size), together):
        bounds = _bounds(paths, *_equal_parts(nodes[few[0] : few[-1] + 2], parts[few]), direction)
        ends = np.cumsum(parts[few])
        yield from (_Bounds(*(one[end - n : end] for one in bounds)) for n, end in zip(parts[few], ends, strict=True))


def _enough(whole, halves, excess):
    """How many parts leave an excess: halving leaves a quarter of it, n parts leave 1/n^2. 1 where that cannot be told."""
    halves = halves.reshape(-1, 2).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.sqrt(4 / 3 * (whole - halves) / (excess * halves)), nan=1.0, posinf=1.0)


def _equal_parts(nodes, parts):
    """Left and right ends of the parts of each piece."""
    edges = [np.linspace(a, b, n + 1) for a, b, n in zip(nodes[:-1], nodes[1:], parts, strict=True)]
    return np.concatenate([e[:-1] for e in edges]), np.concatenate([e[1:] for e in edges])


def _bounds(paths, left, right, direction):
    """The bounds on pieces [left, right], each between two nodes of all paths."""
    degree = 3 if any(path.interpolation == "hermite" for path in paths) else 1
    length, weight = right - left, paths[0].head_weight
    logits, values = zip(*(_bezier_points(path, left, right, degree) for path in paths), strict=True)
    norm = _norm(logits[0])
    value_norm = _value_norm(norm, values[0])
    position = _position_factor(norm, values[0] is None and direction < 0)
    mean, top = np.min([_product(value_norm, position + one) for one in _measure_factors(norm)], axis=0) @ weight * length
    if len(paths) == 1:
        return _Bounds(mean, top, np.zeros_like(mean), np.zeros_like(mean))
    apart = _norm(logits[0] - logits[1])
    if values[0] is None and values[1] is None:
        values_apart, value_norms = apart, value_norm + _norm(logits[1])
    else:
        values = [direction * a if v is None else v for a, v in zip(logits, values, strict=True)]
        values_apart, value_norms = _norm(values[0] - values[1]), value_norm + _norm(values[1])
    effect = np.stack([values_apart.mean(axis=1), values_apart.max(axis=1)]) + 0.5 * _product(value_norms, apart)
    return _Bounds(mean, top, *(effect @ weight * length))


def _product(first, second):
    """Upper bounds of the mean and the maximum of f g, f <= sum_i B_i f_i, from f_i and g_i of shape (pieces, q + 1, H)."""
    degree = first.shape[1] - 1
    i, j = np.mgrid[: degree + 1, : degree + 1]
    overlap = comb(degree, i) * comb(degree, j) / (comb(2 * degree, i + j) * (2 * degree + 1))  # integral of B_i B_j
    f, g = first[:, :, None], second[:, None]
    products = np.multiply(f, g, out=np.zeros(np.broadcast_shapes(f.shape, g.shape)), where=f > 0)  # 0 where g overflows too
    return np.stack([np.einsum("ij,pijh->ph", overlap, products), products.max(axis=(1, 2))])


def _bezier_points(path, left, right, degree):
    """Bezier points (pieces, degree + 1, H, d, d) of A_h and of V_h, or None, on pieces inside of intervals of a path."""
    k = np.clip(np.searchsorted(path.time, 0.5 * (left + right), side="right") - 1, 0, path.time.size - 2)
    length = path.time[k + 1] - path.time[k]
    ends = ((left - path.time[k]) / length, (right - path.time[k]) / length)
    rates = None
    if path.interpolation == "hermite":
        rates = [length[:, None, None, None] / 3 * path.rate[at] for at in (k, k + 1)]
    found, blossoms = [], _blossoms(*ends, degree)[:, :, 1:]
    for nodes, slopes in ((path.logits, rates), (path.values, None)):
        if nodes is None:
            found.append(None)
            continue
        step = nodes[k + 1] - nodes[k]
        if path.interpolation == "step":
            step = np.zeros_like(step)
        # Points of the whole interval less the first one, so that constant weights stay so to the last digit.
        beyond = [step * (i / degree) for i in range(1, degree + 1)] if slopes is None else [slopes[0], step - slopes[1], step]
        found.append(nodes[k][:, None] + np.einsum("pij,pjhab->pihab", blossoms, np.stack(beyond, axis=1)))
    return found


def _blossoms(left, right, degree):
    """What the Bezier points of [0, 1] contribute to those of [left, right], shape (pieces, degree + 1, degree + 1)."""
    rows = []
    for i in range(degree + 1):  # point i is the polar form at left (degree - i times) and right (i times)
        row = np.zeros((degree + 1, left.size))
        row[0] = 1.0
        for u in [left] * (degree - i) + [right] * i:
            row[1:], row[0] = row[1:] * (1 - u) + row[:-1] * u, row[0] * (1 - u)
        rows.append(row)
    return np.moveaxis(np.array(rows), -1, 0)


def _carried(distance, bounds):
    """A bound of W_2 at the end of some pieces, from one at their beginning."""
    for growth, growth_top, effect, effect_top in zip(*bounds, strict=True):
        if distance >= np.pi:
            break
        forced = _grown(effect, growth)
        if effect > 0 and growth_top < LARGEST_EXPONENT:
            forced = min(forced, effect_top * (np.expm1(growth_top) / growth_top if growth_top > 0 else 1.0))
        distance = min(_grown(distance, growth) + forced, np.pi)
    return float(distance)


def _grown(distance, exponent):
    """min(pi, e^exponent distance) without overflow; 0 stays 0."""
    if distance == 0:
        return 0.0
    grown = np.log(distance) + exponent
    return np.pi if grown >= np.log(np.pi) else distance * np.exp(exponent) if exponent < LARGEST_EXPONENT else np.exp(grown)


def _norm(matrices):
    """Largest singular values, for any number of leading axes."""
    return np.linalg.norm(matrices, ord=2, axis=(-2, -1))


def _value_norm(norm, values):
    return norm if values is None else _norm(values)


def _position_factor(norm, repels):
    """Lambda over |V_h|, from |A_h|; `repels` where V_h = -A_h."""
    return np.where((norm >= 0.5) & (not repels), norm + 0.25 / np.maximum(norm, 0.5), 1.0)


def _measure_factors(norm):
    """The two bounds, both convex and rising, that S is the smaller of."""
    with np.errstate(over="ignore"):
        cosh = np.cosh(norm)
        return cosh + 2 * norm * cosh, cosh + np.sqrt(1 + 2 * norm) * np.exp(norm - 0.5)
