"""Output files: layout, exact round trips, and what is read from them."""

import json
import shutil
import subprocess

import netCDF4
import numpy as np
import pytest
import xarray as xr
from storage_samples import ATTRIBUTES, CASE, GRID, HEADS, SCALARS, create, record, same_bits, weights, write_run

from sphereflow.diagnostics import Variable
from sphereflow.errors import CaseError, OutputError
from sphereflow.storage import open_run, read_density, read_weight_path, run_summary


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "run.nc", 4)


# What a file looks like


@pytest.mark.parametrize("opener", [open_run, xr.open_dataset])
def test_records_come_back_bit_for_bit(finished, opener):
    with opener(finished) as run:
        assert run["t"].dtype == np.float64 and run.sizes["t"] == 4
        for k in range(4):
            for name, value in record(k).items():
                assert same_bits(run[name].values[k], value), name


def test_opening_is_lazy(finished):
    with open_run(finished) as run:
        assert not run["density"]._in_memory


def test_time_is_a_plain_number(finished):
    with netCDF4.Dataset(finished) as file:
        assert file["t"].ncattrs() == ["long_name"]
        assert file.dimensions["t"].isunlimited()
        assert [name for name, dim in file.dimensions.items() if dim.isunlimited()] == ["t"]


def test_coordinates_and_bounds_have_no_fill_value(finished):
    with netCDF4.Dataset(finished) as file:
        for name in ("t", "lat", "lon", "lat_bnds", "lon_bnds", "cell_area", "head_weight"):
            assert "_FillValue" not in file[name].ncattrs(), name
        assert "_FillValue" not in file["step"].ncattrs()  # xarray would make it a float
        assert np.isnan(file["density"]._FillValue)


def test_grid_in_the_file_is_the_grid(finished):
    with xr.open_dataset(finished) as run:
        lat, lon = run["lat"], run["lon"]
        assert lat.attrs == dict(
            standard_name="latitude", long_name="latitude", units="degrees_north", axis="Y", bounds="lat_bnds"
        )
        assert lon.attrs == dict(
            standard_name="longitude", long_name="longitude", units="degrees_east", axis="X", bounds="lon_bnds"
        )
        np.testing.assert_allclose(np.sin(np.radians(lat)), GRID.z, rtol=1e-14)
        assert lon.sel(lon=90.0).item() == 90.0 and lon.values[0] == 0.0
        for bounds, values, first, last in (
            (run["lat_bnds"].values, lat.values, 90.0, -90.0),
            (run["lon_bnds"].values, lon.values, -11.25, 348.75),
        ):
            assert bounds[0, 0] == first and bounds[-1, 1] == last
            assert np.array_equal(bounds[1:, 0], bounds[:-1, 1])
            assert np.all((values - bounds[:, 0]) * (bounds[:, 1] - values) > 0)
        np.testing.assert_allclose(np.sin(np.radians(run["lat_bnds"][:, 1])), GRID.z_face[1:], atol=1e-15)
        area = run["cell_area"]
        assert area.dims == ("lat", "lon") and area.attrs["units"] == "m2" and "grid_mapping" not in area.attrs
        assert area.attrs["standard_name"] == "cell_area"
        assert area.sum().item() == pytest.approx(4 * np.pi, rel=1e-14)


def test_variables_carry_their_attributes(finished):
    with xr.open_dataset(finished) as run:
        assert run["density"].attrs == {
            "long_name": "density of tokens",
            "units": "m-2",
            "cell_measures": "area: cell_area",
            "cell_methods": "area: mean",
        }
        assert run["energy"].attrs == {"long_name": "energy", "units": "1"}
        assert run["step"].attrs == {"long_name": "number of steps"}
        assert run["head_weight"].values.tolist() == [0.2, 0.3, 0.5]


def test_global_attributes(tmp_path):
    long_case = CASE + "# " + 200_000 * "x"  # a case with many matrices exceeds HDF5's 64 KiB for compact attributes
    attributes = {
        **ATTRIBUTES,
        "sphereflow_case": long_case,
        "seed": 42,
        "cfl": 0.3,
        "seeds": [1, 2],
        "kind": np.int32(1),
    }
    with open_run(write_run(tmp_path / "run.nc", 1, attributes=attributes)) as run:
        assert run.attrs["Conventions"] == "CF-1.11, ACDD-1.3"
        assert run.attrs["title"] == "Drei Köpfe"
        assert run.attrs["sphereflow_case"] == long_case
        assert run.attrs["sphereflow_status"] == "complete"
        assert run.attrs["seed"] == 42 and run.attrs["cfl"] == 0.3 and run.attrs["seeds"].tolist() == [1, 2]


