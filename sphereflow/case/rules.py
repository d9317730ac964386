"""What must hold between the keys of a case.

Each rule is a generator of problems. Rules look at a case through `Given`, which knows only what is valid by itself: so
they also work on a case that has other errors, and all errors can be reported at once.
"""

from itertools import combinations

from sphereflow.case.quantities import is_square
from sphereflow.case.wording import keys_of, show
from sphereflow.drift import Drift, Perceptron
from sphereflow.errors import CaseError

MOST_RECORDS = 10**7  # a slip of the keyboard must not fill the disk
MOST_STEPS = 10**12
SYMMETRY_TOLERANCE = 1e-12
SYMMETRIC_SCHEDULES = ("ornstein-uhlenbeck", "oscillating")
NOT_OF_TOKENS = ("density", "potential", "effective_mobility", "first_variation", "velocity")  # fields of densities alone


class Given:
    """What a case says about a key, as far as that is valid.

    Parameters
    ----------
    data : dict
        The tables of the case.
    models : dict
        Class of each table; tables that cannot be understood are missing.
    bad : set of tuple
        Paths (table, key) or (table,) with errors.
    """

    def __init__(self, data, models, bad):
        self._data, self._models, self._bad = data, models, bad

    def states(self, table, key):
        """Tell whether the case gives the key at all, valid or not."""
        return table in self._models and key in self._data[table]

    def raw(self, table, key):
        """Return the value that the case states for a key, valid or not."""
        return self._data[table][key]

    def __call__(self, table, key):
        """Return the value given for a key, or its default; None if there is neither or the value is not valid."""
        if table not in self._models or (table, key) in self._bad:
            return None
        if key in self._data[table]:
            return self._data[table][key]
        field = keys_of(self._models[table]).get(key)
        return None if field is None or field.is_required() else field.default


def broken_rules(given):
    """Return the problems between the keys of a case.

    Parameters
    ----------
    given : Given

    Returns
    -------
    list of tuple
        Path and text of each problem.
    """
    rules = (
        _matrices_from_one_source,
        _as_many_as_heads,
        _symmetric_matrices,
        _values_for_velocity,
        _movement_has_an_energy,
        _as_many_as_centers,
        _harmonic_exists,
        _one_step_control,
        _records_within_run,
        _steps_advance,
        _dimension_for_solver,
        _dimension_for_initial,
        _tokens_from_one_source,
        _fields_of_solver,
        _fields_of_model,
        _variational_heads,
        _drift_from_one_source,
        _drift_fits,
    )
    return [problem for rule in rules for problem in rule(given)]


def _matrices_from_one_source(given):
    if given("heads", "schedule") == "table":
        for key in ("initial", "matrices"):
            if given.states("heads", key):
                text = 'is not allowed with schedule = "table"; the key must be removed, heads.file holds all matrices'
                yield ("heads", key), f"{show(given.raw('heads', key))} {text}"
        return
    sources = [key for key in ("initial", "matrices", "file") if given.states("heads", key)]
    if len(sources) > 1:
        found = " and ".join(f"{key} = {show(given.raw('heads', key))}" for key in sources)
        yield ("heads",), f"{found} are not allowed together; must be only one of initial, matrices, file"


def _head_count(given):
    """Return the number of heads, or None if it is not known here."""
    if given.states("heads", "count"):
        return given("heads", "count")
    if given.states("heads", "matrices"):
        matrices = given("heads", "matrices")
        return None if matrices is None else len(matrices)
    kappa = given("heads", "kappa")
    if given("heads", "kind") == "svflow" and isinstance(kappa, tuple):
        return len(kappa)
    in_file = given.states("heads", "file") or given("heads", "schedule") in (None, "table")
    return None if in_file else 1


def _dimension(given):
    return given("model", "dimension") or 3


def _matrix_lists(given, keys):
    """Yield those of the keys whose value is a list of matrices, and the list."""
    for key in keys:
        value = given("heads", key)
        if isinstance(value, tuple) and not _is_matrix(value, _dimension(given)):
            yield key, value


def _is_matrix(value, size):
    return is_square(value, size) and not isinstance(value[0][0], tuple)


