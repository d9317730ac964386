"""Particle cases from the file to the output: the schema's refusals, the records, the command line."""

import numba
import numpy as np
import pytest
import xarray as xr

import sphereflow
from sphereflow.case import parse_case
from sphereflow.cli import main
from sphereflow.errors import CaseError
from sphereflow.storage import read_weight_path, run_summary

CASE = """
[heads]
count = 2
schedule = "oscillating"
initial = "gaussian-symmetric"
seed = 3
[initial]
kind = "octahedron"
[solver]
kind = "particles"
count = 40
dt = 0.05
t_end = 0.2
[output]
every = 0.1
"""


def error_of(*overrides):
    with pytest.raises(CaseError) as caught:
        parse_case(CASE, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["solver.count=0"], "solver.count: 0 is not allowed; must be >= 1"),
        (["solver.count=2.5"], "solver.count: 2.5 is not allowed; must be an integer >= 1"),
        (["solver.dt=0"], "solver.dt: 0 is not allowed; must be > 0"),
        (["solver.scheme=rk5"], "must be one of rk4, euler; did you mean rk4?"),
        (["solver.cfl=0.3"], 'the key must be removed, it belongs to kind = "finite-volume"'),
        (["solver.seed=-1"], "solver.seed: -1 is not allowed; must be >= 0"),
        (["model.dimension=1"], "model.dimension: 1 is not allowed; must be >= 2"),
        (["model.diffusion=0.1"], "whose tokens move without noise; must be 0"),
        (["solver.quadrature=true"], "solver.count: 40 is not allowed together with solver.quadrature = true"),
        (["output.fields=['density']"], '"density" is not allowed with solver.kind = "particles"; must be of position'),
        (["model.dimension=5"], 'initial.kind: "octahedron" is not allowed with model.dimension = 5'),
        (["initial.kind=vertices", "initial.clusters=3"], "it is for the circle (dimension = 2)"),
    ],
)
def test_particle_keys_that_do_not_fit(overrides, text):
    assert text in error_of(*overrides)


@pytest.mark.parametrize("kind", ["finite-volume", "minimizing-movement"])
def test_density_solvers_refuse_other_dimensions_and_positions(kind):
    case = {
        "model": {"dimension": 2, "velocity": "gradient-flow"}, "initial": {"kind": "uniform"},
        "output": {"fields": ["position"]}, "solver": {"kind": kind, "t_end": 1.0},
    }  # fmt: skip
    with pytest.raises(CaseError) as caught:
        parse_case(case)
    text = str(caught.value)
    assert f'model.dimension: 2 is not allowed with solver.kind = "{kind}"; must be 3, or set solver.kind' in text
    assert f'output.fields: "position" is not allowed with solver.kind = "{kind}"' in text


def test_matrices_and_centres_have_the_dimension_of_the_model():
    five = np.eye(5).tolist()
    case = {
        "model": {"dimension": 5}, "heads": {"matrices": [five]}, "solver": {"kind": "particles", "t_end": 1.0},
        "initial": {"kind": "vmf-mixture", "centers": [[1, 0, 0, 0, 0]], "kappa": 3.0},
    }  # fmt: skip
    assert np.shape(parse_case(case).heads.matrices) == (1, 5, 5)
    with pytest.raises(CaseError, match="must be a 3x3 matrix: 3 rows of 3 numbers") as caught:
        parse_case({**case, "model": {}})
    assert "must be a vector of 3 numbers" in str(caught.value)
    case["heads"] = {"matrices": [np.eye(3).tolist()], "schedule": "oscillating", "values": "identity"}
    with pytest.raises(CaseError, match=r"heads.matrices\[0\]: .* must be a 5x5 matrix: 5 rows of 5 numbers"):
        parse_case(case)
    skew = np.eye(5)
    skew[3, 4] = 1.0
    case["heads"]["matrices"] = [skew.tolist()]
    with pytest.raises(CaseError, match=r"entry \[3\]\[4\] = 1.0 but entry \[4\]\[3\] = 0.0; must be symmetric"):
        parse_case(case)


def test_defaults_of_particle_cases(tmp_path):
    solver = {"kind": "particles", "t_end": 1.0}
    case = parse_case({"initial": {"kind": "uniform"}, "solver": solver})
    assert (case.solver.count, case.solver.scheme, case.output.fields) == (1000, "rk4", ("position",))
    assert parse_case(case.to_toml()) == case
    (tmp_path / "t.csv").write_text("1,0,0\n")
    tokens = parse_case({"initial": {"kind": "tokens", "file": str(tmp_path / "t.csv")}, "solver": solver})
    assert tokens.solver.count is None
    assert parse_case({"initial": {"kind": "uniform"}, "solver": {**solver, "quadrature": True}}).solver.count is None
    assert parse_case({"initial": {"kind": "uniform"}, "solver": {"t_end": 1.0}}).output.fields == ("density",)


def run(tmp_path, *overrides, name="run.nc"):
    (tmp_path / "case.toml").write_text(CASE)
    output = tmp_path / name
    sphereflow.run(tmp_path / "case.toml", output, overrides=overrides).close()
    return output


