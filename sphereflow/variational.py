r"""The score-based variational flow seen as inference: likelihood, posteriors and how sharp they are.

A head of concentration kappa gives token x the likelihood p(x | y) = C(kappa) exp(kappa x . y) under token y. With the
tokens as prior, p(x) = C(kappa) m(x), m(x) = int exp(kappa x . y) rho(y) dy, and p(y | x) = exp(kappa x . y) rho(y) / m(x).
Its attention is another distribution of y, q(y | x) = exp(x . A y) rho(y) / m_A(x), of mean a(x) = int y q(y | x) dy. Then,
all averaged over the heads with their weights w_h:

    surprisal              - log p(x)
    posterior divergence   KL(q || p)(x) = x . (A - kappa I) a(x) - log m_A(x) + log m(x)  >= 0
    resultant length       R(x) = |a(x)|, from 0 (attention to all directions alike) to 1 (to one point)

The first line's mean over rho is the *marginal negative log-likelihood*, the second's the *variational gap*; the
concentration kappa' of the von Mises-Fisher density whose mean has length R, A_d(kappa') = R, restates R. R needs no
likelihood: it belongs to the attention of any heads.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, hyp0f1, ive

from sphereflow.attention import AttentionFields, Heads
from sphereflow.harmonics import degree_power, inner_product
from sphereflow.mobility import MobilitySet

NEWTON_STEPS = 12
UNIFORM_ORDER = 100  # from which the five terms below leave less than 1e-12; scipy's function underflows from 300 on
DEBYE = (  # coefficients of u_0 ... u_4 in powers of t (DLMF 10.41.10)
    (1.0,),
    (0, 3 / 24, 0, -5 / 24),
    (0, 0, 81 / 1152, 0, -462 / 1152, 0, 385 / 1152),
    (0, 0, 0, 30375 / 414720, 0, -369603 / 414720, 0, 765765 / 414720, 0, -425425 / 414720),
    (0, 0, 0, 0, 4465125 / 39813120, 0, -94121676 / 39813120, 0, 349922430 / 39813120, 0, -446185740 / 39813120, 0,
     185910725 / 39813120),
)  # fmt: skip
RESULTANT_GRIDS = (32, 64)  # latitudes on which the resultant's mean over a density is tried before its own grid
RESULTANT_TAIL = 3e-4


def log_vmf_constant(kappa: np.ndarray, dimension: int = 3) -> np.ndarray:
    """log C_d(kappa) of the von Mises-Fisher density C_d(kappa) exp(kappa x . y) on S^{d-1}.

    C_d(kappa) = kappa^nu / ((2 pi)^(d/2) I_nu(kappa)) with nu = d/2 - 1; its limit at 0 is 1 over the sphere's area.

    Parameters
    ----------
    kappa : float or ndarray, >= 0
    dimension : int
    """
    kappa, nu = np.asarray(kappa, dtype=float), dimension / 2 - 1
    area = np.log(2) + dimension / 2 * np.log(np.pi) - gammaln(dimension / 2)
    series = np.log(hyp0f1(nu + 1, np.where(_is_small(kappa, nu), kappa, 0.0) ** 2 / 4))
    large = np.where(_is_small(kappa, nu), 2 * np.sqrt(nu + 1), kappa)
    direct = log_bessel(nu, large) + gammaln(nu + 1) - nu * np.log(large / 2)
    return -area - np.where(_is_small(kappa, nu), series, direct)


def resultant_length(kappa: np.ndarray, dimension: int = 3) -> np.ndarray:
    """Length A_d(kappa) = I_{d/2}(kappa) / I_{d/2-1}(kappa) of the mean of a von Mises-Fisher density; d = 3: coth k - 1/k."""
    kappa, nu = np.asarray(kappa, dtype=float), dimension / 2 - 1
    small = np.where(_is_small(kappa, nu), kappa, 0.0)
    series = small / dimension * hyp0f1(nu + 2, small**2 / 4) / hyp0f1(nu + 1, small**2 / 4)
    large = np.where(_is_small(kappa, nu), 2 * np.sqrt(nu + 1), kappa)
    return np.where(_is_small(kappa, nu), series, bessel_ratio(nu, large))


def log_bessel(nu: float, x: np.ndarray) -> np.ndarray:
    """log I_nu(x) for x > 0, x^2 / 4 >= nu + 1; by Debye's uniform expansion (DLMF 10.41.3) where I_nu itself may underflow."""
    if nu < UNIFORM_ORDER:
        return np.log(ive(nu, x)) + x
    root = np.hypot(nu, x)
    return root + nu * np.log(x / (nu + root)) - 0.5 * np.log(2 * np.pi * root) + np.log(_debye(nu, root))


def bessel_ratio(nu: float, x: np.ndarray) -> np.ndarray:
    """I_{nu+1}(x) / I_nu(x) for x > 0, x^2 / 4 >= nu + 1; by Debye's expansion without differences of its large terms."""
    if nu < UNIFORM_ORDER:
        return ive(nu + 1, x) / ive(nu, x)
    root, following = np.hypot(nu, x), np.hypot(nu + 1, x)
    rise = (2 * nu + 1) / (root + following)  # following - root
    exponent = rise - nu * np.log1p((1 + rise) / (nu + root))
    factor = np.sqrt(root / following) * _debye(nu + 1, following) / _debye(nu, root)
    return x / (nu + 1 + following) * np.exp(exponent) * factor


def _debye(nu, root):
    """The series of Debye's expansion of I_nu(x); root = sqrt(nu^2 + x^2)."""
    return sum(np.polynomial.Polynomial(u)(nu / root) / nu**k for k, u in enumerate(DEBYE))


