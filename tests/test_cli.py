"""The command line as a stranger meets it: commands, outputs, exit codes, and what is left behind after an error."""

import contextlib
import json
import os
import re
import subprocess
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

import sphereflow
from sphereflow.case import load_case
from sphereflow.cli import main
from sphereflow.errors import CaseError, NumericalError, OutputError
from sphereflow.sessions import judge
from sphereflow.storage import run_summary

CASE = """
schema = 1
title = "A small run"
[grid]
nlat = 16
[model]
direction = "ascend"
[heads]
count = 2
schedule = "oscillating"
initial = "gaussian-symmetric"
seed = 1
[initial]
kind = "vmf-mixture"
centers = [[1, 0, 0], [0, 1, 1]]
kappa = 5.0
[solver]
kind = "finite-volume"
t_end = 0.2
[output]
file = "small.nc"
every = 0.1
fields = ["density", "potential", "effective_mobility", "first_variation", "velocity"]
"""


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(CASE)
    return path


def test_run_then_info(case, capsys):
    assert main(["run", str(case), "--quiet"]) == 0
    line, path = capsys.readouterr().out.splitlines()
    assert line.startswith("complete: t = 0.2,") and "mass drift" in line and "energy residual" in line
    assert path == "small.nc"
    assert main(["info", "small.nc"]) == 0
    text = capsys.readouterr().out
    for word in ("A small run", "complete", "16 x 32", "2 heads", "finite-volume", "mass drift", "energy residual"):
        assert word in text
    assert main(["info", "small.nc", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == "complete" and summary["records"] == 3 and summary["mass_drift"] < 1e-12


def test_what_a_run_leaves_behind(case):
    assert main(["run", str(case), "--quiet"]) == 0
    with xr.open_dataset("small.nc") as run:
        assert run.t.values.tolist() == [0.0, 0.1, 0.2]
        for name in ("density", "potential", "effective_mobility", "first_variation", "velocity_east", "velocity_north"):
            assert run[name].dims == ("t", "lat", "lon") and np.isfinite(run[name]).all()
        total = (run.density * run.cell_area).sum(["lat", "lon"])
        assert np.allclose(total, 1.0, rtol=0, atol=1e-12)
        assert run.logits.dims == ("t", "head", "row", "col")
        assert float(run.edi_residual[-1]) != 0 and abs(float(run.edi_residual[-1])) < 1e-3
        assert run.attrs["sphereflow_status"] == "complete" and "nlat = 16" in run.attrs["sphereflow_case"]


def test_output_exists(case, capsys):
    assert main(["run", str(case), "--quiet"]) == 0
    before = (case.parent / "small.nc").read_bytes()
    assert main(["run", str(case), "--quiet"]) == 4
    assert "small.nc" in capsys.readouterr().err
    assert (case.parent / "small.nc").read_bytes() == before
    assert main(["run", str(case), "--quiet", "--force", "--set", "title='second'"]) == 0
    assert (case.parent / "small.nc.bak").read_bytes() == before
    with xr.open_dataset("small.nc") as run:
        assert run.attrs["title"] == "second"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("grid.nlatt=32", "grid.nlatt: unknown key; did you mean nlat?"),
        ("grid.nlat=15", "grid.nlat: 15"),
        ("solver.t_end=0", "solver.t_end: 0"),
        ("output.every=7", "output.every"),
        ("heads.initial='file.npz'", "heads.initial"),
        ("model.backend='fftw'", "model.backend"),
        ("initial.kappa=0", "initial.kappa"),
        ("initial.kappa=1e6", "kappa"),
    ],
)
def test_bad_settings_exit_with_2_and_write_nothing(case, capsys, setting, words):
    assert main(["run", str(case), "--quiet", "--set", setting]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert sorted(p.name for p in case.parent.iterdir()) == ["small.toml"]


NOT_A_NUMBER = float("nan")
EXPERTS_FILE = {"mean": np.eye(3)[:2], "kappa": np.ones(2), "gate": np.zeros((2, 3))}
MLP_FILE = {"w1": np.ones((2, 3)), "b1": np.ones(2), "w2": np.ones((3, 2)), "b2": np.ones(3)}
TABLE_FILE = {"t": [0.0, 0.1, 0.2], "logits": np.ones((3, 2, 3, 3))}
EXPERTS, MLP = 'model.experts_file="arrays.npz"', 'model.mlp={file="arrays.npz"}'
TABLE = 'heads={schedule="table",file="arrays.npz",interpolation="step"}'
MOVEMENT = "solver={kind='minimizing-movement',t_end=0.1}"
ROTATION = "[[0,1,0],[-1,0,0],[0,0,1]]"
SVFLOW = "heads={kind='svflow',kappa=%s}"


@pytest.mark.parametrize(
    ("settings", "arrays", "words"),
    [
        (['heads.values="arrays.npz"'], {"values": np.ones((3, 3, 3))}, "shape (3, 3, 3); expected (2, 3, 3)"),
        (['heads.values="arrays.npz"'], {"values": np.ones((2, 4, 4))}, "shape (2, 4, 4); expected (2, 3, 3)"),
        ([TABLE], TABLE_FILE | {"values": np.ones((3, 1, 3, 3))}, "shape (3, 1, 3, 3); expected (3, 2, 3, 3)"),
        ([EXPERTS], EXPERTS_FILE | {"gate": np.zeros((2, 4))}, "the experts' gate has shape (2, 4); expected (2, 3)"),
        ([EXPERTS], EXPERTS_FILE | {"mean": np.eye(4)[:2], "gate": np.zeros((2, 4))},
         "arrays.npz: the experts' mean has shape (2, 4); expected (2, 3) for tokens in dimension d = 3"),
        ([MLP], MLP_FILE | {"b2": np.ones(2)}, "arrays.npz: the perceptron's b2 has shape (2,); expected (3,)"),
        ([MLP], MLP_FILE | {"w1": np.ones((2, 4)), "w2": np.ones((4, 2)), "b2": np.ones(4)},
         "arrays.npz: the perceptron's w1 has shape (2, 4); expected (2, 3) for tokens in dimension d = 3"),
        ([SVFLOW % "-1.0"], {}, "heads.kappa: -1.0 is not allowed; must be >= 0"),
        (["model.experts=[{mean=[1,0,0],kappa=-2.0}]"], {}, "model.experts[0].kappa: -2.0 is not allowed; must be >= 0"),
        ([EXPERTS], EXPERTS_FILE | {"kappa": np.array([1.0, -2.0])}, "arrays.npz: kappa of expert 1 is -2; must be >= 0"),
        (['model.mlp={file="arrays.npz",activation="swish"}'], MLP_FILE,
         'model.mlp.activation: "swish" is not allowed; must be one of relu, gelu, tanh'),
        (["model.experts=[{mean=[1,0,0],kappa=2.0,gate=[nan,0,0]}]"], {}, "model.experts[0].gate[0]: nan is not allowed"),
        ([EXPERTS], EXPERTS_FILE | {"gate": np.full((2, 3), NOT_A_NUMBER)},
         "arrays.npz: the experts' gate has the non-finite entry nan at index (0, 0)"),
        ([TABLE], TABLE_FILE | {"t": [0.0, 0.2, 0.1]}, "array 't' must increase strictly; t[1] = 0.2, t[2] = 0.1"),
        ([MOVEMENT, SVFLOW % "1.0,posterior='attention'"], {}, "follow no energy that a step could minimise"),
        ([MOVEMENT, f"heads={{matrices=[{ROTATION}],values=[{ROTATION}]}}"], {}, "follow no energy that a step could minimise"),
        ([MOVEMENT, f"heads={{matrices=[{ROTATION}]}}"], {}, "the logit matrix is not symmetric: it is not the gradient flow"),
        ([MOVEMENT, "model.experts=[{mean=[1,0,0],kappa=2.0}]"], {}, "a local drift is not the gradient of the energy"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [["validate"], ["run", "--quiet"]])
def test_bad_heads_and_drifts_exit_with_2_and_write_nothing(case, capsys, command, settings, arrays, words):
    if arrays:
        np.savez("arrays.npz", **arrays)
    there = sorted(case.parent.iterdir())
    overrides = [part for setting in settings for part in ("--set", setting)]
    assert main([*command, str(case), *overrides]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and "Traceback" not in printed.err and not printed.out
    assert sorted(case.parent.iterdir()) == there


@pytest.mark.parametrize("scale", ["2000.0", "1e20"])
def test_a_run_whose_energy_overflows_ends_with_a_warning(case, capsys, scale):
    """Tokens under logits of norm 2000 move all the same; their energy is no number."""
    tokens = ["--set", "solver={kind='particles',count=5,t_end=0.2,dt=0.1}", "--set", "output.fields=['position']"]
    heads = ["--set", f"heads={{initial='identity',scale={scale}}}"]
    assert main(["run", str(case), "--quiet", *tokens, *heads]) == 0
    printed = capsys.readouterr()
    assert "E unknown -> unknown" in printed.out and "complete (warning: energy residual unknown" in printed.err
    assert main(["run", str(case), "--quiet", "--strict", "--force", *tokens, *heads]) == 3


OVERFLOWS = [
    {"energy": [1.0, np.inf, 1.0]},
    {"energy": [1.0, np.nan, 1.0]},
    {"edi_residual": [0.0, 0.0, np.inf]},
    {"energy": [1.0, 1.0, np.inf], "edi_residual": [0.0, 0.0, np.inf]},
    {"dissipation_integral": [0.0, np.inf, np.inf]},
]


@pytest.mark.parametrize("bad", OVERFLOWS)
def test_an_overflow_at_any_record_is_told(case, bad):
    series = {"energy": [1.0, 0.9, 0.8], "mass": [1.0] * 3, "edi_residual": [0.0] * 3, "dissipation_integral": [0.0, 0.1, 0.2]}

    def status(series):
        return judge(load_case(case), SimpleNamespace(series=lambda name: np.array(series[name])))

    assert status(series) == "complete"
    assert status(series | bad) == (
        "complete (warning: energy residual unknown, as energies are beyond the range of floating-point numbers)"
    )


def test_densities_whose_energy_overflows_end_with_the_same_warning(case, capsys):
    heads = ["--set", "heads={initial='identity',scale=800.0}"]
    short = ["--set", "grid.nlat=8", "--set", "initial.kappa=3.0", "--set", "solver.t_end=1e-3", "--set", "output.every=1e-3"]
    assert main(["run", str(case), "--quiet", *short, *heads]) == 0
    printed = capsys.readouterr()
    assert "E unknown -> unknown" in printed.out and "complete (warning: energy residual unknown" in printed.err
    assert main(["run", str(case), "--quiet", "--strict", "--force", *short, *heads]) == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.velocity='unnormalized'", "heads={initial='identity',scale=1e5}"], "the velocity of token 0 became"),
        (["model.experts=[{mean=[1,0,0],kappa=1e100}]", "model.residual_scale=1e100"], "the position of token 0 became"),
    ],
)
def test_tokens_without_a_velocity_or_position_exit_with_3(case, capsys, settings, words):
    """Steps so long that their square overflows would put tokens into the origin."""
    settings = ["solver={kind='particles',count=5,t_end=0.2,dt=0.1}", "output.fields=['position']", *settings]
    assert main(["run", str(case), "--quiet", *(part for s in settings for part in ("--set", s))]) == 3
    error = capsys.readouterr().err
    assert words in error and "step" in error and "t = 0" in error


PARTICLES = "solver={kind='particles',count=5,t_end=0.2,dt=0.1}"
FINITE_VOLUME = "solver={kind='finite-volume',t_end=0.2}"


@pytest.mark.parametrize("solver", [PARTICLES, FINITE_VOLUME, MOVEMENT])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["heads.scale=1e300"], "heads.scale: 1e+300 is not allowed; must be at most 1e+100 in size"),
        (["heads={scale=1e99,matrices=[[[1e9,0,0],[0,1,0],[0,0,1]]]}"], "heads: logit matrices: an entry is 1e+108 in size"),
        (["heads={file='arrays.npz'}"], "heads: logit matrices: an entry is 1e+300 in size; must be at most 1e+100"),
        (["heads={schedule='ornstein-uhlenbeck',rate=1e9,mean=[[1e99,0,0],[0,1,0],[0,0,1]],noise_var=0}"],
         "heads: rates of the logit matrices: an entry is 1e+108 in size"),
        (["output.every=1e-320"], "output.every: 1e-320 is not allowed; must be at least 1e-100"),
        (["solver.t_end=1e308"], "solver.t_end: 1e+308 is not allowed; must be at most 1e+100 in size"),
        (["output.checkpoint_every=1e308"], "output.checkpoint_every: 1e+308 is not allowed; must be at most"),
        (["solver.t_end=1e-320"], "solver.t_end: 1e-320 is not allowed; must be at least 1e-100"),
    ],
)  # fmt: skip
def test_numbers_too_large_to_compute_with_exit_with_2_and_write_nothing(case, capsys, solver, settings, words):
    np.savez("arrays.npz", logits=np.full((1, 3, 3), 1e300))
    there = sorted(case.parent.iterdir())
    fields = "output.fields=[]"
    overrides = [part for setting in (solver, fields, *settings) for part in ("--set", setting)]
    for command in ("validate", "run"):
        assert main([command, str(case), *overrides]) == 2
        printed = capsys.readouterr()
        assert words in printed.err and "Traceback" not in printed.err and not printed.out
    assert sorted(case.parent.iterdir()) == there


