"""The scripts of postprocess/ that take any run or ensemble: what they compute, draw, write and refuse."""

import csv
import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from ensemble_samples import CASE, workers_here

from sphereflow import run
from sphereflow.ensemble import run_ensemble
from sphereflow.errors import CaseError

FOLDER = Path(__file__).parents[1] / "postprocess"
NAMES = ("against_time", "energy_balance", "head_scaling", "snapshots")
KINDS = {  # fmt: skip
    "density": ["grid.nlat=16"],
    "tokens": ["solver.kind=particles", "solver.count=40", "solver.dt=0.05"],
    "movements": [
        "grid.nlat=16", "model.tolerance=1e-4", "heads.initial=identity", "heads.noise_var=0", "model.velocity=gradient-flow",
        "solver.kind=minimizing-movement", "solver.tau=0.05",
    ],
    "svflow": ["grid.nlat=16", "model.direction=ascend", "heads.schedule=frozen", "heads.kind=svflow", "heads.kappa=2"],
}


@pytest.fixture(scope="module")
def scripts():
    """The scripts as modules, by name."""
    sys.path.insert(0, str(FOLDER))
    loaded = {}
    for name in ("_common", *NAMES):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        loaded[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    yield SimpleNamespace(**loaded)
    sys.path.remove(str(FOLDER))
    for name in loaded:
        del sys.modules[name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the case, an ensemble of it, and a run of each kind."""
    folder = tmp_path_factory.mktemp("postprocess")
    case = folder / "case.toml"
    case.write_text(CASE)
    with workers_here() as scheduler:
        run_ensemble(case, members=2, vary={"heads.count": [1, 2, 4]}, folder=folder / "heads", scheduler=scheduler)
    for name, overrides in KINDS.items():
        drop = ["heads.noise_var", "heads.step", "heads.initial"] if name == "svflow" else []
        text = "\n".join(line for line in CASE.splitlines() if f"heads.{line.split(' ')[0]}" not in drop)
        (folder / f"{name}.toml").write_text(text)
        run(folder / f"{name}.toml", folder / f"{name}.nc", overrides=overrides).close()
    return folder


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def made(stem):
    """The picture and the page that a script has written."""
    png, pdf = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".pdf")
    assert png.read_bytes().startswith(b"\x89PNG") and png.stat().st_size > 10_000
    assert pdf.read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_is_read_and_written(name, scripts, capsys):
    with pytest.raises(SystemExit) as end:
        getattr(scripts, name).main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert end.value.code == 0 and "NAME.png" in text and "ensemble" in text


@pytest.mark.parametrize("name", NAMES)
def test_ensemble_is_drawn(name, scripts, folder, tmp_path, capsys):
    out = tmp_path / "picture"
    more = ["--members", "1"] if name == "snapshots" else []
    assert getattr(scripts, name).main([str(folder / "heads"), "-o", str(out), *more]) == 0
    for stem in [tmp_path / f"picture_{k}" for k in (1, 2, 3)] if name == "snapshots" else [out]:
        made(stem)
    printed = capsys.readouterr().out
    assert str(out) in printed and len(rows(f"{out}.csv")) >= 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["against_time", "energy_balance", "snapshots"])
def test_run_of_any_kind_is_drawn(kind, name, scripts, folder, tmp_path):
    assert getattr(scripts, name).main([str(folder / f"{kind}.nc"), "-o", str(tmp_path / "picture")]) == 0
    made(tmp_path / "picture")


def test_nothing_is_overwritten_without_force(scripts, folder, tmp_path, capsys):
    words = [str(folder / "density.nc"), "-o", str(tmp_path / "picture")]
    assert scripts.energy_balance.main(words) == 0
    before = (tmp_path / "picture.png").read_bytes()
    assert scripts.energy_balance.main(words) == 4
    assert "picture.png" in capsys.readouterr().err and (tmp_path / "picture.png").read_bytes() == before
    assert scripts.energy_balance.main([*words, "--force"]) == 0 and (tmp_path / "picture.png.bak").exists()


REFUSED = [
    ("head_scaling", ["heads", "--key", "grid.nlat"], "the runs differ in heads.count too"),
    ("head_scaling", ["density.nc"], "heads.count: is 2 in all runs"),
    ("head_scaling", ["heads", "--quantities", "speed"], "holds no speed; its quantities are .*energy"),
    ("head_scaling", ["heads", "--start", "0.2"], "fewer than two records from t = 0.2"),
    ("against_time", ["heads", "--quantities", "second_moment"], "second_moment has the dimensions"),
    ("against_time", ["heads", "--period", "3"], "--period: 3 is not allowed"),
    ("energy_balance", ["heads", "--abscissa", "solver.dt"], "--abscissa: solver.dt is the same in all runs"),
    ("snapshots", ["heads", "--most", "2"], "there are 6 runs for 2 pages"),
    ("snapshots", ["density.nc", "--what", "potential"], 'holds no potential; .*output.fields = \\["density", "potential"\\]'),
    ("snapshots", ["density.nc", "--times", "7"], "there is no time 7"),
    ("energy_balance", ["nothing.nc"], "nothing.nc"),
    ("against_time", ["case.toml"], "case.toml"),
]


@pytest.mark.parametrize(("name", "words", "message"), REFUSED)
def test_what_cannot_be_drawn_is_refused_with_the_reason(name, words, message, scripts, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert getattr(scripts, name).main([*words, "-o", str(tmp_path / "picture")]) in (2, 4)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)
    assert not list(tmp_path.iterdir())


def test_power_law_is_found_with_its_interval(scripts):
    rng, x = np.random.default_rng(5), np.array([1.0, 2.0, 5.0, 10.0, 20.0, 50.0])
    samples = {"q": [value**-0.8 * rng.lognormal(-0.02, 0.2, 40) for value in x]}
    (row,) = scripts.head_scaling.fits(x, samples, -1.0)
    for name, width in (("exponent", 0.06), ("exponent_largest", 0.2)):
        low, high = row[f"{name}_low"], row[f"{name}_high"]
        assert low < row[name] < high and width / 2 < high - low < width
        assert row[name] == pytest.approx(-0.8, abs=high - low)
    samples = {"q": [(3 - 2 / value) / value * rng.lognormal(-0.0002, 0.02, 40) for value in x]}
    (row,) = scripts.head_scaling.fits(x, samples, -1.0)
    assert row["limit"] == pytest.approx(3, abs=0.02) and row["limit_low"] < 3 < row["limit_high"]


def test_late_means_are_those_of_the_second_half(scripts):
    t = np.linspace(0, 4, 41)
    made_up = xr.Dataset({"energy": ("t", np.where(t < 2, 100.0, t))}, {"t": t})
    assert scripts._common.late_mean(made_up, "energy") == pytest.approx(3)
    assert scripts._common.late_mean(made_up, "energy", 3.0) == pytest.approx(3.5)


def test_power_law_in_time(scripts):
    t = np.linspace(0, 60, 6001)
    values = (1 + t) ** -1.5 * (1 + 0.9 * np.cos(2 * t))
    assert scripts.against_time.slope(t, values, np.pi) == pytest.approx(-1.5, abs=1e-2)
    assert np.isnan(scripts.against_time.slope(t, values - 1, np.pi))
    with pytest.raises(CaseError, match="there are 2 periods of 12; three are needed"):
        scripts.against_time.slope(t, values, 12.0)


def test_harmonics_of_a_drifting_oscillation(scripts):
    t = np.linspace(0, 20, 401)
    values = 3 + 0.2 * t + 0.5 * np.cos(2 * t + 1) + 1e-3 * np.sin(6 * t)
    found = scripts.against_time.harmonics(t, values, 2 * np.pi)
    expected = np.zeros(12)
    expected[[1, 5]] = 0.5, 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_balance_closes_with_p_and_leaves_what_g2_is_off(scripts, folder):
    with scripts._common.opened([folder / "density.nc"]) as (single,):
        found = scripts.energy_balance.balance(single)
        change = float(single.energy[-1] - single.energy[0] - single.weight_work[-1])
    assert abs(found["residual_P"]) < 1e-2 < abs(found["residual_G2"])
    assert found["residual_G2"] == pytest.approx(1 + change / found["G2"])


def test_balance_of_an_ascending_flow_has_the_other_sign(scripts, folder):
    """One head with the exact posterior ascends log p = log m + constant: G^2 balances the energy, dE/dt = + G^2."""
    with scripts._common.opened([folder / "svflow.nc"]) as (single,):
        found = scripts.energy_balance.balance(single)
        assert scripts.energy_balance.direction(single) == 1 and found["change"] > 0
        assert abs(found["residual_G2"]) < 0.1
        with pytest.raises(CaseError, match="holds no nothing"):
            scripts._common.series(single, "nothing")


def test_runs_are_grouped_by_what_differs(scripts, folder):
    with scripts._common.opened([folder / "heads"]) as runs:
        assert scripts._common.varied(runs) == ["heads.count"]
        found = scripts._common.groups(runs, ["heads.count"])
        assert {key: len(some) for key, some in found.items()} == {(1,): 2, (2,): 2, (4,): 2}
