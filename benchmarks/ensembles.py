"""What an ensemble costs: members per second with one and two workers, a member against a run, memory of the parent.

    python benchmarks/ensembles.py speed    # on a quiet machine with at least two cores
    python benchmarks/ensembles.py cost
    python benchmarks/ensembles.py memory   # 1,000 small runs

Compiled loops must have been compiled before; one run of any case does that.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from sphereflow.case import load_case
from sphereflow.ensemble import run_ensemble
from sphereflow.ensemble.cluster import connected
from sphereflow.ensemble.manifest import Session
from sphereflow.ensemble.member import run_member
from sphereflow.runs import run

CASE = Path(__file__).parents[1] / "cases/octahedron_ou_noise.toml"
MEDIUM = ["grid.nlat=32", "solver.t_end=1", "output.every=0.05"]
SMALL = ["grid.nlat=8", "heads.count=1", "solver.t_end=0.02", "output.every=0.02", "initial.kappa=3"]


def speed(folder, members=10):
    """Members per second between the first that begins and the last that ends, for 1, 2, 2 and 1 workers."""
    rates = {1: [], 2: []}
    for k, workers in enumerate((1, 2, 2, 1)):
        moments = []
        run_ensemble(
            CASE, members=members, folder=folder / str(k), overrides=MEDIUM, workers=workers,
            on_progress=lambda _, moments=moments: moments.append(time.monotonic()),
        )  # fmt: skip
        rates[workers].append(members / (moments[-1] - moments[0]))
        print(f"{workers} workers: {rates[workers][-1]:.3f} members per second")
    print(f"2 workers are {np.mean(rates[2]) / np.mean(rates[1]):.2f} times as fast as 1")


def cost(folder, rounds=8):
    """Processor seconds of one case by `run` and as a member, alternately; the first round of both is left out."""
    case = load_case(CASE, MEDIUM)
    seconds = []
    with Session(folder) as session, connected(1, None) as client:
        stop = {"path": str(session.path), "token": session.token, "patience": 0.0}
        for k in range(rounds + 1):
            began, cpu = time.monotonic(), time.process_time()
            run(case, folder / f"run{k}.nc").close()
            alone = time.process_time() - cpu, time.monotonic() - began
            task = {"case": case.to_toml(), "output": str(folder / f"member{k}.nc"), "anew": False, "command": ["sphereflow"]}
            began = time.monotonic()
            result = client.submit(run_member, {**task, "session": stop}, pure=False).result()
            seconds.append((*alone, result["cpu_seconds"], time.monotonic() - began))
    alone_cpu, alone_wall, member_cpu, member_wall = np.median(seconds[1:], axis=0)
    print(f"run:    {alone_cpu:.3f} s of processor, {alone_wall:.3f} s")
    print(f"member: {member_cpu:.3f} s of processor, {member_wall:.3f} s")
    print(f"a member costs {member_cpu / alone_cpu - 1:+.1%} (processor), {member_wall / alone_wall - 1:+.1%} (time)")


def memory(folder, members=1000):
    """Largest resident memory of the parent."""
    result = run_ensemble(CASE, members=members, folder=folder / "many", overrides=SMALL)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(result.runs)} runs, {len(result.failed)} failed; the parent had at most {peak:.0f} MiB")


if __name__ == "__main__":  # the workers import this script
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "cost", "memory"))
    chosen = parser.parse_args().what
    with tempfile.TemporaryDirectory() as scratch:
        {"speed": speed, "cost": cost, "memory": memory}[chosen](Path(scratch))
