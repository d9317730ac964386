"""The picture in docs/report.md: the web page of cases/octahedron_oscillating.toml with tokens, in headless Chromium.

    python postprocess/report_picture.py [octahedron_oscillating.nc tokens_oscillating.nc]

Without the names of finished runs the cases are run first, into a temporary folder. Needs selenium (extra `test`), `chromium`
and `chromedriver`.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

import sphereflow
from sphereflow.report import write_report

ROOT = Path(__file__).parents[1]
CASES = ("octahedron_oscillating", "tokens_oscillating")
PICTURE = ROOT / "docs/images/report.png"
RECORD = 30
FLAGS = "--headless=new --no-sandbox --disable-dev-shm-usage --use-gl=angle --use-angle=swiftshader --enable-unsafe-swiftshader"


def photograph(page, picture):
    """Write what a reader sees of a page at one of its times, 1280 pixels wide."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS.split(), "--hide-scrollbars"):
        options.add_argument(flag)
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))) as browser:
        size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(page.as_uri())
        WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.documentElement.dataset.ready === 'true'"))
        browser.execute_script(
            "const s = document.getElementById('slider'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))", RECORD
        )
        browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        browser.save_screenshot(str(picture))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", help="finished runs of the two cases")
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        if not runs:
            runs = [f"{folder}/{case}.nc" for case in CASES]
            for case, path in zip(CASES, runs, strict=True):
                sphereflow.run(ROOT / f"cases/{case}.toml", path).close()
        density, tokens = runs
        photograph(write_report(density, Path(folder) / "report.html", particles=tokens).path, PICTURE)


if __name__ == "__main__":
    main()