def _is_small(kappa, nu):
    """Where the power series is the safe one: Bessel functions of high order underflow there."""
    return kappa**2 / 4 <= nu + 1


def equivalent_kappa(length: np.ndarray, dimension: int = 3) -> np.ndarray:
    """Concentration kappa of the von Mises-Fisher density whose mean has the given length, A_d(kappa) = length.

    Newton's method from Banerjee's approximation R (d - R^2) / (1 - R^2); inf where the length is 1.
    """
    length = np.asarray(length, dtype=float)
    inside = np.where(1 - length < 1e-12, 0.5, length)
    kappa = inside * (dimension - inside**2) / (1 - inside**2)
    for _ in range(NEWTON_STEPS):
        found = resultant_length(kappa, dimension)
        slope = 1 - found**2 - (dimension - 1) * found / np.maximum(kappa, 1e-300)
        before, kappa = kappa, np.maximum(kappa - (found - inside) / slope, 0.0)
        if np.all(np.abs(kappa - before) <= 1e-14 * kappa):
            break
    return np.where(1 - length < 1e-12, np.inf, kappa)


@dataclass(frozen=True)
class Inference:
    """Averages over the heads at points; arrays of the points' shape (...).

    Attributes
    ----------
    surprisal : ndarray
        - sum_h w_h log p_h(x).
    posterior_divergence : ndarray
        sum_h w_h KL(q_h || p_h)(x).
    resultant : ndarray
        sum_h w_h |a_h(x)|.
    """

    surprisal: np.ndarray
    posterior_divergence: np.ndarray
    resultant: np.ndarray


def infer(x, heads: Heads, log_mobility, mean, log_evidence) -> Inference:
    """Surprisal, divergence and resultant at unit vectors.

    Parameters
    ----------
    x : ndarray, shape (..., d)
    heads : Heads
        With concentrations.
    log_mobility, mean : ndarray, shape (H, ...) and (H, ..., d)
        log m_A and a of each head.
    log_evidence : ndarray, shape (H, ...)
        log int exp(kappa_h x . y) rho(y) dy.
    """
    kappa, d = heads.concentration, x.shape[-1]
    surprisal = -np.tensordot(heads.weight, log_evidence, 1) - heads.weight @ log_vmf_constant(kappa, d)
    excess = heads.logits - kappa[:, None, None] * np.eye(d)
    difference = np.einsum("...c,hcd,h...d->h...", x, excess, mean) - log_mobility + log_evidence
    divergence = np.tensordot(heads.weight, difference, 1)
    return Inference(surprisal, divergence, attention_resultant(heads, mean))


def attention_resultant(heads: Heads, mean: np.ndarray) -> np.ndarray:
    """Resultant length R = sum_h w_h |a_h| of the attention, shape (...), from the means a of each head, (H, ..., d)."""
    return np.tensordot(heads.weight, np.linalg.norm(mean, axis=-1), 1)


def likelihood_matrices(heads: Heads) -> np.ndarray:
    """kappa_h I, shape (H, d, d): the logits of the exact posteriors."""
    return heads.concentration[:, None, None] * np.eye(heads.logits.shape[-1])


def density_resultant(fields: AttentionFields) -> np.ndarray:
    """`attention_resultant` at the nodes of a density's grid, (nlat, nlon); for any heads."""
    mobilities = MobilitySet(fields.expansion, fields.heads.logits, True)
    return attention_resultant(fields.heads, np.moveaxis(mobilities.mean_on(fields.grid.nlat), 1, -1))


def mean_resultant(fields: AttentionFields) -> float:
    """int rho R of a density, R the resultant length of the attention of any heads.

    R is smooth where no a_h vanishes, and then a coarse Gauss grid has all its coefficients: what int rho R lacks is at most
    the norm of those that are missing times that of rho. The highest quarter of those that are there, asked to be below
    RESULTANT_TAIL, stands for them (measured: the error is at most 0.03 of it). Otherwise it is a sum over the nodes.
    """
    grid, expansion, heads = fields.grid, fields.expansion, fields.heads
    mobilities = fields.mobilities if fields.moving else MobilitySet(expansion, heads.logits, True)
    size = math.sqrt(grid.integrate(fields.node_density**2))
    for nlat in RESULTANT_GRIDS if not mobilities.pointwise.size else ():
        if mobilities.smallest_grid() <= nlat < grid.nlat:
            lmax = nlat - 1
            values = attention_resultant(heads, np.moveaxis(mobilities.mean_on(nlat), 1, -1))
            coefficients = expansion.transform(nlat, lmax).analysis(values)
            if size * math.sqrt(degree_power(coefficients, lmax)[3 * lmax // 4 :].sum()) <= RESULTANT_TAIL:
                return float(inner_product(coefficients, expansion.coefficients(lmax), lmax))
    values = attention_resultant(heads, np.moveaxis(mobilities.mean_on(grid.nlat), 1, -1))
    return grid.integrate(values * fields.mass_density) / grid.integrate(fields.mass_density)


def infer_density(fields: AttentionFields) -> Inference:
    """`infer` at the nodes of a density's grid; arrays (nlat, nlon)."""
    heads, grid = fields.heads, fields.grid
    exact = likelihood_matrices(heads)
    own = np.abs(heads.logits - exact).max() == 0.0
    mobilities = MobilitySet(fields.expansion, heads.logits, True)
    log_mobility = mobilities.log_on(grid.nlat)
    log_evidence = log_mobility if own else MobilitySet(fields.expansion, exact, False).log_on(grid.nlat)
    mean = np.moveaxis(mobilities.mean_on(grid.nlat), 1, -1)
    return infer(grid.points, heads, log_mobility, mean, log_evidence)
