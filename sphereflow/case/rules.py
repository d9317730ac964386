"""What must hold between the keys of a case.

Each rule is a generator of problems. Rules look at a case through `Given`, which knows only what is valid by itself: so
they also work on a case that has other errors, and all errors can be reported at once.
"""

from itertools import combinations

from sphereflow.case.quantities import is_square
from sphereflow.case.wording import keys_of, show

SYMMETRY_TOLERANCE = 1e-12
SYMMETRIC_SCHEDULES = ("ornstein-uhlenbeck", "oscillating")


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
        _dimension_for_solver,
        _dimension_for_initial,
        _tokens_from_one_source,
        _fields_of_solver,
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
    weights = given("heads", "weights")
    if weights is not None and len(weights) != count:
        yield ("heads", "weights"), f"{len(weights)} weights are not allowed; must be {count}, {told}"


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
        if (name == "position") != (kind == "particles"):
            others = "density, potential, effective_mobility, first_variation, velocity"
            allowed = "position" if kind == "particles" else others
            yield ("output", "fields"), (
                f"{show(name)} is not allowed with solver.kind = {show(kind)}; must be of {allowed}, or an empty list"
            )
