r"""The moment generating function of a density on the sphere, the one function behind every attention head.

With M(xi) = int exp(xi . y) rho(y) dy, head h has mobility m_h(x) = M(A_h^T x). The plane-wave expansion gives

    M(r w) = 4 pi sum_l i_l(r) sum_m rho_lm Y_lm(w),          i_l: modified spherical Bessel functions,

whose terms fall super-exponentially beyond l ~ r: the degrees needed depend on |A| and a tolerance, neither on the grid
nor on the sharpness of rho. Gradients come from the same sum with the coefficients of y_i rho in place of rho's.

The sum has an absolute error of about 1e-16 exp(r), and M can be as small as exp(-r): where that matters
(`expansion_is_accurate`) the positive sum over cells, `direct_sum`, is used instead. It never overflows and the mean
it returns is a convex combination of unit vectors. Kernels narrower than the grid (r beyond lmax^2 / 10 or so) are not
resolved by the cells; there the expansion of a density that the grid resolves is the better one, wherever the density is
above 1e-9 or so of its largest.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache

import numba
import numpy as np
from scipy.special import ive, roots_laguerre

from sphereflow.harmonics import degrees_and_orders

LARGE_RADIUS = 200.0
TINY = 1e-150
UNROLL = 4  # degrees summed in one pass: the pass is bound by stores, and this needs a third of them
BLOCK = 64  # points a pass of the inner loop works on: enough to vectorise, few enough to stay in the first cache
EPSILON_GROWTH = 8.0  # measured rounding error of the expansion in units of 2.2e-16 exp(r), with a margin
LAGUERRE_NODES, LAGUERRE_ANGLES = 16, 20
NARROW_RADIUS = 0.12  # of lmax^2: beyond it the sum over cells is off by more than exp(-2 / 0.12) = 6e-8
LARGEST_RADIUS = 1e5  # beyond it no grid holds the degrees and the sum over cells alone is used


@lru_cache(maxsize=4096)
def _tail_logarithms(radius_steps: int) -> list[float]:
    """Minus log of sum_{l > L} (2l+1) i_l(r), for L = 0, 1, ..., at r = radius_steps / 16."""
    r = max(radius_steps, 1) / 16
    lmax = int(r + 12 * math.sqrt(r) + 60)
    degree = np.arange(lmax + 2)
    terms = (2 * degree + 1) * np.sqrt(np.pi / (2 * r)) * ive(degree + 0.5, r)
    tails = np.cumsum(terms[::-1])[::-1][1:]
    return [-value for value in (np.log(np.maximum(tails, 1e-300)) + r).tolist()]


def expansion_degree(radius: float, log_target: float) -> int:
    """Smallest degree L for which the neglected part of M is at most exp(log_target) on |xi| <= radius.

    The bound sum_{l>L} (2l+1) i_l(radius) holds for every probability density, a Dirac mass included. Radii beyond
    `LARGEST_RADIUS` need more degrees than any grid has; that number stands for them.
    """
    if radius > LARGEST_RADIUS:
        return int(LARGEST_RADIUS)
    tails = _tail_logarithms(math.ceil(16 * radius))
    return bisect_left(tails, -log_target)


def expansion_is_accurate(scaled_values: np.ndarray, tolerance: float) -> np.ndarray:
    """Where the rounding error of the expansion is below `tolerance` times the value of M.

    The terms of exp(-|xi|) M(xi) add up to at most 1 in absolute value, so the rounding error is a few units of 2.2e-16
    wherever the point is; the value tells how much of it is left after cancellation.

    Parameters
    ----------
    scaled_values : ndarray
        exp(-|xi|) M(xi) as computed by the expansion.
    tolerance : float
        Relative error asked for.
    """
    return scaled_values * tolerance > EPSILON_GROWTH * np.finfo(float).eps


def expansion_error(radius: np.ndarray, coefficients: np.ndarray, lmax: int) -> np.ndarray:
    r"""Estimated absolute error of exp(-r) M(r w) from coefficients of a density that the grid resolves.

    Two parts: noise in the coefficients, taken from the largest degrees (where nothing else is left; what is cut off
    beyond them is of the same size), delta sqrt(4 pi sum_l (2l+1) i_l^2); and rounding of the sum,
    4 eps sum_l i_l sqrt(4 pi (2l+1)) |rho_l|.

    Parameters
    ----------
    radius : ndarray, shape (n,)
    coefficients : ndarray, shape (nlm,)
        Of the density, up to degree `lmax`.
    """
    degree, order = degrees_and_orders(lmax)
    size = np.sqrt(np.bincount(degree, np.abs(coefficients) ** 2 * np.where(order > 0, 2, 1)))
    count = 2 * np.arange(lmax + 1) + 1
    noise = (size / np.sqrt(count))[int(0.9 * lmax) :].max()
    some = np.geomspace(1e-2, max(radius.max(), 1.0), BLOCK)  # smooth in the radius: a table of it will do
    bessel = _scaled_bessel(some, some[-1], lmax)[: lmax + 1]
    error = noise * np.sqrt(4 * np.pi * (count @ bessel**2))
    error += 4 * np.finfo(float).eps * ((np.sqrt(4 * np.pi * count) * size) @ bessel)
    return EPSILON_GROWTH * np.interp(radius, some, error)


@lru_cache(maxsize=32)
def _legendre_tables(lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors e_lm of the recurrence of monic Legendre functions and the norms that make them orthonormal, by (m, l).

    Q_{l+1,m} = cos(theta) Q_lm - e_lm Q_{l-1,m} with e_lm = (l^2 - m^2) / (4 l^2 - 1) and Q_mm = the orthonormal P_mm; then
    P_lm = norm_lm Q_lm. The norms grow like 2^(l - m), which leaves room up to l = 1000.
    """
    m, ell = np.meshgrid(np.arange(lmax + 1.0), np.arange(lmax + 1.0 + UNROLL), indexing="ij")
    factor = np.where(ell > m, (ell**2 - m**2) / (4 * ell**2 - 1), 0.0)
    with np.errstate(divide="ignore"):
        ratio = np.where(ell > m, 1 / np.sqrt(np.where(ell > m, factor, 1.0)), 1.0)
    return factor, np.cumprod(ratio[:, : lmax + 1], axis=1)


