"""The measured figures of docs/numerics.md: python benchmarks/accuracy.py [SECTION ...]

Sections are the functions below; without names all are run, which takes a few minutes. Each prints one Markdown table.
The flows and densities are those of the tests (tests/builders.py).
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.special import spherical_in

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import builders  # noqa: E402

from sphereflow import run  # noqa: E402
from sphereflow.attention import AttentionOperator, Heads  # noqa: E402
from sphereflow.cells import cell_means, node_values  # noqa: E402
from sphereflow.faces import gradient_at_faces  # noqa: E402
from sphereflow.grid import GaussGrid  # noqa: E402
from sphereflow.initial import real_harmonic  # noqa: E402
from sphereflow.kernel import direct_sum, expansion_degree  # noqa: E402
from sphereflow.mobility import DensityExpansion, MobilitySet  # noqa: E402
from sphereflow.transport import Transport  # noqa: E402

CASES = Path(__file__).parents[1] / "cases"


def show(header, rows):
    """Print a Markdown table."""
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(line) + " |")
    print()


def fastest(function, *arguments, repeats=20):
    """Result of a function, and the shortest time that a call took."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function(*arguments)
        times.append(time.perf_counter() - start)
    return result, min(times)


def degrees():
    """Degrees that the expansion of M needs, for a density about which nothing is known."""
    tolerances = (1e-6, 1e-9, 1e-12)
    rows = [
        [str(norm), *(str(expansion_degree(norm, np.log(tolerance) + norm)) for tolerance in tolerances)]
        for norm in (1, 2, 5, 10, 20)
    ]
    show(["norm of A", *(f"{tolerance:.0e} of the largest value" for tolerance in tolerances)], rows)


def kernel():
    """One head's mobility and its gradient on 128 x 256 against the closed form for a von Mises-Fisher density."""
    grid, kappa, rows = GaussGrid(128), 4.0, []
    centre = np.array([1.0, 2.0, 2.0]) / 3
    for norm in (1.0, 5.0, 10.0):
        matrix = np.random.default_rng(1).standard_normal((3, 3))
        matrix *= norm / np.linalg.norm(matrix, ord=2)
        density = builders.vmf(grid, centre, kappa)
        z = grid.points @ matrix + kappa * centre
        radius = np.linalg.norm(z, axis=-1)
        log_exact = np.log(np.sinh(radius) / radius) - np.log(np.sinh(kappa) / kappa)
        mean_exact = np.moveaxis(z / radius[..., None] * (1 / np.tanh(radius) - 1 / radius)[..., None], -1, 0)

        def mobility(density=density, matrix=matrix):
            return MobilitySet(DensityExpansion(grid, density, 1e-10), matrix[None]).log_on(grid.nlat)

        log_value, taken = fastest(mobility)
        mean = MobilitySet(DensityExpansion(grid, density, 1e-10), matrix[None], gradient=True).mean_on(grid.nlat)
        points, mass = grid.points.reshape(-1, 3), (density * grid.cell_area[:, None]).ravel()
        _, direct = fastest(direct_sum, points[::512] @ matrix, points, mass, repeats=3)
        direct *= 512
        errors = np.abs(np.expm1(log_value[0] - log_exact)).max(), np.abs(mean[0] - mean_exact).max()
        rows.append([f"{norm:g}", *(f"{e:.0e}" for e in errors), f"{1e3 * taken:.1f} ms", f"{direct / taken:.0f}"])
    show(["norm of A", "error of m", "error of grad M / M", "time", "times faster than quadrature"], rows)


def cells():
    """Cell means from nodes, nodes from cell means, and gradients at faces, for a smooth function over the poles."""
    sizes, errors = (16, 32, 64), []
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
    show(["largest error", *(str(n) for n in sizes), "order"], rows)


