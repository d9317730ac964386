"""Output files when things go wrong: wrong calls, taken names, races, killed writers, full disks."""

import fcntl
import os
import resource
import signal
import tempfile
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
from storage_samples import ATTRIBUTES, FIELD, GRID, create, python, record, same_bits, weights, write_run

from sphereflow.diagnostics import Variable
from sphereflow.errors import CaseError, OutputError
from sphereflow.storage import claim, open_run, read_density, read_weight_path, run_summary

# Programming errors are found before anything is written


@pytest.mark.parametrize("value", [None, True, np.bool_(True), {}, [], ["a"], [True], 1j, Path("a")], ids=repr)
def test_attributes_that_netcdf_does_not_know(tmp_path, value):
    with pytest.raises(TypeError, match="extra"):
        create(tmp_path / "run.nc", attributes={**ATTRIBUTES, "extra": value})
    with pytest.raises(TypeError, match="density:extra"):
        create(tmp_path / "run.nc", variables=[Variable("density", ("t",), "", "", attrs={"extra": value})])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attributes": {"title": "a"}}, "sphereflow_case"),
        ({"variables": [FIELD, FIELD]}, "twice"),
        ({"variables": [Variable("lat", ("t",), "", "")]}, "already part"),
        ({"variables": [Variable("a", ("head", "t"), "", "")]}, "first dimension"),
        ({"variables": [Variable("a", ("t", "particle"), "", "")]}, "without a size"),
        ({"grid": None}, "without a size"),
        ({"dimensions": {"particle": 0}}, "without elements"),
        ({"variables": [Variable("a", ("head",), "", "")]}, "static"),
        ({"coordinates": {"a": [1.0]}}, "static"),
        ({"variables": [Variable("a", ("head",), "", "")], "coordinates": {"a": [1.0]}}, "shape"),
    ],
)
def test_contradictory_declarations(tmp_path, changes, message):
    old = write_run(tmp_path / "run.nc", 1).read_bytes()
    with pytest.raises(ValueError, match=message):
        create(tmp_path / "run.nc", force=True, **changes)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"run.nc": old}


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"energy": ...}, ValueError),
        ({"other": 1.0}, ValueError),
        ({"t": 0.0}, ValueError),
        ({"t": np.nan}, ValueError),
        ({"density": np.ones((16, 8))}, ValueError),
        ({"energy": [1.0]}, ValueError),
        ({"step": 1.5}, TypeError),
        ({"energy": 1j}, TypeError),
    ],
    ids=str,
)
def test_wrong_record_is_refused_whole(tmp_path, changes, error):
    wrong = {name: value for name, value in {**record(1), **changes}.items() if value is not ...}
    with create(tmp_path / "run.nc") as writer:
        writer.append(record(0))
        with pytest.raises(error):
            writer.append(wrong)
        writer.append(record(1))
        assert writer.records == 2
    with xr.open_dataset(tmp_path / "run.nc") as run:
        assert same_bits(run["density"].values, [record(0)["density"], record(1)["density"]])


# Status


