"""Arithmetic on arrays of the grid in one pass and on all threads, where numpy would take several and make temporaries."""

import math

import numba
import numpy as np


def blend(a: float, x: np.ndarray, b: float, y: np.ndarray, dt: float, rate: np.ndarray) -> np.ndarray:
    """a x + b (y + dt rate): a convex combination of a state and a forward-Euler stage."""
    out = np.empty_like(x)
    _blend(a, x.reshape(-1), b, y.reshape(-1), dt, rate.reshape(-1), out.reshape(-1))
    return out


def weighted_sum(weights: list[float], values: list[np.ndarray]) -> np.ndarray:
    """sum_k weights_k values_k of one to four one-dimensional arrays."""
    out = np.empty_like(values[0])
    missing = 4 - len(values)
    _weighted_sum(*weights, *(0.0,) * missing, *values, *(values[0],) * missing, out)
    return out


def masses(new: np.ndarray, middle: np.ndarray, old: np.ndarray, area: np.ndarray) -> tuple[float, float]:
    """Mass moved from `old` to `new`, and that of the error estimate new - 2 middle + old: half L1 norms.

    Parameters
    ----------
    new, middle, old : ndarray, shape (nlat, nlon)
    area : ndarray, shape (nlat,)
        Of the cells of each ring.
    """
    rows = np.empty((2, len(area)))
    _row_masses(new, middle, old, rows)
    moved, error = 0.5 * rows @ area
    return float(moved), float(error)


def difference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x - y of one-dimensional arrays."""
    out = np.empty_like(x)
    _difference(x, y, out)
    return out


def mass_carried(rate: np.ndarray, area: np.ndarray) -> float:
    """Mass that a rate of change (nlat, nlon) carries per unit time: half its L1 norm."""
    rows = np.empty(len(area))
    _row_sizes(rate, rows)
    return 0.5 * float(rows @ area)


def weighted_speed(log_weight: np.ndarray, velocity: np.ndarray, density: np.ndarray, area: np.ndarray) -> float:
    """Integral of exp(log_weight) |velocity|^2 density; fields (nlat, nlon), the velocity with two components."""
    rows = np.empty(len(area))
    _row_speeds(log_weight, velocity, density, rows)
    return float(rows @ area)


def extremes(values: np.ndarray) -> tuple[float, float]:
    """Smallest and largest value; both NaN if any value is NaN or infinite."""
    rows = np.empty((2, len(values)))
    _row_extremes(values, rows)
    return float(rows[0].min()), float(rows[1].max())


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _blend(a, x, b, y, dt, rate, out):
    for i in numba.prange(out.size):
        out[i] = a * x[i] + b * (y[i] + dt * rate[i])


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _weighted_sum(a, b, c, d, w, x, y, z, out):
    for i in numba.prange(out.size):
        out[i] = a * w[i] + b * x[i] + c * y[i] + d * z[i]


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _difference(x, y, out):
    for i in numba.prange(out.size):
        out[i] = x[i] - y[i]


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _row_masses(new, middle, old, rows):
    for i in numba.prange(len(new)):
        moved, error = 0.0, 0.0
        for j in range(new.shape[1]):
            moved += abs(new[i, j] - old[i, j])
            error += abs(new[i, j] - 2.0 * middle[i, j] + old[i, j])
        rows[0, i], rows[1, i] = moved, error


@numba.njit(cache=True, error_model="numpy", parallel=True, fastmath={"reassoc", "contract"})
def _row_sizes(rate, rows):
    for i in numba.prange(len(rate)):
        total = 0.0
        for j in range(rate.shape[1]):
            total += abs(rate[i, j])
        rows[i] = total


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _row_speeds(log_weight, velocity, density, rows):
    for i in numba.prange(len(density)):
        total = 0.0
        for j in range(density.shape[1]):
            speed_squared = velocity[0, i, j] ** 2 + velocity[1, i, j] ** 2
            total += math.exp(log_weight[i, j]) * speed_squared * density[i, j]
        rows[i] = total


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _row_extremes(values, rows):
    for i in numba.prange(len(values)):
        low, high, finite = np.inf, -np.inf, 0.0
        for j in range(values.shape[1]):
            value = values[i, j]
            low, high = min(low, value), max(high, value)
            finite += 0.0 * value  # NaN for every value that is not finite
        rows[0, i], rows[1, i] = low + finite, high + finite
