"""The campaign of docs/reliability.md: many kills, a disk that fills, mutated case files, memory. Minutes: -m slow."""

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import long_runs
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
CHAINS, KILLS = 4, 30


@pytest.mark.parametrize(
    "solver, backend",
    WITH_BACKENDS,
)
def test_kills_at_random_moments(tmp_path, solver, backend):
    tables = long_runs.case(solver, backend, output=long_runs.OFTEN)
    assert long_runs.finish(long_runs.start_run(tables, tmp_path / "whole.nc")) == 0
    moments, kills, rounds = random.Random(5), 0, 0
    wanted = KILLS if backend == "ducc0" else 8
    paths, finished = [tmp_path / f"{k}.nc" for k in range(CHAINS)], []
    while kills < wanted:
        rounds += 1
        assert rounds < 40, f"{kills} kills only"
        processes = [
            long_runs.start_resume(path, slowly=True) if path.exists() else long_runs.start_run(tables, path, slowly=True)
            for path in paths
        ]
        for k, process in enumerate(processes):
            long_runs.wait_for(paths[k], process)
            if long_runs.kill_after(process, moments.uniform(0, 0.3)):
                kills += 1
            else:  # it was faster: the next chain begins
                finished.append(paths[k])
                paths[k] = tmp_path / f"{rounds}-{k}.nc"
    paths = [path for path in paths if path.exists()]
    processes = [long_runs.start_resume(path) for path in paths]
    assert [long_runs.finish(process) for process in processes] == [0] * len(paths)
    assert [differences(path, tmp_path / "whole.nc") for path in finished + paths] == [[]] * len(finished + paths)
    print(f"{solver} ({backend}): {kills} kills in {len(finished + paths)} runs")


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
    if solver.step % 500 == 0:
        sizes.append(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)
tables = long_runs.case("finite-volume", grid={"nlat": 8}, initial={"kappa": 1.0}, heads={"scale": 0.1, "noise_var": 0.01},
    solver={"t_end": 6.0, "dt": 1e-3}, output={"every": 1e-2, "checkpoint_every": 0.2})
run(tables, sys.argv[2], on_step=measure).close()
print(*sizes)
"""


@pytest.mark.xfail(strict=False, reason="grows by some MB over 6,000 steps, cause not found: docs/reliability.md")
def test_memory_does_not_grow_with_steps_or_records(tmp_path):
    command = [sys.executable, "-c", MEMORY, os.path.dirname(__file__), str(tmp_path / "run.nc")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = [float(word) for word in result.stdout.split()]
    print("resident MB every 500 steps:", sizes)
    assert len(sizes) == 12 and sizes[-1] - sizes[2] < 2.0
