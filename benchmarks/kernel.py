"""What the kernel expansion saves, and what the nonlocal operator costs: python benchmarks/kernel.py [nlat]

Two Markdown tables, both on one grid (128 x 256 unless told otherwise), in one process and on one thread:

1. one head's mobility on the whole grid at tolerance 1e-10, from the density's node values, against direct quadrature
   over the grid's cells; the latter is timed on a sample of points and scaled, and gives the error of the former;
2. the nonlocal operator (potential and face velocities) for ten heads against one stage of the transport scheme.

Times are medians of the process's time (all threads added), without compilation and tables made once per grid.
"""

import sys
import time

import numba
import numpy as np

from sphereflow.attention import VELOCITY_MODELS, AttentionOperator, Heads
from sphereflow.cells import cell_means
from sphereflow.grid import GaussGrid
from sphereflow.mobility import DensityExpansion, MobilitySet
from sphereflow.transport import Transport

TOLERANCE = 1e-10
SAMPLE = 128  # points of the direct quadrature that are timed
BACKENDS = ("auto", "ducc0")


def show(header, rows):
    """Print a Markdown table."""
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(line) + " |")
    print()


def median_time(function, repeats=15):
    """Median process time of a call in seconds, after two calls that do not count."""
    times = []
    for _ in range(repeats + 2):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return float(np.median(times[2:]))


def clusters(grid):
    """Node values of six von Mises-Fisher clusters (kappa 20) at the vertices of an octahedron, turned off the axes."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    density = sum(np.exp(20 * (sign * grid.points @ axis - 1)) for axis in turn for sign in (1, -1))
    return density / grid.integrate(density)


def random_heads(count, norm):
    """Frozen random symmetric matrices of a spectral norm, equal weights."""
    a = np.random.default_rng(1).normal(size=(count, 3, 3))
    a = a + a.transpose(0, 2, 1)
    a *= norm / np.linalg.norm(a, 2, axis=(1, 2))[:, None, None]
    return Heads(a, np.full(count, 1 / count))


def mobility(grid, density, matrix, backend):
    """m(x) = int exp(x . A y) rho(y) dy at all nodes, by the expansion."""
    m = MobilitySet(DensityExpansion(grid, density, TOLERANCE, backend), matrix[None])
    assert not m.pointwise.size, "this benchmark is of a head that the expansion serves"
    group = m.groups[0]
    return group.synthesis(group.coefficients, grid.nlat)[0]


def direct(grid, density, matrix, index):
    """The same at some nodes, by the sum over all cells."""
    points = grid.points.reshape(-1, 3)
    return np.exp(points[index] @ matrix @ points.T) @ (density * grid.cell_area[:, None]).ravel()


def expansion_against_direct_sum(grid):
    """Table 1."""
    density, rows = clusters(grid), []
    cells = grid.nlat * grid.nlon
    index = np.random.default_rng(2).choice(cells, SAMPLE, replace=False)
    for norm in (1.0, 2.0, 5.0, 10.0):
        matrix = random_heads(1, norm).logits[0]
        exact = direct(grid, density, matrix, index)
        slow = median_time(lambda matrix=matrix: direct(grid, density, matrix, index), 5) * cells / SAMPLE
        for backend in BACKENDS:
            fast = median_time(lambda matrix=matrix, backend=backend: mobility(grid, density, matrix, backend))
            error = np.abs(mobility(grid, density, matrix, backend).ravel()[index] / exact - 1).max()
            rows.append([f"{norm:g}", backend, f"{1e3 * fast:.2f} ms", f"{slow:.2f} s", f"{slow / fast:.0f}", f"{error:.0e}"])
    show(["norm of A", "transforms", "expansion", "direct sum", "ratio", "relative error"], rows)


def operator_against_transport_stage(grid, count=10):
    """Table 2."""
    density, transport, rows = cell_means(grid, clusters(grid)), Transport(grid), []
    for norm in (2.0, 4.0, 6.0):
        heads = random_heads(count, norm)
        for model in VELOCITY_MODELS:
            for backend in BACKENDS:
                operator = AttentionOperator(grid, model, -1, TOLERANCE, backend)
                velocity = operator(density, heads).face_velocity

                def stage(velocity=velocity):
                    change = transport.tendency(density, *velocity, 1e-4)
                    return transport.reconcile(density + 1e-4 * change)

                evaluation = median_time(lambda operator=operator, heads=heads: operator(density, heads).face_velocity)
                step = median_time(stage)
                rows.append(
                    [f"{norm:g}", model, backend, f"{1e3 * evaluation:.2f} ms", f"{1e3 * step:.2f} ms",
                     f"{evaluation / step:.2f}"]
                )  # fmt: skip
    show(["norm of A", "velocity", "transforms", f"operator, {count} heads", "transport stage", "ratio"], rows)


def main():
    """Both tables for the grid named on the command line."""
    numba.set_num_threads(1)
    grid = GaussGrid(int(sys.argv[1]) if len(sys.argv) > 1 else 128)
    print(f"Grid {grid.nlat} x {grid.nlon}, one thread\n")
    expansion_against_direct_sum(grid)
    operator_against_transport_stage(grid)


if __name__ == "__main__":
    main()