LARGE = [
    (FINITE_VOLUME, "grid.nlat=10000000", "10000000 is too large for this machine: the run needs at least 3.20e+7 GB"),
    (MOVEMENT, "grid.nlat=10000000", "grid.nlat: 10000000 is too large"),
    (MOVEMENT, "solver.inner_steps=1000000000", "solver.inner_steps: 1000000000 is too large"),
    (PARTICLES, "solver.count=1000000000000", "solver.count: 1000000000000 is too large"),
    (PARTICLES, "solver.count=1" + 400 * "0", "solver.count: 1.00e+400 is too large"),
    ("solver={kind='particles',quadrature=true,t_end=0.2}", "grid.nlat=10000000", "grid.nlat: 10000000 is too large"),
    (PARTICLES, "output.every=1e-9", "1e-09 is not allowed, it makes 2e+08 records; must be >= 2e-08 = solver.t_end/1e+07"),
    (PARTICLES, "solver.dt=1e-99", "1e-99 is not allowed, it makes 2e+98 steps; must be >= 2e-13 = solver.t_end/1e+12"),
    (MOVEMENT, "solver.tau=1e-99", "solver.tau: 1e-99 is not allowed"),
    (FINITE_VOLUME, "solver.dt=1e-99", "solver.dt: 1e-99 is not allowed"),
]