def test_particle_file(tmp_path):
    with xr.open_dataset(run(tmp_path)) as found:
        assert found.position.dims == ("t", "particle", "xyz")
        assert found.position.shape == (3, 40, 3)
        np.testing.assert_allclose(np.linalg.norm(found.position, axis=2), 1.0, atol=1e-15)
        np.testing.assert_allclose(found.particle_weight, 1 / 40)
        np.testing.assert_allclose(found.mean_z, found.position[:, :, 2].mean("particle"), atol=1e-15)
        kernel = np.exp(np.einsum("tia,thab,tjb->thij", found.position, found.logits, found.position))
        np.testing.assert_allclose(found.energy, 0.5 * kernel.mean(axis=(1, 2, 3)), rtol=1e-12)
        balance = found.energy - found.energy[0] - found.weight_work + found.dissipation_integral
        np.testing.assert_allclose(found.edi_residual, balance, atol=1e-13)
        assert abs(found.edi_residual[-1]) < 1e-4
        assert not {"entropy", "density", "cluster_count"} & set(found.variables)
        assert found.attrs["summary"].startswith("40 tokens on the sphere S^2")
        assert found.attrs["sphereflow_token_seed"] == "0"


def test_tokens_and_density_share_their_weights(tmp_path):
    tokens = read_weight_path(run(tmp_path))
    density = ["solver={kind='finite-volume',t_end=0.2}", "grid.nlat=24", "initial.kappa=5"]
    other = read_weight_path(run(tmp_path, *density, name="density.nc"))
    np.testing.assert_array_equal(tokens.logits, other.logits)
    again = read_weight_path(run(tmp_path, "solver.count=7", "solver.seed=5", name="more.nc"))
    np.testing.assert_array_equal(again.logits, tokens.logits)


def test_other_dimensions_and_options_of_a_run(tmp_path):
    circle = ["model.dimension=2", "initial.kind=vertices", "initial.clusters=5"]
    with xr.open_dataset(run(tmp_path, *circle)) as found:
        assert found.position.shape == (3, 40, 2)
        assert "mean_y" in found and "mean_z" not in found and found.second_moment.shape == (3, 2, 2)
    noisy = [
        "model.dimension=5", "initial.kind=vertices", "heads.schedule=ornstein-uhlenbeck", "heads.values=identity",
        "output.fields=[]",
    ]  # fmt: skip
    with xr.open_dataset(run(tmp_path, *noisy, name="five.nc")) as found:
        assert found["mean"].dims == ("t", "row") and "position" not in found
        assert np.isfinite(found.weight_martingale).all() and found["values"].shape == (3, 2, 5, 5)
        parts = found.weight_drift + found.weight_ito + found.weight_martingale
        np.testing.assert_allclose(parts, found.weight_work, atol=1e-14)


def test_runs_repeat_exactly_whatever_the_threads(tmp_path):
    many = ["solver.count=600"]
    first = xr.load_dataset(run(tmp_path, *many))
    threads = min(2, numba.config.NUMBA_NUM_THREADS)
    sphereflow.run(tmp_path / "case.toml", tmp_path / "again.nc", overrides=many, threads=threads).close()
    second = xr.load_dataset(tmp_path / "again.nc")
    np.testing.assert_array_equal(first.position, second.position)
    other = xr.load_dataset(run(tmp_path, *many, "solver.seed=1", name="seed.nc"))
    assert not np.allclose(first.position[0], other.position[0])


def test_tokens_of_a_file(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("x,y,z,weight\n1,0,0,1\n0,0.6,0.8,3\n")
    tokens = ["initial={kind='tokens',file='t.csv'}", "solver={kind='particles',t_end=0.2}"]
    with xr.open_dataset(run(tmp_path, *tokens)) as found:
        np.testing.assert_allclose(found.position[0], [[1, 0, 0], [0, 0.6, 0.8]], atol=1e-15)
        np.testing.assert_allclose(found.particle_weight, [0.25, 0.75])
    (tmp_path / "t.csv").write_text("x,y,z\n1,0,0\n0,0.7,0.8\n")
    settings = [word for setting in tokens for word in ("--set", setting)]
    bad = tmp_path / "bad.nc"
    assert main(["run", str(tmp_path / "case.toml"), *settings, "-o", str(bad), "--quiet"]) == 2
    message = capsys.readouterr().err
    assert "token 1 has norm 1.063" in message and "initial.normalize = true" in message
    assert not bad.exists()
    assert main(["validate", str(tmp_path / "case.toml"), *settings]) == 2
    assert main(["validate", str(tmp_path / "case.toml"), *settings, "--set", "initial.normalize=true"]) == 0
    for text, complaint in (("x,y,z\n", "holds no tokens"), ("1,0,nan\n", "not finite"), ("1,0\n", "2 columns")):
        (tmp_path / "t.csv").write_text(text)
        assert main(["validate", str(tmp_path / "case.toml"), *settings]) == 2
        assert complaint in capsys.readouterr().err


def test_summary_of_a_particle_run(tmp_path, capsys):
    output = run(tmp_path)
    summary = run_summary(output)
    assert (summary["solver"], summary["particles"], summary["nlat"]) == ("particles", 40, None)
    assert summary["density_min"] is None and summary["mass_drift"] < 1e-14
    assert main(["info", str(output)]) == 0
    assert "particles, velocity attention, 2 heads" in capsys.readouterr().out
