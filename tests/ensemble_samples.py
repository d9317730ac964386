"""Small ensembles for tests, and workers in the test's own process, which need no time to start."""

import contextlib
import json
from pathlib import Path

from distributed import LocalCluster

from sphereflow.ensemble import run_ensemble

CASE = """
schema = 1
title = "Two noisy heads"
[grid]
nlat = 8
[heads]
count = 2
schedule = "ornstein-uhlenbeck"
initial = "gaussian-symmetric"
noise_var = 0.5
step = 0.05
seed = 7
[initial]
kind = "octahedron"
kappa = 3.0
[solver]
kind = "finite-volume"
t_end = 0.2
[output]
every = 0.1
"""
# With logits as large the plain gradient flow overflows: a case that is valid and cannot be run.
OVERFLOWS = {"overrides": ["model.velocity='unnormalized'"], "vary": {"heads.scale": [0.1, 400.0]}}


@contextlib.contextmanager
def workers_here():
    """Address of a scheduler with one worker, both in this process."""
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster.scheduler_address


def write_case(folder: Path, text: str = CASE) -> Path:
    path = folder / "noisy.toml"
    path.write_text(text)
    return path


def manifest_of(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def run_here(scheduler, case, folder, **settings):
    """`run_ensemble` on workers in this process, with what it tells."""
    told = []
    result = run_ensemble(case, folder=folder, scheduler=scheduler, notify=told.append, **settings)
    return result, told
