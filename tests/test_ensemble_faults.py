"""What an ensemble survives: killed workers, a lost scheduler, a killed or interrupted parent. Real processes and signals.

After each fault the same command is given again if need be; every file must then equal, bit for bit, that of a run of its own,
and what had been finished before must not have been touched.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from ensemble_samples import CASE, manifest_of, write_case
from long_runs import differences

import sphereflow
from sphereflow.ensemble.plan import plan_ensemble

pytestmark = pytest.mark.slow

MEMBERS = 3
# Some seconds for a member, with a checkpoint every few steps.
LONGER = CASE.replace("t_end = 0.2", "t_end = 0.8\ndt = 0.002") + "checkpoint_every = 0.1\n"
TIMEOUT = 240


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Files of the members, each from a run of its own in this process."""
    folder = tmp_path_factory.mktemp("whole")
    for run in plan_ensemble(write_case(folder, LONGER), MEMBERS).runs:
        sphereflow.run(run.case, folder / run.file).close()
    return folder


@pytest.fixture
def case(tmp_path):
    return write_case(tmp_path, LONGER)


@contextlib.contextmanager
def process(*command):
    """A process whose output is kept; killed at the end with all its children."""
    started = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(started.pid).children(recursive=True), psutil.Process(started.pid)]
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        started.communicate()


def ensemble(case, *arguments):
    return process(
        "sphereflow.cli", "ensemble", str(case), "--members", str(MEMBERS), "-o", str(case.parent / "out"), *arguments
    )


def ended(started):
    """Exit code, standard output and standard error of a process that comes to its end."""
    out, err = started.communicate(timeout=TIMEOUT)
    assert "Traceback" not in err, err
    return started.returncode, out, err


def wait_until(condition, started=None):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, "waited too long"
        assert started is None or started.poll() is None, started.communicate()
        time.sleep(0.02)


def workers_of(started):
    children = psutil.Process(started.pid).children(recursive=True)
    return [child for child in children if "--multiprocessing-fork" in child.cmdline()]


def in_progress(folder):
    """Members with records and a checkpoint beside them: somewhere between begin and end."""
    return [path for path in folder.glob("member*.nc") if list(folder.glob(f"{path.name}.ckpt-?"))]


def finished(folder):
    """Names and times of change of the files that are complete."""
    files = {}
    for path in folder.glob("member*.nc"):
        if path not in in_progress(folder):
            with contextlib.suppress(Exception), sphereflow.open_run(path) as run:
                if run.attrs["sphereflow_state"] == "complete":
                    files[path.name] = path.stat().st_mtime_ns
    return files


def check(folder, whole, before=()):
    """Everything is complete and as it should be; what was finished before is untouched."""
    manifest = manifest_of(folder)
    assert [run["status"] for run in manifest["runs"]] == ["complete"] * MEMBERS
    for run in manifest["runs"]:
        assert differences(whole / run["file"], folder / run["file"]) == []
    after = finished(folder)
    assert {name: after[name] for name in before} == dict(before)
    assert sorted(os.listdir(folder)) == ["manifest.json", *sorted(run["file"] for run in manifest["runs"])]
    return manifest


def test_killed_workers(case, whole):
    folder = case.parent / "out"
    with ensemble(case, "--workers", "2") as started:
        wait_until(lambda: len(in_progress(folder)) == 2, started)
        for worker in workers_of(started)[:1]:
            worker.send_signal(signal.SIGKILL)
        code, out, err = ended(started)
    assert code == 0, err
    manifest = check(folder, whole)
    assert "is gone; what it was running is given to another" in err
    assert any("the worker tcp://" in event for event in manifest["sessions"][0]["events"])
    notes = " ".join(note for run in manifest["runs"] for note in run["notes"])
    assert "an earlier attempt had ended (interrupted)" in notes and "went on from its checkpoint" in notes


def test_killed_parent(case, whole):
    folder = case.parent / "out"
    with ensemble(case, "--workers", "2") as started:
        wait_until(lambda: finished(folder) and in_progress(folder), started)
        workers = workers_of(started)
        started.kill()
        started.wait()
        psutil.wait_procs(workers, timeout=60)
        assert not [worker for worker in workers if worker.is_running()], "workers outlive their parent"
    before = finished(folder)
    assert 0 < len(before) < MEMBERS
    with ensemble(case, "--workers", "1") as again:
        code, out, err = ended(again)
    assert code == 0 and f"goes on; {len(before)} of {MEMBERS} runs are complete" in err
    manifest = check(folder, whole, before)
    assert [session["outcome"] for session in manifest["sessions"]] == ["running", "complete"]


