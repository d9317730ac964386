"""The documentation agrees with the code: generated tables, links, and the examples that it shows."""

import importlib.util
import re
from pathlib import Path

import pytest

import sphereflow
from sphereflow.case import parse_case

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUN = "octahedron_oscillating"


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def examples(name, language):
    """The code blocks of a page in one language."""
    return re.findall(rf"```{language}\n(.*?)```", read(name), re.DOTALL)


@pytest.fixture(scope="module")
def folder_with_run(tmp_path_factory):
    """A folder with a short run under the name that the examples use."""
    folder = tmp_path_factory.mktemp("docs")
    overrides = ["grid.nlat=16", "initial.kappa=20", "solver.t_end=0.2"]
    sphereflow.run(ROOT / f"cases/{RUN}.toml", folder / f"{RUN}.nc", overrides=overrides).close()
    return folder


def test_generated_tables_are_up_to_date():
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs/make_reference.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stale = [file.name for file, content in script.made().items() if not file.exists() or read(file) != content]
    assert not stale, "run python docs/make_reference.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


@pytest.mark.parametrize("page", ["README.md", "docs/file-format.md"])
def test_examples_of_reading_a_run_work(page, folder_with_run, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    monkeypatch.chdir(folder_with_run)
    example = examples(page, "python")[0]
    names = {}
    exec(compile(example, page, "exec"), names)
    assert names["run"].attrs["sphereflow_status"] == "complete"
    plt.close("all")
    for dataset in ("run", "weights"):
        if dataset in names:
            names[dataset].close()


def test_example_of_a_case_is_valid():
    (example,) = examples("docs/case-file.md", "toml")
    assert parse_case(example).solver.t_end == 2


def test_every_variable_of_a_run_is_documented(folder_with_run):
    with sphereflow.open_run(folder_with_run / f"{RUN}.nc") as run:
        missing = [name for name in run.variables if not re.search(rf"`{name}[`(]", read("docs/file-format.md"))]
    assert not missing


def test_commands_of_the_readme_exist():
    readme = read("README.md")
    for name in re.findall(r"sphereflow run (\S+)", readme):
        assert (ROOT / name).is_file()
    (command,) = re.findall(r"pip install '\.\[test\]' && (.*)", readme)
    assert f"\n{command}\n" in read(".ci/run")


def test_versions_agree():
    version = sphereflow.__version__
    assert f"\nversion: {version}\n" in read("CITATION.cff")
    assert re.search(rf"^## {re.escape(version)}\b", read("CHANGELOG.md"), re.MULTILINE)
