"""Runs that are interrupted, killed, damaged, moved or extended, and what `resume` makes of them."""

import os
import resource
import shutil
import signal

import long_runs
import numpy as np
import pytest
from long_runs import SOLVERS, WITH_BACKENDS, differences
from threadpoolctl import threadpool_info, threadpool_limits

from sphereflow import open_run
from sphereflow.cli import main
from sphereflow.errors import CaseError, CheckpointError, OutputError, RunInterrupted
from sphereflow.resuming import resume
from sphereflow.runs import compiled_threads, run
from sphereflow.sessions import Interrupts
from sphereflow.storage import checkpoint, run_summary

TABLES = long_runs.case("finite-volume")


class At:
    """Called after every step: does something after chosen numbers of steps of this session."""

    def __init__(self, action, *steps):
        self.action, self.steps, self.count = action, steps, 0

    def __call__(self, solver):
        self.count += 1
        if self.count in self.steps:
            self.action()


def send(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def interrupted(path, step, tables=TABLES, action=send):
    """An output file of a run that was put down after some steps."""
    with pytest.raises(RunInterrupted, match="interrupted"):
        run(tables, path, on_step=At(action, step))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Function that returns the file of the uninterrupted run of a solver and backend."""
    folder, files = tmp_path_factory.mktemp("whole"), {}

    def file(solver="finite-volume", backend="ducc0"):
        path = files.setdefault((solver, backend), folder / f"{solver}-{backend}.nc")
        if not path.exists():
            run(long_runs.case(solver, backend), path).close()
        return path

    return file


# Interrupts


@pytest.mark.parametrize(
    "solver, backend",
    WITH_BACKENDS,
)
@pytest.mark.parametrize("step", [17])
def test_interrupted_run_ends_as_if_nothing_had_happened(tmp_path, whole, solver, backend, step):
    path = interrupted(tmp_path / "run.nc", step, long_runs.case(solver, backend))
    summary = run_summary(path)
    assert summary["status"] == summary["state"] == "interrupted" and summary["checkpoints"]
    with pytest.raises(RunInterrupted):
        resume(path, on_step=At(send, 9))
    with resume(path) as finished:
        assert finished.attrs["history"].count("\n") == 2
    assert differences(path, whole(solver, backend)) == []
    assert os.listdir(tmp_path) == ["run.nc"]


def test_signals_are_as_before_afterwards(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupted(tmp_path / "run.nc", 2, action=lambda: send(signal.SIGINT))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_second_signal_ends_at_once(tmp_path, whole):
    path = tmp_path / "run.nc"
    with pytest.raises(KeyboardInterrupt) as caught:
        run(TABLES, path, on_step=At(lambda: [send(), send()], 15))
    assert not isinstance(caught.value, RunInterrupted)
    assert run_summary(path)["state"] == "interrupted"
    resume(path).close()
    assert differences(path, whole()) == []


def test_signals_before_the_file_exists_end_at_once():
    with pytest.raises(KeyboardInterrupt), Interrupts():
        send()


def test_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and shells do for background jobs
    try:
        with Interrupts() as interrupts:
            interrupts.defer()
            send(signal.SIGINT)
            assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_blas_has_one_thread_during_a_run_whatever_its_settings():
    with threadpool_limits(2, user_api="blas"), compiled_threads(1):
        counts = {info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"}
    assert counts == {1}


def test_no_checkpoints_in_mid_run_if_none_are_wanted(tmp_path, whole):
    tables, seen = long_runs.case("finite-volume", output={"checkpoint_every": 0.0}), []
    path = tmp_path / "run.nc"
    with pytest.raises(RunInterrupted):
        run(tables, path, on_step=At(lambda: [seen.extend(os.listdir(tmp_path)), send()], 12))
    assert seen == ["run.nc"] and len(os.listdir(tmp_path)) == 2
    resume(path).close()
    assert differences(path, whole()) == []


# Kills


@pytest.mark.parametrize("solver", SOLVERS)
def test_killed_run_ends_as_if_nothing_had_happened(tmp_path, whole, solver):
    path = tmp_path / "run.nc"
    process = long_runs.start_run(long_runs.case(solver, output=long_runs.OFTEN), path, slowly=True)
    long_runs.wait_for(checkpoint.checkpoint_files(path)[1], process)
    assert long_runs.kill_after(process, 0.15)
    assert run_summary(path)["state"] == "interrupted"
    resume(path).close()
    assert differences(path, whole(solver)) == []


def test_run_without_checkpoint_begins_anew(tmp_path, whole):
    path, told = interrupted(tmp_path / "run.nc", 9), []
    checkpoint.remove(path)
    resume(path, notify=told.append).close()
    assert "begins anew" in told[0]
    assert differences(path, whole()) == []


# Damage, and files that do not belong together


@pytest.mark.parametrize("damage", ["truncate", "flip", "zero", "delete"])
def test_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, whole, damage):
    path, told = interrupted(tmp_path / "run.nc", 12), []
    newest = max(checkpoint.checkpoint_files(path), key=lambda file: file.stat().st_mtime_ns)
    content = newest.read_bytes()
    half = len(content) // 2
    match damage:
        case "truncate":
            newest.write_bytes(content[:half])
        case "flip":
            newest.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
        case "zero":
            newest.write_bytes(bytes(len(content)))
        case "delete":
            newest.unlink()
    resume(path, notify=told.append).close()
    assert len(told) == (damage != "delete") and all(str(newest) in text for text in told)
    assert differences(path, whole()) == []


def test_two_damaged_checkpoints_are_refused(tmp_path):
    path = interrupted(tmp_path / "run.nc", 12)
    for file in checkpoint.checkpoint_files(path):
        file.write_bytes(b"")
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="no checkpoint to go on from"):
        resume(path)
    assert path.read_bytes() == before


def test_checkpoints_of_another_run_are_refused(tmp_path):
    one = interrupted(tmp_path / "one.nc", 12)
    other = interrupted(tmp_path / "other.nc", 12, long_runs.case("finite-volume", heads={"seed": 8}))
    twin = interrupted(tmp_path / "twin.nc", 12)
    for source, reason in ((other, "another case"), (twin, "another run of this case")):
        for file, foreign in zip(*map(checkpoint.checkpoint_files, (one, source)), strict=True):
            shutil.copy(foreign, file)
        with pytest.raises(CheckpointError, match=reason):
            resume(one)


def test_changed_case_is_refused(tmp_path):
    import netCDF4

    path = interrupted(tmp_path / "run.nc", 5)
    with netCDF4.Dataset(path, "a") as file:
        file.sphereflow_case = file.sphereflow_case.replace("seed = 7", "seed = 8")
    with pytest.raises(CheckpointError, match="its case was changed"):
        resume(path)


# Other places, other ends


def test_resume_elsewhere_leaves_the_file_as_it_is(tmp_path, whole):
    path = interrupted(tmp_path / "run.nc", 20)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    (tmp_path / "there").mkdir()
    resume(path, tmp_path / "there/run.nc").close()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before
    assert differences(tmp_path / "there/run.nc", whole()) == []
    with pytest.raises(OutputError, match="already exists"):
        resume(path, tmp_path / "there/run.nc")


@pytest.mark.parametrize("solver", SOLVERS)
def test_extending_a_complete_run(tmp_path, whole, solver):
    path = shutil.copy(whole(solver), tmp_path / "run.nc")
    with resume(path, extend=1.25) as longer, open_run(whole(solver)) as shorter:
        np.testing.assert_allclose(longer.t, np.append(0.1 * np.arange(13), 1.25))
        assert longer.attrs["sphereflow_status"] == "complete" and "t_end = 1.25" in longer.attrs["sphereflow_case"]
        for name in ("logits", "energy", "dt"):
            assert longer[name].values[:11].tobytes() == shorter[name].values.tobytes()
        assert longer.step[-1] > shorter.step[-1]
    assert sorted(os.listdir(tmp_path)) == ["run.nc", "run.nc.bak"]


def test_extending_an_interrupted_run_equals_a_long_run(tmp_path):
    longer = long_runs.case("finite-volume", solver={"t_end": 1.3})
    run(longer, tmp_path / "long.nc").close()
    path = interrupted(tmp_path / "run.nc", 20)
    with pytest.raises(RunInterrupted):
        resume(path, extend=1.3, on_step=At(send, 8))
    resume(path).close()
    assert differences(path, tmp_path / "long.nc") == []


def test_end_that_is_not_later_is_refused(tmp_path, whole):
    with pytest.raises(CaseError, match="later than the end of the run"):
        resume(shutil.copy(whole(), tmp_path / "run.nc"), extend=1.0)


def test_complete_run_is_left_alone(tmp_path, whole):
    path, told = shutil.copy(whole(), tmp_path / "run.nc"), []
    before = path.read_bytes()
    resume(path, notify=told.append).close()
    assert path.read_bytes() == before and "is complete" in told[0]
    with pytest.raises(OutputError, match="is complete: nothing is left for .*other.nc; to go on beyond its end use --extend"):
        resume(path, tmp_path / "other.nc")
    assert sorted(os.listdir(tmp_path)) == ["run.nc"]


# Other programs


def test_reader_that_holds_the_file_open_is_named(tmp_path, whole):
    path = interrupted(tmp_path / "run.nc", 20)
    with open_run(path), pytest.raises(OutputError, match="close it there first"):
        resume(path)
    resume(path).close()
    assert differences(path, whole()) == []


def test_two_processes_on_one_output(tmp_path, whole):
    path = tmp_path / "run.nc"
    process = long_runs.start_run(TABLES, path, slowly=True)
    long_runs.wait_for(path, process)
    for attempt in (lambda: run(TABLES, path), lambda: run(TABLES, path, force=True), lambda: resume(path)):
        with pytest.raises(OutputError, match="already exists|another run is writing"):
            attempt()
    assert long_runs.finish(process) == 0
    assert differences(path, whole()) == []


def test_forced_run_keeps_the_old_one_resumable(tmp_path, whole):
    path = interrupted(tmp_path / "run.nc", 9)
    run(TABLES, path, force=True).close()
    resume(tmp_path / "run.nc.bak").close()
    assert differences(path, whole()) == differences(tmp_path / "run.nc.bak", whole()) == []


@pytest.mark.parametrize("what", ["file", "folder", "replaced"])
def test_output_that_goes_away(tmp_path, what):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "run.nc"

    def remove():
        if what == "folder":
            shutil.rmtree(folder)
        else:
            path.unlink()
            if what == "replaced":
                path.write_text("of somebody else")

    with pytest.raises(OutputError, match="run.nc: (is gone|was replaced)"):
        run(TABLES, path, on_step=At(remove, 9))


def test_checkpoint_that_cannot_be_written_does_not_end_the_run(tmp_path, whole):
    told, taken = [], checkpoint.checkpoint_files(tmp_path / "run.nc")[1]

    def take():  # the name of every second checkpoint
        taken.unlink(missing_ok=True)
        taken.mkdir()

    tables = long_runs.case("finite-volume", output={"checkpoint_every": 1e-6})
    run(tables, tmp_path / "run.nc", on_step=At(take, 9), notify=told.append).close()
    assert len(told) > 3
    assert all(f"{taken}: cannot write the checkpoint: Is a directory; the run goes on" == text for text in told)
    assert differences(tmp_path / "run.nc", whole()) == []


@pytest.fixture
def file_size_limit():
    """Function that sets the size beyond which this process cannot extend a file; the limit ends with the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_file_size_limit_ends_the_run_and_it_goes_on_elsewhere(tmp_path, whole, file_size_limit):
    path = tmp_path / "run.nc"
    with pytest.raises(OutputError, match="run.nc: cannot write the record at t = .*: File too large; the file holds"):
        run(TABLES, path, on_step=At(lambda: file_size_limit(path.stat().st_size + 3000), 9))
    file_size_limit(None)
    assert run_summary(path)["records"] > 1
    resume(path, tmp_path / "elsewhere.nc").close()
    assert differences(tmp_path / "elsewhere.nc", whole()) == []


# Quality


def test_run_whose_books_do_not_balance_says_so(tmp_path, capsys):
    case_file = tmp_path / "euler.toml"
    case_file.write_text(
        '[model]\ndirection = "ascend"\n[initial]\nkind = "octahedron"\n[heads]\nscale = 4.0\n'
        '[solver]\nkind = "particles"\ncount = 50\nscheme = "euler"\ndt = 0.2\nt_end = 1.0\n'
    )
    command = ["run", str(case_file), "--quiet", "-o"]
    assert main([*command, str(tmp_path / "a.nc")]) == 0
    status = run_summary(tmp_path / "a.nc")["status"]
    assert status.startswith("complete (warning: energy residual ") and status in capsys.readouterr().err
    assert main([*command, str(tmp_path / "b.nc"), "--strict"]) == 3
    assert run_summary(tmp_path / "b.nc")["state"] == "complete" and status in capsys.readouterr().err


def test_command_line(tmp_path, whole, capsys):
    path = interrupted(tmp_path / "run.nc", 9)
    assert main(["info", str(path)]) == 0
    assert f"interrupted; go on with: sphereflow resume {path}" in capsys.readouterr().out
    assert main(["resume", str(path), "--quiet", "--strict"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("complete: t = 1,") and str(path) in captured.out
    assert differences(path, whole()) == []
    assert main(["resume", str(path), "--extend", "0.5", "--quiet"]) == 2
    assert main(["resume", str(tmp_path / "none.nc"), "--quiet"]) == 4
