"""Which runs an ensemble consists of: members times variations, all checked before anything starts.

Member m of a case with seed s has the seed (s, m), or (s_1, ..., s_k, m) where the case has a list: `heads.seed`, and for
tokens `solver.seed` too. The streams of random numbers hash all words of a seed and their number (`sphereflow.heads`), so that
members are independent of each other. The variations of one member share its seed: differences between them are then not
blurred by different draws, and since every head has streams of its own, member m with five heads has the first two heads of
member m with two.
"""

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sphereflow.case import Case, listed_values, load_case, parse_case, setting
from sphereflow.errors import BackendError, CaseError
from sphereflow.harmonics import get_transform
from sphereflow.runs import build_initial_state, build_tokens, build_weight_path

_SIMPLE = re.compile(r"[A-Za-z0-9.+-]{1,24}")
MOST_RUNS = 100_000  # all of them are checked before the first one starts
_LONGEST_NAME = 120
_SHOWN_ERRORS = 10
_OWN_KEYS = {
    "output.file": "the ensemble names the files",
    "output.checkpoint_every": "it changes nothing that is computed",
}


@dataclass(frozen=True)
class Run:
    """One run of an ensemble.

    Attributes
    ----------
    member : int
    parameters : dict
        Value of every varied key.
    settings : tuple of str
        With these as `--set`, `sphereflow run` computes the same bits from the same case file.
    seeds : dict
        Keys of seeds and the seeds they got.
    case : Case
    file : str
        Name of the output file.
    """

    member: int
    parameters: dict
    settings: tuple[str, ...]
    seeds: dict
    case: Case
    file: str


@dataclass(frozen=True)
class Plan:
    """All runs of an ensemble, the variations of member 0 first.

    Attributes
    ----------
    source : str
        Name of the case file, "" if it does not come from one.
    overrides : tuple of str
    members : int
    vary : dict of str to tuple
    runs : tuple of Run
    """

    source: str
    overrides: tuple[str, ...]
    members: int
    vary: dict
    runs: tuple[Run, ...]


def parse_vary(texts: Sequence[str]) -> dict[str, tuple]:
    """Varied keys and their values from texts such as "heads.count=1,2,5".

    Raises
    ------
    CaseError
        If a text is no key with values, or a key comes twice.
    """
    vary = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not all(part.strip() for part in key.split(".")):
            raise CaseError(f"--vary {text}: not understood; must be table.key=value,value,...")
        if key in vary:
            raise CaseError(f"--vary {text}: {key} is varied twice; give all its values at once")
        try:
            vary[key] = listed_values(values)
        except ValueError as error:
            raise CaseError(f"--vary {text}: {error}") from None
    return vary


def plan_ensemble(case, members: int, vary: Mapping[str, Sequence] | None = None, overrides: Sequence[str] = ()) -> Plan:
    """List and check all runs of an ensemble; nothing is written.

    Parameters
    ----------
    case : path of a case file, dict of its tables, or Case
        In a `Case` all defaults are resolved, so that a varied key may contradict one (heads.weights is fixed for its
        heads.count); a path or a dict has no such trouble.
    members : int
        Number of seeds, >= 1.
    vary : mapping of str to sequence, optional
        Keys of the case and their values; all combinations are run.
    overrides : sequence of str
        Settings such as "grid.nlat=32" for all runs.

    Returns
    -------
    Plan

    Raises
    ------
    CaseError
        If the number of members, a varied key or value, or the case of any run is not valid; input files that cannot be used
        count too. The message names the variation.
    """
    if isinstance(members, bool) or not isinstance(members, int | np.integer) or members < 1:
        raise CaseError(f"members: {members!r} is not allowed; must be an integer >= 1")
    vary = {str(key): _checked_values(str(key), values) for key, values in (vary or {}).items()}
    variations = math.prod(len(values) for values in vary.values())
    if members * variations > MOST_RUNS:
        raise CaseError(
            f"members: {members} is not allowed, with {variations} variations these are too many runs; the product must be "
            f"<= {MOST_RUNS}"
        )
    read, source = _reader(case)
    runs, problems = [], []
    combinations = list(itertools.product(*(enumerate(values) for values in vary.values())))
    for member in range(int(members)):
        for combination in combinations:
            parameters = {key: value for key, (_, value) in zip(vary, combination, strict=True)}
            try:
                runs.append(_run(read, member, parameters, overrides, _name(vary, combination, member, int(members))))
            except CaseError as error:
                problems.append((parameters, error))
        if problems:  # a seed changes nothing about what is valid
            raise _invalid(problems, len(combinations))
    plan = Plan(source, tuple(overrides), int(members), vary, tuple(runs))
    _refuse_repeated(plan)
    return plan


