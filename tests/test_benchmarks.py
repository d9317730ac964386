"""The benchmarks: the numpy transport that loops are measured against, timing, baseline, and the command itself."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))

from benchmarks import baseline, reference  # noqa: E402
from benchmarks.harness import Figure, Settings, Timings, interleaved  # noqa: E402
from benchmarks.particles import tokens_needed  # noqa: E402
from benchmarks.run import SECTIONS, main  # noqa: E402
from sphereflow.grid import GaussGrid  # noqa: E402
from sphereflow.transport import Transport  # noqa: E402


@pytest.mark.parametrize("nlat", [8, 24, 64])
@pytest.mark.parametrize("roughness", ["smooth", "rough", "empty cells"])
@pytest.mark.parametrize("dt", [1e-4, 0.1])
def test_numpy_transport_is_the_compiled_one(nlat, roughness, dt):
    grid, generator = GaussGrid(nlat), np.random.default_rng(nlat)
    mover = Transport(grid)
    density = np.exp(5 * grid.points[..., 0]) if roughness == "smooth" else generator.random(grid.shape) ** 9
    if roughness == "empty cells":
        density = density * (generator.random(grid.shape) < 0.3)
    density = mover.reconcile(density)
    east, south = generator.normal(size=grid.shape), generator.normal(size=(nlat + 1, 2 * nlat))
    south[[0, -1]] = 0.0
    tendency = mover.tendency(density, east, south, dt)
    expected = reference.tendency(mover, density, east, south, dt)
    np.testing.assert_allclose(expected, tendency, rtol=0, atol=1e-13 * np.abs(tendency).max())
    after = mover.reconcile(density + dt * tendency)
    np.testing.assert_allclose(reference.stage(mover, density, east, south, dt), after, rtol=0, atol=1e-13 * after.max())


def test_functions_are_timed_in_turn():
    calls = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3, sample=0)
    assert "".join(calls) == "aabb" + "ababab"  # two calls of each that do not count
    assert all(seconds.shape == (3,) for seconds in times.seconds.values())


def test_a_quotient_is_the_median_over_neighbouring_repeats():
    times = Timings({"a": np.array([2.0, 20.0, 6.0]), "b": np.array([1.0, 10.0, 1.0])}, "CPU")
    assert times.quotient("a", "b") == (2.0, (2.0, 4.0))
    assert times.quotient("a", "b", 10.0)[0] == 20.0
    assert Timings(times.seconds, "wall").quotient("a", "b")[0] == 2.0  # of the smallest


def test_targets():
    assert Figure("a", 2.0, "larger", "", target=1.9).holds
    assert not Figure("a", 2.0, "smaller", "", target=1.9).holds
    assert Figure("a", 2.0, "smaller", "").holds is None
    assert not Figure("a", 2.0, "smaller", "", seconds=2.1, limit=2.0).holds
    with pytest.raises(ValueError, match="bigger"):
        Figure("a", 2.0, "bigger", "")


def test_number_of_tokens_for_an_error():
    n = tokens_needed(1e-3, 0.05, 0.8)
    assert 0.05**2 / n + (0.8 / n) ** 2 == pytest.approx(1e-6, rel=1e-12)
    assert tokens_needed(1e-2, 0.5, 0.0) == pytest.approx(2500)


@pytest.mark.parametrize(("better", "value", "fails"), [
    ("larger", 80.5, False), ("larger", 79.5, True), ("larger", 200.0, False),
    ("smaller", 124.5, False), ("smaller", 125.5, True), ("smaller", 50.0, False),
])  # fmt: skip
def test_figures_may_be_a_quarter_worse_than_the_baseline(tmp_path, better, value, fails):
    baseline.write(tmp_path / "baseline.csv", [Figure("a", 100.0, better, ""), Figure("busy", 1.0, better, "", steady=False)])
    known = baseline.read(tmp_path / "baseline.csv")
    assert known == {"a": (better, 100.0)}
    figures = [Figure("a", value, better, ""), Figure("new", 1.0, better, "")]
    complaints, compared = baseline.compare(figures, known)
    assert (len(complaints), compared) == (int(fails), 1)


def test_the_kept_baseline_is_readable():
    known = baseline.read(baseline.FILE)
    assert len(known) > 20
    assert {better for better, _ in known.values()} == {"larger", "smaller"}


def test_a_file_that_is_no_baseline_is_refused(tmp_path, capsys):
    (tmp_path / "wrong.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit) as end:
        main(["--check", "--baseline", str(tmp_path / "wrong.csv"), "-o", str(tmp_path)])
    assert end.value.code == 2
    assert "name,better,value" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--only", "kernle", "-o", str(tmp_path)])
    assert "kernle is no section" in capsys.readouterr().err


def run(*arguments):
    """The command, in a process of its own since it chooses the number of threads before anything is loaded."""
    command = [sys.executable, str(ROOT / "benchmarks/run.py"), "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_command_writes_tables_and_fails_on_a_worse_figure(tmp_path):
    first = run("--only", "transport,step", "-o", str(tmp_path))
    assert first.returncode == 0, first.stderr
    found = json.loads((tmp_path / "performance.json").read_text())
    assert {figure["section"] for figure in found["figures"]} == {"transport", "step"}
    assert found["machine"]["threads"] == "1"
    assert found["machine"]["processor"] and found["machine"]["numba"]
    assert "| transport: numpy / compiled, 16 x 32 |" in (tmp_path / "performance.md").read_text()
    assert first.stdout.startswith("# What sphereflow costs")
    better = tmp_path / "better.csv"
    better.write_text("name,better,value\n" + '"transport: numpy / compiled, 16 x 32",larger,1e9\n')
    second = run("--only", "transport", "-o", str(tmp_path), "--check", "--baseline", str(better))
    assert second.returncode == 1, second.stderr
    assert "times worse than the baseline" in second.stderr


@pytest.mark.slow
def test_every_section_runs(tmp_path):
    done = run("--only", "speed,accuracy", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "performance.json").read_text())
    assert {entry["section"] for entry in found["figures"] + found["tables"]} == set(SECTIONS)
    assert all(np.isfinite(figure["value"]) and figure["value"] > 0 for figure in found["figures"])
    names = [figure["name"] for figure in found["figures"]]
    assert len(set(names)) == len(names)


def test_settings_choose_between_full_and_quick():
    assert Settings().pick(1, 2) == 1
    assert Settings(quick=True).pick(1, 2) == 2
