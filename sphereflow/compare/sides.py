"""One side of a comparison: a density run, a particle run, an imported file or the raw data of others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xarray as xr

from sphereflow.case import parse_case
from sphereflow.cells import node_values
from sphereflow.compare.measures import Measure
from sphereflow.drift import Drift, make_drift
from sphereflow.errors import CaseError, OutputError
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath
from sphereflow.storage import open_run, read_weight_path
from sphereflow.storage.arrays import read_arrays
from sphereflow.storage.importers import FOREIGN, read_foreign
from sphereflow.storage.reader import case_tables

SCALARS = ("energy", "dissipation", "metric_speed_squared")
SAME_TIME = 1e-9  # relative
SAME_WEIGHTS = 1e-8  # relative to the largest entry
MODEL_KEYS = ("velocity", "direction", "diffusion")


@dataclass
class Side:
    """What a comparison needs to know of one run.

    Attributes
    ----------
    name : str
        The file.
    what : str
        "density", "tokens" or "series" (scalars without states).
    t : ndarray, shape (m,)
        Times of the records.
    dimension : int or None
        Dimension d; None for bare series.
    series : mapping of str to ndarray (m,)
        Those of SCALARS that the file holds.
    model : mapping
        velocity, direction, diffusion of the run; empty if unknown.
    is_random : bool
        Whether the tokens are a random sample, so that sampling noise is expected.
    path : WeightPath or None
        Weights of the run; None if unknown.
    facts : mapping
        What imported data say of themselves.
    drift : Drift or None
        Local drift of the run.
    """

    name: str
    what: str
    t: np.ndarray
    dimension: int | None
    series: Mapping[str, np.ndarray]
    model: Mapping[str, object] = field(default_factory=dict)
    is_random: bool = False
    path: WeightPath | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    drift: Drift | None = None
    _states: object = field(default=None, repr=False)
    _file: xr.Dataset | None = field(default=None, repr=False)
    _two_point: bool = False

    def has_state(self, k: int) -> bool:
        """Whether record k holds a density or tokens."""
        if self.what != "tokens":
            return self.what == "density"
        return bool(np.isfinite(self._states[0][k, 0, 0]))

    def close(self) -> None:
        """Close the file; what is not in memory yet cannot be read any more."""
        if self._file is not None:
            self._file.close()

    @property
    def has_start(self) -> bool:
        """Whether the state at t = 0 is known, from which a run can be repeated."""
        return self.t[0] == 0 and self.has_state(0)

    def measure(self, k: int) -> Measure:
        """The state of record k."""
        if self.what == "density":
            return self._density_measure(self.density(k))
        positions, weights = self._states
        present = weights > 0
        return Measure(np.asarray(positions[k], dtype=float)[present], weights[present])

    def density(self, k: int) -> np.ndarray:
        """The density of record k in the cells of its grid, shape (nlat, nlon); for a side whose `what` is "density"."""
        return np.asarray(self._states[k], dtype=float)

    @property
    def cell_area(self) -> np.ndarray:
        """Areas of the cells of the density's grid, shape (nlat,)."""
        return GaussGrid(self.density(0).shape[0]).cell_area

    def _density_measure(self, density):
        grid = GaussGrid(density.shape[0])
        values = density if self._two_point else node_values(grid, density)
        masses = (np.maximum(values, 0.0) * grid.cell_area[:, None]).ravel()
        spread = np.repeat(_cell_radius(grid), grid.nlon)
        present = masses > 0
        masses = masses[present]
        return Measure(grid.points.reshape(-1, 3)[present], masses / masses.sum(), spread[present])


def _cell_radius(grid):
    """Largest angle between the node of a cell and a point of the cell, shape (nlat,).

    It is reached at a corner: the cosine of the angle falls with the difference in longitude, and along a meridian it is a
    sinusoid of the colatitude, whose smallest value on the cell is at one of its ends.
    """
    node, faces = grid.colatitude, np.stack([grid.colatitude_face[:-1], grid.colatitude_face[1:]])
    # sin^2(angle / 2), without the cancellation that the cosine of a small angle suffers.
    across = np.sin(node) * np.sin(faces) * np.sin(grid.dlon / 4) ** 2
    return 2 * np.arcsin(np.sqrt(np.sin((faces - node) / 2) ** 2 + across)).max(axis=0)


def open_side(path) -> Side:
    """Open a run of sphereflow, an imported file, or the data of others (.pt, .npz, .csv); close it after use.

    Raises
    ------
    CaseError, OutputError
        If it cannot be read or holds nothing to compare.
    """
    path = Path(path)
    return _foreign_side(path) if path.suffix in FOREIGN else _run_side(path)


def _foreign_side(path):
    run = read_foreign(path)
    series = {name: run.series[name] for name in SCALARS if name in run.series}
    has_tokens = run.position is not None
    return Side(
        name=str(path), what="tokens" if has_tokens else "series", t=run.t, series=series, is_random=has_tokens,
        dimension=run.position.shape[2] if has_tokens else None, facts=run.facts,
        _states=(run.position, run.weight) if has_tokens else None,
    )  # fmt: skip


