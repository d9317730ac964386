"""Case files: what is accepted, what is refused and with which words, and that nothing is lost on the way."""

import math

import pytest
from case_samples import OU, case_data, errors_of, only_error

from sphereflow.case import Case, parse_case
from sphereflow.case.tables import KIND_KEYS, TABLES, variants
from sphereflow.errors import CaseError

IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
SKEWED = [[1, 2, 0], [2.1, 1, 0.5], [0, 0.25, 1]]  # the worst entry is [1][2]
SMALL_ENTRIES = [[1e-12, -2.5, 0], [-2.5, 1, 0], [0, 0, 1]]


# ---------------------------------------------------------------------------------------------------------- defaults
def test_smallest_case_has_documented_defaults():
    case = parse_case('[initial]\nkind = "uniform"\n[solver]\nt_end = 2\n')
    assert (case.schema_version, case.title, case.grid.nlat) == (1, "", 64)
    model = case.model
    assert (model.velocity, model.direction, model.diffusion, model.tolerance, model.backend) == (
        "attention", "descend", 0.0, 1e-10, "auto",
    )  # fmt: skip
    heads = case.heads
    assert (heads.schedule, heads.count, heads.initial, heads.matrices, heads.file) == (
        "frozen", 1, "identity", None, None,
    )  # fmt: skip
    assert (heads.scale, heads.seed, heads.step, heads.values, heads.weights) == (1.0, 0, 5e-3, "logits", (1.0,))
    solver = case.solver
    assert (solver.kind, solver.t_end, solver.cfl, solver.error_tolerance, solver.dt, solver.reconstruction) == (
        "finite-volume", 2.0, 0.3, 1e-4, None, "ppm",
    )  # fmt: skip
    assert (case.output.file, case.output.every, case.output.fields) == ("case.nc", 0.02, ("density",))


def test_ornstein_uhlenbeck_defaults_and_explicit_zero_noise():
    case = parse_case(case_data(heads={"schedule": "ornstein-uhlenbeck"}))
    assert (case.heads.rate, case.heads.mean, case.heads.noise_var) == (1.0, "identity", 2.0)
    assert case.heads.scheme == "exact"
    quiet = parse_case(case_data(heads={"schedule": "ornstein-uhlenbeck", "noise_var": 0}))
    assert quiet.heads.noise_var == 0.0


def test_count_is_the_number_of_matrices():
    case = parse_case(case_data(heads={"matrices": [IDENTITY, SKEWED, IDENTITY]}))
    assert case.heads.count == 3 and case.heads.initial is None
    assert case.heads.weights == pytest.approx([1 / 3] * 3, abs=1e-16)
    assert case.heads.matrices[1] == ((1.0, 2.0, 0.0), (2.1, 1.0, 0.5), (0.0, 0.25, 1.0))


def test_integers_become_floats_and_a_fixed_step_switches_the_control_off():
    case = parse_case(case_data(solver={"t_end": 3, "dt": 1}))
    assert type(case.solver.t_end) is float and case.solver.dt == 1.0
    assert case.solver.cfl is None and case.solver.error_tolerance is None


def test_mixture_defaults_are_spread_over_the_centers():
    mixture = {"kind": "vmf-mixture", "centers": [[2, 0, 0], [0, -1, 0]], "kappa": 7}
    initial = parse_case(case_data(initial=mixture)).initial
    assert initial.kappa == (7.0, 7.0) and initial.weights == (0.5, 0.5)


def test_a_case_cannot_be_changed_and_can_be_hashed():
    case = parse_case(case_data())
    with pytest.raises(ValueError, match="frozen"):
        case.grid.nlat = 32
    assert hash(case) == hash(parse_case(case_data()))


def test_every_key_of_every_table_is_described():
    for cls in [Case, *(cls for table in TABLES for cls in variants(table).values())]:
        for name, field in cls.model_fields.items():
            assert field.description and field.description.endswith("."), f"{cls.__name__}.{name}"
            assert cls.model_config["extra"] == "forbid" and cls.model_config["strict"] and cls.model_config["frozen"]


