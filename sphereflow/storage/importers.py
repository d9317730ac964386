"""Readers of particle data that others have made, and their conversion to a particle file of sphereflow.

* .pt: results of the public code of arXiv 2605.18870 (see `pickles` for how they are read without torch);
* .npz: arrays `t` (m,), positions (m, n, d) or (n, d) named positions, position, traj or x, optionally `weights` (n,);
  or `x_first`, `x_last`; and the public code's scalars E, G2, dE_int, G2_int, add_int;
* .csv: columns x, y[, z][, weight][, t], with a header line of these names or, in this order, without.

Data without the matrices of the heads have no energy of their own: what a file does not say is left out.
"""

import datetime
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sphereflow.diagnostics import NOISE_SCALARS, PARTICLE_WEIGHT, POSITION, SCALARS, Variable, moment_variables
from sphereflow.errors import CaseError
from sphereflow.initial import check_tokens
from sphereflow.storage.arrays import array_names, read_all_arrays, read_arrays, read_csv, require_file
from sphereflow.storage.arrays import read_tokens as arrays_read_tokens
from sphereflow.storage.pickles import read_pickle
from sphereflow.storage.writer import RunWriter

FOREIGN = (".pt", ".npz", ".csv")  # suffixes of data that `read_foreign` takes
SPHERES = ("s2", "s1", "hd")
# Scalar series of the public code and what sphereflow calls them.
SERIES = {
    "E": "energy",
    "G2": "metric_speed_squared",
    "G2_int": "metric_speed_integral",
    "add_int": "weight_martingale",
    "E_std": "energy_std",
    "G2_std": "metric_speed_squared_std",
}
POSITION_NAMES = ("positions", "position", "traj", "x")
CSV_NAMES = ("x", "y", "z", "weight", "t")


@dataclass(frozen=True)
class ForeignRun:
    """Particle data of somebody else.

    Attributes
    ----------
    t : ndarray, shape (m,)
        Times, increasing.
    position : ndarray, shape (m, n, d), or None
        Tokens; NaN at times without tokens. None if the file has none that lie on the sphere.
    weight : ndarray, shape (n,), or None
        Weights of the tokens, of sum 1.
    series : mapping of str to ndarray, shape (m,)
        Scalars by their name in sphereflow.
    facts : mapping of str to (str, int or float)
        What else the file says, such as "H" or "noise_var".
    notes : tuple of str
        What a user should know about the data.
    """

    t: np.ndarray
    position: np.ndarray | None
    weight: np.ndarray | None
    series: Mapping[str, np.ndarray] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_foreign(path: str | Path, normalize: bool = False) -> ForeignRun:
    """Read particle data of others.

    Parameters
    ----------
    path : str or Path
        A .pt, .npz or .csv file.
    normalize : bool
        Project tokens that are off the sphere to it instead of refusing (or, in averages, leaving out) them.

    Raises
    ------
    CaseError
        If the file is missing, damaged, of an unknown layout (the message names the keys found), or holds tokens off
        the sphere, entries that are not finite, no token, or other columns.
    """
    path = Path(path)
    require_file(path)
    try:
        read = dict(zip(FOREIGN, (_read_pt, _read_npz, _read_csv), strict=True))[path.suffix]
    except KeyError:
        kind = path.suffix or "a file without suffix"
        raise CaseError(f"{path}: cannot import {kind}; must be .pt, .npz or .csv") from None
    return read(path, normalize)


