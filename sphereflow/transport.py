r"""Finite-volume transport on the Gauss grid: d rho/dt + div(rho v) = kappa Laplace(rho), with given face velocities.

The method of lines, unsplit; the unknowns are cell means with respect to area.

*Values at faces.* Each cell carries a parabola in longitude and one in colatitude between fourth-order edge values. In
colatitude these are conservative with the area weight |sin theta|, along great circles that run through the poles. Edges are
limited only to keep the parabola non-negative; where an edge comes out negative the cell changes over to the monotone limiter
(`_limited_edges`). The upwind edge value is taken.

*Fluxes.* A flux is the mean of q v over the face, <q><v> + <q'v'>: velocities are given at the midpoints and averaged along the
face, zonal face values are means over theta rather than over area, and the covariance comes from central differences. Without
these terms the scheme would be second order with a large error at the poles.

*Poles.* The cells of a ring are merged in groups of m, the smallest divisor of nlon with m sin(theta) >= 1/2, so that the zonal
time-step bound is that of the equator. The group means are the unknowns there. Inside a group the field is rebuilt from them,
by trigonometric interpolation in rings of few groups, by parabolas in the others. `tendency` returns the group-averaged rate
spread by the unlimited (linear) map, and `reconcile`, called after every stage, redoes it with the limiter.

*Positivity.* An outflow limiter scales the fluxes that leave a merged cell so that a forward-Euler stage takes at most what is
there: with a strong-stability-preserving time scheme the density never becomes negative.
"""

from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

from sphereflow.cells import area_weighted_moments, extended_faces
from sphereflow.grid import GaussGrid

RING_THRESHOLD = 0.5
TRIGONOMETRIC_GROUPS = 16
RECONSTRUCTIONS = ("ppm", "upwind", "two-point")


