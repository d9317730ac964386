"""Weights from files: tables, initial matrices and value matrices, and the files that are refused."""

import zipfile
from types import SimpleNamespace

import netCDF4
import numpy as np
import pytest

from sphereflow.errors import CaseError
from sphereflow.heads import sample_weight_path
from sphereflow.storage.arrays import read_arrays


def sample(t_end=1.0, **changes):
    keys = dict(count=1, schedule="frozen", initial=None, matrices=None, file=None, scale=1.0, seed=42, step=0.05)
    keys |= dict(values="logits", weights=None, rate=1.0, mean="identity", noise_var=2.0, scheme=None)
    keys |= dict(phase="equispaced")
    return sample_weight_path(SimpleNamespace(**(keys | changes)), t_end, read_arrays=read_arrays)


TIMES = np.array([0.0, 0.3, 0.6, 1.0, 1.4])


def table_arrays(count=2):
    rng = np.random.default_rng(5)
    slope_a, slope_b = rng.normal(size=(2, count, 3, 3))
    # the node at 0.3 lies on a straight line, those at 0.6 and 1.0 are kinks
    clock = np.interp(TIMES, [0, 0.6, 1.0, 1.4], [0, 1, -1, 0.5])[:, None, None, None]
    return {"t": TIMES, "logits": slope_a + clock * slope_b}


@pytest.fixture
def write(tmp_path):
    def to_file(arrays, name="table.npz"):
        path = tmp_path / name
        if path.suffix == ".npz":
            np.savez(path, **arrays)
            return str(path)
        with netCDF4.Dataset(path, "w") as dataset:
            for key, array in arrays.items():
                dims = [f"{key}_{axis}" for axis in range(array.ndim)]
                for dim, size in zip(dims, array.shape, strict=True):
                    dataset.createDimension(dim, size)
                dataset.createVariable(key, array.dtype, dims)[...] = array
        return str(path)

    return to_file


@pytest.mark.parametrize("name", ["table.npz", "table.nc"])
def test_table_is_interpolated_linearly_with_breakpoints_at_its_kinks(write, name):
    arrays = table_arrays()
    path = sample(t_end=1.2, count=2, schedule="table", file=write(arrays, name), values=None)
    np.testing.assert_array_equal(path.breakpoints, [0.6, 1.0])
    for t in (0.0, 0.1, 0.6, 0.91, 1.4):
        expected = np.array([np.interp(t, TIMES, y) for y in arrays["logits"].reshape(5, -1).T]).reshape(2, 3, 3)
        np.testing.assert_allclose(path.logits_at(t), expected, atol=1e-14)
    assert path.values is None and path.mean is None
    np.testing.assert_array_equal(path.drift_at(0.7), path.rate_at(0.7))


def test_table_scale_and_number_of_heads_from_the_file(write):
    arrays = table_arrays()
    path = sample(count=None, scale=3.0, schedule="table", file=write(arrays))
    np.testing.assert_array_equal(path.logits, 3.0 * arrays["logits"])
    np.testing.assert_array_equal(path.head_weight, [0.5, 0.5])


def test_values_of_a_table_are_used_unless_the_case_gives_others(write):
    arrays = table_arrays()
    arrays["values"] = np.cumsum(np.ones_like(arrays["logits"]), axis=0) ** 2
    keys = dict(count=2, schedule="table", file=write(arrays))
    path = sample(values=None, **keys)
    np.testing.assert_allclose(path.values_at(0.15), 2.5 * np.ones((2, 3, 3)), rtol=1e-14)
    np.testing.assert_array_equal(path.breakpoints, [0.3, 0.6, 1.0])
    assert sample(values="logits", **keys).values is None
    np.testing.assert_array_equal(sample(values="identity", **keys).values_at(0.4), np.stack([np.eye(3)] * 2))


def test_table_that_starts_before_the_run_is_cut_at_zero(write):
    arrays = table_arrays() | {"t": TIMES - 0.45}
    path = sample(t_end=0.9, count=2, schedule="table", file=write(arrays))
    assert path.time[0] == 0 and path.variation(0.0) == 0
    np.testing.assert_allclose(path.logits_at(0.0), 0.5 * (arrays["logits"][1] + arrays["logits"][2]), atol=1e-14)
    np.testing.assert_allclose(path.time[1:], TIMES[2:] - 0.45)


def replaced(**changes):
    """Arrays of a table with some changed; None removes one."""
    return {name: array for name, array in (table_arrays() | changes).items() if array is not None}


def with_nan(array):
    array = array.copy()
    array[2, 1, 0, 2] = np.nan
    return array


