"""A small run whose records are known bit for bit, for the tests of the output files."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from sphereflow.diagnostics import Variable
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath
from sphereflow.storage import RunWriter

GRID = GaussGrid(8)
HEADS = 3
CASE = 'schema = 1\n[solver]\nkind = "finite-volume"\n[model]\nvelocity = "attention"\n'
ATTRIBUTES = {
    "title": "Drei Köpfe",
    "source": "sphereflow 0",
    "date_created": "2025-01-01T00:00:00Z",
    "sphereflow_case": CASE,
    "sphereflow_case_sha256": "abc",
    "sphereflow_versions": "numpy 2",
}
FIELD = Variable("density", ("t", "lat", "lon"), "m-2", "density of tokens", attrs={"cell_methods": "area: mean"})
SCALARS = ("mass", "energy", "density_min", "dissipation_integral", "weight_work", "edi_residual")
VARIABLES = (
    FIELD,
    *(Variable(name, ("t",), "1", name.replace("_", " ")) for name in SCALARS),
    Variable("step", ("t",), "", "number of steps", dtype="i8"),
    Variable("logits", ("t", "head", "row", "col"), "1", "logit matrices"),
    Variable("second_moment", ("t", "row", "col"), "1", "second moment"),
)


def weights(interpolation="linear", **options):
    rng = np.random.default_rng(3)
    time = np.sort(rng.random(6))
    logits, rate = rng.standard_normal((2, 6, HEADS, 3, 3))
    if interpolation == "hermite":
        options["rate"] = rate
    return WeightPath(time, logits, np.array([0.2, 0.3, 0.5]), interpolation=interpolation, **options)


def create(path, **changes):
    arguments = {"variables": VARIABLES, "grid": GRID, "attributes": ATTRIBUTES, "weight_path": weights(), **changes}
    return RunWriter.create(path, **arguments)


def record(k):
    """Record k: awkward numbers everywhere, all of them functions of k."""
    rng = np.random.default_rng(k)
    values = {name: rng.standard_normal() for name in SCALARS}
    values |= {"logits": rng.standard_normal((HEADS, 3, 3)), "second_moment": rng.standard_normal((3, 3))}
    density = rng.standard_normal(GRID.shape)
    density[0, :4] = [-0.0, 5e-324, 9.969209968386869e36, -1e308]
    return {"t": 0.1 * k, "step": 2**53 + k, "density": density, **values}


def write_run(path, count, **changes):
    with create(path, **changes) as writer:
        for k in range(count):
            writer.append(record(k))
        writer.set_status("complete")
    return path


def same_bits(a, b):
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def python(code, *arguments):
    """A second process that sees this module as `samples`."""
    head = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}; import storage_samples as samples\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
