"""Robustness to inputs: pairs of runs from perturbed initial tokens, and how far they part, beside Groenwall's bound.

    python cases/paper/input_stability/run.py [CASE ...] [--folder input_stability] [--set KEY=VALUE ...]

For every case of this folder (or those named): the tokens of the case; the same rotated by 0.01, 0.1 and 0.5 about the axis
(1, 2, 3); the same with tangential Gaussian noise of standard deviation 0.01 and 0.1; and two independent draws of 75, 150, 300
and 600 tokens. Each is run, then postprocess/stability.py draws CASE_perturbed.png and CASE_resampled.png and their tables.
table.csv has a row for every pair. Minutes on one core: docs/experiments/input-stability.md.
"""

import argparse
import csv
import importlib.util
import os
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

import sphereflow
from sphereflow.case import load_case
from sphereflow.compare import separation
from sphereflow.runs import build_tokens

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[2] / "postprocess/stability.py"
AXIS = np.array([1.0, 2.0, 3.0]) / np.sqrt(14.0)
ANGLES = (0.01, 0.1, 0.5)
NOISES = (0.01, 0.1)
NUMBERS = (75, 150, 300, 600)
SEED = 7


def stability_script():
    """postprocess/stability.py as a module."""
    spec = importlib.util.spec_from_file_location("stability", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noised(positions, size, rng):
    """Tokens moved along the sphere by a Gaussian tangent vector of standard deviation `size` in each direction."""
    step = size * rng.standard_normal(positions.shape)
    step -= np.sum(step * positions, axis=1, keepdims=True) * positions
    length = np.linalg.norm(step, axis=1, keepdims=True)
    return np.cos(length) * positions + np.sinc(length / np.pi) * step


def perturbed_tokens(case):
    """Initial tokens by name: those of the case, rotated and noised ones."""
    tokens, _ = build_tokens(case)
    rng = np.random.default_rng(SEED)
    found = {"reference": tokens}
    found |= {f"rotated {angle:g}": Rotation.from_rotvec(angle * AXIS).apply(tokens) for angle in ANGLES}
    found |= {f"noised {size:g}": noised(tokens, size, rng) for size in NOISES}
    return found


def runs_of(path, folder, overrides, keep):
    """Run a case from all initial data; returns the files of the perturbed ones, reference first, and of the resampled."""
    case = load_case(path, overrides)
    folder.mkdir(parents=True, exist_ok=True)
    perturbed, resampled = [], []
    for name, tokens in perturbed_tokens(case).items():
        file = folder / f"{name.replace(' ', '_')}.npz"
        np.savez(file, positions=tokens)
        tables = case.model_dump(exclude_none=True, by_alias=True)
        tables["initial"] = {"kind": "tokens", "file": str(file.resolve())}
        del tables["solver"]["count"]
        perturbed.append(file.with_suffix(".nc"))
        if not (keep and perturbed[-1].exists()):
            sphereflow.run(tables, perturbed[-1], force=True).close()
    for number in NUMBERS:
        for draw in (1, 2):
            resampled.append(folder / f"{number}_tokens_{draw}.nc")
            settings = [*overrides, f"solver.count={number}", f"solver.seed={[SEED, number, draw]}"]
            if not (keep and resampled[-1].exists()):
                sphereflow.run(path, resampled[-1], overrides=settings, force=True).close()
    return perturbed, resampled


def row_of(case, pair, script):
    """The row of a pair in the table."""
    found = separation(*pair)
    w, rate = found.wasserstein_2, found.observed_rate
    top = int(np.argmax(w))
    name = pair[1].stem if pair[0].stem == "reference" else pair[0].stem.removesuffix("_1")
    log_bound = (np.log(w[0]) + found.exponent[-1]) / np.log(10)
    if not np.all(w <= found.ceiling * (1 + 1e-9)):
        raise SystemExit(f"{pair[0]}, {pair[1]}: the bound does not hold")
    numbers = (w[0], w[-1], w[-1] / w[0], w.max() / w[0], found.t[top], np.nanmax(rate), rate[-1],
               script.mean_linear(found)[-1], script.mean_rate(found)[-1], log_bound)  # fmt: skip
    return [case, name, *(f"{number:.6g}" for number in numbers)]


def main():
    """Run, draw and tabulate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=sorted(p.stem for p in HERE.glob("*.toml")), help="names of cases")
    parser.add_argument("--folder", type=Path, default=Path("input_stability"), help="folder for all that is written")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the cases")
    parser.add_argument("--keep", action="store_true", help="take runs that are in the folder as they are")
    options = parser.parse_args()
    script, rows = stability_script(), []
    for name in options.cases:
        perturbed, resampled = runs_of(HERE / f"{name}.toml", options.folder / name, options.set, options.keep)
        for kind, files, more in (("perturbed", perturbed, []), ("resampled", resampled, ["--pairs"])):
            print(f"\n{name}, {kind}")
            script.main([*map(os.fspath, files), *more, "-o", str(options.folder / f"{name}_{kind}")])
        pairs = [(perturbed[0], file) for file in perturbed[1:]] + list(zip(resampled[::2], resampled[1::2], strict=True))
        rows += [row_of(name, pair, script) for pair in pairs]
    header = ["case", "perturbation", "W2(0)", "W2(end)", "W2(end)/W2(0)", "max W2/W2(0)", "time of max", "largest mean rate",
              "mean rate", "linearised flow", "C", "log10 of bound at the end"]  # fmt: skip
    with open(options.folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    print(options.folder / "table.csv")


if __name__ == "__main__":
    main()
