"""Checkpoints: what goes in comes out bit for bit, damage is noticed, the last two exist whatever happens."""

import math
import os
import resource

import long_runs
import numpy as np
import pytest

from sphereflow.case import parse_case
from sphereflow.errors import CheckpointError, OutputError
from sphereflow.runs import build_solver
from sphereflow.simulation import record_times, run_to_end
from sphereflow.storage import checkpoint
from sphereflow.storage.checkpoint import Checkpoint

STATE = {
    "density": np.array([[0.1, -0.0], [math.pi, 5e-324]]),
    "t": 0.1 + 0.2,
    "suggestion": math.inf,
    "step": np.int64(7),
    "movement": None,
    "level": {"potential": 2},
    "resolved": ["potential"],
}


def make(number=0, records=3, case="case", run="run"):
    return Checkpoint(case, run, number, records, STATE)


def write(output, *numbers, **changes):
    output.touch()
    for number in numbers:
        checkpoint.save(output, make(number, **changes))
    return output


def test_state_comes_back_bit_for_bit():
    back = Checkpoint.from_bytes(make(5).to_bytes())
    assert (back.case_sha256, back.run_id, back.number, back.records) == ("case", "run", 5, 3)
    assert back.state.keys() == STATE.keys()
    assert back.state["density"].tobytes() == STATE["density"].tobytes()
    assert {k: v for k, v in back.state.items() if k != "density"} == {k: v for k, v in STATE.items() if k != "density"}
    assert back.to_bytes() == make(5).to_bytes()


def test_every_damaged_byte_is_noticed():
    content = make().to_bytes()
    for k in range(len(content)):
        flipped = bytearray(content)
        flipped[k] ^= 1 << k % 8
        with pytest.raises(CheckpointError):
            Checkpoint.from_bytes(bytes(flipped))


@pytest.mark.parametrize("length", [0, 1, 10, 24, 50, 89, 90, 200, -1])
def test_truncation_is_noticed(length):
    with pytest.raises(CheckpointError):
        Checkpoint.from_bytes(make().to_bytes()[:length])


def test_zeroed_and_appended_regions_are_noticed():
    content = make().to_bytes()
    for start in range(0, len(content), 64):
        zeroed = content[:start] + bytes(len(content[start : start + 64])) + content[start + 64 :]
        if zeroed != content:
            with pytest.raises(CheckpointError):
                Checkpoint.from_bytes(zeroed)
    with pytest.raises(CheckpointError):
        Checkpoint.from_bytes(content + b"\0")


def test_other_version_is_refused():
    with pytest.raises(CheckpointError, match="another version"):
        Checkpoint.from_bytes(make().to_bytes().replace(b"checkpoint 2\n", b"checkpoint 9\n", 1))


def test_last_two_are_kept_and_the_newest_is_taken(tmp_path):
    output = write(tmp_path / "run.nc", 0, 1, 2, 3, 4)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["run.nc", "run.nc.ckpt-a", "run.nc.ckpt-b"]
    assert checkpoint.load(output, "case", "run", 3).number == 4
    checkpoint.checkpoint_files(output)[0].write_bytes(b"")
    told = []
    assert checkpoint.load(output, "case", "run", 3, told.append).number == 3
    assert len(told) == 1 and "run.nc.ckpt-a: is not a checkpoint" in told[0]


@pytest.mark.parametrize(
    "changes, reason",
    [({"case": "other"}, "another case"), ({"run": "other"}, "another run"), ({"records": 4}, "holds 3 only")],
)
def test_checkpoint_that_does_not_belong_here(tmp_path, changes, reason):
    with pytest.raises(CheckpointError, match=reason):
        checkpoint.load(write(tmp_path / "run.nc", 0, 1, **changes), "case", "run", 3)


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="there is none"):
        checkpoint.load(tmp_path / "run.nc", "case", "run", 3)


def test_failed_write_leaves_the_earlier_ones(tmp_path):
    output = write(tmp_path / "run.nc", 0, 1)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OutputError, match="run.nc.ckpt-a: cannot write the checkpoint: File too large"):
            checkpoint.save(output, make(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_remove_takes_what_interrupted_writes_left(tmp_path):
    output = write(tmp_path / "run[1].nc", 0, 1)
    (tmp_path / ".run[1].nc.ckpt-a.01234567.tmp").touch()
    (tmp_path / ".run1.nc.ckpt-a.01234567.tmp").touch()
    checkpoint.remove(output)
    assert sorted(os.listdir(tmp_path)) == [".run1.nc.ckpt-a.01234567.tmp", "run[1].nc"]


def test_checkpoints_follow_a_renamed_file(tmp_path):
    old, new = write(tmp_path / "run.nc", 0, 1), write(tmp_path / "run.nc.bak", 8)
    checkpoint.move(old, new)
    assert checkpoint.load(new, "case", "run", 3).number == 1
    assert not any(file.exists() for file in checkpoint.checkpoint_files(old))


@pytest.mark.parametrize("solver", long_runs.SOLVERS)
@pytest.mark.parametrize("backend", ["ducc0", pytest.param("shtns", marks=pytest.mark.shtns)])
def test_solver_goes_on_bit_for_bit_from_any_step(solver, backend):
    if solver == "particles" and backend == "shtns":
        return  # tokens use no transform
    case = parse_case(long_runs.case(solver, backend, solver={"t_end": 0.25}))
    run, states = build_solver(case), []
    times = record_times(case.solver.t_end, case.output.every)

    def keep():
        states.append(Checkpoint("", "", 0, 0, run.state()).to_bytes())

    for snapshot in run_to_end(run, times, keep):
        touch(snapshot)
    assert len(states) > 5
    for k in {0, 1, 2, len(states) // 2, len(states) - 2}:
        state = Checkpoint.from_bytes(states[k]).state
        resumed = build_solver(case, path=run.path, state=state)
        assert Checkpoint("", "", 0, 0, resumed.state()).to_bytes() == states[k]
        for snapshot in run_to_end(resumed, times[times >= resumed.t]):
            touch(snapshot)
        assert Checkpoint("", "", 0, 0, resumed.state()).to_bytes() == Checkpoint("", "", 0, 0, run.state()).to_bytes()


def touch(snapshot):
    """Ask for the fields that a record with all fields asks for."""
    if hasattr(snapshot.fields, "effective_mobility") and hasattr(snapshot.fields, "potential"):
        assert np.isfinite(snapshot.fields.effective_mobility).all()
