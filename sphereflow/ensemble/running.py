"""The runs of an ensemble handed out to workers, by dask.distributed: on this machine or on a cluster that is running.

A few more runs than there are workers are handed out at any time, the next as one comes back: the memory of the parent does
not grow with the number of runs. What computes a run and where it goes is fixed beforehand, so that the number of workers, the
order in which runs end, and how often they are begun change nothing in the results.
"""

import os
import queue
import time as clock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sphereflow.ensemble.cluster import connected, require_distributed
from sphereflow.ensemble.manifest import Manifest, Session, look_at_folder, now
from sphereflow.ensemble.member import run_member, state_of_file
from sphereflow.ensemble.plan import Plan, check_inputs, describe, plan_ensemble
from sphereflow.errors import CaseError, ClusterError, OutputError, RunInterrupted
from sphereflow.sessions import Interrupts

ATTEMPTS = 2  # a run that fails is tried once more
_TURN = 1.0  # seconds between two looks at the workers
_GRACE = 120.0  # seconds that members get to put themselves down
_ELSEWHERE_PATIENCE = 20.0  # see StopRequest
_FIRST = 8  # runs handed out while there is no worker yet: adaptive clusters start workers for tasks they see


@dataclass(frozen=True)
class EnsembleResult:
    """What has become of an ensemble.

    Attributes
    ----------
    manifest : Path
        Its manifest; `open_ensemble` opens it.
    runs : list of dict
        The manifest's entries.
    """

    manifest: Path
    runs: list[dict]

    @property
    def failed(self) -> list[dict]:
        """Runs that failed in their last attempt."""
        return [run for run in self.runs if run["status"] == "failed"]

    def open(self):
        """All finished runs as one lazy dataset, see `open_ensemble`."""
        from sphereflow.ensemble.dataset import open_ensemble

        return open_ensemble(self.manifest)


def run_ensemble(
    case,
    *,
    members: int,
    vary: Mapping[str, Sequence] | None = None,
    folder: str | os.PathLike | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    scheduler: str | None = None,
    on_progress: Callable[[Manifest], None] = lambda manifest: None,
    notify: Callable[[str], None] = lambda text: None,
) -> EnsembleResult:
    """Run a case with many seeds, and many values of chosen keys; go on if that was begun before.

    Scripts that call it with local workers must do so under ``if __name__ == "__main__":``, since the worker processes are
    spawned and import the script.

    Parameters
    ----------
    case : path of a case file, dict of its tables, or Case
    members : int
        Number of seeds; member m of a case with seed s has the seed (s, m).
    vary : mapping of str to sequence, optional
        Keys and their values, such as {"heads.count": [1, 2, 5]}; all combinations are run, each with all members.
    folder : path-like, optional
        Where the output files and the manifest go; it is created, but not its parent. Default: the case's output file
        without its suffix, with "-ensemble".
    overrides : sequence of str
        Settings such as "grid.nlat=32" for all runs.
    workers : int, optional
        Number of worker processes on this machine; default: as many as there are cores.
    scheduler : str, optional
        Address of a running dask scheduler, "tcp://host:port", whose workers share this file system; not with `workers`.
    on_progress : callable
        Called with the manifest when the session begins, whenever a run has ended, and about once a second.
    notify : callable
        Told, in sentences, of what goes wrong without ending the ensemble.

    Returns
    -------
    EnsembleResult
        Also if runs have failed (after a second attempt): look at `failed`.

    Raises
    ------
    CaseError, BackendError
        If the arguments, or the case of any run, are not valid, the scheduler cannot be reached, or dask is not installed.
        Nothing is written.
    OutputError
        If the folder holds something else, or a manifest of another case or other arguments.
    ClusterError
        If the scheduler was lost (the same call goes on), or no workers could be started here.
    RunInterrupted
        After SIGINT or SIGTERM: runs in progress are put down with a checkpoint. The same call goes on.
    """
    require_distributed()
    if scheduler is not None and workers is not None:
        raise CaseError("workers: is not allowed with a scheduler, which has its own; give one of the two")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise CaseError(f"workers: {workers!r} is not allowed; must be an integer >= 1")
    plan = plan_ensemble(case, members, vary, overrides)
    if folder is None:
        folder = Path(plan.runs[0].case.output.file).stem + "-ensemble"
    folder = Path(os.path.abspath(folder))
    planned = Manifest.of_plan(folder, plan)
    found = look_at_folder(folder, planned)
    if found is not None and _is_finished(found):
        notify(f"{folder}: all {len(plan.runs)} runs are complete already")
        on_progress(found)
        return EnsembleResult(found.path, found.runs)
    for text in check_inputs(plan, local=scheduler is None):
        notify(text)
    wanted = min(workers or len(os.sched_getaffinity(0)), len(plan.runs))
    with Interrupts() as interrupts:
        interrupts.defer()  # workers that are still starting cannot be ended in good order
        try:
            with connected(wanted, scheduler) as client:
                if interrupts.received is not None:
                    raise RunInterrupted(f"interrupted ({interrupts.received}) before the first run; nothing was written")
                _create(folder)
                with Session(folder) as session:
                    manifest = look_at_folder(folder, planned) or planned
                    crew = _Crew(plan, manifest, session, client, scheduler, interrupts, on_progress, notify)
                    crew.work()
        except ClusterError:
            if interrupts.received is None:
                raise
            # a signal to all processes has ended the workers as well
            raise RunInterrupted(f"interrupted ({interrupts.received}); the same command goes on") from None
    return EnsembleResult(manifest.path, manifest.runs)


