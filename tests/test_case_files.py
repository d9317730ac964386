"""Case files as files: reading, inputs beside them, overrides, and the text that a case is written back to."""

import tomllib
from pathlib import Path

import pytest
from case_samples import OU, case_data, errors_of, only_error
from hypothesis import given, settings
from hypothesis import strategies as st

from sphereflow.case import load_case, parse_case
from sphereflow.errors import CaseError

IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
SMALL_ENTRIES = [[1e-12, -2.5, 0], [-2.5, 1, 0], [0, 0, 1]]


# ------------------------------------------------------------------------------------------------------------- files
def write(folder, text, name="run.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


SMALL = '[initial]\nkind = "uniform"\n[solver]\nt_end = 2\n'


def test_load_names_the_output_after_the_case(tmp_path):
    assert load_case(write(tmp_path, SMALL, "ten_heads.toml")).output.file == "ten_heads.nc"
    assert load_case(str(write(tmp_path, "\ufeff" + SMALL))).output.file == "run.nc"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[grid]\nnlat 64\n', "(at line 2, column 6)"),
        ('[grid]\nnlat = 64\n[grid]\n', "(at line 3, column 6)"),
        ('title = "x"\n[solver]\nt_end = [1,', "(at line 3, column 12, the end of the file)"),
        ("t_end = " + "9" * 5000, "digits"),
        ("t_end = " + "[" * 5000, "nested too deeply"),
    ],
)  # fmt: skip
def test_toml_errors_name_file_line_and_column(tmp_path, text, place):
    path = write(tmp_path, text)
    with pytest.raises(CaseError) as caught:
        load_case(path)
    assert str(caught.value).startswith(f"{path}: not valid TOML: ") and place in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(CaseError, match=r"nothing\.toml: there is no such file; must be the name of a case file"):
        load_case(tmp_path / "nothing.toml")
    with pytest.raises(CaseError, match="is a folder; must be the name of a case file"):
        load_case(tmp_path)
    with pytest.raises(CaseError, match="the file is empty; must hold a case"):
        load_case(write(tmp_path, " \n\n"))
    (tmp_path / "latin.toml").write_bytes('title = "x"\ntitle2 = "Lösung"\n'.encode("latin-1"))
    with pytest.raises(CaseError, match=r"latin\.toml: byte 0xf6 in line 2 is not UTF-8; must be a text file in UTF-8"):
        load_case(tmp_path / "latin.toml")
    with pytest.raises(CaseError, match="cannot be read"):
        load_case("a\0b")


def test_comments_only_tell_what_is_missing(tmp_path):
    path = write(tmp_path, "# nothing yet\n")
    with pytest.raises(CaseError) as caught:
        load_case(path)
    assert str(caught.value).startswith(f"{path}: 2 errors\n")
    assert "initial.kind: missing" in str(caught.value) and "solver.t_end: missing" in str(caught.value)


def test_input_files_are_found_beside_the_case(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("a.npz", "v.npz", "tokens.pt"):
        (tmp_path / name).touch()
    text = (
        '[heads]\nschedule = "table"\nfile = "elsewhere/../a.npz"\nvalues = {file = "v.npz"}\n'
        '[initial]\nkind = "tokens"\nfile = "tokens.pt"\n[solver]\nt_end = 1.0\n[output]\nfile = "out.nc"\n'
    )
    case = load_case(write(tmp_path, text))
    folder = tmp_path.resolve()
    assert (case.heads.file, case.heads.values) == (folder / "a.npz", folder / "v.npz")
    assert case.initial.file == folder / "tokens.pt" and isinstance(case.initial.file, Path)
    assert case.output.file == "out.nc"
    assert case.heads.count is None and case.heads.weights is None  # known only when the file is read
    assert parse_case(case.to_toml()) == case
    plain = load_case(write(tmp_path, text.replace('{file = "v.npz"}', '"v.npz"')))
    assert plain == case


@pytest.mark.parametrize("require_files", [True, False])
def test_missing_input_files(tmp_path, require_files):
    (tmp_path / "folder.npz").mkdir()
    data = case_data(heads={"file": "folder.npz"}, initial={"kind": "netcdf", "file": "run.nc"})
    if require_files:
        lines = errors_of(data, folder=tmp_path)
        folder = tmp_path.resolve()
        assert lines == [
            f'heads.file: "folder.npz" is not found, there is no file {folder}/folder.npz; must be an existing file',
            f'initial.file: "run.nc" is not found, there is no file {folder}/run.nc; must be an existing file',
        ]
    else:
        case = parse_case(data, folder=tmp_path, require_files=False)
        assert case.initial.file == tmp_path.resolve() / "run.nc"


def test_table_takes_its_matrices_from_the_file_only():
    heads = {"schedule": "table", "file": "a.npz", "initial": "zero"}
    line = only_error(case_data(heads=heads), require_files=False)
    assert line.startswith('heads.initial: "zero" is not allowed with schedule = "table"; the key must be removed')


def test_matrices_from_a_file_exclude_other_sources():
    line = only_error(case_data(heads={"file": "a.npz", "initial": "zero"}), require_files=False)
    assert line.startswith('heads: initial = "zero" and file = "a.npz" are not allowed together')


# --------------------------------------------------------------------------------------------------------- overrides
def test_overrides_are_toml_values_or_bare_words(tmp_path):
    overrides = (
        "grid.nlat=32", "model.velocity = unnormalized", 'title="quoted # text"', "output.file=a b#c.nc",
        "heads.weights=[0.25, 0.75]", "heads.count=2", 'initial={kind = "octahedron", kappa = 4}', "solver.t_end=1e1",
    )  # fmt: skip
    case = load_case(write(tmp_path, "[grid]\nnlat = 16\n" + SMALL), overrides)
    assert (case.grid.nlat, case.model.velocity, case.title) == (32, "unnormalized", "quoted # text")
    assert (case.output.file, case.heads.weights, case.solver.t_end) == ("a b#c.nc", (0.25, 0.75), 10.0)
    assert (case.initial.kind, case.initial.kappa) == ("octahedron", 4.0)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("grid.nlatt=32", "grid.nlatt: unknown key; did you mean nlat?"),
        ("gird.nlat=32", "gird: unknown table; did you mean grid?"),
        ("solver.t_end=soon", 'solver.t_end: "soon" is not allowed; must be a finite number > 0'),
        ("solver.t_end=true", "solver.t_end: true is not allowed; must be a finite number > 0"),
        ("heads.weights=[0.5, 0.5", "heads.weights: [0.5, 0.5 is not valid TOML: "),
        ('title="open', 'title: "open is not valid TOML: '),
        ("grid.nlat", "--set grid.nlat: not understood; must be table.key=value"),
        ("=3", "--set =3: not understood; must be table.key=value"),
        ("grid..nlat=3", "--set grid..nlat=3: not understood; must be table.key=value"),
        ("solver.t_end.x=3", "solver.t_end.x: cannot be set: solver.t_end is not a table; must be table.key=value"),
        ("title.x=3", "title.x: cannot be set: title is not a table; must be table.key=value"),
        ("grid.nlat=32\n[model]\ndiffusion=1", 'grid.nlat: "32\\n[model]\\ndiffusion=1" is not allowed'),
    ],
)
def test_bad_overrides(override, expected):
    assert only_error(case_data(title="x"), override).startswith(expected)


