"""All runs of an ensemble as one lazy dataset: what is in it, what is NaN, what is padded or left out."""

import dask
import ensemble_samples
import numpy as np
import pytest
from ensemble_samples import run_here, write_case

import sphereflow
from sphereflow.ensemble.dataset import _Stacked
from sphereflow.ensemble.manifest import Manifest
from sphereflow.errors import CaseError, OutputError


@pytest.fixture(scope="module")
def scheduler():
    with ensemble_samples.workers_here() as address:
        yield address


@pytest.fixture(scope="module")
def folder(scheduler, tmp_path_factory):
    """Two members with one, three and two heads; member 1 with two heads is not complete."""
    base = tmp_path_factory.mktemp("dataset")
    run_here(scheduler, write_case(base), base / "out", members=2, vary={"heads.count": [1, 3, 2]})
    manifest = Manifest.load(base / "out")
    manifest.runs[5] |= {"status": "failed", "error": "for the test"}
    manifest.runs[4] |= {"warning": "mass drift"}
    manifest.save()
    return base / "out"


def test_dimensions_and_coordinates(folder):
    data = sphereflow.open_ensemble(folder / "manifest.json")
    assert data.energy.dims == ("member", "heads_count", "t") and data.energy.shape == (2, 3, 3)
    assert data.density.dims == ("member", "heads_count", "t", "lat", "lon")
    assert data.heads_count.values.tolist() == [1, 3, 2] and data.heads_count.attrs["long_name"] == "heads.count"
    assert data.t.values.tolist() == [0.0, 0.1, 0.2] and data.member.values.tolist() == [0, 1]
    assert data.attrs["title"] == "Two noisy heads" and data.attrs["sphereflow_manifest"] == str(folder / "manifest.json")
    assert data.energy.attrs["long_name"] and data.cell_area.dims == ("lat", "lon")
    assert float((data.density * data.cell_area).sum(["lat", "lon"]).sel(member=0, heads_count=3, t=0.2)) == pytest.approx(1)


def test_every_value_is_that_of_the_runs_file(folder):
    data = sphereflow.open_ensemble(folder)
    manifest = Manifest.load(folder)
    for run in manifest.runs:
        one = data.sel(member=run["member"], heads_count=run["parameters"]["heads.count"])
        with sphereflow.open_run(folder / run["file"]) as found:
            assert one.member_file == str(folder / run["file"])
            for name in found.variables.keys() - {"member"}:
                values, heads = one[name].transpose(*found[name].dims), found.sizes["head"]
                if "head" in values.dims:
                    assert np.isnan(values.isel(head=slice(heads, None))).all()
                    values = values.isel(head=slice(heads))
                if run["status"] == "failed" and "t" in values.dims and name != "t":
                    assert np.isnan(values).all(), name
                else:
                    assert np.array_equal(values, found[name].values), name
    assert data.attrs["sphereflow_padded"] == "head" and "sphereflow_left_out" not in data.attrs


def test_status_of_members(folder):
    status = sphereflow.open_ensemble(folder).member_status
    assert status.sel(member=0).values.tolist() == ["complete"] * 3
    assert status.sel(member=1).values.tolist() == ["complete", "complete (warning: mass drift)", "failed: for the test"]


def test_nothing_is_read_before_it_is_needed(folder, monkeypatch):
    read = []
    whole = _Stacked._read

    def noted(self, run, times, rest, target):
        read.append((self._name, run))
        whole(self, run, times, rest, target)

    monkeypatch.setattr(_Stacked, "_read", noted)
    data = sphereflow.open_ensemble(folder)
    mean = data.energy.sel(heads_count=3).mean("member")
    field = data.density.isel(member=0, heads_count=0, t=-1)
    assert read == [] and all(dask.is_dask_collection(data[name].data) for name in ("energy", "density", "logits", "step"))
    mean.compute()
    assert sorted(read) == [("energy", (0, 1)), ("energy", (1, 1))]
    field.compute()
    assert read[2:] == [("density", (0, 0))]
    (folder / "heads.count=1_member000.nc").rename(folder / "hidden")
    try:
        with pytest.raises((OSError, OutputError)):
            data.density.isel(member=0, heads_count=0).compute()
        assert np.isfinite(data.density.isel(member=1, heads_count=0).values).all()
    finally:
        (folder / "hidden").rename(folder / "heads.count=1_member000.nc")


@pytest.mark.parametrize(
    "index",
    [
        {"t": slice(None, None, -1)},
        {"t": slice(2, 0, -2), "lat": slice(6, 1, -2), "member": [1, 0]},
        {"t": [2, 0], "lon": -1, "heads_count": slice(1, 3)},
        {"lat": slice(None, None, -3), "lon": slice(3, 3)},
        {"member": -1, "heads_count": -3, "t": 1},
    ],
)
def test_slices_equal_slices_of_the_whole(folder, index):
    density = sphereflow.open_ensemble(folder).density
    assert np.array_equal(density.isel(index).values, density.load().isel(index).values, equal_nan=True)


