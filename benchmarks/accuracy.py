"""The errors that docs/numerics.md states, as tables: the expansion, the conversions, the transport, the ledger.

The flows and densities are those of the tests (tests/builders.py).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy.special import spherical_in

from benchmarks.harness import Report, Settings, Table
from benchmarks.problems import CASES
from sphereflow import run
from sphereflow.cells import cell_means, node_values
from sphereflow.faces import gradient_at_faces
from sphereflow.grid import GaussGrid
from sphereflow.initial import real_harmonic
from sphereflow.kernel import expansion_degree
from sphereflow.mobility import DensityExpansion, MobilitySet

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import builders  # noqa: E402


def show(title, header, rows):
    """The report of one table."""
    return Report(tables=[Table(title, header, rows)])


def degrees(settings: Settings) -> Report:
    """Degrees that the expansion of M needs, for a density about which nothing is known."""
    tolerances = (1e-6, 1e-9, 1e-12)
    rows = [
        [str(norm), *(str(expansion_degree(norm, np.log(tolerance) + norm)) for tolerance in tolerances)]
        for norm in (1, 2, 5, 10, 20)
    ]
    header = ["norm of A", *(f"{tolerance:.0e} of the largest value" for tolerance in tolerances)]
    return show("Degrees of the expansion", header, rows)


def kernel(settings: Settings) -> Report:
    """One head's mobility and its gradient on 128 x 256 against the closed form for a von Mises-Fisher density."""
    grid, kappa, rows = GaussGrid(settings.pick(128, 48)), 4.0, []
    centre = np.array([1.0, 2.0, 2.0]) / 3
    for norm in (1.0, 5.0, 10.0):
        matrix = np.random.default_rng(1).standard_normal((3, 3))
        matrix *= norm / np.linalg.norm(matrix, ord=2)
        density = builders.vmf(grid, centre, kappa)
        z = grid.points @ matrix + kappa * centre
        radius = np.linalg.norm(z, axis=-1)
        log_exact = np.log(np.sinh(radius) / radius) - np.log(np.sinh(kappa) / kappa)
        mean_exact = np.moveaxis(z / radius[..., None] * (1 / np.tanh(radius) - 1 / radius)[..., None], -1, 0)

        m = MobilitySet(DensityExpansion(grid, density, 1e-10), matrix[None], gradient=True)
        errors = np.abs(np.expm1(m.log_on(grid.nlat)[0] - log_exact)), np.abs(m.mean_on(grid.nlat)[0] - mean_exact)
        rows.append([f"{norm:g}", *(f"{e.max():.0e}" for e in errors)])
    return show("Accuracy of the expansion", ["norm of A", "error of m", "error of grad M / M"], rows)


def cells(settings: Settings) -> Report:
    """Cell means from nodes, nodes from cell means, and gradients at faces, for a smooth function over the poles."""
    sizes, errors = settings.pick((16, 32, 64), (8, 16)), []
    for nlat in sizes:
        grid = GaussGrid(nlat)

        def field(colatitude, longitude):
            x = np.sin(colatitude) * np.cos(longitude)
            y = np.sin(colatitude) * np.sin(longitude)
            return np.exp(x + 0.5 * y - np.cos(colatitude))

        values = field(grid.colatitude[:, None], grid.longitude)
        node, weight = np.polynomial.legendre.leggauss(8)
        theta = grid.colatitude_face[:-1, None] + np.diff(grid.colatitude_face)[:, None] * (1 + node) / 2
        area = weight * np.sin(theta)
        area /= area.sum(axis=1, keepdims=True)
        lon = grid.longitude[:, None] + grid.dlon * node / 2
        exact = np.einsum("iajb,ia,b->ij", field(theta[:, :, None, None], lon[None, None]), area, weight / 2)
        step = 1e-5
        (te, le), (ts, ls) = builders.face_points(grid)
        east = (field(te, le + step) - field(te, le - step)) / (2 * step * np.sin(te))
        ts, ls = ts[1:-1], ls[1:-1]
        south = (field(ts + step, ls) - field(ts - step, ls)) / (2 * step)
        found = gradient_at_faces(grid, values, None, 1.0, np.inf)
        errors.append([
            np.abs(values - exact).max(), np.abs(cell_means(grid, values) - exact).max(),
            np.abs(node_values(grid, exact) - values).max(),
            np.abs(found[0] - east).max(), np.abs(found[1][1:-1] - south).max(),
        ])  # fmt: skip
    names = ("means taken as node values", "means from nodes", "nodes from means", "east gradient", "south gradient")
    rows = [
        [name, *(f"{e:.1e}" for e in column), f"{builders.fitted_order(sizes, column):.1f}"]
        for name, column in zip(names, np.transpose(errors), strict=True)
    ]
    return show("Cells, nodes and faces", ["largest error", *(str(n) for n in sizes), "order"], rows)


