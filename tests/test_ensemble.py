"""Ensembles: which runs there are, that each equals a run of its own, going on, failures, bad input."""

import json
import os
import sys

import ensemble_samples
import numpy as np
import pytest
from ensemble_samples import CASE, OVERFLOWS, manifest_of, run_here, write_case
from long_runs import differences

import sphereflow
from sphereflow.case import listed_values, load_case, parse_case, setting
from sphereflow.cli import main
from sphereflow.ensemble.manifest import Manifest, Session, StopRequest
from sphereflow.ensemble.member import run_member
from sphereflow.ensemble.plan import check_inputs, parse_vary, plan_ensemble
from sphereflow.ensemble.running import _Crew
from sphereflow.errors import CaseError, OutputError


@pytest.fixture(scope="module")
def scheduler():
    with ensemble_samples.workers_here() as address:
        yield address


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_case(tmp_path)


def times_of(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.nc")}


# The plan


def test_members_times_variations_each_with_its_own_seed(case):
    plan = plan_ensemble(case, 3, {"heads.count": [1, 5], "model.direction": ["descend", "ascend"]})
    assert len(plan.runs) == 12
    first, second = plan.runs[0], plan.runs[5]
    assert first.parameters == {"heads.count": 1, "model.direction": "descend"} and first.member == 0
    assert second.parameters == {"heads.count": 1, "model.direction": "ascend"} and second.member == 1
    assert second.file == "heads.count=1_model.direction=ascend_member001.nc"
    assert [run.case.heads.seed for run in plan.runs] == [(7, member) for member in range(3) for _ in range(4)]
    assert len({run.case.sha256 for run in plan.runs}) == len({run.file for run in plan.runs}) == 12
    for run in plan.runs:
        assert load_case(case, run.settings) == run.case and run.case.heads.count == run.parameters["heads.count"]


def test_seeds_of_tokens_and_of_cases_with_a_list():
    tables = {
        "heads": {"seed": [3, 1]}, "initial": {"kind": "uniform"},
        "solver": {"kind": "particles", "t_end": 1.0, "seed": 5},
    }  # fmt: skip
    run = plan_ensemble(tables, 3).runs[2]
    assert run.seeds == {"heads.seed": (3, 1, 2), "solver.seed": (5, 2)}
    assert run.case.heads.seed == (3, 1, 2) and run.case.solver.seed == (5, 2) and run.file == "member002.nc"
    varied = plan_ensemble(tables, 2, {"heads.seed": [1, 2]}).runs
    assert [run.case.heads.seed for run in varied] == [(1, 0), (2, 0), (1, 1), (2, 1)]


def test_a_resolved_case_and_values_from_numpy(case):
    plan = plan_ensemble(load_case(case), np.int64(2), {"heads.rate": np.array([0.5, 2.0]), "initial.kappa": (3.0, 4)})
    assert len(plan.runs) == 8 and plan.vary == {"heads.rate": (0.5, 2.0), "initial.kappa": (3.0, 4)}
    assert plan.runs[0].case.heads.rate == 0.5


def test_file_names_stay_readable_and_short():
    one = [[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]]
    two = [[[2.0, 0, 0], [0, 1, 0], [0, 0, 1]]]
    tables = {"initial": {"kind": "uniform"}, "solver": {"t_end": 1.0}}
    plan = plan_ensemble(tables, 1, {"heads.matrices": [one, two]})
    assert [run.file for run in plan.runs] == ["heads.matrices=value0_member000.nc", "heads.matrices=value1_member000.nc"]
    many = {f"solver.{key}": [0.1, 0.2] for key in ("cfl", "error_tolerance")} | {"model.tolerance": [1e-8], "heads.scale": [1]}
    many |= {"heads.step": [0.01], "heads.seed": [3], "output.every": [0.123456789]}
    names = [run.file for run in plan_ensemble(tables, 1, many).runs]
    assert names[1] == "variation0-1-0-0-0-0-0_member000.nc" and len(set(names)) == 4


@pytest.mark.parametrize(
    "text, values",
    [
        ("1,2,5", (1, 2, 5)),
        ("descend, ascend", ("descend", "ascend")),
        ("[0.5,0.5],[0.2, 0.8]", ((0.5, 0.5), (0.2, 0.8))),
        ('"a,b",c', ("a,b", "c")),
        ("{file='v,1.npz'},logits", ({"file": "v,1.npz"}, "logits")),
        ("1e-3", (1e-3,)),
    ],
)
def test_lists_of_values(text, values):
    assert listed_values(text) == values
    assert parse_vary([f"heads.key={text}"]) == {"heads.key": values}


@pytest.mark.parametrize("value", [3, 0.1, 1e-300, "ascend", 'quote " and \\', True, (1, 2.5), ((1,), ("a",)), {"file": "x"}])
def test_a_setting_is_read_back_as_it_was(value):
    with pytest.raises(CaseError) as error:  # an unknown key is shown with its value neither changed nor lost
        parse_case({}, [setting("grid.unknown", value)])
    assert "grid.unknown: unknown key" in str(error.value)
    from sphereflow.case.reading import _apply_override

    data = {}
    assert _apply_override(data, setting("a.b", value)) is None and data == {"a": {"b": value}}


def test_a_case_in_which_nothing_is_random_is_pointed_out(case):
    still = ["heads.noise_var=0", "heads.initial=identity"]
    assert check_inputs(plan_ensemble(case, 2, overrides=still)) == [
        "nothing in the case is random: all members will be equal"
    ]
    plan = plan_ensemble(case, 2, {"heads.noise_var": [0, 1]}, ["heads.initial=identity"])
    assert check_inputs(plan) == ["nothing in the case is random with heads.noise_var=0: all members will be equal"]
    assert check_inputs(plan_ensemble(case, 2)) == check_inputs(plan_ensemble(case, 1, overrides=still)) == []


# Results


def test_every_run_equals_a_run_of_its_own(case, scheduler, tmp_path):
    result, told = run_here(scheduler, case, tmp_path / "out", members=2, vary={"heads.count": [1, 3]})
    assert told == [] and not result.failed
    assert sorted(os.listdir(tmp_path / "out")) == sorted(["manifest.json", *(run["file"] for run in result.runs)])
    for run in result.runs:
        alone = tmp_path / "alone.nc"
        sphereflow.run(case, alone, overrides=run["settings"], force=True).close()
        assert differences(alone, tmp_path / "out" / run["file"]) == []
        assert (run["status"], run["attempts"], run["error"]) == ("complete", 1, None) and run["seconds"] > 0
        with sphereflow.open_run(tmp_path / "out" / run["file"]) as found:
            assert found.attrs["sphereflow_case_sha256"] == run["case_sha256"]
            command = f"sphereflow run noisy.toml --set heads.count={run['parameters']['heads.count']} --set heads.seed=[7, "
            assert command in found.attrs["history"]


def test_members_share_heads_but_not_seeds(case, scheduler, tmp_path):
    """Member m with three heads begins with the head of member m with one; other members have other weights."""
    data = run_here(scheduler, case, tmp_path / "out", members=2, vary={"heads.count": [1, 3]})[0].open()
    weights = data.logits.isel(t=0).values
    assert np.array_equal(weights[:, 0, 0], weights[:, 1, 0])
    assert not np.isclose(weights[0], weights[1], equal_nan=True)[:, 0].any()


def test_command_line_with_worker_processes(case, scheduler, tmp_path, capsys):
    """Two processes, in whatever order, write the files that one worker writes."""
    arguments = ["ensemble", str(case), "--members", "3", "--vary", "heads.count=1,2", "--workers", "2", "--quiet"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines()[-1] == "noisy-ensemble/manifest.json"
    assert out.splitlines()[1].split()[:3] == ["heads.count=1", "3", "3"]
    run_here(scheduler, case, tmp_path / "here", members=3, vary={"heads.count": [1, 2]})
    for run in manifest_of(tmp_path / "here")["runs"]:
        assert differences(tmp_path / "here" / run["file"], tmp_path / "noisy-ensemble" / run["file"]) == []
    before = times_of(tmp_path / "noisy-ensemble")
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["complete"], summary["failed"], summary["pending"]) == (6, 0, 0) and len(summary["runs"]) == 6
    assert "all 6 runs are complete already" in err and times_of(tmp_path / "noisy-ensemble") == before


def test_only_a_few_runs_are_handed_out_at_a_time(case, scheduler, tmp_path, monkeypatch):
    """Which keeps the parent small: two for each worker."""
    counts, hand_out = [], _Crew._hand_out

    def counted(self):
        hand_out(self)
        counts.append(len(self.outstanding))

    monkeypatch.setattr(_Crew, "_hand_out", counted)
    result, _ = run_here(scheduler, case, tmp_path / "out", members=7, overrides=["solver.t_end=0.1"])
    assert max(counts) == 2 and not result.failed


# Going on


def test_only_what_is_missing_is_run_again(case, scheduler, tmp_path):
    folder = tmp_path / "out"
    result, _ = run_here(scheduler, case, folder, members=4)
    before = times_of(folder)
    (folder / "member001.nc").unlink()
    manifest = Manifest.load(folder)
    manifest.runs[2]["status"] = "pending"  # killed before the manifest knew
    manifest.save()
    result, told = run_here(scheduler, case, folder, members=4)
    after = times_of(folder)
    assert [name for name in after if after[name] != before[name]] == ["member001.nc"] and not result.failed
    assert "member001.nc: is gone; it is run again" in told and f"{folder}: goes on; 3 of 4 runs are complete" in told
    assert result.runs[2]["notes"] == ["found complete"] and len(manifest_of(folder)["sessions"]) == 2


def put_down(case, folder, settings):
    """Leave an interrupted run with a checkpoint, as a member that was stopped does."""
    from sphereflow.errors import RunInterrupted

    steps = []

    def stop(solver):
        steps.append(solver.t)
        if len(steps) == 3:
            raise RunInterrupted("test")

    with pytest.raises(RunInterrupted):
        sphereflow.run(case, folder / "member001.nc", overrides=settings, on_step=stop)


@pytest.mark.parametrize("damage", [False, "checkpoints", "file"])
def test_an_interrupted_member_goes_on_from_its_checkpoint_or_begins_anew(case, scheduler, tmp_path, damage):
    folder = tmp_path / "out"
    result, _ = run_here(scheduler, case, folder, members=2)
    whole = (folder / "member001.nc").rename(tmp_path / "whole.nc")
    put_down(case, folder, result.runs[1]["settings"])
    if damage == "checkpoints":
        for file in folder.glob("*.ckpt-?"):
            file.write_bytes(b"nonsense")
    if damage == "file":
        (folder / "member001.nc").write_bytes(b"nonsense")
    manifest = Manifest.load(folder)
    manifest.runs[1] |= {"status": "pending", "notes": []}
    manifest.save()
    result, _ = run_here(scheduler, case, folder, members=2)
    assert differences(whole, folder / "member001.nc") == [] and not result.failed
    notes = " ".join(result.runs[1]["notes"])
    assert {
        False: "an earlier attempt had ended (interrupted) after its record at t = 0; went on from its checkpoint",
        "checkpoints": "began anew: ",
        "file": "began anew, the old file is kept as NAME.bak: ",
    }[damage] in notes
    assert not list(folder.glob("*.ckpt-?")) or damage == "file"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"members": 3}, "members was 2 and is 3 now"),
        ({"vary": {"heads.rate": [1.0, 3.0]}}, "vary was heads.rate=1.0,2.0 and is heads.rate=1.0,3.0 now"),
        ({"overrides": ["grid.nlat=16"]}, "overrides was [] and is ['grid.nlat=16'] now"),
        ({"case": CASE.replace("kappa = 3.0", "kappa = 4.0")}, "the case was changed (- kappa = 3.0, + kappa = 4.0)"),
    ],
)
def test_another_case_or_other_arguments_are_refused(case, scheduler, tmp_path, change, words):
    settings = {"members": 2, "vary": {"heads.rate": [1.0, 2.0]}}
    folder = tmp_path / "out"
    folder.mkdir()
    Manifest.of_plan(folder, plan_ensemble(case, **settings)).save()
    before = (folder / "manifest.json").read_bytes()
    case.write_text(change.pop("case", CASE))
    with pytest.raises(OutputError) as error:
        run_here(scheduler, case, folder, **(settings | change))
    assert words in str(error.value) and "--output" in str(error.value)
    assert (folder / "manifest.json").read_bytes() == before and os.listdir(folder) == ["manifest.json"]


