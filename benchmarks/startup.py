"""How long one waits for the program: help, a tiny run with loops compiled, and the first compilation."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import Figure, Report, Settings, Table
from benchmarks.problems import CASES

ROOT = Path(__file__).parents[1]
TINY = ("--set", "grid.nlat=16", "--set", "solver.t_end=0.1", "--quiet")


def spent(arguments: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall time and CPU time of a Python process, whatever it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_up(settings: Settings) -> Report:
    """Seconds until something happens, and as multiples of starting Python and of importing numpy."""
    with tempfile.TemporaryDirectory() as folder:
        output, cache = str(Path(folder, "tiny.nc")), str(Path(folder, "cache"))
        tiny = ["-m", "sphereflow.cli", "run", str(CASES / "mobius.toml"), *TINY, "-o", output, "--force"]
        commands = {
            "python": ["-c", "pass"],
            "numpy": ["-c", "import numpy"],
            "help": ["-m", "sphereflow.cli", "--help"],
            "run": tiny,
        }
        repeats = settings.pick(9, 1)
        for arguments in commands.values():
            spent(arguments, {})
        found = {name: np.empty((repeats, 2)) for name in commands}
        for k in range(repeats):
            for name, arguments in commands.items():
                found[name][k] = spent(arguments, {})
        if not settings.quick:
            found["compile"] = np.array([spent(tiny, {"NUMBA_CACHE_DIR": cache})])
    return _report(found)


def _report(found) -> Report:
    names = {
        "help": ("start-up: help / python", "python", "`sphereflow --help` / `python -c pass`", 0.5),
        "run": ("start-up: tiny run / numpy", "numpy", "a tiny `sphereflow run`, loops compiled / `import numpy`", 2.0),
        "compile": ("start-up: first run / next", "run", "a tiny run that compiles all loops / one that does not", 30.0),
    }
    report, rows = Report(), []
    for name, (title, under, meaning, limit) in names.items():
        if name in found:
            wall, cpu = found[name].min(axis=0)
            ratio = float(wall / found[under][:, 0].min())
            report.figures.append(
                Figure(title, ratio, "smaller", meaning, "wall", seconds=float(wall), limit=limit, steady=False)
            )
            rows.append([meaning.partition(" / ")[0], f"{wall:.2f} s", f"{cpu:.2f} s", f"{limit:g} s"])
    report.tables.append(Table("Start-up", ["", "wall time", "CPU time", "allowed"], rows))
    return report