def _read_pt(path, normalize):
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise CaseError(f"{path}: holds a {type(content).__name__}; expected the dictionary of a result")
    spheres = [key for key in SPHERES if isinstance(content.get(key), dict)]
    if len(spheres) != 1:
        raise CaseError(
            f"{path}: unknown layout; found the keys {_listed(content)}, expected one of {', '.join(SPHERES)} with the "
            "series of a run"
        )
    run = content[spheres[0]]
    arrays = {key: value for key, value in run.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiu"}
    if "t" not in arrays:
        raise CaseError(f"{path}: unknown layout; {spheres[0]} has the keys {_listed(run)}, expected t among them")
    facts = {str(key): value for key, value in content.items() if isinstance(value, str | int | float) and value is not True}
    name = "traj" if "traj" in arrays else "mean_traj"
    return _assemble(path, arrays, arrays.get(name), None, normalize, facts, averaged=name == "mean_traj")


def _listed(mapping):
    return ", ".join(sorted(map(str, mapping))) or "none"


# ---------------------------------------------------------------------------------------------------------- .npz, .csv
def _read_npz(path, normalize):
    arrays = read_all_arrays(path)
    found = [name for name in POSITION_NAMES if name in arrays]
    if "x_first" in arrays and not found:
        return _assemble(path, arrays, *_ends(path, arrays), normalize, {}, ends=True)
    if len(found) != 1 and not (not found and "t" in arrays and "E" in arrays):
        raise CaseError(
            f"{path}: unknown layout; found the arrays {_listed(arrays)}, expected positions as one of "
            f"{', '.join(POSITION_NAMES)} or x_first and x_last"
        )
    position = arrays[found[0]] if found else None
    if position is not None and position.ndim == 2:
        position = position[None]
        arrays = {**arrays, "t": np.atleast_1d(arrays.get("t", 0.0)).ravel()}
    elif "t" not in arrays:
        raise CaseError(f"{path}: no array 't' with the times of {found[0]}; the file has: {_listed(arrays)}")
    return _assemble(path, arrays, position, arrays.get("weights"), normalize, {})


def _ends(path, arrays):
    """Positions at the first and last of the times, NaN between."""
    first, last = arrays["x_first"], arrays.get("x_last")
    if "t" not in arrays or arrays["t"].ndim != 1 or arrays["t"].size < 1 or first.ndim != 2:
        raise CaseError(f"{path}: x_first has shape {first.shape} and needs an array t of times (m,)")
    position = np.full((arrays["t"].size, *first.shape), np.nan)
    position[0] = first
    if last is not None and arrays["t"].size > 1:
        if last.shape != first.shape:
            raise CaseError(f"{path}: x_last has shape {last.shape}, x_first {first.shape}; must be the same")
        position[-1] = last
    return position, arrays.get("weights")


def _read_csv(path, normalize):
    names, table = _csv_table(path)
    column = {name: table[:, k] for k, name in enumerate(names)}
    position = np.stack([column[name] for name in ("x", "y", "z") if name in column], axis=-1)
    time = column.get("t", np.zeros(len(table)))
    if not np.isfinite(time).all():
        raise CaseError(f"{path}: the time of row {int(np.argmin(np.isfinite(time)))} is not finite")
    times, group, counts = np.unique(time, return_inverse=True, return_counts=True)
    if counts.min() != counts.max():
        least, most = times[np.argmin(counts)], times[np.argmax(counts)]
        raise CaseError(
            f"{path}: {counts.min()} tokens at t = {least:g}, {counts.max()} at t = {most:g}; must be the same number"
        )
    order = np.argsort(group, kind="stable")
    shape = (times.size, counts[0])
    weight = None
    if "weight" in column:
        weights = column["weight"][order].reshape(shape)
        if not np.isfinite(weights).all():
            raise CaseError(f"{path}: the weight of row {int(np.argmin(np.isfinite(column['weight'])))} is not finite")
        if not np.array_equal(weights, np.broadcast_to(weights[0], shape)):
            raise CaseError(f"{path}: weights change in time; each token must keep its own")
        weight = weights[0]
    return _assemble(path, {"t": times}, position[order].reshape(*shape, -1), weight, normalize, {})


def _csv_table(path):
    """Column names and numbers (rows, columns) of a .csv file."""
    header, table = read_csv(path)
    if table.size == 0 and header is None:
        raise CaseError(f"{path}: holds no tokens")
    names = header or list(CSV_NAMES[: table.shape[1]])
    proper = len(set(names)) == len(names) and set(names) <= set(CSV_NAMES) and {"x", "y"} <= set(names)
    if not proper or (header is None and not 3 <= table.shape[1] <= 5):
        found = ", ".join(header) if header else f"{table.shape[1]} columns without names"
        raise CaseError(f"{path}: {found}; expected the columns x, y, z and optionally weight and t")
    if table.size == 0:
        raise CaseError(f"{path}: holds no tokens")
    return names, table


# ----------------------------------------------------------------------------------------------------------- the result
def _assemble(path, arrays, position, weight, normalize, facts, averaged=False, ends=False):
    """Check everything and put it together."""
    t = np.asarray(arrays["t"], dtype=float)
    if t.ndim != 1 or t.size < 1 or not np.isfinite(t).all() or not (np.diff(t) > 0).all():
        raise CaseError(f"{path}: array 't' must hold finite, increasing times (m,); its shape is {t.shape}")
    series = {}
    for name, value in arrays.items():
        if name in SERIES or name == "dE_int":
            if value.shape != t.shape:
                raise CaseError(f"{path}: array {name!r} has shape {value.shape}; expected {t.shape} as t has")
            series[SERIES.get(name, name)] = np.asarray(value, dtype=float)
    work = series.pop("dE_int", None)
    if work is not None:
        series["weight_work"] = work + series.get("weight_martingale", 0.0)
    notes = []
    if position is not None:
        position = np.asarray(position, dtype=float)
        if position.ndim != 3 or len(position) != t.size or position.shape[2] < 2:
            shape = f"({t.size}, n, d) with n >= 1 and d >= 2"
            raise CaseError(f"{path}: positions have shape {position.shape}; expected {shape} for {t.size} times")
        off = np.abs(np.linalg.norm(position, axis=2) - 1)
        if averaged and not normalize and np.nanmax(off, initial=0.0) > 1e-6:
            notes.append(
                f"its token paths are averages of several runs that leave the sphere by up to {np.nanmax(off):.2g}; "
                "they are left out (--normalize projects them)"
            )
            position = None
        else:
            position, weight = _on_sphere(path, t, position, weight, normalize, ends)
    return ForeignRun(t, position, weight if position is not None else None, series, facts, tuple(notes))


def _on_sphere(path, t, position, weight, normalize, ends):
    """Positions on the sphere to round-off (with `ends`, times that have none stay NaN) and weights of sum 1."""
    out = np.full(position.shape, np.nan)
    empty = np.isnan(position).all(axis=(1, 2)) if ends else np.zeros(t.size, bool)
    for k in np.flatnonzero(~empty):
        source = f"{path}: t = {t[k]:g}" if t.size > 1 else str(path)
        out[k], total = check_tokens(
            position[k], weight, source, normalize, position.shape[2], remedy="use --normalize (in Python normalize=True)"
        )
    return out, total


def read_tokens(path: str | Path) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a token set: positions (n, d) and weights (n,) or None, for a case that starts from it.

    Besides the forms of `sphereflow.storage.arrays.read_tokens` this takes the first record of a particle file of
    sphereflow (.nc) and of the data of others (.pt, and .npz with times).

    Raises
    ------
    CaseError
        If the file cannot be read or holds no tokens.
    """
    path = Path(path)
    require_file(path)
    names = array_names(path) if path.suffix in (".npz", ".nc") else ()
    if path.suffix == ".nc" and {"position", "particle_weight"} <= set(names):
        arrays = read_arrays(path, ("position", "particle_weight"))
        return arrays["position"][0], arrays["particle_weight"]
    if path.suffix == ".pt" or (path.suffix == ".npz" and "t" in names):
        run = read_foreign(path)
        if run.position is None:
            raise CaseError(f"{path}: holds no tokens: {' '.join(run.notes) or 'only scalars'}")
        return run.position[0], run.weight
    return arrays_read_tokens(path)


# ------------------------------------------------------------------------------------------------------ to our own file
_STD = {
    f"{name}_std": Variable(f"{name}_std", ("t",), "1", f"standard deviation of {name} over the averaged runs")
    for name in ("energy", "metric_speed_squared")
}


class _Moments:
    """What the table of variables asks of a snapshot, for bare tokens."""

    def __init__(self, position, weight):
        self.mean = weight @ position
        self.second_moment = position.T @ (weight[:, None] * position)


def import_run(path: str | Path, output: str | Path, normalize: bool = False, force: bool = False) -> ForeignRun:
    """Turn particle data of others into a particle file of sphereflow.

    Parameters
    ----------
    path, normalize
        As in `read_foreign`.
    output : path-like
        The netCDF file to make.
    force : bool
        Move an existing file to NAME.bak instead of refusing.

    Returns
    -------
    ForeignRun
        What was found.

    Raises
    ------
    CaseError, OutputError
    """
    path = Path(path)
    run = read_foreign(path, normalize)
    known = {variable.name: variable for variable in (*SCALARS, *NOISE_SCALARS)} | _STD
    variables, layout, moments = [known[name] for name in run.series], {}, ()
    if run.position is not None:
        count, dimension = run.position.shape[1:]
        moments = moment_variables(dimension)
        variables += [POSITION, PARTICLE_WEIGHT, *moments]
        layout["dimensions"] = {"particle": count, "xyz": dimension, "row": dimension, "col": dimension}
        layout["coordinates"] = {"particle_weight": run.weight}
    attributes = _import_attributes(path, run)
    with RunWriter.create(
        output, variables=variables, attributes=attributes, weight_path=None, force=force, **layout
    ) as writer:
        for k, t in enumerate(run.t):
            record = {"t": t, **{name: values[k] for name, values in run.series.items()}}
            if run.position is not None:
                tokens = _Moments(run.position[k], run.weight)
                record |= {"position": run.position[k], **{v.name: v.value(tokens) for v in moments}}
            writer.append(record)
        writer.set_status("complete")
    return run


def _import_attributes(path, run):
    """Global attributes of an imported file: where the data come from."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = {key: value for key, value in run.facts.items() if isinstance(value, str | int | float)}
    notes = "".join(f" Note: {note}." for note in run.notes)
    return {
        "title": f"Particle data imported from {path.name}",
        "summary": f"Particle data of other software, read from {path.name}.{notes}",
        "history": f"{now}: imported from {path.name}",
        "date_created": now,
        "sphereflow_case": "# imported: there is no case\n",
        "sphereflow_case_sha256": "",
        "sphereflow_import": json.dumps({"file": path.name, "sha256": digest, **facts}),
    }