@pytest.mark.parametrize("table", KIND_KEYS)
def test_default_kinds_exist(table):
    default = KIND_KEYS[table][1]
    assert default is None or default in variants(table)


# ---------------------------------------------------------------------------------- one bad value: where, what, remedy
HUGE = 10**400
BAD_VALUES = [
    # [grid]
    ("grid", {"nlat": 33}, "grid.nlat: 33 is not allowed; must be >= 8 and even"),
    ("grid", {"nlat": 6}, "grid.nlat: 6 is not allowed; must be >= 8 and even"),
    ("grid", {"nlat": 0}, "grid.nlat: 0 is not allowed; must be >= 8 and even"),
    ("grid", {"nlat": -64}, "grid.nlat: -64 is not allowed; must be >= 8 and even"),
    ("grid", {"nlat": 64.0}, "grid.nlat: 64.0 is not allowed; must be an integer >= 8 and even"),
    ("grid", {"nlat": "64"}, 'grid.nlat: "64" is not allowed; must be an integer >= 8 and even'),
    ("grid", {"nlat": True}, "grid.nlat: true is not allowed; must be an integer >= 8 and even"),
    ("grid", {"nlatt": 64}, "grid.nlatt: unknown key; did you mean nlat?"),
    ("grid", {"colour": 1}, "grid.colour: unknown key; the keys of [grid] are nlat"),
    ("grid", {"t_end": 1.0}, "grid.t_end: unknown key; did you mean solver.t_end?"),
    ("grid", 64, "grid: 64 is not allowed; must be a table: [grid]"),
    # [model]
    ("model", {"velocity": "atention"},
     'model.velocity: "atention" is not allowed; must be one of attention, gradient-flow, unnormalized; '
     "did you mean attention?"),
    ("model", {"velocity": 3},
     "model.velocity: 3 is not allowed; must be one of attention, gradient-flow, unnormalized"),
    ("model", {"velocity": ["attention"]},
     'model.velocity: ["attention"] is not allowed; must be one of attention, gradient-flow, unnormalized'),
    ("model", {"direction": "up"}, 'model.direction: "up" is not allowed; must be one of descend, ascend'),
    ("model", {"backend": "fftw"}, 'model.backend: "fftw" is not allowed; must be one of auto, shtns, ducc0'),
    ("model", {"diffusion": -0.5}, "model.diffusion: -0.5 is not allowed; must be >= 0"),
    ("model", {"diffusion": False}, "model.diffusion: false is not allowed; must be a finite number >= 0"),
    ("model", {"diffusion": math.nan}, "model.diffusion: nan is not allowed; must be a finite number >= 0"),
    ("model", {"diffusion": math.inf}, "model.diffusion: inf is not allowed; must be a finite number >= 0"),
    ("model", {"diffusion": HUGE},
     "model.diffusion: an integer with more than 300 digits is not allowed; must be a finite number >= 0"),
    ("model", {"tolerance": 1e-15}, "model.tolerance: 1e-15 is not allowed; must be >= 1e-14 and <= 1e-2"),
    ("model", {"tolerance": 0.1}, "model.tolerance: 0.1 is not allowed; must be >= 1e-14 and <= 1e-2"),
    ("model", {"tolerance": "small"},
     'model.tolerance: "small" is not allowed; must be a number >= 1e-14 and <= 1e-2'),
    # [heads]
    ("heads", {"count": 0}, "heads.count: 0 is not allowed; must be >= 1 and <= 100000"),
    ("heads", {"count": -2}, "heads.count: -2 is not allowed; must be >= 1 and <= 100000"),
    ("heads", {"count": 10**9}, "heads.count: 1000000000 is not allowed; must be >= 1 and <= 100000"),
    ("heads", {"count": 2.5}, "heads.count: 2.5 is not allowed; must be an integer >= 1 and <= 100000"),
    ("heads", {"schedule": "oscillate"},
     'heads.schedule: "oscillate" is not allowed; must be one of frozen, ornstein-uhlenbeck, oscillating, table; '
     "did you mean oscillating?"),
    ("heads", {"schedule": 1},
     "heads.schedule: 1 is not allowed; must be one of frozen, ornstein-uhlenbeck, oscillating, table"),
    ("heads", {"initial": "one"},
     'heads.initial: "one" is not allowed; must be one of identity, zero, gaussian-symmetric'),
    ("heads", {"matrices": [IDENTITY, [[1, 0, 0], [0, 1, 0]]]},
     "heads.matrices[1]: [[1, 0, 0], [0, 1, 0]] is not allowed; must be a 3x3 matrix: 3 rows of 3 numbers"),
    ("heads", {"matrices": [[[1, 0], [0, 1]]]},
     "heads.matrices[0]: [[1, 0], [0, 1]] is not allowed; must be a 3x3 matrix: 3 rows of 3 numbers"),
    ("heads", {"matrices": [[[1, 0, 0], [0, "x", 0], [0, 0, 1]]]},
     'heads.matrices[0][1][1]: "x" is not allowed; must be a finite number'),
    ("heads", {"matrices": [[[1, 0, 0], [0, math.nan, 0], [0, 0, 1]]]},
     "heads.matrices[0][1][1]: nan is not allowed; must be a finite number"),
    ("heads", {"matrices": [[[1, 0, 0], [0, True, 0], [0, 0, 1]]]},
     "heads.matrices[0][1][1]: true is not allowed; must be a finite number"),
    ("heads", {"matrices": []}, "heads.matrices: [] is not allowed; must be a non-empty list of 3x3 matrices"),
    ("heads", {"matrices": "identity"},
     'heads.matrices: "identity" is not allowed; must be a non-empty list of 3x3 matrices'),
    ("heads", {"matrices": IDENTITY},
     "heads.matrices: [[1, 0, 0], [0, 1, 0], [0, 0, 1]] is not allowed; must be a list of 3x3 matrices, and this "
     "is one "
     "matrix: put it into a list, [[[..], [..], [..]]]"),
    ("heads", {"matrices": [IDENTITY, IDENTITY], "count": 3},
     "heads.matrices: 2 3x3 matrices are not allowed; must be 3, heads.count"),
    ("heads", {"file": "heads.txt"},
     'heads.file: "heads.txt" is not allowed; must be a file name ending in .npz or .nc'),
    ("heads", {"file": 3}, "heads.file: 3 is not allowed; must be a file name in quotes"),
    ("heads", {"initial": "zero", "matrices": [IDENTITY]},
     'heads: initial = "zero" and matrices = [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]] are not allowed together; must be '
     "only "
     "one of initial, matrices, file"),
    ("heads", {"scale": math.inf}, "heads.scale: inf is not allowed; must be a finite number"),
    ("heads", {"seed": -1}, "heads.seed: -1 is not allowed; must be >= 0"),
    ("heads", {"seed": 1.5}, "heads.seed: 1.5 is not allowed; must be an integer >= 0"),
    ("heads", {"seed": [1, -2]}, "heads.seed[1]: -2 is not allowed; must be >= 0"),
    ("heads", {"seed": []}, "heads.seed: [] is not allowed; must be a non-empty list of integers >= 0"),
    ("heads", {"step": 0}, "heads.step: 0 is not allowed; must be > 0"),
    ("heads", {"step": -0.1}, "heads.step: -0.1 is not allowed; must be > 0"),
    ("heads", {"values": "logit"},
     'heads.values: "logit" is not allowed; must be "logits", "identity", a list of 3x3 matrices, or a file name '
     "ending "
     "in .npz or .nc"),
    ("heads", {"values": {"file": "v.csv"}},
     'heads.values: {file = "v.csv"} is not allowed; must be a file name ending in .npz or .nc'),
    ("heads", {"values": {"name": "v.npz"}},
     'heads.values: {name = "v.npz"} is not allowed; must be a file name in quotes'),
    ("heads", {"values": [IDENTITY, IDENTITY]},
     "heads.values: 2 3x3 matrices are not allowed; must be 1, the number of heads; set heads.count for another"),
    ("heads", {"count": 2, "weights": [1.0]}, "heads.weights: 1 weights are not allowed; must be 2, heads.count"),
    ("heads", {"count": 2, "weights": [0.5, 0.4]},
     "heads.weights: [0.5, 0.4] sums to 0.9; must sum to 1 within 1e-12"),
    ("heads", {"count": 2, "weights": [0.5, 0.5 + 1e-11]},
     "heads.weights: [0.5, 0.50000000001] sums to 1.00000000001; must sum to 1 within 1e-12"),
    ("heads", {"count": 2, "weights": [1e308, 1e308]},
     "heads.weights: [1e+308, 1e+308] sums to inf; must sum to 1 within 1e-12"),
    ("heads", {"count": 2, "weights": [1.5, -0.5]}, "heads.weights[1]: -0.5 is not allowed; must be > 0"),
    ("heads", {"count": 2, "weights": [1, 0]}, "heads.weights[1]: 0 is not allowed; must be > 0"),
    ("heads", {"weights": 1}, "heads.weights: 1 is not allowed; must be a non-empty list of numbers > 0 that sum to 1"),
    ("heads", {"schedule": OU, "rate": 0}, "heads.rate: 0 is not allowed; must be > 0"),
    ("heads", {"schedule": OU, "noise_var": -1.0}, "heads.noise_var: -1.0 is not allowed; must be >= 0"),
    ("heads", {"schedule": OU, "mean": "one"},
     'heads.mean: "one" is not allowed; must be "identity", "zero", a 3x3 matrix, or a list of 3x3 matrices'),
    ("heads", {"schedule": OU, "mean": [[1, 0], [0, 1]]},
     "heads.mean: [[1, 0], [0, 1]] is not allowed; must be a 3x3 matrix: 3 rows of 3 numbers"),
    ("heads", {"schedule": OU, "count": 3, "mean": [IDENTITY, IDENTITY]},
     "heads.mean: 2 3x3 matrices are not allowed; must be 3, heads.count"),
    ("heads", {"schedule": OU, "mean": SKEWED},
     'heads.mean: entry [1][2] = 0.5 but entry [2][1] = 0.25; must be symmetric with schedule = "ornstein-uhlenbeck"'),
    ("heads", {"schedule": OU, "scheme": "euler"},
     'heads.scheme: "euler" is not allowed; must be one of exact, euler-maruyama'),
    ("heads", {"schedule": OU, "matrices": [IDENTITY, SKEWED]},
     "heads.matrices[1]: entry [1][2] = 0.5 but entry [2][1] = 0.25; must be symmetric with schedule = "
     '"ornstein-uhlenbeck"'),
    ("heads", {"schedule": "oscillating", "matrices": [SKEWED]},
     'heads.matrices[0]: entry [1][2] = 0.5 but entry [2][1] = 0.25; must be symmetric with schedule = "oscillating"'),
    ("heads", {"schedule": "oscillating", "phase": "equi"},
     'heads.phase: "equi" is not allowed; must be one of equispaced, random'),
    ("heads", {"schedule": "oscillating", "noise_var": 0.5},
     'heads.noise_var: 0.5 is not allowed with schedule = "oscillating"; the key must be removed, it belongs to '
     'schedule = "ornstein-uhlenbeck"'),
    ("heads", {"scheme": "exact"},
     'heads.scheme: "exact" is not allowed with schedule = "frozen"; the key must be removed, it belongs to '
     'schedule = "ornstein-uhlenbeck" or "oscillating"'),
    ("heads", {"schedule": "table"},
     "heads.file: missing; must be given: File (.npz or netCDF .nc) with arrays t (K), logits (K, head, row, col) and "
     "optionally values (K, head, row, col). A relative name is taken from the case file's folder."),
    # [initial]
    ("initial", {},
     "initial.kind: missing; must be one of uniform, vmf-mixture, octahedron, vertices, harmonic, tokens, netcdf"),
    ("initial", {"kind": "octaeder"},
     'initial.kind: "octaeder" is not allowed; must be one of uniform, vmf-mixture, octahedron, vertices, harmonic, '
     "tokens, netcdf; "
     "did you mean octahedron?"),
    ("initial", {"kind": "uniform", "kappa": 3},
     'initial.kappa: 3 is not allowed with kind = "uniform"; the key must be removed, it belongs to kind = '
     '"vmf-mixture" '
     'or "octahedron" or "vertices" or "tokens"'),
    ("initial", {"kind": "vmf-mixture"},
     "initial.centers: missing; must be given: Centres: vectors of any length but 0, which are normalised."),
    ("initial", {"kind": "vmf-mixture", "centers": []},
     "initial.centers: [] is not allowed; must be a non-empty list of vectors of 3 numbers"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0], [0, 0, 0]]},
     "initial.centers[1]: [0, 0, 0] is not allowed; must be a vector that is not zero: it is normalised to a point "
     "of the sphere"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0]]},
     "initial.centers[0]: [1, 0] is not allowed; must be a vector of 3 numbers"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, math.inf]]},
     "initial.centers[0][2]: inf is not allowed; must be a finite number"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0]], "kappa": 0},
     "initial.kappa: 0 is not allowed; must be > 0"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0]], "kappa": [-5.0]},
     "initial.kappa[0]: -5.0 is not allowed; must be > 0"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0]], "kappa": [5, 6]},
     "initial.kappa: 2 concentrations are not allowed; must be 1, one for each of initial.centers or one number"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0]], "weights": [0.5, 0.5]},
     "initial.weights: 2 weights are not allowed; must be 1, one for each of initial.centers"),
    ("initial", {"kind": "vmf-mixture", "centers": [[1, 0, 0]], "weights": [0.5]},
     "initial.weights: [0.5] sums to 0.5; must sum to 1 within 1e-12"),
    ("initial", {"kind": "octahedron", "kappa": -1}, "initial.kappa: -1 is not allowed; must be > 0"),
    ("initial", {"kind": "octahedron", "kappa": math.nan},
     "initial.kappa: nan is not allowed; must be a finite number > 0"),
    ("initial", {"kind": "harmonic", "degree": 0}, "initial.degree: 0 is not allowed; must be >= 1"),
    ("initial", {"kind": "harmonic", "degree": 64}, "initial.degree: 64 is not allowed; must be < grid.nlat = 64"),
    ("initial", {"kind": "harmonic", "degree": 2, "order": -3},
     "initial.order: -3 is not allowed; must be >= -2 and <= 2 = initial.degree"),
    ("initial", {"kind": "harmonic", "degree": 2, "order": 1.0},
     "initial.order: 1.0 is not allowed; must be an integer"),
    ("initial", {"kind": "harmonic", "degree": 2, "amplitude": "0.1"},
     'initial.amplitude: "0.1" is not allowed; must be a finite number'),
    ("initial", {"kind": "tokens", "file": ""}, 'initial.file: "" is not allowed; must be a file name in quotes'),
    ("initial", {"kind": "tokens", "file": "a\0b"},
     'initial.file: "a\\u0000b" is not allowed; must be a usable file name'),
    # [solver]
    ("solver", {}, "solver.t_end: missing; must be given: Flow time at which the run ends, > 0."),
    ("solver", {"t_end": 0}, "solver.t_end: 0 is not allowed; must be > 0"),
    ("solver", {"t_end": -1.5}, "solver.t_end: -1.5 is not allowed; must be > 0"),
    ("solver", {"t_end": math.inf}, "solver.t_end: inf is not allowed; must be a finite number > 0"),
    ("solver", {"t_end": "20"}, 'solver.t_end: "20" is not allowed; must be a finite number > 0'),
    ("solver", {"t_end": 1, "dt": 0}, "solver.dt: 0 is not allowed; must be > 0"),
    ("solver", {"t_end": 1, "dt": -0.1}, "solver.dt: -0.1 is not allowed; must be > 0"),
    ("solver", {"t_end": 1, "cfl": 0}, "solver.cfl: 0 is not allowed; must be > 0 and <= 1"),
    ("solver", {"t_end": 1, "cfl": 1.5}, "solver.cfl: 1.5 is not allowed; must be > 0 and <= 1"),
    ("solver", {"t_end": 1, "error_tolerance": 0}, "solver.error_tolerance: 0 is not allowed; must be > 0"),
    ("solver", {"t_end": 1, "dt": 0.1, "cfl": 0.3},
     "solver.cfl: 0.3 is not allowed together with solver.dt = 0.1; one of the two must be removed: dt fixes the step, "
     "cfl and error_tolerance control it"),
    ("solver", {"t_end": 1, "dt": 0.1, "error_tolerance": 1e-3},
     "solver.error_tolerance: 0.001 is not allowed together with solver.dt = 0.1; one of the two must be removed: dt "
     "fixes the step, cfl and error_tolerance control it"),
    ("solver", {"t_end": 1, "reconstruction": "muscl"},
     'solver.reconstruction: "muscl" is not allowed; must be one of ppm, upwind, two-point'),
    ("solver", [], "solver: [] is not allowed; must be a table: [solver]"),
    # [output]
    ("output", {"every": 3.0}, "output.every: 3.0 is not allowed; must be <= solver.t_end = 2.0"),
    ("output", {"every": 0}, "output.every: 0 is not allowed; must be > 0"),
    ("output", {"file": ""}, 'output.file: "" is not allowed; must be a file name in quotes'),
    ("output", {"file": 3}, "output.file: 3 is not allowed; must be a file name in quotes"),
    ("output", {"fields": "density"}, 'output.fields: "density" is not allowed; must be a list of field names'),
    ("output", {"fields": ["densty"]},
     'output.fields[0]: "densty" is not allowed; must be one of density, potential, effective_mobility, '
     "first_variation, velocity, surprisal, posterior_divergence, resultant_length, local_gate_entropy, "
     "gates, position; did you mean density?"),
    ("output", {"fields": ["density", "velocity", "density"]},
     'output.fields: ["density", "velocity", "density"] names density more than once; must name each field once'),
    ("output", {"checkpoint_evry": 60.0},
     "output.checkpoint_evry: unknown key; did you mean checkpoint_every?"),
    # the case itself
    ("schema", 2, "schema: 2 is not allowed; must be 1"),
    ("schema", True, "schema: true is not allowed; must be the integer 1"),
    ("schema", 1.0, "schema: 1.0 is not allowed; must be the integer 1"),
    ("title", 3, "title: 3 is not allowed; must be a string in quotes"),
    ("titel", "x", "titel: unknown key; did you mean title?"),
    ("solvr", {"t_end": 1}, "solvr: unknown table; did you mean solver?"),
    ("t_end", 3.0, "t_end: unknown key; did you mean solver.t_end?"),
    ("colour", 3,
     "colour: unknown key; the keys of a case are schema, title, grid, model, heads, initial, solver, output"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "content", "expected"), BAD_VALUES, ids=lambda value: str(value)[:50])