@pytest.mark.parametrize(("solver", "setting", "words"), LARGE, ids=lambda value: value[:40])
@pytest.mark.parametrize("command", [["validate"], ["run", "--quiet"]])
def test_runs_too_large_for_any_machine_exit_with_2_at_once(case, capsys, command, solver, setting, words):
    settings = [solver, "output.fields=[]", "heads={initial='identity'}", setting]
    assert main([*command, str(case), *(part for s in settings for part in ("--set", s))]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    if "too large" in words:
        assert "GB of memory, and there are " in error
    assert sorted(p.name for p in case.parent.iterdir()) == ["small.toml"]


@pytest.mark.parametrize("amplitude", ["-9.0", "9.0", "1e19"])
@pytest.mark.parametrize("solver", [PARTICLES, FINITE_VOLUME, "solver={kind='particles',quadrature=true,t_end=0.2}"])
def test_no_solver_starts_from_a_negative_density(case, capsys, solver, amplitude):
    settings = [solver, f"initial={{kind='harmonic',degree=2,amplitude={amplitude}}}", "output.fields=[]"]
    assert main(["run", str(case), *(part for s in settings for part in ("--set", s))]) == 2
    error = capsys.readouterr().err
    assert "initial.amplitude" in error and "makes the density negative" in error and "largest" in error


def test_unreadable_case_files(tmp_path, capsys):
    assert main(["run", str(tmp_path / "absent.toml")]) == 2
    assert "absent.toml" in capsys.readouterr().err
    broken = tmp_path / "broken.toml"
    broken.write_text("schema = 1\n[grid\n")
    assert main(["validate", str(broken)]) == 2
    assert "line 2" in capsys.readouterr().err


def test_output_folder_missing(case, capsys):
    assert main(["run", str(case), "--quiet", "-o", "no/such/folder/a.nc"]) == 4
    assert "no/such/folder" in capsys.readouterr().err
    assert sorted(p.name for p in case.parent.iterdir()) == ["small.toml"]


def test_numerical_failure_exits_with_3_and_leaves_a_readable_file(case, capsys):
    """The plain gradient flow with logits of norm 800 overflows: the message says where, the file still opens."""
    overflow = ["--set", "model.velocity='unnormalized'", "--set", "heads.scale=400.0"]
    assert main(["run", str(case), "--quiet", *overflow]) == 3
    error = capsys.readouterr().err
    assert "step" in error and "t = " in error
    with sphereflow.open_run("small.nc") as run:
        assert run.attrs["sphereflow_status"].startswith("failed: ")
        assert run.sizes["t"] >= 1


def test_fixed_step_beyond_stability_exits_with_3(case, capsys):
    assert main(["run", str(case), "--quiet", "--set", "solver.dt=0.1", "--set", "heads.scale=5.0"]) == 3
    assert "stability bound" in capsys.readouterr().err


def test_validate_prints_the_resolved_case(case, capsys):
    assert main(["validate", str(case)]) == 0
    printed = capsys.readouterr()
    assert "tolerance = 1e-10" in printed.out and "valid" in printed.err
    case.with_name("again.toml").write_text(printed.out)
    assert main(["validate", "again.toml"]) == 0
    assert capsys.readouterr().out == printed.out
    assert not (case.parent / "small.nc").exists()


def test_backends(capsys):
    assert main(["backends"]) == 0
    text = capsys.readouterr().out
    assert "ducc0" in text and "self-test passed" in text and "auto" in text
    assert main(["backends", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["auto"] in ("shtns", "ducc0")


def test_info_of_something_else(case, capsys):
    assert main(["info", str(case)]) == 4
    assert "small.toml" in capsys.readouterr().err


def test_python_interface(case):
    with sphereflow.run(case, "other.nc", overrides=["solver.t_end=0.1"]) as run:
        assert run.sizes["t"] == 2 and run.attrs["sphereflow_status"] == "complete"
    with pytest.raises(OutputError, match=r"other\.nc"):
        sphereflow.run(case, "other.nc")
    with pytest.raises(CaseError, match="threads"):
        sphereflow.run(case, "third.nc", threads=0)
    with pytest.raises(NumericalError):
        sphereflow.run(case, "fourth.nc", overrides=["solver.dt=0.2", "output.every=0.2", "heads.scale=5.0"])


def test_threads_do_not_change_the_result(case):
    import numba

    densities = []
    for name, threads in (("one", 1), ("more", min(2, numba.config.NUMBA_NUM_THREADS))):
        with sphereflow.run(case, f"{name}.nc", threads=threads) as run:
            densities.append(run.density.values)
    assert np.array_equal(densities[0], densities[1])


def test_weights_in_the_file_are_the_weights_of_the_run(case):
    from sphereflow.storage import read_weight_path

    with sphereflow.run(case) as run:
        path = read_weight_path("small.nc")
        for k, t in enumerate(run.t.values):
            assert np.array_equal(run.logits.values[k], path.logits_at(t))


def test_help_is_quick_to_import():
    """The command line loads numpy, numba and xarray only when a command needs them."""
    code = "import sys, sphereflow.cli; sys.exit(any(m in sys.modules for m in ('numpy', 'numba', 'xarray', 'pydantic')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_module_runs_as_a_program(case):
    done = subprocess.run(
        [sys.executable, "-m", "sphereflow.cli", "run", str(case), "--set", "output.file='p.nc'"],
        capture_output=True, text=True, cwd=case.parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "p.nc"
    assert done.stderr == ""


@pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_end_nothing(case, redirect):
    command = f"{sys.executable} -m sphereflow.cli run {case} -o run.nc --quiet {redirect}"
    assert subprocess.run(command, shell=True).returncode == 0
    assert run_summary("run.nc")["status"] == "complete"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_standard_output_is_an_output_error(case):
    done = subprocess.run(
        f"{sys.executable} -m sphereflow.cli validate {case} > /dev/full", shell=True, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "sphereflow: standard output: No space left on device"


def test_what_info_does_not_know_it_leaves_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokens.csv").write_text("t,x,y,z\n0,1,0,0\n0,0,1,0\n1,1,0,0\n1,0,0,1\n")
    assert main(["import", "tokens.csv", "-o", "tokens.nc"]) == 0
    capsys.readouterr()
    assert main(["info", "tokens.nc"]) == 0
    text = capsys.readouterr().out
    assert "None" not in text and "unknown" not in text and "2 from t = 0 to 1" in text


def test_minimising_movements_are_told_by_their_slack(case, capsys):
    movement = ["--set", "solver={kind='minimizing-movement',t_end=0.1,tau=0.05}", "--set", "heads={initial='identity'}"]
    assert main(["run", str(case), "--quiet", *movement, "--set", "output.fields=['density']"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert "least slack" in line and "residual" not in line
    assert main(["info", "small.nc"]) == 0
    assert "of first order in tau" in capsys.readouterr().out


def test_views_may_begin_with_a_minus_sign(case, capsys):
    assert main(["run", str(case), "--quiet"]) == 0
    assert main(["plot", "small.nc", "--what", "density", "--view", "-40,30", "-o", "a.png"]) == 0
    assert main(["plot", "small.nc", "--what", "density", "--view=-40,30", "-o", "b.png"]) == 0
    assert (case.parent / "a.png").read_bytes() == (case.parent / "b.png").read_bytes()


def compressed_chunks(content):
    """Where the zlib streams of a file begin and end."""
    for start in (found.start() for found in re.finditer(b"\x78\x01", content)):
        stream = zlib.decompressobj()
        with contextlib.suppress(zlib.error):
            if len(stream.decompress(content[start:])) > 1000 and stream.eof:
                yield start, len(content) - len(stream.unused_data)


@pytest.mark.parametrize("command", [["plot"], ["report", "-o", "page.html"], ["animate"], ["compare", "small.nc"]])
def test_damage_that_only_reading_meets_is_an_output_error(case, capsys, command):
    fields = ["--set", "output.fields=['density']"]
    assert main(["run", str(case), "--quiet", *fields]) == 0
    capsys.readouterr()
    content = bytearray((case.parent / "small.nc").read_bytes())
    chunks = list(compressed_chunks(bytes(content)))
    assert len(chunks) == 3  # the records of the density
    for start, end in chunks:
        content[start + 50 : end - 50] = bytes(end - start - 100)
    (case.parent / "broken.nc").write_bytes(content)
    name, *rest = command
    assert main([name, "broken.nc", *rest]) == 4
    assert re.search(r"broken.nc.*: is damaged: NetCDF: HDF error", capsys.readouterr().err)
    assert sorted(path.name for path in case.parent.iterdir()) == ["broken.nc", "small.nc", "small.toml"]
