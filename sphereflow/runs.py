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
from sphereflow.diagnostics import Variable, movement_variables, particle_variables, record, run_variables
from sphereflow.errors import CaseError, NumericalError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath, sample_weight_path
from sphereflow.initial import initial_density
from sphereflow.movement import StepSettings, resolved_degree
from sphereflow.movement_solver import MovementSolver
from sphereflow.particles import ParticleSolver, TokenOperator, initial_tokens, quadrature_tokens
from sphereflow.simulation import FiniteVolumeSolver, record_times, run_to_end
from sphereflow.stepping import StepController
from sphereflow.storage import RunWriter, open_run, read_density
from sphereflow.storage.arrays import read_arrays
from sphereflow.storage.importers import read_tokens
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
    path = sample_weight_path(case.heads, case.solver.t_end, case.model.dimension, read_arrays)
    if path.values is not None and case.model.velocity != "attention":
        raise CaseError(
            f"model.velocity: {case.model.velocity!r} takes its velocity from the energy, but the weights come with value "
            'matrices of their own; use velocity = "attention", or set heads.values = "logits"'
        )
    if case.solver.kind == "minimizing-movement":
        _require_energy(case, path)
    return path


def _require_energy(case: Case, path: WeightPath) -> None:
    """Refuse weights with which steps cannot minimise an energy, as far as the case alone does not tell."""
    try:
        for logits in path.logits:
            resolved_degree(case.grid.nlat, logits, path.head_weight, case.model.tolerance)
    except NumericalError as error:
        raise CaseError(f"heads: {error}") from None
    if case.model.velocity != "attention":
        return
    skew = np.abs(path.logits - path.logits.swapaxes(-1, -2)).max()
    reasons = {
        "there is more than one head": path.logits.shape[1] > 1,
        "the weights come with value matrices of their own": path.values is not None,
        "the logit matrix is not symmetric": skew > 1e-12 * np.abs(path.logits).max(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise CaseError(
                'model.velocity: "attention" is not allowed with solver.kind = "minimizing-movement" here, because '
                f'{reason}: it is not the gradient flow of the energy; use velocity = "gradient-flow", or another solver'
            )


def build_density(case: Case, grid: GaussGrid) -> np.ndarray:
    """Cell means of the initial density of a case."""
    density = initial_density(grid, case.initial, read_tokens=read_tokens, read_density=read_density)
    return density if case.initial.kind == "netcdf" else cell_means(grid, density)


def build_tokens(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n, d) and weights (n,) of the initial tokens of a particle case."""
    solver, readers = case.solver, {"read_tokens": read_tokens, "read_density": read_density}
    if solver.quadrature:
        return quadrature_tokens(GaussGrid(case.grid.nlat), case.initial, **readers)
    return initial_tokens(case.initial, solver.count, solver.seed, case.model.dimension, **readers)


def build_initial_state(case: Case):
    """The state a case starts from: cell means of a density, or tokens; reads the files it names."""
    return build_tokens(case) if case.solver.kind == "particles" else build_density(case, GaussGrid(case.grid.nlat))


def build_solver(case: Case, threads: int = 1):
    """The solver of a case at t = 0.

    Parameters
    ----------
    case : Case
    threads : int
        Threads of the transforms; those of the compiled loops are numba's (`numba.set_num_threads`).

    Returns
    -------
    FiniteVolumeSolver, MovementSolver or ParticleSolver
        Whatever it is, it has t, dt, step, path, ledger, energy, mass, advance(target) and snapshot().
    """
    return SOLVERS[case.solver.kind](case, threads)


def _operator(case, threads, two_point):
    model = case.model
    return AttentionOperator(
        GaussGrid(case.grid.nlat), model.velocity, DIRECTIONS[model.direction], model.tolerance, model.backend, threads,
        two_point,
    )  # fmt: skip


def _finite_volume_solver(case, threads):
    solver = case.solver
    operator = _operator(case, threads, two_point=solver.reconstruction == "two-point")
    controls = {key: value for key in ("cfl", "error_tolerance") if (value := getattr(solver, key)) is not None}
    return FiniteVolumeSolver(
        operator=operator,
        transport=Transport(operator.grid, solver.reconstruction, case.model.diffusion),
        path=build_weight_path(case),
        controller=StepController(fixed_dt=solver.dt, **controls),
        density=build_density(case, operator.grid),
    )


def _movement_solver(case, threads):
    solver, operator = case.solver, _operator(case, threads, two_point=True)
    return MovementSolver(
        operator=operator,
        path=build_weight_path(case),
        density=build_density(case, operator.grid),
        tau=solver.tau,
        settings=StepSettings(solver.newton_tolerance, solver.newton_limit, solver.inner_steps),
    )


def _particle_solver(case, threads):
    model, solver = case.model, case.solver
    positions, weights = build_tokens(case)
    return ParticleSolver(
        operator=TokenOperator(model.velocity, DIRECTIONS[model.direction], model.tolerance),
        path=build_weight_path(case),
        positions=positions,
        weights=weights,
        scheme=solver.scheme,
        max_dt=solver.dt,
    )


SOLVERS = {
    "finite-volume": _finite_volume_solver,
    "minimizing-movement": _movement_solver,
    "particles": _particle_solver,
}


def output_layout(case: Case, solver) -> tuple[tuple[Variable, ...], dict]:
    """The variables a run records, and what `RunWriter.create` must know of its grid or tokens."""
    noise, values = solver.path.noise_var > 0, solver.path.values is not None
    if case.solver.kind == "particles":
        count, dimension = solver.positions.shape
        layout = {
            "dimensions": {"particle": count, "xyz": dimension},
            "coordinates": {"particle_weight": solver.weights},
        }
        return particle_variables(case.output.fields, noise, values, dimension), layout
    table = movement_variables if case.solver.kind == "minimizing-movement" else run_variables
    return table(case.output.fields, noise, values), {"grid": solver.operator.grid}


def run(
    case: Case | str | os.PathLike | dict,
    output: str | os.PathLike | None = None,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    threads: int = 1,
    on_step: Callable[[object], None] | None = None,
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
        variables, layout = output_layout(case, solver)
        writer = RunWriter.create(
            path, variables=variables, attributes=_attributes(case, solver), weight_path=solver.path,
            force=force, **layout,
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


def _attributes(case: Case, solver) -> dict:
    """Global attributes: what was run, by what, when."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    command = " ".join(Path(arg).name if k == 0 else arg for k, arg in enumerate(sys.argv))
    particles = case.solver.kind == "particles"
    backend = "ducc0" if particles else solver.fields.expansion.transform(case.grid.nlat, case.grid.nlat - 1).name
    libraries = ["numpy", "scipy", "numba", "ducc0", "netCDF4"] + (["shtns"] if backend == "shtns" else [])
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in libraries}}
    what = "Token density on the sphere"
    if particles:
        count, dimension = solver.positions.shape
        what = f"{count} tokens on the sphere S^{dimension - 1}"
    title = case.title or "Mean-field dynamics of multi-head attention on the sphere"
    return {
        "title": title,
        "summary": f"{what}, velocity model {case.model.velocity} ({case.model.direction}), "
        f"{solver.path.logits.shape[1]} heads with {case.heads.schedule} weights, by {case.solver.kind}.",
        "history": f"{now}: {command}",
        "source": f"sphereflow {__version__}",
        "references": REFERENCES,
        "id": str(uuid.uuid4()),
        "date_created": now,
        "sphereflow_case": case.to_toml(),
        "sphereflow_case_sha256": case.sha256,
        "sphereflow_seed": json.dumps(case.heads.seed),
        **({"sphereflow_token_seed": json.dumps(case.solver.seed)} if particles else {}),
        "sphereflow_backend": backend,
        "sphereflow_versions": json.dumps(versions),
    }
