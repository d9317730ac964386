"""The machine and the libraries that a set of figures was measured with."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import numba

from sphereflow import __version__
from sphereflow.harmonics import get_transform

LIBRARIES = ("numpy", "scipy", "numba", "ducc0", "shtns", "xarray", "netCDF4", "torch")


def describe() -> dict[str, str]:
    """What the figures depend on: processor, cores, versions, the transform library that `auto` chooses."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version for name in LIBRARIES if (version := _version(name)) is not None},
        "sphereflow": __version__,
        "transforms": get_transform(64, 63).name,
        "threads": str(numba.config.NUMBA_NUM_THREADS),
        "threading layer": _threading_layer(),
        "load before": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.date.today().isoformat(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _threading_layer() -> str:
    @numba.njit(parallel=True)
    def count(n):
        total = 0
        for _ in numba.prange(n):
            total += 1
        return total

    count(2)  # the layer is chosen when a parallel loop first runs
    return numba.threading_layer()
