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
from threadpoolctl import threadpool_limits

from sphereflow import __version__
from sphereflow.attention import AttentionOperator
from sphereflow.case import Case, load_case, parse_case
from sphereflow.cells import cell_means
from sphereflow.diagnostics import Variable, movement_variables, particle_variables, run_variables
from sphereflow.drift import Drift, make_drift
from sphereflow.energy import Ledger
from sphereflow.errors import CaseError, NumericalError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath, sample_weight_path
from sphereflow.initial import initial_density
from sphereflow.layers import LayeredDensity, LayeredMovement, LayeredTokens
from sphereflow.limits import require_memory
from sphereflow.movement import StepSettings, resolved_degree
from sphereflow.movement_solver import MovementSolver
from sphereflow.particles import ParticleSolver, TokenOperator, initial_tokens, quadrature_tokens
from sphereflow.sessions import Interrupts, Keeper, drive
from sphereflow.simulation import FiniteVolumeSolver, record_times
from sphereflow.stepping import StepController
from sphereflow.storage import RunWriter, checkpoint, open_run, read_density
from sphereflow.storage.arrays import read_arrays
from sphereflow.storage.claim import backup_name
from sphereflow.storage.importers import read_tokens
from sphereflow.transport import Transport

REFERENCES = "arXiv:2605.18870, arXiv:2604.23740, arXiv:2501.03096"
FINE_LATITUDES = 256
DIRECTIONS = {"descend": -1, "ascend": 1}


def build_weight_path(case: Case) -> WeightPath:
    """Sample the weights of a case over its run.

    Raises
    ------
    CaseError
        If this machine cannot hold the run, a file it names cannot be used, or the weights do not fit the velocity model.
    """
    require_memory(case)  # here, as this is the first large thing that is made of a case
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


def build_drift(case: Case) -> Drift | None:
    """The local drift of a case, or None; reads the files it names."""
    return make_drift(case.model, case.model.dimension, read_arrays)


def build_density(case: Case, grid: GaussGrid) -> np.ndarray:
    """Cell means of the initial density of a case."""
    density = initial_density(grid, case.initial, read_tokens=read_tokens, read_density=read_density)
    return density if case.initial.kind == "netcdf" else cell_means(grid, density)


