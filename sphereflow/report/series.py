"""The curves of a page: which variables are drawn together, and what is derived from them.

Values are rounded to seven digits. On a logarithmic axis values that are not positive are gaps, and curves without any other
value are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

from sphereflow.plotting.records import record_times
from sphereflow.plotting.style import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from sphereflow.report.packing import spread

MOST_RECORDS = 2000
DIGITS = 7
ROUND_OFF = 1e-16  # of the largest value
_CYCLE = (BLUE, RED, GREEN, BLACK, ORANGE, PINK, SKY)
_DASHES = ([], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 4], [14, 4])


@dataclass(frozen=True)
class Curve:
    """One curve: its label and how to get its values from a run; None as `value` takes the variable as it is."""

    name: str
    label: str
    value: Callable | None = None


@dataclass(frozen=True)
class Panel:
    """Curves that share axes."""

    title: str
    curves: tuple[Curve, ...]
    logarithmic: bool = False
    steps: bool = False
    span: float = 0.0  # differences below it are round-off and look flat
    floor: float = 0.0  # of the largest value: what is smaller is round-off and left out of a logarithmic axis


def _variable(name):
    return lambda run: run[name].values


PANELS = (
    Panel(
        "Energy ledger",
        (
            Curve("energy", "E(t) − E(0)", lambda run: run["energy"].values - run["energy"].values[0]),
            Curve("dissipation_integral", "dissipated −∫P dt", lambda run: -run["dissipation_integral"].values),
            Curve("weight_work", "work of the weights W"),
            Curve("edi_residual", "residual"),
        ),
    ),
    Panel(
        "Rates of the flow",
        (
            Curve("dissipation", "dissipation P"),
            Curve("metric_speed_squared", "speed G²"),
            Curve("metric_slope_squared", "slope S²"),
            Curve("gradient_flow_defect", "defect"),
            Curve("dissipation", "gain −P", lambda run: -run["dissipation"].values),
        ),
        logarithmic=True,
        floor=ROUND_OFF,
    ),
    Panel("Energy", (Curve("energy", "E"),)),
    Panel("Order parameter", (Curve("order_parameter", "|∫x ρ|"),), span=1e-9),
    Panel("Clusters", (Curve("cluster_count", "count"),), steps=True),
    Panel(
        "Extremes of the density", (Curve("density_max", "largest"), Curve("density_min", "smallest")), logarithmic=True
    ),
    Panel("Entropy relative to the uniform density", (Curve("entropy", "∫ρ log(4πρ)"),)),
    Panel("Mean position", tuple(Curve(f"mean_{axis}", axis) for axis in "xyz"), span=1e-9),
    Panel(
        "Residual of the energy balance, its size",
        (Curve("edi_residual", "|residual|", lambda run: np.abs(run["edi_residual"].values)),),
        logarithmic=True,
    ),
    Panel("Mass − 1", (Curve("mass", "mass − 1", lambda run: run["mass"].values - 1.0),)),
    Panel(
        "Work of weights with noise",
        (Curve("weight_drift", "drift"), Curve("weight_ito", "Itô"), Curve("weight_martingale", "martingale")),
    ),
    Panel(
        "Eigenvalues of the logit matrices, real parts",
        (
            Curve("logits", "largest of all heads", lambda run: _eigenvalues(run).max(axis=(1, 2))),
            Curve("logits", "smallest", lambda run: _eigenvalues(run).min(axis=(1, 2))),
        ),
    ),
    Panel(
        "Cost and slack of the steps",
        (Curve("movement_cost", "cost"), Curve("movement_slack", "slack")),
        logarithmic=True,
        floor=ROUND_OFF,
    ),
    Panel(
        "Score-based variational flow", (Curve("marginal_nll", "marginal NLL"), Curve("variational_gap", "variational gap"))
    ),
    Panel("Experts", (Curve("gate_entropy", "gate entropy"), Curve("load_imbalance", "load imbalance"))),
    Panel("Time step", (Curve("dt", "dt"),), logarithmic=True),
)


def _eigenvalues(run):
    """Real parts of the eigenvalues of all A_h, shape (m, H, d); NaN where a matrix is not finite."""
    matrices = run["logits"].transpose("t", "head", "row", "col").values
    usable = np.isfinite(matrices).all(axis=(-1, -2))
    values = np.linalg.eigvals(np.where(usable[..., None, None], matrices, 0.0)).real
    return np.where(usable[..., None], values, np.nan)


def collect(run: xr.Dataset) -> tuple[dict, list[str]]:
    """The curves of a run.

    Parameters
    ----------
    run : xarray.Dataset
        What it does not hold is left out.

    Returns
    -------
    dict
        `t` (list of m floats) and `panels`: dicts of the entries of a `Panel` with `curves`, each of these with `label`,
        `name` (of the variable), `about`, `color`, `dash` and `values` (m floats; None is a gap).
    notes : list of str
        What was thinned, in sentences.
    """
    total = record_times(run).size
    records = spread(total, MOST_RECORDS)
    thin = run.isel(t=records) if records.size < total else run  # keeps the first record: the ledger starts there
    thin = thin[[name for name in _wanted() if name in thin]].load()
    panels = [_panel(panel, thin) for panel in PANELS]
    notes = []
    if records.size < total:
        notes.append(f"Curves: {records.size} of {total} records, evenly spread.")
    t = [float(f"{value:.12g}") for value in thin["t"].values]
    return {"t": t, "panels": [panel for panel in panels if panel["curves"]]}, notes


def _wanted():
    return dict.fromkeys(curve.name for panel in PANELS for curve in panel.curves)


def _panel(panel, run):
    present = [curve for curve in panel.curves if curve.name in run]
    with np.errstate(invalid="ignore", over="ignore"):
        arrays = [np.asarray((curve.value or _variable(curve.name))(run), float) for curve in present]
    curves = []
    largest = max((np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in arrays), default=0.0)
    for k, (curve, values) in enumerate(zip(present, arrays, strict=True)):
        usable = np.isfinite(values)
        if panel.logarithmic:
            usable &= values > panel.floor * largest
            if not usable.any():
                continue
        curves.append(
            {
                "name": curve.name,
                "label": curve.label,
                "about": str(run[curve.name].attrs.get("long_name", curve.name)),
                "color": _CYCLE[k],
                "dash": _DASHES[k],
                "values": [float(f"{v:.{DIGITS}g}") if ok else None for v, ok in zip(values.tolist(), usable, strict=True)],
            }
        )
    look = {"title": panel.title, "logarithmic": panel.logarithmic, "steps": panel.steps, "span": panel.span}
    return {**look, "curves": curves}