def _is_finished(manifest: Manifest) -> bool:
    return all(run["status"] == "complete" and manifest.file_of(run).exists() for run in manifest.runs)


def _create(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot create the folder: {error.strerror}") from None


class _Crew:
    """One session of an ensemble: hands out runs, takes in results, keeps the manifest."""

    def __init__(self, plan: Plan, manifest, session, client, scheduler, interrupts, on_progress, notify):
        self.plan, self.manifest, self.session, self.client = plan, manifest, session, client
        self.scheduler, self.interrupts, self.on_progress, self._notify = scheduler, interrupts, on_progress, notify
        self.waiting: deque[int] = deque()
        self.outstanding = {}  # index of a run -> future
        self.results = queue.SimpleQueue()
        self.attempts = dict.fromkeys(range(len(plan.runs)), 0)
        self.anew = set()
        self.events = []
        self.workers: set[str] | None = None
        self.looked = 0.0

    def work(self) -> None:
        """Bring all runs to their end, or to that of the session."""
        record = {"began": now(), "ended": None, "outcome": "running", "scheduler": self.scheduler, "events": self.events}
        self.manifest.content["sessions"].append(record)
        self._take_stock()
        self.manifest.save()
        outcome = "error"
        try:
            self._look_at_workers()
            record["workers"] = len(self.workers)
            self._loop()
            outcome = "complete" if self.manifest.count("complete") == len(self.plan.runs) else "some runs failed"
        except KeyboardInterrupt as error:
            outcome = f"interrupted ({error})"
            raise
        except ClusterError as error:
            outcome = str(error)
            raise
        finally:
            self.session.stop_members()
            self._adopt(self.outstanding)
            record |= {"ended": now(), "outcome": outcome}
            self.manifest.save()

    def _take_stock(self) -> None:
        """What an earlier session left: finished runs stay, all others are waiting, failed ones get two new attempts."""
        runs = self.manifest.runs
        for run in runs:
            if run["status"] == "complete" and not self.manifest.file_of(run).exists():
                self.notify(f"{run['file']}: is gone; it is run again")
                run |= {"status": "pending", "warning": None}
        self._adopt(index for index, run in enumerate(runs) if run["status"] != "complete")
        self.waiting.extend(index for index, run in enumerate(runs) if run["status"] != "complete")
        self.anew = {index for index in self.waiting if runs[index]["status"] == "failed"}
        for index in self.waiting:
            runs[index] |= {"status": "pending", "error": None, "traceback": None}
        if len(self.manifest.content["sessions"]) > 1:
            self.notify(f"{self.manifest.folder}: goes on; {self._tally()}", event=False)
        self.on_progress(self.manifest)

    def _adopt(self, indices) -> None:
        """Take note of runs that are complete although nobody said so: the worker, the scheduler or we ended too early."""
        for index in list(indices):
            run = self.manifest.runs[index]
            if run["status"] == "complete":
                continue
            found = state_of_file(self.manifest.file_of(run), run["case_sha256"])
            if found and found["state"] == "complete":
                run |= {"status": "complete", "warning": found["warning"], "error": None, "traceback": None}
                run["notes"].append("found complete")
            elif found and run["status"] == "pending":
                run["status"] = "interrupted"

    def _loop(self) -> None:
        while self.waiting or self.outstanding:
            self._hand_out()
            try:
                self._take_in(*self.results.get(timeout=_TURN))
                self.manifest.save(at_once=False)
            except queue.Empty:
                self.on_progress(self.manifest)
            finally:
                if self.interrupts.received is not None:
                    self._put_down()
            if clock.monotonic() - self.looked >= _TURN:  # it costs a message
                self._look_at_workers()

    def _hand_out(self) -> None:
        """Give out waiting runs, up to two for each worker."""
        limit = 2 * len(self.workers) or _FIRST
        while self.waiting and len(self.outstanding) < limit:
            index = self.waiting.popleft()
            self.attempts[index] += 1
            key = f"sphereflow-{self.session.token}-{index}-{self.attempts[index]}"
            future = self.client.submit(run_member, self._task(index), key=key, pure=False)
            self.outstanding[index] = future
            future.add_done_callback(lambda done, index=index: self.results.put((index, done)))

    def _task(self, index: int) -> dict:
        run = self.plan.runs[index]
        settings = [part for text in run.settings for part in ("--set", text)]
        return {
            "case": run.case.to_toml(),
            "output": str(self.manifest.folder / run.file),
            "anew": index in self.anew,
            "command": ["sphereflow", "run", Path(self.plan.source).name or "case.toml", *settings],
            "session": {
                "path": str(self.session.path),
                "token": self.session.token,
                "patience": 0.0 if self.scheduler is None else _ELSEWHERE_PATIENCE,
            },
        }

    def _take_in(self, index: int, future) -> None:
        """Judge a future that is done."""
        if self.outstanding.get(index) is not future:
            return
        if future.status in ("cancelled", "lost"):
            raise ClusterError(self._lost())
        del self.outstanding[index]
        run, name = self.manifest.runs[index], self.name_of(index)
        if future.status == "finished":
            result = future.result()
        else:
            result = _of_error(future.exception())
        run["attempts"] += 1
        run["notes"] += result["notes"]
        run |= {key: result[key] for key in ("status", "warning", "error", "traceback", "seconds", "cpu_seconds", "host")}
        if run["status"] == "complete" and not self.manifest.file_of(run).exists():
            text = f"the worker on {run['host']} has written it, but it cannot be seen here: workers must share the file system"
            run |= {"status": "failed", "error": text}
        if run["status"] == "interrupted" and not self.manifest.file_of(run).exists():
            run["status"] = "pending"  # it had not begun
        for note in result["notes"]:
            self.notify(f"{name}: {note}", event=False)
        if result["status"] == "interrupted" and self.interrupts.received is None:
            self._try_again(index, "was stopped from outside")
        elif run["status"] == "failed":
            if result["numerical"]:
                self.anew.add(index)
            self._try_again(index, f"failed: {run['error']}")
        self.on_progress(self.manifest)

    def _try_again(self, index: int, reason: str) -> None:
        run, name = self.manifest.runs[index], self.name_of(index)
        if self.attempts[index] < ATTEMPTS and self.interrupts.received is None:
            self.notify(f"{name} {reason}; it is tried once more")
            run["notes"].append(f"attempt {run['attempts']} {reason}")
            run |= {"status": "pending", "error": None}
            self.waiting.append(index)
        else:
            run |= {"status": "failed", "error": run["error"] or reason}
            self.notify(f"{name} {reason}")

    def _look_at_workers(self) -> None:
        """Notice workers that come and go, and a scheduler that is gone."""
        self.looked = clock.monotonic()
        try:
            found = set(self.client.nthreads())
        except Exception:  # whatever dask makes of a connection that is dead, or slow: it decides which of the two
            found = self.workers
        if self.client.status != "running" or found is None:
            raise ClusterError(self._lost())
        if self.workers is not None:
            for address in sorted(self.workers - found):
                self.notify(f"the worker {address} is gone; what it was running is given to another")
            if self.workers and not found:
                self.notify("there are no workers any more; waiting for new ones", event=False)
        elif not found:
            self.notify("the scheduler has no workers yet; waiting for them", event=False)
        self.workers = found

    def _put_down(self) -> None:
        """After a signal: wait until the members that are running have made their checkpoints."""
        self.session.stop_members()
        self.waiting.clear()
        end = clock.monotonic() + _GRACE
        while self.outstanding and clock.monotonic() < end:
            try:
                self._take_in(*self.results.get(timeout=_TURN))
            except queue.Empty:
                self._look_at_workers()
        raise RunInterrupted(f"interrupted ({self.interrupts.received}): {self._tally()}; the same command goes on")

    def _lost(self) -> str:
        self._adopt(self.outstanding)
        where = self.scheduler or "on this machine"
        return f"the scheduler {where} was lost; {self._tally()}; the same command goes on"

    def _tally(self) -> str:
        failed = self.manifest.count("failed")
        return f"{self.manifest.count('complete')} of {len(self.plan.runs)} runs are complete" + (
            f", {failed} failed" if failed else ""
        )

    def name_of(self, index: int) -> str:
        """A run in words."""
        run = self.plan.runs[index]
        return ", ".join([f"member {run.member}", *([describe(run.parameters)] if run.parameters else [])])

    def notify(self, text: str, event: bool = True) -> None:
        """Tell the user, and the manifest if it is worth keeping."""
        if event:
            self.events.append(f"{now()}: {text}")
        self._notify(text)


def _of_error(error: BaseException) -> dict:
    """What dask reports in place of a result: workers that died again and again, or a function that cannot be loaded."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if type(error).__name__ == "KilledWorker":
        text = f"the {error.allowed_failures + 1} workers that were given it died (out of memory?)"
    return {
        "status": "failed", "warning": None, "error": text, "numerical": False, "traceback": None, "notes": [],
        "seconds": None, "cpu_seconds": None, "host": None,
    }  # fmt: skip
