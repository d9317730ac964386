"""Faults on real runs, as often as asked for: the command behind the counts of docs/reliability.md, and behind the slow tests.

    python tests/fault_campaign.py kills --solver minimizing-movement --backend shtns --count 30
    python tests/fault_campaign.py signals --count 30

Every run that survives a fault is resumed to its end and compared with an uninterrupted one, bit for bit; the line printed
at the end says how many were. Whatever is not as promised ends in an AssertionError.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import long_runs
from long_runs import differences

from sphereflow import open_run

CHAINS = 4  # runs at a time
WRITE_HEAVY = {"every": 0.01, "checkpoint_every": 0.01}


def whole_run(tables, folder):
    """The file of the uninterrupted run."""
    path = folder / "whole.nc"
    assert long_runs.finish(long_runs.start_run(tables, path)) == 0
    return path


def start_or_resume(tables, path, slowly=False):
    """A process that begins a run, or goes on with it if its file is there."""
    return long_runs.start_resume(path, slowly=slowly) if path.exists() else long_runs.start_run(tables, path, slowly)


def finish_and_compare(paths, whole):
    """Resume runs to their end; they must equal the uninterrupted one."""
    paths = [path for path in paths if path.exists()]
    processes = [long_runs.start_resume(path) for path in paths]
    assert [long_runs.finish(process) for process in processes] == [0] * len(paths)
    assert {path.name: differences(path, whole) for path in paths} == {path.name: [] for path in paths}
    return len(paths)


def kills(folder, count, solver="finite-volume", backend="ducc0", seed=5):
    """SIGKILL at random moments of runs and of their resumptions."""
    tables = long_runs.case(solver, backend, output=long_runs.OFTEN)
    whole, moments, done, rounds = whole_run(tables, folder), random.Random(seed), 0, 0
    paths, finished = [folder / f"{k}.nc" for k in range(CHAINS)], []
    while done < count:
        rounds += 1
        assert rounds < 40 + 2 * count, f"{done} kills only"
        processes = [start_or_resume(tables, path, slowly=True) for path in paths]
        for k, process in enumerate(processes):
            long_runs.wait_for(paths[k], process)
            if long_runs.kill_after(process, moments.uniform(0, 0.3)):
                done += 1
            else:  # it was faster: the next chain begins
                finished.append(paths[k])
                paths[k] = folder / f"{rounds}-{k}.nc"
    runs = finish_and_compare(finished + paths, whole)
    return f"{done} kills in {runs} runs, all equal to the uninterrupted one"


def signals(folder, count, solver="finite-volume", backend="ducc0", seed=6):
    """SIGTERM at random moments of runs that do little else than write, every third time twice at once."""
    tables = long_runs.case(solver, backend, output=WRITE_HEAVY)
    whole, moments, outcome, paths = whole_run(tables, folder), random.Random(seed), Counter(), []
    for number in range(count):
        path, twice = folder / f"{number}.nc", number % 3 == 2
        process = long_runs.start_run(tables, path)
        long_runs.wait_for(path, process)
        time.sleep(moments.uniform(0, 0.5))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGTERM)
            if twice:
                time.sleep(moments.choice([0, 0.001, 0.01]))
                if process.exitcode is None:
                    os.kill(process.pid, signal.SIGTERM)
        code = long_runs.finish(process)
        assert code in (0, 130), code
        with open_run(path) as run:
            state = run.attrs["sphereflow_state"]
            assert state == ("complete" if code == 0 else "interrupted"), state
            records = run.sizes["t"]
            for name in run.variables:
                run[name].values  # noqa: B018 - every record is readable
        outcome["came too late" if code == 0 else "second signal" if twice else "one signal"] += 1
        outcome["records"] += records
        paths.append(path)
    runs = sum(finish_and_compare(paths[k : k + CHAINS], whole) for k in range(0, count, CHAINS))
    return f"{dict(outcome)}; all files readable, {runs} resumed runs equal"


READ_XARRAY = "import sys, xarray; xarray.open_dataset(sys.argv[1]).load()"


def readers(folder, count, solver="finite-volume", backend="ducc0", seed=0):
    """Other programs polling a run that writes: xarray with and without HDF5's lock, ncdump, open_run."""
    tables = long_runs.case(solver, backend, output=WRITE_HEAVY)
    whole, outcome, number, path = whole_run(tables, folder), Counter(), 0, None
    process = None
    while sum(outcome.values()) < count:
        if process is None or process.exitcode is not None:
            if process is not None:
                assert process.exitcode == 0 and differences(path, whole) == []
            number += 1
            path = folder / f"{number}.nc"
            process = long_runs.start_run(tables, path, slowly=True)
            long_runs.wait_for(path, process)
        for name, command, free in (
            ("xarray", [sys.executable, "-c", READ_XARRAY, path], False),
            ("xarray without lock", [sys.executable, "-c", READ_XARRAY, path], True),
            ("ncdump -h", ["ncdump", "-h", path], False),
            ("ncdump -h without lock", ["ncdump", "-h", path], True),
        ):
            environment = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"} if free else None
            try:
                code = subprocess.run(command, env=environment, capture_output=True).returncode
            except FileNotFoundError:  # ncdump is not installed
                continue
            outcome[f"{name}: {'read' if code == 0 else 'refused'}"] += 1
        with open_run(path) as run:
            run["density"].load()
            outcome["open_run: read"] += 1
    assert long_runs.finish(process) == 0 and differences(path, whole) == []
    return f"{dict(sorted(outcome.items()))}; {number} runs undisturbed and equal"


def file_size_limit(folder, count, solver="finite-volume", backend="ducc0", seed=3):
    """RLIMIT_FSIZE, set before the run begins and never lifted; resumed into another file without the limit."""
    tables = long_runs.case(solver, backend, output=WRITE_HEAVY)
    whole, moments, outcome = whole_run(tables, folder), random.Random(seed), Counter()
    size = whole.stat().st_size
    for number in range(count):
        path, limit = folder / f"{number}.nc", int(size * moments.uniform(0.1, 1.0))
        code = long_runs.finish(long_runs.start_run(tables, path, limit=limit))
        if code == 0:
            outcome["limit was large enough"] += 1
            continue
        assert code == 4, code
        if not path.exists():
            outcome["refused at the start, nothing left behind"] += 1
            assert not [name for name in os.listdir(folder) if name.startswith(f".{number}.nc")]
            continue
        with open_run(path) as run:
            records, state = run.sizes["t"], run.attrs["sphereflow_state"]
        assert state in ("failed", "interrupted")
        elsewhere = folder / f"{number}-elsewhere.nc"
        assert long_runs.finish(long_runs.start_resume(path, output=os.fspath(elsewhere))) == 0
        assert differences(elsewhere, whole) == []
        outcome["failed in mid-run, resumed elsewhere, equal"] += 1
        outcome["records kept"] += records
    return f"{dict(outcome)}"


FAULTS = {function.__name__.replace("_", "-"): function for function in (kills, signals, readers, file_size_limit)}


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--solver", default="finite-volume", choices=long_runs.SOLVERS)
    parser.add_argument("--backend", default="ducc0", choices=["ducc0", "shtns"])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = FAULTS[options.fault](Path(folder), options.count, options.solver, options.backend, options.seed)
    print(f"{options.fault}, {options.solver} ({options.backend}): {result}")


if __name__ == "__main__":
    main()
