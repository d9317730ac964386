"""One run of an ensemble, in a worker process: whatever an earlier attempt left behind, it brings the run to its end.

The file of a run decides what is to be done: there is none, the run begins; it is complete, nothing is done; somebody is
writing it (a worker that lost its scheduler), it is waited for; else the run goes on from its checkpoint, or begins anew if
that cannot be used. A run never raises: what went wrong is in what it returns.
"""

import os
import socket
import sys
import threading
import time as clock
import traceback
from contextlib import contextmanager
from pathlib import Path

from sphereflow import __version__
from sphereflow.case import parse_case
from sphereflow.ensemble.manifest import StopRequest
from sphereflow.errors import CheckpointError, NumericalError, OutputError, RunInterrupted, SphereflowError
from sphereflow.resuming import resume
from sphereflow.runs import run
from sphereflow.storage import checkpoint, open_run

_WAIT = 0.5
_one_at_a_time = threading.Lock()  # netCDF-C is not thread-safe: a worker with more threads must not run two members at once


def probe() -> dict:
    """What a worker must agree about with the parent."""
    return {"version": __version__}


def run_member(task: dict) -> dict:
    """Bring one run of an ensemble to its end.

    Parameters
    ----------
    task : dict
        `case` (resolved TOML text), `output` (absolute path of its file), `anew` (whether what an earlier attempt left is
        thrown away), `command` (the command that gives the same result, for the attribute `history`), and `session`:
        arguments of `StopRequest`.

    Returns
    -------
    dict
        `status` ("complete", "failed" or "interrupted"), `warning` (of a run that is complete), `error`, `numerical` (whether
        a retry should begin anew), `traceback` (of errors that are not sphereflow's own), `notes` (sentences about earlier
        attempts), `seconds`, `cpu_seconds`, `host` and `pid`.
    """
    with _one_at_a_time:
        began, cpu = clock.monotonic(), clock.process_time()
        found = {"warning": None, "error": None, "numerical": False, "traceback": None, "notes": []}
        try:
            with _command(task["command"]):
                found["status"] = "complete"
                found["warning"] = _to_its_end(task, found["notes"].append)
        except RunInterrupted:
            found["status"] = "interrupted"
        except SphereflowError as error:
            found |= {"status": "failed", "error": _one_line(error), "numerical": isinstance(error, NumericalError)}
        except Exception as error:
            text = f"{type(error).__name__}: {_one_line(error)}"
            found |= {"status": "failed", "error": text, "traceback": traceback.format_exc()}
        found |= {"seconds": clock.monotonic() - began, "cpu_seconds": clock.process_time() - cpu}
        return {**found, "host": socket.gethostname(), "pid": os.getpid()}


def state_of_file(path: Path, case_sha256: str) -> dict | None:
    """What has become of the run that wrote a file; None if there is no file.

    Returns
    -------
    dict
        `state` (as `sphereflow_state`, or "damaged"), `warning` (of a complete run), and where it ended: `t`, `records`.

    Raises
    ------
    OutputError
        If the file belongs to another case.
    """
    if not os.path.lexists(path):
        return None
    try:
        with open_run(path) as source:
            attributes, records = source.attrs, source.sizes["t"]
            last = float(source["t"][-1]) if records else None
    except OutputError as error:
        return {"state": "damaged", "warning": None, "t": None, "records": 0, "reason": str(error)}
    if attributes["sphereflow_case_sha256"] != case_sha256:
        raise OutputError(f"{path}: is the output of another case; move it away")
    _, _, warning = attributes["sphereflow_status"].partition("complete (warning: ")
    return {"state": attributes["sphereflow_state"], "warning": warning[:-1] or None, "t": last, "records": records}


def _to_its_end(task: dict, note) -> str | None:
    """Run, resume or wait; returns the warning of the finished run, if it has one."""
    path, case = Path(task["output"]), parse_case(task["case"], source=task["output"])
    told_to_stop = StopRequest(**task["session"])

    def on_step(_solver=None):
        if told_to_stop():
            raise RunInterrupted("the ensemble was stopped")

    found = state_of_file(path, case.sha256)
    while found and found["state"] == "running":
        clock.sleep(_WAIT)
        on_step()
        found = state_of_file(path, case.sha256)
    if told_to_stop(at_once=True):
        raise RunInterrupted("the ensemble was stopped")
    if found and found["state"] == "complete":
        note("found complete")
        return found["warning"]
    if found and found["state"] != "damaged" and not task["anew"]:
        note(f"an earlier attempt had ended ({found['state']}) {_where(found)}; went on from its checkpoint")
        try:
            resume(path, on_step=on_step, notify=note).close()
            return state_of_file(path, case.sha256)["warning"]
        except CheckpointError as error:
            note(f"began anew: {_one_line(error)}")
    elif found and found["state"] == "damaged":
        note(f"began anew, the old file is kept as NAME.bak: {found['reason']}")
    if found and found["state"] != "damaged":
        path.unlink(missing_ok=True)
        checkpoint.remove(path)
    run(case, path, force=True, on_step=on_step, notify=note).close()
    return state_of_file(path, case.sha256)["warning"]


def _where(found: dict) -> str:
    return "before its first record" if found["t"] is None else f"after its record at t = {found['t']:g}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextmanager
def _command(arguments: list[str]):
    """Let the output's `history` hold a command that a person can repeat, in place of that of a worker process."""
    before, sys.argv = sys.argv, arguments
    try:
        yield
    finally:
        sys.argv = before
