"""The web page of a run in headless Chromium: what a reader sees, with mouse, keyboard and without full colour vision.

Needs `chromium`, `chromedriver` and selenium; without them the tests are skipped, unless SPHEREFLOW_REQUIRE_BROWSER=1. Graphics
are computed by SwiftShader, so that no display and no graphics card is needed.
"""

import io
import json
import os
import re
import shutil
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
import report_samples as samples

from sphereflow.grid import GaussGrid
from sphereflow.report import write_report

REQUIRE_BROWSER = "SPHEREFLOW_REQUIRE_BROWSER"
WIDE, NARROW = (1280, 720), (390, 844)
FLAGS = (
    "--headless=new --no-sandbox --disable-dev-shm-usage --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader "
    "--hide-scrollbars --no-first-run --disable-extensions --disable-background-networking --disable-component-update"
).split()
UNIFORM = 1 / (4 * np.pi)
EVIL = "A <b>turning</b> hill</script><script>document.title='broken'</script>"
NO_WEBGL = """const real = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
  return kind === 'webgl2' ? null : real.call(this, kind, ...more);
};"""
LEFT, RIGHT, DOWN, ENTER = "\ue012", "\ue014", "\ue015", "\ue007"  # as WebDriver names keys
OUTSIDE = """return [...document.querySelectorAll('body *')].filter(
  e => !e.closest('pre, .scroll, #compass, #ticks, noscript') && e.getClientRects().length
    && e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))"""
CUT = "return [...document.querySelectorAll('button, select')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.id)"