def test_bad_value_is_named_with_place_and_remedy(table, content, expected):
    assert only_error(case_data(**{table: content})) == expected


def test_unknown_solver_names_the_known_ones():
    error = only_error(case_data(solver={"t_end": 1, "kind": "particle"}))
    assert error.startswith('solver.kind: "particle" is not allowed; must be one of finite-volume')
    assert error.endswith("did you mean particles?")


def test_one_vector_in_the_place_of_a_list_of_vectors():
    lines = errors_of(case_data(initial={"kind": "vmf-mixture", "centers": [1, 0, 0]}))
    assert lines[0] == "initial.centers[0]: 1 is not allowed; must be a vector of 3 numbers"
    assert len(lines) == 3


def test_long_values_are_shortened():
    line = only_error(case_data(heads={"count": 100, "weights": [0.5] * 100}))
    assert line.startswith("heads.weights: [0.5, 0.5, 0.5, ") and " ... sums to 50.0; must sum to 1" in line


@pytest.mark.parametrize("velocity", ["gradient-flow", "unnormalized"])
@pytest.mark.parametrize("values", ["identity", [IDENTITY]])
def test_general_values_need_attention(velocity, values):
    line = only_error(case_data(model={"velocity": velocity}, heads={"values": values}))
    assert line.startswith("heads.values: ") and ("identity" in line or "[[[1, 0, 0]" in line)
    assert f'model.velocity = "{velocity}"' in line and 'must be "logits"' in line
    parse_case(case_data(model={"velocity": "attention"}, heads={"values": values}))


