"""Particle data of others: what is read, what is refused, and the file that comes out."""

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sphereflow.cli import main
from sphereflow.errors import CaseError, OutputError
from sphereflow.storage import read_weight_path, run_summary
from sphereflow.storage.importers import import_run, read_foreign, read_tokens

DATA = Path(__file__).parent / "data" / "public_particles"
TOKENS = np.array([[[1.0, 0, 0], [0, 1, 0]], [[0, 0, 1], [0.6, 0.8, 0]]])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no tokens"),
        ("\n\n", "holds no tokens"),
        ("x,y,z\n", "holds no tokens"),
        ("x,y,z\n1,0\n", "line 2 has the wrong number of columns, 2; must be 3"),
        ("x,y,z\n1,0,0,1\n", "line 2 has the wrong number of columns, 4; must be 3"),
        ("x,y,z\n1,0,0\n\n0,1\n", "line 4 has the wrong number of columns, 2; must be 3"),
        ("1,0,0\n0,1,0,1\n", "line 2 has the wrong number of columns, 4; must be 3"),
        ("x,y,z\n1,0,zero\n", "line 2, column 3: 'zero' is no number"),
        ("x,y,z\n1,0,0\n0,,1\n", "line 3, column 2: '' is no number"),
        ("x,y,z\n1 0 0\n", "line 2, column 1: '1 0 0' is no number"),
        ("\udcff1,0,0\n", "byte 0 is not UTF-8"),
    ],
)
def test_csv_files_that_are_no_table_exit_with_2_and_say_where(tmp_path, capsys, text, words):
    path = tmp_path / "tokens.csv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert main(["import", str(path), "-o", str(tmp_path / "tokens.nc")]) == 2
    error = capsys.readouterr().err
    assert f"{path}: " in error and words in error and "Traceback" not in error
    case = tmp_path / "case.toml"
    case.write_text("[initial]\nkind = 'tokens'\nfile = 'tokens.csv'\n[solver]\nkind = 'particles'\nt_end = 1\n")
    assert main(["validate", str(case)]) == 2
    assert words in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["case.toml", "tokens.csv"]


def test_a_weight_that_is_no_number_is_named(tmp_path):
    path = tmp_path / "tokens.csv"
    path.write_text("x,y,z,weight\n1,0,0,1\n0,1,0,nan\n")
    with pytest.raises(CaseError, match="the weight of row 1 is not finite"):
        read_foreign(path)