@dataclass(frozen=True)
class Transport:
    """The transport operator of one grid.

    Parameters
    ----------
    grid : GaussGrid
    reconstruction : {"ppm", "upwind", "two-point"}
        Piecewise parabolas; constant cells (first order, upwind); or the latter without merged cells, for face velocities
        from two-point differences: the scheme that minimising movements tend to as their step goes to zero.
    diffusion : float
        kappa >= 0.
    """

    grid: GaussGrid
    reconstruction: str = "ppm"
    diffusion: float = 0.0

    @cached_property
    def group_size(self) -> np.ndarray:
        """Number of cells merged in each ring, shape (nlat,)."""
        if self.reconstruction == "two-point":
            return np.ones(self.grid.nlat, int)
        nlon = self.grid.nlon
        divisors = np.array([m for m in range(1, nlon // 4 + 1) if nlon % m == 0])
        wide_enough = divisors[None, :] * np.sin(self.grid.colatitude)[:, None] >= RING_THRESHOLD
        wide_enough[:, -1] = True
        return divisors[np.argmax(wide_enough, axis=1)]

    @cached_property
    def _polar_spread(self) -> np.ndarray:
        """Trigonometric interpolation of group means in the innermost rings, shape (rings, m, TRIGONOMETRIC_GROUPS).

        Entry [i, j, d] is the weight of the group d groups further east in the mean over the j-th cell of a group of ring i.
        A smooth field has zonal wave k near a pole in proportion to theta^k, so that few groups carry it to high accuracy.
        """
        nlon = self.grid.nlon
        rings = np.flatnonzero(nlon // self.group_size[: self.grid.nlat // 2] <= TRIGONOMETRIC_GROUPS)
        size = self.group_size[rings].max(initial=1)
        out = np.zeros((rings.size, size, TRIGONOMETRIC_GROUPS))
        for i in rings:
            m = self.group_size[i]
            n = nlon // m
            wave = np.arange(n // 2 + 1)
            factor = np.where((wave == 0) | (2 * wave == n), 1.0, 2.0) / n
            factor *= np.sinc(wave / nlon) / np.sinc(wave * m / nlon)
            centre = (np.arange(m) + 0.5) / m - 0.5  # in units of a group, from its middle
            angle = 2 * np.pi / n * (centre[:, None] - np.arange(n)[None, :])
            out[i, :m, :n] = np.cos(angle[..., None] * wave) @ factor
        return out

    @cached_property
    def _edge_weight(self) -> np.ndarray:
        """Weights (nlat + 3, 4) of cells k-3 ... k for the edge between cells k-2 and k-1 of the ring-extended meridian."""
        faces = extended_faces(self.grid, 3)
        weights = np.zeros((self.grid.nlat + 3, 4))
        for k in range(self.grid.nlat + 3):
            moments = area_weighted_moments(faces[k : k + 5], np.arange(4), faces[k + 2])
            weights[k] = np.linalg.solve(moments.T, [1.0, 0.0, 0.0, 0.0])
        return weights

    @cached_property
    def _line_weights(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For means over theta along the east faces of each ring.

        Weights (nlat, 3) of rings i-1, i, i+1 applied to cell means and to values at the nodes' colatitudes (exact for
        parabolas), and the factor (nlat,) by which the product of the differences across those rings is the covariance.
        """
        theta, faces = self.grid.colatitude, extended_faces(self.grid, 1)
        nodes = np.concatenate([-theta[:1], theta, 2 * np.pi - theta[-1:]])
        powers = np.arange(3)
        from_means, from_nodes = np.empty((2, self.grid.nlat, 3))
        for i in range(self.grid.nlat):
            x = faces[i + 1 : i + 3] - theta[i]
            line = (x[1] ** (powers + 1) - x[0] ** (powers + 1)) / ((powers + 1) * (x[1] - x[0]))
            from_means[i] = np.linalg.solve(area_weighted_moments(faces[i : i + 4], powers, theta[i]).T, line)
            from_nodes[i] = np.linalg.solve(((nodes[i : i + 3, None] - theta[i]) ** powers).T, line)
        spread = np.diff(faces[1:-1]) ** 2 / (12 * (nodes[2:] - nodes[:-2]) ** 2)
        return from_means, from_nodes, spread

    @cached_property
    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Length of the east faces (nlat,) and of the faces between rings (nlat + 1,)."""
        south = np.sin(self.grid.colatitude_face) * self.grid.dlon
        south[[0, -1]] = 0.0
        return np.diff(self.grid.colatitude_face), south

    @cached_property
    def _conductance(self) -> tuple[np.ndarray, np.ndarray]:
        """Diffusive conductance (face length over node distance times kappa) of merged east faces and of ring faces."""
        east_length, south_length = self._lengths
        distance = self.group_size * np.sin(self.grid.colatitude) * self.grid.dlon
        south = np.zeros(self.grid.nlat + 1)
        south[1:-1] = south_length[1:-1] / np.diff(self.grid.colatitude)
        return self.diffusion * east_length / distance, self.diffusion * south

    def step_bound(self, east: np.ndarray, south: np.ndarray, cfl: float) -> float:
        """Largest stable time step: cfl pi/nlat / max|v| and the diffusive bound, added as rates.

        The speed is the largest normal speed through any face; infinite if nothing moves. For "two-point" the bound is cfl
        over the largest share of its content that a cell loses per unit time.
        """
        if self.reconstruction == "two-point":
            rate = self._largest_outflow(east, south) / cfl
        else:
            speed = max(np.abs(east).max(), np.abs(south).max())
            rate = speed * self.grid.nlat / (cfl * np.pi)
        if self.diffusion > 0:
            zonal, meridional = self._conductance
            area = self.grid.cell_area
            rate += 1.1 * np.max((2 * zonal / self.group_size + meridional[:-1] + meridional[1:]) / area)
        return 1 / rate if rate > 0 else np.inf

    def _largest_outflow(self, east, south) -> float:
        """Largest sum over a cell's faces of length times outward velocity, over the cell's area."""
        east_length, south_length = self._lengths
        zonal = np.maximum(east, 0.0) - np.minimum(np.roll(east, 1, axis=1), 0.0)
        out = east_length[:, None] * zonal - south_length[:-1, None] * np.minimum(south[:-1], 0.0)
        out += south_length[1:, None] * np.maximum(south[1:], 0.0)
        return float(np.max(out / self.grid.cell_area[:, None]))

    def tendency(self, density: np.ndarray, east: np.ndarray, south: np.ndarray, dt: float) -> np.ndarray:
        """Rate of change of the density (nlat, nlon) under face velocities.

        Parameters
        ----------
        density : ndarray, shape (nlat, nlon)
            Non-negative cell values, as left by `reconcile`.
        east, south : ndarray, shape (nlat, nlon) and (nlat + 1, nlon)
            Normal velocities at the faces.
        dt : float
            Length of the forward-Euler stage for which the outflow limiter must keep the density non-negative.
        """
        flux_east, flux_south = np.empty(self.grid.shape), np.empty((self.grid.nlat + 1, self.grid.nlon))
        out = np.empty(self.grid.shape)
        zonal, meridional = self._conductance
        _fluxes(
            density, east, south, self._edge_weight, *self._line_weights, *self._lengths, zonal, meridional,
            self.group_size, self.reconstruction == "ppm", self.diffusion > 0, flux_east, flux_south,
        )  # fmt: skip
        _divergence(density, flux_east, flux_south, self.grid.cell_area, self.group_size, dt, out)
        _regroup(out, self.group_size, self._polar_spread, self.reconstruction == "ppm", False)
        return out

    def reconcile(self, density: np.ndarray) -> np.ndarray:
        """Rebuild the merged cells of the polar rings from their group means, in place; the mass of each is kept."""
        _regroup(density, self.group_size, self._polar_spread, self.reconstruction == "ppm", True)
        return density


@numba.njit(cache=True, error_model="numpy", inline="always")
def _limited_edges(q, left, right):
    """Edge values of the parabola of a cell with mean q >= 0, limited where the data ask for it.

    Edges that are positive as they come are only moved towards the mean so far that the parabola is not negative inside. An
    edge that comes out negative tells of a jump nearby; cut at zero it would hold back the mass of a cell whose velocity points
    through it. In proportion to -edge/q the cell then changes over to the monotone limiter, which flattens local maxima.
    """
    lowest_edge = min(left, right)
    left, right = max(left, 0.0), max(right, 0.0)
    slope = right - left
    curve = 6.0 * q - 3.0 * (left + right)
    if curve < 0.0 and abs(slope) < -curve:  # the parabola's minimum lies inside the cell
        lowest = left + (slope + curve) * (slope + curve) / (4.0 * curve)
        if lowest < 0.0:
            shrink = q / (q - lowest)
            left, right = q + shrink * (left - q), q + shrink * (right - q)
    if lowest_edge < 0.0:
        share = min(1.0, -lowest_edge / q) if q > 0.0 else 1.0
        mono_left, mono_right = left, right
        slope = right - left
        curve = 6.0 * q - 3.0 * (left + right)
        if (right - q) * (q - left) <= 0.0:
            mono_left, mono_right = q, q
        elif slope * curve > slope * slope:
            mono_left = 3.0 * q - 2.0 * right
        elif slope * curve < -slope * slope:
            mono_right = 3.0 * q - 2.0 * left
        left, right = left + share * (mono_left - left), right + share * (mono_right - right)
    return left, right


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _fluxes(
    q, u, v, weight, line_from_means, line_from_nodes, spread, east_length, south_length,
    zonal, meridional, group, ppm, diffusive, fx, fy,
):  # fmt: skip
    """Fluxes (mass per time) through the east faces, fx, and the faces between rings, fy; positive to east and south."""
    nlat, nlon = q.shape
    half = nlon // 2
    edges = np.empty((nlat + 1, nlon))  # edge k is the northern edge of cell k
    for k in numba.prange(nlat + 1):
        w0, w1, w2, w3 = weight[k + 1]
        for side in range(2):  # columns shift by half a turn for rows beyond a pole
            lo, hi, shift = (0, half, half) if side == 0 else (half, nlon, -half)
            for j in range(lo, hi):
                a = q[k - 2, j] if k >= 2 else q[1 - k, j + shift]
                b = q[k - 1, j] if k >= 1 else q[0, j + shift]
                c = q[k, j] if k < nlat else q[nlat - 1, j + shift]
                d = q[k + 1, j] if k + 1 < nlat else q[2 * nlat - 2 - k, j + shift]
                edges[k, j] = w0 * a + w1 * b + w2 * c + w3 * d
    north, south = np.empty((nlat, nlon)), np.empty((nlat, nlon))
    for i in numba.prange(nlat):
        if ppm:
            for j in range(nlon):
                north[i, j], south[i, j] = _limited_edges(q[i, j], edges[i, j], edges[i + 1, j])
            _parabolic_zonal_fluxes(i, q, u, line_from_means[i], line_from_nodes[i], spread[i], east_length[i], fx[i])
        else:
            north[i, :] = q[i, :]
            south[i, :] = q[i, :]
            for j in range(nlon):
                fx[i, j] = east_length[i] * u[i, j] * (q[i, j] if u[i, j] > 0.0 else q[i, j + 1 if j + 1 < nlon else 0])
        if diffusive:
            _zonal_diffusion(q[i], zonal[i], group[i], fx[i])
    for k in numba.prange(nlat + 1):
        if k == 0 or k == nlat:
            fy[k, :] = 0.0
        else:
            length, conductance = south_length[k], meridional[k]
            upwind = np.empty(nlon)
            for j in range(nlon):
                upwind[j] = south[k - 1, j] if v[k, j] > 0.0 else north[k, j]
            if ppm:
                _ring_fluxes(upwind, v[k], length, fy[k])
            else:
                for j in range(nlon):
                    fy[k, j] = length * upwind[j] * v[k, j]
            if diffusive:
                for j in range(nlon):
                    fy[k, j] -= conductance * (q[k, j] - q[k - 1, j])


@numba.njit(cache=True, error_model="numpy", inline="always")
def _bounded(difference, value):
    """A difference over two cells, at most 4 times the value between: corrections must vanish where there is no mass.

    Otherwise the outflow limiter would have to stop them, at a strength that depends on the time step.
    """
    return min(max(difference, -4.0 * value), 4.0 * value)


@numba.njit(cache=True, error_model="numpy")
def _ring_fluxes(q, v, length, flux):
    """Fluxes through the faces between two rings from values averaged over longitude and velocities at midpoints."""
    n = len(q)
    for j in range(n):
        west = j - 1 if j > 0 else n - 1
        east = j + 1 if j + 1 < n else 0
        mean = v[j] + (v[west] - 2.0 * v[j] + v[east]) / 24.0
        flux[j] = length * (q[j] * mean + _bounded(q[east] - q[west], q[j]) * (v[east] - v[west]) / 48.0)


@numba.njit(cache=True, error_model="numpy")
def _parabolic_zonal_fluxes(i, q, u, line_from_means, line_from_nodes, spread, length, flux):
    """Fluxes through the east faces of ring i: means along the face in theta, and the covariance of q and u along it."""
    nlat, nlon = q.shape
    half = nlon // 2
    a, b, c = line_from_means
    d, e, f = line_from_nodes
    above, below, row = np.empty(nlon), np.empty(nlon), np.empty(nlon)
    for j in range(nlon):
        opposite = j + half if j < half else j - half
        above[j] = q[i - 1, j] if i > 0 else q[0, opposite]
        below[j] = q[i + 1, j] if i + 1 < nlat else q[nlat - 1, opposite]
        row[j] = min(max(a * above[j] + b * q[i, j] + c * below[j], 0.0), 2.0 * q[i, j])
    west, east = np.empty(nlon), np.empty(nlon)
    _zonal_edges(row, west, east, True)
    for j in range(nlon):
        following = j + 1 if j + 1 < nlon else 0
        opposite = j + half if j < half else j - half
        up = u[i - 1, j] if i > 0 else -u[0, opposite]  # eastward beyond the pole is westward here
        down = u[i + 1, j] if i + 1 < nlat else -u[nlat - 1, opposite]
        mean = d * up + e * u[i, j] + f * down
        value = east[j] if u[i, j] > 0.0 else west[following]
        slope = 0.5 * (below[j] - above[j] + below[following] - above[following])
        flux[j] = length * (value * mean + spread * _bounded(slope, value) * (down - up))


@numba.njit(cache=True, error_model="numpy")
def _zonal_edges(q, west, east, limited):
    """West and east edge values of the parabolas of a periodic row."""
    n = len(q)
    for j in range(n):
        a = q[j - 2] if j >= 2 else q[n + j - 2]
        b = q[j - 1] if j >= 1 else q[n - 1]
        d = q[j + 1] if j + 1 < n else q[0]
        west[j] = (7.0 * (b + q[j]) - (a + d)) / 12.0
    for j in range(n - 1):
        east[j] = west[j + 1]
    east[n - 1] = west[0]
    if limited:
        for j in range(n):
            west[j], east[j] = _limited_edges(q[j], west[j], east[j])


@numba.njit(cache=True, error_model="numpy")
def _zonal_diffusion(q, conductance, m, flux):
    """Diffusive flux between merged cells, from the difference of their means."""
    n = len(q)
    for start in range(0, n, m):
        here, there = 0.0, 0.0
        following = start + m if start + m < n else 0
        for j in range(m):
            here += q[start + j]
            there += q[following + j]
        flux[start + m - 1] -= conductance * (there - here) / m


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _divergence(q, fx, fy, area, group, dt, out):
    """Minus the divergence of the fluxes, after the outflow limiter; merged cells are limited as one."""
    nlat, nlon = q.shape
    keep = np.empty((nlat, nlon))
    limited = np.zeros(nlat, np.bool_)
    for i in numba.prange(nlat):
        m = group[i]
        for start in range(0, nlon, m):
            last = start + m - 1
            before = start - 1 if start > 0 else nlon - 1
            leaving = max(fx[i, last], 0.0) + max(-fx[i, before], 0.0)
            mass = 0.0
            for j in range(start, start + m):
                leaving += max(fy[i + 1, j], 0.0) + max(-fy[i, j], 0.0)
                mass += q[i, j]
            mass = max(mass, 0.0) * area[i]
            share = 1.0
            if leaving * dt > mass:
                share = mass / (leaving * dt)
                limited[i] = True
            for j in range(start, start + m):
                keep[i, j] = share
    if limited.any():
        for i in numba.prange(nlat):
            for j in range(nlon):
                following = j + 1 if j + 1 < nlon else 0
                fx[i, j] *= keep[i, j] if fx[i, j] > 0.0 else keep[i, following]
        for k in numba.prange(1, nlat):
            for j in range(nlon):
                fy[k, j] *= keep[k - 1, j] if fy[k, j] > 0.0 else keep[k, j]
    for i in numba.prange(nlat):
        scale = -1.0 / area[i]
        out[i, 0] = scale * (fx[i, 0] - fx[i, nlon - 1] + fy[i + 1, 0] - fy[i, 0])
        for j in range(1, nlon):
            out[i, j] = scale * (fx[i, j] - fx[i, j - 1] + fy[i + 1, j] - fy[i, j])


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _regroup(q, group, spread, ppm, limited):
    """Replace each merged group by its mean, spread over its cells.

    Rings of few groups use the trigonometric interpolant of the group means (`spread`, see `Transport._polar_spread`), the
    others the parabola of each group; first order keeps the mean.
    """
    nlat, nlon = q.shape
    for i in numba.prange(nlat):
        m = group[i]
        if m > 1:
            n = nlon // m
            mean = np.empty(n)
            for g in range(n):
                total = 0.0
                for j in range(g * m, (g + 1) * m):
                    total += q[i, j]
                mean[g] = total / m
            if not ppm:
                for g in range(n):
                    q[i, g * m : (g + 1) * m] = mean[g]
            elif n <= spread.shape[2]:
                ring = np.int64(i)  # distance from the nearer pole, in signed arithmetic
                _spread_trigonometric(mean, spread[min(ring, nlat - 1 - ring)], limited, q[i])
            else:
                _spread_parabolic(mean, limited, q[i])


@numba.njit(cache=True, error_model="numpy")
def _spread_trigonometric(mean, kernel, limited, row):
    n = len(mean)
    m = len(row) // n
    for g in range(n):
        lowest = np.inf
        for j in range(m):
            value = 0.0
            for d in range(n):
                value += kernel[j, d] * mean[g + d if g + d < n else g + d - n]
            row[g * m + j] = value
            lowest = min(lowest, value)
        if limited and lowest < 0.0:
            shrink = mean[g] / (mean[g] - lowest) if mean[g] > 0.0 else 0.0
            for j in range(m):
                row[g * m + j] = mean[g] + shrink * (row[g * m + j] - mean[g])


@numba.njit(cache=True, error_model="numpy")
def _spread_parabolic(mean, limited, row):
    n = len(mean)
    m = len(row) // n
    west, east = np.empty(n), np.empty(n)
    _zonal_edges(mean, west, east, limited)
    for g in range(n):
        slope = east[g] - west[g]
        curve = 6.0 * mean[g] - 3.0 * (west[g] + east[g])
        for j in range(m):  # mean of the parabola over the j-th of m equal parts
            x = (2.0 * j + 1.0) / (2.0 * m)
            row[g * m + j] = west[g] + (slope + curve) * x - curve * (x * x + 1.0 / (12.0 * m * m))
