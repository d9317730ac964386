"""Types of the single values of a case.

TOML arrays arrive here as tuples (`sphereflow.case.reading` converts them), so that a frozen case is frozen all the way
down and can be hashed. Validation is strict: an integer may stand for a float, nothing else is converted.

Every type says itself what would have been right. Two kinds of error carry such a text: ``not_allowed`` ("must be ...",
to be put behind the value) and ``stated`` (a whole clause about the value).
"""

import math
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from sphereflow.limits import LARGEST_NUMBER
from sphereflow.names import fault_of

WEIGHT_SUM_TOLERANCE = 1e-12
MOST_HEADS = 100_000  # a slip of the keyboard must not fill the memory with weights
MOST_DIMENSIONS = 1024
MATRIX_FILE_SUFFIXES = (".npz", ".nc")

_RANGE_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"}


def not_allowed(remedy):
    """Return the error of a value that must be something else."""
    return PydanticCustomError("not_allowed", "must be {remedy}", {"remedy": remedy})


def stated(clause):
    """Return the error described by a whole clause that follows the value."""
    return PydanticCustomError("stated", "{clause}", {"clause": clause})


def dimension_of(info):
    """Return the dimension d of the case that is being validated; 3 where it is not known."""
    return (info.context or {}).get("dimension", 3)


def must_be(noun, rule=""):
    """Replace the errors of a scalar type by one text that states all that is asked of the value.

    A value of the right type but outside of its range is told the rule only ("must be >= 0"), any other value the whole
    ("must be a finite number >= 0").
    """

    def check(value, handler, info: ValidationInfo):
        try:
            return handler(value)
        except ValidationError as error:
            out_of_range = error.errors(include_url=False)[0]["type"] in _RANGE_ERRORS
            named = noun.replace("3x3", "{0}x{0}".format(dimension_of(info)))
            raise not_allowed(rule if out_of_range else f"{named} {rule}".strip()) from None

    return WrapValidator(check)


def list_of(items, empty=False):
    """Require a list (of any content), which may be empty only if ``empty``."""

    def check(value):
        if not isinstance(value, tuple) or (not value and not empty):
            raise not_allowed(f"a list of {items}" if empty else f"a non-empty list of {items}")
        return value

    return BeforeValidator(check)


def _not_huge(value):
    """Refuse numbers whose squares and products would leave the range of floating point."""
    if abs(value) > LARGEST_NUMBER:
        raise not_allowed(f"at most {LARGEST_NUMBER:g} in size")
    return value


def _not_tiny(value):
    """The same for numbers that others are divided by."""
    if value < 1 / LARGEST_NUMBER:
        raise not_allowed(f"at least {1 / LARGEST_NUMBER:g}")
    return value


def _possible_text(text):
    if fault := fault_of(text):  # netCDF ends texts at a NUL
        raise stated(f"{fault}; must be text")
    return text


def _possible_name(name):
    if fault := fault_of(name):
        raise stated(f"{fault}; must be a name that a file can have")
    return name


# ---------------------------------------------------------------------------------------------------------- scalars
_NotHuge, _NotTiny = AfterValidator(_not_huge), AfterValidator(_not_tiny)
AnyReal = Annotated[float, must_be("a finite number")]
AnyPositive = Annotated[float, Field(gt=0), must_be("a finite number", "> 0")]
Real = Annotated[AnyReal, _NotHuge]
Positive = Annotated[AnyPositive, _NotHuge, _NotTiny]
NonNegative = Annotated[float, Field(ge=0), must_be("a finite number", ">= 0"), _NotHuge]
Courant = Annotated[float, Field(gt=0, le=1), must_be("a number", "> 0 and <= 1"), _NotTiny]
KernelTolerance = Annotated[float, Field(ge=1e-14, le=1e-2), must_be("a number", ">= 1e-14 and <= 1e-2")]
Integer = Annotated[int, must_be("an integer")]
HeadCount = Annotated[int, Field(ge=1, le=MOST_HEADS), must_be("an integer", f">= 1 and <= {MOST_HEADS}")]
Degree = Annotated[int, Field(ge=1), must_be("an integer", ">= 1")]
SeedNumber = Annotated[int, Field(ge=0), must_be("an integer", ">= 0")]
GridSize = Annotated[int, Field(ge=8, multiple_of=2), must_be("an integer", ">= 8 and even")]
Dimension = Annotated[int, Field(ge=2, le=MOST_DIMENSIONS), must_be("an integer", f">= 2 and <= {MOST_DIMENSIONS}")]
Count = Annotated[int, Field(ge=1), must_be("an integer", ">= 1")]
SchemaVersion = Annotated[int, Field(ge=1, le=1), must_be("the integer", "1")]
Text = Annotated[str, must_be("a string in quotes"), AfterValidator(_possible_text)]
FileName = Annotated[str, Field(min_length=1), must_be("a file name in quotes"), AfterValidator(_possible_name)]
Flag = Annotated[bool, must_be("true or false")]