def transport():
    """Standard flows: l2 errors after one period, at 64 x 128 and 128 x 256."""
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
        for nlat in (64, 128):
            grid = GaussGrid(nlat)
            end, start, lowest = builders.transported(grid, data(grid), flow(grid))
            row += [f"{builders.l2_error(grid, end, start):.4f}"]
        rows.append([*row, f"{lowest:.0e}", f"{abs(grid.integrate(end - start)) / grid.integrate(start):.0e}"])
    show(["flow", "l2 at 64", "l2 at 128", "smallest density", "mass drift"], rows)


def growth():
    """Growth rates of harmonics on the uniform density at 64 x 128, against l(l+1) i_l(beta) / i_0(beta)."""
    grid, rows = GaussGrid(64), []
    for beta in (1.0, 5.0, 9.0):
        row = [f"{beta:g}"]
        for degree in (1, 2, 3, 4):
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
    show(["beta", *(f"degree {degree}: rate (relative error, worst order)" for degree in (1, 2, 3, 4))], rows)


def octahedron(*overrides):
    """The case octahedron_oscillating.toml with other settings, run and loaded into memory."""
    with tempfile.TemporaryDirectory() as folder:
        with run(CASES / "octahedron_oscillating.toml", Path(folder, "run.nc"), overrides=overrides) as result:
            return result.load()


def ledger():
    """Residual of the energy balance when a fixed step is halved: ten oscillating heads at 32 x 64 until t = 1."""
    steps = (0.04, 0.02, 0.01, 0.005)
    smooth = "grid.nlat=32", "solver.t_end=1", "initial.kappa=6"
    errors = [abs(float(octahedron(*smooth, f"solver.dt={step}").edi_residual[-1])) for step in steps]
    order = -builders.fitted_order(steps, errors)
    show(["dt", *map(str, steps), "order"], [["residual", *(f"{e:.1e}" for e in errors), f"{order:.2f}"]])


def identities():
    """Which quantity balances the energy when the weights rest: int P or int G^2? Frozen random heads, until t = 5."""
    rows = []
    for count in (1, 2, 10):
        for velocity in ("attention", "gradient-flow"):
            result = octahedron(
                "heads.schedule=frozen", f"heads.count={count}", f"model.velocity={velocity}", "solver.t_end=5"
            )
            change = float(result.energy[-1] - result.energy[0])
            balance = (float(result[name][-1]) for name in ("dissipation_integral", "metric_speed_integral"))
            rows.append([str(count), velocity, *(f"{100 * (change + part) / part:.2f} %" for part in balance)])
    show(["heads", "velocity", "(E(5) - E(0) + int P) / int P", "(E(5) - E(0) + int G^2) / int G^2"], rows)


def cost():
    """Time of the velocity of ten heads (norm 2) and of one transport stage, one thread."""
    heads, rows = Heads(builders.random_symmetric(1, 10), np.full(10, 0.1)), []
    for nlat in (64, 128):
        grid = GaussGrid(nlat)
        density = cell_means(grid, builders.vmf(grid, (1, 2, 2), 10.0))
        operator, mover = AttentionOperator(grid), Transport(grid)
        velocity, model = fastest(lambda op=operator, q=density: op(q, heads).face_velocity)
        tendency, stage = fastest(mover.tendency, density, *velocity, 1e-3)
        stage += fastest(mover.reconcile, density + 1e-3 * tendency)[1]
        rows.append([f"{nlat} x {2 * nlat}", f"{1e3 * model:.1f} ms", f"{1e3 * stage:.1f} ms", f"{model / stage:.1f}"])
    show(["grid", "velocity of ten heads", "transport stage", "ratio"], rows)


SECTIONS = (degrees, kernel, cells, transport, growth, ledger, identities, cost)


def main(names):
    """Run the sections of the given names, or all."""
    import numba

    numba.set_num_threads(1)
    for section in SECTIONS:
        if not names or section.__name__ in names:
            print(f"### {section.__name__}: {section.__doc__}\n")
            section()


if __name__ == "__main__":
    main(sys.argv[1:])
