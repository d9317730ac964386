"""Going on with a run that was interrupted, killed or failed, and beyond the end of one that is complete.

The case, the weights and the records come from the output file, the state from a checkpoint; input files are not read
again. The finished file equals that of an uninterrupted run bit for bit in every variable.
"""

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sphereflow.case import Case, parse_case
from sphereflow.errors import CaseError, CheckpointError, OutputError
from sphereflow.heads import WeightPath
from sphereflow.runs import (
    build_solver,
    build_weight_path,
    compiled_threads,
    history_line,
    new_output,
    output_layout,
    run_attributes,
)
from sphereflow.sessions import Interrupts, Keeper, drive
from sphereflow.simulation import record_times
from sphereflow.storage import RunWriter, checkpoint, open_run, read_restart, read_weight_path
from sphereflow.storage.checkpoint import Checkpoint


def resume(
    file: str | os.PathLike,
    output: str | os.PathLike | None = None,
    *,
    extend: float | None = None,
    force: bool = False,
    threads: int = 1,
    on_step: Callable[[object], None] | None = None,
    notify: Callable[[str], None] = lambda text: None,
):
    """Go on with a run from its newest valid checkpoint.

    Parameters
    ----------
    file : path-like
        Output file of the run, with its checkpoints beside it. Records later than the checkpoint are written anew.
    output : path-like, optional
        Write another file, which begins with a copy of the records, and leave `file` as it is.
    extend : float, optional
        New end of the run, later than the case's. Works for complete runs too. The old file is kept as NAME.bak.
    force : bool
        Move an existing `output` to NAME.bak.
    threads : int
        Threads to use; results do not depend on it.
    on_step : callable, optional
        Called with the solver after every step.
    notify : callable
        Told, in sentences, of damaged checkpoints and other things worth knowing.

    Returns
    -------
    xarray.Dataset
        The finished run, opened from the file.

    Raises
    ------
    CheckpointError
        If none of the checkpoints beside the file can be used, or the case or the weights are not those it began with.
        (Without any checkpoint, as after a kill in the first moments, the run begins anew.)
    CaseError
        If `extend` is not later than the end of the run.
    OutputError
        If a file cannot be read or written, or is open elsewhere.
    RunInterrupted
        If a signal ends this session too.
    """
    path = Path(os.path.abspath(file))
    elsewhere = output is not None and Path(os.path.abspath(output)) != path
    with compiled_threads(threads), Interrupts() as interrupts, contextlib.ExitStack() as stack:
        source = stack.enter_context(open_run(path))
        if source.attrs["sphereflow_state"] == "running":
            raise OutputError(f"{path}: another run is writing this file")
        if source.attrs["sphereflow_state"] == "complete" and extend is None:
            if elsewhere:
                raise OutputError(f"{path}: is complete: nothing is left for {output}; to go on beyond its end use --extend")
            notify(f"{path}: is complete; to go on beyond its end use --extend")
            return open_run(path)
        case, weights, found = _taken_up(source, path, extend, notify)
        solver = build_solver(_with_backend(case, source), threads, path=weights, state=found.state or None)
        variables, layout = output_layout(case, solver)
        times, run_id = _remaining(case, source, found.records), source.attrs["id"]
        if elsewhere or extend is not None:
            target, run_id = Path(os.path.abspath(output)) if elsewhere else path, str(uuid.uuid4())
            history = f"{source.attrs.get('history', '')}\n{history_line()}".strip()
            attributes = {**run_attributes(case, solver), "history": history, "id": run_id}
            writer = new_output(target, solver, variables, attributes, layout, force or not elsewhere)
            with writer_on_error(writer):
                writer.copy_records(source, found.records)
        else:
            target = path
            stack.close()  # HDF5's lock: a file that is open for reading cannot be opened for writing
            writer = RunWriter.reopen(path, variables=variables, records=found.records)
            with writer_on_error(writer):
                writer.note(history_line())
        keeper = Keeper(case, solver, writer, run_id, found.number + 1, notify)
        drive(case, solver, writer, variables, times, keeper, interrupts, on_step)
    return open_run(target)


