"""From a case to an output file: builds the solver a case describes, runs it, and writes every record.

This is what `sphereflow.run` and the command line call.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path

import numba
import numpy as np

from sphereflow import __version__
from sphereflow.attention import AttentionOperator
from sphereflow.case import Case, load_case, parse_case
from sphereflow.cells import cell_means
from sphereflow.diagnostics import record, run_variables
from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath, sample_weight_path
from sphereflow.initial import initial_density
from sphereflow.simulation import FiniteVolumeSolver, record_times, run_to_end
from sphereflow.stepping import StepController
from sphereflow.storage import RunWriter, open_run, read_density
from sphereflow.storage.arrays import read_arrays, read_tokens
from sphereflow.transport import Transport

REFERENCES = "arXiv:2605.18870, arXiv:2604.23740, arXiv:2501.03096"
DIRECTIONS = {"descend": -1, "ascend": 1}


def build_weight_path(case: Case) -> WeightPath:
    """Sample the weights of a case over its run.

    Raises
    ------
    CaseError
        If a file it names cannot be used, or the weights do not fit the velocity model.
    """
    path = sample_weight_path(case.heads, case.solver.t_end, read_arrays=read_arrays)
    if path.values is not None and case.model.velocity != "attention":
        raise CaseError(
            f"model.velocity: {case.model.velocity!r} takes its velocity from the energy, but the weights come with value "
            'matrices of their own; use velocity = "attention", or set heads.values = "logits"'
        )
    return path


def build_density(case: Case, grid: GaussGrid) -> np.ndarray:
    """Cell means of the initial density of a case."""
    density = initial_density(grid, case.initial, read_tokens=read_tokens, read_density=read_density)
    return density if case.initial.kind == "netcdf" else cell_means(grid, density)


def build_solver(case: Case, threads: int = 1) -> FiniteVolumeSolver:
    """The solver of a case at t = 0.

    Parameters
    ----------
    case : Case
    threads : int
        Threads of the transforms; those of the compiled loops are numba's (`numba.set_num_threads`).
    """
    grid = GaussGrid(case.grid.nlat)
    model, solver = case.model, case.solver
    operator = AttentionOperator(
        grid, model.velocity, DIRECTIONS[model.direction], model.tolerance, model.backend, threads
    )
    controls = {key: value for key in ("cfl", "error_tolerance") if (value := getattr(solver, key)) is not None}
    return FiniteVolumeSolver(
        operator=operator,
        transport=Transport(grid, solver.reconstruction, model.diffusion),
        path=build_weight_path(case),
        controller=StepController(fixed_dt=solver.dt, **controls),
        density=build_density(case, grid),
    )


def run(
    case: Case | str | os.PathLike | dict,
    output: str | os.PathLike | None = None,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    threads: int = 1,
    on_step: Callable[[FiniteVolumeSolver], None] | None = None,
):
    """Run a case to its end and write its output file.

    Parameters
    ----------
    case : Case, path of a case file, or dict of its tables
    output : path-like, optional
        Output file, in place of the case's.
    overrides : sequence of str
        Settings such as "grid.nlat=32", applied before the case is checked; not with a `Case`.
    force : bool
        Move an existing output file to NAME.bak instead of refusing.
    threads : int
        Threads to use; results do not depend on it.
    on_step : callable, optional
        Called with the solver after every step.

    Returns
    -------
    xarray.Dataset
        The finished run, opened from the file (`encoding["source"]` is its path).

    Raises
    ------
    CaseError, BackendError, OutputError, NumericalError
        Nothing is written unless the case is valid and its inputs are readable; after a numerical failure the file holds
        the records so far.
    """
    case = _as_case(case, overrides)
    if threads < 1 or threads > numba.config.NUMBA_NUM_THREADS:
        raise CaseError(f"threads: {threads} is not allowed; must be from 1 to {numba.config.NUMBA_NUM_THREADS}")
    path = Path(output if output is not None else case.output.file)
    with _compiled_threads(threads):
        solver = build_solver(case, threads)
        noise, values = solver.path.noise_var > 0, solver.path.values is not None
        variables = run_variables(case.output.fields, noise, values)
        writer = RunWriter.create(
            path, variables=variables, attributes=_attributes(case, solver), weight_path=solver.path,
            grid=solver.operator.grid, force=force,
        )  # fmt: skip
        with writer:
            callback = (lambda: on_step(solver)) if on_step else (lambda: None)
            for snapshot in run_to_end(solver, record_times(case.solver.t_end, case.output.every), callback):
                writer.append({"t": snapshot.t, **record(snapshot, variables)})
            writer.set_status("complete")
    return open_run(path)


def _as_case(case, overrides) -> Case:
    if isinstance(case, Case):
        if overrides:
            raise CaseError("overrides: apply to a case file or dict, not to a Case that is already resolved")
        return case
    if isinstance(case, dict):
        return parse_case(case, overrides)
    return load_case(case, overrides)


@contextmanager
def _compiled_threads(threads: int):
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        yield
    finally:
        numba.set_num_threads(before)


def _attributes(case: Case, solver: FiniteVolumeSolver) -> dict:
    """Global attributes: what was run, by what, when."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    command = " ".join(Path(arg).name if k == 0 else arg for k, arg in enumerate(sys.argv))
    backend = solver.fields.expansion.transform(case.grid.nlat, case.grid.nlat - 1).name
    libraries = ["numpy", "scipy", "numba", "ducc0", "netCDF4"] + (["shtns"] if backend == "shtns" else [])
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in libraries}}
    title = case.title or "Mean-field dynamics of multi-head attention on the sphere"
    return {
        "title": title,
        "summary": f"Token density on the sphere, velocity model {case.model.velocity} ({case.model.direction}), "
        f"{solver.path.logits.shape[1]} heads with {case.heads.schedule} weights, by {case.solver.kind}.",
        "history": f"{now}: {command}",
        "source": f"sphereflow {__version__}",
        "references": REFERENCES,
        "id": str(uuid.uuid4()),
        "date_created": now,
        "sphereflow_case": case.to_toml(),
        "sphereflow_case_sha256": case.sha256,
        "sphereflow_seed": json.dumps(case.heads.seed),
        "sphereflow_backend": backend,
        "sphereflow_versions": json.dumps(versions),
    }