def write_pt(path, content, protocol=2):
    """A zip archive like torch.save's."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("result/data.pkl", content if isinstance(content, bytes) else pickle.dumps(content, protocol))
        archive.writestr("result/version", "3")
    return path


def result(**more):
    """The contents of a small result file of the public code."""
    t = np.array([0.0, 0.5])
    series = {name: np.array([1.0, 2.0]) for name in ("E", "G2", "dE_int", "G2_int", "add_int")}
    return {"s2": {"t": t, **series, "traj": TOKENS, **more}, "H": 3, "case": "s2_ou"}


# ------------------------------------------------------------------------------------------------------------------ .pt
def test_public_result_file_is_read_without_torch():
    run = read_foreign(DATA / "s2_oscillating_H1.pt")
    assert run.position.shape == (21, 24, 3)
    np.testing.assert_allclose(np.linalg.norm(run.position, axis=2), 1.0, atol=1e-15)
    np.testing.assert_allclose(run.t, 0.05 * np.arange(21), atol=1e-12)
    np.testing.assert_array_equal(run.weight, np.full(24, 1 / 24))
    assert run.facts == {"H": 1, "case": "s2_oscillating"}
    kernel = 2 * run.series["energy"][0]
    assert 1 / np.e**6 < kernel < np.e**6
    assert run.series["weight_work"][-1] == pytest.approx(-0.31640552, abs=1e-7)


def test_averaged_token_paths_are_left_out_unless_projected():
    run = read_foreign(DATA / "s2_ou_H2.pt")
    assert run.position is None
    assert "averages of several runs that leave the sphere by up to 0.03" in run.notes[0]
    assert run.facts["n_mc"] == 3
    assert set(run.series) >= {"energy", "energy_std", "metric_speed_squared_std"}
    projected = read_foreign(DATA / "s2_ou_H2.pt", normalize=True)
    np.testing.assert_allclose(np.linalg.norm(projected.position, axis=2), 1.0, atol=1e-15)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles_of_all_protocols(protocol, tmp_path):
    run = read_foreign(write_pt(tmp_path / "a.pt", {**result(), "noise_var": np.float64(2.0)}, protocol))
    np.testing.assert_array_equal(run.position, TOKENS)
    assert run.facts["noise_var"] == 2.0
    np.testing.assert_array_equal(run.series["weight_work"], [2.0, 4.0])


def test_circle_and_higher_dimensions(tmp_path):
    angle = np.array([[0.0, 1.0, 2.0]])
    circle = {"s1": {"t": np.array([0.0]), "traj": np.stack([np.cos(angle), np.sin(angle)], axis=-1)}}
    assert read_foreign(write_pt(tmp_path / "s1.pt", circle)).position.shape == (1, 3, 2)
    high = {"hd": {"t": np.array([0.0]), "traj": np.eye(5)[None]}, "d": 5}
    assert read_foreign(write_pt(tmp_path / "hd.pt", high)).position.shape == (1, 5, 5)


class Hostile:
    """Asks the unpickler for a call when it is loaded."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (lambda flag: Hostile(os.system, f"touch {flag}"), "system"),
        (lambda flag: Hostile(eval, f"open({str(flag)!r}, 'w')"), "eval"),
        (lambda flag: Hostile(exec, f"open({str(flag)!r}, 'w')"), "exec"),
        (lambda flag: Hostile(getattr, np.ndarray, "tofile"), "getattr"),
        (lambda flag: Hostile(np.load, str(flag)), "load"),
        (lambda flag: Hostile(__import__, "os"), "__import__"),
        (lambda flag: Hostile(bytearray, 2**40), "bytearray"),
    ],
)
def test_hostile_pickles_are_refused_and_run_nothing(payload, name, tmp_path):
    flag = tmp_path / "flag"
    content = result()
    content["s2"]["E"] = payload(flag)
    with pytest.raises(CaseError, match=f"pickle is refused or damaged: it asks for .*{name}"):
        read_foreign(write_pt(tmp_path / "hostile.pt", content))
    assert not flag.exists()