@pytest.fixture(scope="module")
def driver():
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    try:
        from selenium import webdriver
    except ImportError:
        found["selenium"] = None
    missing = [name for name, where in found.items() if where is None]
    if missing:
        if os.environ.get(REQUIRE_BROWSER, "0") not in ("", "0"):
            pytest.fail(f"{', '.join(missing)} not found, but {REQUIRE_BROWSER} asks for it", pytrace=False)
        pytest.skip(f"{', '.join(missing)} not found")
    options = webdriver.ChromeOptions()
    options.binary_location = found["chromium"]
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(found["chromedriver"]))
    yield browser
    browser.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a density, of a density with tokens, of tokens alone, and of a series."""
    folder = tmp_path_factory.mktemp("pages")
    density = samples.write_density_run(folder / "density.nc", title=EVIL)
    tokens = samples.write_token_run(folder / "tokens.nc")
    series = samples.write_density_run(folder / "series.nc", with_field=False, status="failed: density is negative")
    return SimpleNamespace(
        density=write_report(density).path,
        overlay=write_report(density, folder / "overlay.html", particles=tokens).path,
        tokens=write_report(tokens).path,
        series=write_report(series).path,
    )


class Page:
    """A page in the browser."""

    def __init__(self, driver, path, size=WIDE, mobile=False):
        self.driver = driver
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": mobile}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        for kind in ("browser", "performance"):
            driver.get_log(kind)
        driver.get(path.as_uri())
        self.wait("document.documentElement.dataset.ready === 'true'")
        self.settle()

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition, seconds=20):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, seconds, poll_frequency=0.02).until(lambda d: d.execute_script(f"return {condition}"))

    def settle(self):
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done));")

    def find(self, name):
        return self.driver.find_element("id", name)

    def text(self, name):
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def picture(self, name="sphere"):
        """Pixels of an element, (height, width, 3), without the labels that lie over the sphere."""
        self.overlays("hidden")
        shot = self.find(name).screenshot_as_png
        self.overlays("visible")
        return matplotlib.image.imread(io.BytesIO(shot))[..., :3]

    def overlays(self, visibility):
        self.run("for (const name of ['compass', 'zoom']) document.getElementById(name).style.visibility = arguments[0]",
                 visibility)  # fmt: skip
        self.settle()

    def set_slider(self, value):
        self.run("const s = document.getElementById('slider'); s.value = arguments[0];"
                 "s.dispatchEvent(new Event('input', {bubbles: true}))", value)  # fmt: skip
        self.settle()

    def keys(self, *keys):
        self.find("sphere").send_keys(*keys)
        self.settle()

    def mouse(self):
        from selenium.webdriver.common.action_chains import ActionChains

        return ActionChains(self.driver, duration=20)

    def value(self):
        """Longitude, latitude and density of the readout."""
        found = re.match(r"lat ([−\d.]+)°, lon ([\d.]+)°: density ([\d.·⁻⁰¹²³⁴-⁹]+)", self.text("readout"))
        return [float(part.replace("−", "-")) for part in found.groups()]


def luminance(picture):
    linear = np.where(picture <= 0.04045, picture / 12.92, ((picture + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def changed(a, b):
    """Share of pixels that differ visibly."""
    return np.mean(np.abs(a - b).max(axis=-1) > 0.05)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "390"])
@pytest.mark.parametrize("name", ["density", "overlay", "tokens", "series"])
def test_page_loads_in_full_width_without_errors_and_requests(driver, pages, name, size):
    page = Page(driver, getattr(pages, name), size, mobile=size is NARROW)
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("WARNING", "SEVERE")] == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith(("file:", "data:", "blob:")) for url in urls)
    assert sum(url.startswith("file:") for url in urls) == 1
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    assert page.run(OUTSIDE) == [] and page.run(CUT) == []
    panels, plots = (page.run(f"return document.querySelectorAll('{kind}').length") for kind in (".panel", ".uplot"))
    assert panels == plots > 0
    assert page.run("return document.getElementById('trouble').hidden")


def test_title_of_the_run_stays_text(driver, pages):
    page = Page(driver, pages.density)
    assert page.run("return document.querySelector('h1').textContent") == EVIL
    assert driver.title == EVIL + " · sphereflow"


def test_slider_moves_the_hill_and_the_markers(driver, pages):
    page = Page(driver, pages.density)
    markers = "return [...document.querySelectorAll('.marker')].map(e => e.style.transform)"
    before, marked = page.picture(), page.run(markers)
    page.set_slider(5)
    after = page.picture()
    assert changed(before, after) > 0.1
    assert page.text("time-label") == "t = 5"
    assert all(a != b for a, b in zip(marked, page.run(markers), strict=True))
    # At t = 0 the hill is in front, at t = 5 behind: what is seen is then darker everywhere.
    assert luminance(before).max() > luminance(after[20:-20, 20:-20])[100:-100, 100:-100].max()


def test_values_are_those_of_the_run(driver, pages):
    page = Page(driver, pages.density)
    grid = GaussGrid(32)
    page.keys(ENTER)  # reads at the centre, 30 E 25 N
    latitude, longitude, density = page.value()
    assert (latitude, longitude) == (25.0, 30.0)
    row = np.searchsorted(grid.colatitude_face, np.radians(90 - latitude)) - 1
    column = round(longitude / 360 * grid.nlon)
    for record in (0, 3):
        page.set_slider(record)
        expected = samples.hill(grid.points[row, column], samples.centre_of(record, 11))
        assert page.value()[2] == pytest.approx(expected, rel=1e-3)
        ratio = float(re.search(r"\(([\d.]+) × uniform\)", page.text("readout"))[1])
        assert ratio == pytest.approx(expected / UNIFORM, rel=1e-3)
    box = page.find("sphere").size
    page.mouse().move_to_element_with_offset(page.find("sphere"), 0, -box["height"] * 0.2).click().perform()
    assert page.value()[0] > 40


def test_dragging_rotates(driver, pages):
    page = Page(driver, pages.density)
    sphere = page.find("sphere")
    radius = 0.47 * sphere.size["width"]
    before = page.picture()
    page.mouse().move_to_element(sphere).click_and_hold().move_by_offset(-int(radius / 4), 0).move_by_offset(
        -int(radius / 4), int(radius / 4)
    ).release().perform()
    page.settle()
    after = page.picture()
    assert changed(before, after) > 0.1
    page.keys(ENTER)
    latitude, longitude, _ = page.value()
    assert longitude == pytest.approx(30 + np.degrees(0.5), abs=3) and latitude == pytest.approx(25 + np.degrees(0.25), abs=3)
    page.find("reset").click()
    assert changed(before, page.picture()) < 0.01


def test_touch_rotates(driver, pages):
    page = Page(driver, pages.density, NARROW, mobile=True)
    before = page.picture()
    box = page.run("const r = document.getElementById('sphere').getBoundingClientRect();"
                   "return [r.x + r.width / 2, r.y + r.height / 2]")  # fmt: skip
    driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for kind, x in (("touchStart", 0), ("touchMove", 40), ("touchMove", 80), ("touchEnd", None)):
        points = [] if x is None else [{"x": box[0] + x, "y": box[1]}]
        driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    page.settle()
    assert changed(before, page.picture()) > 0.1


def test_keys_rotate_and_there_is_no_seam(driver, pages):
    """The hill at 180 degrees looks as it does at 0: no line where longitude jumps, none where the array begins."""
    page = Page(driver, pages.density)
    page.run("document.getElementById('limits').value = 'linear';"
             "document.getElementById('limits').dispatchEvent(new Event('change'))")  # fmt: skip
    page.keys(LEFT * 6, DOWN * 5)  # five degrees each, from 30 E 25 N
    at_zero = page.picture()
    page.set_slider(5)
    dark = page.picture()
    page.keys(RIGHT * 36)
    assert changed(at_zero, dark) > 0.1
    difference = np.abs(page.picture() - at_zero).max(axis=-1)
    assert np.mean(difference > 0.03) < 1e-3


@pytest.mark.parametrize("size", [(1000, 700), (1280, 700), (900, 600), (700, 900), (320, 568)], ids=str)
def test_sphere_is_round_and_sharp(driver, pages, size):
    page = Page(driver, pages.tokens, size)
    inside = page.picture().min(axis=-1) < 0.97
    rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    assert np.ptp(rows) == pytest.approx(np.ptp(columns), abs=2) and np.ptp(rows) > 0.9 * len(inside)
    canvas = "const c = document.getElementById('sphere'); return [c.width, c.height, c.clientWidth, c.clientHeight]"
    assert np.ptp(page.run(canvas)) == 0
    assert page.run(OUTSIDE) == [] and page.run(CUT) == []


def test_zoom_and_grid_lines(driver, pages):
    page = Page(driver, pages.density)
    before = page.picture()
    page.find("zoom-in").click()
    larger = page.picture()
    page.find("reset").click()
    page.find("show-graticule").click()
    plain = page.picture()
    assert changed(before, larger) > 0.05 and 0.002 < changed(before, plain) < 0.1


@pytest.mark.parametrize("name", ["tokens", "overlay"])
def test_tokens_are_drawn_and_read(driver, pages, name):
    page = Page(driver, getattr(pages, name))
    page.keys(LEFT * 6, DOWN * 5, ENTER)
    assert "token 0, lat 0.0°, lon 0.0°, weight 0.0125" in page.text("readout")
    if name == "tokens":
        return
    assert "density" in page.text("readout")
    with_tokens = page.picture()
    page.find("show-tokens").click()
    assert 0.0005 < changed(with_tokens, page.picture()) < 0.2


def test_curves_choose_and_preview_times(driver, pages):
    page = Page(driver, pages.density)
    plot = driver.find_elements("css selector", ".u-over")[0]
    page.mouse().move_to_element(plot).perform()
    page.settle()
    assert page.text("time-label") == "t = 5" and page.find("slider").get_property("value") == "5"
    page.mouse().move_to_element(page.find("hint")).perform()
    assert page.text("time-label") == "t = 0"  # that was a preview
    page.mouse().move_to_element(plot).click().move_to_element(page.find("hint")).perform()
    assert page.text("time-label") == "t = 5"
    assert page.run("return document.querySelector('.legend output').textContent") == "−0.5"  # E(5) - E(0)


def test_play_runs_to_the_end(driver, pages):
    page = Page(driver, pages.density)
    page.run("document.getElementById('speed').value = '25'")
    page.set_slider(7)
    label = "const play = document.getElementById('play'); play.click(); return play.getAttribute('aria-label')"
    assert page.run(label) == "Pause"
    page.wait("document.getElementById('time-label').textContent === 't = 10'")
    page.wait("document.getElementById('play').getAttribute('aria-label') === 'Play'")


def test_everything_is_reached_by_keyboard_and_has_a_name(driver, pages):
    page = Page(driver, pages.overlay)
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(16):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        reached.append(page.run("return document.activeElement.id || document.activeElement.className"))
    expected = "sphere zoom-out zoom-in reset play back forward slider limits speed show-tokens show-graticule".split()
    expected += ["scroll", "case"]
    assert [name for name in reached if name in expected][: len(expected)] == expected
    page.find("slider").send_keys(Keys.RIGHT, Keys.RIGHT)
    assert page.text("time-label") == "t = 2"
    assert page.find("slider").get_attribute("aria-valuetext") == "t = 2, 3 of 11"
    tree = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {"button", "slider", "combobox", "checkbox", "application", "image", "region"}
    found = [(node["role"]["value"], node.get("name", {}).get("value")) for node in tree if not node["ignored"]]
    assert named <= {role for role, _ in found}
    assert [role for role, name in found if role in named and not name] == []


def test_focus_is_visible(driver, pages):
    page = Page(driver, pages.density)
    from selenium.webdriver.common.keys import Keys

    driver.switch_to.active_element.send_keys(Keys.TAB)
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_colours_grow_brighter_with_any_colour_vision(driver, pages):
    page = Page(driver, pages.density)
    try:
        for vision in ("none", "protanopia", "deuteranopia", "tritanopia", "achromatopsia"):
            driver.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": vision})
            strip = luminance(page.picture("colours"))[6:-6, 4:-4].mean(axis=0)
            steps = strip[:: len(strip) // 16]
            assert np.all(np.diff(steps) > 0), vision
            assert steps[-1] - steps[0] > 0.6, vision
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedVisionDeficiency", {"type": "none"})


def test_scale_has_numbers_for_every_choice(driver, pages):
    page = Page(driver, pages.density)
    largest = samples.KAPPA / (2 * np.pi) / UNIFORM
    for kind in ("linear", "logarithmic", "own"):
        page.run("document.getElementById('limits').value = arguments[0];"
                 "document.getElementById('limits').dispatchEvent(new Event('change'))", kind)  # fmt: skip
        ticks = page.run("return [...document.querySelectorAll('#ticks span')].map(e => "
                         "[e.textContent, e.getBoundingClientRect().left, e.getBoundingClientRect().right])")  # fmt: skip
        values = [float(text) for text, _, _ in ticks]
        assert len(values) >= 2 and np.all(np.diff(values) > 0) and values[-1] <= largest
        assert all(left[2] < right[1] for left, right in zip(ticks, ticks[1:], strict=False))  # none over another


def test_without_webgl_the_rest_is_there(driver, pages):
    script = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_WEBGL})
    try:
        page = Page(driver, pages.density)
        assert "WebGL 2 is not available" in page.text("trouble") and page.find("trouble").is_displayed()
        assert not page.find("sphere").is_displayed()
        page.set_slider(4)
        assert page.text("time-label") == "t = 4"
        assert page.find("conservation").is_displayed() and driver.find_elements("css selector", ".uplot canvas")
    finally:
        driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script["identifier"]})


def test_graphics_that_are_lost_come_back(driver, pages):
    page = Page(driver, pages.overlay)
    page.set_slider(2)
    before = page.picture()
    page.run("window.loss = document.getElementById('sphere').getContext('webgl2').getExtension('WEBGL_lose_context');"
             "window.loss.loseContext()")  # fmt: skip
    page.wait("document.getElementById('readout').textContent.includes('graphics')")
    page.run("window.loss.restoreContext()")
    page.wait("document.getElementById('readout').textContent.includes('Drag')")
    assert changed(before, page.picture()) < 1e-3


def test_page_saved_from_the_browser_still_works(driver, pages, tmp_path):
    page = Page(driver, pages.overlay)
    count = "return [document.querySelectorAll('.panel').length, document.querySelectorAll('#compass span').length]"
    before, counted = page.picture(), page.run(count)
    copy = tmp_path / "copy.html"
    copy.write_text("<!DOCTYPE html>" + page.run("return document.documentElement.outerHTML"), encoding="utf-8")
    again = Page(driver, copy)
    assert changed(before, again.picture()) < 1e-3 and again.run(count) == counted
    # The policy of the page refuses style attributes, which the browser has written into the copy; they are made anew.
    assert [entry for entry in driver.get_log("browser") if entry["source"] == "javascript"] == []
    assert again.run("return document.documentElement.scrollWidth") <= WIDE[0]


def test_run_without_a_sphere_explains_itself(driver, pages):
    page = Page(driver, pages.series)
    assert "output.fields" in page.text("missing") and "Failed" in page.text("state")
    assert not page.find("sphere").is_displayed() and page.find("slider").is_displayed()
    page.set_slider(3)
    assert page.text("time-label") == "t = 3"
