"""Minimising movements against transport: cost of a step, errors on one problem, the way to equilibrium."""

import resource
import time

import numpy as np

from benchmarks.harness import Report, Settings, Table, interleaved, milliseconds
from benchmarks.problems import CASES
from sphereflow.case import load_case, parse_case
from sphereflow.runs import build_solver

HEADS = {"count": 3, "initial": "gaussian-symmetric", "seed": 42}


def cost(settings: Settings) -> Report:
    """A movement of tau = 0.01 against a transport step on the same grid, three heads, frozen and moving."""
    report, rows = Report(), []
    for nlat in settings.pick((64, 128), (32,)):
        for schedule in settings.pick(("frozen", "oscillating"), ("frozen",)):
            for direction in settings.pick(("descend", "ascend"), ("descend",)):
                case = {
                    "grid": {"nlat": nlat},
                    "model": {"velocity": "gradient-flow", "direction": direction},
                    "heads": {**HEADS, "schedule": schedule},
                    "initial": {"kind": "octahedron", "kappa": settings.pick(20.0, 5.0)},
                }
                kinds = ("finite-volume", "minimizing-movement")
                solvers = {k: build_solver(parse_case({**case, "solver": {"kind": k, "t_end": 5.0}})) for k in kinds}
                calls = {name: lambda s=solver: s.advance(5.0) for name, solver in solvers.items()}
                times = interleaved(calls, settings.pick(10, 1), sample=0)
                figure = times.figure(
                    f"movement: movement / transport step, {schedule}, {direction}, {nlat} x {2 * nlat}", kinds[1], kinds[0],
                    "smaller", "a minimising movement of tau = 0.01 / a transport step, three heads",
                )  # fmt: skip
                report.figures.append(figure)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                rows.append(
                    [f"{nlat} x {2 * nlat}", schedule, direction, *(milliseconds(times.of(kind)) for kind in kinds),
                     f"{figure.value:.1f}", str(solvers[kinds[1]].movement.iterations), f"{memory:.0f} MB"]
                )  # fmt: skip
    header = ["grid", "heads", "direction", "transport step", "movement", "ratio", "Newton iterations", "memory so far"]
    report.tables.append(Table("Minimising movements", header, rows))
    return report


def outcome(overrides, name="movement_vs_transport"):
    """Energies at ten times, first and second moments at the end of a case; process time and number of steps."""
    case = load_case(CASES / f"{name}.toml", overrides)
    solver = build_solver(case)
    times = np.linspace(0, case.solver.t_end, 11)[1:]
    start, energies = time.process_time(), []
    for target in times:
        while solver.t < target:
            solver.advance(target)
        energies.append(solver.energy)
    spent = time.process_time() - start
    snapshot = solver.snapshot()
    return np.array(energies), np.concatenate([snapshot.mean, snapshot.second_moment.ravel()]), spent, solver.step


def errors(settings: Settings) -> Report:
    """Errors of energy (over the run) and of moments (at its end) against quadrature tokens, and the time they cost."""
    fine = settings.pick("grid.nlat=48", "grid.nlat=16")
    reference = outcome(["solver.kind=particles", "solver.quadrature=true", fine, "output.fields=[]"])
    runs = [
        (f"{name}, {nlat} x {2 * nlat}", [f"grid.nlat={nlat}", *changes])
        for name, changes, sizes in [
            ("finite-volume", ["solver.kind=finite-volume"], (16, 32, 64, 128)),
            ("finite-volume, two-point", ["solver.kind=finite-volume", "solver.reconstruction=two-point"], (32, 64)),
            ("minimizing-movement, tau = 0.1", ["solver.tau=0.1"], (32, 64, 128)),
            ("minimizing-movement, tau = 0.01", ["solver.tau=0.01"], (32, 64, 128)),
            ("minimizing-movement, tau = 0.001", ["solver.tau=0.001"], (32, 64)),
        ]
        for nlat in settings.pick(sizes, (16,))
    ]
    outcome(["grid.nlat=16"]), outcome(["grid.nlat=16", "solver.kind=finite-volume"])  # compiles
    rows = []
    for name, overrides in runs:
        energies, moments, spent, steps = outcome(overrides)
        rows.append(
            [name, str(steps), f"{spent:.2f} s", f"{np.abs(energies - reference[0]).max():.1e}",
             f"{np.abs(moments - reference[1]).max():.1e}"]
        )  # fmt: skip
    header = ["solver", "steps", "time", "error of E", "error of moments"]
    return Report(tables=[Table("One problem, both density solvers, against quadrature tokens", header, rows)])


def equilibrium(settings: Settings) -> Report:
    """From the initial density to the minimum of the energy, by both density solvers."""
    runs = [("minimizing-movement, tau = 100", ["solver.tau=100.0"]), ("minimizing-movement, tau = 10", []),
            ("minimizing-movement, tau = 1", ["solver.tau=1.0"])]  # fmt: skip
    whole = "solver={kind = 'finite-volume', t_end = 1000.0}"
    runs.append(("finite-volume", [whole]))
    rows = []
    for name, overrides in settings.pick(runs, runs[:1]):
        energies, moments, spent, steps = outcome(overrides, "movement_equilibrium")
        rows.append([name, str(steps), f"{spent:.1f} s", f"{energies[-1] - 0.5:.1e}", f"{moments[7]:.4f}"])
    header = ["solver", "steps", "time", "E - 1/2", "second moment along the kernel"]
    return Report(tables=[Table("To equilibrium", header, rows)])
