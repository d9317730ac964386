"""The right-hand side of the density equation: its parts, its transforms, and a whole step against a step of tokens."""

import math
import time

import numpy as np

from benchmarks.harness import Figure, Report, Settings, Table, in_process_of_its_own, interleaved, milliseconds
from benchmarks.problems import Stage, octahedron, random_heads
from benchmarks.tokens import euler, normalised, rk4
from sphereflow import energy
from sphereflow.attention import VELOCITY_MODELS

STEPS = 6  # timed together
RECORDS = 0.1  # time between records of the case
HEADS = {1: 0.15, 10: 0.5}  # largest share of the nonlocal part, by the number of heads


def nonlocal_share(settings: Settings) -> Report:
    """Share of the nonlocal part (density to potential at the nodes) in one right-hand side."""
    report, nlat = Report(), settings.pick(128, 32)
    rows = []
    for count, target in HEADS.items():
        stage = Stage(nlat, count)
        parts = {
            "potential": stage.potential,
            "with face velocities": stage.face_velocity,
            "transport": stage.transport,
            "whole": stage.whole,
        }
        times = interleaved(parts, settings.pick(40, 2))
        report.figures.append(
            times.figure(
                f"right-hand side: nonlocal share, {count} heads, {nlat} x {2 * nlat}", "potential", "whole", "smaller",
                "density to potential at the nodes / whole right-hand side with its Euler stage (a share)", target=target,
            )  # fmt: skip
        )
        share = times.quotient("potential", "whole")[0]
        rows.append([str(count), *(milliseconds(times.of(name)) for name in parts), f"{100 * share:.0f} %"])
    report.tables.append(
        Table(f"One right-hand side, {nlat} x {2 * nlat}", ["heads", *parts, "share of the potential"], rows)
    )
    return report


def ledger_share(settings: Settings) -> Report:
    """What the energy ledger adds to a right-hand side with ten moving heads."""
    nlat = settings.pick(64, 16)
    solver = octahedron(grid__nlat=nlat, **({"initial__kappa": 20} if settings.quick else {}))
    dt, heads = solver.transport.step_bound(*solver.fields.face_velocity, 0.3), solver.heads_at(0.0, None)

    def bare():
        change = solver.transport.tendency(solver.density, *solver.operator(solver.density, heads).face_velocity, dt)
        return solver.transport.reconcile(solver.density + dt * change)

    def books():
        return energy.metric_speed_squared(solver.operator(solver.density, heads))

    times = interleaved(
        {"bare": bare, "with rates": lambda: solver._rates(solver.operator(solver.density, heads), dt), "speed": books},
        settings.pick(30, 2),
    )
    figure = times.figure(
        f"right-hand side: with the ledger / without, {nlat} x {2 * nlat}", "with rates", "bare", "smaller",
        "right-hand side with work and dissipation / without, ten moving heads",
    )  # fmt: skip
    return Report([figure])


def transform_libraries(settings: Settings) -> Report:
    """A whole step with ducc0 / with shtns, and with each velocity model."""
    from sphereflow.harmonics import available_backends

    report, rows = Report(), []
    backends = [name for name, present in available_backends().items() if present]
    for nlat in settings.pick((64, 128), (32,)):
        solvers = {name: octahedron(grid__nlat=nlat, model__backend=f"'{name}'") for name in backends}
        times = interleaved({name: lambda s=s: s.advance(20.0) for name, s in solvers.items()}, settings.pick(25, 2), sample=0)
        if len(backends) == 2:
            report.figures.append(
                times.figure(
                    f"step: ducc0 / shtns, {nlat} x {2 * nlat}", "ducc0", "shtns", "larger",
                    "a whole step, ten moving heads, by the one transform library / by the other",
                )  # fmt: skip
            )
        for name in backends:
            models = [Stage(nlat, 10, backend=name, velocity=model).face_velocity for model in VELOCITY_MODELS]
            parts = interleaved(dict(zip(VELOCITY_MODELS, models, strict=True)), settings.pick(10, 2))
            cells = [milliseconds(times.of(name)), *(milliseconds(parts.of(model)) for model in VELOCITY_MODELS)]
            rows.append([f"{nlat} x {2 * nlat}", name, *cells])
    header = ["grid", "transforms", "whole step", *(f"velocity of `{model}`" for model in VELOCITY_MODELS)]
    report.tables.append(Table("Transform libraries, ten heads", header, rows))
    return report


def time_tokens(count: int, repeats: int) -> None:
    """Print the median CPU time of an Euler step of tokens, ten heads, with memory handled as numpy does by default."""
    x, logits = normalised(np.random.default_rng(0).standard_normal((count, 3))), random_heads(10, 2.0).logits
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        euler(x, logits, 5e-3)
        seconds.append(time.process_time() - start)
    print(float(np.median(seconds)))


def step_against_tokens(settings: Settings) -> Report:
    """A step of octahedron_oscillating.toml / a step of 200 tokens by the direct sum, the same ten moving heads.

    The density goes from record to record as the case asks, so that the steps are those of a run: some with the model evaluated
    in every stage, most with predicted velocities. Their mean counts.
    """
    nlat, count = settings.pick(64, 16), settings.pick(200, 20)
    solver = octahedron(grid__nlat=nlat, **({"initial__kappa": 20} if settings.quick else {}))
    x = normalised(np.random.default_rng(0).standard_normal((count, 3)))

    def tokens(step):
        def several():
            for _ in range(STEPS):
                step(x, solver.heads_at(solver.t, None).logits, 5e-3)

        return several

    def density():
        for _ in range(STEPS):
            solver.advance(RECORDS * (math.floor(solver.t / RECORDS + 1e-9) + 1))

    calls = {"density": density, "euler": tokens(euler), "rk4": tokens(rk4)}
    times = interleaved(calls, settings.pick(36, 2), sample=0)
    grid = f"{nlat} x {2 * nlat}"
    figures = [
        times.figure(
            f"step: density {grid} / {count} tokens, Euler", "density", "euler", "smaller",
            "density step of third order with its ledger / Euler step of tokens by the direct sum in numpy (one evaluation)",
            target=1.0,
        ),
        times.figure(
            f"step: density {grid} / {count} tokens, RK4", "density", "rk4", "smaller",
            "the same / a step of RK4 (four evaluations), the scheme of the token solver",
            target=1.0,
        ),
    ]  # fmt: skip
    alone = in_process_of_its_own("righthand", f"time_tokens({count}, {settings.pick(60, 3)})")
    figures.append(
        Figure(
            f"step: density {grid} / {count} tokens, Euler alone", times.of("density") / STEPS / alone, "smaller",
            "the same / an Euler step in a process of its own, which gives freed memory back as numpy does by default",
            target=1.0, steady=False,
        )  # fmt: skip
    )
    rows = [[name, milliseconds(times.of(name) / STEPS)] for name in calls]
    rows.append(["euler in a process of its own", milliseconds(alone)])
    return Report(figures, [Table(f"A step, density on {grid}, {count} tokens, ten heads", ["method", "time"], rows)])


