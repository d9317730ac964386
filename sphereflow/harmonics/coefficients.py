"""Arrays of coefficients: their order, truncation, inner products, and multiplication by the coordinates."""

from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array

PRODUCT_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


@lru_cache(maxsize=64)
def degrees_and_orders(lmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Degree l and order m of every stored coefficient.

    Parameters
    ----------
    lmax : int
        Largest degree.

    Returns
    -------
    degree, order : ndarray of int, shape (nlm,)
    """
    order = np.repeat(np.arange(lmax + 1), np.arange(lmax + 1, 0, -1))
    degree = np.concatenate([np.arange(m, lmax + 1) for m in range(lmax + 1)])
    for array in (degree, order):
        array.flags.writeable = False
    return degree, order

def coefficient_index(degree, order, lmax: int):
    """Position of the coefficient (degree, order) in an array up to degree `lmax`."""
    return order * (2 * lmax + 1 - order) // 2 + degree


def change_degree(coefficients: np.ndarray, lmax: int, new_lmax: int) -> np.ndarray:
    """Truncate or zero-pad coefficients (..., nlm) from degree `lmax` to `new_lmax`."""
    if new_lmax == lmax:
        return coefficients
    if new_lmax < lmax:
        return coefficients[..., _positions(new_lmax, lmax)]
    out = np.zeros((*coefficients.shape[:-1], (new_lmax + 1) * (new_lmax + 2) // 2), complex)
    out[..., _positions(lmax, new_lmax)] = coefficients
    return out


@lru_cache(maxsize=256)
def _positions(low: int, high: int) -> np.ndarray:
    """Where the coefficients up to degree `low` stand in an array up to degree `high`."""
    return coefficient_index(*degrees_and_orders(low), high)


def inner_product(a: np.ndarray, b: np.ndarray, lmax: int) -> np.ndarray:
    """int f g of two real fields from their coefficients (Parseval), over the last axis.

    sum_l a_l0 b_l0 + 2 Re sum_{m>0} a_lm conj(b_lm).
    """
    zonal = np.sum(a[..., : lmax + 1].real * b[..., : lmax + 1].real, axis=-1)
    rest = a[..., lmax + 1 :], b[..., lmax + 1 :]
    return zonal + 2 * np.sum(rest[0].real * rest[1].real + rest[0].imag * rest[1].imag, axis=-1)

def degree_power(coefficients: np.ndarray, lmax: int) -> np.ndarray:
    """Power in each degree l = 0 ... lmax, sum over all orders m = -l ... l of |a_lm|^2; its sum is int f^2 (Parseval).

    Parameters
    ----------
    coefficients : ndarray, shape (nlm,)
        Of a real field, stored for m >= 0.
    lmax : int
        Largest degree.

    Returns
    -------
    ndarray, shape (lmax + 1,)
    """
    degree, order = degrees_and_orders(lmax)
    return np.bincount(degree, np.where(order == 0, 1.0, 2.0) * np.abs(coefficients) ** 2)


@lru_cache(maxsize=64)
def _coordinate_operator(lmax: int) -> csr_array:
    """The real matrix from coefficients up to `lmax` to those of x f, y f, z f up to `lmax` - 1, as real vectors."""
    l, m = degrees_and_orders(lmax - 1)
    below, above = np.sqrt(np.abs(4.0 * l**2 - 1)), np.sqrt(4.0 * (l + 1) ** 2 - 1)

    def root(a, b):  # never negative where the source exists
        return np.sqrt(np.maximum((a * b).astype(float), 0.0))

    # (axis, source degree, source order, factor): (x + i y) raises the order, (x - i y) lowers it
    terms = [(2, l - 1, m, root(l - m, l + m) / below), (2, l + 1, m, root(l + 1 - m, l + 1 + m) / above)]
    for axis, raised, lowered in ((0, 0.5, 0.5), (1, -0.5j, 0.5j)):
        terms += [
            (axis, l - 1, m - 1, -raised * root(l + m, l + m - 1) / below),
            (axis, l + 1, m - 1, raised * root(l + 1 - m, l + 2 - m) / above),
            (axis, l - 1, m + 1, lowered * root(l - m, l - m - 1) / below),
            (axis, l + 1, m + 1, -lowered * root(l + 1 + m, l + 2 + m) / above),
        ]
    rows, columns, entries = [], [], []
    for axis, degree, order, factor in terms:
        (place,) = np.nonzero(np.abs(order) <= degree)
        degree, order, factor = degree[place], order[place], factor[place]
        mirrored = order < 0  # f_{l,-m} = (-1)^m conj f_lm
        source = coefficient_index(degree, np.abs(order), lmax)
        factor = np.where(mirrored & (order % 2 == 1), -factor, factor)
        for part, unit in enumerate((factor, 1j * np.where(mirrored, -factor, factor))):
            for component, value in enumerate((unit.real, unit.imag)):
                rows.append(2 * (axis * l.size + place) + component)
                columns.append(2 * source + part)
                entries.append(value)
    matrix = csr_array(
        (np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))),
        shape=(6 * l.size, (lmax + 1) * (lmax + 2)),
    )
    matrix.eliminate_zeros()
    return matrix


def times_coordinates(coefficients: np.ndarray, lmax: int) -> np.ndarray:
    r"""Coefficients of x f, y f and z f up to degree `lmax` - 1, exactly.

    With a(l, m)^2 = (l^2 - m^2) / (4 l^2 - 1)

        (z f)_lm = a(l, m) f_{l-1,m} + a(l+1, m) f_{l+1,m},

    and likewise for x +- i y, which raise and lower the order by one.

    Parameters
    ----------
    coefficients : ndarray, shape (..., nlm)
        Of a real field f, up to degree `lmax` >= 1.

    Returns
    -------
    ndarray, shape (..., 3, nlm')
    """
    stack = np.ascontiguousarray(coefficients, dtype=complex).reshape(-1, coefficients.shape[-1])
    out = np.ascontiguousarray((_coordinate_operator(lmax) @ stack.view(float).T).T).view(complex)
    return out.reshape(*coefficients.shape[:-1], 3, -1)


def coordinate_moments(coefficients: np.ndarray, lmax: int, degree: int) -> np.ndarray:
    """Coefficients up to `degree` < `lmax` of f, x f, y f and z f for f (nlm,) up to degree `lmax`, shape (4, nlm')."""
    first = times_coordinates(change_degree(coefficients, lmax, degree + 1), degree + 1)
    return np.concatenate([change_degree(coefficients, lmax, degree)[None], first])


def pair_moments(coefficients: np.ndarray, lmax: int, degree: int) -> np.ndarray:
    """Coefficients up to `degree` < `lmax` - 1 of x_a x_b f for the pairs (a, b) of `PRODUCT_PAIRS`, shape (6, nlm')."""
    first = times_coordinates(change_degree(coefficients, lmax, degree + 2), degree + 2)
    second = times_coordinates(first, degree + 1)  # (b, a, nlm')
    return np.array([second[a, b] for a, b in PRODUCT_PAIRS])
