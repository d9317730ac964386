"""Pictures: sampling of the sphere to the pixel, pages, films, and what happens to files and with bad input."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import xarray as xr
from matplotlib.text import Text
from PIL import Image

import sphereflow
from sphereflow import plotting
from sphereflow.cli import main
from sphereflow.errors import CaseError, OutputError
from sphereflow.grid import GaussGrid
from sphereflow.harmonics import degree_power, degrees_and_orders
from sphereflow.plotting import film, maps, panels, records, saving, scales, sphere
from sphereflow.plotting.encoding import has_ffmpeg
from sphereflow.plotting.sphere import Face, FaceSampler, faces, interpolation_matrix, unit_vectors, view_frame
from sphereflow.plotting.style import new_figure

GRID = GaussGrid(16)
LAT, LON = 90 - np.degrees(GRID.colatitude), np.degrees(GRID.longitude)
UNIFORM = 1 / (4 * np.pi)
needs_ffmpeg = pytest.mark.skipif(not has_ffmpeg(), reason="ffmpeg is not installed")


def smooth(grid=GRID):
    """A positive density without symmetry."""
    x, y, z = np.moveaxis(grid.points, -1, 0)
    return UNIFORM * (1 + 0.5 * x + 0.3 * y * z - 0.2 * z)


def density_run(count=5, heads=2, nlat=16, **attributes):
    """A run as open_run gives it, with simple numbers."""
    grid, t, rng = GaussGrid(nlat), 0.5 * np.arange(count), np.random.default_rng(1)
    series = {name: ("t", 1.0 + 0.1 * np.arange(count)) for name in (
        "energy", "dissipation", "metric_speed_squared", "metric_slope_squared", "gradient_flow_defect", "weight_work",
        "dissipation_integral", "edi_residual",
    )}  # fmt: skip
    density = np.stack([smooth(grid) * (1 + 0.1 * k * grid.points[..., 2]) for k in range(count)])
    return xr.Dataset(
        {
            "density": (("t", "lat", "lon"), density),
            **series,
            "order_parameter": ("t", np.linspace(0, 1, count)),
            "second_moment": (("t", "row", "col"), np.tile(np.eye(3) / 3, (count, 1, 1))),
            "cluster_count": ("t", np.arange(count)),
            "logits": (("t", "head", "row", "col"), rng.standard_normal((count, heads, 3, 3))),
        },
        coords={"t": t, "lat": 90 - np.degrees(grid.colatitude), "lon": np.degrees(grid.longitude)},
        attrs={"title": "A run", "sphereflow_status": "complete", "sphereflow_state": "complete",
               "sphereflow_case": "[solver]\nt_end = 10.0\n", **attributes},
    )  # fmt: skip


def token_run(count=5, number=50, dimension=3, **attributes):
    """A run of tokens."""
    position = np.random.default_rng(2).standard_normal((count, number, dimension))
    position /= np.linalg.norm(position, axis=-1, keepdims=True)
    run = density_run(count, **attributes).drop_vars(["density", "lat", "lon", "cluster_count"])
    run["position"] = ("t", "particle", "xyz"), position
    run["particle_weight"] = "particle", np.full(number, 1 / number)
    return run


def texts(figure):
    """All words of a figure."""
    return " | ".join(text.get_text() for text in figure.findobj(Text))


def drawn(figure, dpi=100):
    """The picture of a figure, (height, width, 3)."""
    figure.set_dpi(dpi)
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)


# Sampling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projection", ["orthographic", "mollweide", "equirectangular"])
@pytest.mark.parametrize("view", [None, (-170.0, 60.0), (0.0, 90.0)])
def test_points_and_plane_are_inverse(projection, view):
    for face in faces(projection, view):
        x, y = face.pixels(60)
        inside = face.covers(x, y)
        points = face.points(x[inside], y[inside])
        assert np.allclose(np.linalg.norm(points, axis=-1), 1, rtol=0, atol=1e-14)
        back = face.plane(points)
        assert np.allclose(back, (x[inside], y[inside]), rtol=0, atol=1e-6)


def test_two_hemispheres_show_every_point_once():
    points = np.random.default_rng(0).standard_normal((1000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    seen = [np.isfinite(face.plane(points)[0]) for face in faces()]
    assert np.array_equal(seen[0], ~seen[1])
    for face in faces():
        assert np.allclose(face.points(np.zeros(1), np.zeros(1)), unit_vectors(face.longitude, face.latitude))


def test_mollweide_keeps_areas():
    """The share of pixels in a cap is the cap's share of the sphere, (1 - cos r) / 2."""
    face = Face("mollweide", 40.0, 10.0)
    x, y = face.pixels(400)
    points = face.points(x, y)[face.covers(x, y)]
    for angle in (0.3, 1.0, 2.0):
        share = np.mean(points @ np.array([0.6, 0.0, 0.8]) > np.cos(angle))
        assert share == pytest.approx((1 - np.cos(angle)) / 2, abs=2e-3)


