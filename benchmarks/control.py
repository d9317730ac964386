"""Whether the control of the time step wastes right-hand sides: their number against the fewest that stability allows."""

import math

from benchmarks.harness import Figure, Report, Settings, Table
from benchmarks.problems import CASES
from sphereflow.case import load_case
from sphereflow.errors import SphereflowError
from sphereflow.runs import build_solver
from sphereflow.simulation import FiniteVolumeSolver, record_times

STAGES = 3
LONGEST = {"octahedron_ou_noise": 1.0}  # flow time of cases that would take minutes
QUICK = ("two_clusters",)


def count(solver: FiniteVolumeSolver, times) -> dict[str, float]:
    """Run a solver through its record times; right-hand sides taken, fewest possible, and what limited the steps.

    The fewest: a step may not be longer than the Courant number allows at its start, nor go beyond a record or a kink of the
    weights. Between two such stops the integral of dt / (longest stable step), rounded up, is the number of steps.
    """
    fewest, courant, limits = 0, 0.0, {"stability": 0, "accuracy": 0, "stops": 0}
    for target in times[1:]:
        while solver.t < target:
            stop, needed = solver.path.smooth_until(solver.t, target), 0.0
            while solver.t < stop:
                bound, suggested, before = solver._step_bound(solver.controller.cfl), solver.controller.suggestion, solver.t
                solver.advance(target)
                needed += (solver.t - before) / bound
                shortest = min(bound, suggested)
                cause = "stops" if stop - before < shortest else "stability" if bound <= suggested else "accuracy"
                limits[cause] += 1
            fewest += max(1, math.ceil(needed - 1e-6))
            courant += needed
    return {"taken": solver.evaluations, "fewest": STAGES * fewest, "courant": STAGES * courant, **limits}


def time_step_control(settings: Settings) -> Report:
    """Right-hand sides of every finite-volume case / fewest that its Courant number and its stops allow."""
    report, rows = Report(), []
    for path in sorted(CASES.glob("*.toml")):
        if settings.quick and path.stem not in QUICK:
            continue
        case = load_case(path, ["grid.nlat=16"] if settings.quick else [])
        if case.solver.kind != "finite-volume":
            continue
        t_end = min(case.solver.t_end, LONGEST.get(path.stem, math.inf))
        solver = build_solver(case)
        try:
            found = count(solver, record_times(t_end, case.output.every))
        except SphereflowError as error:
            raise RuntimeError(f"{path.name}: {error}") from error
        ratio = found["taken"] / found["fewest"]
        report.figures.append(
            Figure(
                f"control: {path.stem}", ratio, "smaller",
                "right-hand sides taken / fewest that the Courant number, the records and the kinks of the weights allow",
                "count", 1.3,
            )  # fmt: skip
        )
        rows.append(
            [path.stem, f"{t_end:g}", f"{found['taken'] / t_end:.0f}", f"{found['fewest'] / t_end:.0f}",
             f"{found['courant'] / t_end:.0f}", f"{ratio:.2f}", str(solver.controller.rejected),
             *(str(found[name]) for name in ("stability", "accuracy", "stops"))]
        )  # fmt: skip
    header = ["case", "until", "right-hand sides per unit time", "fewest", "by Courant number alone", "ratio", "repeated steps",
              "steps limited by stability", "by accuracy", "by records and kinks"]  # fmt: skip
    report.tables.append(Table("Right-hand sides", header, rows))
    return report
