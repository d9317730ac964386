"""The manifest of an ensemble: what is known about each of its runs, as JSON in the ensemble's folder.

It is always replaced as a whole (written under a temporary name, handed to the disk, renamed), so that nobody reads half of
one. It may lag behind the output files by some seconds, which costs nothing: the files themselves say whether they are
complete, and an ensemble that goes on looks at them first.

One process at a time works on a folder. It holds a lock on the hidden file ``.session`` and has written its token there;
members look at the token between their steps and put themselves down, with a checkpoint, when it is another one: that stops
members everywhere, also those that still run on a cluster for a parent that was killed.
"""

import contextlib
import datetime
import difflib
import fcntl
import json
import os
import secrets
import time as clock
from pathlib import Path

from sphereflow import __version__
from sphereflow.case import setting
from sphereflow.ensemble.plan import Plan
from sphereflow.errors import OutputError

NAME = "manifest.json"
FORMAT = "sphereflow ensemble 1"
SESSION = ".session"
STATUSES = ("pending", "complete", "failed", "interrupted")
_STOP = "stop"
_SHOWN = 6
_AT_LEAST = 1.0  # seconds between two replacements: a thousand quick members would spend their time on it


class Manifest:
    """The manifest of one ensemble, in memory and on disk.

    Attributes
    ----------
    path : Path
        The JSON file.
    content : dict
        As in the file: `format`, `source` (version), `created`, `case` (case file), `case_text` (resolved case of the first
        run), `overrides`, `members`, `vary`, `sessions` and `runs`. A run has `member`, `parameters`, `settings`, `seeds`,
        `case_sha256`, `file`, `status` (one of `STATUSES`), `warning`, `error`, `traceback`, `attempts`, `notes`, `seconds`,
        `cpu_seconds` and `host`.
    """

    def __init__(self, path: Path, content: dict):
        self.path, self.content = path, content
        self._saved = -float("inf")

    @classmethod
    def of_plan(cls, folder: Path, plan: Plan) -> "Manifest":
        """A new manifest, which is not yet on disk."""
        blank = {
            "status": "pending", "warning": None, "error": None, "traceback": None, "attempts": 0, "notes": [],
            "seconds": None, "cpu_seconds": None, "host": None,
        }  # fmt: skip
        runs = [
            {
                "member": run.member,
                "parameters": run.parameters,
                "settings": list(run.settings),
                "seeds": run.seeds,
                "case_sha256": run.case.sha256,
                "file": run.file,
                **blank,
                "notes": [],
            }
            for run in plan.runs
        ]
        content = {
            "format": FORMAT, "source": f"sphereflow {__version__}", "created": now(), "case": plan.source,
            "case_text": plan.runs[0].case.to_toml(), "overrides": list(plan.overrides), "members": plan.members,
            "vary": {key: list(values) for key, values in plan.vary.items()}, "sessions": [], "runs": runs,
        }  # fmt: skip
        return cls(folder / NAME, json.loads(json.dumps(content)))  # tuples become lists, as when read back

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Manifest":
        """Read a manifest.

        Parameters
        ----------
        path : path-like
            The file, or the folder it is in.

        Raises
        ------
        OutputError
            If it is missing, unreadable or no manifest of this version.
        """
        path = Path(os.path.abspath(path))
        if path.is_dir():
            path = path / NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise OutputError(f"{path}: cannot read the manifest of an ensemble: {error.strerror}") from None
        except ValueError as error:  # JSON's and UTF-8's errors are ones
            raise OutputError(f"{path}: is not the manifest of an ensemble, or damaged: {error}") from None
        found = content.get("format") if isinstance(content, dict) else None
        if found != FORMAT:
            raise OutputError(f"{path}: is not the manifest of an ensemble: format is {found!r}, expected {FORMAT!r}")
        return cls(path, content)

    @property
    def folder(self) -> Path:
        """Folder of the manifest and the output files."""
        return self.path.parent

    @property
    def runs(self) -> list[dict]:
        """Entries of the runs, in the order of the plan."""
        return self.content["runs"]

    def count(self, status: str) -> int:
        """Number of runs with a status."""
        return sum(run["status"] == status for run in self.runs)

    def file_of(self, run: dict) -> Path:
        """Output file of a run."""
        return self.folder / run["file"]

    def save(self, at_once: bool = True) -> None:
        """Replace the file on disk; without `at_once` not if that was done a moment ago.

        Raises
        ------
        OutputError
            If it cannot be written; the old one is then still there.
        """
        if not at_once and clock.monotonic() - self._saved < _AT_LEAST:
            return
        temporary = self.path.with_name(f".{NAME}.{secrets.token_hex(4)}.tmp")
        try:
            try:
                with open(temporary, "x", encoding="utf-8") as file:
                    json.dump(self.content, file, indent=1)
                    file.write("\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self.path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"{self.path}: cannot write the manifest: {error.strerror or error}") from error
        self._saved = clock.monotonic()

    def require_same(self, planned: "Manifest") -> None:
        """Refuse to go on with another ensemble.

        Raises
        ------
        OutputError
            If the case or the arguments are not those of this manifest; the message says what differs.
        """
        changes = [
            f"{name} was {_shown(name, self.content[name])} and is {_shown(name, planned.content[name])} now"
            for name in ("members", "vary", "overrides")
            if self.content[name] != planned.content[name]
        ]
        keys = ("member", "case_sha256", "settings", "file")
        if not changes and [[r[k] for k in keys] for r in self.runs] != [[r[k] for k in keys] for r in planned.runs]:
            changes = ["the case was changed" + _changed_lines(self.content["case_text"], planned.content["case_text"])]
        if changes:
            raise OutputError(
                f"{self.folder}: holds another ensemble, which this one cannot go on with: {'; '.join(changes)}; choose "
                "another --output, or give the case and arguments it began with"
            )


def _shown(name: str, value) -> str:
    if name == "vary":
        return "; ".join(f"{key}={','.join(setting('', v)[1:] for v in values)}" for key, values in value.items()) or "nothing"
    return str(value)


def _changed_lines(old: str, new: str) -> str:
    """The lines of a case that differ, as " (- old, + new)"."""
    lines = [line for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line[:1] in "+-"]
    more = f", and {len(lines) - _SHOWN} more lines" if len(lines) > _SHOWN else ""
    return f" ({', '.join(lines[:_SHOWN])}{more})" if lines else ""


def now() -> str:
    """The time, as it stands in manifests."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def look_at_folder(folder: Path, planned: Manifest) -> Manifest | None:
    """The manifest that a folder holds already, or None if it may be begun anew; nothing is changed.

    Raises
    ------
    OutputError
        If it cannot be created, is no folder, or holds something else or another ensemble.
    """
    if not os.path.lexists(folder):
        if not folder.parent.is_dir():
            raise OutputError(f"{folder}: cannot create the folder in {folder.parent}: there is no such folder")
        return None
    if not folder.is_dir():
        raise OutputError(f"{folder}: is not a folder; choose another --output")
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise OutputError(f"{folder}: cannot be read: {error.strerror}") from None
    if NAME not in names:
        if names:
            raise OutputError(
                f"{folder}: holds something else ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''}) and no ensemble; "
                "choose another --output"
            )
        return None
    found = Manifest.load(folder)
    found.require_same(planned)
    return found


class Session:
    """The right of this process to work on a folder; see the module's notes.

    Attributes
    ----------
    token : str
        What members of this session look for in the file.
    path : Path
    """

    def __init__(self, folder: Path):
        self.path, self.token = folder / SESSION, secrets.token_hex(8)
        self._descriptor = None

    def __enter__(self) -> "Session":
        try:
            self._take()
            self._write(self.token)
        except OSError as error:
            self.__exit__()
            raise OutputError(f"{self.path.parent}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, *_) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def stop_members(self) -> None:
        """Let the members that are running put themselves down."""
        with contextlib.suppress(OSError):
            self._write(_STOP)

    def _take(self) -> None:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise OutputError(f"{self.path.parent}: another process is working on this ensemble") from None
            except OSError:  # a file system without locks
                pass
            self._descriptor = descriptor
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == os.stat(self.path).st_ino:
                    return
            os.close(descriptor)  # the file was removed by the process before us, between opening and locking
            self._descriptor = None

    def _write(self, text: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)
        os.fsync(self._descriptor)


class StopRequest:
    """Looks, now and then, whether a session has told its members to stop.

    Parameters
    ----------
    path : str
        The file of the session.
    token : str
        Its token.
    patience : float
        Seconds for which a file that is not there means nothing: other machines see a new file late.
    """

    _PAUSE = 0.5

    def __init__(self, path: str, token: str, patience: float):
        self._path, self._token, self._patience = path, token, patience
        self._present = self._last = clock.monotonic()
        self._stopped = False

    def __call__(self, at_once: bool = False) -> bool:
        """Whether to stop."""
        moment = clock.monotonic()
        if self._stopped or (not at_once and moment - self._last < self._PAUSE):
            return self._stopped
        self._last = moment
        try:
            text = Path(self._path).read_text()
        except OSError:
            text = ""
        if text == self._token:
            self._present = moment
        self._stopped = text != self._token and (bool(text) or moment - self._present >= self._patience)
        return self._stopped