def transport(settings: Settings) -> Report:
    """Standard flows after one period, at 64 x 128 and 128 x 256."""
    sizes = settings.pick((64, 128), (16,))
    flows = [
        ("cosine bell, axis of rotation at 0 degrees", builders.cosine_bell, lambda g: builders.solid_rotation(g, 0.0)),
        ("cosine bell, 45 degrees", builders.cosine_bell, lambda g: builders.solid_rotation(g, np.pi / 4)),
        ("cosine bell, 90 degrees", builders.cosine_bell, lambda g: builders.solid_rotation(g, np.pi / 2)),
        ("Gaussian hills, divergent flow", builders.gaussian_hills, lambda g: builders.deformation(g, True)),
        ("Gaussian hills, non-divergent flow", builders.gaussian_hills, lambda g: builders.deformation(g, False)),
        ("cosine bells, non-divergent flow", builders.cosine_bells, lambda g: builders.deformation(g, False)),
        ("slotted cylinders, non-divergent flow", builders.slotted_cylinders, lambda g: builders.deformation(g, False)),
    ]
    rows = []
    for name, data, flow in flows:
        row = [name]
        for nlat in sizes:
            grid = GaussGrid(nlat)
            end, start, lowest = builders.transported(grid, data(grid), flow(grid))
            l1 = grid.integrate(np.abs(end - start)) / grid.integrate(start)
            drift = abs(grid.integrate(end - start)) / grid.integrate(start)
            row += [f"{builders.l2_error(grid, end, start):.4f}", f"{l1:.4f}", f"{end.max():.4f}"]
            row += [f"{lowest:.0e}", f"{drift:.0e}"]
        rows.append(row)
    columns = [f"{name} at {n}" for n in sizes for name in ("l2", "l1", "largest value", "smallest", "mass drift")]
    return show("Transport after one period", ["flow", *columns], rows)


def growth(settings: Settings) -> Report:
    """Growth rates of harmonics on the uniform density at 64 x 128, against l(l+1) i_l(beta) / i_0(beta)."""
    grid, rows, degrees = GaussGrid(settings.pick(64, 16)), [], settings.pick((1, 2, 3, 4), (1,))
    for beta in settings.pick((1.0, 5.0, 9.0), (1.0,)):
        row = [f"{beta:g}"]
        for degree in degrees:
            exact = degree * (degree + 1) * spherical_in(degree, beta) / spherical_in(0, beta)
            worst = 0.0
            for order in range(-degree, degree + 1):
                y = real_harmonic(degree, order, grid.colatitude[:, None], grid.longitude)
                start = (1 + 1e-6 * y) / (4 * np.pi)
                solver = builders.solver(grid, start, builders.frozen_path(beta * np.eye(3), 2.0), direction=1)
                before = grid.integrate(node_values(grid, solver.density) * y)
                builders.advance_to(solver, 0.3)
                after = grid.integrate(node_values(grid, solver.density) * y)
                worst = max(worst, abs(np.log(after / before) / 0.3 / exact - 1))
            row.append(f"{exact:.5f} ({worst:.0e})")
        rows.append(row)
    header = ["beta", *(f"degree {degree}: rate (relative error, worst order)" for degree in degrees)]
    return show("Growth rates of harmonics", header, rows)


def finished_run(*overrides):
    """The case octahedron_oscillating.toml with other settings, run and loaded into memory."""
    with tempfile.TemporaryDirectory() as folder:
        with run(CASES / "octahedron_oscillating.toml", Path(folder, "run.nc"), overrides=overrides) as result:
            return result.load()


def ledger(settings: Settings) -> Report:
    """Residual of the energy balance when a fixed step is halved: ten oscillating heads at 32 x 64 until t = 1."""
    steps = settings.pick((0.04, 0.02, 0.01, 0.005), (0.04, 0.02))
    smooth = settings.pick("grid.nlat=32", "grid.nlat=16"), "solver.t_end=1", "initial.kappa=6"
    errors = [abs(float(finished_run(*smooth, f"solver.dt={step}").edi_residual[-1])) for step in steps]
    order = -builders.fitted_order(steps, errors)
    row = ["residual", *(f"{e:.1e}" for e in errors), f"{order:.2f}"]
    return show("Residual of the ledger", ["dt", *map(str, steps), "order"], [row])


def identities(settings: Settings) -> Report:
    """Which quantity balances the energy when the weights rest: int P or int G^2? Frozen random heads, until t = 5."""
    rows, small = [], settings.pick((), ("grid.nlat=16", "initial.kappa=20"))
    for count in settings.pick((1, 2, 10), (2,)):
        for velocity in ("attention", "gradient-flow"):
            result = finished_run(
                "heads.schedule=frozen", f"heads.count={count}", f"model.velocity={velocity}", "solver.t_end=5", *small
            )
            change = float(result.energy[-1] - result.energy[0])
            balance = (float(result[name][-1]) for name in ("dissipation_integral", "metric_speed_integral"))
            rows.append([str(count), velocity, *(f"{100 * (change + part) / part:.2f} %" for part in balance)])
    header = ["heads", "velocity", "(E(5) - E(0) + int P) / int P", "(E(5) - E(0) + int G^2) / int G^2"]
    return show("Which quantity balances the energy", header, rows)
