"""Compiled loops of the movement step: one pass over the cells each, in the order in which mass runs downhill.

The cells are a graph: `neighbour` (N, 4) and `conductance` (N, 4), which is symmetric (the same number seen from both
cells; 0, and any index, where there is no neighbour). A potential phi orients it. All matrices of the step couple a
cell to its lower (or higher) neighbours only, so that in the order of phi they are triangular and a solve is a
substitution:

* `march` finds phi itself, smallest value first (Dijkstra's order; Sethian's fast marching);
* `downhill` solves P x = r, a cell's x depending on those of its higher neighbours;
* `uphill` solves P^T x = r, on those of its lower neighbours;

with P_KK = a_K + sum_L (g_KL)^+, P_KL = -(g_LK)^+, and g_KL = c_KL (phi_K - phi_L) the outflow per unit of density
through a face. Only sums, products and quotients of non-negative numbers occur in `downhill` and `uphill`, so a
non-negative r gives a non-negative x in floating point too, to a few units of rounding in every cell.
"""

import math

import numba
import numpy as np


@numba.njit(cache=True, error_model="numpy")
def march(data, neighbour, conductance, area, phi, order):
    """Solve a_K phi_K + 1/2 sum_L c_KL ((phi_K - phi_L)^+)^2 = a_K data_K for phi, exactly and in one pass.

    The value of a cell depends on smaller values alone and is larger than those it depends on. So the smallest
    tentative value is always final; settling it can only lower its neighbours', never below itself.

    Parameters
    ----------
    data : ndarray, shape (N,)
    neighbour, conductance : ndarray, shape (N, 4)
        The graph.
    area : ndarray, shape (N,)
    phi : ndarray, shape (N,)
        Output: the largest sub-solution, phi <= data.
    order : ndarray of int, shape (N,)
        Output: the cells in ascending order of phi.
    """
    n = len(data)
    heap = np.argsort(data)  # a sorted array is a heap
    place = np.empty(n, np.int64)  # of each cell in the heap; -1 once it is settled
    for position in range(n):
        place[heap[position]] = position
    phi[:] = data
    size = n
    for rank in range(n):
        cell = heap[0]
        order[rank] = cell
        place[cell] = -1
        size -= 1
        if size > 0:
            last = heap[size]
            heap[0] = last
            place[last] = 0
            _sift_down(heap, place, phi, size)
        for slot in range(4):
            other = neighbour[cell, slot]
            if place[other] >= 0 and phi[other] > phi[cell] and conductance[cell, slot] > 0.0:
                phi[other] = _settled_from_below(other, phi[cell], data, neighbour, conductance, area, phi, place)
                _sift_up(heap, place, phi, place[other])


@numba.njit(cache=True, error_model="numpy")
def _settled_from_below(cell, base, data, neighbour, conductance, area, phi, place):
    """Value of a cell from its settled neighbours, whose largest value is `base` and below the result.

    With u = phi - base and d_L = base - phi_L >= 0 the equation is the quadratic u + sum c/2a (u + d)^2 = data - base.
    """
    square, linear, rest = 0.0, 1.0, data[cell] - base
    for slot in range(4):
        other = neighbour[cell, slot]
        if place[other] < 0 and conductance[cell, slot] > 0.0:
            c = 0.5 * conductance[cell, slot] / area[cell]
            d = base - phi[other]
            square += c
            linear += 2.0 * c * d
            rest -= c * d * d
    if rest <= 0.0:  # by rounding: the tentative value was just above base
        return base
    return base + 2.0 * rest / (linear + math.sqrt(linear * linear + 4.0 * square * rest))


@numba.njit(cache=True, error_model="numpy")
def _sift_up(heap, place, key, position):
    cell = heap[position]
    while position > 0:
        parent = (position - 1) >> 1
        if key[heap[parent]] <= key[cell]:
            break
        heap[position] = heap[parent]
        place[heap[position]] = position
        position = parent
    heap[position] = cell
    place[cell] = position


@numba.njit(cache=True, error_model="numpy")
def _sift_down(heap, place, key, size):
    cell, position = heap[0], 0
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        if child + 1 < size and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[cell] <= key[heap[child]]:
            break
        heap[position] = heap[child]
        place[heap[position]] = position
        position = child
    heap[position] = cell
    place[cell] = position


@numba.njit(cache=True, error_model="numpy")
def outflow_rates(phi, neighbour, conductance, area, rate, diagonal):
    """Outputs rate (N, 4), g_KL = c_KL (phi_K - phi_L), and diagonal (N,), a_K + sum_L (g_KL)^+."""
    for cell in range(len(phi)):
        diagonal[cell] = area[cell]
        for slot in range(4):
            g = conductance[cell, slot] * (phi[cell] - phi[neighbour[cell, slot]])
            rate[cell, slot] = g
            if g > 0.0:
                diagonal[cell] += g


@numba.njit(cache=True, error_model="numpy")
def downhill(right, order, neighbour, rate, diagonal, out):
    """Solve P out = right; sum_K a_K out_K = sum_K right_K, and out >= 0 if right >= 0."""
    for rank in range(len(order) - 1, -1, -1):
        cell = order[rank]
        total = right[cell]
        for slot in range(4):
            if rate[cell, slot] < 0.0:
                total -= rate[cell, slot] * out[neighbour[cell, slot]]
        out[cell] = total / diagonal[cell]


@numba.njit(cache=True, error_model="numpy")
def uphill(right, order, neighbour, rate, diagonal, out):
    """Solve P^T out = right."""
    for cell in order:
        total = right[cell]
        for slot in range(4):
            if rate[cell, slot] > 0.0:
                total += rate[cell, slot] * out[neighbour[cell, slot]]
        out[cell] = total / diagonal[cell]


@numba.njit(cache=True, error_model="numpy")
def stiffness(x, density, neighbour, conductance, rate, out):
    """out_K = sum_L c_KL rho_KL (x_K - x_L), rho_KL being the density of the higher cell, the mean of both at a tie."""
    for cell in range(len(x)):
        total = 0.0
        for slot in range(4):
            other, g = neighbour[cell, slot], rate[cell, slot]
            if g > 0.0:
                upwind = density[cell]
            elif g < 0.0:
                upwind = density[other]
            else:
                upwind = 0.5 * (density[cell] + density[other])
            total += conductance[cell, slot] * upwind * (x[cell] - x[other])
        out[cell] = total


@numba.njit(cache=True, error_model="numpy")
def movement_cost(phi, density, neighbour, rate):
    """1/2 sum over faces of c rho (phi_K - phi_L)^2 with the upwind density."""
    total = 0.0
    for cell in range(len(phi)):
        for slot in range(4):
            if rate[cell, slot] > 0.0:
                total += density[cell] * rate[cell, slot] * (phi[cell] - phi[neighbour[cell, slot]])
    return 0.5 * total
