"""The web page of a run: what is packed into it, what it says, and what becomes of bad input. The browser has its own file."""

import base64
import html
import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import report_samples as samples

import sphereflow
from sphereflow.cli import main
from sphereflow.errors import CaseError, OutputError
from sphereflow.grid import GaussGrid
from sphereflow.report import packing, write_report
from sphereflow.report.series import PANELS, collect

ROOT = Path(__file__).parents[1]
LIMIT = 15_000_000


def unpack(data):
    """The integers of a data block, written after the description of the format alone; shape (n,), record after record."""
    low, high = np.frombuffer(zlib.decompress(base64.b64decode(data)), np.uint8).reshape(2, -1).astype(np.uint16)
    return low + (high << 8)


def integrate_changes(changes, records):
    return np.cumsum(changes.reshape(records, -1), axis=0, dtype=np.uint16)


def page_data(text):
    return json.loads(re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text, re.DOTALL)[1])


def block(text, name):
    return re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', text, re.DOTALL)[1]


# ------------------------------------------------------------------------------------------------------------- packing
@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
def test_packed_integers_come_back(dtype):
    kind = np.iinfo(dtype)
    values = np.random.default_rng(0).integers(kind.min, kind.max, (5, 3, 4), dtype=dtype, endpoint=True)
    found = integrate_changes(unpack(base64.b64encode(packing.pack(values))), 5)
    assert np.array_equal(found.astype(dtype).reshape(values.shape), values)


@pytest.mark.parametrize("low, high", [(0.0, 3.0), (1e-9, 800.0), (0.0795, 0.0797), (-1e-3, 2.0), (0.5, 0.5)])
def test_quantised_densities_are_within_the_stated_error(low, high):
    density = low + (high - low) * np.concatenate([np.linspace(0, 1, 3001), np.geomspace(1e-12, 1, 3001)])
    q = packing.quantise(density, low, high).astype(float)
    found = low + (high - low) * (q / 65535) ** 2
    bound = np.sqrt(np.maximum((density - low) * (high - low), 0)) / 65535 + (high - low) / (4 * 65535**2)
    assert np.all(np.abs(found - density) <= bound * (1 + 1e-6) + 1e-15 * high)
    assert bound.max() <= 1.6e-5 * (high - low)


@pytest.mark.parametrize("fine, coarse", [(32, 16), (30, 16), (144, 128)])
def test_coarse_means_keep_mass_constants_and_the_masses_of_caps(fine, coarse):
    a, b = GaussGrid(fine), GaussGrid(coarse)
    rings, columns = packing.coarsening(a, b)
    assert np.allclose(rings @ np.ones(a.shape) @ columns.T, 1.0, rtol=0, atol=1e-13)
    density = np.random.default_rng(2).random(a.shape)
    means = rings @ density @ columns.T
    assert np.isclose(b.integrate(means), a.integrate(density), rtol=1e-13)
    # The mass north of a coarse face is that of the piecewise constant density.
    north = np.interp(-b.z_face, -a.z_face, np.append(0, np.cumsum(a.cell_area * density.sum(axis=1))))
    assert np.allclose(np.append(0, np.cumsum(b.cell_area * means.sum(axis=1))), north, rtol=1e-12, atol=1e-13)


def test_coarse_columns_are_where_they_were():
    a, b = GaussGrid(64), GaussGrid(16)
    rings, columns = packing.coarsening(a, b)
    means = rings @ samples.hill(a.points, 90.0) @ columns.T
    assert np.abs(means - samples.hill(b.points, 90.0)).max() < 0.08
    assert np.unravel_index(means.argmax(), means.shape)[1] == 8


def test_spread_keeps_the_ends():
    assert packing.spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert packing.spread(1, 10).tolist() == [0]
    found = packing.spread(1001, 11)
    assert found.size == 11 and found[0] == 0 and found[-1] == 1000 and np.ptp(np.diff(found)) <= 1


def test_densities_are_thinned_until_they_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "FIELD_BYTES", 30_000)
    noise = np.random.default_rng(3)
    path = samples.write_density_run(tmp_path / "a.nc", 16, 60, density=lambda grid, k: noise.random(grid.shape))
    with sphereflow.open_run(path) as run:
        packed = packing.pack_density(run)
    assert 15 < len(packed.records) < 60 and packed.records[[0, -1]].tolist() == [0, 59]
    assert len(base64.b64decode(packed.data)) <= 30_000
    assert f"{len(packed.records)} of 60 records" in packed.notes[0]