@pytest.mark.parametrize(
    "error, status",
    [
        (CaseError("step 3:\nnot finite"), "failed: step 3: not finite"),
        (KeyError("x"), "failed: KeyError: 'x'"),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_status_after_an_exception(tmp_path, error, status):
    with pytest.raises(type(error)), create(tmp_path / "run.nc") as writer:
        writer.append(record(0))
        raise error
    with open_run(tmp_path / "run.nc") as run:
        assert run.attrs["sphereflow_status"] == status and run.sizes["t"] == 1


def test_status_set_by_the_run_is_kept(tmp_path):
    with pytest.raises(RuntimeError, match="afterwards"), create(tmp_path / "run.nc") as writer:
        assert writer.status == "running"
        with pytest.raises(ValueError, match="unknown status"):
            writer.set_status("done")
        writer.set_status("complete")
        raise RuntimeError("afterwards")
    with open_run(tmp_path / "run.nc") as run:
        assert run.attrs["sphereflow_status"] == "complete"


def test_use_after_close(tmp_path):
    writer = create(tmp_path / "run.nc")
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="run.nc: the file is closed"):
        writer.append(record(0))
    with pytest.raises(ValueError, match="run.nc: the file is closed"):
        writer.set_status("complete")


# The name of a file


def test_existing_file_is_refused_and_untouched(tmp_path):
    path = write_run(tmp_path / "run.nc", 2)
    old = path.read_bytes()
    with pytest.raises(OutputError, match="run.nc: already exists; use --force .* another --output"):
        create(path)
    assert path.read_bytes() == old and list(tmp_path.iterdir()) == [path]


def test_force_moves_the_old_file_aside(tmp_path):
    path = write_run(tmp_path / "run.nc", 2)
    old = path.read_bytes()
    with open_run(path) as reader:  # a reader of the old file keeps what it has
        write_run(path, 3, force=True)
        assert same_bits(reader["density"].values[1], record(1)["density"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.nc", "run.nc.bak"]
    assert (tmp_path / "run.nc.bak").read_bytes() == old
    with open_run(path) as run:
        assert run.sizes["t"] == 3


def test_force_needs_no_old_file(tmp_path):
    write_run(tmp_path / "run.nc", 1, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_force_does_not_take_the_file_of_a_running_run(tmp_path):
    with create(tmp_path / "run.nc") as writer:
        writer.append(record(0))
        with pytest.raises(OutputError, match="run.nc: another run is writing"):
            create(tmp_path / "run.nc", force=True)
        writer.append(record(1))
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_relative_name_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with create("run.nc") as writer:
        monkeypatch.chdir("/")
        writer.append(record(0))
    assert writer.path == tmp_path / "run.nc" and writer.path.is_file()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    "name, message",
    [
        ("folder", "is a folder"),
        ("none/run.nc", "No such file"),
        ("text/run.nc", "Not a directory"),
        ("dead", "dead: "),
    ],
)
def test_names_that_cannot_be_files(tmp_path, force, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("kept")
    (tmp_path / "dead").symlink_to("nowhere")
    with pytest.raises(OutputError, match=message) as caught:
        create(tmp_path / name, force=force)
    assert str(tmp_path / name) in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["dead", "folder", "text"]
    assert (tmp_path / "text").read_text() == "kept" and (tmp_path / "dead").is_symlink()


def test_folder_without_permission():
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        if user == 0:
            os.seteuid(65534)  # root may write everywhere
        try:
            with pytest.raises(OutputError, match=f"{folder}/run.nc: .*Permission denied"):
                create(Path(folder) / "run.nc")
        finally:
            os.seteuid(user)
        assert not os.listdir(folder)


@pytest.mark.parametrize("force", [False, True])
def test_file_system_without_hard_links(tmp_path, monkeypatch, force):
    path = tmp_path / "run.nc"
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "Operation not permitted")))
    write_run(path, 1)
    old = path.read_bytes()
    if force:
        write_run(path, 2, force=True)
        assert (tmp_path / "run.nc.bak").read_bytes() == old
    else:
        with pytest.raises(OutputError, match="already exists"):
            create(path)
        assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == old


def test_file_that_appears_at_the_last_moment_is_not_replaced(tmp_path, monkeypatch):
    path, link = tmp_path / "run.nc", os.link

    def late(*names):
        path.write_text("of somebody else")
        link(*names)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(OutputError, match="already exists"):
        create(path)
    assert list(tmp_path.iterdir()) == [path] and path.read_text() == "of somebody else"


def test_names_are_taken_one_at_a_time(tmp_path, monkeypatch):
    check, seen = claim.check_target, []

    def probe(path, force):
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("free")
        except BlockingIOError:
            seen.append("locked")
        finally:
            os.close(folder)
        check(path, force)

    monkeypatch.setattr(claim, "check_target", probe)
    write_run(tmp_path / "run.nc", 1)
    assert seen == ["free", "locked"]


RACE = """
from sphereflow.errors import OutputError
folder, force = sys.argv[1:]
print("ready", flush=True)
writers = []
for line in sys.stdin:
    try:
        writers.append(samples.create(f"{folder}/{line.strip()}.nc", force=force == "True"))
        writers[-1].append(samples.record(len(writers)))
        print("won", flush=True)
    except OutputError as error:
        print("lost:", error, flush=True)
"""


@pytest.mark.parametrize("force", [False, True])
def test_two_processes_race_for_a_name(tmp_path, force):
    racers = [python(RACE, tmp_path, force) for _ in range(2)]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n", "ready\n"]
    names = [f"run{k}" for k in range(8)]
    for name in names:
        if force:
            (tmp_path / f"{name}.nc").write_text(name)
        for racer in racers:
            print(name, file=racer.stdin, flush=True)
        answers = sorted(racer.stdout.readline() for racer in racers)
        assert answers[1] == "won\n" and answers[0].startswith(f"lost: {tmp_path}/{name}.nc: "), answers
        if force:
            assert (tmp_path / f"{name}.nc.bak").read_text() == name
    for racer in racers:
        racer.communicate()
        assert racer.returncode == 0
    for name in names:
        with open_run(tmp_path / f"{name}.nc") as run:
            assert run.sizes["t"] == 1
    assert len(list(tmp_path.iterdir())) == len(names) * (1 + force)


# Readers, killed writers, full disks


WRITE = """
path, count, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
import time
with samples.create(path) as writer:
    for k in range(count):
        writer.append(samples.record(k))
        print(k, flush=True)
        time.sleep(pause)
    writer.set_status("complete")
"""


def test_killed_writer_leaves_its_records(tmp_path):
    path = tmp_path / "run.nc"
    process = python(WRITE, path, 5, 100)
    assert process.stdout.readline() == "0\n"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    summary = run_summary(path)
    assert summary["state"] == "interrupted" and summary["status"] == "running"
    assert not summary["being_written"] and summary["records"] == 1
    with open_run(path) as run:
        assert same_bits(run["density"].values, [record(0)["density"]])
    assert same_bits(read_weight_path(path).logits, weights().logits)
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_reader_next_to_a_writer(tmp_path):
    path, count, seen = tmp_path / "run.nc", 150, set()
    process = python(WRITE, path, count, 0.002)
    process.stdout.readline()
    while process.poll() is None:
        with open_run(path) as run:
            seen.add(run.sizes["t"])
            for name in ("density", "energy", "logits"):
                for k in range(run.sizes["t"]):
                    assert same_bits(run[name].values[k], record(k)[name]), (name, k)
        assert same_bits(read_weight_path(path).logits, weights().logits)
    output, _ = process.communicate()
    assert process.returncode == 0 and output.split()[-1] == str(count - 1)
    assert len(seen) > 2 and run_summary(path)["records"] == count


def test_reader_in_the_process_of_the_writer(tmp_path):
    with create(tmp_path / "run.nc") as writer:
        with open_run(tmp_path / "run.nc") as run:
            assert run.sizes["t"] == 0
        assert run_summary(tmp_path / "run.nc")["t_last"] is None
        writer.append(record(0))
        assert run_summary(tmp_path / "run.nc")["being_written"]
        with open_run(tmp_path / "run.nc") as run:
            writer.append(record(1))
            assert same_bits(run["density"].values, [record(0)["density"]])
        assert read_density(tmp_path / "run.nc")[0].tobytes() == record(1)["density"].tobytes()


def test_copy_of_a_changing_file_is_taken_again(tmp_path, monkeypatch):
    fstat, calls = os.fstat, []
    with create(tmp_path / "run.nc") as writer:

        def growing(descriptor):
            status = fstat(descriptor)
            if not calls:
                writer.append(record(0))
            calls.append(status.st_size)
            return status

        monkeypatch.setattr(os, "fstat", growing)
        with open_run(tmp_path / "run.nc") as run:
            assert same_bits(run["density"].values, [record(0)["density"]])
    assert len(calls) == 4 and calls[0] < calls[1] == calls[2] == calls[3]


@pytest.mark.parametrize("time", [None, np.nan])
def test_record_without_time_is_dropped(tmp_path, time):
    path = write_run(tmp_path / "run.nc", 2)
    with netCDF4.Dataset(path, "a") as file:
        file["density"][2] = 1.0
        if time is not None:
            file["t"][2] = time
    with open_run(path) as run:
        assert run.sizes["t"] == 2 and run["density"].shape == (2, *GRID.shape)
    assert run_summary(path)["t_last"] == record(1)["t"]
    assert read_density(path)[0].tobytes() == record(1)["density"].tobytes()


@pytest.fixture
def file_size_limit():
    """Sets the size beyond which this process cannot extend a file, as on a full disk; None lifts it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield limit
    limit(None)


class Ballast:
    """Stands for the reserve on a full disk: closing it makes room."""

    def __init__(self, release):
        self.close = release


@pytest.mark.parametrize("room", [0, 500, 3000, 9000])
def test_full_disk_keeps_every_complete_record(tmp_path, file_size_limit, room):
    path = tmp_path / "run.nc"
    with pytest.raises(OutputError) as caught, create(path) as writer:
        writer.append(record(0))
        writer._require_room = lambda size: None  # somebody else takes the room after it was asked for
        writer._reserve.close()
        writer._reserve = Ballast(lambda: file_size_limit(None))
        file_size_limit(path.stat().st_size + room)
        try:
            for k in range(1, 50):
                writer.append(record(k))
        finally:
            with pytest.raises(OutputError, match="earlier record"):
                writer.append(record(k + 1))
    message, count = str(caught.value), writer.records
    assert message.startswith(f"{path}: cannot write the record at t = {0.1 * count:g}: ")
    assert "MB free on the disk" in message and message.endswith(f"holds {count} complete records")
    with open_run(path) as run:
        assert run.attrs["sphereflow_status"] == f"failed: {message}"
        assert run.sizes["t"] == count >= 1 + room // 2000
        for name in ("density", "energy", "logits", "t"):
            assert same_bits(run[name].values, [record(k)[name] for k in range(count)]), name


def test_full_disk_without_reserve_still_reports_the_first_error(tmp_path, file_size_limit):
    path = tmp_path / "run.nc"
    with (
        pytest.raises(OutputError, match="run.nc: cannot write the record.*may be damaged") as caught,
        create(path) as writer,
    ):
        writer.append(record(0))
        writer._require_room = lambda size: None
        file_size_limit(path.stat().st_size)
        for k in range(1, 50):
            writer.append(record(k))
    assert any("cannot" in note for note in caught.value.__notes__)


def test_file_size_limit_keeps_every_record_and_needs_no_reserve(tmp_path, file_size_limit):
    path = tmp_path / "run.nc"
    with pytest.raises(OutputError, match="run.nc: cannot write the record at t = .*: File too large"), create(path) as writer:
        writer.append(record(0))
        file_size_limit(path.stat().st_size + 300_000)
        for k in range(1, 1000):
            writer.append(record(k))
    assert writer.records > 5
    with open_run(path) as run:
        assert run.sizes["t"] == writer.records and run.attrs["sphereflow_state"] in ("failed", "interrupted")
        assert same_bits(run["density"].values, [record(k)["density"] for k in range(writer.records)])


@pytest.mark.parametrize("size", [0, 20_000, 100_000])
def test_disk_too_small_for_a_run(tmp_path, file_size_limit, size):
    path = write_run(tmp_path / "run.nc", 1)
    old = path.read_bytes()
    file_size_limit(size)
    with pytest.raises(OutputError, match="run.nc: cannot create the file: "):
        create(path, force=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"run.nc": old}