def test_chunks_and_filters(finished):
    with netCDF4.Dataset(finished) as file:
        chunks = {name: file[name].chunking() for name in ("t", "energy", "step", "density", "logits", "second_moment")}
        assert chunks == {
            "t": [4096],
            "energy": [4096],
            "step": [4096],
            "density": [1, 8, 16],
            "logits": [32768 // (HEADS * 72), HEADS, 3, 3],
            "second_moment": [32768 // 72, 3, 3],
        }
        filters = file["density"].filters()
        assert filters["zlib"] and filters["shuffle"] and filters["complevel"] == 1
        assert not file["energy"].filters()["zlib"]


def test_file_of_a_particle_run(tmp_path):
    variables = (
        Variable("position", ("t", "particle", "xyz"), "1", "positions"),
        Variable("particle_weight", ("particle",), "1", "weights of the tokens"),
    )
    positions, weight = np.random.default_rng(1).standard_normal((5, 3)), np.arange(5.0)
    with create(
        tmp_path / "run.nc",
        variables=variables,
        grid=None,
        dimensions={"particle": 5, "xyz": 3},
        coordinates={"particle_weight": weight},
    ) as writer:
        writer.append({"t": 0.0, "position": positions})
    with open_run(tmp_path / "run.nc") as run:
        assert "lat" not in run.dims and "cell_area" not in run
        assert same_bits(run["position"].values[0], positions)
        assert same_bits(run["particle_weight"].values, weight)
        assert "cell_measures" not in run["position"].attrs


def test_large_record_of_particles_is_one_compressed_chunk(tmp_path):
    with create(
        tmp_path / "run.nc",
        variables=[Variable("position", ("t", "particle", "xyz"), "1", "positions")],
        grid=None,
        dimensions={"particle": 2000, "xyz": 3},
    ):
        pass
    with netCDF4.Dataset(tmp_path / "run.nc") as file:
        assert file["position"].chunking() == [1, 2000, 3] and file["position"].filters()["zlib"]


def test_ncdump_and_the_python_library_agree_on_the_header(finished):
    with netCDF4.Dataset(finished) as file:
        names = set(file.variables)
        assert {"density", "lat_bnds", "head_weight"} <= names
    if program := shutil.which("ncdump"):
        header = subprocess.run([program, "-h", finished], capture_output=True, text=True, check=True).stdout
        assert "t = UNLIMITED ; // (4 currently)" in header and "group: weights {" in header
        assert all(f" {name}(" in header for name in names)


# The weight path


@pytest.mark.parametrize(
    "path",
    [
        weights(),
        weights("hermite", phase=np.array([0.0, 0.1, 1 / 3])),
        weights(values=np.random.default_rng(8).standard_normal((6, HEADS, 3, 3))),
        weights(mean=np.random.default_rng(9).standard_normal((3, 3)), relaxation=1 / 3, noise_var=2 / 7),
        weights(mean=np.random.default_rng(9).standard_normal((HEADS, 3, 3)), relaxation=1.0),
    ],
    ids=["linear", "hermite", "values", "ornstein-uhlenbeck", "mean per head"],
)
def test_weight_path_comes_back_bit_for_bit(tmp_path, path):
    back = read_weight_path(write_run(tmp_path / "run.nc", 1, weight_path=path))
    assert vars(path).keys() == vars(back).keys()
    for name, value in vars(path).items():
        other = getattr(back, name)
        assert same_bits(value, other) if isinstance(value, np.ndarray) else value == other, name


def test_weight_path_of_a_file_that_has_none(tmp_path):
    xr.Dataset({"a": 1.0}).to_netcdf(tmp_path / "a.nc")
    with pytest.raises(OutputError, match="a.nc.*no weight path"):
        read_weight_path(tmp_path / "a.nc")


# Reading


@pytest.mark.parametrize("reader", [open_run, read_weight_path, read_density, run_summary])
def test_files_that_are_no_runs(tmp_path, reader):
    (tmp_path / "text.nc").write_text("not netCDF")
    (tmp_path / "empty.nc").touch()
    for name, message in (
        ("none.nc", "No such file"),
        ("text.nc", "not a readable netCDF file"),
        ("empty.nc", "not a readable netCDF file"),
        (".", "is a folder"),
    ):
        with pytest.raises(OutputError, match=message) as caught:
            reader(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_netcdf_of_another_program(tmp_path):
    xr.Dataset({"a": 1.0}, attrs={"title": "b"}).to_netcdf(tmp_path / "a.nc")
    with pytest.raises(
        OutputError, match=r"lacks attribute sphereflow_case, .*attribute sphereflow_status, variable t\(t\)"
    ):
        open_run(tmp_path / "a.nc")
    (tmp_path / "a.nc").rename(tmp_path / "b.nc")
    xr.open_dataset(tmp_path / "b.nc").close()


def test_density_of_the_nearest_record(finished):
    for time, k in ((None, 3), (0.0, 0), (0.12, 1), (0.16, 2), (0.3, 3), (np.nextafter(0.3, 1) + 1e-12, 3)):
        density, nlat = read_density(finished, time)
        assert nlat == 8 and density.flags.c_contiguous and same_bits(density, record(k)["density"])


@pytest.mark.parametrize("time", [-0.01, 0.31, np.nan])
def test_density_outside_the_records(finished, time):
    with pytest.raises(CaseError, match=r"run.nc: time .* is outside the records, which cover \[0, 0.3\]"):
        read_density(finished, time)


def test_density_of_a_run_without(tmp_path):
    with pytest.raises(CaseError, match="holds no density"):
        read_density(write_run(tmp_path / "none.nc", 0))
    with create(tmp_path / "run.nc", variables=[Variable("mass", ("t",), "1", "")], grid=None) as writer:
        writer.append({"t": 0.0, "mass": 1.0})
    with pytest.raises(CaseError, match="holds no density"):
        read_density(tmp_path / "run.nc")


def test_summary(tmp_path):
    path = tmp_path / "run.nc"
    ledger = [(1.0, 3.0, 0.5, 0.0, 0.0, 0.0), (1.25, 2.0, 0.25, 2.0, -1.0, 0.0), (0.875, 2.5, 0.75, 1.5, -0.5, -0.125)]
    with create(path) as writer:
        for k, values in enumerate(ledger):
            writer.append({**record(k), "step": 10 * k, **dict(zip(SCALARS, values, strict=True))})
        writer.set_status("complete")
    summary = run_summary(path)
    expected = {
        "path": str(path),
        "bytes": path.stat().st_size,
        "status": "complete",
        "state": "complete",
        "being_written": False,
        "checkpoints": [],
        "t_end": None,
        "title": "Drei Köpfe",
        "created": "2025-01-01T00:00:00Z",
        "source": "sphereflow 0",
        "backend": None,
        "versions": "numpy 2",
        "case_sha256": "abc",
        "solver": "finite-volume",
        "velocity": "attention",
        "nlat": 8,
        "nlon": 16,
        "heads": 3,
        "particles": None,
        "records": 3,
        "steps": 20,
        "t_first": 0.0,
        "t_last": 0.2,
        "mass_drift": 0.25,
        "density_min": 0.25,
        "energy_first": 3.0,
        "energy_last": 2.5,
        "weight_work": -0.5,
        "dissipation_integral": 1.5,
        "edi_residual": -0.125,
        "movement_slack_min": None,
        "edi_residual_relative": 0.05,  # of 2 + 0.5: the dissipation has changed its sign
    }
    assert summary == expected
    assert json.loads(json.dumps(summary, allow_nan=False)) == expected


def test_summary_of_a_file_with_little_in_it(tmp_path):
    with create(
        tmp_path / "run.nc",
        variables=[Variable("energy", ("t",), "1", "")],
        grid=None,
        attributes={**ATTRIBUTES, "sphereflow_case": "not TOML"},
    ) as writer:
        writer.append({"t": 0.0, "energy": np.nan})
    summary = run_summary(tmp_path / "run.nc")
    assert summary["records"] == 1 and summary["t_last"] == 0.0
    absent = {
        "solver",
        "nlat",
        "steps",
        "mass_drift",
        "density_min",
        "energy_last",
        "edi_residual",
        "edi_residual_relative",
    }
    assert all(summary[name] is None for name in absent)
    json.dumps(summary, allow_nan=False)