def test_known_places():
    face = Face("mollweide", 0.0, 0.0)
    x, y = face.plane(unit_vectors(np.array([0.0, 90.0, -90.0, 0.0]), np.array([0.0, 0.0, 0.0, 90.0])))
    assert np.allclose(x, [0, 1, -1, 0], rtol=0, atol=1e-7) and np.allclose(y, [0, 0, 0, 1])
    # Mollweide's own table (Snyder 1987): the parallel at 40 degrees lies at 0.6470 / sqrt(2)... of the height, sin(theta)
    t = np.arcsin(Face("mollweide", 0.0, 0.0).plane(unit_vectors(0.0, 40.0))[1])
    assert 2 * t + np.sin(2 * t) == pytest.approx(np.pi * np.sin(np.radians(40)), abs=1e-13)
    assert np.allclose(Face("equirectangular", 10.0, 0.0).plane(unit_vectors(100.0, -45.0)), (1.0, -0.5))
    out, east, north = view_frame(30.0, 25.0)
    assert np.allclose(np.cross(out, east), north) and east[2] == 0 and north[2] > 0


def test_interpolation_keeps_constants_and_makes_no_extremes():
    points = np.random.default_rng(3).standard_normal((5000, 3))
    points = np.concatenate([points, [[0, 0, 1], [0, 0, -1], [1, 0, 0], [-1, 0, 0], [1, -1e-9, 0]]])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    matrix = interpolation_matrix(LAT, LON, points)
    assert matrix.shape == (len(points), GRID.nlat * GRID.nlon)
    assert matrix.data.min() >= -1e-15
    assert np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-13)
    nodes = interpolation_matrix(LAT, LON, GRID.points.reshape(-1, 3))
    field = np.random.default_rng(4).random(GRID.shape)
    assert np.allclose(nodes @ field.ravel(), field.ravel(), rtol=0, atol=1e-12)


def test_interpolation_is_of_second_order():
    errors = []
    points = unit_vectors(*np.random.default_rng(5).uniform([[0], [-90]], [[360], [90]], (2, 4000)))
    x, y, z = points.T
    exact = UNIFORM * (1 + 0.5 * x + 0.3 * y * z - 0.2 * z)
    for nlat in (16, 32, 64):
        grid = GaussGrid(nlat)
        lat, lon = 90 - np.degrees(grid.colatitude), np.degrees(grid.longitude)
        errors.append(np.abs(interpolation_matrix(lat, lon, points) @ smooth(grid).ravel() - exact).max())
    assert errors[-1] < 1e-3 * UNIFORM
    assert -np.polyfit(np.log([16, 32, 64]), np.log(errors), 1)[0] > 1.8


@pytest.mark.parametrize("seam", [0.0, 180.0, LON[-1] + 1e-6])
def test_no_seam_in_longitude(seam):
    """Values on both sides of a meridian agree, also where the array of the field ends."""
    latitude = np.linspace(-89.9, 89.9, 50)
    sides = [interpolation_matrix(LAT, LON, unit_vectors(seam + e, latitude)) @ smooth().ravel() for e in (-1e-7, 1e-7)]
    assert np.abs(sides[0] - sides[1]).max() < 1e-8


@pytest.mark.parametrize("pole", [90.0, -90.0])
def test_the_pole_has_one_value(pole):
    """Coming from anywhere: the mean of the ring next to it, also for a field that varies around the pole."""
    field = smooth() + 0.3 * np.cos(GRID.longitude)
    around = interpolation_matrix(LAT, LON, unit_vectors(np.linspace(0, 360, 90), pole * (1 - 1e-9))) @ field.ravel()
    assert np.allclose(around, field[0 if pole > 0 else -1].mean(), rtol=0, atol=1e-6)


# Pixels ----------------------------------------------------------------------------------------------------------------


def picture(monkeypatch, face, field, cmap="magma"):
    """Pixels of one face without its graticule, and the distance of each from the centre in units of the rim."""
    monkeypatch.setattr(maps, "draw_graticule", lambda *_, **__: None)
    figure = new_figure(3.0 * face.half_width, 3.0)
    axes = figure.add_axes((0, 0, 1, 1))
    scale = scales.ColourScale(scales.Normalize(0, 2.2), cmap, "", 1 / UNIFORM)
    maps.FieldPicture(axes, face, FaceSampler(face, LAT, LON, 300), scale).show(field)
    pixels = drawn(figure)
    height, width = pixels.shape[:2]
    x = 1.02 * face.half_width * ((2 * np.arange(width) + 1) / width - 1)
    y = 1.02 * (1 - (2 * np.arange(height) + 1) / height)
    x, y = np.meshgrid(x, y)
    return pixels, np.maximum(abs(x) / 2, abs(y)) if face.projection == "equirectangular" else np.hypot(x / face.half_width, y)


STEP = 3  # grey levels between neighbouring pixels of a smooth field
FACES = [
    *faces("orthographic"), *faces("orthographic", (0.0, 90.0)), *faces("orthographic", (180.0, 0.0)),
    *faces("mollweide"), *faces("mollweide", (180.0, 0.0)), *faces("equirectangular"), *faces("equirectangular", (90.0, 60.0)),
]  # fmt: skip