def test_large_grids_are_coarsened_and_records_that_are_not_finite_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "MOST_RINGS", 16)

    def density(grid, k):
        return np.full(grid.shape, np.nan) if k == 1 else samples.hill(grid.points, 90.0 * k)

    path = samples.write_density_run(tmp_path / "a.nc", 48, 4, density=density)
    text = write_report(path).path.read_text(encoding="utf-8")
    data = page_data(text)
    assert data["frames"] == [0, 2, 3] and (data["density"]["nlat"], data["density"]["nlon"]) == (16, 32)
    assert "16 × 32 cells (means over those of the run, 48 × 96; mass is kept)" in text and "not finite are left out" in text


def test_tokens_are_those_nearest_in_time(tmp_path):
    path = samples.write_token_run(tmp_path / "b.nc", records=9, spacing=0.5)  # t = 0 ... 4
    with sphereflow.open_run(path) as run:
        packed, frame = packing.pack_tokens(run, np.array([0.0, 1.1, 2.0, 4.2, 9.0]))
    assert packed.t.tolist() == [0.0, 1.0, 2.0, 4.0]
    assert frame.tolist() == [0, 1, 2, 3, -1]


def test_many_tokens_are_thinned(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "TOKEN_BYTES", 6 * 11 * 10)
    path = samples.write_token_run(tmp_path / "b.nc", count=40)
    with sphereflow.open_run(path) as run:
        packed, _ = packing.pack_tokens(run)
        position = run.position.values
    assert len(packed.index) == 10 and "10 of 40 tokens" in packed.notes[0]
    found = integrate_changes(unpack(packed.data), 11).astype(np.int16).reshape(11, 10, 3) / 32767
    assert np.abs(found - position[:, packed.index]).max() <= 1.6e-5


# -------------------------------------------------------------------------------------------------------------- curves
def test_curves_hold_the_runs_values_and_gaps(tmp_path):
    with sphereflow.open_run(samples.write_density_run(tmp_path / "a.nc")) as run:
        curves, notes = collect(run)
        energy, dissipation = run.energy.values, run.dissipation.values
    panels = {panel["title"]: {curve["label"]: curve["values"] for curve in panel["curves"]} for panel in curves["panels"]}
    assert not notes and curves["t"] == list(range(11))
    assert np.allclose(panels["Energy ledger"]["E(t) − E(0)"], energy - energy[0], rtol=1e-6)
    rates = panels["Rates of the flow"]["dissipation P"]
    assert [v is None for v in rates] == (dissipation <= 0).tolist() and None in rates
    gains = panels["Rates of the flow"]["gain −P"]
    assert [v is None for v in gains] == (dissipation >= 0).tolist() and any(gains)
    eigenvalues = panels["Eigenvalues of the logit matrices, real parts"]
    assert eigenvalues["largest of all heads"] == [2.0] * 11 and eigenvalues["smallest"] == [0.0, *(-k for k in range(1, 11))]


def test_long_series_are_thinned_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr("sphereflow.report.series.MOST_RECORDS", 5)
    with sphereflow.open_run(samples.write_density_run(tmp_path / "a.nc", 8, 21)) as run:
        curves, notes = collect(run)
    assert curves["t"] == [0, 5, 10, 15, 20] and notes == ["Curves: 5 of 21 records, evenly spread."]


def test_curves_are_variables_that_runs_record():
    from sphereflow.diagnostics import EXPERT_VARIABLES, FLOW_SCALARS, HEAD_VARIABLES, MOVEMENT_SCALARS, NOISE_SCALARS, SCALARS

    known = {v.name for v in (*SCALARS, *NOISE_SCALARS, *FLOW_SCALARS, *EXPERT_VARIABLES, *MOVEMENT_SCALARS, *HEAD_VARIABLES)}
    assert {curve.name for panel in PANELS for curve in panel.curves} <= known


# ------------------------------------------------------------------------------------------------------------ the page
CASES = {
    "octahedron_oscillating": ["grid.nlat=16", "initial.kappa=10", "solver.t_end=0.2"],
    "movement_equilibrium": ["grid.nlat=16", "solver.t_end=20"],
    "tokens_oscillating": ["solver.count=50", "solver.t_end=0.2"],
    "tokens_dimension5": ["solver.t_end=0.1", "output.every=0.1"],
}


