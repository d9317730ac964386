"""The estimate of a run's memory against the memory that runs use, and what happens without an answer of the system."""

import resource
import tracemalloc

import numpy as np
import pytest

from sphereflow import limits
from sphereflow.case import parse_case
from sphereflow.errors import CaseError
from sphereflow.limits import memory_needs, require_computable, require_memory
from sphereflow.runs import run

TOKENS = {"kind": "particles", "t_end": 1e-4, "dt": 1e-4, "scheme": "euler"}
OUTPUT = {"every": 1e-4, "fields": []}
DENSITY = {"kind": "finite-volume", "t_end": 1e-4, "dt": 1e-4}


def case_of(solver, nlat=16, **tables):
    return parse_case({"grid": {"nlat": nlat}, "initial": {"kind": "uniform"}, "solver": solver, "output": OUTPUT, **tables})


@pytest.mark.parametrize(
    ("small", "large", "nlat"),
    [(TOKENS | {"count": 10}, TOKENS | {"count": 500_000}, 16), (DENSITY, DENSITY, 512)],
    ids=["tokens", "density"],
)
def test_a_run_needs_no_less_than_is_estimated_and_not_three_times_as_much(tmp_path, monkeypatch, small, large, nlat):
    monkeypatch.chdir(tmp_path)
    run(case_of(small), "small.nc").close()  # which compiles the loops
    tracemalloc.start()  # numpy tells it of its arrays
    run(case_of(large, nlat), "large.nc").close()
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    estimated = sum(size for _, size in memory_needs(case_of(large, nlat)).values())
    print(f"estimated {estimated / 1e6:.0f} MB, used {used / 1e6:.0f} MB")
    assert estimated <= used <= 3 * estimated


def test_memory_is_compared_with_that_of_the_machine(monkeypatch):
    case = case_of(TOKENS | {"count": 10**6})
    require_memory(case)
    monkeypatch.setattr(limits, "physical_memory", lambda: 10**8)
    with pytest.raises(CaseError, match=r"solver.count: 1000000 .* at least 0.209 GB of memory, and there are 0.1 GB"):
        require_memory(case)
    monkeypatch.setattr(limits, "physical_memory", lambda: None)
    require_memory(case_of(TOKENS | {"count": 10**15}))


def test_the_key_that_needs_most_is_named(monkeypatch):
    monkeypatch.setattr(limits, "physical_memory", lambda: 10**6)
    with pytest.raises(CaseError, match="heads.count: 10000 is too large"):
        require_memory(case_of(TOKENS | {"count": 100}, heads={"count": 10**4}))
    with pytest.raises(CaseError, match="initial.clusters: 1000000 is too large"):
        require_memory(
            parse_case({
                "model": {"dimension": 2}, "initial": {"kind": "vertices", "clusters": 10**6}, "solver": TOKENS | {"count": 10},
            })
        )  # fmt: skip


def test_the_system_tells_its_memory_or_nothing(monkeypatch):
    assert limits.physical_memory() > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    monkeypatch.delattr(limits.os, "sysconf")
    assert limits.physical_memory() is None


@pytest.mark.parametrize(("entry", "found"), [(1e101, "1e\\+101 in size"), (-1e200, "1e\\+200"), (np.nan, "overflows")])
def test_entries_too_large_to_compute_with(entry, found):
    with pytest.raises(CaseError, match=f"the matrices: an entry .*{found}.*; must be at most 1e\\+100: scale them"):
        require_computable("the matrices", np.array([1.0, entry]), "scale them")
    require_computable("the matrices", np.array([1e100, -1e100, 0.0]), "scale them")
    require_computable("the matrices", np.zeros(0), "scale them")
