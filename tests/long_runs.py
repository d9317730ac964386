"""Small runs in processes of their own, to be killed, interrupted and resumed by the tests of long runs.

The processes are forked from a server that has imported the package already, which makes one cost a few tenths of a second.
"""

import multiprocessing
import os
import resource
import time

import numpy as np
import pytest

from sphereflow import open_run
from sphereflow.storage import read_weight_path

NOISY = {
    "schedule": "ornstein-uhlenbeck", "initial": "gaussian-symmetric", "count": 2, "seed": 7, "step": 0.05,
    "rate": 1.0, "noise_var": 0.5,
}  # fmt: skip
MIXTURE = {"kind": "vmf-mixture", "centers": [[1, 0, 0], [0, 1, 1]], "kappa": 4.0}
FIELDS = ["density", "potential", "effective_mobility"]


def case(kind, backend="ducc0", **changes):
    """A noisy case of one of the three solvers that takes a few tenths of a second; `changes` update its tables."""
    nlat = 32 if backend == "shtns" else 16
    tables = {
        "grid": {"nlat": nlat},
        "model": {"velocity": "attention", "backend": backend},
        "heads": NOISY,
        "initial": MIXTURE,
        "solver": {"kind": kind, "t_end": 1.0},
        "output": {"every": 0.1, "fields": FIELDS, "checkpoint_every": 60.0},
    }
    if kind == "minimizing-movement":
        tables["model"] |= {"velocity": "gradient-flow"}
        tables["solver"] |= {"tau": 0.03}
        tables["heads"] = {**NOISY, "scale": 0.3, "noise_var": 0.1}
    if kind == "particles":
        tables["solver"] |= {"count": 100, "dt": 0.01, "seed": 3}
        tables["output"]["fields"] = ["position"]
    return {name: {**table, **changes.get(name, {})} for name, table in tables.items()}


OFTEN = {"checkpoint_every": 0.02}
SOLVERS = ("finite-volume", "minimizing-movement", "particles")
WITH_BACKENDS = (
    ("finite-volume", "ducc0"),
    ("minimizing-movement", "ducc0"),
    ("particles", "ducc0"),
    pytest.param("finite-volume", "shtns", marks=pytest.mark.shtns),
    pytest.param("minimizing-movement", "shtns", marks=pytest.mark.shtns),
)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["sphereflow.runs", "sphereflow.resuming"])


def _main(function, arguments):
    import numba

    from sphereflow.errors import SphereflowError

    numba.set_num_threads(1)
    try:
        function(*arguments)
    except SphereflowError as error:
        os._exit(error.exit_code)
    except KeyboardInterrupt:
        os._exit(130)


def _slow(solver):
    time.sleep(0.02)


def _run(tables, output, slowly=False, limit=None):
    from sphereflow.runs import run

    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run(tables, output, on_step=_slow if slowly else None).close()


def _resume(path, settings):
    from sphereflow.resuming import resume

    slowly = settings.pop("slowly", False)
    resume(path, **settings, on_step=_slow if slowly else None).close()


def start_run(tables, output, slowly=False, limit=None):
    """A process that runs a case, with a short sleep after every step if `slowly`, under a file-size limit in bytes."""
    process = _context.Process(target=_main, args=(_run, (tables, os.fspath(output), slowly, limit)))
    process.start()
    return process


def start_resume(path, **settings):
    """A process that resumes a run."""
    process = _context.Process(target=_main, args=(_resume, (os.fspath(path), settings)))
    process.start()
    return process


def finish(process, timeout=120):
    """Wait for a process; its exit code."""
    process.join(timeout)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def wait_for(path, process, timeout=60):
    """Wait until a file exists, or the process has ended."""
    end = time.monotonic() + timeout
    while not path.exists() and process.exitcode is None:
        assert time.monotonic() < end
        time.sleep(0.001)


def kill_after(process, seconds):
    """SIGKILL a process some time from now; whether it was still running."""
    process.join(seconds)
    process.kill()
    return finish(process) != 0


def differences(a, b):
    """Names of the variables and attributes in which two files differ by at least a bit."""
    with open_run(a) as left, open_run(b) as right:
        names = set(left.variables) ^ set(right.variables)
        for name in set(left.variables) & set(right.variables):
            x, y = left[name].values, right[name].values
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                names.add(name)
        for name in ("sphereflow_status", "sphereflow_case_sha256"):
            if left.attrs[name] != right.attrs[name]:
                names.add(name)
    one, other = read_weight_path(a), read_weight_path(b)
    for name in ("time", "logits", "head_weight"):
        if not np.array_equal(getattr(one, name), getattr(other, name)):
            names.add(f"weights/{name}")
    return sorted(names)
