"""Problems of a case put into words: where it is, what was found, what would be right.

A *problem* is a pair (path, text): the path a tuple of keys and list indices, the text what is printed behind it. No
term of pydantic reaches a user: `problem_of` translates its errors one by one.
"""

import difflib
import json
import re

from sphereflow.case.tables import KIND_KEYS, NESTED, TABLES, Case, variants

_LONGEST_VALUE = 60


def show(value):
    """Return a value as it would stand in a case file, shortened if it is long.

    Parameters
    ----------
    value : object
        A value read from TOML, lists being tuples.

    Returns
    -------
    str
    """
    text = toml_value(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 4] + " ..."


def toml_value(value):
    """Return a value as TOML has it, in one line and whole; `show` shortens it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, int) and value.bit_length() > 1000:  # longer than Python may print
        return "an integer with more than 300 digits"
    return str(value)


def show_path(path):
    """Return a path like ``heads.matrices[1][0]``.

    Parameters
    ----------
    path : tuple of str and int

    Returns
    -------
    str
    """
    return "".join(f"[{item}]" if isinstance(item, int) else f".{item}" for item in path).lstrip(".")


def nearest(word, known):
    """Return the known word that is most like a misspelt one, or None."""
    lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(str(word).lower(), lower, n=1)
    return lower[found[0]] if found else None


def one_of(value, allowed):
    """Return the text for a word that is not among the allowed ones."""
    guess = nearest(value, allowed) if isinstance(value, str) else None
    hint = f"; did you mean {guess}?" if guess else ""
    return f"{show(value)} is not allowed; must be one of {', '.join(allowed)}{hint}"


def keys_of(cls):
    """Return the keys of a table's class as they are written in TOML, with their descriptions."""
    return {field.alias or name: field for name, field in cls.model_fields.items()}


def problem_of(error, data, models):
    """Translate one error of pydantic.

    Parameters
    ----------
    error : dict
        One of ``ValidationError.errors()``.
    data : dict
        The case that was validated.
    models : dict
        Class that each table of the case was validated with.

    Returns
    -------
    tuple
        Path and text.
    """
    path = _plain_path(error["loc"], models)
    kind, value = error["type"], error["input"]
    if kind == "missing":
        return path, f"missing; must be given: {_description(path, models)}"
    if kind == "extra_forbidden":
        return path, _unknown_key(path, value, data, models)
    if kind == "literal_error":
        return path, one_of(value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
    if kind == "stated":
        return path, f"{show(value)} {error['ctx']['clause']}"
    if kind == "not_allowed":
        return path, f"{show(value)} is not allowed; must be {error['ctx']['remedy']}"
    if len(path) == 1 and path[0] in TABLES:
        return path, f"{show(value)} is not allowed; must be a table: [{path[0]}]"
    return path, f"{show(value)} is not allowed; must be: {_description(path, models)}"


def _plain_path(location, models):
    """Remove what pydantic adds to a path: the kind of a table and the form of a value."""
    path = tuple(item for item in location if not str(item).startswith("<"))
    if len(path) > 1 and path[0] in models and len(variants(path[0])) > 1:
        return path[:1] + path[2:]
    return path


def _description(path, models):
    if len(path) > 2 and path[:2] in NESTED and path[-1] in keys_of(NESTED[path[:2]]):
        return keys_of(NESTED[path[:2]])[path[-1]].description
    keys, key = (keys_of(Case), path[0]) if len(path) == 1 else (keys_of(models[path[0]]), path[1])
    return keys[key].description


def _unknown_key(path, value, data, models):
    key = path[-1]
    if nested := NESTED.get(path[:2] if len(path) > 2 else None):
        guess = nearest(key, keys_of(nested))
        hint = f"did you mean {guess}?" if guess else f"the keys are {', '.join(keys_of(nested))}"
        return f"unknown key; {hint}"
    if len(path) == 1:
        noun, allowed, cls = ("table" if isinstance(value, dict) else "key"), list(keys_of(Case)), Case
    else:
        noun, allowed, cls = "key", list(keys_of(models[path[0]])), models[path[0]]
        owners = [kind for kind, other in variants(path[0]).items() if other is not cls and key in keys_of(other)]
        if owners:
            kind_key = KIND_KEYS[path[0]][0]
            others = " or ".join(show(owner) for owner in owners)
            return (
                f"{show(value)} is not allowed with {kind_key} = {show(data[path[0]].get(kind_key))}; the key must be "
                f"removed, it belongs to {kind_key} = {others}"
            )
    guess = nearest(key, allowed)
    if not guess:
        owners = (table for table in TABLES for other in variants(table).values() if key in keys_of(other))
        owner = next(owners, None)
        guess = f"{owner}.{key}" if owner else None
    if guess:
        return f"unknown {noun}; did you mean {guess}?"
    where = f"of [{path[0]}]" if len(path) > 1 else "of a case"
    return f"unknown {noun}; the keys {where} are {', '.join(allowed)}"