@pytest.mark.parametrize("face", FACES, ids=lambda f: f"{f.projection}-{f.longitude:g}-{f.latitude:g}")
def test_a_constant_field_has_one_colour_up_to_the_rim(monkeypatch, face):
    pixels, radius = picture(monkeypatch, face, np.full(GRID.shape, UNIFORM))
    inside = pixels[radius < 0.985]
    assert np.abs(inside - inside[0]).max() <= 1
    assert (pixels[radius > 1.012] == 255).all()
    # Between the picture and the line of its rim there is no white: light pixels begin beyond the rim.
    assert pixels[(radius > 0.985) & (radius < 0.996)].sum(axis=1).max() <= inside[0].sum() + 3


@pytest.mark.parametrize("face", FACES, ids=lambda f: f"{f.projection}-{f.longitude:g}-{f.latitude:g}")
def test_no_line_at_180_degrees_0_degrees_or_the_poles(monkeypatch, face):
    """Neighbouring pixels of a smooth field have similar colours everywhere inside: a missing or shifted column would not."""
    pixels, radius = picture(monkeypatch, face, smooth(), "gray")
    inside = radius < 0.97
    for axis in (0, 1):
        steps = np.abs(np.diff(pixels[..., 0], axis=axis))
        both = inside[1:] & inside[:-1] if axis == 0 else inside[:, 1:] & inside[:, :-1]
        assert steps[both].max() <= STEP
    assert pixels[inside].max() < 255


def test_a_broken_seam_would_be_seen(monkeypatch):
    """The pixel test above fails if columns are not joined around the circle: here the last is drawn on up to 360 degrees."""

    def held(latitude, longitude, points):
        angle = np.minimum(np.arctan2(points[:, 1], points[:, 0]) % (2 * np.pi), GRID.longitude[-1])
        ring = np.hypot(points[:, 0], points[:, 1])
        points = np.stack([ring * np.cos(angle), ring * np.sin(angle), points[:, 2]], axis=-1)
        return interpolation_matrix(latitude, longitude, points)

    monkeypatch.setattr(sphere, "interpolation_matrix", held)
    pixels, radius = picture(monkeypatch, Face("mollweide", 0.0, 0.0), smooth(), "gray")
    steps = np.abs(np.diff(pixels[..., 0], axis=1))
    assert steps[(radius < 0.97)[:, 1:] & (radius < 0.97)[:, :-1]].max() > STEP


def test_pixels_show_the_colours_of_the_scale(monkeypatch):
    face = faces("orthographic", (40.0, 20.0))[0]
    pixels, _ = picture(monkeypatch, face, smooth())
    centre = pixels[150, 150]
    value = (interpolation_matrix(LAT, LON, unit_vectors(40.0, 20.0)[None]) @ smooth().ravel())[0] / UNIFORM
    assert np.abs(centre - 255 * np.array(matplotlib.colormaps["magma"](value / 2.2)[:3])).max() <= 3


# Scales and records ----------------------------------------------------------------------------------------------------


def test_scales_of_densities():
    log = scales.density_scale(1e-9 * UNIFORM, 50 * UNIFORM)
    assert isinstance(log.norm, matplotlib.colors.LogNorm)
    assert (log.norm.vmin, log.norm.vmax, log.extend) == (pytest.approx(0.05), pytest.approx(50), "min")
    assert log(np.array([0.0, UNIFORM])) == pytest.approx([0.05, 1.0])
    linear = scales.density_scale(0.5 * UNIFORM, 2 * UNIFORM)
    assert (linear.norm.vmin, linear.norm.vmax, linear.offset) == (pytest.approx(0.5), pytest.approx(2), 0.0)
    ripple = scales.density_scale((1 - 1e-6) * UNIFORM, (1 + 2e-6) * UNIFORM)
    assert (ripple.norm.vmin, ripple.norm.vmax, ripple.offset) == (pytest.approx(-1e-6), pytest.approx(2e-6), 1.0)
    for low, high in ((UNIFORM, UNIFORM), (0.0, 0.0), (np.nan, np.nan), (5 * UNIFORM, 5 * UNIFORM)):
        norm = scales.density_scale(low, high).norm
        assert np.isfinite([norm.vmin, norm.vmax]).all() and norm.vmin < norm.vmax
    with pytest.raises(CaseError, match="positive"):
        scales.density_scale(0.0, 0.0, "log")
    with pytest.raises(CaseError, match="did you mean linear"):
        scales.density_scale(0.0, 1.0, "linaer")


def test_scales_of_fields():
    assert scales.field_scale(-1.0, 3.0, "x").norm.vmin == -3.0
    assert isinstance(scales.field_scale(1.0, 100.0, "x").norm, matplotlib.colors.LogNorm)
    assert scales.field_scale(4.0, 4.0, "x").norm.vmin < 4.0
    with pytest.raises(CaseError, match="smallest of x is -1"):
        scales.field_scale(-1.0, 3.0, "x", "log")