@lru_cache(maxsize=32)
def _series_layout(lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each coefficient stands in the series' (m, l) table, flattened, and its factor: 4 pi, 2 for m > 0, the norm."""
    degree, order = degrees_and_orders(lmax)
    factor = 4 * np.pi * np.where(order == 0, 1.0, 2.0) * _legendre_tables(lmax)[1][order, degree]
    return order * (lmax + 1 + UNROLL) + degree, factor


def _real_series(coefficients: np.ndarray, lmax: int) -> np.ndarray:
    """Cosine and sine coefficients (nset, 2, m, l) of the plane-wave sum in monic Legendre functions.

    UNROLL zeros follow the last degree.
    """
    position, factor = _series_layout(lmax)
    out = np.zeros((len(coefficients), 2, (lmax + 1) * (lmax + 1 + UNROLL)))
    out[:, 0, position] = factor * coefficients.real
    out[:, 1, position] = -factor * coefficients.imag
    return out.reshape(len(coefficients), 2, lmax + 1, lmax + 1 + UNROLL)


def evaluate_expansion(xi: np.ndarray, coefficients: np.ndarray, lmax: int, degree: np.ndarray | None = None):
    r"""exp(-|xi|) M at the points xi and -xi, for one or several densities and all heads in one compiled pass.

    Parameters
    ----------
    xi : ndarray, shape (nhead, n, 3)
        Points of R^3, a row of them for each head.
    coefficients : ndarray, shape (nset, nlm)
        Spherical-harmonic coefficients up to degree `lmax` of the densities (rho, y_i rho, ...).
    lmax : int
        Largest degree of the coefficients.
    degree : ndarray of int, shape (nhead,), optional
        Largest degree summed for each head, at most (and by default) `lmax`.

    Returns
    -------
    ndarray, shape (2, nset, nhead, n)
        exp(-|xi|) M(xi) and exp(-|xi|) M(-xi); even and odd degrees are summed apart, so the second costs nothing.
    """
    factor, _ = _legendre_tables(lmax)
    degree = np.full(len(xi), lmax) if degree is None else np.minimum(degree, lmax)
    out = np.empty((2, len(coefficients), *xi.shape[:2]))
    _bessel_legendre_sum(np.ascontiguousarray(xi), _real_series(coefficients, lmax), factor, degree, out)
    return out


@numba.njit(cache=True, parallel=True, fastmath={"contract"}, error_model="numpy")
def _bessel_legendre_sum(points, series, e, degree, out):
    """The blocked sum: radial ratios by downward recurrence, associated Legendre functions by upward recurrence."""
    n, nset = points.shape[1], series.shape[0]
    blocks = (n + BLOCK - 1) // BLOCK
    for task in numba.prange(points.shape[0] * blocks):
        head, start = task // blocks, (task % blocks) * BLOCK
        xi, lmax = points[head], degree[head]
        count = min(BLOCK, n - start)
        ct, st, cp, sp, r = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
        rmax = 0.0
        for i in range(BLOCK):
            k = start + min(i, count - 1)  # the last block is padded with its last point
            cp[i], sp[i], ct[i] = xi[k, 0], xi[k, 1], xi[k, 2]
        for i in range(BLOCK):  # at the origin and on the axis the angles do not matter
            h = math.sqrt(cp[i] * cp[i] + sp[i] * sp[i])
            r[i] = math.sqrt(h * h + ct[i] * ct[i])
            across, along = 1.0 / max(h, TINY), 1.0 / max(r[i], TINY)
            cp[i], sp[i] = cp[i] * across, sp[i] * across
            ct[i], st[i] = ct[i] * along, h * along
            rmax = max(rmax, r[i])
        bessel = _scaled_bessel(r, rmax, lmax)
        acc = np.zeros((nset, 2, BLOCK))
        sums, terms = np.empty((nset, 4, BLOCK)), np.empty((UNROLL, BLOCK))
        pm, p0, p1 = np.full(BLOCK, 0.28209479177387814), np.empty(BLOCK), np.empty(BLOCK)
        cm, sm = np.ones(BLOCK), np.zeros(BLOCK)
        for m in range(lmax + 1):
            sums[:] = 0.0
            for i in range(BLOCK):
                p0[i] = 0.0
                p1[i] = pm[i]
            for l in range(m, lmax + 1, UNROLL):  # tables and coefficients are 0 beyond their degree
                e0, e1, e2, e3 = e[m, l], e[m, l + 1], e[m, l + 2], e[m, l + 3]
                c0, c1, c2, c3 = series[0, 0, m, l], series[0, 0, m, l + 1], series[0, 0, m, l + 2], series[0, 0, m, l + 3]
                s0, s1, s2, s3 = series[0, 1, m, l], series[0, 1, m, l + 1], series[0, 1, m, l + 2], series[0, 1, m, l + 3]
                for i in range(BLOCK):  # degrees l and l + 2, l + 1 and l + 3 have the parity of m and the other one
                    c, older, q0 = ct[i], p0[i], p1[i]
                    q1 = c * q0 - e0 * older
                    q2 = c * q1 - e1 * q0
                    q3 = c * q2 - e2 * q1
                    p1[i] = c * q3 - e3 * q2
                    p0[i] = q3
                    t0, t1, t2, t3 = q0 * bessel[l, i], q1 * bessel[l + 1, i], q2 * bessel[l + 2, i], q3 * bessel[l + 3, i]
                    sums[0, 0, i] += c0 * t0 + c2 * t2
                    sums[0, 1, i] += c1 * t1 + c3 * t3
                    sums[0, 2, i] += s0 * t0 + s2 * t2
                    sums[0, 3, i] += s1 * t1 + s3 * t3
                    if nset > 1:
                        terms[0, i], terms[1, i], terms[2, i], terms[3, i] = t0, t1, t2, t3
                for s in range(1, nset):
                    c0, c1, c2, c3 = series[s, 0, m, l], series[s, 0, m, l + 1], series[s, 0, m, l + 2], series[s, 0, m, l + 3]
                    s0, s1, s2, s3 = series[s, 1, m, l], series[s, 1, m, l + 1], series[s, 1, m, l + 2], series[s, 1, m, l + 3]
                    for i in range(BLOCK):
                        t0, t1, t2, t3 = terms[0, i], terms[1, i], terms[2, i], terms[3, i]
                        sums[s, 0, i] += c0 * t0 + c2 * t2
                        sums[s, 1, i] += c1 * t1 + c3 * t3
                        sums[s, 2, i] += s0 * t0 + s2 * t2
                        sums[s, 3, i] += s1 * t1 + s3 * t3
            for s in range(nset):
                for shift in range(2):
                    for i in range(BLOCK):
                        acc[s, (m + shift) & 1, i] += sums[s, shift, i] * cm[i] + sums[s, 2 + shift, i] * sm[i]
            sectoral = -math.sqrt((2.0 * m + 3.0) / (2.0 * m + 2.0))
            for i in range(BLOCK):
                q = cm[i] * cp[i] - sm[i] * sp[i]
                sm[i] = cm[i] * sp[i] + sm[i] * cp[i]
                cm[i] = q
                pm[i] *= sectoral * st[i]
        for s in range(nset):
            for i in range(count):
                out[0, s, head, start + i] = acc[s, 0, i] + acc[s, 1, i]
                out[1, s, head, start + i] = acc[s, 0, i] - acc[s, 1, i]


@numba.njit(cache=True, error_model="numpy")
def _scaled_bessel_zero(r):
    """exp(-r) sinh(r) / r."""
    return -math.expm1(-2.0 * r) / (2.0 * r) if r > 1e-8 else 1.0 - r


@numba.njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _scaled_bessel(r, rmax, lmax):
    """exp(-r) i_l(r) for l = 0..lmax, and UNROLL rows of zeros, shape (lmax + 1 + UNROLL, len(r)).

    With i_l = r^l / (2l+1)!! h_l the recurrence is h_{l-1} = h_l + r^2 h_{l+1} / ((2l+1)(2l+3)): positive, downward stable and
    free of divisions; started from h = 1 high enough it gives a multiple of the h_l, which i_0 = sinh(r)/r then fixes. Beyond
    `LARGE_RADIUS`, where h_0 could overflow, the ratios R_l = i_{l+1}/i_l = r / (2l + 3 + r R_{l+1}) take over.
    """
    n = len(r)
    top = lmax + 4 + int(19.0 / math.asinh((lmax + 1.0) / max(rmax, 1e-3)))
    out = np.zeros((lmax + 1 + UNROLL, n))
    if rmax > LARGE_RADIUS:
        _bessel_from_ratios(r, top, lmax, out)
        return out
    newer, older, square, factor = np.ones(n), np.ones(n), np.empty(n), np.empty(n)
    for i in range(n):
        square[i] = r[i] * r[i]
    for l in range(top, 0, -1):  # newer = h_l, older = h_{l+1}
        scale = 1.0 / ((2.0 * l + 1.0) * (2.0 * l + 3.0))
        if l <= lmax:
            for i in range(n):
                out[l, i] = newer[i]
        for i in range(n):
            h = newer[i] + scale * square[i] * older[i]
            older[i] = newer[i]
            newer[i] = h
    for i in range(n):
        out[0, i] = _scaled_bessel_zero(r[i])
        factor[i] = out[0, i] / newer[i]
    for l in range(1, lmax + 1):
        inverse = 1.0 / (2.0 * l + 1.0)
        for i in range(n):
            factor[i] *= inverse * r[i]
            out[l, i] *= factor[i]
    return out


@numba.njit(cache=True, fastmath={"contract"}, error_model="numpy")
def _bessel_from_ratios(r, top, lmax, out):
    """exp(-r) i_l(r) from the ratios, started from the bound R_l <= r / (l + 1 + sqrt((l + 1)^2 + r^2))."""
    n = len(r)
    ratio = np.empty(n)
    for i in range(n):
        ratio[i] = r[i] / (top + 1.0 + math.sqrt((top + 1.0) * (top + 1.0) + r[i] * r[i]))
    for l in range(top - 1, -1, -1):
        for i in range(n):
            ratio[i] = r[i] / (2.0 * l + 3.0 + r[i] * ratio[i])
        if l < lmax:
            for i in range(n):
                out[l + 1, i] = ratio[i]
    for i in range(n):
        out[0, i] = _scaled_bessel_zero(r[i])
    for l in range(lmax):
        for i in range(n):
            out[l + 1, i] *= out[l, i]


def direct_sum(
    xi: np.ndarray, points: np.ndarray, mass: np.ndarray, chunk: int = 2**21
) -> tuple[np.ndarray, np.ndarray]:
    r"""log M and the softmax mean grad M / M, by a positive sum over point masses.

    log sum_j mass_j exp(xi . y_j) with the largest exponent taken out first: no overflow for any finite xi, and the mean
    is a convex combination of the y_j, so that its length is at most 1 to round-off.

    Parameters
    ----------
    xi : ndarray, shape (n, d)
        Points.
    points : ndarray, shape (N, d)
        Positions of the masses.
    mass : ndarray, shape (N,)
        Masses, >= 0 and not all 0.
    chunk : int
        Number of exponentials held at a time.

    Returns
    -------
    log_values : ndarray, shape (n,)
    mean : ndarray, shape (n, d)
    """
    present = mass > 0
    points, mass = points[present], mass[present]
    log_values, mean = np.empty(len(xi)), np.empty(xi.shape)
    augmented = np.column_stack([mass, mass[:, None] * points])
    rows = max(1, chunk // len(points))
    with np.errstate(under="ignore"):
        for start in range(0, len(xi), rows):
            part = slice(start, start + rows)
            exponent = xi[part] @ points.T
            top = exponent.max(axis=1)
            exponent -= top[:, None]
            sums = np.exp(exponent, out=exponent) @ augmented
            log_values[part] = top + np.log(sums[:, 0])
            mean[part] = sums[:, 1:] / sums[:, :1]
    return log_values, mean


def narrow_kernel(xi: np.ndarray, log_density: Callable) -> tuple[np.ndarray, np.ndarray]:
    r"""log M and grad M / M for |xi| so large that the kernel is narrower than the cells, from a smooth log density.

    With r = |xi|, w = xi / r and u = 1 - cos(angle to w) the sphere's measure is du dpsi, so that

        M = exp(r) int_0^2 exp(-r u) int_0^{2 pi} rho(y(u, psi)) dpsi du:

    Gauss-Laguerre in r u, equal weights in psi. All weights and values are positive, so |mean| <= 1.

    Parameters
    ----------
    xi : ndarray, shape (n, 3)
    log_density : callable
        From unit vectors (m, 3) to log rho (m,).

    Returns
    -------
    log_values : ndarray, shape (n,)
    mean : ndarray, shape (n, 3)
    """
    node, weight = roots_laguerre(LAGUERRE_NODES)
    angle = 2 * np.pi * np.arange(LAGUERRE_ANGLES) / LAGUERRE_ANGLES
    log_values, mean = np.empty(len(xi)), np.empty(xi.shape)
    for start in range(0, len(xi), 1024):
        part = slice(start, start + 1024)
        r = np.linalg.norm(xi[part], axis=1)
        w = xi[part] / r[:, None]
        first = np.cross(w, np.eye(3)[np.argmin(np.abs(w), axis=1)])
        first /= np.linalg.norm(first, axis=1)[:, None]
        second = np.cross(w, first)
        u = np.minimum(node / r[:, None], 2.0)
        across = np.sqrt(u * (2 - u))
        ring = np.cos(angle)[:, None, None] * first + np.sin(angle)[:, None, None] * second  # (angles, n, 3)
        y = (1 - u)[None, :, :, None] * w[None, :, None] + across[None, :, :, None] * ring[:, :, None]
        exponent = log_density(y.reshape(-1, 3)).reshape(y.shape[:-1]) + np.log(weight)
        top = exponent.max(axis=(0, 2))
        share = np.exp(exponent - top[:, None])
        total = share.sum(axis=(0, 2))
        log_values[part] = r + top + np.log(total * (2 * np.pi / LAGUERRE_ANGLES) / r)
        mean[part] = np.einsum("anq,anqc->nc", share, y) / total[:, None]
    return log_values, mean


def log_mobility(
    xi: np.ndarray,
    coefficients: np.ndarray,
    lmax: int,
    points: np.ndarray,
    mass: np.ndarray,
    tolerance: float,
    log_density: Callable | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    r"""log M(xi) and grad M / M at scattered points, each by the expansion or, where that would cancel, the direct sum.

    With radii so large that the expansion is cut at `lmax` (the density, which the grid resolves, has nothing beyond) the
    cells may not resolve the kernel either: the sum over them is then off by about exp(-2 lmax^2 / r), in the end by half a
    cell, and no more is asked of the expansion. `narrow_kernel` takes the place of the sum where it can.

    Parameters
    ----------
    xi : ndarray, shape (n, 3)
        Points; head h has xi = A_h^T x.
    coefficients : ndarray, shape (4, nlm)
        Coefficients of rho, y_1 rho, y_2 rho, y_3 rho up to degree `lmax`.
    points, mass : ndarray, shape (N, 3) and (N,)
        The cells of the density, for the direct sum: nodes of the Gauss grid with lmax + 1 latitudes.
    tolerance : float
        Relative error asked for.
    log_density : callable, optional
        log rho between the nodes, for `narrow_kernel`; None if the density is not smooth and positive.

    Returns
    -------
    log_values : ndarray, shape (n,)
    mean : ndarray, shape (n, 3)
        |mean| <= 1.
    """
    radius = np.linalg.norm(xi, axis=1)
    largest = radius.max(initial=0.0)
    if largest > LARGEST_RADIUS:
        return direct_sum(xi, points, mass)
    needed = expansion_degree(largest, math.log(tolerance) - largest)
    values, _ = evaluate_expansion(xi[None], coefficients, lmax, np.array([min(needed, lmax)]))
    good = expansion_is_accurate(values[0, 0], tolerance)
    if needed > lmax:
        unresolved = np.minimum(np.exp(-2 * lmax**2 / np.maximum(radius, 1.0)), 0.25 / lmax)
        if log_density is not None:
            unresolved[radius > NARROW_RADIUS * lmax**2] = 0.0
        good = values[0, 0] * np.maximum(tolerance, unresolved) > expansion_error(radius, coefficients[0], lmax)
    safe = np.where(good, values[0, 0], 1.0)
    log_values, mean = radius + np.log(safe), (values[1:, 0] / safe).T
    mean /= np.maximum(1.0, np.linalg.norm(mean, axis=1))[:, None]
    narrow = ~good & (radius > NARROW_RADIUS * lmax**2) if log_density is not None else np.zeros_like(good)
    summed = ~good & ~narrow
    if narrow.any():
        log_values[narrow], mean[narrow] = narrow_kernel(xi[narrow], log_density)
    if summed.any():
        log_values[summed], mean[summed] = direct_sum(xi[summed], points, mass)
    return log_values, mean