def _run_side(path):
    run = open_run(path)
    case = case_tables(run.attrs)
    solver = case.get("solver", {})
    states, what = None, "series"
    if "position" in run:
        states, what = (_Lazy(run["position"]), run["particle_weight"].values), "tokens"
    elif "density" in run:
        states, what = _Lazy(run["density"]), "density"
    dimension = run.sizes.get("row") if case else run.sizes.get("xyz")
    try:
        weights = read_weight_path(path)
    except OutputError:
        weights = None
    imported = json.loads(run.attrs["sphereflow_import"]) if "sphereflow_import" in run.attrs else {}
    return Side(
        name=str(path), what=what, t=run["t"].values, dimension=dimension,
        series={name: run[name].values for name in SCALARS if name in run},
        model={key: case["model"][key] for key in MODEL_KEYS if key in case.get("model", {})},
        is_random=what == "tokens" and not solver.get("quadrature", False), path=weights, facts=imported,
        drift=_drift(case),
        _states=states, _file=run,
        _two_point=solver.get("kind") == "minimizing-movement" or solver.get("reconstruction") == "two-point",
    )  # fmt: skip


def _drift(case):
    """The local drift of a stored case, or None; files that it names must still be there."""
    if not {"experts", "experts_file", "mlp"} & case.get("model", {}).keys():
        return None
    model = parse_case(case, require_files=False).model
    return make_drift(model, model.dimension, read_arrays)


class _Lazy:
    """Records of a variable, each read when asked for."""

    def __init__(self, variable: xr.DataArray):
        self._variable = variable

    def __getitem__(self, index):
        return self._variable[index].values


def common_times(a: Side, b: Side) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the records of both sides at the times they share.

    Raises
    ------
    CaseError
        If they share none.
    """
    nearest = np.searchsorted(b.t, a.t)
    candidates = np.stack([np.clip(nearest - 1, 0, b.t.size - 1), np.clip(nearest, 0, b.t.size - 1)])
    distance = np.abs(b.t[candidates] - a.t)
    best = candidates[np.argmin(distance, axis=0), np.arange(a.t.size)]
    scale = max(abs(a.t[-1]), abs(b.t[-1]), np.finfo(float).tiny)
    same = np.flatnonzero(distance.min(axis=0) <= SAME_TIME * scale)
    if not same.size:
        raise CaseError(f"{a.name} and {b.name} have no common times: {_times(a)} and {_times(b)}")
    return same, best[same]


def _times(side):
    if side.t.size == 1:
        return f"t = {side.t[0]:g}"
    return f"{side.t.size} records from t = {side.t[0]:g} to {side.t[-1]:g}, spaced {side.t[1] - side.t[0]:g}"


def differences(a: Side, b: Side, times: Sequence[float]) -> list[str]:
    """In what the two sides differ that should be the same: model, direction, weights; in words."""
    found = [
        f"model.{key} is {a.model[key]!r} and {b.model[key]!r}"
        for key in MODEL_KEYS
        if key in a.model and key in b.model and a.model[key] != b.model[key]
    ]
    if a.path is None or b.path is None:
        known = next((side.path for side in (a, b) if side.path is not None), None)
        heads = next((side.facts["H"] for side in (a, b) if "H" in side.facts), None)
        if known is not None and heads is not None and known.logits.shape[1] != heads:
            found.append(f"the number of heads is {known.logits.shape[1]} and {heads}")
        return found
    if a.path.logits.shape[1:] != b.path.logits.shape[1:]:
        return [*found, f"the matrices have the shapes {a.path.logits.shape[1:]} and {b.path.logits.shape[1:]}"]
    if np.abs(a.path.head_weight - b.path.head_weight).max() > SAME_WEIGHTS:
        found.append("the weights of the heads (heads.weights) differ")
    found += _matrices_apart("logit", [side.path.logits_at for side in (a, b)], times)
    if (a.path.values is None) != (b.path.values is None):
        found.append("one has value matrices of its own (heads.values), the other not")
    elif a.path.values is not None:
        found += _matrices_apart("value", [side.path.values_at for side in (a, b)], times)
    return found


def _matrices_apart(name, evaluate, times):
    """A sentence on the time at which the matrices of two paths are furthest apart, if they differ."""
    pairs = [(t, evaluate[0](t), evaluate[1](t)) for t in times]
    apart = [np.abs(x - y).max() for _, x, y in pairs]
    largest = max(np.abs(x).max() for _, x, _ in pairs)
    worst = int(np.argmax(apart))
    if apart[worst] <= SAME_WEIGHTS * max(largest, 1.0):
        return []
    return [f"the {name} matrices differ by up to {apart[worst]:.3g} (at t = {pairs[worst][0]:g})"]
