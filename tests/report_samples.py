"""Runs whose density is known in closed form, for the tests of the web page."""

import numpy as np

from sphereflow.diagnostics import FIELDS, HEAD_VARIABLES, PARTICLE_WEIGHT, POSITION, SCALARS
from sphereflow.grid import GaussGrid
from sphereflow.heads import WeightPath
from sphereflow.storage import RunWriter

KAPPA = 8.0
ATTRIBUTES = {
    "title": "A turning hill",
    "summary": "A hill that turns around the axis.",
    "source": "sphereflow 0",
    "date_created": "2025-01-01T00:00:00Z",
    "sphereflow_case": 'schema = 1\ntitle = "A turning hill"\n[solver]\nkind = "finite-volume"\nt_end = 10.0\n',
    "sphereflow_case_sha256": "abc",
    "sphereflow_versions": '{"numpy": "2"}',
    "sphereflow_backend": "none",
}


def hill(points, longitude):
    """von Mises-Fisher density about a point of the equator, at unit vectors (..., 3); longitude in degrees."""
    centre = np.array([np.cos(np.radians(longitude)), np.sin(np.radians(longitude)), 0.0])
    return KAPPA / (2 * np.pi * (1 - np.exp(-2 * KAPPA))) * np.exp(KAPPA * (points @ centre - 1))


def centre_of(record, records):
    """Longitude of the hill at a record, degrees: once around in a run."""
    return 360.0 * record / (records - 1)


def _values(record, records):
    """Scalars of a record: smooth, with both signs and zeros, over many orders of magnitude."""
    t = float(record)
    values = {v.name: np.exp(-3 * t) for v in SCALARS}
    decay = 1.4 - 0.1 * t
    values |= {"mass": 1 + 1e-15 * np.sin(t), "energy": decay, "dissipation": 0.1 * np.cos(t), "cluster_count": 1 + record % 3}
    values |= {"weight_work": 0.0, "dissipation_integral": 0.1 * t, "edi_residual": 1e-7 * t, "step": 10 * record}
    values |= {"mean_x": np.cos(t), "mean_y": np.sin(t), "mean_z": 0.0, "second_moment": np.eye(3) / 3}
    values |= {"logits": np.stack([np.eye(3), np.diag([2.0, -t, 0.0])]), "density_min": 1e-9, "density_max": 1.3}
    return values


def _create(path, variables, attributes, **more):
    time = np.array([0.0, 10.0])
    weights = WeightPath(time, np.stack([np.stack([np.eye(3)] * 2)] * 2), np.array([0.5, 0.5]))
    return RunWriter.create(path, variables=variables, attributes={**ATTRIBUTES, **attributes}, weight_path=weights, **more)


def write_density_run(path, nlat=32, records=11, status="complete", density=None, with_field=True, **attributes):
    """A run of the hill; `density(grid, record)` replaces it. Record k is at t = k."""
    grid = GaussGrid(nlat)
    field = FIELDS["density"] if with_field else ()
    with _create(path, (*field, *SCALARS, *HEAD_VARIABLES), attributes, grid=grid) as writer:
        for k in range(records):
            values = hill(grid.points, centre_of(k, records)) if density is None else density(grid, k)
            writer.append({"t": float(k), **({"density": values} if with_field else {}), **_values(k, records)})
        writer.set_status(status)
    return path


def write_token_run(path, records=11, count=40, dimension=3, with_position=True, spacing=1.0, **attributes):
    """Tokens about the centre of the hill, of the weights 1 and 3 in turn; the first one sits right there."""
    rng = np.random.default_rng(1)
    scatter = 0.2 * rng.standard_normal((count, dimension))
    scatter[0] = 0.0
    weight = np.where(np.arange(count) % 2 == 0, 1.0, 3.0)
    names = ("mass", "energy", "step")
    position = (POSITION,) if with_position else ()
    variables = (*position, PARTICLE_WEIGHT, *(v for v in SCALARS if v.name in names))
    more = {"dimensions": {"particle": count, "xyz": dimension}, "coordinates": {"particle_weight": weight / weight.sum()}}
    with _create(path, variables, attributes, **more) as writer:
        for k in range(records):
            angle = np.radians(centre_of(k * spacing, 11))
            position = scatter + np.pad([np.cos(angle), np.sin(angle)], (0, dimension - 2))
            position /= np.linalg.norm(position, axis=1, keepdims=True)
            scalars = {name: _values(k, records)[name] for name in names}
            writer.append({"t": k * spacing, **({"position": position} if with_position else {}), **scalars})
        writer.set_status("complete")
    return path
