"""Whether the control of the time step wastes work: steps and evaluations of the model against the fewest steps possible."""

import math

from benchmarks.harness import Figure, Report, Settings, Table
from benchmarks.problems import CASES
from sphereflow.case import load_case
from sphereflow.errors import SphereflowError
from sphereflow.runs import build_solver
from sphereflow.simulation import FiniteVolumeSolver, record_times

STAGES = 3  # of a step, each with an evaluation of the model unless its velocities are predicted
LONGEST = {"octahedron_ou_noise": 1.0}  # flow time of cases that would take minutes
QUICK = ("two_clusters",)


def count(solver: FiniteVolumeSolver, times) -> dict[str, float]:
    """Run a solver through its record times; steps and evaluations, the fewest steps possible, and what limited the steps.

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
    return {"evaluations": solver.evaluations, "steps": solver.step, "fewest": fewest, "courant": courant, **limits}


def time_step_control(settings: Settings) -> Report:
    """Steps and evaluations of every finite-volume case / fewest that its Courant number and its stops allow."""
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
        ratio, steps = found["evaluations"] / (STAGES * found["fewest"]), found["steps"] / found["fewest"]
        report.figures += [
            Figure(
                f"control: {path.stem}", ratio, "smaller",
                "evaluations of the model / three for each of the fewest steps that the Courant number, the records and the "
                "kinks of the weights allow", "count", 1.3,
            ),
            Figure(f"control: {path.stem}, steps", steps, "smaller", "steps / fewest steps", "count"),
        ]  # fmt: skip
        rates = (f"{found[name] / t_end:.0f}" for name in ("evaluations", "steps", "fewest", "courant"))
        rows.append(
            [path.stem, f"{t_end:g}", *rates, f"{ratio:.2f}", f"{steps:.2f}", str(solver.controller.rejected),
             *(str(found[name]) for name in ("stability", "accuracy", "stops"))]
        )  # fmt: skip
    header = ["case", "until", "evaluations per unit time", "steps", "fewest steps", "by Courant number alone",
              "evaluations / (3 fewest)", "steps / fewest", "repeated steps", "limited by stability", "by accuracy",
              "by records and kinks"]  # fmt: skip
    report.tables.append(Table("Evaluations and steps", header, rows))
    return report
