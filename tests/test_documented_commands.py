"""Every command and code block of the README and of the pages for users is run, and the output that is shown is what comes out.

A block is a fence with its language. A comment before it says what is special about it:

    <!-- file: NAME -->             it is the content of a file that a reader saves
    <!-- fails with exit code N --> the command is shown for its error
    <!-- not run: REASON -->        it cannot run here; `NOT_RUN` lists all of these

A block of `text` is the output of the command before it. Shell blocks run in a temporary folder that looks like a copy of the
repository, in the order of the page, Python blocks in one namespace. `pip` and `pytest` are not run anew by a test that pytest
runs in what pip installed: what they are asked for is held against setup.py and .ci/run.
"""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import sphereflow
from sphereflow.case import parse_case

ROOT = Path(__file__).parents[1]
PAGES = [page for page in ("README.md", "docs/installing.md", "docs/tutorial.md") if (ROOT / page).exists()]
# What a reader's copy of the repository has, and a command may name.
REPOSITORY = ("cases", "docs", "postprocess", "benchmarks", "tests", "setup.py")
# On the other pages commands are only held against the command line: they are long, or examples for files of the reader's.
OTHERS = sorted({path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")} - set(PAGES))
NOT_RUN = {
    "README.md": ["there is no batch system"],
    "docs/installing.md": ["changes the machine; .ci/run installs the same packages"],
}
FENCE = re.compile(r"^(?:<!-- (?P<remark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"([-+]?\d+\.?\d*(?:e[-+]?\d+)?)")
ROUNDING = 1e-10  # below it a number is rounding, and its digits are those of one machine


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    remark: str

    @property
    def not_run(self):
        """The reason, or an empty string."""
        return self.remark.removeprefix("not run: ") if self.remark.startswith("not run: ") else ""

    @property
    def file(self):
        """The name under which a reader saves it, or an empty string."""
        return self.remark.removeprefix("file: ") if self.remark.startswith("file: ") else ""

    @property
    def exit_code(self):
        """Of the last command."""
        found = re.fullmatch(r"fails with exit code (\d+)", self.remark)
        return int(found[1]) if found else 0


def blocks_of(page):
    """All fenced blocks of a page but those that the documentation tool evaluates."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(m["language"], m["text"], m["remark"] or "") for m in FENCE.finditer(text)]


def commands_of(block):
    """The `sphereflow` commands of a shell block, as lists of words."""
    text = re.sub(r"\$\(.*?\)", "0", block.text)  # what the shell puts there is one word
    lines = text.replace("\\\n", " ").splitlines()
    words = [shlex.split(line.removeprefix("$ "), comments=True) for line in split_commands(lines)]
    return [line[1:] for line in words if line and line[0] == "sphereflow"]


def split_commands(lines):
    """Single commands of lines that may hold several."""
    return [part.strip() for line in lines for part in re.split(r"&&|\||;", line) if not line.lstrip().startswith("#")]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_kind_that_is_run(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(blocks_of(page)), "a fence that is not understood"
    assert not re.search(r"\n\n(?!\s*[*\d-])    \S", FENCE.sub("", text)), "code without a fence is not run: give it one"
    for block in blocks_of(page):
        assert block.language in ("sh", "python", "text") or block.file, block
        known = block.not_run or block.file or block.exit_code
        assert known or not block.remark, f"unknown remark {block.remark!r}"


def test_what_is_not_run_is_listed():
    found = {page: [block.not_run for block in blocks_of(page) if block.not_run] for page in PAGES}
    assert {page: reasons for page, reasons in found.items() if reasons} == NOT_RUN
    assert sum(map(len, NOT_RUN.values())) <= 4


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_those_of_the_command_line(page):
    from sphereflow.cli import _parser

    parser = _parser()
    for block in blocks_of(page):
        if block.language == "sh":
            for words in commands_of(block):
                parser.parse_args(words)  # exits, and fails, at a word that it does not know
        if block.language == "python":
            compile(block.text, page, "exec")
        if block.file.endswith(".toml"):
            parse_case(block.text)


@pytest.mark.parametrize("page", OTHERS)
def test_commands_of_other_pages_are_those_of_the_command_line(page):
    from sphereflow.cli import _parser

    parser, text = _parser(), (ROOT / page).read_text(encoding="utf-8")
    shown = [m["text"] for m in FENCE.finditer(text) if m["language"] in ("sh", "")]
    shown += re.findall(r"^ {4}(?:\$ )?(sphereflow (?:.*\\\n)*.*\n)", text, re.MULTILINE)
    for words in (words for block in shown for words in commands_of(Block("sh", block, ""))):
        parser.parse_args(words)


INSTALLED = '#!/bin/sh\nexec {python} {module} "$@"\n'
MODULES = {"sphereflow": "-m sphereflow.cli", "python": ""}
LOGGED = '#!/bin/sh\necho "{name} $*" >> "{log}"\n'


class Reader:
    """Somebody who follows a page, in a folder that looks like a copy of the repository."""

    def __init__(self, folder, page):
        self.folder, self.page, self.names, self.output = folder / "copy", page, {}, ""
        self.log = folder / "commands"
        self.log.touch()
        tools = folder / "bin"
        tools.mkdir()
        self.folder.mkdir()
        for name in REPOSITORY:
            (self.folder / name).symlink_to(ROOT / name)
        python = shlex.quote(sys.executable)
        scripts = {name: INSTALLED.format(python=python, module=module) for name, module in MODULES.items()}
        scripts |= {name: LOGGED.format(name=name, log=self.log) for name in ("pip", "pytest")}
        for name, script in scripts.items():
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        package = str(Path(sphereflow.__file__).parents[1])
        self.environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "Agg", "NUMBA_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }  # fmt: skip

    def follow(self):
        """Do what the page says, block after block."""
        for block in blocks_of(self.page):
            if block.not_run:
                continue
            if block.file:
                (self.folder / block.file).write_text(block.text)
            elif block.language == "sh":
                done = subprocess.run(
                    ["bash", "-e", "-o", "pipefail", "-c", block.text], cwd=self.folder, env=self.environment,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                )  # fmt: skip
                self.output = done.stdout
                assert done.returncode == block.exit_code, f"{block.text}\n{done.stdout}"
            elif block.language == "python":
                exec(compile(block.text, self.page, "exec"), self.names)
            else:
                assert_same_output(block.text, self.output)

    def asked_for(self):
        """The calls of pip and pytest."""
        return self.log.read_text().splitlines()


def assert_same_output(shown, printed):
    """Equal lines, numbers within 2 %; `...` stands for anything, in a line that is otherwise the same."""
    shown, printed = shown.splitlines(), printed.splitlines()
    assert len(shown) == len(printed), "\n".join(printed)
    for line, other in zip(shown, printed, strict=True):
        if "..." in line:
            begin, end = line.split("...")
            assert other.startswith(begin) and other.endswith(end), other
            continue
        words, others = NUMBER.split(line), NUMBER.split(other)
        assert words[::2] == others[::2], f"shown  {line}\nprinted {other}"
        for one, two in zip(map(float, words[1::2]), map(float, others[1::2]), strict=True):
            assert abs(one - two) <= max(0.02 * abs(one), ROUNDING), f"shown  {line}\nprinted {other}"


@pytest.fixture
def follow(tmp_path, monkeypatch):
    """Returns a function that follows a page and checks what it asks of pip and pytest."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")

    def follow_page(page):
        reader = Reader(tmp_path, page)
        monkeypatch.chdir(reader.folder)
        reader.follow()
        for value in reader.names.values():
            if hasattr(value, "close") and hasattr(value, "sizes"):
                value.close()
        plt.close("all")
        check_calls(reader.asked_for())

    return follow_page


def check_calls(calls):
    """What pip is asked for exists, and pytest is called as .ci/run calls it."""
    extras = re.findall(r'^    "(\w+)": ', (ROOT / "setup.py").read_text(), re.MULTILINE)
    ci = (ROOT / ".ci/run").read_text()
    for call in calls:
        if call.startswith("pip"):
            wanted = re.fullmatch(r"pip install \.(?:\[([\w,]+)\])?", call)
            assert wanted, call
            assert set(filter(None, (wanted[1] or "").split(","))) <= set(extras), call
        else:
            assert f"\n{call}\n" in ci, call


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_as_it_stands(page, follow):
    follow(page)


def test_output_that_differs_is_noticed():
    printed = "E 1.001\nmade at noon\nmass 9e-16"
    assert_same_output("E 1.000\nmade at ...\nmass 1e-16", printed)
    for one, other in (("E", "F"), ("1.001", "1.1"), ("made", "found"), ("9e-16", "9e-6"), ("\nmass", " mass")):
        with pytest.raises(AssertionError):
            assert_same_output(printed.replace("noon", "...").replace(one, other), printed)