def _as_many_as_heads(given):
    count = _head_count(given)
    if count is None:
        return
    size = _dimension(given)
    told = "heads.count" if given.states("heads", "count") else "the number of heads; set heads.count for another"
    for key, matrices in _matrix_lists(given, ("matrices", "values", "mean")):
        if len(matrices) != count:
            yield ("heads", key), f"{len(matrices)} {size}x{size} matrices are not allowed; must be {count}, {told}"
    for key, noun in (("weights", "weights"), ("kappa", "concentrations")):
        numbers = given("heads", key)
        if isinstance(numbers, tuple) and len(numbers) != count:
            yield ("heads", key), f"{len(numbers)} {noun} are not allowed; must be {count}, {told}"


def _symmetric_matrices(given):
    schedule = given("heads", "schedule")
    if schedule not in SYMMETRIC_SCHEDULES:
        return
    named = [(("heads", key, h), m) for key, ms in _matrix_lists(given, ("matrices", "mean")) for h, m in enumerate(ms)]
    mean = given("heads", "mean")
    if isinstance(mean, tuple) and _is_matrix(mean, _dimension(given)):
        named.append((("heads", "mean"), mean))
    pairs = tuple(combinations(range(_dimension(given)), 2))
    for path, matrix in named:
        i, j = max(pairs, key=lambda ij, m=matrix: abs(m[ij[0]][ij[1]] - m[ij[1]][ij[0]]))
        largest = max(abs(entry) for row in matrix for entry in row)
        if abs(matrix[i][j] - matrix[j][i]) > SYMMETRY_TOLERANCE * largest:
            yield path, (
                f"entry [{i}][{j}] = {show(matrix[i][j])} but entry [{j}][{i}] = {show(matrix[j][i])}; must be "
                f'symmetric with schedule = "{schedule}"'
            )


def _values_for_velocity(given):
    velocity, values = given("model", "velocity"), given("heads", "values")
    if velocity not in (None, "attention") and values not in (None, "logits"):
        yield ("heads", "values"), (
            f'{show(values)} is not allowed with model.velocity = "{velocity}"; must be "logits", or set '
            'model.velocity = "attention"'
        )


def _movement_has_an_energy(given):
    if given("solver", "kind") != "minimizing-movement":
        return
    velocity, count, values = given("model", "velocity"), _head_count(given), given("heads", "values")
    kind = 'with solver.kind = "minimizing-movement"'
    if velocity == "unnormalized":
        yield ("model", "velocity"), (
            f'"unnormalized" is not allowed {kind}; must be "gradient-flow": distances are measured in the metric '
            "weighted with the effective mobility"
        )
    if velocity == "attention" and count is not None and count > 1:
        yield ("model", "velocity"), (
            f'"attention" is not allowed {kind} and {count} heads; must be "gradient-flow": the softmax attention of '
            "several heads is not the gradient flow of their energy; for one head the two are the same"
        )
    if velocity == "attention" and values not in (None, "logits"):
        yield ("heads", "values"), (
            f'{show(values)} is not allowed {kind}; must be "logits": heads with value matrices of their own follow '
            "no energy that a step could minimise"
        )
    if given("heads", "kind") == "svflow" and given("heads", "posterior") == "attention":
        yield ("heads", "posterior"), (
            f'"attention" is not allowed {kind}; must be "exact": with logits of their own the heads of a variational flow '
            "follow no energy that a step could minimise"
        )
    for key in ("experts", "experts_file", "mlp"):
        if given.states("model", key):
            yield ("model", key), (
                f"is not allowed {kind}; the key must be removed: a local drift is not the gradient of the energy that a "
                'step minimises; use solver.kind = "finite-volume"'
            )
    if given("model", "diffusion"):
        yield ("model", "diffusion"), (
            f"{show(given('model', 'diffusion'))} is not allowed {kind}; must be 0: the Laplacian is no part of the "
            "gradient flow in the metric weighted with the effective mobility"
        )


def _as_many_as_centers(given):
    centers = given("initial", "centers")
    for key, noun in (("kappa", "concentrations"), ("weights", "weights")):
        value = given("initial", key)
        if centers is not None and isinstance(value, tuple) and len(value) != len(centers):
            number = "" if key == "weights" else " or one number"
            yield ("initial", key), (
                f"{len(value)} {noun} are not allowed; must be {len(centers)}, one for each of initial.centers{number}"
            )


