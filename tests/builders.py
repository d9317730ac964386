"""Short cuts shared by the tests: solvers without case files, exact solutions, test flows."""

import numpy as np
from scipy.integrate import solve_ivp

from sphereflow.attention import AttentionOperator
from sphereflow.cells import cell_means
from sphereflow.heads import WeightPath
from sphereflow.simulation import FiniteVolumeSolver
from sphereflow.stepping import StepController
from sphereflow.transport import Transport


def frozen_path(matrices, t_end=1.0, values=None, weight=None):
    """A weight path that stays at the given matrices."""
    matrices = np.asarray(matrices, float).reshape(-1, 3, 3)
    weight = np.full(len(matrices), 1 / len(matrices)) if weight is None else np.asarray(weight)
    values = None if values is None else np.stack([np.asarray(values, float).reshape(-1, 3, 3)] * 2)
    return WeightPath(np.array([0.0, t_end]), np.stack([matrices] * 2), weight, values=values)


def solver(grid, node_density, path, velocity="attention", direction=-1, *, backend="auto", diffusion=0.0,
           reconstruction="ppm", **control):  # fmt: skip
    """A finite-volume solver from node values of the density and a weight path."""
    return FiniteVolumeSolver(
        AttentionOperator(grid, velocity, direction, backend=backend),
        Transport(grid, reconstruction, diffusion),
        path,
        StepController(**control),
        cell_means(grid, node_density),
    )


def advance_to(run, t):
    """Advance a solver to a time."""
    while run.t < t:
        run.advance(t)
    return run


def vmf(grid, centre, kappa):
    """Node values of a von Mises-Fisher density of mass 1 on the grid."""
    centre = np.asarray(centre, float)
    density = np.exp(kappa * (grid.points @ (centre / np.linalg.norm(centre)) - 1))
    return density / grid.integrate(density)


def random_symmetric(seed, count):
    """Z + Z^T with standard normal Z, scaled to spectral norm 2."""
    z = np.random.default_rng(seed).standard_normal((count, 3, 3))
    z = z + z.transpose(0, 2, 1)
    return 2 * z / np.linalg.norm(z, ord=2, axis=(1, 2))[:, None, None]


def fitted_order(sizes, errors):
    """Slope of log error against log of the resolution."""
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def mobius_density(grid, axis, s):
    """The Moebius family rho_T, T = tanh s, about an axis (node values)."""
    u, t = grid.points @ np.asarray(axis, float), np.tanh(s)
    return (1 - t * t) / (1 - u * t) ** 2 / (4 * np.pi)


def mobius_mean(s):
    """|M| of the Moebius family."""
    t = np.tanh(s)
    return 1 / t - (1 - t * t) / (2 * t * t) * np.log((1 + t) / (1 - t))


def mobius_time(s0, s1):
    """Time in which ds/dt = |M| goes from s0 to s1."""
    done = solve_ivp(lambda s, t: [1 / mobius_mean(s)], (s0, s1), [0.0], rtol=1e-12, atol=1e-13)
    return done.y[0, -1]


# Transport flows on the unit sphere: normal velocities at the midpoints of the faces -----------------------------------


def face_points(grid):
    """(colatitude, longitude) of the midpoints of the east faces and of the faces between rings."""
    east = np.meshgrid(grid.colatitude, grid.longitude + grid.dlon / 2, indexing="ij")
    south = np.meshgrid(grid.colatitude_face, grid.longitude, indexing="ij")
    return east, south


def solid_rotation(grid, alpha, period=5.0):
    """Williamson et al. (1992), test 1: one revolution in a period, axis tilted by alpha."""
    speed = 2 * np.pi / period
    (te, le), (_, ls) = face_points(grid)
    east = speed * (np.sin(te) * np.cos(alpha) + np.cos(te) * np.cos(le) * np.sin(alpha))
    south = speed * np.sin(ls) * np.sin(alpha)
    south[[0, -1]] = 0.0
    return lambda t: (east, south)


def deformation(grid, divergent, period=5.0):
    """Lauritzen et al. (2012): reversing deformational flow on top of a solid rotation."""
    (te, le), (ts, ls) = face_points(grid)
    pe, ps = np.pi / 2 - te, np.pi / 2 - ts

    def velocity(t):
        back, fade = 2 * np.pi * t / period, np.cos(np.pi * t / period)
        rotation = 2 * np.pi * np.cos(pe) / period
        if divergent:
            east = -5 / period * np.sin((le - back) / 2) ** 2 * np.sin(2 * pe) * np.cos(pe) ** 2 * fade + rotation
            south = -5 / (2 * period) * np.sin(ls - back) * np.cos(ps) ** 3 * fade
        else:
            east = 10 / period * np.sin(le - back) ** 2 * np.sin(2 * pe) * fade + rotation
            south = -10 / period * np.sin(2 * (ls - back)) * np.cos(ps) * fade
        south[[0, -1]] = 0.0
        return east, south

    return velocity


def distance(grid, longitude):
    """Great-circle distance of the nodes from a point of the equator."""
    centre = np.array([np.cos(longitude), np.sin(longitude), 0.0])
    return np.arccos(np.clip(grid.points @ centre, -1, 1))


def cosine_bell(grid, longitude=1.5 * np.pi, radius=1 / 3):
    """Half of 1 + cos(pi r / R) inside radius R."""
    r = distance(grid, longitude)
    return np.where(r < radius, 0.5 * (1 + np.cos(np.pi * r / radius)), 0.0)


CENTRES = (5 * np.pi / 6, 7 * np.pi / 6)


def gaussian_hills(grid):
    """Two Gaussian hills of Lauritzen et al."""
    return sum(0.95 * np.exp(-10 * (1 - np.cos(distance(grid, lon)))) for lon in CENTRES)


def cosine_bells(grid):
    """Two cosine bells on a background of Lauritzen et al."""
    return 0.1 + 0.9 * sum(cosine_bell(grid, lon, 0.5) for lon in CENTRES)


def slotted_cylinders(grid):
    """Two slotted cylinders of Lauritzen et al., on a background of 0.1."""
    out = np.full(grid.shape, 0.1)
    latitude = np.pi / 2 - grid.colatitude[:, None]
    for lon, side in zip(CENTRES, (1, -1), strict=True):
        away = np.abs((grid.longitude[None] - lon + np.pi) % (2 * np.pi) - np.pi)
        slot = (away < 0.5 / 6) & (side * latitude > -5 / 12 * 0.5)
        out[(distance(grid, lon) <= 0.5) & ~slot] = 1.0
    return out


def transported(grid, density, velocity, t_end=5.0, cfl=0.3, reconstruction="ppm", steps=None):
    """SSPRK3 transport of cell means under prescribed face velocities; returns the result, the start and the lowest value."""
    from sphereflow.stepping import ssprk3_step

    transport = Transport(grid, reconstruction)
    fastest = min(transport.step_bound(*velocity(t), cfl) for t in np.linspace(0, t_end, 21))
    steps = steps or int(np.ceil(t_end / fastest))
    dt = t_end / steps
    start = transport.reconcile(np.array(density))
    q, lowest = start, 0.0

    def rhs(state, t):
        return transport.tendency(state, *velocity(t), dt), np.zeros(1)

    for k in range(steps):
        q = ssprk3_step(q, k * dt, dt, rhs, transport.reconcile, rhs(q, k * dt)).state
        lowest = min(lowest, q.min())
    return q, start, lowest


def l2_error(grid, q, exact):
    """Relative l2 norm of the difference."""
    return np.sqrt(grid.integrate((q - exact) ** 2) / grid.integrate(exact**2))
