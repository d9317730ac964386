"""The transport stage: against the same scheme in numpy, and against the bandwidth of the machine."""

import numpy as np

from benchmarks import reference
from benchmarks.harness import Report, Settings, Table, interleaved, milliseconds
from benchmarks.problems import Stage

# What a stage must move, in arrays of the grid: it reads the density and both velocities and writes the new density.
ARRAYS = 4


def against_numpy(settings: Settings) -> Report:
    """Transport stage: the same scheme in numpy / compiled."""
    nlat, report = settings.pick(128, 16), Report()
    stage = Stage(nlat, 1)
    times = interleaved(
        {
            "compiled": stage.transport,
            "numpy": lambda: reference.stage(stage.mover, stage.density, *stage.velocity, stage.dt),
        },
        settings.pick(15, 2),
    )
    cells = 2 * nlat**2
    report.figures.append(
        times.figure(
            f"transport: numpy / compiled, {nlat} x {2 * nlat}", "numpy", "compiled", "larger",
            "a stage (fluxes, limiters, divergence, merged cells) in vectorised numpy / compiled, the same result to rounding",
            target=20.0,
        )  # fmt: skip
    )
    rows = [[name, milliseconds(times.of(name)), f"{cells / times.of(name) / 1e6:.1f}"] for name in times.seconds]
    report.tables.append(
        Table(f"Transport stage, {nlat} x {2 * nlat}", ["", "time", "million cells per second and core"], rows)
    )
    return report


def against_bandwidth(settings: Settings) -> Report:
    """Transport stage: time to move the bytes that must move, at the speed of a copy / time of the stage."""
    report, rows = Report(), []
    for nlat in settings.pick((128, 512), (16,)):
        stage = Stage(nlat, 1)
        size = 2 * nlat**2
        source, target = np.ones(ARRAYS // 2 * size), np.zeros(ARRAYS // 2 * size)
        times = interleaved(
            {"stage": stage.transport, "copy": lambda t=target, s=source: np.copyto(t, s)}, settings.pick(15, 2)
        )
        figure = times.figure(
            f"transport: copy of the bytes / stage, {nlat} x {2 * nlat}", "copy", "stage", "larger",
            f"copying {ARRAYS // 2} arrays of the grid (as many bytes as a stage must read and write) / a stage",
            steady=nlat >= 512,  # smaller arrays lie in a cache whose speed depends on who else uses it
        )  # fmt: skip
        report.figures.append(figure)
        copied = 8 * ARRAYS * size / times.of("copy") / 1e9
        moved = 8 * ARRAYS * size / times.of("stage") / 1e9
        rows.append([f"{nlat} x {2 * nlat}", f"{copied:.1f} GB/s", f"{moved:.2f} GB/s", f"{100 * figure.value:.1f} %"])
    header = ["grid", "copy, read and written", "stage, bytes that must move", "fraction"]
    report.tables.append(Table("Transport stage and the copy bandwidth", header, rows))
    return report


