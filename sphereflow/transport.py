r"""Finite-volume transport on the Gauss grid: d rho/dt + div(rho v) = kappa Laplace(rho), with given face velocities.

The method of lines, unsplit; the unknowns are cell means with respect to area.

*Values at faces.* Each cell carries a parabola in longitude and one in colatitude between fourth-order edge values. In
colatitude these are conservative with the area weight |sin theta|, along great circles that run through the poles. Edges are
limited only to keep the parabola non-negative; where an edge comes out negative the cell changes over to the monotone limiter
(`sphereflow.fluxes`). The upwind edge value is taken.

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
from sphereflow.fluxes import fluxes, zonal_edges
from sphereflow.grid import GaussGrid
from sphereflow.passes import extremes

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
        """Trigonometric interpolation of group means in the innermost rings, shape (rings, TRIGONOMETRIC_GROUPS, m).

        Entry [i, d, j] is the weight of the group d groups further east in the mean over the j-th cell of a group of ring i.
        A smooth field has zonal wave k near a pole in proportion to theta^k, so that few groups carry it to high accuracy.
        """
        nlon = self.grid.nlon
        rings = np.flatnonzero(nlon // self.group_size[: self.grid.nlat // 2] <= TRIGONOMETRIC_GROUPS)
        size = self.group_size[rings].max(initial=1)
        out = np.zeros((rings.size, TRIGONOMETRIC_GROUPS, size))
        for i in rings:
            m = self.group_size[i]
            n = nlon // m
            wave = np.arange(n // 2 + 1)
            factor = np.where((wave == 0) | (2 * wave == n), 1.0, 2.0) / n
            factor *= np.sinc(wave / nlon) / np.sinc(wave * m / nlon)
            centre = (np.arange(m) + 0.5) / m - 0.5  # in units of a group, from its middle
            angle = 2 * np.pi / n * (centre[None, :] - np.arange(n)[:, None])
            out[i, :n, :m] = np.cos(angle[..., None] * wave) @ factor
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

    @cached_property
    def _workspace(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fluxes through the east faces and those between rings, and shares of the outflow: overwritten by every tendency.

        Memory that is asked for anew comes in pages which the system has to clear: more work than the fluxes.
        """
        nlat, nlon = self.grid.shape
        return np.empty((nlat, nlon)), np.empty((nlat + 1, nlon)), np.empty((nlat, nlon))

    def step_bound(self, east: np.ndarray, south: np.ndarray, cfl: float) -> float:
        """Largest stable time step: cfl pi/nlat / max|v| and the diffusive bound, added as rates.

        The speed is the largest normal speed through any face; infinite if nothing moves. For "two-point" the bound is cfl
        over the largest share of its content that a cell loses per unit time.
        """
        if self.reconstruction == "two-point":
            rate = self._largest_outflow(east, south) / cfl
        else:
            speed = max(abs(extreme) for normal in (east, south) for extreme in extremes(normal))
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
        flux_east, flux_south, keep = self._workspace
        out = np.empty(self.grid.shape)
        zonal, meridional = self._conductance
        fluxes(
            density, east, south, self._edge_weight, *self._line_weights, *self._lengths, zonal, meridional,
            self.group_size, self.reconstruction == "ppm", self.diffusion > 0, flux_east, flux_south,
        )  # fmt: skip
        _divergence(density, flux_east, flux_south, self.grid.cell_area, self.group_size, dt, keep, out)
        _regroup(out, self.group_size, self._polar_spread, self.reconstruction == "ppm", False)
        return out

    def stage_rate(self, density: np.ndarray, tendency: np.ndarray, dt: float) -> np.ndarray:
        """The rate at which a forward-Euler stage moves a density: the tendency, but for the limiter of merged cells."""
        out, work = tendency.copy(), self._workspace[2]
        for rings in self._merged_rings:
            work[rings] = density[rings] + dt * tendency[rings]
        self.reconcile(work)
        for rings in self._merged_rings:
            out[rings] = (work[rings] - density[rings]) / dt
        return out

    @cached_property
    def _merged_rings(self) -> tuple[slice, slice]:
        """The rings around each pole whose cells are merged."""
        merged = int(np.argmin(self.group_size > 1))
        return slice(0, merged), slice(self.grid.nlat - merged, None)

    def reconcile(self, density: np.ndarray) -> np.ndarray:
        """Rebuild the merged cells of the polar rings from their group means, in place; the mass of each is kept."""
        _regroup(density, self.group_size, self._polar_spread, self.reconstruction == "ppm", True)
        return density


