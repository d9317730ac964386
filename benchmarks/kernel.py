"""The kernel expansion: what it saves against quadrature over the cells, and how its cost grows."""

import numpy as np

from benchmarks.harness import Report, Settings, Table, interleaved, milliseconds
from benchmarks.problems import TOLERANCE, clusters, random_heads
from sphereflow.grid import GaussGrid
from sphereflow.kernel import evaluate_expansion
from sphereflow.mobility import DensityExpansion, MobilitySet

SAMPLE_POINTS = 64  # points of the quadrature that are timed; the whole is that much longer


def mobility(grid, density, matrix, backend="auto"):
    """m(x) = int exp(x . A y) rho(y) dy at all nodes, by the expansion, from the density's node values."""
    m = MobilitySet(DensityExpansion(grid, density, TOLERANCE, backend), matrix[None])
    if m.pointwise.size:
        raise ValueError("this benchmark is of a head that the expansion serves")
    group = m.groups[0]
    return group.synthesis(group.coefficients, grid.nlat)[0]


def quadrature(grid, density, matrix, index):
    """The same at some nodes, by the sum over all cells."""
    points = grid.points.reshape(-1, 3)
    return np.exp(points[index] @ matrix @ points.T) @ (density * grid.cell_area[:, None]).ravel()


def expansion_against_quadrature(settings: Settings) -> Report:
    """One head's mobility on the whole grid at tolerance 1e-10: quadrature over the cells / expansion."""
    grid, report = GaussGrid(settings.pick(128, 32)), Report()
    density, cells = clusters(grid), grid.nlat * grid.nlon
    index = np.random.default_rng(2).choice(cells, SAMPLE_POINTS, replace=False)
    rows = []
    for norm in (1.0, 5.0, 10.0) if not settings.quick else (1.0, 2.0):
        matrix = random_heads(1, norm).logits[0]
        times = interleaved(
            {
                "expansion": lambda matrix=matrix: mobility(grid, density, matrix),
                "quadrature": lambda matrix=matrix: quadrature(grid, density, matrix, index),
            },
            settings.pick(25, 2),
        )
        exact = quadrature(grid, density, matrix, index)
        error = np.abs(mobility(grid, density, matrix).ravel()[index] / exact - 1).max()
        factor = cells / SAMPLE_POINTS
        figure = times.figure(
            f"kernel: quadrature / expansion, norm {norm:g}, {grid.nlat} x {grid.nlon}", "quadrature", "expansion", "larger",
            "direct sum over the cells (timed at 64 points, scaled to all) / expansion, one head on the whole grid",
            factor, target=1e4 if norm == 5 else None, extrapolated=True,
        )  # fmt: skip
        report.figures.append(figure)
        rows.append(
            [f"{norm:g}", milliseconds(times.of("expansion")), milliseconds(factor * times.of("quadrature")),
             f"{figure.value:,.0f}", f"{error:.0e}"]
        )  # fmt: skip
    header = ["norm of A", "expansion", "quadrature", "ratio", "relative error"]
    report.tables.append(Table(f"One head's mobility, {grid.nlat} x {grid.nlon}", header, rows))
    return report


def growth_of_expansion(settings: Settings) -> Report:
    """Growth of the nonlocal sum with the number of heads and with the grid."""
    report, few, many = Report(), 10, settings.pick(40, 20)
    sizes = settings.pick((64, 256), (32, 48))
    calls, rows = {}, []
    for nlat in sizes:
        grid = GaussGrid(nlat)
        expansion = DensityExpansion(grid, clusters(grid), TOLERANCE)
        expansion.coefficients(2)  # analysed once a right-hand side, whatever the heads: not part of the sum
        for count in (few, many):
            logits = random_heads(count, 2.0).logits
            calls[nlat, count] = lambda e=expansion, a=logits: MobilitySet(e, a)
    # the scattered sum alone, without the set-up in Python
    for count in (few, many):
        group = MobilitySet(expansion, random_heads(count, 2.0).logits).groups[0]
        series = expansion.coefficients(group.sampling.degree)[None]
        calls["sum", count] = lambda g=group, s=series: evaluate_expansion(g._xi, s, g.sampling.degree, g.degree)
    times = interleaved(calls, settings.pick(25, 2))
    report.figures.append(
        times.figure(
            f"kernel: {many} heads / {few} heads, per head", ("sum", many), ("sum", few), "smaller",
            "cost of the compiled sum for one head of many / of few: 1 is linear growth", few / many, target=1.1,
        )  # fmt: skip
    )
    report.figures.append(
        times.figure(
            f"kernel: sum on {sizes[1]} / on {sizes[0]} latitudes", (sizes[1], few), (sizes[0], few), "smaller",
            f"mobilities of ten heads sampled for a fine / a coarse grid, {(sizes[1] // sizes[0]) ** 2} times the cells",
            target=1.1,
        )  # fmt: skip
    )
    for key in calls:
        where = "the sum alone" if key[0] == "sum" else f"{key[0]} x {2 * key[0]}"
        rows.append([where, str(key[1]), milliseconds(times.of(key))])
    report.tables.append(Table("Sampling the mobilities", ["grid", "heads", "time"], rows))
    return report
