"""One session of a run: from a solver and an open output file to the end, to an interrupt, or to an error.

A session writes the records, makes checkpoints, listens to signals and judges the result. Between two steps a run can be
put down and taken up again bit for bit: the first SIGINT or SIGTERM is honoured there, after a checkpoint. A second one
ends the run at once, without a checkpoint of that moment; the file stays valid and the last checkpoint holds.
"""

import contextlib
import ctypes
import os
import signal
import threading
import time as clock
from collections.abc import Callable

import numpy as np

from sphereflow.case import Case
from sphereflow.diagnostics import Variable, record
from sphereflow.errors import OutputError, RunInterrupted
from sphereflow.simulation import run_to_end
from sphereflow.storage import RunWriter, checkpoint
from sphereflow.storage.checkpoint import Checkpoint
from sphereflow.storage.reader import turnover

MASS_BOUND = 1e-12
RESIDUAL_BOUND = 1e-3  # of int |P|
ROUNDING = 1e-13  # of the energy: residuals below are rounding, also where nothing dissipates
ARRAYS_KEPT = 16  # size of the blocks that are kept when they are freed, in arrays of the grid
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Listens to SIGINT and SIGTERM while in its `with` block (in the main thread; elsewhere it does nothing).

    At first a signal raises KeyboardInterrupt at once. After `defer()` the first one only sets `received`, and the second
    one raises; more are ignored. A signal that was ignored before (nohup) stays ignored.
    """

    def __init__(self):
        self.received: str | None = None
        self._deferring = False
        self._before = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def defer(self) -> None:
        """From now on let the first signal wait until the run looks at `received`."""
        self._deferring = True

    def _handle(self, number, _frame) -> None:
        name = signal.Signals(number).name
        if self._deferring and self.received is None:
            self.received = name
            return
        for other in self._before:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt(name)


class Keeper:
    """Makes the checkpoints of a session.

    Parameters
    ----------
    case : Case
    solver
    writer : RunWriter
    run_id : str
        Attribute `id` of the output file.
    number : int
        Number of the first checkpoint.
    notify : callable
        Told when a checkpoint in mid-run could not be written; the run goes on.
    """

    def __init__(self, case: Case, solver, writer: RunWriter, run_id: str, number: int, notify: Callable[[str], None]):
        self._case_sha256, self._run_id, self._every = case.sha256, run_id, case.output.checkpoint_every
        self._solver, self._writer, self._number, self._notify = solver, writer, number, notify
        self._last = clock.monotonic()

    def checkpoint(self) -> Checkpoint:
        """The present state."""
        return Checkpoint(self._case_sha256, self._run_id, self._number, self._writer.records, self._solver.state())

    def save(self) -> None:
        """Write a checkpoint now.

        Raises
        ------
        OutputError
            If that is not possible.
        """
        checkpoint.save(self._writer.path, self.checkpoint())
        self._number += 1
        self._last = clock.monotonic()

    def save_if_due(self) -> None:
        """Write a checkpoint if `output.checkpoint_every` seconds have passed since the last one."""
        if not 0 < self._every <= clock.monotonic() - self._last:
            return
        try:
            self.save()
        except OutputError as error:
            self._notify(f"{error}; the run goes on")
            self._number += 1  # the other name may do
            self._last = clock.monotonic()


def keep_freed_memory(size: int) -> None:
    """Ask the C library to keep what a step frees for the next one, where it is glibc and nobody has told it otherwise.

    By default it gives blocks back to the system that are as large as arrays of the grid, and the system has to clear new pages
    in the next step: that takes longer than the fluxes. Blocks much larger than such arrays are given back as ever.

    Parameters
    ----------
    size : int
        Numbers in an array of the grid, or in the positions of all tokens.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    largest = min(max(8 * ARRAYS_KEPT * size, 1 << 20), 32 << 20)  # bytes; glibc takes no more than 32 MiB
    mallopt(_MMAP_THRESHOLD, largest)
    mallopt(_TRIM_THRESHOLD, 8 * largest)