# ------------------------------------------------------------------------------------------ vectors and matrices
# Their length is that of model.dimension, which validation finds in its context.
def _vector(value, info: ValidationInfo):
    d = dimension_of(info)
    if not isinstance(value, tuple) or len(value) != d:
        raise not_allowed(f"a vector of {d} numbers")
    return value


def _vector_list(value, info: ValidationInfo):
    if not isinstance(value, tuple) or not value:
        raise not_allowed(f"a non-empty list of vectors of {dimension_of(info)} numbers")
    return value


def _not_zero(vector):
    if not any(vector):
        raise not_allowed("a vector that is not zero: it is normalised to a point of the sphere")
    return vector


def is_square(value, size):
    """Tell whether a value is `size` rows of `size` entries, whatever these are."""
    return _is_row(value, size) and all(_is_row(row, size) for row in value)


def _is_row(value, size):
    return isinstance(value, tuple) and len(value) == size


def _matrix_shape(value, info: ValidationInfo):
    d = dimension_of(info)
    if not is_square(value, d):
        raise not_allowed(f"a {d}x{d} matrix: {d} rows of {d} numbers")
    return value


def _matrix_list_shape(value, info: ValidationInfo):
    d = dimension_of(info)
    if not isinstance(value, tuple) or not value:
        raise not_allowed(f"a non-empty list of {d}x{d} matrices")
    if is_square(value, d) and not any(isinstance(entry, tuple) for row in value for entry in row):
        raise not_allowed(
            f"a list of {d}x{d} matrices, and this is one matrix: put it into a list, [[[..], [..], [..]]]"
        )
    return value


def _rows(value):
    if not isinstance(value, tuple) or not value or len({len(r) if isinstance(r, tuple) else None for r in value}) != 1:
        raise not_allowed("a non-empty list of rows of numbers, all of the same length")
    return value


Row = tuple[Real, ...]
Vector = Annotated[tuple[Real, ...], list_of("numbers")]
DimensionVector = Annotated[tuple[Real, ...], BeforeValidator(_vector)]
Rows = Annotated[tuple[Vector, ...], BeforeValidator(_rows)]
Direction = Annotated[tuple[AnyReal, ...], BeforeValidator(_vector), AfterValidator(_not_zero)]
Directions = Annotated[tuple[Direction, ...], BeforeValidator(_vector_list)]
Matrix = Annotated[tuple[Row, ...], BeforeValidator(_matrix_shape)]
Matrices = Annotated[tuple[Matrix, ...], BeforeValidator(_matrix_list_shape)]


# ------------------------------------------------------------------------------------------------- lists of numbers
def _sum_to_one(weights):
    try:
        total = math.fsum(weights)
    except OverflowError:
        total = math.inf
    if abs(total - 1) > WEIGHT_SUM_TOLERANCE:
        raise stated(f"sums to {total!r}; must sum to 1 within {WEIGHT_SUM_TOLERANCE:g}")
    return weights


def _distinct(names):
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise stated(f"names {', '.join(repeated)} more than once; must name each field once")
    return names