@numba.njit(cache=True, error_model="numpy", parallel=True)
def _divergence(q, fx, fy, area, group, dt, keep, out):
    """Minus the divergence of the fluxes, after the outflow limiter; merged cells are limited as one."""
    nlat, nlon = q.shape
    limited = np.zeros(nlat, np.bool_)
    for i in numba.prange(nlat):
        limited[i] = _outflow(q[i], fx[i], fy[i], fy[i + 1], area[i], group[i], dt, keep[i])
    if limited.any():
        for i in numba.prange(nlat):
            for j in range(nlon):
                following = j + 1 if j + 1 < nlon else 0
                fx[i, j] *= keep[i, j] if fx[i, j] > 0.0 else keep[i, following]
        for k in numba.prange(1, nlat):
            for j in range(nlon):
                fy[k, j] *= keep[k - 1, j] if fy[k, j] > 0.0 else keep[k, j]
    for i in numba.prange(nlat):
        _balance(fx[i], fy[i], fy[i + 1], -1.0 / area[i], out[i])


@numba.njit(cache=True, error_model="numpy")
def _balance(fx, fn, fs, scale, out):
    """What leaves the cells of a ring through their four faces, times a factor."""
    n = len(fx)
    out[0] = scale * (fx[0] - fx[n - 1] + fs[0] - fn[0])
    for j in range(n - 1):
        out[j + 1] = scale * (fx[j + 1] - fx[j] + fs[j + 1] - fn[j + 1])


@numba.njit(cache=True, error_model="numpy")
def _outflow(q, fx, fn, fs, area, m, dt, keep):
    """Share of what would leave that may leave each merged cell of a ring; returns whether any is below 1."""
    n = len(q)
    leaving = np.empty(n)
    if m == 1:
        leaving[0] = max(-fx[n - 1], 0.0)
        for j in range(n - 1):
            leaving[j + 1] = max(-fx[j], 0.0)
        scale = dt / area
        over = 0
        for j in range(n):
            leaving[j] = scale * (leaving[j] + max(fx[j], 0.0) + max(fs[j], 0.0) + max(-fn[j], 0.0))
            keep[j] = 1.0
            over += leaving[j] > max(q[j], 0.0)
        if over:
            for j in range(n):
                there = max(q[j], 0.0)
                share = there / leaving[j]
                keep[j] = share if leaving[j] > there else 1.0
        return over > 0
    over = 0
    for j in range(n):
        leaving[j] = max(fs[j], 0.0) + max(-fn[j], 0.0)
    for start in range(0, n, m):
        last = start + m - 1
        before = start - 1 if start > 0 else n - 1
        total = max(fx[last], 0.0) + max(-fx[before], 0.0)
        mass = 0.0
        for j in range(start, start + m):
            total += leaving[j]
            mass += q[j]
        mass = max(mass, 0.0) * area
        share = 1.0
        if total * dt > mass:
            share = mass / (total * dt)
            over += 1
        for j in range(start, start + m):
            keep[j] = share
    return over > 0



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
            elif n <= spread.shape[1]:
                ring = np.int64(i)  # distance from the nearer pole, in signed arithmetic
                _spread_trigonometric(mean, spread[min(ring, nlat - 1 - ring)], limited, q[i])
            else:
                _spread_parabolic(mean, limited, q[i])


@numba.njit(cache=True, error_model="numpy")
def _spread_trigonometric(mean, kernel, limited, row):
    n = len(mean)
    m = len(row) // n
    for g in range(n):
        cells = row[g * m : (g + 1) * m]
        cells[:] = 0.0
        for d in range(n):
            there = mean[g + d if g + d < n else g + d - n]
            for j in range(m):
                cells[j] += kernel[d, j] * there
        lowest = np.inf
        for j in range(m):
            lowest = min(lowest, cells[j])
        if limited and lowest < 0.0:
            shrink = mean[g] / (mean[g] - lowest) if mean[g] > 0.0 else 0.0
            for j in range(m):
                cells[j] = mean[g] + shrink * (cells[j] - mean[g])


@numba.njit(cache=True, error_model="numpy")
def _spread_parabolic(mean, limited, row):
    n = len(mean)
    m = len(row) // n
    padded, west, east = np.empty(n + 3), np.empty(n + 1), np.empty(n)
    padded[2 : n + 2] = mean
    zonal_edges(padded, west, east, n, limited)
    for g in range(n):
        slope = east[g] - west[g]
        curve = 6.0 * mean[g] - 3.0 * (west[g] + east[g])
        for j in range(m):  # mean of the parabola over the j-th of m equal parts
            x = (2.0 * j + 1.0) / (2.0 * m)
            row[g * m + j] = west[g] + (slope + curve) * x - curve * (x * x + 1.0 / (12.0 * m * m))
