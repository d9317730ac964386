"""The campaign of docs/reliability.md: many kills, a disk that fills, mutated case files, memory. Minutes: -m slow."""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import fault_campaign
import long_runs
import numpy as np
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_runs import WITH_BACKENDS, differences

from sphereflow import open_run
from sphereflow.case import load_case, parse_case
from sphereflow.cli import main
from sphereflow.errors import CaseError

pytestmark = pytest.mark.slow
CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.parametrize("solver, backend", WITH_BACKENDS)
def test_kills_at_random_moments(tmp_path, solver, backend):
    print(fault_campaign.kills(tmp_path, 30 if backend == "ducc0" else 8, solver, backend))


@pytest.mark.parametrize("fault, count", [("signals", 12), ("readers", 15), ("file-size-limit", 4)])
def test_other_faults(tmp_path, fault, count):
    print(fault_campaign.FAULTS[fault](tmp_path, count))


def test_disk_that_fills(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here; test_resume has the test with RLIMIT_FSIZE")
    try:
        tables = long_runs.case("finite-volume", output={"every": 0.01, **long_runs.OFTEN})
        assert long_runs.finish(long_runs.start_run(tables, tmp_path / "whole.nc")) == 0
        for room in random.Random(3).sample(range(20_000, 700_000), 10):
            path = small / "run.nc"
            filler = small / "filler"
            free = os.statvfs(small).f_bavail * os.statvfs(small).f_frsize
            filler.write_bytes(bytes(max(0, free - 2_000_000 - room)))
            code = long_runs.finish(long_runs.start_run(tables, path))
            assert code == 4
            if path.exists():
                with open_run(path) as run:
                    assert run.attrs["sphereflow_status"].startswith("failed: ") and run.sizes["t"] >= 0
                elsewhere = tmp_path / f"{room}.nc"
                assert long_runs.finish(long_runs.start_resume(path, output=os.fspath(elsewhere))) == 0
                assert differences(elsewhere, tmp_path / "whole.nc") == []
            for file in small.iterdir():
                file.unlink()
    finally:
        subprocess.run(["umount", str(small)], check=True)


# Case files

VALID = [load_case(path).model_dump(by_alias=True, exclude_none=True) for path in sorted(CASES.glob("*.toml"))[:12]]
WRONG = st.one_of(
    st.sampled_from([-1, 0, -1.5, 10**400, "", "nonsense", [], [[]], {}, {"a": 1}, True, float("nan"), float("inf"), [1, "a"]]),
    st.integers(-(10**6), -1),
    st.text(max_size=5),
)


@st.composite
def bad_cases(draw):
    """A valid case in which one key is misspelt, missing where it must be, or has a value of another kind."""
    tables = {k: dict(v) if isinstance(v, dict) else v for k, v in draw(st.sampled_from(VALID)).items()}
    table = draw(st.sampled_from([name for name, value in tables.items() if isinstance(value, dict) and value]))
    key = draw(st.sampled_from(sorted(tables[table])))
    how = draw(st.sampled_from(["misspell", "value", "table"]))
    if how == "misspell":
        name = key + draw(st.sampled_from("xyz_q"))
        tables[table][name] = tables[table].pop(key)
        return tables, table, (name, key)  # of a key that decides over others it is said that it is missing
    if how == "table":
        tables[table] = draw(WRONG.filter(lambda value: not isinstance(value, dict)))
        return tables, table, ()
    tables[table][key] = draw(WRONG)
    return tables, table, (key,)


def test_mutated_cases_are_refused_with_the_name_of_the_key(capsys):
    refused = 0
    folder = Path(tempfile.mkdtemp())

    @settings(max_examples=700, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(bad_cases())
    def check(mutated):
        nonlocal refused
        tables, table, keys = mutated
        file = folder / "case.toml"
        try:
            text = tomli_w.dumps(_writable(tables))
            file.write_text(text, encoding="utf-8")
        except (ValueError, TypeError, UnicodeEncodeError):
            return  # no TOML file can say this
        try:
            parse_case(text, source=str(file), require_files=False)
            return  # the mutation happens to be a valid case
        except CaseError:
            pass
        assert main(["validate", str(file)]) == 2
        message = capsys.readouterr().err
        names = [f"{table}.{key}" for key in keys] or [table]
        assert "Traceback" not in message and any(name in message for name in names), message
        refused += 1

    check()
    assert refused >= 500
    print(f"{refused} bad case files refused")


def _writable(value):
    if isinstance(value, dict):
        return {k: _writable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(v) for v in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


# Memory

MEMORY = """
import sys, os
sys.path.insert(0, sys.argv[1])
import numba; numba.set_num_threads(1)
import long_runs
from sphereflow.runs import run
sizes = []
def measure(solver):
    if solver.step % 100 == 0:
        sizes.append(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
tables = long_runs.case("finite-volume", grid={"nlat": 8}, initial={"kappa": 1.0}, solver={"t_end": 6.0, "dt": 1e-3},
    output={"every": 1e-2, "checkpoint_every": 0.2})
tables["heads"] = {"schedule": "frozen", "initial": "gaussian-symmetric", "count": 2, "seed": 7, "scale": 0.1}
run(tables, sys.argv[2], on_step=measure).close()
print(*sizes)
"""
INTERNED = 2.5  # MB: Python makes its table of interned strings anew now and then, in another size, once or back and forth
PER_RECORD = 1.2e-3  # MB: what HDF5 remembers of the chunks of three fields, up to a limit of its own


def test_memory_does_not_grow_with_the_number_of_steps(tmp_path):
    command = [sys.executable, "-c", MEMORY, os.path.dirname(__file__), str(tmp_path / "run.nc")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = np.array([float(word) for word in result.stdout.split()])
    assert len(sizes) == 60
    change = np.diff(sizes[9:])  # the first 1,000 steps fill caches
    jumps = np.abs(change) > 1.0
    print(f"resident {sizes[9]:.1f} MB after 1,000 steps, {sizes[-1]:.1f} MB after 6,000; jumps {change[jumps].round(2)}")
    assert jumps.sum() <= 2 and change[jumps].sum() < INTERNED
    assert change[~jumps].sum() < 500 * PER_RECORD + 1.0  # a leak of 1 kB in each step would be 5 MB


RECORDS = """
import os, sys
import numpy as np
from sphereflow.diagnostics import Variable
from sphereflow.grid import GaussGrid
from sphereflow.storage.writer import RunWriter
grid, sizes = GaussGrid(8), []
variables = [Variable("energy", ("t",), "1", "energy"), Variable("density", ("t", "lat", "lon"), "1", "density")]
attributes = {"title": "Many records", "sphereflow_case": "", "sphereflow_case_sha256": ""}
density = np.random.default_rng(0).random(grid.shape)
with RunWriter.create(sys.argv[1], variables=variables, attributes=attributes, weight_path=None, grid=grid) as writer:
    for k in range(45_001):
        writer.append({"t": float(k), "energy": 1.0, "density": density})
        if k % 1000 == 0:
            sizes.append(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
print(*sizes)
"""


def test_memory_does_not_grow_with_the_number_of_records(tmp_path):
    """HDF5 remembers where chunks are until its cache is full, after some 20,000 records of one field; then no more."""
    command = [sys.executable, "-c", RECORDS, str(tmp_path / "run.nc")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = np.array([float(word) for word in result.stdout.split()])
    print("resident MB after 0, 10,000, 30,000 and 45,000 records:", *(f"{sizes[k]:.1f}" for k in (0, 10, 30, 45)))
    assert sizes[30] - sizes[0] < 10.0
    assert sizes[45] - sizes[30] < 0.5  # 15,000 records at 0.38 kB would be 5.7