def test_telling_records_divide_the_way_not_the_time():
    run = density_run(101)
    speed = np.where(run.t < 5, 1.0, 0.0)  # all of the way is done in the first 10 records
    run["metric_speed_squared"] = "t", speed
    assert records.telling_records(run) == [0, 3, 6, 100]  # thirds of 9.5 records of way, and the end
    run["metric_speed_squared"] = "t", np.zeros(101)
    assert records.telling_records(run) == [0, 33, 67, 100]
    assert records.telling_records(run.isel(t=[0, 1])) == [0, 1]
    assert records.telling_records(run.isel(t=[7])) == [0]
    assert records.telling_records(run, 200) == list(range(101))
    jump = density_run(6)
    jump["metric_speed_squared"] = "t", np.array([0, 0, 0, 0, 0, 1e3])
    assert records.telling_records(jump) == [0, 1, 4, 5]


def test_nearest_records():
    run = density_run(5)
    assert records.nearest_records(run, [0, 0.6, 0.55, 2.0 + 1e-12]) == [0, 1, 4]
    with pytest.raises(CaseError, match=r"no time 2\.1; the records cover 0 to 2"):
        records.nearest_records(run, [2.1])
    with pytest.raises(CaseError, match="the one record is at t = 0"):
        records.nearest_records(run.isel(t=[0]), [1.0])
    with pytest.raises(CaseError, match="holds no record yet"):
        records.nearest_records(run.isel(t=[]), [0.0])
    with pytest.raises(CaseError, match="too many"):
        records.chosen_records(density_run(60), 0.5 * np.arange(60))


def test_what_became_of_a_run():
    def note(**attributes):
        return records.state_note(density_run(3, **attributes))

    assert note() is None
    assert note(sphereflow_state="interrupted") == "interrupted: 3 records, up to t = 1 of 10"
    assert note(sphereflow_state="running") == "running: 3 records, up to t = 1 of 10"
    failed = note(sphereflow_state="failed", sphereflow_status="failed: density is not finite")
    assert failed == "failed: 3 records, up to t = 1 of 10 (density is not finite)"
    assert note(sphereflow_status="complete (warning: mass)") == "complete (warning: mass)"
    run = density_run(3, sphereflow_status="running")
    del run.attrs["sphereflow_state"]  # opened by xarray: nobody is writing it
    assert records.state_note(run).startswith("interrupted")


def test_one_run_of_an_ensemble():
    run = density_run(3, heads=2)
    ensemble = xr.concat([run, run], "member")
    with pytest.raises(CaseError, match=r"several runs along member; choose one with \.isel\(member=0\)"):
        plotting.plot_run(ensemble)
    one = ensemble.isel(member=0).pad(head=(0, 3))
    assert "2 heads" in texts(plotting.plot_weights(one))


def test_a_region_is_no_sphere():
    with pytest.raises(CaseError, match="must cover the sphere"):
        records.grid_of(density_run().isel(lon=slice(0, 10)))
    with pytest.raises(CaseError, match="north to south"):
        records.grid_of(density_run().isel(lat=slice(None, None, -1)))


# Spectrum --------------------------------------------------------------------------------------------------------------


def test_spectrum_of_one_harmonic():
    """1/(4 pi) + c Y_20 + c Y_2,1-ish: power in degree 2 alone, by Parseval."""
    run = density_run(1)
    z = GRID.points[..., 2]
    y20 = np.sqrt(5 / (16 * np.pi)) * (3 * z**2 - 1)
    run["density"] = ("t", "lat", "lon"), (UNIFORM + 0.01 * y20)[None]
    power, noise = panels.spectrum(run, 0)
    assert noise == 0 and power.size == 16
    assert power[2] == pytest.approx(0.01**2 * 4 * np.pi, rel=1e-12)
    assert np.delete(power, [0, 2]).max() < 1e-28


def test_spectrum_of_independent_tokens():
    """In the mean over samples, degree l has (2 l + 1) sum_i p_i^2."""
    powers = []
    for seed in range(40):
        x = np.random.default_rng(seed).standard_normal((300, 3))
        run = xr.Dataset(
            {"position": (("t", "particle", "xyz"), (x / np.linalg.norm(x, axis=1, keepdims=True))[None])}, coords={"t": [0.0]}
        )
        power, noise = panels.spectrum(run, 0)
        powers.append(power)
    assert noise == pytest.approx(1 / 300)
    degree = np.arange(1, power.size)
    ratio = np.mean(powers, axis=0)[1:] / ((2 * degree + 1) * noise)
    assert ratio.mean() == pytest.approx(1, abs=0.03) and np.abs(ratio - 1).max() < 0.5


def test_degree_power_is_parseval():
    coefficients = np.random.default_rng(0).standard_normal(degrees_and_orders(5)[0].size) + 0j
    order = degrees_and_orders(5)[1]
    assert degree_power(coefficients, 5).sum() == pytest.approx(np.sum(np.where(order, 2, 1) * abs(coefficients) ** 2))


# Pages -----------------------------------------------------------------------------------------------------------------