def _harmonic_exists(given):
    degree, order, nlat = given("initial", "degree"), given("initial", "order"), given("grid", "nlat")
    if degree is None:
        return
    if order is not None and abs(order) > degree:
        yield ("initial", "order"), (
            f"{show(order)} is not allowed; must be >= {show(-degree)} and <= {show(degree)} = initial.degree"
        )
    if nlat is not None and degree >= nlat:
        yield ("initial", "degree"), f"{show(degree)} is not allowed; must be < grid.nlat = {nlat}"


def _one_step_control(given):
    if not given.states("solver", "dt"):
        return
    dt = f"solver.dt = {show(given.raw('solver', 'dt'))}"
    for key in ("cfl", "error_tolerance"):
        if given.states("solver", key):
            yield ("solver", key), (
                f"{show(given.raw('solver', key))} is not allowed together with {dt}; one of the two must be removed: "
                "dt fixes the step, cfl and error_tolerance control it"
            )


def _records_within_run(given):
    every, t_end = given("output", "every"), given("solver", "t_end")
    if every is not None and t_end is not None and every > t_end:
        yield ("output", "every"), f"{show(every)} is not allowed; must be <= solver.t_end = {show(t_end)}"
    elif every is not None and t_end is not None and every < t_end / MOST_RECORDS:
        yield ("output", "every"), (
            f"{show(every)} is not allowed, it makes {t_end / every:.3g} records; must be >= {show(t_end / MOST_RECORDS)} = "
            f"solver.t_end/{MOST_RECORDS:g}"
        )


def _steps_advance(given):
    """Steps that are lost in the rounding of the time would never reach the end."""
    t_end = given("solver", "t_end")
    for key in ("dt", "tau"):
        step = given("solver", key)
        if step is not None and t_end is not None and step < t_end / MOST_STEPS:
            yield ("solver", key), (
                f"{show(step)} is not allowed, it makes {t_end / step:.3g} steps; must be >= {show(t_end / MOST_STEPS)} = "
                f"solver.t_end/{MOST_STEPS:g}"
            )


def _dimension_for_solver(given):
    dimension, kind = given("model", "dimension"), given("solver", "kind")
    if dimension not in (None, 3) and kind not in (None, "particles"):
        yield ("model", "dimension"), (
            f"{show(dimension)} is not allowed with solver.kind = {show(kind)}; must be 3, or set "
            'solver.kind = "particles"'
        )


def _dimension_for_initial(given):
    dimension, kind = given("model", "dimension"), given("initial", "kind")
    if dimension not in (None, 3) and kind in ("octahedron", "harmonic", "netcdf"):
        yield ("initial", "kind"), (
            f"{show(kind)} is not allowed with model.dimension = {show(dimension)}; must be one of uniform, "
            "vmf-mixture, vertices, tokens"
        )
    if dimension != 2 and given("initial", "clusters") is not None:
        yield ("initial", "clusters"), (
            f"{show(given('initial', 'clusters'))} is not allowed with model.dimension = {show(dimension or 3)}; "
            "the key must be removed, it is for the circle (dimension = 2)"
        )


def _tokens_from_one_source(given):
    if given("solver", "kind") != "particles":
        return
    diffusion, dimension = given("model", "diffusion"), given("model", "dimension")
    if diffusion:
        yield ("model", "diffusion"), (
            f'{show(diffusion)} is not allowed with solver.kind = "particles", whose tokens move without noise; '
            "must be 0"
        )
    if given("solver", "quadrature"):
        if given("solver", "count") is not None:
            yield ("solver", "count"), (
                f"{show(given('solver', 'count'))} is not allowed together with solver.quadrature = true; one of "
                "the two must be removed: quadrature tokens are the nodes of the grid"
            )
        if dimension not in (None, 3):
            yield ("solver", "quadrature"), (
                f"true is not allowed with model.dimension = {show(dimension)}; must be false: "
                "the grid is on the 2-sphere"
            )


