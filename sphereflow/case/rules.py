"""What must hold between the keys of a case.

Each rule is a generator of problems. Rules look at a case through `Given`, which knows only what is valid by itself: so
they also work on a case that has other errors, and all errors can be reported at once.
"""

from sphereflow.case.quantities import is_3x3
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
        _as_many_as_centers,
        _harmonic_exists,
        _one_step_control,
        _records_within_run,
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


def _matrix_lists(given, keys):
    """Yield those of the keys whose value is a list of matrices, and the list."""
    for key in keys:
        value = given("heads", key)
        if isinstance(value, tuple) and not _is_matrix(value):
            yield key, value


def _is_matrix(value):
    return is_3x3(value) and not isinstance(value[0][0], tuple)


def _as_many_as_heads(given):
    count = _head_count(given)
    if count is None:
        return
    told = "heads.count" if given.states("heads", "count") else "the number of heads; set heads.count for another"
    for key, matrices in _matrix_lists(given, ("matrices", "values", "mean")):
        if len(matrices) != count:
            yield ("heads", key), f"{len(matrices)} 3x3 matrices are not allowed; must be {count}, {told}"
    weights = given("heads", "weights")
    if weights is not None and len(weights) != count:
        yield ("heads", "weights"), f"{len(weights)} weights are not allowed; must be {count}, {told}"


def _symmetric_matrices(given):
    schedule = given("heads", "schedule")
    if schedule not in SYMMETRIC_SCHEDULES:
        return
    named = [(("heads", key, h), m) for key, ms in _matrix_lists(given, ("matrices", "mean")) for h, m in enumerate(ms)]
    mean = given("heads", "mean")
    if isinstance(mean, tuple) and _is_matrix(mean):
        named.append((("heads", "mean"), mean))
    for path, matrix in named:
        i, j = max(((0, 1), (0, 2), (1, 2)), key=lambda ij, m=matrix: abs(m[ij[0]][ij[1]] - m[ij[1]][ij[0]]))
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