def test_the_data_given_are_not_changed():
    data = case_data()
    parse_case(data, ["grid.nlat=32", "solver.t_end=5"])
    assert data == case_data()


# -------------------------------------------------------------------------------------------------------- round trip
def test_resolved_text_has_all_defaults_and_gives_the_same_case():
    heads = {"schedule": OU, "matrices": [SMALL_ENTRIES]}
    case = parse_case(case_data(title='say "so"\n[\n 1,\n]\t\\ \x7f é', heads=heads))
    text = case.to_toml()
    content = tomllib.loads(text)
    assert content["schema"] == 1 and content["title"] == case.title
    assert content["heads"]["noise_var"] == 2.0 and content["heads"]["weights"] == [1.0]
    assert content["solver"]["cfl"] == 0.3 and content["output"]["every"] == 0.02
    assert "[1e-12, -2.5, 0.0]" in text  # a row of a matrix on one line
    assert parse_case(text) == case


def test_sha256_ignores_the_place_of_files_and_nothing_else(tmp_path):
    def digest(folder, *overrides):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "d.nc").touch()
        text = '[initial]\nkind = "netcdf"\nfile = "d.nc"\n[solver]\nt_end = 2\n'
        return load_case(write(tmp_path / folder, text), overrides).sha256

    assert len(digest("a")) == 64 and digest("a") == digest("b") == digest("a", "output.file=other.nc")
    assert digest("a") == digest("a", "grid.nlat=64")  # a default made explicit
    others = {digest("a", change) for change in ("grid.nlat=32", "output.every=0.5", "heads.seed=1", "initial.time=1")}
    assert len(others | {digest("a")}) == 5


numbers = st.floats(-1e6, 1e6)
positive = st.floats(1e-6, 1e6)
symmetric = st.tuples(*[numbers] * 6).map(lambda v: [[v[0], v[1], v[2]], [v[1], v[3], v[4]], [v[2], v[4], v[5]]])


@st.composite
def valid_cases(draw):
    """Random valid cases without input files."""
    count = draw(st.integers(1, 3))
    matrices = st.lists(symmetric, min_size=count, max_size=count)
    schedule = draw(st.sampled_from(["frozen", OU, "oscillating"]))
    source = draw(st.sampled_from(["initial", "matrices"]))
    heads = {
        "count": count,
        "schedule": schedule,
        source: draw(matrices if source == "matrices" else st.sampled_from(["identity", "zero", "gaussian-symmetric"])),
        "seed": draw(st.integers(0, 2**63) | st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        "scale": draw(numbers),
        "values": draw(st.sampled_from(["logits", "identity"]) | matrices),
    }
    if schedule == OU:
        heads |= {"noise_var": draw(st.floats(0, 10)), "mean": draw(st.just("zero") | symmetric | matrices)}
    centers = draw(st.lists(st.tuples(positive, numbers, numbers), min_size=1, max_size=3))
    initial = draw(
        st.sampled_from([
            {"kind": "uniform"},
            {"kind": "vmf-mixture", "centers": centers, "kappa": draw(positive)},
            {"kind": "octahedron", "kappa": draw(positive)},
            {"kind": "harmonic", "degree": 3, "order": draw(st.integers(-3, 3)), "amplitude": draw(numbers)},
        ])
    )
    control = draw(st.sampled_from([{}, {"dt": draw(positive)}, {"cfl": draw(st.floats(1e-3, 1))}]))
    title = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
    return {
        "title": title,
        "grid": {"nlat": 2 * draw(st.integers(4, 500))},
        "heads": heads,
        "initial": initial,
        "solver": {"t_end": draw(positive), **control},
    }


@settings(max_examples=60, deadline=None, database=None)
@given(valid_cases())
def test_any_valid_case_survives_the_round_trip(data):
    case = parse_case(data)
    again = parse_case(case.to_toml())
    assert again == case
    assert again.to_toml() == case.to_toml() and again.sha256 == case.sha256
