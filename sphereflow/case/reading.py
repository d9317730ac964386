"""From a case file to a `Case`: TOML, overrides, validation, defaults that depend on other keys.

Only problems of the file itself (it is missing, it is not TOML) end the reading at once. All others are collected and
raised together as one `CaseError`, a line for each.
"""

import os
import tomllib
from pathlib import Path

from pydantic import ValidationError

from sphereflow.case.rules import Given, broken_rules
from sphereflow.case.tables import (
    DEFAULT_CFL,
    DEFAULT_ERROR_TOLERANCE,
    DEFAULT_TOKENS,
    KIND_KEYS,
    TABLES,
    Case,
    variants,
)
from sphereflow.case.wording import keys_of, nearest, one_of, problem_of, show, show_path, toml_value
from sphereflow.errors import CaseError


def load_case(path, overrides=()):
    """Read a case file.

    Parameters
    ----------
    path : str or os.PathLike
        The TOML file. Input files that it names are looked for in its folder.
    overrides : sequence of str
        Settings like ``"grid.nlat=32"`` that go before the file's; see `parse_case`.

    Returns
    -------
    Case

    Raises
    ------
    CaseError
        If the file cannot be read or the case is not valid; the message lists all errors.
    """
    path = Path(path)
    return parse_case(_read_text(path), overrides, source=str(path), folder=path.parent, require_files=True)


def parse_case(case, overrides=(), source="case", folder=None, require_files=True):
    """Make a case of TOML text or of a dictionary.

    Parameters
    ----------
    case : str or dict
        TOML text, or nested dictionaries and lists of the same structure. ``None`` stands for a key left out.
    overrides : sequence of str
        Settings ``"table.key=value"``. The value is read as TOML; what is not TOML is taken as a string.
    source : str
        Name of the case in error messages; the default output file is named after it.
    folder : str or os.PathLike, optional
        Folder that relative names of input files start from; the current one by default.
    require_files : bool
        Whether input files must exist. Not needed to look at the case of an earlier run.

    Returns
    -------
    Case

    Raises
    ------
    CaseError
        If the case is not valid; the message lists all errors.
    """
    data = _normalised(_parse_toml(case, source) if isinstance(case, str) else case)
    if not isinstance(data, dict):
        raise CaseError(f"{source}: {show(data)} is not a case; must be TOML text or a dictionary")
    problems = [problem for override in overrides if (problem := _apply_override(data, override))]
    context = {"folder": os.fspath(folder) if folder is not None else "", "require_files": require_files}
    found, more = _validate(data, context)
    problems += more
    if problems:
        lines = [f"{show_path(path)}: {text}" for path, text in problems]
        number = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
        raise CaseError("\n  ".join([f"{source}: {number}", *lines]))
    return _with_dependent_defaults(found, source)


# ------------------------------------------------------------------------------------------------------ text to data
def _read_text(path):
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CaseError(f"{path}: there is no such file; must be the name of a case file (TOML)") from None
    except IsADirectoryError:
        raise CaseError(f"{path}: is a folder; must be the name of a case file (TOML)") from None
    except (OSError, ValueError) as error:
        raise CaseError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CaseError(
            f"{path}: byte 0x{content[error.start]:02x} in line {line} is not UTF-8; must be a text file in UTF-8"
        ) from None
    if not text.strip():
        raise CaseError(f"{path}: the file is empty; must hold a case, at least initial.kind and solver.t_end")
    return text


def _parse_toml(text, source):
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one; so is an integer with thousands of digits
        before = text.split("\n")
        end = f"(at line {len(before)}, column {len(before[-1]) + 1}, the end of the file)"
        message = str(error).replace("(at end of document)", end)
        raise CaseError(f"{source}: not valid TOML: {message}") from None
    except RecursionError:
        raise CaseError(f"{source}: not valid TOML: arrays or tables are nested too deeply") from None