EDGES = {
    "density": lambda: density_run(),
    "fifty heads": lambda: density_run(heads=50),
    "one record": lambda: density_run(1),
    "much to say": lambda: density_run(
        title="$x_1$ and a very long title that goes on and on " * 10,
        sphereflow_state="failed", sphereflow_status="failed: " + "cell (3, 4) is not finite " * 20,
    ),
    "tokens": lambda: token_run(),
    "dimension 5": lambda: token_run(dimension=5),
}


@pytest.mark.parametrize("name", EDGES)
def test_nothing_is_cut_off_and_nothing_overlaps(name):
    figure = plotting.plot_run(EDGES[name]())
    figure.draw_without_rendering()
    renderer, page = figure.canvas.get_renderer(), figure.bbox
    boxes = [text.get_window_extent(renderer) for text in figure.texts]
    boxes += [axes.get_tightbbox(renderer) for axes in figure.axes]
    for box in boxes:
        assert box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1
    shrunk = [(b.x0 + 1, b.x1 - 1, b.y0 + 1, b.y1 - 1) for b in boxes]
    for k, a in enumerate(shrunk):
        for b in shrunk[:k]:
            assert a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2], (a, b)


def test_the_page_of_a_density():
    figure = plotting.plot_run(density_run(), times=[0, 1.0])
    images = [image for axes in figure.axes for image in axes.images]
    assert len(images) == 4  # two hemispheres at two times
    assert len({(image.norm.vmin, image.norm.vmax) for image in images}) == 1
    words = texts(figure)
    for word in ("A run", "t = 0", "t = 1", "Energy and its ledger", "Rates of the flow", "Spectrum", "Eigenvalues", "Order"):
        assert word in words
    assert "left: front, centre 30° E 25° N; right: back, centre 150° W 25° S" in words


def test_the_page_of_tokens():
    words = texts(plotting.plot_run(token_run()))
    assert "50 tokens" in words and "independent tokens" in words and "Density" not in words
    assert "coordinates 1 and 2" in texts(plotting.plot_run(token_run(dimension=5)))
    chosen, left_out = plotting.choose_panels(token_run(dimension=5))
    assert "spectrum" not in chosen and len(left_out) == 1 and "dimension 5" in left_out[0]


def test_an_unfinished_run_says_so():
    words = texts(plotting.plot_run(density_run(3, sphereflow_state="interrupted")))
    assert "interrupted: 3 records, up to t = 1 of 10" in words


def test_a_failed_run_with_a_lost_record_is_drawn():
    run = density_run(3)
    for name in ("density", "energy", "logits", "second_moment", "dissipation", "edi_residual"):
        run[name][-1] = np.nan
    assert "not finite" in texts(plotting.plot_run(run))


@pytest.mark.parametrize("energy", [[np.inf, np.inf], [np.inf, 1.0], [1.0, np.nan]])
def test_energies_that_have_overflowed_are_left_out_without_a_warning(energy):
    run = density_run(2)
    run["energy"] = "t", np.array(energy)
    drawn(plotting.plot_ledger(run))


def test_still_and_empty_runs_of_numbers():
    """No flow at all, uniform density, zero matrices: nothing to show on a logarithmic axis, and no error."""
    run = density_run(3)
    run["density"][:] = UNIFORM
    for name in ("dissipation", "metric_speed_squared", "metric_slope_squared", "gradient_flow_defect", "logits"):
        run[name] = 0.0 * run[name]
    figure = plotting.plot_run(run)
    assert "all zero" in texts(figure)
    run["energy"] = 0.5 + 1e-13 * run.t
    run["dissipation"] = 0.0 * run.t - 1e-31
    figure = plotting.plot_run(run, ["ledger", "dissipation"])
    drawn(figure)
    assert "−$P$" in texts(figure)


def test_single_subjects_and_overlay():
    run, tokens = density_run(), token_run()
    tokens["t"] = 2 * tokens.t
    figure = plotting.plot_density(run, [0.5, 1], particles=tokens, projection="mollweide", view=(180.0, 0.0), scale="log")
    assert sum(len(axes.collections) for axes in figure.axes if not axes.axison) == 2
    assert "Mollweide, centre 180° W 0° N" in texts(figure)
    for draw in ("tokens", "ledger", "dissipation", "spectrum", "weights", "order"):
        figure = getattr(plotting, f"plot_{draw}")(tokens)
        assert len(figure.axes) >= 1
    with pytest.raises(CaseError, match="no time 4"):
        plotting.plot_density(density_run(9), [4.0], particles=token_run(3))
    with pytest.raises(CaseError, match="holds no positions"):
        plotting.plot_density(run, particles=run)
    with pytest.raises(CaseError, match="dimension 2"):
        plotting.plot_density(run, particles=token_run(dimension=2))
    with pytest.raises(CaseError, match="which is not drawn"):
        plotting.plot_run(run, ["ledger"], particles=tokens)


def test_tokens_of_unequal_weight_and_many_tokens():
    run = token_run(1, number=30_001)
    weight = np.linspace(0, 1, 30_001)
    run["particle_weight"] = "particle", weight / weight.sum()
    figure = plotting.plot_tokens(run)
    assert "15001 of 30001 tokens" in texts(figure)
    dots = figure.axes[0].collections[0]
    assert len(dots.get_offsets()) == 15_000  # the one without weight is left out
    assert dots.get_sizes().max() / dots.get_sizes().mean() == pytest.approx(2, rel=1e-3)