def test_interrupted_parent(case, whole):
    """Ctrl-C reaches the workers too; all members in progress are put down with a checkpoint."""
    folder = case.parent / "out"
    with ensemble(case, "--workers", "2") as started:
        wait_until(lambda: len(in_progress(folder)) == 2, started)
        for one in (*workers_of(started), started):
            one.send_signal(signal.SIGINT)
        code, out, err = ended(started)
    assert code == 130
    assert "interrupted (SIGINT): " in err and f"of {MEMBERS} runs are complete; the same command goes on" in err
    assert out.splitlines()[-1].endswith("manifest.json") and "is gone" not in err
    states = [run["status"] for run in manifest_of(folder)["runs"]]
    assert states.count("interrupted") >= 1
    for run in manifest_of(folder)["runs"]:
        if run["status"] == "interrupted":
            with sphereflow.open_run(folder / run["file"]) as found:
                assert found.attrs["sphereflow_status"] == "interrupted"
    before = finished(folder)
    with ensemble(case, "--workers", "2") as again:
        assert ended(again)[0] == 0
    check(folder, whole, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("everyone", [False, True])
def test_a_signal_while_workers_start_is_an_interrupt(case, number, everyone):
    """Of the parent alone, and of all processes, as a terminal or a batch system sends it."""
    with ensemble(case, "--workers", "2") as started:
        family = psutil.Process(started.pid)
        wait_until(lambda: len(family.children(recursive=True)) > 1, started)  # the tracker of resources is the first one
        for one in (*(family.children(recursive=True) if everyone else ()), started):
            one.send_signal(number)
        code, out, err = ended(started)
    assert code == 130 and err.startswith(f"sphereflow: interrupted ({number.name})") and not out
    assert not (case.parent / "out").exists()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def cluster(folder, workers=2):
    """Address and process of a dask scheduler of its own, with workers."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    quiet = ["--no-dashboard"]
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(
            process("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), *quiet)
        )
        for k in range(workers):
            space = str(folder / f"space{port}-{k}")
            stack.enter_context(
                process("distributed.cli.dask_worker", address, "--nthreads", "1", "--local-directory", space, *quiet)
            )
        yield address, scheduler


def test_lost_scheduler(case, whole):
    folder = case.parent / "out"
    with cluster(case.parent) as (address, scheduler):
        with ensemble(case, "--scheduler", address) as started:
            wait_until(lambda: finished(folder) and in_progress(folder), started)
            scheduler.kill()
            code, out, err = ended(started)
        assert code == 4
        assert f"the scheduler {address} was lost; " in err and "the same command goes on" in err
        session = manifest_of(folder)["sessions"][0]
        assert session["scheduler"] == address and session["outcome"].startswith(f"the scheduler {address} was lost")
        before = finished(folder)
        assert 0 < len(before) < MEMBERS
        complete = {run["file"] for run in manifest_of(folder)["runs"] if run["status"] == "complete"}
        # the workers of the lost scheduler are still there: what they run they put down, or it is waited for
        with ensemble(case, "--workers", "2") as again:
            code, out, err = ended(again)
    assert code == 0, err
    assert complete <= set(before)
    check(folder, whole, before)


def test_parent_killed_while_a_cluster_goes_on(case, whole):
    """The second parent meets members that are still running for the first one."""
    folder = case.parent / "out"
    with cluster(case.parent) as (address, _):
        with ensemble(case, "--scheduler", address) as started:
            wait_until(lambda: len(in_progress(folder)) == 2, started)
            started.kill()
            started.wait()
        with ensemble(case, "--scheduler", address) as again:
            code, out, err = ended(again)
    assert code == 0, err
    check(folder, whole)


def test_killed_again_and_again(case, whole):
    """A worker or the parent is killed every few seconds until the ensemble is complete all the same."""
    folder, kills = case.parent / "out", 0
    for round_ in range(2):
        with ensemble(case, "--workers", "2") as started:
            wait_until(lambda: bool(in_progress(folder)) or started.poll() is not None)  # noqa: B023
            time.sleep(0.5 + 0.3 * round_)
            if started.poll() is None:
                victim = started if round_ % 2 else (workers_of(started) or [started])[0]
                victim.kill()
                kills += 1
            if round_ % 2 == 0:
                time.sleep(1.0)
                started.kill()
            started.wait(timeout=TIMEOUT)
        if (folder / "manifest.json").exists():
            json.loads((folder / "manifest.json").read_text())
    with ensemble(case, "--workers", "2") as last:
        code, _, err = ended(last)
    assert code == 0, err
    assert kills >= 1
    for stray in folder.glob(".*"):  # what a kill in the middle of writing left
        assert stray.name == ".session" or stray.name.endswith(".tmp")
        stray.unlink()
    for stray in folder.glob("*.bak"):
        stray.unlink()
    check(folder, whole)


def test_a_script_that_its_workers_cannot_import(case):
    script = case.with_name("script.py")
    script.write_text(
        "from sphereflow.ensemble import run_ensemble\n"
        f"run_ensemble({str(case)!r}, members=2, folder={str(case.parent / 'out')!r}, workers=2)\n"
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=TIMEOUT)
    assert found.returncode == 1 and "a script must call run_ensemble under `if __name__ ==" in found.stderr.splitlines()[-1]
    assert not (case.parent / "out").exists()
