"""Commands that look at files and at the installation: info, import, compare, backends."""

import json
import sys

from sphereflow.cli.wording import joined, number, several, share


def add_commands(commands):
    """Add the commands of this module to a set of argparse sub-parsers."""
    command = commands.add_parser("info", help="what an output file holds, its conservation and energy ledger")
    command.set_defaults(command=_info)
    command.add_argument("file", metavar="FILE", help="output file (.nc)")
    command.add_argument("--json", action="store_true", help="as JSON")

    command = commands.add_parser("import", help="turn particle data of others (.pt, .npz, .csv) into a particle file")
    command.set_defaults(command=_import)
    command.add_argument("file", metavar="FILE", help="data of others")
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="output file (.nc)")
    command.add_argument("--normalize", action="store_true", help="project tokens that are off the sphere to it")
    command.add_argument("--force", action="store_true", help="move an existing output file to NAME.bak")

    command = commands.add_parser("compare", help="whether two runs agree: densities, tokens, data of others")
    command.set_defaults(command=_compare)
    command.add_argument("a", metavar="A", help="output file (.nc) or data of others (.pt, .npz, .csv)")
    command.add_argument("b", metavar="B", help="the other one")
    command.add_argument("--times", type=int, default=6, metavar="N", help="number of compared times (default 6)")
    command.add_argument(
        "--tolerance", type=float, default=1e-3, metavar="X", help="allowed besides sampling noise (default 1e-3)"
    )
    command.add_argument(
        "--replicas", type=int, default=16, metavar="N", help="samples that estimate the noise of tokens (default 16)"
    )
    command.add_argument("--threads", type=int, default=1, metavar="N", help="threads to use (default 1)")
    command.add_argument("--force", action="store_true", help="compare runs whose model or weights differ")
    command.add_argument("--require", action="store_true", help="exit with 1 unless the runs agree")
    command.add_argument("--plot", metavar="FILE", help="draw the comparison (.png, .pdf, .svg)")
    command.add_argument("--json", action="store_true", help="as JSON")

    command = commands.add_parser("backends", help="which transform libraries are there, and whether they work")
    command.set_defaults(command=_backends)
    command.add_argument("--json", action="store_true", help="as JSON")


def _info(options):
    from sphereflow.storage import run_summary

    summary = run_summary(options.file)
    if options.json:
        print(json.dumps(summary, indent=2))
        return
    status = summary["status"]
    if summary["state"] == "interrupted":
        status = "interrupted" if status == "interrupted" else "interrupted (killed: nobody is writing it)"
    if summary["state"] in ("interrupted", "failed") and summary["checkpoints"]:
        status += f"; go on with: sphereflow resume {summary['path']}"
    made_by = summary["source"], summary["created"], summary["backend"] and f"transform {summary['backend']}"
    velocity, heads, steps = summary["velocity"], summary["heads"], summary["steps"]
    energies = [number(summary[name], ".9g") for name in ("energy_first", "energy_last")]
    residual = f"{number(summary['edi_residual'], '.2e')} ({share(summary['edi_residual_relative'])})"
    if summary["movement_slack_min"] is not None:
        residual += ", of first order in tau"
    rows = {
        "file": f"{summary['path']} ({summary['bytes'] / 1e6:.1f} MB)",
        "title": summary["title"],
        "status": status,
        "made by": joined(*made_by),
        "solver": joined(summary["solver"], velocity and f"velocity {velocity}", heads and several(heads, "head")),
        "tokens": summary["particles"],
        "grid": f"{summary['nlat']} x {summary['nlon']}" if summary["nlat"] else None,
        "records": joined(
            f"{summary['records']} from t = {number(summary['t_first'])} to {number(summary['t_last'])}",
            None if steps is None else several(steps, "step"),
        ),
        "mass drift": _known(summary["mass_drift"], ".1e"),
        "density min": _known(summary["density_min"], ".3g"),
        "energy": " -> ".join(energies) if summary["energy_first"] is not None else None,
        "work of the weights": _known(summary["weight_work"], ".6g"),
        "dissipated": _known(summary["dissipation_integral"], ".6g"),
        "least slack": _known(summary["movement_slack_min"], ".2e", " (of the steps' energy inequality, at least 0)"),
        "energy residual": residual if summary["dissipation_integral"] is not None else None,
        "case sha256": summary["case_sha256"] or None,
    }
    for name, value in rows.items():
        if value is not None:
            print(f"{name:>20}  {value}")