def test_any_number_of_threads_may_compute(folder):
    data = sphereflow.open_ensemble(folder)
    names = ["density", "logits", "energy", "mass"]
    with dask.config.set(scheduler="threads", num_workers=8):
        together = data[names].compute()
    with dask.config.set(scheduler="synchronous"):
        assert together.identical(data[names].compute())


def test_varied_grids_leave_the_fields_out_and_keep_the_series(scheduler, tmp_path):
    folder = tmp_path / "out"
    run_here(scheduler, write_case(tmp_path), folder, members=1, vary={"grid.nlat": [8, 10]})
    with pytest.warns(UserWarning, match="left out, because their coordinates differ between runs: .*density"):
        data = sphereflow.open_ensemble(folder)
    assert "density" not in data and "lat" not in data and "cell_area" not in data
    assert {"density", "cell_area", "lat", "lat_bnds"} <= set(data.attrs["sphereflow_left_out"].split(", "))
    assert np.isfinite(data.energy.values).all() and data.logits.sizes["head"] == 2
    assert data.energy.values[0, 0, 0] == pytest.approx(data.energy.values[0, 1, 0], rel=1e-4)


def test_varied_ends_share_one_time_axis(scheduler, tmp_path):
    folder = tmp_path / "out"
    vary = {"solver.t_end": [0.1, 0.25], "output.every": [0.1, 0.05]}
    run_here(scheduler, write_case(tmp_path), folder, members=1, vary=vary)
    data = sphereflow.open_ensemble(folder)
    assert np.allclose(data.t, [0, 0.05, 0.1, 0.15, 0.2, 0.25], rtol=0, atol=1e-15)
    there = np.isfinite(data.energy.isel(member=0))
    assert there.sel(solver_t_end=0.1, output_every=0.1).values.tolist() == [True, False, True, False, False, False]
    assert there.sel(solver_t_end=0.25, output_every=0.1).values.tolist() == [True, False, True, False, True, True]
    assert there.sel(solver_t_end=0.25, output_every=0.05).all()
    with sphereflow.open_run(folder / "solver.t_end=0.25_output.every=0.1_member000.nc") as run:
        found = data.isel(member=0).sel(solver_t_end=0.25, output_every=0.1).dropna("t", subset=["energy"])
        assert np.array_equal(found.density.values, run.density.values)


def test_tokens_of_different_numbers_and_words_as_values(scheduler, tmp_path):
    tables = {
        "initial": {"kind": "uniform"}, "heads": {"initial": "gaussian-symmetric"},
        "solver": {"kind": "particles", "t_end": 0.02, "dt": 0.01}, "output": {"every": 0.02},
    }  # fmt: skip
    vary = {"solver.count": [3, 5], "model.direction": ["descend", "ascend"], "solver.quadrature": [False]}
    result, _ = run_here(scheduler, tables, tmp_path / "out", members=2, vary=vary)
    data = result.open()
    assert data.position.sizes["particle"] == 5 and data.model_direction.values.tolist() == ["descend", "ascend"]
    assert data.solver_quadrature.values.tolist() == ["false"]
    counts = np.isfinite(data.position).all("xyz").sum("particle").isel(member=0, model_direction=0, solver_quadrature=0, t=0)
    assert counts.values.tolist() == [3, 5]
    weight = data.particle_weight.isel(model_direction=0, solver_quadrature=0)
    assert weight.dims == ("solver_count", "particle") and np.allclose(weight.sum("particle"), 1)
    first = data.position.isel(t=0, solver_count=1, solver_quadrature=0)
    assert np.array_equal(first.isel(model_direction=0), first.isel(model_direction=1))  # a member's tokens are the same
    assert not np.isclose(first.isel(member=0), first.isel(member=1)).any()


def test_an_ensemble_without_a_finished_run(folder, tmp_path):
    manifest = Manifest.load(folder)
    for run in manifest.runs:
        run["status"] = "pending"
    Manifest(tmp_path / "manifest.json", manifest.content).save()
    with pytest.raises(OutputError, match="no run is complete yet"):
        sphereflow.open_ensemble(tmp_path)
    with pytest.raises(OutputError, match="cannot read the manifest"):
        sphereflow.open_ensemble(tmp_path / "absent")


def test_missing_dask(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dask.array", None)
    with pytest.raises(CaseError, match="pip install dask"):
        sphereflow.open_ensemble(folder)
