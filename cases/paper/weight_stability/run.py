"""Robustness to weights: runs with perturbed weights, how far they are from the unperturbed one, and with which order.

    python cases/paper/weight_stability/run.py [EXPERIMENT ...] [--folder weight_stability] [--set KEY=VALUE ...]

The experiments, each with its case in this folder:

generic      two heads, A_h + eps B_h
density      the same by finite volumes
balanced     A + eps B and A - eps B: both heads together do not change at first order
mirrored     one head; turning by 90 degrees leaves A and the initial data as they are and turns B into -B
equilibrium  one head, from the uniform density, the minimum of E for eps = 0
movement     two heads, A_h + eps B_h, by minimising movements
movement_balanced  the same with A + eps B and A - eps B
weak_decay   weight decay dA = -rate A dt, rate -> 0, against frozen weights
movement_weak_decay  the same by minimising movements
strong_decay fast relaxation dA = rate (1 - A) dt, rate -> infinity, against the frozen identity
noisy        the same with noise of variance 2; root mean squares over eight seeds

postprocess/stability.py draws EXPERIMENT.png and writes its tables; table.csv has the orders fitted to the distances at the end
of the runs (E with its own weights differs most at t = 0, before anything has moved). Seven minutes on one core.
"""

import argparse
import csv
import importlib.util
import os
from pathlib import Path

import numpy as np

import sphereflow
from sphereflow.case import load_case
from sphereflow.compare import separation

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[2] / "postprocess/stability.py"
SIZES = (0.4, 0.2, 0.1, 0.05, 0.025)
WEAK = (0.4, 0.2, 0.1, 0.05, 0.025)
STRONG = (5.0, 10.0, 20.0, 40.0, 80.0)
SEEDS = range(8)
GENERIC = np.array(
    [[[0.3, -0.5, 0.2], [-0.5, 0.4, 0.1], [0.2, 0.1, -0.6]], [[-0.2, 0.3, 0.4], [0.3, 0.5, 0.2], [0.4, 0.2, 0.1]]]
)
DIRECTIONS = {
    "generic": GENERIC,
    "density": GENERIC,
    "balanced": np.stack([GENERIC[0], -GENERIC[0]]),
    "mirrored": np.diag([0.5, -0.5, 0.0])[None],
    "equilibrium": np.diag([0.6, 0.3, -0.1])[None],
    "movement": GENERIC,
    "movement_balanced": np.stack([GENERIC[0], -GENERIC[0]]),
}


def stability_script():
    """postprocess/stability.py as a module."""
    spec = importlib.util.spec_from_file_location("stability", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_one(case, heads, file, keep):
    """Run a case with other heads, given as keys that replace those of the table [heads]."""
    if keep and file.exists():
        return file
    tables = case.model_dump(exclude_none=True, by_alias=True)
    tables["heads"] = heads
    file.parent.mkdir(parents=True, exist_ok=True)
    sphereflow.run(tables, file, force=True).close()
    return file


def relaxing(matrices, rate, mean, noise_var=0.0, seed=0):
    """Table [heads] of weights that relax."""
    return {
        "schedule": "ornstein-uhlenbeck", "matrices": matrices, "rate": rate, "mean": mean, "noise_var": noise_var,
        "seed": seed, "step": 0.002,
    }  # fmt: skip


def runs_of(name, folder, overrides, keep):
    """Run an experiment; returns the files, the reference first, and for "noisy" those of further seeds."""
    case = load_case(HERE / f"{name}.toml", overrides)
    matrices = np.array(case.heads.matrices)

    def frozen(logits):
        return {"schedule": "frozen", "matrices": logits.tolist()}

    if name in DIRECTIONS:
        tables = {f"eps_{size:g}": frozen(matrices + size * DIRECTIONS[name]) for size in SIZES}
        reference = frozen(matrices)
    elif name.endswith("weak_decay"):
        tables = {f"rate_{rate:g}": relaxing(matrices.tolist(), rate, "zero") for rate in WEAK}
        reference = frozen(matrices)
    else:
        noise, seeds = (2.0, SEEDS) if name == "noisy" else (0.0, (0,))
        tables = {
            f"rate_{rate:g}" + (f"_{seed}" if noise else ""): relaxing(matrices.tolist(), rate, "identity", noise, seed)
            for rate in STRONG
            for seed in seeds
        }
        reference = frozen(np.stack([np.eye(3)] * len(matrices)))
    files = [run_one(case, reference, folder / name / "reference.nc", keep)]
    return files + [run_one(case, heads, folder / name / f"{label}.nc", keep) for label, heads in tables.items()]


def noisy_orders(files, folder, script):
    """Root mean squares over the seeds at the end, against 1/rate; writes them and returns the orders."""
    names = ("wasserstein_2", "energy_difference", "fixed_energy_difference")
    found = [separation(files[0], file, 2) for file in files[1:]]
    values = np.array([[getattr(pair, name)[-1] for name in names] for pair in found]).reshape(len(STRONG), len(SEEDS), -1)
    squares = np.sqrt(np.mean(values**2, axis=1))
    with open(folder / "noisy_sizes.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["rate", *names], *([rate, *row] for rate, row in zip(STRONG, squares, strict=True))])
    return {name: script.fitted_order(1 / np.array(STRONG), squares[:, k]) for k, name in enumerate(names)}


def orders_of(name, files, folder, script):
    """Draw an experiment, and the fitted orders by name of the distance."""
    if name == "noisy":
        return noisy_orders(files, folder, script)
    script.main([*map(os.fspath, files), "-o", str(folder / name), "--at", "end"])
    with open(folder / f"{name}_sizes.csv", encoding="utf-8") as file:
        (fitted,) = [row for row in csv.DictReader(file) if row["reference"] == "fitted order"]
    return {key: float(fitted[key]) for key in script.DISTANCES}


def main():
    """Run, draw and tabulate."""
    every = [*DIRECTIONS, "weak_decay", "movement_weak_decay", "strong_decay", "noisy"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", default=every, help=", ".join(every))
    parser.add_argument("--folder", type=Path, default=Path("weight_stability"), help="folder for all that is written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the cases")
    parser.add_argument("--keep", action="store_true", help="take runs that are in the folder as they are")
    options = parser.parse_args()
    script, rows = stability_script(), []
    for name in options.experiments:
        print(f"\n{name}")
        orders = orders_of(name, runs_of(name, options.folder, options.set, options.keep), options.folder, script)
        rows.append([name, *(f"{orders.get(key, np.nan):.3f}" for key in script.DISTANCES)])
        print(", ".join(f"{key} {order:.2f}" for key, order in orders.items()))
    with open(options.folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["experiment", *script.DISTANCES], *rows])
    print(options.folder / "table.csv")


if __name__ == "__main__":
    main()