def test_other_fields():
    run = density_run()
    run["velocity_east"] = run.density - UNIFORM
    run["velocity_east"].attrs["long_name"] = "token velocity, component to the east"
    figure = plotting.plot_run(run, ["velocity_east"], [0])
    assert "Token velocity, component to the east" in texts(figure)
    norm = figure.axes[0].images[0].norm
    assert norm.vmin == -norm.vmax
    with pytest.raises(CaseError, match=r'output\.fields = \["density", "potential"\]'):
        plotting.plot_run(run, ["potential"])


def test_only_what_is_drawn_is_read(monkeypatch):
    read = []
    original = records.field
    for module in (records, panels, sys.modules["sphereflow.plotting.page"]):
        monkeypatch.setattr(module, "field", lambda run, name, record: read.append(record) or original(run, name, record))
    plotting.plot_run(density_run(50), times=[1.0, 2.0])
    assert sorted(set(read)) == [2, 4]


def test_settings_of_the_user_neither_change_nor_are_changed(monkeypatch):
    plain = drawn(plotting.plot_ledger(density_run()))
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "red")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)
    assert np.array_equal(drawn(plotting.plot_ledger(density_run())), plain)
    assert matplotlib.rcParams["font.size"] == 30.0 and matplotlib.rcParams["axes.facecolor"] == "red"


