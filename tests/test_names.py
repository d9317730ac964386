"""Names that no file can have, given as arguments, in a case and in Python."""

import os
import subprocess
import sys

import pytest

import sphereflow
from sphereflow.cli import main
from sphereflow.errors import CaseError, OutputError
from sphereflow.names import beside, fault_of

CASE = {"initial": {"kind": "uniform"}, "grid": {"nlat": 8}, "solver": {"t_end": 0.01}, "output": {"every": 0.01}}
IMPOSSIBLE = ["a\0b.nc", "\0", "\udc80.nc", "\ud800.nc"]
COMMANDS = [
    ["run", "NAME"], ["run", "case.toml", "-o", "NAME"], ["run", "case.toml", "--set", "title=NAME"], ["validate", "NAME"],
    ["resume", "NAME"], ["resume", "run.nc", "-o", "NAME"], ["info", "NAME"], ["compare", "NAME", "run.nc"],
    ["ensemble", "case.toml", "--members", "2", "--output", "NAME"], ["plot", "NAME"], ["animate", "run.nc", "-o", "NAME"],
    ["report", "NAME"], ["import", "NAME", "-o", "NAME"],
]  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=ascii)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_impossible_arguments_exit_with_2(tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("NAME", name) for word in command]) == 2
    error = capsys.readouterr().err
    assert ("holds a NUL character" in error or "is not valid UTF-8" in error) and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_not_utf_8_comes_as_bytes_from_a_shell(tmp_path):
    command = [os.fsencode(sys.executable), b"-m", b"sphereflow.cli", b"info", b"\x80.nc"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 2 and b"is not valid UTF-8" in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize("key", ["output.file", "title", "heads.file", "heads.values", "model.experts_file"])
def test_a_nul_in_a_case_exits_with_2(tmp_path, monkeypatch, capsys, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.toml").write_text("[initial]\nkind = 'uniform'\n[solver]\nt_end = 0.01\n")
    assert main(["run", "case.toml", "--set", f'{key}="a\\u0000b.npz"']) == 2
    error = capsys.readouterr().err
    assert key in error and "must be" in error and "Traceback" not in error
    assert [file.name for file in tmp_path.iterdir()] == ["case.toml"]


@pytest.mark.parametrize("name", IMPOSSIBLE, ids=ascii)
def test_impossible_names_in_python(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match="name another file"):
        sphereflow.run(CASE, name)
    with pytest.raises(OutputError, match="name another file"):
        sphereflow.open_run(name)
    with pytest.raises(OutputError, match="name another file"):
        sphereflow.resume(name)
    with pytest.raises(CaseError, match=r"output\.file: .* must be a (file )?name"):
        sphereflow.run(CASE | {"output": {"file": name}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["plot", "animate", "report"])
@pytest.mark.parametrize("name", ["", ".", ".."])
def test_pictures_of_no_file(tmp_path, monkeypatch, capsys, command, name):
    monkeypatch.chdir(tmp_path)
    assert main([command, name]) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_possible_names():
    for name in ("a.nc", "ä b\n.nc", "\u202e", "-x"):
        assert fault_of(name) is None
    assert str(beside("folder/run.nc", ".png")) == os.path.join("folder", "run.png")