def check_inputs(plan: Plan, local: bool = True) -> list[str]:
    """Read the inputs of every variation and sample its weights, as `sphereflow validate` does.

    Parameters
    ----------
    plan : Plan
    local : bool
        Whether the runs will take place on this machine, whose transform libraries must then be there.

    Returns
    -------
    list of str
        What is odd without being wrong: variations whose members are all equal because nothing in them is random.

    Raises
    ------
    CaseError, BackendError
        If a variation cannot be run.
    """
    variations = len(plan.runs) // plan.members
    equal = []
    for index, run in enumerate(plan.runs[:variations]):
        try:
            if local and run.case.solver.kind != "particles" and run.case.model.backend != "auto":
                get_transform(32, 10, run.case.model.backend)
            path = build_weight_path(run.case)
            build_initial_state(run.case)
            if plan.members > 1 and _draws_equal(run.case, path, plan.runs[variations + index].case):
                equal.append(run)
        except (CaseError, BackendError) as error:
            where = f"with {describe(run.parameters)}: " if run.parameters else ""
            raise type(error)(f"{where}{error}") from None
    if not equal:
        return []
    where = "" if len(equal) == variations else f" with {'; '.join(describe(run.parameters) for run in equal)}"
    return [f"nothing in the case is random{where}: all members will be equal"]


def describe(parameters: Mapping) -> str:
    """Varied keys and values of a run, in words for messages."""
    return ", ".join(setting(key, value) for key, value in parameters.items())


def _checked_values(key: str, values) -> tuple:
    """The values of a varied key as a tuple of what TOML knows."""
    if key in _OWN_KEYS:
        raise CaseError(f"vary: {key} cannot be varied: {_OWN_KEYS[key]}")
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise CaseError(f"vary: {key}: {values!r} is not allowed; must be a list of values")
    values = tuple(_plain(value) for value in values)
    if not values:
        raise CaseError(f"vary: {key}: no values; must be a list with at least one")
    for k, value in enumerate(values):
        if any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in values[:k]):
            raise CaseError(f"vary: {setting(key, value)} is given twice")
    return values


def _plain(value):
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _reader(case):
    """A function from overrides to a Case, and the name of the case file."""
    if isinstance(case, Case):
        text = case.to_toml()
        return (lambda overrides: parse_case(text, overrides)), ""
    if isinstance(case, dict):
        return (lambda overrides: parse_case(case, overrides)), ""
    path = Path(os.path.abspath(case))
    return (lambda overrides: load_case(path, overrides)), str(path)


def _run(read, member: int, parameters: Mapping, overrides: Sequence[str], file: str) -> Run:
    settings = (*overrides, *(setting(key, value) for key, value in parameters.items()))
    case = read(settings)
    seeds = {"heads.seed": case.heads.seed}
    if case.solver.kind == "particles":
        seeds["solver.seed"] = case.solver.seed
    seeds = {key: (*(seed if isinstance(seed, tuple) else (seed,)), member) for key, seed in seeds.items()}
    settings = (*settings, *(setting(key, seed) for key, seed in seeds.items()))
    return Run(member, dict(parameters), settings, seeds, read(settings), file)


def _name(vary: Mapping, combination, member: int, members: int) -> str:
    """File name of a run: readable where the values are short words."""
    number = f"member{member:0{max(3, len(str(members - 1)))}}.nc"
    parts = []
    for key, (index, value) in zip(vary, combination, strict=True):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        parts.append(f"{key}={text if _SIMPLE.fullmatch(text) else f'value{index}'}")
    name = "_".join([*parts, number])
    if len(name) > _LONGEST_NAME:
        name = f"variation{'-'.join(str(index) for index, _ in combination)}_{number}"
    return name


def _invalid(problems, variations: int) -> CaseError:
    if len({str(error) for _, error in problems}) == 1 and len(problems) == variations:
        return problems[0][1]
    lines = [f"with {describe(parameters)}: {error}" for parameters, error in problems[:_SHOWN_ERRORS]]
    if len(problems) > _SHOWN_ERRORS:
        lines.append(f"and {len(problems) - _SHOWN_ERRORS} more")
    return CaseError(f"{len(problems)} of {variations} variations are not valid\n  " + "\n  ".join(lines))


def _refuse_repeated(plan: Plan) -> None:
    """Refuse values that are written differently and mean the same, such as 1 and 1.0."""
    seen = {}
    for run in plan.runs[: len(plan.runs) // plan.members]:
        if (other := seen.setdefault(run.case.sha256, run)) is not run:
            raise CaseError(f"vary: {describe(run.parameters)} and {describe(other.parameters)} give the same case")


def _draws_equal(case: Case, path, other: Case) -> bool:
    """Whether two members have the same weights and, if they are random, the same tokens."""
    if not np.array_equal(path.logits, build_weight_path(other).logits):
        return False
    return case.solver.kind != "particles" or np.array_equal(build_tokens(case)[0], build_tokens(other)[0])