def test_pyplot_is_not_used():
    code = "import sphereflow.plotting, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Files -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_save_figure(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    figure = plotting.plot_density(density_run(2))
    assert plotting.save_figure(figure, path, dpi=50) == path
    assert path.read_bytes()[:4] in (b"\x89PNG", b"%PDF", b"<?xm")
    before = path.read_bytes()
    with pytest.raises(OutputError, match="already exists"):
        plotting.save_figure(figure, path)
    plotting.save_figure(figure, path, force=True, dpi=60)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + ".bak"]
    assert (tmp_path / f"a.{suffix}.bak").read_bytes() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_picture_that_fails_leaves_nothing(tmp_path, monkeypatch, error):
    figure = plotting.plot_ledger(density_run(2))

    def fail(path, **_):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OutputError):
        plotting.save_figure(figure, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_bad_names_and_sizes(tmp_path):
    figure = new_figure(1, 1)
    for name in ("a", "a.jpg", "a.nc"):
        with pytest.raises(CaseError, match=r"\.png, \.pdf or \.svg"):
            plotting.save_figure(figure, tmp_path / name)
    with pytest.raises(CaseError, match="dpi: 5"):
        plotting.save_figure(figure, tmp_path / "a.png", dpi=5)
    with pytest.raises(OutputError, match="no such folder"):
        saving.save_figure(figure, tmp_path / "no such folder/a.png")


# Films -----------------------------------------------------------------------------------------------------------------


def gif_frames(path):
    with Image.open(path) as image:
        frames = []
        for k in range(image.n_frames):
            image.seek(k)
            frames.append((np.asarray(image.convert("RGB")).astype(int), image.info["duration"]))
        return frames


def test_gif(tmp_path):
    told = []
    path = plotting.animate_run(
        density_run(4), tmp_path / "a.gif", fps=10, dpi=40, on_frame=lambda done, total: told.append((done, total))
    )
    frames = gif_frames(path)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert [duration for _, duration in frames] == [100] * 4 and frames[0][0].shape == (180, 320, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["a.gif"]
    first, last = frames[0][0], frames[-1][0]
    changed = np.abs(first - last).max(axis=2) > 0
    assert changed[40:125, 20:270].mean() > 0.2
    assert not changed[:, 285:][:150].any()  # the colour bar stands still: fixed limits, no flicker
    assert not changed[:15].any()


def test_frames_are_those_of_a_page(tmp_path):
    """A frame has the same colours as the still picture of its record."""
    run = density_run(3)
    stage = film._Stage(run, "density", [0, 1, 2], faces("orthographic", (0.0, 0.0)), None, "linear", 100)
    frames = list(stage.frames())
    assert len(frames) == 3 and frames[0].shape == (450, 800, 3) and frames[0].dtype == np.uint8
    low, high = (float(extreme(run.density)) / UNIFORM for extreme in (np.min, np.max))
    left, bottom, width, height = stage._face_boxes()[0]
    row, column = 450 - round(100 * (bottom + 0.4 * height)), round(100 * (left + 0.6 * width))
    x = ((column + 0.5) / 100 - left - width / 2) * 2.04 / width
    y = ((450 - row - 0.5) / 100 - bottom - height / 2) * 2.04 / height
    point = Face("orthographic", 0.0, 0.0).points(np.array([x]), np.array([y]))
    for k, frame in enumerate(frames):
        value = (interpolation_matrix(LAT, LON, point) @ run.density.values[k].ravel())[0] / UNIFORM
        expected = 255 * np.array(matplotlib.colormaps["magma"]((value - low) / (high - low))[:3])
        assert np.abs(frame[row, column] - expected).max() < 6


def test_films_of_tokens_and_overlays(tmp_path):
    for dimension in (3, 4):
        path = plotting.animate_run(token_run(2, dimension=dimension), tmp_path / f"{dimension}.gif", dpi=30)
        assert len(gif_frames(path)) == 2
    path = plotting.animate_run(
        density_run(2), tmp_path / "o.gif", dpi=40, particles=token_run(2), projection="mollweide", every=0.5
    )
    cyan = gif_frames(path)[0][0]
    assert ((cyan[..., 2] > 180) & (cyan[..., 0] < 120)).any()
    with pytest.raises(CaseError, match="no time 1"):
        plotting.animate_run(density_run(3), tmp_path / "x.gif", particles=token_run(2))
    assert not (tmp_path / "x.gif").exists()


def test_choice_of_frames():
    run = density_run(1001)
    assert len(film.frame_records(run)) == film.MOST_FRAMES
    assert film.frame_records(run)[-1] == 1000
    assert film.frame_records(run, every=100.0) == [0, 200, 400, 600, 800, 1000]
    assert film.frame_records(run, times=[3, 1]) == [6, 2]
    assert film.frame_records(density_run(3), every=0.01) == [0, 1, 2]
    for arguments in ({"every": 0.0}, {"every": np.nan}, {"every": 1e-9}, {"every": 1e-320}, {"every": 1.0, "times": [1]}):
        with pytest.raises(CaseError, match="every"):
            film.frame_records(run, **arguments)


@pytest.mark.parametrize("suffix", ["gif", pytest.param("mp4", marks=needs_ffmpeg)])
def test_ctrl_c_leaves_nothing(tmp_path, suffix):
    def interrupt(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plotting.animate_run(density_run(4), tmp_path / f"a.{suffix}", dpi=30, on_frame=interrupt)
    assert not list(tmp_path.iterdir())


@needs_ffmpeg
def test_mp4(tmp_path):
    path = plotting.animate_run(density_run(3), tmp_path / "a.mp4", dpi=31, fps=7)  # odd sizes: 248 x 139.5 pixels
    assert path.read_bytes()[4:8] == b"ftyp"
    command = ["ffmpeg", "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    video = subprocess.run(command, check=True, capture_output=True).stdout
    assert len(video) % (3 * 248 * 138) == 0 and len(video) // (3 * 248 * 138) == 3


def test_ffmpeg_that_fails_or_is_missing(tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(CaseError, match=r"ffmpeg, which is not installed; name a \.gif"):
        plotting.animate_run(density_run(2), tmp_path / "a.mp4")
    fake = programs / "ffmpeg"
    fake.write_text("#!/bin/sh\necho 'unknown encoder' >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(OutputError, match="unknown encoder"):
        plotting.animate_run(density_run(20), tmp_path / "a.mp4", dpi=30)
    assert [p.name for p in tmp_path.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.gif", {"fps": 60.0}, "too fast for a GIF"),
        ("a.gif", {"fps": 0.0}, "fps: 0"),
        ("a.gif", {"dpi": 1e5}, "dpi: 100000"),
        ("a.png", {}, r"\.gif or \.mp4"),
        ("a.gif", {"projection": "polar"}, "projection"),
        ("a.gif", {"view": (0.0, 91.0)}, "view"),
        ("a.gif", {"times": [9.0]}, "no time 9"),
    ],
)
def test_bad_options_of_films(tmp_path, name, options, words):
    with pytest.raises(CaseError, match=words):
        plotting.animate_run(density_run(2), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


# Commands --------------------------------------------------------------------------------------------------------------

CASE = {
    "schema": 1,
    "grid": {"nlat": 16},
    "model": {"direction": "ascend"},
    "heads": {"count": 2, "schedule": "frozen", "initial": "gaussian-symmetric", "seed": 1},
    "initial": {"kind": "vmf-mixture", "centers": [[1, 0, 0], [0, 1, 1]], "kappa": 5.0},
    "solver": {"kind": "finite-volume", "t_end": 0.2},
    "output": {"every": 0.1, "fields": ["density"]},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a density, a bare density run, tokens, tokens without positions, and a minimising movement."""
    folder = tmp_path_factory.mktemp("runs")
    tokens = CASE | {"solver": {"kind": "particles", "count": 40, "t_end": 0.2, "dt": 0.1}}
    cases = {
        "density": CASE,
        "bare": CASE | {"output": {"every": 0.1, "fields": []}},
        "tokens": tokens | {"output": {"every": 0.1}},
        "nowhere": tokens | {"output": {"every": 0.1, "fields": []}},
        "movement": CASE | {
            "solver": {"kind": "minimizing-movement", "t_end": 0.2, "tau": 0.1},
            "model": {"direction": "descend", "velocity": "gradient-flow"},
            "heads": CASE["heads"] | {"scale": 0.3},
        },
    }
    for name, case in cases.items():
        sphereflow.run(case, folder / f"{name}.nc").close()
    return folder


def test_plot_command(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_out = {"density": [], "bare": ["density", "spectrum"], "nowhere": ["tokens", "spectrum"]}
    for name, missing in left_out.items():
        assert main(["plot", str(runs / f"{name}.nc"), "-o", f"{name}.png", "--dpi", "50"]) == 0
        said = capsys.readouterr()
        assert said.out == f"{name}.png\n"
        assert [line.split("left out ")[1].split(":")[0] for line in said.err.splitlines()] == missing
        assert said.err.count("output.fields") == len(missing)
    for name, what in {"tokens": "tokens,weights", "movement": "density,dissipation"}.items():
        assert main(["plot", str(runs / f"{name}.nc"), "-o", f"{name}.png", "--dpi", "50", "--what", what]) == 0
        assert capsys.readouterr().err == ""
    assert main(["plot", str(runs / "density.nc"), "-o", "density.png"]) == 4
    assert "--force" in capsys.readouterr().err
    assert main(["plot", str(runs / "density.nc"), "-o", "density.png", "--force", "--particles", str(runs / "tokens.nc"),
                 "--what", "density,ledger", "--times", "0,0.1", "--projection", "mollweide", "--view=-90,0"]) == 0  # fmt: skip
    assert (tmp_path / "density.png.bak").exists()


def test_animate_command(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["animate", str(runs / "density.nc"), "-o", "a.gif", "--dpi", "30", "--every", "0.1"]) == 0
    said = capsys.readouterr()
    assert said.out == "a.gif\n" and said.err == ""
    assert len(gif_frames("a.gif")) == 3
    assert main(["animate", str(runs / "density.nc"), "-o", "a.gif"]) == 4
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (["plot", "absent.nc"], 4, "absent.nc: cannot read the file"),
        (["plot", "notes.txt"], 4, "notes.txt: is not a readable netCDF file"),
        (["plot", "foreign.nc"], 4, "is not an output file of sphereflow"),
        (["plot", "empty.nc"], 2, "holds no record yet"),
        (["animate", "empty.nc", "-o", "x.gif"], 2, "holds no record yet"),
        (["plot", "density.nc", "--times", "0,7"], 2, "no time 7; the records cover 0 to 0.2"),
        (["plot", "density.nc", "--what", "ledgr"], 2, "did you mean ledger?"),
        (["plot", "density.nc", "--what", "potential"], 2, 'output.fields = ["density", "potential"]'),
        (["plot", "density.nc", "--what", "tokens"], 2, "it has a density, no tokens"),
        (["plot", "bare.nc", "--what", "density"], 2, 'output.fields = ["density"]'),
        (["plot", "nowhere.nc", "--what", "tokens"], 2, 'output.fields = ["position"]'),
        (["animate", "bare.nc", "-o", "x.gif"], 2, 'output.fields = ["density"]'),
        (["plot", "tokens.nc", "--what", "density"], 2, "it is a run of tokens"),
        (["plot", "density.nc", "-o", "x.jpg"], 2, "name a file .png, .pdf or .svg"),
        (["plot", "density.nc", "-o", "no/x.png"], 4, "no/x.png: cannot create the file"),
        (["plot", "density.nc", "--particles", "density.nc"], 2, "holds no positions of tokens"),
        (["plot", "density.nc", "--view", "1,2,3"], 2, "--view: 3 numbers"),
        (["plot", "density.nc", "--projection", "moll"], 2, "did you mean mollweide?"),
        (["plot", "density.nc", "--dpi", "0"], 2, "dpi: 0"),
    ],
)
def test_bad_input(runs, capsys, monkeypatch, command, code, words):
    monkeypatch.chdir(runs)
    (runs / "notes.txt").write_text("not a run")
    xr.Dataset({"a": 1}).to_netcdf("foreign.nc")
    with sphereflow.open_run("density.nc") as run:
        run.isel(t=[]).to_netcdf("empty.nc")
    before = sorted(p.name for p in runs.iterdir())
    assert main(command) == code
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error and error.count("\n") == 1
    assert sorted(p.name for p in runs.iterdir()) == before


def test_lists_that_are_none(runs, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["plot", str(runs / "density.nc"), "--times", "0,abc"])
    assert stop.value.code == 2 and "'0,abc' is no list of numbers" in capsys.readouterr().err


def test_the_commands_and_examples_of_the_documentation(tmp_path, monkeypatch):
    """Every command and example of docs/pictures.md, on small runs of the same names and times."""
    page = (Path(__file__).parents[1] / "docs/pictures.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    facts = {"sphereflow_case_sha256": "0" * 64}
    density_run(41, **facts).to_netcdf("octahedron_oscillating.nc")
    token_run(41, **facts).to_netcdf("tokens_oscillating.nc")
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "sphereflow" and main([*arguments, "--dpi", "20"]) == 0
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/pictures.md", "exec"), {})
    made = {"octahedron_oscillating.png", "two.pdf", "maps.png", "film.gif", "film_of_two.gif", "maps_of_two.png"}
    assert made <= {path.name for path in tmp_path.iterdir()}
