"""Small cases for tests, and the errors that they cause."""

import pytest

from sphereflow.case import parse_case
from sphereflow.errors import CaseError

OU = "ornstein-uhlenbeck"
PYDANTIC_WORDS = ("pydantic", "https://", "Input should", "validation error", "type=", "input_value", "discriminator")


def case_data(**tables):
    """A small valid case in which whole tables are replaced."""
    return {"initial": {"kind": "uniform"}, "solver": {"t_end": 2.0}, **tables}


def errors_of(data, *overrides, **options):
    """The lines of the error that a case causes, without the heading."""
    with pytest.raises(CaseError) as caught:
        parse_case(data, overrides, **options)
    heading, *lines = str(caught.value).split("\n")
    number = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    assert heading == f"case: {number}"
    assert not [word for word in PYDANTIC_WORDS if word in str(caught.value)]
    return [line.strip() for line in lines]


def only_error(data, *overrides, **options):
    (line,) = errors_of(data, *overrides, **options)
    return line