def build_tokens(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Positions (n, d) and weights (n,) of the initial tokens of a particle case."""
    solver, readers = case.solver, {"read_tokens": read_tokens, "read_density": read_density}
    if case.initial.kind == "harmonic":
        _require_density(case)
    if solver.quadrature:
        return quadrature_tokens(GaussGrid(case.grid.nlat), case.initial, **readers)
    return initial_tokens(case.initial, solver.count, solver.seed, case.model.dimension, **readers)


def _require_density(case: Case) -> None:
    """Refuse a harmonic that makes the density negative, from which tokens cannot be drawn."""
    least = case.initial.degree + 2
    nlat = max(min(case.grid.nlat, FINE_LATITUDES), least + least % 2)  # tokens do not need a grid, which may be of any size
    initial_density(GaussGrid(nlat), case.initial)


def build_initial_state(case: Case):
    """The state a case starts from: cell means of a density, or tokens; reads the files it names."""
    return build_tokens(case) if case.solver.kind == "particles" else build_density(case, GaussGrid(case.grid.nlat))


def build_solver(case: Case, threads: int = 1, path: WeightPath | None = None, state: dict | None = None):
    """The solver of a case, at t = 0 or in the state of a checkpoint.

    Parameters
    ----------
    case : Case
    threads : int
        Threads of the transforms; those of the compiled loops are numba's (`numba.set_num_threads`).
    path : WeightPath, optional
        The weights, if they are known already.
    state : dict, optional
        From the `state()` of a solver of this case. The initial state is then not built.

    Returns
    -------
    FiniteVolumeSolver, MovementSolver or ParticleSolver
        Whatever it is, it has t, dt, step, path, ledger, energy, mass, advance(target), snapshot(), state() and
        restore(state).
    """
    path = build_weight_path(case) if path is None else path
    solver = SOLVERS[case.solver.kind](case, threads, path, state)
    if state is not None:
        solver.restore(state)
    return solver


def _known(state: dict | None) -> dict:
    """Ledger for a solver that is about to be restored, so that it does not compute its own."""
    return {} if state is None else {"ledger": Ledger(**state["ledger"])}


def _operator(case, threads, two_point):
    model = case.model
    return AttentionOperator(
        GaussGrid(case.grid.nlat), model.velocity, DIRECTIONS[model.direction], model.tolerance, model.backend, threads,
        two_point, build_drift(case),
    )  # fmt: skip


def _finite_volume_solver(case, threads, path, state):
    solver = case.solver
    operator = _operator(case, threads, two_point=solver.reconstruction == "two-point")
    controls = {key: value for key in ("cfl", "error_tolerance") if (value := getattr(solver, key)) is not None}
    kind = LayeredDensity if path.interpolation == "step" else FiniteVolumeSolver
    return kind(
        operator=operator,
        transport=Transport(operator.grid, solver.reconstruction, case.model.diffusion),
        path=path,
        controller=StepController(fixed_dt=solver.dt, **controls),
        density=build_density(case, operator.grid) if state is None else state["density"],
        **_known(state),
    )


def _movement_solver(case, threads, path, state):
    solver, operator = case.solver, _operator(case, threads, two_point=True)
    kind = LayeredMovement if path.interpolation == "step" else MovementSolver
    return kind(
        operator=operator,
        path=path,
        density=build_density(case, operator.grid) if state is None else state["density"],
        tau=solver.tau,
        energy=None if state is None else state["energy"],
        **_known(state),
        settings=StepSettings(solver.newton_tolerance, solver.newton_limit, solver.inner_steps),
    )


def _particle_solver(case, threads, path, state):
    model, solver = case.model, case.solver
    positions, weights = build_tokens(case) if state is None else (state["positions"], state["weights"])
    kind = LayeredTokens if path.interpolation == "step" else ParticleSolver
    return kind(
        operator=TokenOperator(model.velocity, DIRECTIONS[model.direction], model.tolerance, build_drift(case)),
        path=path,
        positions=positions,
        weights=weights,
        scheme=solver.scheme,
        max_dt=solver.dt,
        **_known(state),
    )


SOLVERS = {
    "finite-volume": _finite_volume_solver,
    "minimizing-movement": _movement_solver,
    "particles": _particle_solver,
}


def output_layout(case: Case, solver) -> tuple[tuple[Variable, ...], dict]:
    """The variables a run records, and what `RunWriter.create` must know of its grid or tokens."""
    path, drift = solver.path, solver.operator.drift
    noise, values = path.noise_var > 0, path.values is not None
    experts = drift.experts if drift is not None else None
    sizes = {} if experts is None else {"expert": len(experts.kappa)}
    features = {"with_likelihood": path.concentration is not None, "with_experts": experts is not None}
    if case.solver.kind == "particles":
        count, dimension = solver.positions.shape
        layout = {
            "dimensions": {"particle": count, "xyz": dimension, **sizes},
            "coordinates": {"particle_weight": solver.weights},
        }
        return particle_variables(case.output.fields, noise, values, dimension, **features), layout
    table = movement_variables if case.solver.kind == "minimizing-movement" else run_variables
    return table(case.output.fields, noise, values, **features), {"grid": solver.operator.grid, "dimensions": sizes}


def run(
    case: Case | str | os.PathLike | dict,
    output: str | os.PathLike | None = None,
    *,
    overrides: Sequence[str] = (),
    force: bool = False,
    threads: int = 1,
    on_step: Callable[[object], None] | None = None,
    notify: Callable[[str], None] = lambda text: None,
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
    notify : callable
        Told, in sentences, of what goes wrong without ending the run.

    Returns
    -------
    xarray.Dataset
        The finished run, opened from the file (`encoding["source"]` is its path).

    Raises
    ------
    CaseError, BackendError, OutputError, NumericalError
        Nothing is written unless the case is valid and its inputs are readable; after a numerical failure the file holds
        the records so far.
    RunInterrupted
        After SIGINT or SIGTERM; `resume` goes on from there.
    """
    return open_run(run_to_file(_as_case(case, overrides), output, force, threads, on_step, notify))


def run_to_file(case: Case, output=None, force=False, threads=1, on_step=None, notify=lambda text: None) -> Path:
    """`run` without opening the file, whose path it returns: xarray, which is slow to import, is then not needed."""
    path = Path(os.path.abspath(output if output is not None else case.output.file))
    with compiled_threads(threads), Interrupts() as interrupts:
        solver = build_solver(case, threads)
        variables, layout = output_layout(case, solver)
        attributes = run_attributes(case, solver)
        writer = new_output(path, solver, variables, attributes, layout, force)
        keeper = Keeper(case, solver, writer, attributes["id"], 0, notify)
        times = record_times(case.solver.t_end, case.output.every)
        drive(case, solver, writer, variables, times, keeper, interrupts, on_step)
    return path


def _as_case(case, overrides) -> Case:
    if isinstance(case, Case):
        if overrides:
            raise CaseError("overrides: apply to a case file or dict, not to a Case that is already resolved")
        return case
    if isinstance(case, dict):
        return parse_case(case, overrides)
    return load_case(case, overrides)


@contextmanager
def compiled_threads(threads: int):
    """Let compiled loops use a number of threads; raises CaseError if it is not possible.

    BLAS and LAPACK get one thread whatever their own settings say: last digits of their results depend on the number, and
    their matrices are so small here that more threads only wait for each other.
    """
    if threads < 1 or threads > numba.config.NUMBA_NUM_THREADS:
        raise CaseError(f"threads: {threads} is not allowed; must be from 1 to {numba.config.NUMBA_NUM_THREADS}")
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        numba.set_num_threads(before)


def new_output(path: Path, solver, variables, attributes: dict, layout: dict, force: bool) -> RunWriter:
    """Create an output file; checkpoints of a file that had the name follow it to NAME.bak."""
    writer = RunWriter.create(
        path, variables=variables, attributes=attributes, weight_path=solver.path, force=force, **layout
    )
    checkpoint.move(path, backup_name(path))
    return writer


def history_line() -> str:
    """When, and by what command: a line of the attribute `history`."""
    command = " ".join(Path(arg).name if k == 0 else arg for k, arg in enumerate(sys.argv))
    return f"{_now()}: {command}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def run_attributes(case: Case, solver) -> dict:
    """Global attributes: what was run, by what, when."""
    particles = case.solver.kind == "particles"
    backend = "ducc0" if particles else solver.fields.expansion.transform(case.grid.nlat, case.grid.nlat - 1).name
    libraries = ["numpy", "scipy", "numba", "ducc0", "netCDF4"] + (["shtns"] if backend == "shtns" else [])
    versions = {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in libraries}}
    what = "Token density on the sphere"
    if particles:
        count, dimension = solver.positions.shape
        what = f"{count} tokens on the sphere S^{dimension - 1}"
    heads = solver.path.logits.shape[1]
    title = case.title or "Mean-field dynamics of multi-head attention on the sphere"
    return {
        "title": title,
        "summary": f"{what}, velocity model {case.model.velocity} ({case.model.direction}), "
        f"{heads} head{'s' * (heads != 1)} with {case.heads.schedule} weights, by {case.solver.kind}.",
        "history": history_line(),
        "source": f"sphereflow {__version__}",
        "references": REFERENCES,
        "id": str(uuid.uuid4()),
        "date_created": _now(),
        "sphereflow_case": case.to_toml(),
        "sphereflow_case_sha256": case.sha256,
        "sphereflow_seed": json.dumps(case.heads.seed),
        **({"sphereflow_token_seed": json.dumps(case.solver.seed)} if particles else {}),
        "sphereflow_backend": backend,
        "sphereflow_versions": json.dumps(versions),
    }
