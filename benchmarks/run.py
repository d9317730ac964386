"""Measure what sphereflow costs: python benchmarks/run.py [--quick] [--check] [--only NAME,...] [--baseline FILE] [-o FOLDER]

Writes performance.md (tables), performance.json (everything) and figures.csv (a baseline) into a folder. Every figure is a
ratio of two things measured in the same run, the median of repeats taken in turn.
"""

import os

if __name__ == "__main__":  # before any of these libraries is loaded; who imports this module has loaded them already
    for _name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[_name] = "1"

import argparse  # noqa: E402
import dataclasses  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from importlib import import_module  # noqa: E402
from pathlib import Path  # noqa: E402

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import baseline  # noqa: E402
from benchmarks.harness import CLOCKS, Figure, Report, Settings, Table  # noqa: E402

# Name of a section: module and function. Those of `speed` have figures and run by default, those of `accuracy` have tables.
GROUPS = {
    "speed": {
        "kernel": "kernel.expansion_against_quadrature",
        "kernel-growth": "kernel.growth_of_expansion",
        "nonlocal": "righthand.nonlocal_share",
        "ledger-cost": "righthand.ledger_share",
        "transport": "transport.against_numpy",
        "bandwidth": "transport.against_bandwidth",
        "threads": "scaling.two_threads",
        "grids": "scaling.grids",
        "memory": "scaling.memory",
        "direct-tokens": "particles.against_direct_tokens",
        "tokens": "particles.growth",
        "start-up": "startup.start_up",
        "transforms": "righthand.transform_libraries",
        "step": "righthand.step_against_tokens",
        "control": "control.time_step_control",
        "movement": "movement.cost",
    },
    "accuracy": {
        "degrees": "accuracy.degrees",
        "expansion": "accuracy.kernel",
        "cells": "accuracy.cells",
        "flows": "accuracy.transport",
        "growth": "accuracy.growth",
        "ledger": "accuracy.ledger",
        "identities": "accuracy.identities",
        "movement-errors": "movement.errors",
        "movement-equilibrium": "movement.equilibrium",
    },
}
SECTIONS = {name: target for group in GROUPS.values() for name, target in group.items()}


def main(arguments=None) -> int:
    """Measure, write, compare; 0 ok, 1 a figure is much worse than the baseline, 2 wrong usage."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        names = _chosen(options.only)
        known = baseline.read(options.baseline) if options.check else {}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    settings, reports, started = Settings(options.quick), {}, time.perf_counter()
    for name in names:
        start = time.perf_counter()
        print(f"{name} ...", end=" ", flush=True, file=sys.stderr)
        reports[name] = _section(name)(settings)
        print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    from benchmarks.machine import describe

    machine = {**describe(), "quick": str(options.quick), "took": f"{time.perf_counter() - started:.0f} s"}
    figures = [figure for report in reports.values() for figure in report.figures]
    text = page(machine, reports)
    options.output.mkdir(parents=True, exist_ok=True)
    Path(options.output, "performance.md").write_text(text, encoding="utf-8")
    Path(options.output, "performance.json").write_text(json.dumps(as_dict(machine, reports), indent=1), encoding="utf-8")
    baseline.write(Path(options.output, "figures.csv"), figures)
    print(text)
    print(f"written to {options.output}: performance.md, performance.json, figures.csv", file=sys.stderr)
    return _check(figures, known, options.baseline) if options.check else 0


def _parser():
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description="Measure what sphereflow costs.")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that everything runs, measures nothing of use")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is 25 %% worse than the baseline")
    parser.add_argument(
        "--only", metavar="NAME,...", default="speed",
        help="sections or groups to measure (default: speed); " + "; ".join(f"{k}: {', '.join(v)}" for k, v in GROUPS.items()),
    )  # fmt: skip
    parser.add_argument("--baseline", metavar="FILE", type=Path, default=baseline.FILE, help="baseline (default: the kept one)")
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", type=Path, default=Path("build/benchmarks"), help="default: build/benchmarks"
    )
    return parser


def _chosen(only: str) -> list[str]:
    names = [name for word in only.split(",") for name in (GROUPS[word] if word in GROUPS else [word])]
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise ValueError(f"--only: {', '.join(unknown)} is no section; there are {', '.join((*GROUPS, *SECTIONS))}")
    return list(dict.fromkeys(names))


def _section(name: str):
    module, function = SECTIONS[name].split(".")
    return getattr(import_module(f"benchmarks.{module}"), function)


def page(machine: dict[str, str], reports: dict[str, Report]) -> str:
    """The figures and tables as Markdown."""
    figures = [figure for report in reports.values() for figure in report.figures]
    parts = ["# What sphereflow costs", ", ".join(f"{key} {value}" for key, value in machine.items())]
    if figures:
        header = ["figure", "value", "quartiles", "target", "holds", "clock"]
        parts.append(markdown(Table("Figures", header, [_row(figure) for figure in figures])))
        parts.append("\n".join(f"* {clock}: {text}" for clock, text in CLOCKS.items()))
        meanings = {figure.meaning: figure.name.partition(":")[0] for figure in figures}
        parts.append("What is divided by what:\n\n" + "\n".join(f"* {name}: {text}" for text, name in meanings.items()))
    for name, report in reports.items():
        parts += [f"## {name}", (_section(name).__doc__ or "").strip(), *map(markdown, report.tables)]
    return "\n\n".join(parts) + "\n"


def _row(figure: Figure) -> list[str]:
    spread = "" if figure.spread is None else "{:.3g} to {:.3g}".format(*figure.spread)
    sign = "≥" if figure.better == "larger" else "≤"
    target = "" if figure.target is None else f"{sign} {figure.target:.3g}"
    if figure.limit is not None:
        target = f"{figure.seconds:.2f} s ≤ {figure.limit:g} s"
    holds = {True: "yes", False: "no", None: ""}[figure.holds]
    value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
    return [figure.name, value + (" (scaled)" if figure.extrapolated else ""), spread, target, holds, figure.clock]


def markdown(table: Table) -> str:
    """One table."""
    lines = (table.header, ["---"] * len(table.header), *table.rows)
    return "\n".join([f"**{table.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])


def as_dict(machine: dict[str, str], reports: dict[str, Report]) -> dict:
    """Everything, for JSON."""
    return {
        "machine": machine,
        "clocks": CLOCKS,
        "figures": [
            {"section": name, **dataclasses.asdict(figure), "holds": figure.holds}
            for name, report in reports.items()
            for figure in report.figures
        ],
        "tables": [
            {"section": name, **dataclasses.asdict(table)} for name, report in reports.items() for table in report.tables
        ],
    }


def _check(figures: list[Figure], known: dict, path: Path) -> int:
    complaints, compared = baseline.compare(figures, known)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    print(f"{compared} figures compared with {path}, {len(complaints)} much worse", file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
