"""The command line of sphereflow and its commands. The only room that prints or exits.

Results go to standard output, progress and errors to standard error.
"""

import argparse
import json
import os
import sys

from sphereflow import __version__
from sphereflow.errors import NumericalError, RunInterrupted, SphereflowError

INTERRUPTED = 130


def main(arguments=None) -> int:
    """Run a command; returns its exit code.

    0 ok, 1 runs that do not agree (compare --require), 2 bad case or usage, 3 numerical failure, 4 output,
    130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        return options.command(options) or 0
    except SphereflowError as error:
        print(f"sphereflow: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        print(f"sphereflow: {error if isinstance(error, RunInterrupted) else 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="sphereflow", description="Mean-field dynamics of multi-head transformers as a PDE on the sphere."
    )
    parser.add_argument("--version", action="version", version=f"sphereflow {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser("run", help="run a case file to its end")
    command.set_defaults(command=_run)
    _add_case(command)
    command.add_argument("-o", "--output", metavar="FILE", help="output file, in place of the case's")
    _add_running(command)

    command = commands.add_parser("resume", help="go on with an interrupted, killed or failed run, or extend a complete one")
    command.set_defaults(command=_resume)
    command.add_argument("file", metavar="FILE", help="output file (.nc) of the run, with its checkpoints beside it")
    command.add_argument("-o", "--output", metavar="FILE", help="go on in another file and leave FILE as it is")
    command.add_argument("--extend", type=float, metavar="T", help="new end of the run; FILE is kept as NAME.bak")
    _add_running(command)

    command = commands.add_parser("validate", help="check a case file and print it with all defaults")
    command.set_defaults(command=_validate)
    _add_case(command)

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
    return parser


def _add_case(command):
    command.add_argument("case", metavar="CASE", help="case file (.toml)")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a key, such as grid.nlat=32; may be repeated",
    )  # fmt: skip


def _add_running(command):
    command.add_argument("--force", action="store_true", help="move an existing output file to NAME.bak")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="threads to use (default 1)")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.add_argument("--strict", action="store_true", help="exit with 3 if mass or energy do not balance")


def _run(options):
    from sphereflow.case import load_case
    from sphereflow.runs import run

    case = load_case(options.case, options.overrides)
    path = options.output if options.output is not None else case.output.file
    with _Progress(case.solver.t_end, options.quiet) as progress:
        run(
            case, path, force=options.force, threads=options.threads, on_step=progress, notify=_tell,
        ).close()  # fmt: skip
    _print_end(path, options.strict)


def _resume(options):
    from sphereflow.resuming import resume
    from sphereflow.storage import run_summary

    with _Progress(options.extend or run_summary(options.file)["t_end"], options.quiet) as progress:
        resume(
            options.file, options.output, extend=options.extend, force=options.force, threads=options.threads,
            on_step=progress, notify=_tell,
        ).close()  # fmt: skip
    _print_end(options.file if options.output is None else options.output, options.strict)


def _tell(text):
    print(f"sphereflow: {text}", file=sys.stderr)


def _print_end(path, strict):
    from sphereflow.storage import run_summary

    summary = run_summary(path)
    print(_one_line(summary))
    print(path)
    if summary["status"] != "complete":
        if strict:
            raise NumericalError(f"{path}: {summary['status']}")
        _tell(f"{path}: {summary['status']}")


class _Progress:
    """A progress bar over flow time with the step length, the energy and the mass drift; drawn on a terminal only."""

    def __init__(self, t_end, quiet):
        from tqdm import tqdm

        form = "{desc} {percentage:3.0f}%|{bar}| [{elapsed}<{remaining}{postfix}]"
        # disable=None draws on a terminal only
        self._bar = tqdm(total=t_end, desc="t = 0", bar_format=form, disable=True if quiet else None, file=sys.stderr)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bar.close()

    def __call__(self, solver):
        if self._bar.disable:
            return
        self._bar.n = solver.t
        if self._bar._time() - self._bar.last_print_t < self._bar.mininterval:
            return
        self._bar.set_description_str(f"t = {solver.t:.3f}", refresh=False)
        self._bar.set_postfix_str(
            f"dt = {solver.dt:.1e}, E = {solver.energy:.6g}, mass drift {solver.mass - 1:.0e}", refresh=False
        )
        self._bar.refresh()
        self._bar.last_print_t = self._bar._time()


def _one_line(summary):
    return (
        f"{summary['status']}: t = {summary['t_last']:g}, {summary['steps']} steps, {summary['records']} records, "
        f"E {summary['energy_first']:.6g} -> {summary['energy_last']:.6g}, "
        f"mass drift {summary['mass_drift']:.1e}, energy residual {_share(summary['edi_residual_relative'])}"
    )


def _share(value):
    return "unknown" if value is None else f"{value:.1e} of int |P|"


def _validate(options):
    from sphereflow.case import load_case
    from sphereflow.runs import build_initial_state, build_weight_path

    case = load_case(options.case, options.overrides)
    build_weight_path(case)  # reads the input files a case names
    build_initial_state(case)
    print(case.to_toml(), end="")
    print(f"{options.case}: valid", file=sys.stderr)


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
    rows = {
        "file": f"{summary['path']} ({summary['bytes'] / 1e6:.1f} MB)",
        "title": summary["title"],
        "status": status,
        "made by": f"{summary['source']}, {summary['created']}, transform {summary['backend']}",
        "solver": f"{summary['solver']}, velocity {summary['velocity']}, {summary['heads']} heads",
        "grid": f"{summary['nlat']} x {summary['nlon']}" if summary["nlat"] else None,
        "records": f"{summary['records']} from t = {_number(summary['t_first'])} to {_number(summary['t_last'])}, "
        f"{summary['steps']} steps",
        "mass drift": _number(summary["mass_drift"], ".1e"),
        "density min": _number(summary["density_min"], ".3g"),
        "energy": f"{_number(summary['energy_first'], '.9g')} -> {_number(summary['energy_last'], '.9g')}",
        "work of the weights": _number(summary["weight_work"], ".6g"),
        "dissipated": _number(summary["dissipation_integral"], ".6g"),
        "energy residual": f"{_number(summary['edi_residual'], '.2e')} ({_share(summary['edi_residual_relative'])})",
        "case sha256": summary["case_sha256"],
    }
    for name, value in rows.items():
        if value is not None:
            print(f"{name:>20}  {value}")


def _number(value, form="g"):
    return "unknown" if value is None else format(value, form)


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
    for label, side, method in (("A", result.a, result.methods["a"]), ("B", result.b, result.methods["b"])):
        noise = "" if method == "none" else f", sampling noise from {method}"
        print(f"{label}  {side.name} ({side.what}{noise})")
    for text in (*result.notes, *(f"overridden: {text}" for text in result.ignored)):
        print(f"   {text}")
    times = ", ".join(f"{t:g}" for t in result.times)
    print(f"compared at t = {times}; each row at the time that is hardest to explain")
    print(f"\n{'':22}{'t':>7}{'A':>12}{'B':>12}{'difference':>12}{'expected':>11}{'noise':>10}{'sigma':>7}")
    for q in result.quantities:
        k = q.worst
        scalar = q.a is not None and q.a.ndim == 1
        values = "".join(f"{v[k]:12.6g}" for v in (q.a, q.b)) if scalar else f"{'':24}"
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


if __name__ == "__main__":
    sys.exit(main())