def _taken_up(source, path: Path, extend: float | None, notify) -> tuple[Case, WeightPath, Checkpoint]:
    """What a session goes on with: the case, perhaps with a later end, its weights, and a checkpoint."""
    case = _case_of(source, path)
    found = _checkpoint_of(source, path, case, notify)
    weights = read_weight_path(path)
    if extend is not None:
        case, weights = _extended(case, weights, extend)
    _notify_versions(source, notify)
    return case, weights, found


@contextlib.contextmanager
def writer_on_error(writer: RunWriter):
    """Close the file, with the status it deserves, if the block fails; else leave it open."""
    try:
        yield
    except BaseException:
        writer.__exit__(*sys.exc_info())
        raise


def _case_of(source, path: Path) -> Case:
    """The case of a file; refused if its text was changed after the run had begun."""
    attributes = source.attrs
    missing = [name for name in ("id", "sphereflow_backend") if name not in attributes]
    if missing:
        raise CheckpointError(f"{path}: is not the output of a run (it lacks {', '.join(missing)})")
    try:
        case = parse_case(attributes["sphereflow_case"], source=str(path), require_files=False)
    except CaseError as error:
        raise CheckpointError(f"{path}: its case cannot be used any more: {error}") from None
    if case.sha256 != attributes["sphereflow_case_sha256"]:
        raise CheckpointError(f"{path}: its case was changed after the run had begun; start a new run instead")
    return case


def _checkpoint_of(source, path: Path, case: Case, notify) -> Checkpoint:
    if source.attrs["sphereflow_state"] != "complete":
        if not any(name.exists() for name in checkpoint.checkpoint_files(path)):
            notify(f"{path}: has no checkpoint beside it; its run begins anew, with the same weights")
            return Checkpoint(case.sha256, source.attrs["id"], 0, 0, {})
        return checkpoint.load(path, case.sha256, source.attrs["id"], source.sizes["t"], notify)
    content = read_restart(path)
    if content is None:
        raise CheckpointError(f"{path}: does not hold the final state of its run")
    try:
        return Checkpoint.from_bytes(content)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: the final state in it {error}") from None


def _extended(case: Case, weights: WeightPath, t_end: float) -> tuple[Case, WeightPath]:
    """The case with a later end, and its weights, which must begin with those of the run so far."""
    if not t_end > case.solver.t_end:
        raise CaseError(f"--extend: {t_end:g} is not allowed; must be later than the end of the run, {case.solver.t_end:g}")
    longer = parse_case(case.to_toml(), [f"solver.t_end={float(t_end)!r}"], source="case", require_files=False)
    path = build_weight_path(longer)
    frozen = len(weights.time) == 2 and np.array_equal(weights.logits[0], weights.logits[1])
    count = 1 if frozen else len(weights.time)  # of frozen weights only the end moves
    for name in ("time", "logits", "rate", "values", "head_weight"):
        old, new = getattr(weights, name), getattr(path, name)
        shared = slice(None) if name == "head_weight" else slice(count)
        if (old is None) != (new is None) or (old is not None and not np.array_equal(old[shared], new[shared])):
            raise CheckpointError(
                f"heads: the weights sampled to t = {t_end:g} do not begin with those of the run ({name} differs): an input "
                "file has changed, or another version of numpy draws other numbers"
            )
    return longer, path


def _with_backend(case: Case, source) -> Case:
    """The case with the transform library that the run began with, in place of "auto"."""
    if case.solver.kind == "particles":
        return case
    return case.model_copy(
        update={"model": case.model.model_copy(update={"backend": source.attrs["sphereflow_backend"]})}
    )


def _remaining(case: Case, source, records: int) -> np.ndarray:
    """Times of the records that are still to be written."""
    times = record_times(case.solver.t_end, case.output.every)
    return times[times > source["t"].values[records - 1] * (1 + 1e-12)] if records else times


def _notify_versions(source, notify) -> None:
    """Tell if libraries have changed: the last digits may then differ from those of an uninterrupted run."""
    import importlib.metadata

    for name, old in json.loads(source.attrs.get("sphereflow_versions", "{}")).items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if name != "python" and (new := importlib.metadata.version(name)) != old:
                notify(f"{name} was {old} when the run began and is {new} now: last digits may differ")