def test_two_processes_do_not_work_on_one_folder(case, scheduler, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with Session(folder), pytest.raises(OutputError, match="another process is working on this ensemble"):
        run_here(scheduler, case, folder, members=2)
    run_here(scheduler, case, folder, members=1)  # the lock is gone with its holder
    assert sorted(os.listdir(folder)) == ["manifest.json", "member000.nc"]


def test_members_stop_when_their_session_ends_but_not_because_a_file_is_late(tmp_path):
    with Session(tmp_path) as session:
        asked = StopRequest(str(session.path), session.token, 0.0)
        late = StopRequest(str(tmp_path / "not there"), session.token, 60.0)
        assert not asked(at_once=True) and not late(at_once=True)
        session.stop_members()
        assert not asked() and asked(at_once=True) and asked()  # looks at the file only now and then
    assert StopRequest(str(session.path), session.token, 0.0)(at_once=True)
    assert not os.listdir(tmp_path)


# Failures


def test_a_member_that_cannot_be_run_is_tried_twice_and_reported(case, scheduler, tmp_path):
    result, told = run_here(scheduler, case, tmp_path / "out", members=2, **OVERFLOWS)
    assert [run["status"] for run in result.runs] == ["complete", "failed"] * 2
    assert [run["attempts"] for run in result.runs] == [1, 2] * 2
    assert result.failed[0]["parameters"] == {"heads.scale": 400.0} and "step" in result.failed[0]["error"]
    assert sum("heads.scale=400.0 failed: " in text and "tried once more" in text for text in told) == 2
    data = result.open()
    assert np.isfinite(data.energy.sel(heads_scale=0.1)).all() and np.isnan(data.energy.sel(heads_scale=400.0)).all()
    assert str(data.member_status[1, 1].values).startswith("failed: ")
    again, told = run_here(scheduler, case, tmp_path / "out", members=2, **OVERFLOWS)  # two more attempts, no more
    assert [run["attempts"] for run in again.runs] == [1, 4] * 2
    assert "2 of 4 runs are complete" in " ".join(told)


def test_command_line_reports_failures(case, scheduler, capsys):
    arguments = ["ensemble", str(case), "--members", "1", "--set", "model.velocity=unnormalized", "--scheduler", scheduler]
    assert main([*arguments, "--vary", "heads.scale=0.1,400"]) == 3
    out, err = capsys.readouterr()
    assert "heads.scale=400_member000.nc: failed: " in out and "it is tried once more" in err
    assert out.splitlines()[2].split() == ["heads.scale=400", "1", "0", "0", "1", "0", "-"]


def test_workers_with_another_version_or_another_disk(case, scheduler, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("sphereflow.ensemble.cluster.__version__", "99")
        with pytest.raises(CaseError, match="has sphereflow .*, this is 99; install the same"):
            run_here(scheduler, case, tmp_path / "out", members=1)
    assert not (tmp_path / "out").exists()
    written = {"status": "complete", "warning": None, "error": None, "numerical": False, "traceback": None, "notes": []}
    elsewhere = {**written, "seconds": 1.0, "cpu_seconds": 1.0, "host": "node7"}
    monkeypatch.setattr("sphereflow.ensemble.running.run_member", lambda task: dict(elsewhere))
    result, _ = run_here(scheduler, case, tmp_path / "out", members=1)
    assert "the worker on node7 has written it, but it cannot be seen here" in result.failed[0]["error"]


def test_a_bug_in_a_member_is_a_failure_with_a_traceback(case, tmp_path, monkeypatch):
    def broken(*_args, **_settings):
        raise KeyError("lost")

    monkeypatch.setattr("sphereflow.ensemble.member.run", broken)
    with Session(tmp_path) as session:
        stop = {"path": str(session.path), "token": session.token, "patience": 0.0}
        text = load_case(case).to_toml()
        task = {"case": text, "output": str(tmp_path / "a.nc"), "anew": False, "command": ["x"], "session": stop}
        result = run_member(task)
    assert (result["status"], result["error"]) == ("failed", "KeyError: 'lost'") and "in broken" in result["traceback"]
    assert sys.argv != ["x"]
    assert run_member(task)["status"] == "interrupted"  # its session is over


def test_the_file_of_another_case_is_left_alone(case, scheduler, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    Manifest.of_plan(folder, plan_ensemble(case, 2)).save()
    sphereflow.run(case, folder / "member001.nc", overrides=["heads.seed=99"]).close()
    before = (folder / "member001.nc").read_bytes()
    with pytest.raises(OutputError, match="member001.nc: is the output of another case"):
        run_here(scheduler, case, folder, members=2)
    assert (folder / "member001.nc").read_bytes() == before


# Bad input


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--members", "0"], 2, "members: 0 is not allowed; must be an integer >= 1"),
        (["--members", "1" + 30 * "0"], 2, "members: 1" + 30 * "0" + " is not allowed, with 1 variations these are too many"),
        (["--members", "60000", "--vary", "heads.count=1,2"], 2, "these are too many runs; the product must be <= 100000"),
        (["--vary", "heads.cuont=1,2"], 2, "heads.cuont: unknown key; did you mean count?"),
        (["--vary", "heads.count=1,many"], 2, 'heads.count: "many" is not allowed'),
        (["--vary", "heads.count=1,2,1"], 2, "heads.count=1 is given twice"),
        (["--vary", "heads.rate=1,1.0"], 2, "heads.rate=1.0 is given twice"),
        (["--vary", "heads.seed=1,[1]"], 2, "heads.seed=[1] and heads.seed=1 give the same case"),
        (["--vary", "heads.count=1,,2"], 2, "a value is missing"),
        (["--vary", "heads.count="], 2, "a value is missing"),
        (["--vary", "heads.count"], 2, "must be table.key=value,value,..."),
        (["--vary", "heads.count=1", "--vary", "heads.count=2"], 2, "varied twice"),
        (["--vary", "output.file=a.nc,b.nc"], 2, "output.file cannot be varied"),
        (["--vary", "output.checkpoint_every=1,2"], 2, "output.checkpoint_every cannot be varied"),
        (["--vary", "grid.nlat=8,9"], 2, "1 of 2 variations are not valid\n  with grid.nlat=9: "),
        (["--vary", "heads.file=a.npz,b.npz"], 2, "a.npz"),
        (["--set", "grid.nlat=9"], 2, "noisy.toml: 1 error\n  grid.nlat: 9"),
        (["--workers", "0"], 2, "workers: 0 is not allowed"),
        (["--scheduler", "nonsense"], 2, "scheduler: nonsense cannot be reached"),
        (["--output", "."], 4, "holds something else (noisy.toml) and no ensemble"),
        (["--output", "noisy.toml"], 4, "noisy.toml: is not a folder"),
        (["--output", "no/such"], 4, "there is no such folder"),
    ],
)
def test_bad_input_ends_before_anything_is_written(case, capsys, monkeypatch, arguments, code, words):
    monkeypatch.setattr("sphereflow.ensemble.cluster._CONNECT", 0.5)
    if "--members" not in arguments:
        arguments = ["--members", "2", *arguments]
    assert main(["ensemble", str(case), *arguments]) == code
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert os.listdir(case.parent) == ["noisy.toml"] and case.read_text() == CASE


@pytest.mark.parametrize("settings", [{"members": True}, {"members": 2.0}, {"vary": {"heads.count": 3}}, {"vary": {"a.b": []}}])
def test_bad_arguments_from_python(case, settings):
    with pytest.raises(CaseError):
        plan_ensemble(case, **({"members": 1} | settings))


def test_inputs_that_cannot_be_used_are_found_for_every_variation(case, capsys):
    for name in ("good.npz", "bad.npz"):
        size = 3 if name == "good.npz" else 4
        np.savez(case.with_name(name), logits=np.zeros((2, size, size)))
    plain = CASE.replace('initial = "gaussian-symmetric"', "")
    case.write_text(plain)
    assert main(["ensemble", str(case), "--members", "1", "--vary", "heads.file=good.npz,bad.npz"]) == 2
    assert 'with heads.file="bad.npz": ' in capsys.readouterr().err
    assert not (case.parent / "noisy-ensemble").exists()


def test_missing_dask_names_the_command_that_installs_it(case, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["ensemble", str(case), "--members", "1"]) == 2
    assert "pip install 'dask[distributed]'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "sphereflow ensemble 99"}', b"\xff\xfe"])
def test_a_damaged_manifest_is_refused_and_kept(case, scheduler, tmp_path, content):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(OutputError, match="manifest"):
        run_here(scheduler, case, folder, members=1)
    with pytest.raises(OutputError, match="manifest"):
        sphereflow.open_ensemble(folder)
    assert (folder / "manifest.json").read_bytes() == content and len(os.listdir(folder)) == 1