Weights = Annotated[tuple[AnyPositive, ...], list_of("numbers > 0 that sum to 1"), AfterValidator(_sum_to_one)]


# ------------------------------------------------------------------------------------------------------ input files
def _resolve(value, info):
    """Return the absolute path of an input file, relative names being taken from the case file's folder."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise not_allowed("a file name in quotes")
    context = info.context or {}
    try:
        path = Path(context.get("folder", ""), value).resolve()
    except (OSError, ValueError, RuntimeError):  # a NUL character, a loop of links
        raise not_allowed("a usable file name") from None
    if context.get("require_files", False) and not os.path.isfile(path):
        raise stated(f"is not found, there is no file {path}; must be an existing file")
    return path


def _resolve_matrix_file(value, info: ValidationInfo):
    if isinstance(value, dict) and set(value) == {"file"}:
        value = value["file"]
    if isinstance(value, str) and not value.endswith(MATRIX_FILE_SUFFIXES):
        raise not_allowed("a file name ending in .npz or .nc")
    return _resolve(value, info)


InputFile = Annotated[Path, BeforeValidator(_resolve)]
MatrixFile = Annotated[Path, BeforeValidator(_resolve_matrix_file)]


# ------------------------------------------------------------------------- values of which several forms are allowed
# The form is told from the shape of the value alone, so that an error speaks about the form that was meant. Tags in
# angle brackets never reach a user: they are removed from the path of an error.
def _list_or_number(value):
    return "<list>" if isinstance(value, tuple) else "<number>"


def _values_form(value):
    if isinstance(value, tuple):
        return "<matrices>"
    is_file = isinstance(value, Path | dict) or (isinstance(value, str) and value.endswith(MATRIX_FILE_SUFFIXES))
    return "<file>" if is_file else "<word>"


def _mean_form(value):
    if not isinstance(value, tuple):
        return "<word>"
    nested = bool(value) and isinstance(value[0], tuple) and bool(value[0]) and isinstance(value[0][0], tuple)
    return "<matrices>" if nested else "<matrix>"


_SeedList = Annotated[tuple[SeedNumber, ...], list_of("integers >= 0")]
_PositiveList = Annotated[tuple[Positive, ...], list_of("numbers > 0")]
_NonNegativeList = Annotated[tuple[NonNegative, ...], list_of("numbers >= 0")]
_ValuesWord = Annotated[
    Literal["logits", "identity"],
    must_be('"logits", "identity", a list of 3x3 matrices, or a file name ending in .npz or .nc'),
]
_MeanWord = Annotated[
    Literal["identity", "zero"],
    must_be('"identity", "zero", a 3x3 matrix, or a list of 3x3 matrices'),
]

Seed = Annotated[
    Annotated[SeedNumber, Tag("<number>")] | Annotated[_SeedList, Tag("<list>")],
    Discriminator(_list_or_number),
]
Concentration = Annotated[
    Annotated[Positive, Tag("<number>")] | Annotated[_PositiveList, Tag("<list>")],
    Discriminator(_list_or_number),
]
Likelihood = Annotated[
    Annotated[NonNegative, Tag("<number>")] | Annotated[_NonNegativeList, Tag("<list>")],
    Discriminator(_list_or_number),
]
Values = Annotated[
    Annotated[_ValuesWord, Tag("<word>")]
    | Annotated[Matrices, Tag("<matrices>")]
    | Annotated[MatrixFile, Tag("<file>")],
    Discriminator(_values_form),
]
Mean = Annotated[
    Annotated[_MeanWord, Tag("<word>")] | Annotated[Matrix, Tag("<matrix>")] | Annotated[Matrices, Tag("<matrices>")],
    Discriminator(_mean_form),
]
FieldName = Literal[
    "density",
    "potential",
    "effective_mobility",
    "first_variation",
    "velocity",
    "surprisal",
    "posterior_divergence",
    "resultant_length",
    "local_gate_entropy",
    "gates",
    "position",
]
FieldNames = Annotated[tuple[FieldName, ...], list_of("field names", empty=True), AfterValidator(_distinct)]