@pytest.mark.parametrize(
    "arrays, words",
    [
        (replaced(logits=None), r"no array 'logits'; the file has: t"),
        (replaced(t=None), r"no array 't'; the file has: logits"),
        (replaced(t=TIMES[:4]), r"array 'logits' has shape \(5, 2, 3, 3\); expected \(4, 2, 3, 3\)"),
        (replaced(logits=np.ones((5, 3, 3, 3))), r"array 'logits' has shape \(5, 3, 3, 3\); expected \(5, 2, 3, 3\)"),
        (replaced(logits=np.ones((5, 2, 2, 2))), r"array 'logits' has shape \(5, 2, 2, 2\); expected \(5, 2, 3, 3\)"),
        (replaced(logits=np.ones((5, 18))), r"array 'logits' has shape \(5, 18\); expected \(5, 2, 3, 3\)"),
        (replaced(t=TIMES[:, None]), r"array 't' has shape \(5, 1\); expected \(any\)"),
        (replaced(values=np.ones((2, 3, 3))), r"array 'values' has shape \(2, 3, 3\); expected \(5, 2, 3, 3\)"),
        (replaced(t=TIMES[[0, 2, 1, 3, 4]]), r"must increase strictly; t\[1\] = 0.6, t\[2\] = 0.3"),
        (replaced(t=TIMES[[0, 1, 1, 3, 4]]), r"must increase strictly; t\[1\] = 0.3, t\[2\] = 0.3"),
        (replaced(t=TIMES + 0.1), r"the table starts at t = 0.1, after the start of the run"),
        (replaced(t=TIMES / 2), r"the table ends at t = 0.7, before t_end = 1.0"),
        (replaced(t=np.zeros(1), logits=np.ones((1, 2, 3, 3))), "needs at least two"),
        (replaced(logits=with_nan(table_arrays()["logits"])), r"non-finite entry nan at index \(2, 1, 0, 2\)"),
        (replaced(t=np.array([0, 1, 2, 3, np.inf])), r"array 't' has the non-finite entry inf at index \(4,\)"),
        (replaced(logits=table_arrays()["logits"] + 0j), "array 'logits' has dtype complex128; expected real numbers"),
        (replaced(t=TIMES.astype(str)), "array 't' has dtype <U32; expected real numbers"),
        (replaced(logits=table_arrays()["logits"].astype(object)), "array 'logits' cannot be read"),
    ],
)
def test_tables_that_cannot_be_used_are_refused_with_the_file_and_what_is_wrong(write, arrays, words):
    file = write(arrays)
    with pytest.raises(CaseError, match=words) as error:
        sample(count=2, schedule="table", file=file, values=None)
    assert str(error.value).startswith(file)


DAMAGE = ["empty", "text", "cut", "flipped", "one array", "netcdf", "folder", "none", "suffix"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_and_missing_files_are_refused(write, tmp_path, damage):
    file = tmp_path / "table.npz"
    write(table_arrays())
    content = file.read_bytes()
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        with zipfile.ZipFile(file) as archive:
            start = archive.getinfo("logits.npy").header_offset + 300
        file.write_bytes(content[:start] + bytes(b ^ 0xFF for b in content[start : start + 8]) + content[start + 8 :])
    elif damage == "one array":
        with open(file, "wb") as stream:
            np.save(stream, TIMES)
    elif damage in ("netcdf", "folder", "none", "suffix"):
        file = tmp_path / {"netcdf": "bad.nc", "folder": "folder.npz", "none": "no.npz", "suffix": "table.pt"}[damage]
        if damage == "folder":
            file.mkdir()
        elif damage != "none":
            file.write_bytes(content)
    else:
        file.write_bytes({"empty": b"", "text": b"t,logits\n0,1\n"}[damage])
    with pytest.raises(CaseError) as error:
        sample(count=2, schedule="table", file=str(file))
    assert str(error.value).startswith(str(file))


def test_masked_entries_of_netcdf_are_refused(write):
    arrays = table_arrays()
    arrays["logits"][1, 0, 0, 0] = netCDF4.default_fillvals["f8"]
    with pytest.raises(CaseError, match="array 'logits' has 1 missing entries"):
        sample(count=2, schedule="table", file=write(arrays, "table.nc"))


def test_integer_and_single_precision_arrays_are_converted(write):
    arrays = {"t": np.array([0, 1, 2]), "logits": np.ones((3, 1, 3, 3), dtype=np.float32)}
    path = sample(schedule="table", file=write(arrays))
    assert path.logits.dtype == path.time.dtype == np.float64


# ------------------------------------------------------------------------------------- matrices of cases and of files


def test_initial_matrices_from_a_file(write):
    matrices = np.arange(18.0).reshape(2, 3, 3)
    path = sample(count=2, initial=None, file=write({"logits": matrices}, "heads.nc"), scale=0.5)
    np.testing.assert_array_equal(path.logits[0], 0.5 * matrices)
    with pytest.raises(CaseError, match=r"heads.npz: array 'logits' has shape \(2, 3, 3\); expected \(3, 3, 3\)"):
        sample(count=3, file=write({"logits": matrices}, "heads.npz"))
    assert sample(count=None, file=write({"logits": matrices})).logits.shape == (2, 2, 3, 3)


@pytest.mark.parametrize("schedule", ["ornstein-uhlenbeck", "oscillating"])
def test_symmetric_schedules_refuse_other_matrices_and_name_the_worst_entry(write, schedule):
    matrices = np.stack([np.eye(3)] * 3)
    matrices[1, 0, 1] = 1e-3
    matrices[1, 2, 0] = 0.25
    file = write({"logits": matrices}, "heads.npz")
    message = r"heads.npz: array 'logits': matrix 1 is not symmetric, .* entry \(0, 2\) is 0, entry \(2, 0\) is 0.25"
    with pytest.raises(CaseError, match=message):
        sample(count=3, schedule=schedule, file=file)


def test_round_off_asymmetry_is_removed(write):
    matrices = np.array([[[1.0, 0.5, -0.2], [0.5, -2.0, 0.3], [-0.2, 0.3, 0.7]]])
    matrices[0, 0, 1] += 1e-15
    path = sample(schedule="oscillating", file=write({"logits": matrices}))
    np.testing.assert_array_equal(path.logits, path.logits.swapaxes(2, 3))


def test_value_matrices(write):
    matrices = np.arange(18.0).reshape(2, 3, 3)
    file = write({"values": matrices}, "values.npz")
    for values in (matrices, matrices.tolist(), file):
        path = sample(count=2, schedule="ornstein-uhlenbeck", initial="zero", values=values)
        for t in (0.0, 0.33, 1.0):
            np.testing.assert_array_equal(path.values_at(t), matrices)
    path = sample(count=2, initial="zero", values="identity")
    np.testing.assert_array_equal(path.values_at(0.5), np.stack([np.eye(3)] * 2))