@pytest.mark.parametrize("velocity", ["attention", "gradient-flow", "unnormalized"])
def test_frozen_matrices_need_no_symmetry(velocity):
    case = parse_case(case_data(model={"velocity": velocity}, heads={"matrices": [SKEWED]}))
    assert case.heads.matrices[0][1][2] == 0.5


def test_symmetry_allows_round_off_but_names_every_other_matrix():
    nearly = [[1, 0.1 + 0.2, 0], [0.3, 1, 0], [0, 0, 1]]
    heads = {"schedule": "oscillating", "matrices": [nearly, SKEWED, SKEWED]}
    lines = errors_of(case_data(heads=heads))
    assert [line.partition(":")[0] for line in lines] == ["heads.matrices[1]", "heads.matrices[2]"]
    parse_case(case_data(heads={**heads, "matrices": [nearly]}))
    slightly = [[1, 0.3, 0], [0.3 + 1e-10, 1, 0], [0, 0, 1]]
    assert only_error(case_data(heads={**heads, "matrices": [slightly]})).startswith("heads.matrices[0]: entry [0][1]")


def test_every_mean_must_be_symmetric():
    heads = {"schedule": OU, "count": 2, "mean": [IDENTITY, SKEWED]}
    assert only_error(case_data(heads=heads)).startswith("heads.mean[1]: entry [1][2] = 0.5 but entry [2][1]")


