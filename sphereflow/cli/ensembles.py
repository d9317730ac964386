"""Commands that run many cases: ensemble."""

import json
import sys
from pathlib import Path

from sphereflow.cli.wording import tell
from sphereflow.errors import NumericalError


def add_commands(commands):
    """Add the commands of this module to a set of argparse sub-parsers."""
    command = commands.add_parser(
        "ensemble", help="run a case with many seeds and many values of chosen keys, on several workers",
        description="Run a case with many seeds and many values of chosen keys. The same command again goes on where an "
        "earlier one ended; runs that are complete stay as they are.",
    )  # fmt: skip
    command.set_defaults(command=_ensemble)
    command.add_argument("case", metavar="CASE", help="case file (.toml)")
    command.add_argument("--members", type=int, required=True, metavar="N", help="number of seeds")
    command.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,...",
        help="run all members with each of these values, such as heads.count=1,2,5; may be repeated: all combinations are run",
    )  # fmt: skip
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a key for all runs, such as grid.nlat=32; may be repeated",
    )  # fmt: skip
    command.add_argument(
        "-o", "--output", metavar="FOLDER", help="folder of the results (default: the case's output file with -ensemble)"
    )
    where = command.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="worker processes on this machine (default: one for each core)")
    where.add_argument("--scheduler", metavar="ADDRESS", help="use the workers of a running dask scheduler, tcp://HOST:PORT")
    command.add_argument("--quiet", action="store_true", help="no progress bar")
    command.add_argument("--json", action="store_true", help="the result as JSON")


def _ensemble(options):
    from sphereflow.ensemble import run_ensemble
    from sphereflow.ensemble.plan import parse_vary

    progress = _Progress(options.quiet)
    try:
        result = run_ensemble(
            options.case, members=options.members, vary=parse_vary(options.vary), folder=options.output,
            overrides=options.overrides, workers=options.workers, scheduler=options.scheduler, on_progress=progress,
            notify=progress.tell,
        )  # fmt: skip
    finally:  # after an interrupt too: what is there, and what is not
        progress.close()
        if progress.manifest is not None:
            _print_result(progress.manifest, options.json)
    return NumericalError.exit_code if result.failed else 0


class _Progress:
    """A progress bar over runs; drawn on a terminal only."""

    def __init__(self, quiet):
        from tqdm import tqdm

        self._make = lambda done, total: tqdm(
            total=total, initial=done, unit="run", disable=True if quiet else None, file=sys.stderr, smoothing=0.1,
            bar_format="{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} runs [{elapsed}<{remaining}{postfix}]",
        )  # fmt: skip
        self._bar = self.manifest = None

    def __call__(self, manifest):
        self.manifest, failed = manifest, manifest.count("failed")
        done = manifest.count("complete")
        if self._bar is None:
            self._bar = self._make(done + failed, len(manifest.runs))
        if failed:
            self._bar.set_postfix_str(f", {failed} failed", refresh=False)
        self._bar.n = done + failed
        self._bar.refresh()

    def tell(self, text):
        """Say something without tearing the bar."""
        if self._bar is None or self._bar.disable:
            tell(text)
        else:
            self._bar.clear()
            tell(text)
            self._bar.refresh()

    def close(self):
        if self._bar is not None:
            self._bar.close()


def _print_result(manifest, as_json):
    from sphereflow.ensemble.manifest import STATUSES

    if as_json:
        numbers = {status: manifest.count(status) for status in STATUSES}
        print(json.dumps({"manifest": str(manifest.path), **numbers, **manifest.content}, indent=2))
        return
    _print_table(manifest)
    for run in manifest.runs:
        what = run["error"] if run["status"] == "failed" else run["warning"]
        if what:
            print(f"{run['file']}: {'failed: ' if run['status'] == 'failed' else 'warning: '}{what}")
    print(_relative(manifest.path))


def _print_table(manifest):
    """One line for each variation: how many of its members are complete, and what they cost."""
    from sphereflow.case import setting

    rows = {}
    for run in manifest.runs:
        name = ", ".join(setting(key, value) for key, value in run["parameters"].items()) or "all members"
        rows.setdefault(name, []).append(run)
    width = max(map(len, rows))
    print(f"{'':{width}}  {'members':>7}  {'complete':>8}  {'warnings':>8}  {'failed':>6}  {'to do':>5}  {'seconds each':>12}")
    for name, runs in rows.items():
        seconds = [run["seconds"] for run in runs if run["status"] == "complete" and run["seconds"] is not None]
        complete, failed = (sum(run["status"] == status for run in runs) for status in ("complete", "failed"))
        mean = f"{sum(seconds) / len(seconds):12.3g}" if seconds else f"{'-':>12}"
        warnings = sum(run["warning"] is not None for run in runs)
        print(
            f"{name:{width}}  {len(runs):7}  {complete:8}  {warnings:8}  {failed:6}  {len(runs) - complete - failed:5}  {mean}"
        )


def _relative(path):
    """A path as a person would type it here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
