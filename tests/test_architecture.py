"""The order of the rooms: a module of sphereflow imports only from rooms that stand before its own in `ROOMS`.

The imports are read from the source, those inside of functions included; nothing is imported.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "sphereflow"
ROOMS = (
    "errors names limits grid passes cells faces harmonics kernel sampling mobility heads drift transformer attention "
    "variational stability energy initial fluxes transport movement prediction stepping particles diagnostics case "
    "storage simulation movement_solver layers compare sessions runs resuming ensemble plotting report cli"
).split()
PHYSICS = ROOMS[: ROOMS.index("stepping")]
# Who may use a library: the only rooms that import it.
ONLY_IN = {
    "pydantic": ["case"],
    "pydantic_core": ["case"],
    "tomllib": ["case", "storage", "compare"],
    "tomli_w": ["case"],
    "xarray": ROOMS[ROOMS.index("case") :],
    "netCDF4": ROOMS[ROOMS.index("case") :],
    "matplotlib": ["plotting", "report"],
    "jinja2": ["report"],
    "PIL": ["plotting"],
    "argparse": ["cli"],
    "tqdm": ["cli"],
    "dask": ["ensemble"],
    "distributed": ["ensemble"],
    "threadpoolctl": ["runs"],
    "shtns": ["harmonics"],
    "ducc0": ["grid", "harmonics"],
}
DISTRIBUTION = {"ot": "POT", "PIL": "pillow", "pydantic_core": "pydantic"}  # of a module, where the names differ
OF_THE_COMMAND_LINE = {"print", "input", "exit", "quit", "breakpoint"}

SOURCES = sorted(PACKAGE.rglob("*.py"))
every_source = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())


def room_of(source):
    """Room of a file: the module or sub-package of sphereflow that it is, or None for sphereflow itself."""
    first = source.relative_to(PACKAGE).parts[0]
    return None if first == "__init__.py" else first.removesuffix(".py")


def imported_modules(tree):
    """Full names of all modules that a syntax tree imports, `from a import b` giving a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import; write the full name"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_rooms(tree):
    """Rooms of sphereflow that a syntax tree imports from."""
    parts = (name.split(".") for name in imported_modules(tree))
    return {path[1] for path in parts if path[0] == "sphereflow" and path[1] != "__version__"}


def parse(source):
    return ast.parse(source.read_text(encoding="utf-8"))


def test_every_room_has_its_place():
    unknown = {room_of(source) for source in SOURCES} - {None, *ROOMS}
    assert not unknown, f"give {sorted(unknown)} a place in ROOMS"


@every_source
def test_imports_follow_the_order_of_rooms(source):
    room, rooms = room_of(source), imported_rooms(parse(source))
    assert rooms <= set(ROOMS), f"unknown rooms {sorted(rooms - set(ROOMS))}"
    if room is None:
        return
    later = sorted(other for other in rooms if ROOMS.index(other) > ROOMS.index(room))
    assert not later, f"{room} stands before {', '.join(later)} and must not import from there"


@every_source
def test_libraries_stay_in_their_rooms(source):
    room = room_of(source)
    used = {name.split(".")[0] for name in imported_modules(parse(source))}
    misplaced = sorted(name for name in used & ONLY_IN.keys() if room not in ONLY_IN[name])
    assert not misplaced, f"{room} must not import {', '.join(misplaced)}"


def test_every_library_is_a_declared_dependency():
    used = {name.split(".")[0] for source in SOURCES for name in imported_modules(parse(source))}
    foreign = used - {"sphereflow"} - sys.stdlib_module_names
    declared = re.findall(r'"(\w+)>=', (PACKAGE.parent / "setup.py").read_text(encoding="utf-8"))
    missing = sorted(name for name in foreign if DISTRIBUTION.get(name, name) not in declared)
    assert not missing, f"setup.py does not name {', '.join(missing)}"


@every_source
def test_only_the_command_line_prints_or_exits(source):
    if room_of(source) == "cli":
        return
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in OF_THE_COMMAND_LINE, f"line {node.lineno}: {node.func.id}()"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("sys", "exit"), ("os", "_exit")}, f"line {node.lineno}"


def test_physics_knows_no_time_stepping_and_stepping_no_files():
    imports = {room: set() for room in ROOMS}
    for source in SOURCES:
        if (room := room_of(source)) is not None:
            imports[room] |= imported_rooms(parse(source))
    offenders = [room for room in PHYSICS if "stepping" in imports[room]]
    assert not offenders
    assert "storage" not in imports["stepping"]


def test_imports_inside_of_functions_are_seen():
    tree = ast.parse("def f():\n    from sphereflow.storage.writer import RunWriter\n    import sphereflow.cli\n")
    assert imported_rooms(tree) == {"storage", "cli"}
    assert imported_rooms(ast.parse("from sphereflow import energy, __version__")) == {"energy"}
