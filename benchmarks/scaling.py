"""How cost grows: with threads, with the grid, and the memory it takes. The last two run in processes of their own."""

import json
import re
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, Report, Settings, Table, in_process_of_its_own, interleaved, milliseconds
from benchmarks.problems import CASES, Stage, octahedron

FLAT = 1.3 / 0.7  # largest over smallest of what stays within 30 % of a common value


def two_threads(settings: Settings) -> Report:
    """A whole step with ten moving heads: one thread / two threads, in wall time."""
    nlat, repeats = settings.pick(256, 32), settings.pick(25, 2)
    found = in_process_of_its_own("scaling", f"time_threads({nlat}, {repeats})", 2)
    report, rows = Report(), []
    for what, better in (("step", 1.6), ("velocity", None), ("transport", None)):
        one, two = (np.array(found[f"{what} {threads}"]) for threads in (1, 2))
        value = float(one.min() / two.min())
        spread = tuple(float(q) for q in np.quantile(one / two, [0.25, 0.75]))
        if what == "step":
            name = f"threads: one / two, step, {nlat} x {2 * nlat}"
            meaning = "a whole step with ten moving heads on one thread / on two"
            report.figures.append(Figure(name, value, "larger", meaning, "wall", better, spread, steady=False))
        rows.append([what, milliseconds(one.min()), milliseconds(two.min()), f"{value:.2f}"])
    report.tables.append(Table(f"Two threads, {nlat} x {2 * nlat}, wall time", ["", "one", "two", "ratio"], rows))
    return report


def time_threads(nlat: int, repeats: int) -> None:
    """Print the times of steps and of their parts on one thread and on two, taken in turn."""
    import numba

    from sphereflow.case import load_case
    from sphereflow.runs import build_solver

    calls = {}
    for threads in (1, 2):
        case = load_case(CASES / "octahedron_oscillating.toml", [f"grid.nlat={nlat}", "initial.kappa=20"])
        solver = build_solver(case, threads)
        stage = Stage(nlat, 10)
        stage.operator.nthreads = threads

        def on(function, threads=threads):
            def call():
                numba.set_num_threads(threads)
                function()

            return call

        calls[f"step {threads}"] = on(lambda s=solver: s.advance(20.0))
        calls[f"velocity {threads}"] = on(stage.face_velocity)
        calls[f"transport {threads}"] = on(stage.transport)
    times = interleaved(calls, repeats, "wall")
    print(json.dumps({name: list(seconds) for name, seconds in times.seconds.items()}))


def grids(settings: Settings) -> Report:
    """Cost per cell from 32 x 64 to 512 x 1024: largest / smallest, of a transport stage and of a whole step."""
    sizes = settings.pick((32, 64, 128, 256, 512), (16, 32))
    stages = {nlat: Stage(nlat, 1) for nlat in sizes}
    solvers = {nlat: octahedron(grid__nlat=nlat, initial__kappa=20) for nlat in sizes if nlat >= 16}
    calls = {("transport", n): stage.transport for n, stage in stages.items()}
    calls |= {("step", n): lambda s=solver: s.advance(20.0) for n, solver in solvers.items()}
    times = interleaved(calls, settings.pick(9, 2))
    report, rows = Report(), []
    for what, text, target in (
        ("transport", "transport stage", FLAT), ("step", "whole step with ten moving heads", None)
    ):  # fmt: skip
        cost = {n: times.of((what, n)) / (2 * n * n) for n in sizes}
        report.figures.append(
            Figure(
                f"grids: cost per cell, {what}, {sizes[0]} to {sizes[-1]} latitudes", max(cost.values()) / min(cost.values()),
                "smaller", f"{text}: largest / smallest cost per cell of these grids", target=target,
            )  # fmt: skip
        )
        rows += [[text, f"{n} x {2 * n}", milliseconds(times.of((what, n))), f"{1e9 * cost[n]:.1f} ns"] for n in sizes]
    report.tables.append(Table("Cost per cell", ["", "grid", "time", "per cell"], rows))
    return report


def memory(settings: Settings) -> Report:
    """Memory of a run in arrays of its grid: growth of the process / bytes of one array."""
    nlat = settings.pick(512, 64)
    found = in_process_of_its_own("scaling", f"measure_memory({nlat})", 1)
    arrays = found["grown"] / (16 * nlat**2)
    figure = Figure(
        f"memory: arrays of the grid, {nlat} x {2 * nlat}", arrays, "smaller",
        "largest resident memory after steps with ten moving heads, beyond that of a run on 32 x 64 / one array of the grid",
        "memory", 40.0,
    )  # fmt: skip
    sizes = [f"{found[name] / 2**20:.0f} MiB" for name in ("before", "grown")]
    rows = [[f"{nlat} x {2 * nlat}", *sizes, f"{arrays:.0f}"]]
    return Report([figure], [Table("Memory", ["grid", "libraries, 32 x 64", "grown by", "arrays of the grid"], rows)])


def measure_memory(nlat: int) -> None:
    """Print the largest resident memory of the process after steps on a small grid, and what a larger grid adds."""

    def steps(size):
        solver = octahedron(grid__nlat=size, initial__kappa=20)
        for _ in range(3):
            solver.advance(20.0)
        solver.snapshot()
        status = Path("/proc/self/status").read_text()  # getrusage's ru_maxrss begins with that of the parent
        return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])

    before = steps(32)
    print(json.dumps({"before": before, "grown": steps(nlat) - before}))