def _known(value, form, note=""):
    """A number with what it is; None stays None."""
    return None if value is None else format(value, form) + note


def _import(options):
    from sphereflow.storage.importers import import_run

    found = import_run(options.file, options.output, options.normalize, options.force)
    for note in found.notes:
        print(f"{options.file}: {note}", file=sys.stderr)
    tokens = "no tokens" if found.position is None else "{1} tokens in dimension {2}".format(*found.position.shape)
    print(f"{found.t.size} records from t = {found.t[0]:g} to {found.t[-1]:g}, {tokens}, {len(found.series)} series")
    print(options.output)


def _compare(options):
    from sphereflow.compare import compare
    from sphereflow.runs import compiled_threads

    with compiled_threads(options.threads):
        result = compare(
            options.a, options.b, times=options.times, tolerance=options.tolerance, replicas=options.replicas,
            force=options.force,
        )  # fmt: skip
    if options.plot:
        from sphereflow.plotting import plot_comparison

        plot_comparison(result, options.plot)
    if options.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _print_comparison(result)
    return 1 if options.require and not result.agrees else 0


def _print_comparison(result):
    from sphereflow.compare.verdict import SIGMAS

    for label, side, method in (("A", result.a, result.methods["a"]), ("B", result.b, result.methods["b"])):
        noise = "" if method == "none" else f", sampling noise from {method}"
        print(f"{label}  {side.name} ({side.what}{noise})")
    for text in (*result.notes, *(f"overridden: {text}" for text in result.ignored)):
        print(f"   {text}")
    times = ", ".join(f"{t:g}" for t in result.times)
    print(f"compared at t = {times}; each row at the time that is hardest to explain")
    print("expected, noise: mean and standard deviation of what random tokens alone make of the difference")
    print(f"sigma: how many of these standard deviations the difference needs beyond the tolerance; {SIGMAS:g} are accepted")
    print(f"\n{'':22}{'t':>7}{'A':>14}{'B':>14}{'difference':>12}{'expected':>11}{'noise':>10}{'sigma':>7}")
    for q in result.quantities:
        k = q.worst
        scalar = q.a is not None and q.a.ndim == 1
        values = "".join(f"{v[k]:14.6g}" for v in (q.a, q.b)) if scalar else f"{'':28}"
        mark = "" if q.agrees else "  <-- does not agree"
        print(
            f"{q.name:22}{q.times[k]:7.4g}{values}{q.difference[k]:12.3g}{_or_dash(q.expected[k], 11)}"
            f"{_or_dash(q.noise[k], 10)}{_or_dash(q.sigmas[k] if q.noise[k] > 0 else 0, 7)}{mark}"
        )
    if result.bounds is not None:
        bounds = result.bounds.max(axis=0)
        print(f"coarsening can have changed wasserstein_1 by up to {bounds[0]:.2g}, wasserstein_2 by {bounds[1]:.2g}")
    print(f"\n{result.verdict}")


def _or_dash(value, width):
    return f"{value:{width}.2g}" if value > 0 else f"{'-':>{width}}"


def _backends(options):
    import importlib.metadata

    from sphereflow.errors import BackendError
    from sphereflow.harmonics import available_backends, get_transform

    rows, usable = [], []
    for name, present in available_backends().items():
        row = {"backend": name, "version": importlib.metadata.version(name) if present else None, "works": False}
        if present:
            try:
                get_transform(32, 10, name)
                row["works"] = True
                usable.append(name)
            except BackendError as error:
                row["error"] = str(error)
        rows.append(row)
    if options.json:
        print(json.dumps({"backends": rows, "auto": usable[0] if usable else None}, indent=2))
        return
    for row in rows:
        state = "works (self-test passed)" if row["works"] else row.get("error", "not installed")
        print(f"{row['backend']:>8}  {row['version'] or '-':>8}  {state}")
    print(f"    auto  chooses {usable[0]}" if usable else "no transform library works")