def test_all_errors_at_once():
    text = """
titel = "misspelt"
[grid]
nlatt = 64
nlat = 7
[model]
velocity = "unnormalised"
[heads]
schedule = "oscilating"
count = 2
noise_var = -1.0
weights = [0.2, 0.2]
[initial]
kind = "harmonic"
degree = 2
order = 5
colour = "red"
[solver]
t_end = 2.0
dt = 0
cfl = 0.3
[output]
every = 3.0
"""
    lines = errors_of(text, "grid.x=1", "no equals sign")
    places = sorted(line.partition(": ")[0] for line in lines)
    assert places == sorted([
        "--set no equals sign", "titel", "grid.nlatt", "grid.nlat", "grid.x", "model.velocity", "heads.schedule",
        "heads.noise_var", "heads.weights", "initial.order", "initial.colour", "solver.dt", "solver.cfl",
        "output.every",
    ])  # fmt: skip


def test_unknown_kind_still_has_the_keys_of_all_kinds_checked():
    heads = {"schedule": "brownian", "seed": -1, "noise_var": -3}
    lines = errors_of(case_data(heads=heads, solver={"kind": "x", "t_end": 0}))
    assert [line.partition(":")[0] for line in lines] == ["heads.schedule", "solver.kind", "heads.seed", "solver.t_end"]


@pytest.mark.parametrize("table", TABLES)
def test_every_key_refuses_every_wrong_type(table):
    """No value of any type gets through to a place it does not belong to, or ends in anything but a CaseError."""
    for kind, cls in variants(table).items():
        for key, field in cls.model_fields.items():
            for value in ({"a": {}}, [[[{}]]], [True], -math.inf, [["x"]], {"file": [1]}):
                content = {KIND_KEYS[table][0]: kind} if kind else {}
                lines = errors_of(case_data(**{table: {**content, key: value}}))
                assert [line for line in lines if line.startswith(f"{table}.{key}")], (key, value, field, lines)


def test_something_else_than_a_case():
    with pytest.raises(CaseError, match="case: 3 is not a case; must be TOML text or a dictionary"):
        parse_case(3)
