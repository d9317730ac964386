"""Checkpoints: the state of a run in a file beside its output, from which it goes on bit for bit.

Format: a line that names the format and its version, a line with the SHA-256 (hexadecimal) of all that follows, then a
.npz archive: the arrays of the state, and in `meta` (JSON) everything else. Any damaged byte is noticed.

Two files, NAME.ckpt-a and NAME.ckpt-b, are written in turn, so that the last two checkpoints exist. One is written under a
temporary name, handed to the disk (fsync), and renamed; before that the output file itself goes to the disk, so that a
checkpoint never counts records that a crash of the machine could take back.
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sphereflow.errors import CheckpointError, OutputError

FORMAT = b"sphereflow checkpoint 2\n"
SUFFIXES = (".ckpt-a", ".ckpt-b")
_DIGEST_LENGTH = 65  # 64 digits and the end of the line


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two steps.

    Attributes
    ----------
    case_sha256 : str
        Of the run's case.
    run_id : str
        The attribute `id` of the output file: the same case may have been run twice.
    number : int
        Checkpoints of a run are numbered; the larger is the newer.
    records : int
        Records in the output file when it was written.
    state : dict
        As from a solver's `state()`: arrays, and what JSON knows.
    """

    case_sha256: str
    run_id: str
    number: int
    records: int
    state: dict

    def to_bytes(self) -> bytes:
        """The content of a checkpoint file."""
        arrays = {f"state.{name}": value for name, value in self.state.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in self.state.items() if not isinstance(value, np.ndarray)}
        meta = {**vars(self), "state": plain}
        archive = io.BytesIO()
        np.savez(archive, meta=np.frombuffer(json.dumps(meta, default=_plain).encode(), np.uint8), **arrays)
        payload = archive.getvalue()
        return FORMAT + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload

    @classmethod
    def from_bytes(cls, content: bytes) -> "Checkpoint":
        """The checkpoint in the content of a file.

        Raises
        ------
        CheckpointError
            If a byte of it is damaged or missing, or it is of another version.
        """
        if not content.startswith(FORMAT):
            if content.startswith(FORMAT.rsplit(b" ", 1)[0]):
                raise CheckpointError("is damaged, or a checkpoint of another version of sphereflow")
            raise CheckpointError("is not a checkpoint, or its beginning is damaged")
        digest, payload = content[len(FORMAT) :][:_DIGEST_LENGTH], content[len(FORMAT) + _DIGEST_LENGTH :]
        if digest != hashlib.sha256(payload).hexdigest().encode() + b"\n":
            raise CheckpointError("is damaged: its checksum is not that of its content")
        with np.load(io.BytesIO(payload), allow_pickle=False) as archive:
            meta = json.loads(archive["meta"].tobytes())
            arrays = {name.removeprefix("state."): archive[name] for name in archive.files if name != "meta"}
        return cls(**{**meta, "state": {**meta["state"], **arrays}})


def _plain(value):
    """What JSON does not know: numpy's scalars."""
    return value.item()


def checkpoint_files(output: Path) -> list[Path]:
    """Names of the two checkpoint files of an output file, whether they exist or not."""
    return [output.with_name(output.name + suffix) for suffix in SUFFIXES]


def save(output: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint, in place of the older one of the two; a crash at any moment leaves the other.

    Raises
    ------
    OutputError
        If it cannot be written; earlier checkpoints are then as they were.
    """
    target = checkpoint_files(output)[checkpoint.number % 2]
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        _flush(output)
        try:
            with open(temporary, "xb") as file:
                file.write(checkpoint.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        _flush(target.parent)
    except OSError as error:
        raise OutputError(f"{target}: cannot write the checkpoint: {error.strerror or error}") from error
    return target


def _flush(path: Path) -> None:
    """Hand a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(
    output: Path, case_sha256: str, run_id: str, records: int, notify: Callable[[str], None] = lambda text: None
) -> Checkpoint:
    """The newest checkpoint beside an output file that can be used.

    Parameters
    ----------
    output : Path
    case_sha256, run_id : str
        Attributes of the output file.
    records : int
        Complete records in it.
    notify : callable
        Told of every checkpoint that cannot be used, and why.

    Raises
    ------
    CheckpointError
        If there is none.
    """
    found, reasons = [], []
    for file in checkpoint_files(output):
        try:
            checkpoint = Checkpoint.from_bytes(file.read_bytes())
            if reason := _unfit(checkpoint, case_sha256, run_id, records):
                raise CheckpointError(reason)
            found.append(checkpoint)
        except FileNotFoundError:
            continue
        except OSError as error:
            reasons.append(f"{file}: cannot be read: {error.strerror}")
        except CheckpointError as error:
            reasons.append(f"{file}: {error}")
    for reason in reasons:
        notify(reason)
    if not found:
        why = "; ".join(reasons) if reasons else "there is none beside it (NAME.ckpt-a, NAME.ckpt-b)"
        raise CheckpointError(f"{output}: no checkpoint to go on from: {why}")
    return max(found, key=lambda checkpoint: checkpoint.number)


def _unfit(checkpoint: Checkpoint, case_sha256: str, run_id: str, records: int) -> str | None:
    if checkpoint.case_sha256 != case_sha256:
        return "belongs to another case"
    if checkpoint.run_id != run_id:
        return "belongs to another run of this case"
    if checkpoint.records > records:
        return f"follows record {checkpoint.records}, but the output file holds {records} only"
    return None


def remove(output: Path) -> None:
    """Delete the checkpoints of an output file and what interrupted writes of them left behind."""
    for file in checkpoint_files(output):
        leftovers = file.parent.glob(f".{_literal(file.name)}.????????.tmp")
        for old in (file, *leftovers):
            with contextlib.suppress(OSError):
                old.unlink(missing_ok=True)


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def move(old: Path, new: Path) -> None:
    """Let checkpoints follow an output file that was renamed; those that the new name had are deleted."""
    remove(new)
    for source, target in zip(checkpoint_files(old), checkpoint_files(new), strict=True):
        with contextlib.suppress(FileNotFoundError):
            os.replace(source, target)
