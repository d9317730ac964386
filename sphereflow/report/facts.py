"""The words of a page: what became of the run, its books, where it comes from."""

import json
from pathlib import Path

import xarray as xr

from sphereflow import __version__

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Attributes that the page shows elsewhere, or not at all.
_SHOWN = ("title", "summary", "source", "date_created", "history", "id", "references", "Conventions")
_OWN = (
    "sphereflow_case", "sphereflow_case_sha256", "sphereflow_backend", "sphereflow_versions", "sphereflow_status",
    "sphereflow_state", "sphereflow_seed", "sphereflow_token_seed",
)  # fmt: skip


def conservation(summary: dict) -> list[tuple[str, str, str]]:
    """Rows of the conservation table: quantity, value, what it means; of a `storage.run_summary`."""
    relative = summary["edi_residual_relative"]
    rows = (
        ("mass drift", _form(summary["mass_drift"], ".2e"), "largest |mass − 1| of all records"),
        ("smallest density", _form(summary["density_min"], ".4g"), "of all records and cells"),
        ("energy at the first record", _form(summary["energy_first"], ".9g"), "E(0)"),
        ("energy at the last record", _form(summary["energy_last"], ".9g"), "E"),
        ("work of the weights", _form(summary["weight_work"], ".6g"), "W, what the moving weights put in"),
        ("dissipated", _form(summary["dissipation_integral"], ".6g"), "∫P dt, what the flow took out"),
        ("residual", _form(summary["edi_residual"], ".3e"), "E − E(0) − W + ∫P dt, what is left unexplained"),
        ("residual, relative", _form(relative, ".2e"), "|residual| / ∫|P| dt, the turnover of energy"),
    )
    slack = _form(summary["movement_slack_min"], ".2e")
    rows = (*rows, ("least slack", slack, "of the steps’ energy inequality: at least 0, but for rounding"))
    return [row for row in rows if row[1] is not None]


def _form(value, form):
    """A number for people: 6.7·10⁻¹⁶; None stays None."""
    if value is None:
        return None
    mantissa, _, power = format(value, form).partition("e")
    return mantissa.replace("-", "−") + ("·10" + str(int(power)).translate(_RAISED) if power else "")


def provenance(run: xr.Dataset, summary: dict, particles: xr.Dataset | None, particles_path) -> list[tuple[str, str]]:
    """Rows of the provenance table: what, value. Attributes that sphereflow does not know are shown too."""
    get = run.attrs.get
    grid = f"{summary['nlat']} × {summary['nlon']}" if summary["nlat"] else None
    records = f"{summary['records']}, t = {summary['t_first']:g} to {summary['t_last']:g}"
    rows = {
        "file": f"{Path(summary['path']).name} ({summary['bytes'] / 1e6:.1f} MB)",
        "status": summary["status"] if summary["state"] == summary["status"] else f"{summary['state']} ({summary['status']})",
        "records": records + (f", {summary['steps']} steps" if summary["steps"] is not None else ""),
        "solver": summary["solver"],
        "velocity": summary["velocity"],
        "heads": summary["heads"],
        "grid": grid,
        "tokens": summary["particles"],
        "program": get("source"),
        "created": get("date_created"),
        "transform library": get("sphereflow_backend"),
        "versions": _versions(get("sphereflow_versions")),
        "seed of the heads": get("sphereflow_seed"),
        "seed of the tokens": get("sphereflow_token_seed"),
        "hash of the case (SHA-256)": get("sphereflow_case_sha256"),
        "command": get("history"),
        "identifier": get("id"),
        "references": get("references"),
    }
    if particles is not None:
        told = (Path(particles_path).name, particles.attrs.get("title"), particles.attrs.get("source"))
        rows["tokens laid over"] = ", ".join(str(part) for part in told if part)
    rows |= {name: value for name, value in run.attrs.items() if name not in _SHOWN + _OWN}
    rows["this page"] = f"sphereflow {__version__}"
    return [(name, str(value)) for name, value in rows.items() if value is not None]


def _versions(text):
    """"numpy 2.4, scipy 1.17" from the JSON of the attribute; anything else as it is."""
    try:
        return ", ".join(f"{name} {version}" for name, version in json.loads(text).items())
    except (TypeError, ValueError, AttributeError):
        return text


def nothing_to_see(run: xr.Dataset) -> str | None:
    """Why there is no sphere, and how there would be one; None if there is one."""
    if "density" in run or "position" in run:
        return None
    field = "position" if "particle" in run.sizes else "density"
    return (
        f'The file holds no {field} to show on a sphere: the run was asked for series only. output.fields = ["{field}"] in the '
        "case stores it."
    )
