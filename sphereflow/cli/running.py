"""Commands that run cases: run, resume, validate."""

import sys

from sphereflow.cli.wording import balance, number, several, tell
from sphereflow.errors import NumericalError


def add_commands(commands):
    """Add the commands of this module to a set of argparse sub-parsers."""
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
    from sphereflow.runs import run_to_file

    case = load_case(options.case, options.overrides)
    path = options.output if options.output is not None else case.output.file
    with _Progress(case.solver.t_end, options.quiet) as progress:
        run_to_file(case, path, options.force, options.threads, progress, tell)
    _print_end(path, options.strict)


def _resume(options):
    from sphereflow.resuming import resume
    from sphereflow.storage import run_summary

    with _Progress(options.extend or run_summary(options.file)["t_end"], options.quiet) as progress:
        resume(
            options.file, options.output, extend=options.extend, force=options.force, threads=options.threads,
            on_step=progress, notify=tell,
        ).close()  # fmt: skip
    _print_end(options.file if options.output is None else options.output, options.strict)


def _print_end(path, strict):
    from sphereflow.storage import run_summary

    summary = run_summary(path)
    print(_one_line(summary))
    print(path)
    if summary["status"] != "complete":
        if strict:
            raise NumericalError(f"{path}: {summary['status']}")
        tell(f"{path}: {summary['status']}")


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
        f"{summary['status']}: t = {summary['t_last']:g}, {several(summary['steps'], 'step')}, "
        f"{several(summary['records'], 'record')}, "
        f"E {number(summary['energy_first'], '.6g')} -> {number(summary['energy_last'], '.6g')}, "
        f"mass drift {number(summary['mass_drift'], '.1e')}, {balance(summary)}"
    )


def _validate(options):
    from sphereflow.case import load_case
    from sphereflow.runs import build_drift, build_initial_state, build_weight_path

    case = load_case(options.case, options.overrides)
    build_weight_path(case)  # these three read the input files a case names
    build_drift(case)
    build_initial_state(case)
    print(case.to_toml(), end="")
    print(f"{options.case}: valid", file=sys.stderr)