def _fields_of_solver(given):
    kind, fields = given("solver", "kind"), given("output", "fields")
    if kind is None or fields is None:
        return
    for name in fields:
        if name in (NOT_OF_TOKENS if kind == "particles" else ("position",)):
            allowed = "position" if kind == "particles" else ", ".join(NOT_OF_TOKENS)
            yield ("output", "fields"), (
                f"{show(name)} is not allowed with solver.kind = {show(kind)}; must be of {allowed}, or those of the model, "
                "or an empty list"
            )


def _fields_of_model(given):
    fields = given("output", "fields") or ()
    experts = given.states("model", "experts") or given.states("model", "experts_file")
    for name in fields:
        if name in ("surprisal", "posterior_divergence") and given("heads", "kind") == "attention":
            yield ("output", "fields"), f'{show(name)} is not allowed with heads.kind = "attention"; needs kind = "svflow"'
        if name in ("local_gate_entropy", "gates") and not experts:
            yield ("output", "fields"), f"{show(name)} is not allowed without experts; needs model.experts"


def _variational_heads(given):
    kind, posterior = given("heads", "kind"), given("heads", "posterior")
    if kind == "attention":
        for key in ("kappa", "posterior"):
            if given.states("heads", key):
                text = 'is not allowed with kind = "attention"; the key must be removed, or set kind = "svflow"'
                yield ("heads", key), f"{show(given.raw('heads', key))} {text}"
        return
    if kind != "svflow":
        return
    if not given.states("heads", "kappa"):
        yield ("heads", "kappa"), 'missing; must be given with kind = "svflow": a number >= 0, or one for each head'
    values, velocity, direction = given("heads", "values"), given("model", "velocity"), given("model", "direction")
    because = 'with heads.kind = "svflow"'
    if values not in (None, "logits"):
        yield ("heads", "values"), f"{show(values)} is not allowed {because}; the key must be removed, V = kappa I"
    if velocity not in (None, "attention"):
        yield ("model", "velocity"), f'{show(velocity)} is not allowed {because}; must be "attention"'
    if direction == "descend":
        yield ("model", "direction"), f'"descend" is not allowed {because}; must be "ascend": tokens follow the score upwards'
    if posterior != "attention":
        exact = 'with posterior = "exact"; the key must be removed, or set posterior = "attention": the logits are kappa I'
        for key in ("initial", "matrices", "file", "scale"):
            if given.states("heads", key) and not (key == "scale" and given("heads", "scale") == 1):
                yield ("heads", key), f"{show(given.raw('heads', key))} is not allowed {exact}"
        if given("heads", "schedule") not in (None, "frozen"):
            yield ("heads", "schedule"), (
                f'{show(given("heads", "schedule"))} is not allowed with posterior = "exact"; must be "frozen": kappa is '
                "constant"
            )


def _drift_from_one_source(given):
    if given.states("model", "experts") and given.states("model", "experts_file"):
        yield ("model", "experts_file"), "is not allowed together with model.experts; one of the two must be removed"
    if given.states("model", "mlp") and isinstance(given.raw("model", "mlp"), dict):
        mlp = given.raw("model", "mlp")
        layers = ("w1", "b1", "w2", "b2")
        missing = [key for key in layers if key not in mlp]
        if "file" in mlp and len(missing) < 4:
            keys = ", ".join(key for key in layers if key in mlp)
            yield ("model", "mlp"), f"file and {keys} are not allowed together; must be either file or w1, b1, w2, b2"
        if "file" not in mlp and missing:
            yield ("model", "mlp"), f"{', '.join(missing)} missing; must have file, or all of w1, b1, w2, b2"
    if given.states("model", "residual_scale") and given("model", "residual_scale") != 1:
        if not any(given.states("model", key) for key in ("experts", "experts_file", "mlp")):
            yield ("model", "residual_scale"), (
                f"{show(given.raw('model', 'residual_scale'))} is not allowed without a local drift; needs model.experts or "
                "model.mlp"
            )


def _drift_fits(given):
    mlp = given("model", "mlp")
    if not isinstance(mlp, dict) or not {"w1", "b1", "w2", "b2"} <= mlp.keys():
        return
    try:
        perceptron = Perceptron(*(mlp[key] for key in ("w1", "b1", "w2", "b2")))
        Drift(mlp=perceptron).require_dimension(_dimension(given))
    except CaseError as error:
        yield ("model", "mlp"), f"is not allowed: {error}"