def _normalised(value):
    """Return a copy in which lists are tuples, file paths strings and keys set to None left out."""
    if isinstance(value, dict):
        return {str(key): _normalised(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return tuple(_normalised(item) for item in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _apply_override(data, override):
    """Write a setting like ``"grid.nlat=32"`` into the data; return the problem if that is not possible."""
    name, equals, text = override.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        return ("--set " + override,), "not understood; must be table.key=value"
    try:
        value = _override_value(text)
    except ValueError as error:
        return path, f"{text.strip()} is not valid TOML: {error}; must be a TOML value or a bare word"
    *parents, key = path
    table = data
    for depth, parent in enumerate(parents):
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return path, f"cannot be set: {'.'.join(path[: depth + 1])} is not a table; must be table.key=value"
    table[key] = value
    return None


def _override_value(text):
    text = text.strip()
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError) as error:
        if text[:1] in tuple("[{\"'"):  # meant as TOML
            raise ValueError(str(error).partition(" (at ")[0]) from None
        return text
    # more than one key: the text had line breaks and is no single value
    return _normalised(parsed["value"]) if len(parsed) == 1 else text


def setting(key, value):
    """Return the override that gives a key a value, such as ``heads.seed=[0, 3]``; `parse_case` reads it back.

    Parameters
    ----------
    key : str
        Like ``"grid.nlat"``.
    value : object
        A value as TOML knows it, lists may be tuples.

    Returns
    -------
    str
    """
    return f"{key}={toml_value(value)}"


def listed_values(text):
    """Return the values of a list without brackets, such as ``1,2,5`` or ``descend,ascend``.

    Commas inside of brackets or quotes do not separate; each value is read like that of an override.

    Parameters
    ----------
    text : str

    Returns
    -------
    tuple

    Raises
    ------
    ValueError
        If a value is empty or not valid TOML.
    """
    pieces, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quote:
            pieces.append("")
        else:
            pieces[-1] += letter
    if not all(piece.strip() for piece in pieces):
        raise ValueError("a value is missing; must be value,value,...")
    try:
        return tuple(_override_value(piece) for piece in pieces)
    except ValueError as error:
        raise ValueError(f"{text.strip()} is not valid TOML: {error}; must be value,value,...") from None


# -------------------------------------------------------------------------------------------------------- validation
def _validate(data, context):
    """Return the case, or None, and all problems of the data (in which left-out tables and kinds are filled in)."""
    models, unclear, problems = _choose_kinds(data)
    model = data["model"]
    dimension = model.get("dimension", 3) if isinstance(model, dict) else 3
    if isinstance(dimension, int) and not isinstance(dimension, bool) and dimension >= 2:
        context = {**context, "dimension": dimension}
    case, translated = None, []
    try:
        case = Case.model_validate(data, context=context)
    except ValidationError as error:
        translated = [problem_of(item, data, models) for item in error.errors(include_url=False)]
    bad = {path[:2] for path, _ in problems + translated}
    problems += [(path, text) for path, text in translated if _can_be_judged(path, unclear)]
    problems += broken_rules(Given(data, models, bad))
    return case, problems


def _choose_kinds(data):
    """Return the class of each table, the tables whose kind is unclear, and the problems with unknown kinds.

    An unknown kind is replaced in the data by the one with the nearest name, or by the first if none is near, so that
    the other keys of its table can be checked too.
    """
    models, unclear, problems = {}, set(), []
    for table in TABLES:
        content = data.setdefault(table, {})
        if not isinstance(content, dict):
            continue
        kinds = variants(table)
        key, default = KIND_KEYS.get(table, (None, ""))
        kind = content.get(key, default)
        if kind is None:
            problems.append(((table, key), f"missing; must be one of {', '.join(kinds)}"))
        elif not isinstance(kind, str) or kind not in kinds:
            problems.append(((table, key), one_of(kind, list(kinds))))
        if not isinstance(kind, str) or kind not in kinds:
            guess = nearest(kind, kinds) if isinstance(kind, str) else None
            if guess is None:
                unclear.add(table)
            kind = guess or next(iter(kinds))
        if key is not None:
            content[key] = kind
        models[table] = kinds[kind]
    return models, unclear, problems


def _can_be_judged(path, unclear):
    """Tell whether a problem is one whatever kind was meant: that of a key that all kinds have."""
    return path[0] not in unclear or all(path[1] in keys_of(cls) for cls in variants(path[0]).values())


def _with_dependent_defaults(case, source):
    """Fill in the defaults that depend on other keys."""
    heads, initial, solver, output = case.heads, case.initial, case.solver, case.output
    update = {}
    exact = heads.kind == "svflow" and heads.posterior != "attention"
    if exact:
        update["posterior"] = "exact"
    if heads.file is None:
        kappas = heads.kappa if isinstance(heads.kappa, tuple) else None
        update["count"] = heads.count or len(heads.matrices or kappas or (None,))
        if heads.matrices is None and not exact:
            update["initial"] = heads.initial or "identity"
    count = update.get("count", heads.count)
    if count is not None:
        update["weights"] = heads.weights or (1 / count,) * count
    heads = heads.model_copy(update=update)

    if initial.kind == "vmf-mixture":
        number = len(initial.centers)
        kappa = initial.kappa if isinstance(initial.kappa, tuple) else (initial.kappa,) * number
        initial = initial.model_copy(update={"kappa": kappa, "weights": initial.weights or (1 / number,) * number})

    if solver.kind == "finite-volume" and solver.dt is None:
        control = {"cfl": DEFAULT_CFL, "error_tolerance": DEFAULT_ERROR_TOLERANCE}
        solver = solver.model_copy(
            update={key: default for key, default in control.items() if getattr(solver, key) is None}
        )

    if solver.kind == "particles" and initial.kind != "tokens" and not solver.quadrature:
        solver = solver.model_copy(update={"count": solver.count or DEFAULT_TOKENS})

    every = solver.t_end / 100 if output.every is None else output.every
    file = output.file or f"{Path(source).stem or 'case'}.nc"
    fields = output.fields
    if fields is None:
        fields = ("position",) if solver.kind == "particles" else ("density",)
    output = output.model_copy(update={"every": every, "file": file, "fields": fields})
    return case.model_copy(update={"heads": heads, "initial": initial, "solver": solver, "output": output})