def test_admitted_names_cannot_be_abused(tmp_path):
    def pickled(*lines):
        return b"\x80\x02" + b"".join(lines) + b"."

    huge = pickled(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\nndarray\n", b"(J\xff\xff\xff\x7ft", b"U\x01b\x87R")
    codec = pickled(b"c_codecs\nencode\n", b"X\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R")
    other = pickled(b"cnumpy.core.multiarray\n_reconstruct\n", b"cnumpy\ndtype\n", b"K\x00\x85", b"U\x01b\x87R")
    tensor = pickled(b"(X\x07\x00\x00\x00storageX\x01\x00\x00\x000tQ")
    for content, text in ((huge, "unusual"), (codec, "'zip'"), (other, "unusual"), (tensor, "torch tensors")):
        with pytest.raises(CaseError, match=text):
            read_foreign(write_pt(tmp_path / "abuse.pt", content))
    with pytest.raises(CaseError, match="asks for os.system|asks for posix.system"):
        read_foreign(write_pt(tmp_path / "objects.pt", result(E=np.array([Hostile(os.system, "true")]))))


def test_files_that_are_no_results(tmp_path):
    def refused(path, text):
        with pytest.raises(CaseError, match=text) as caught:
            read_foreign(path)
        assert str(path) in str(caught.value)
        assert caught.value.exit_code == 2

    (tmp_path / "plain.pt").write_bytes(pickle.dumps(result()))
    refused(tmp_path / "plain.pt", "no readable zip archive")
    with zipfile.ZipFile(tmp_path / "empty.pt", "w") as archive:
        archive.writestr("readme.txt", "x")
    refused(tmp_path / "empty.pt", "holds readme.txt; expected an archive with one data.pkl")
    refused(write_pt(tmp_path / "cut.pt", pickle.dumps(result())[:50]), "refused or damaged")
    refused(write_pt(tmp_path / "list.pt", [1, 2]), "holds a list")
    refused(write_pt(tmp_path / "keys.pt", {"model": 1, "epoch": 2}), "unknown layout; found the keys epoch, model")
    refused(write_pt(tmp_path / "time.pt", {"s2": {"E": np.ones(2)}}), "s2 has the keys E, expected t")
    refused(write_pt(tmp_path / "shape.pt", result(E=np.ones(3))), r"'E' has shape \(3,\); expected \(2,\)")
    refused(tmp_path / "missing.pt", "no such file")
    refused(Path(__file__), "cannot import .py; must be .pt, .npz or .csv")
    nan = TOKENS.copy()
    nan[1] = np.nan  # what the public code leaves behind when its exponentials overflow
    refused(write_pt(tmp_path / "nan.pt", result(traj=nan)), "t = 0.5: the position of token 0 is not finite")


# ----------------------------------------------------------------------------------------------------------- .npz, .csv
def test_npz_forms(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, t=[0.0, 1.0], positions=TOKENS, weights=[1.0, 3.0])
    run = read_foreign(path)
    np.testing.assert_array_equal(run.position, TOKENS)
    np.testing.assert_array_equal(run.weight, [0.25, 0.75])
    np.savez(path, x=TOKENS[1])
    run = read_foreign(path)
    np.testing.assert_array_equal(run.t, [0.0])
    np.testing.assert_array_equal(run.position, TOKENS[1:])
    ends = read_foreign(DATA / "s2_oscillating_H1.npz")
    assert np.isfinite(ends.position[[0, -1]]).all()
    assert np.isnan(ends.position[1:-1]).all()
    assert ends.series["energy"].shape == (801,)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"tokens": TOKENS}, "unknown layout; found the arrays tokens, expected positions as one of"),
        ({"positions": TOKENS}, "no array 't' with the times of positions"),
        ({"positions": TOKENS, "t": [0.0]}, r"positions have shape \(2, 2, 3\); expected \(1, n, d\)"),
        ({"positions": TOKENS, "t": [1.0, 0.0]}, "increasing times"),
        ({"positions": 1.01 * TOKENS, "t": [0.0, 1.0]}, r"t = 0: token \d has norm 1.01.*use --normalize"),
        ({"positions": TOKENS[:, :0], "t": [0.0, 1.0]}, "holds no tokens"),
        ({"positions": TOKENS, "t": [0.0, 1.0], "weights": [1.0]}, r"weights: shape \(1,\); expected \(2,\)"),
        ({"positions": TOKENS, "t": [0.0, 1.0], "weights": [1.0, -1.0]}, "weights: must be finite, nonnegative"),
        ({"x_first": TOKENS[0]}, "needs an array t of times"),
        ({"x_first": TOKENS[0], "x_last": TOKENS[1][:1], "t": [0.0, 1.0]}, "must be the same"),
    ],
)
def test_npz_that_cannot_be_used(arrays, text, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(CaseError, match=text):
        read_foreign(tmp_path / "a.npz")


def test_csv_forms(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,x,y,z,weight\n1,0,0,1,1\n0,1,0,0,1\n1,0.6,0.8,0,3\n0,0,1,0,3\n")
    run = read_foreign(path)
    np.testing.assert_array_equal(run.t, [0.0, 1.0])
    np.testing.assert_allclose(run.position, TOKENS)
    np.testing.assert_array_equal(run.weight, [0.25, 0.75])
    path.write_text("1,0,0\n0,1,0\n")
    np.testing.assert_array_equal(read_foreign(path).position, TOKENS[:1])
    path.write_text("1,0,0,2,0\n0,1,0,2,0\n")
    np.testing.assert_array_equal(read_foreign(path).weight, [0.5, 0.5])
    path.write_text("x,y\n1,0\n0,-1\n")
    assert read_foreign(path).position.shape == (1, 2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,y,w\n1,0,0\n", "x, y, w; expected the columns x, y, z"),
        ("1,0\n", "2 columns without names"),
        ("1,0,0\n1,0\n", "cannot be read as a table"),
        ("x,y,z\n", "holds no tokens"),
        ("", "holds no tokens|columns without names"),
        ("x,y,z,t\n1,0,0,0\n1,0,0,0\n1,0,0,1\n", "1 tokens at t = 1, 2 at t = 0; must be the same number"),
        ("x,y,z,t\n1,0,0,nan\n", "time of row 0 is not finite"),
        ("x,y,z\n1,0,0\n2,0,0\n", "token 1 has norm 2, off the unit sphere"),
        ("x,y,z\n1,0,nan\n", "token 0 is not finite"),
        ("x,y,z,weight,t\n1,0,0,1,0\n0,1,0,1,0\n1,0,0,1,1\n0,1,0,2,1\n", "weights change in time"),
    ],
)
def test_csv_that_cannot_be_used(text, message, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CaseError, match=message):
        read_foreign(tmp_path / "a.csv")


# ----------------------------------------------------------------------------------------------------------- conversion
def test_imported_file_has_our_conventions(tmp_path):
    output = tmp_path / "a.nc"
    import_run(DATA / "s2_oscillating_H1.pt", output)
    with xr.open_dataset(output) as run:
        assert run.position.dims == ("t", "particle", "xyz")
        assert run.attrs["sphereflow_status"] == "complete"
        np.testing.assert_allclose(run.mean_x, run.position[:, :, 0].mean("particle"), atol=1e-15)
        np.testing.assert_allclose(np.trace(run.second_moment, axis1=1, axis2=2), 1.0)
        assert run.energy.long_name == "interaction energy E"
    summary = run_summary(output)
    assert (summary["particles"], summary["records"], summary["solver"]) == (24, 21, None)
    with pytest.raises(OutputError, match="holds no weight path"):
        read_weight_path(output)


def test_token_sets_come_from_any_of_these_files(tmp_path):
    import_run(DATA / "s2_oscillating_H1.pt", tmp_path / "a.nc")
    expected = read_foreign(DATA / "s2_oscillating_H1.pt").position[0]
    for file in (tmp_path / "a.nc", DATA / "s2_oscillating_H1.pt"):
        positions, weights = read_tokens(file)
        np.testing.assert_allclose(positions, expected, atol=1e-15)
        np.testing.assert_array_equal(weights, np.full(24, 1 / 24))
    assert read_tokens(DATA / "s2_oscillating_H10.npz")[0].shape == (200, 3)
    np.savez(tmp_path / "b.npz", positions=TOKENS[0])
    assert read_tokens(tmp_path / "b.npz")[1] is None
    with pytest.raises(CaseError, match="holds no tokens: its token paths are averages"):
        read_tokens(DATA / "s2_ou_H2.pt")
    (tmp_path / "c.nc").write_bytes(b"nothing")
    with pytest.raises(CaseError, match="damaged"):
        read_tokens(tmp_path / "c.nc")


def test_import_command(tmp_path, capsys):
    output = tmp_path / "a.nc"
    arguments = ["import", str(DATA / "s2_ou_H2.pt"), "-o", str(output)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "21 records from t = 0 to 1, no tokens, 7 series" in printed.out
    assert "leave the sphere" in printed.err
    assert main(arguments) == 4
    assert main([*arguments, "--force", "--normalize"]) == 0
    assert "24 tokens in dimension 3" in capsys.readouterr().out
    assert main(["import", __file__, "-o", str(tmp_path / "b.nc")]) == 2
    assert not (tmp_path / "b.nc").exists()


def test_pickle_bytes_are_limited(tmp_path, monkeypatch):
    from sphereflow.storage import pickles

    monkeypatch.setattr(pickles, "LARGEST_PICKLE", 100)
    with pytest.raises(CaseError, match="larger than"):
        read_foreign(write_pt(tmp_path / "big.pt", result()))
