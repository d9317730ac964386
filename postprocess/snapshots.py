"""Pictures of runs at chosen times: the density or the tokens, or any stored field on the sphere, a page for each run.

    python postprocess/snapshots.py octahedron_oscillating.nc --times 0 1 3 20
    python postprocess/snapshots.py oscillating-ensemble --members 1 --what density

Takes runs of any solver, and ensembles; writes NAME.png and NAME.pdf of a single run, NAME_1.png, ... of several, and NAME.csv
with what each shows: its file, the times, and the extremes and the order parameter then. A field that a run has not stored is
an error that says how to store it. `sphereflow plot` draws whole pages with curves.
"""

import argparse

import numpy as np
from _common import add_files, opened, save, script, series, settings, write_table

from sphereflow.errors import CaseError
from sphereflow.plotting import plot_run
from sphereflow.plotting.records import chosen_records

QUANTITIES = ("density_min", "density_max", "order_parameter", "cluster_count")


def subject(run):
    """What a run shows unless told: its tokens or its density."""
    return "tokens" if settings(run).get("solver.kind") == "particles" else "density"


def describe(run, times):
    """Rows of the table: a record each."""
    rows = []
    for record in chosen_records(run, times):
        row = {"file": run.encoding.get("source", ""), "t": float(run["t"][record])}
        for name in QUANTITIES:
            row[name] = float(series(run, name)[record]) if name in run.variables else ""
        rows.append(row)
    return rows


def first_members(runs, count):
    """The runs without those of later seeds: `count` of each set of settings."""
    if count is None:
        return runs
    seen, kept = {}, []
    for run in runs:
        table = settings(run)
        key = tuple(sorted((k, str(v)) for k, v in table.items() if k not in ("heads.seed", "solver.seed")))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= count:
            kept.append(run)
    return kept


def work(options):
    """Draw each run, and write the table."""
    if options.members is not None and options.members < 1:
        raise CaseError(f"--members: {options.members} is not allowed; must be >= 1")
    with opened(options.runs) as runs:
        chosen = first_members(runs, options.members)
        if len(chosen) > options.most:
            raise CaseError(f"--most: there are {len(chosen)} runs for {options.most} pages; choose some with --members")
        width = int(np.log10(len(chosen))) + 1
        rows, files = [], []
        for number, run in enumerate(chosen, 1):
            figure = plot_run(
                run, options.what or [subject(run)], options.times, projection=options.projection, scale=options.scale
            )
            name = options.output if len(chosen) == 1 else f"{options.output}_{number:0{width}d}"
            files += save(figure, name, options)
            rows += describe(run, options.times)
    yield from files
    yield write_table(rows, f"{options.output}.csv", options.force)


def main(arguments=None):
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n")[2])
    add_files(parser, "snapshots")
    parser.add_argument("--times", nargs="+", type=float, metavar="T", help="flow times (four along the way of the flow)")
    parser.add_argument("--what", nargs="+", metavar="NAME", help="density, tokens, potential, ... (density or tokens)")
    parser.add_argument("--projection", default="orthographic", choices=("orthographic", "mollweide", "equirectangular"))
    parser.add_argument("--scale", default="auto", choices=("auto", "linear", "log"), help="of the colours (auto)")
    parser.add_argument("--members", type=int, metavar="N", help="of runs that differ in seeds only draw the first N")
    parser.add_argument("--most", type=int, default=24, metavar="N", help="largest number of pages (24)")
    return script(work, parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
