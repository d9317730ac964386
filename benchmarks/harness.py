"""The parts every benchmark is made of: figures, tables, reports, and timing by interleaved repeats.

A *section* is a function from `Settings` to a `Report`. A *figure* is a ratio of two things measured in the same process run,
so that it means the same on another day and, as far as such things do, on another machine; seconds stand in tables only.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]

CLOCKS = {
    "CPU": "CPU time of the process, one thread",
    "wall": "wall time, smallest of the repeats",
    "count": "a count, not a time",
    "memory": "bytes, not a time",
}
SAMPLE = 4e-3  # seconds that one timed sample lasts at least: shorter calls are repeated inside of it


@dataclass(frozen=True)
class Figure:
    """One measured ratio.

    Attributes
    ----------
    name : str
        Unique, sizes included: the key in the baseline.
    value : float
    better : {"larger", "smaller"}
    meaning : str
        What is divided by what.
    clock : {"CPU", "wall", "count", "memory"}
    target : float or None
        What the value should be at least (better = larger) or at most.
    spread : tuple of float
        Quartiles of the repeats.
    extrapolated : bool
        Whether one side was scaled from a smaller measurement.
    steady : bool
        Whether the value repeats well enough on a busy machine to be checked against the baseline.
    seconds, limit : float or None
        For targets that are times: what was measured and what is allowed.
    """

    name: str
    value: float
    better: str
    meaning: str
    clock: str = "CPU"
    target: float | None = None
    spread: tuple[float, float] | None = None
    extrapolated: bool = False
    steady: bool = True
    seconds: float | None = None
    limit: float | None = None

    def __post_init__(self):
        if self.better not in ("larger", "smaller") or self.clock not in CLOCKS:
            raise ValueError(f"{self.name}: better = {self.better!r}, clock = {self.clock!r}")

    @property
    def holds(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.limit is not None:
            return self.seconds <= self.limit
        if self.target is None:
            return None
        return self.value >= self.target if self.better == "larger" else self.value <= self.target


@dataclass(frozen=True)
class Table:
    """A table of texts with the details behind the figures."""

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass
class Report:
    """What a section found."""

    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes
    ----------
    quick : bool
        Small sizes and few repeats: shows that everything runs, measures nothing of use.
    """

    quick: bool = False

    def pick(self, full, quick):
        """One of two values."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Timings:
    """Seconds per call, shape (repeats,), of each of several functions."""

    seconds: dict[str, np.ndarray]
    clock: str

    def of(self, name: str) -> float:
        """The median, or under `wall` the smallest: other programs only ever add to it."""
        return float(np.min(self.seconds[name]) if self.clock == "wall" else np.median(self.seconds[name]))

    def quotient(self, over: str, under: str, factor: float = 1.0) -> tuple[float, tuple[float, float]]:
        """factor times / time, and its quartiles: the median over repeats that were taken one right after the other."""
        ratios = factor * self.seconds[over] / self.seconds[under]
        low, high = np.quantile(ratios, [0.25, 0.75])
        value = factor * self.of(over) / self.of(under) if self.clock == "wall" else np.median(ratios)
        return float(value), (float(low), float(high))

    def figure(self, name: str, over: str, under: str, better: str, meaning: str, factor: float = 1.0, **more) -> Figure:
        """`Figure` of the quotient of two times."""
        value, spread = self.quotient(over, under, factor)
        return Figure(name, value, better, meaning, self.clock, spread=spread, **more)


def keep_freed_memory() -> None:
    """Let the C library keep what is freed, for blocks up to 31 MiB.

    By default glibc gives large blocks back to the system until a larger one has been freed; numpy then pays for new pages at
    every call, and a figure would depend on what was measured before it.
    """
    np.empty(31 * 2**17)  # freed at once; the size above which nothing is ever kept is 32 MiB


def interleaved(functions: dict[str, Callable], repeats: int, clock: str = "CPU", sample: float = SAMPLE) -> Timings:
    """Time functions in turn, A B C A B C ..., after a call of each that does not count (compilation, tables).

    Parameters
    ----------
    functions : dict
        Without arguments; called so many times that a sample lasts `sample` seconds.
    repeats : int
    clock : {"CPU", "wall"}
    sample : float
        Seconds; 0 for one call a sample.
    """
    keep_freed_memory()
    now = time.process_time if clock == "CPU" else time.perf_counter
    calls = {}
    for name, function in functions.items():
        function()
        start = now()
        function()
        calls[name] = max(1, int(np.ceil(sample / max(now() - start, 1e-7))))
    seconds = {name: np.empty(repeats) for name in functions}
    for k in range(repeats):
        for name, function in functions.items():
            start = now()
            for _ in range(calls[name]):
                function()
            seconds[name][k] = (now() - start) / calls[name]
    return Timings(seconds, clock)


def in_process_of_its_own(module: str, call: str, threads: int = 1):
    """The JSON that a call of a function of benchmarks.`module`, in a new process with so many threads, prints."""
    count = {name: str(threads) for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS")}
    code = f"import sys; sys.path.append({str(ROOT)!r}); from benchmarks import {module}; {module}.{call}"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **count}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{call} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def milliseconds(seconds: float) -> str:
    """A time for a table."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
