"""The base of all tables of a case, and the tables that stand inside of others."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from sphereflow.case.quantities import (
    DimensionVector,
    Direction,
    MatrixFile,
    NonNegative,
    Real,
    Rows,
    Vector,
)


class Table(BaseModel):
    """Base of all tables: unknown keys, silent conversions, nan and inf are errors, and a table cannot be changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Expert(Table):
    """``[[model.experts]]``: a von Mises-Fisher expert and its gate."""

    mean: Direction = Field(description="Mean direction: a vector of any length but 0, which is normalised.")
    kappa: NonNegative = Field(description="Concentration, >= 0.")
    gate: DimensionVector | None = Field(
        None, description="Row of the gates' matrix: the expert's logit is gate . x + bias. Default (None): zeros."
    )
    bias: Real = Field(0.0, description="Bias of the expert's logit.")


class Perceptron(Table):
    """``[model.mlp]``: a two-layer perceptron w2 act(w1 x + b1) + b2, projected on the tangent plane."""

    file: MatrixFile | None = Field(
        None,
        description="File (.npz or netCDF .nc) with the arrays w1 (width, d), b1 (width), w2 (d, width), b2 (d), instead of "
        "these keys. A relative name is taken from the case file's folder. Default: none.",
    )
    w1: Rows | None = Field(None, description="Matrix of the first layer, width rows of d numbers. Default: in the file.")
    b1: Vector | None = Field(None, description="Bias of the first layer, width numbers. Default: in the file.")
    w2: Rows | None = Field(None, description="Matrix of the second layer, d rows of width numbers. Default: in the file.")
    b2: Vector | None = Field(None, description="Bias of the second layer, d numbers. Default: in the file.")
    activation: Literal["relu", "gelu", "tanh"] = Field(
        "gelu", description="Activation between the layers; gelu is the exact one, x times the normal distribution function."
    )