def drive(
    case: Case, solver, writer: RunWriter, variables: tuple[Variable, ...], times: np.ndarray, keeper: Keeper,
    interrupts: Interrupts, on_step: Callable[[object], None] | None = None,
) -> str:  # fmt: skip
    """Run to the end, writing a record at each of `times`; closes the file and returns the status it got.

    Raises
    ------
    RunInterrupted
        After a first signal; there is a checkpoint of that moment.
    KeyboardInterrupt
        After a second one.
    OutputError, NumericalError
        The file holds the records so far, and the last checkpoint is kept.
    """
    keep_freed_memory(solver.positions.size if case.solver.kind == "particles" else 2 * case.grid.nlat**2)

    def after_step():
        if on_step:
            on_step(solver)
        keeper.save_if_due()
        _end_if_told_to(interrupts)

    with writer:
        interrupts.defer()
        try:
            if case.output.checkpoint_every > 0:
                keeper.save()
            for snapshot in run_to_end(solver, times, after_step):
                writer.append({"t": snapshot.t, **record(snapshot, variables)})
                _end_if_told_to(interrupts)
            status = judge(case, writer)
            writer.store_restart(keeper.checkpoint().to_bytes())
        except RunInterrupted as error:
            _put_down(solver, writer, keeper, error)
        except OutputError:
            with contextlib.suppress(OutputError):
                keeper.save()  # the failed write has given its reserve back to the disk: there may be room
            raise
        writer.set_status(status)
    checkpoint.remove(writer.path)
    return status


def _end_if_told_to(interrupts: Interrupts) -> None:
    if interrupts.received is not None:
        raise RunInterrupted(interrupts.received)


def _put_down(solver, writer: RunWriter, keeper: Keeper, error: RunInterrupted) -> None:
    """The last actions of an interrupted session."""
    missing = ""
    try:
        keeper.save()
    except OutputError as trouble:
        missing = f"; {trouble}; an earlier checkpoint holds"
    writer.set_status("interrupted")
    raise RunInterrupted(
        f"interrupted ({error}) at t = {solver.t:g}, step {solver.step}; {writer.path} holds {writer.records} records"
        f"{missing}; go on with: sphereflow resume {writer.path}"
    ) from None


def _remedy(case: Case) -> str:
    """What makes the energy residual of a run smaller."""
    if case.solver.kind == "particles":
        return "a smaller solver.dt"
    return f"a smaller solver.{'error_tolerance' if case.solver.dt is None else 'dt'} or a finer grid"


def judge(case: Case, writer: RunWriter) -> str:
    """The status of a run that came to its end: "complete", or "complete (warning: ...)" if its books do not balance.

    Mass must stay 1 within `MASS_BOUND`, the energy residual within `RESIDUAL_BOUND` of int |P|. Minimising movements
    promise an inequality instead of a balance: no step's slack may be negative beyond rounding.
    """
    warnings = []
    energy = float(np.abs(writer.series("energy")).max())
    drift = float(np.abs(writer.series("mass") - 1).max())
    if not drift <= MASS_BOUND:
        warnings.append(f"mass drift {drift:.1e} > {MASS_BOUND:g}")
    if case.solver.kind == "minimizing-movement":
        slack = float(writer.series("movement_slack_min").min())
        if not slack >= -ROUNDING * energy:
            warnings.append(f"movement_slack_min {slack:.1e} < 0")
    else:
        residual = abs(float(writer.series("edi_residual")[-1]))
        dissipated = turnover(writer.series("dissipation_integral"))
        if not np.isfinite([energy, residual, dissipated]).all():
            warnings.append("energy residual unknown, as energies are beyond the range of floating-point numbers")
        elif not residual <= RESIDUAL_BOUND * dissipated + ROUNDING * energy:
            share = residual / dissipated if dissipated > 0 else np.inf
            warnings.append(f"energy residual {share:.1e} > {RESIDUAL_BOUND:g} of int |P|; {_remedy(case)} lowers it")
    return f"complete (warning: {'; '.join(warnings)})" if warnings else "complete"