@pytest.mark.parametrize("case", CASES)
def test_page_of_every_solver(case, tmp_path, capsys):
    sphereflow.run(ROOT / f"cases/{case}.toml", tmp_path / "run.nc", overrides=CASES[case]).close()
    assert main(["report", str(tmp_path / "run.nc"), "-o", str(tmp_path / "page.html")]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == str(tmp_path / "page.html") and "MB" in out and "records" in err
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = page_data(text)
    tokens = case.startswith("tokens")
    assert (data["tokens"] is not None) == tokens and (data["density"] is None) == tokens
    assert data["frames"][0] == 0 and len(data["frames"]) >= 2
    for word in ("Conservation", "mass drift", "Provenance", "transform library", "[heads]", "hash of the case"):
        assert word in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)  # nothing from outside
    assert ('id="state"' in text) is False


def test_stored_density_is_that_of_the_run(tmp_path):
    path = samples.write_density_run(tmp_path / "a.nc", 32, 7)
    text = write_report(path, tmp_path / "a.html").path.read_text(encoding="utf-8")
    d = page_data(text)["density"]
    q = integrate_changes(unpack(block(text, "density-data")), 7).reshape(7, 32, 64)
    with sphereflow.open_run(path) as run:
        expected = run.density.values
    assert np.abs(d["low"] + (d["high"] - d["low"]) * (q / 65535.0) ** 2 - expected).max() <= 1.6e-5 * np.ptp(expected)
    assert np.allclose(d["colatitude"], GaussGrid(32).colatitude) and d["uniform"] == 1 / (4 * np.pi)


def test_text_of_files_is_escaped(tmp_path):
    evil = "</title></script><script>alert('x')</script><img src=x onerror=alert(1)> & \"q\""
    names = ("title", "summary", "sphereflow_case", "history", "note")
    path = samples.write_density_run(tmp_path / "a.nc", 8, 2, **dict.fromkeys(names, evil))
    text = write_report(path).path.read_text(encoding="utf-8")
    assert "<script>alert" not in text and "<img" not in text
    assert text.count(html.escape("<script>alert(")) >= 5
    assert text.count("<script") == 3  # data of the page, of the density, and the page's own script


def test_policy_of_the_page_allows_its_own_script_only(tmp_path):
    text = write_report(samples.write_density_run(tmp_path / "a.nc", 8, 2)).path.read_text(encoding="utf-8")
    assert "Permission is hereby granted, free of charge" in text  # uPlot's licence goes with its code
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1])
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "connect-src" not in policy


@pytest.mark.parametrize(
    "status, words",
    [
        ("interrupted", "Interrupted: 3 records, up to t = 2 of 10"),
        ("running", "Interrupted: 3 records"),
        ("failed: density became negative <b>", "Failed: 3 records, up to t = 2 of 10 (density became negative &lt;b&gt;)"),
        ("complete (warning: steep)", "Complete (warning: steep)"),
    ],
)
def test_runs_that_did_not_end_well_say_so(status, words, tmp_path):
    path = samples.write_density_run(tmp_path / "a.nc", 8, 3, status=status)
    text = write_report(path).path.read_text(encoding="utf-8")
    assert words in re.search(r'id="state"[^>]*>(.*?)</p>', text)[1]


def test_run_without_fields_says_how_to_store_them(tmp_path):
    made = write_report(samples.write_density_run(tmp_path / "a.nc", with_field=False))
    text = html.unescape(made.path.read_text(encoding="utf-8"))
    assert made.frames == 0 and 'output.fields = ["density"]' in text and len(page_data(text)["curves"]["panels"]) > 5
    made = write_report(samples.write_token_run(tmp_path / "b.nc", with_position=False))
    assert 'output.fields = ["position"]' in html.unescape(made.path.read_text(encoding="utf-8"))


def test_one_record_and_a_uniform_density(tmp_path):
    uniform = 1 / (4 * np.pi)
    path = samples.write_density_run(tmp_path / "a.nc", 8, 1, density=lambda grid, k: np.full(grid.shape, uniform))
    made = write_report(path)
    d = page_data(made.path.read_text(encoding="utf-8"))["density"]
    assert made.frames == 1 and d["low"] == d["high"] == uniform and not d["logarithmic"]


def test_tokens_over_a_density(tmp_path):
    path = samples.write_density_run(tmp_path / "a.nc", 8)
    tokens = samples.write_token_run(tmp_path / "b.nc", title="The <tokens>")
    text = write_report(path, particles=tokens).path.read_text(encoding="utf-8")
    data = page_data(text)
    assert data["tokens"]["count"] == 40 and data["tokens"]["frame"] == list(range(11)) and data["density"]
    assert "The &lt;tokens&gt;" in text


# ----------------------------------------------------------------------------------------------------------- bad input
def test_existing_page_is_kept(tmp_path, capsys):
    path = samples.write_density_run(tmp_path / "a.nc", 8, 2)
    (tmp_path / "a.html").write_text("precious")
    assert main(["report", str(path)]) == 4
    assert "--force" in capsys.readouterr().err and (tmp_path / "a.html").read_text() == "precious"
    assert main(["report", str(path), "--force"]) == 0
    assert (tmp_path / "a.html.bak").read_text() == "precious" and "<!DOCTYPE html>" in (tmp_path / "a.html").read_text("utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.html.bak", "a.nc"]


def test_the_page_never_takes_the_place_of_the_run(tmp_path):
    path = samples.write_density_run(tmp_path / "a.nc", 8, 2)
    with pytest.raises(CaseError, match="is the run itself"):
        write_report(path, path, force=True)
    tokens = samples.write_token_run(tmp_path / "b.nc")
    with pytest.raises(CaseError, match="is the run itself"):
        write_report(path, tokens, particles=tokens, force=True)
    assert path.stat().st_size and not list(tmp_path.glob("*.bak"))


def test_bad_input_is_named_and_leaves_nothing(tmp_path):
    empty = samples.write_density_run(tmp_path / "empty.nc", 8, 0)
    run = samples.write_density_run(tmp_path / "run.nc", 8)
    tokens = samples.write_token_run(tmp_path / "tokens.nc")
    late = samples.write_token_run(tmp_path / "late.nc", records=3, spacing=40.0)
    (tmp_path / "text.nc").write_text("no run")
    before = sorted(tmp_path.iterdir())
    for arguments, more, error, words in [
        (empty, {}, CaseError, "holds no record"),
        (tmp_path / "text.nc", {}, OutputError, "not a readable netCDF file"),
        (tmp_path / "none.nc", {}, OutputError, "No such file"),
        (run, {"output": tmp_path / "no" / "page.html"}, OutputError, "No such file"),
        (run, {"particles": run}, CaseError, "holds no positions of tokens"),
        (tokens, {"particles": run}, CaseError, "the run holds tokens itself"),
        (run, {"particles": samples.write_token_run(tmp_path / "circle.nc", dimension=2)}, CaseError, "have dimension 2"),
    ]:
        with pytest.raises(error, match=words):
            write_report(arguments, **{"output": tmp_path / "page.html", **more})
    assert write_report(run, particles=late, output=tmp_path / "late.html").frames == 11  # t = 0 is there
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "circle.nc", tmp_path / "late.html"])


def test_tokens_at_other_times_are_refused(tmp_path):
    def later(grid, k):
        return samples.hill(grid.points, 0)

    run = samples.write_density_run(tmp_path / "run.nc", 8, 3, density=later)
    tokens = samples.write_token_run(tmp_path / "tokens.nc", records=2, spacing=0.1)
    with sphereflow.open_run(tokens) as other, pytest.raises(CaseError, match="none near"):
        packing.pack_tokens(other, np.array([5.0, 5.5]))
    assert write_report(run, particles=tokens).frames == 3


@pytest.mark.slow
def test_wheel_holds_the_page(tmp_path):
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "sphereflow", tmp_path / "sphereflow", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path / "wheel"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("sphereflow/report/")}
    assert shipped == {f"sphereflow/report/{p.relative_to(ROOT / 'sphereflow/report')}" for p in
                       (ROOT / "sphereflow/report").rglob("*") if p.is_file() and "__pycache__" not in p.parts}  # fmt: skip


@pytest.mark.slow
def test_page_of_a_long_run_on_a_fine_grid_stays_small(tmp_path):
    """Density that hardly compresses: noise on 128 x 256 cells, 200 records, and thousands of tokens."""
    noise = np.random.default_rng(5)
    run = samples.write_density_run(tmp_path / "a.nc", 128, 200, density=lambda grid, k: noise.random(grid.shape))
    tokens = samples.write_token_run(tmp_path / "b.nc", records=200, count=5000)
    made = write_report(run, particles=tokens)
    assert made.bytes < LIMIT and 50 < made.frames < 200
