"""The schema of a case: one class per table, and one per kind where a table comes in several kinds.

`Heads`, `Initial` and `Solver` are unions told apart by the key named in `KIND_KEYS`. A new kind is one more class with
its own ``Literal`` and one more member of the union: unknown kinds, keys of another kind and the reference of all keys
follow from the classes. Every key has a description, which the reference prints.

Defaults that depend on other keys are ``None`` here and are filled in by `sphereflow.case.reading`; their descriptions
say how. In a case from there they are ``None`` only where the description says so.
"""

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

import tomli_w
from pydantic import Field

from sphereflow.case.parts import Expert, Perceptron, Table
from sphereflow.case.quantities import (
    Concentration,
    Count,
    Courant,
    Degree,
    Dimension,
    Directions,
    FieldNames,
    FileName,
    Flag,
    GridSize,
    HeadCount,
    InputFile,
    Integer,
    KernelTolerance,
    Likelihood,
    Matrices,
    MatrixFile,
    Mean,
    NonNegative,
    Positive,
    Real,
    SchemaVersion,
    Seed,
    Text,
    Values,
    Weights,
    list_of,
)

# table -> (the key that tells its kinds apart, the kind taken when the key is left out, None: it must be given)
KIND_KEYS = {"heads": ("schedule", "frozen"), "initial": ("kind", None), "solver": ("kind", "finite-volume")}


class Grid(Table):
    """``[grid]``: the Gauss-Legendre grid."""

    nlat: GridSize = Field(64, description="Number of Gauss latitudes, even and >= 8; there are 2 nlat longitudes.")


class Model(Table):
    """``[model]``: which equation is solved, and how exactly its nonlocal operator is evaluated."""

    velocity: Literal["attention", "gradient-flow", "unnormalized"] = Field(
        "attention",
        description="Velocity of the tokens: head-averaged softmax attention (attention), the gradient flow of the "
        "energy weighted by the effective mobility (gradient-flow), or its plain W2 gradient flow (unnormalized).",
    )
    direction: Literal["descend", "ascend"] = Field(
        "descend",
        description="Sign s of the velocity: descend (s = -1, tokens repel) or ascend (s = +1, tokens cluster).",
    )
    dimension: Dimension = Field(
        3,
        description="Dimension d of the space around the sphere S^(d-1) the tokens live on, >= 2. Anything but 3 needs "
        "solver.kind = particles; matrices are then d x d and vectors have d entries.",
    )
    diffusion: NonNegative = Field(0.0, description="Coefficient of the Laplacian of the density (token noise), >= 0.")
    tolerance: KernelTolerance = Field(
        1e-10, description="Relative tolerance of the kernel expansion, between 1e-14 and 1e-2."
    )
    backend: Literal["auto", "shtns", "ducc0"] = Field(
        "auto", description="Library of the spherical-harmonic transforms; auto takes the best one that is installed."
    )
    experts: Annotated[tuple[Expert, ...], list_of("tables")] | None = Field(
        None,
        description="Local drift: von Mises-Fisher experts under softmax gates, a table [[model.experts]] for each, with "
        "the keys mean, kappa, gate and bias. Default: none.",
    )
    experts_file: MatrixFile | None = Field(
        None,
        description="File (.npz or netCDF .nc) with the experts, instead of their tables: arrays mean (E, d), kappa (E), "
        "gate (E, d) and optionally bias (E). A relative name is taken from the case file's folder. Default: none.",
    )
    mlp: Perceptron | None = Field(
        None,
        description="Local drift: a two-layer perceptron, the table [model.mlp] with the keys file, or w1, b1, w2 and b2, "
        "and activation. Default: none.",
    )
    residual_scale: Real = Field(1.0, description="Factor of the local drifts.")


class BaseHeads(Table):
    """Keys of ``[heads]`` that every schedule has."""

    schedule: str
    kind: Literal["attention", "svflow"] = Field(
        "attention",
        description="Heads given by their logits and values (attention), or those of a score-based variational flow "
        "(svflow), which follow the score of von Mises-Fisher likelihoods of concentration kappa; svflow needs "
        "model.velocity = attention and model.direction = ascend.",
    )
    kappa: Likelihood | None = Field(
        None,
        description="With kind = svflow: concentration of the likelihood, one number >= 0 for all heads or a list with one "
        "for each. Default: none, must be given with svflow.",
    )
    posterior: Literal["exact", "attention"] | None = Field(
        None,
        description="With kind = svflow: whether a token attends by the exact posterior of its likelihood, so that all "
        "matrices follow from kappa, or by the softmax of logits of their own (attention). Default: exact; None with "
        "kind = attention.",
    )
    count: HeadCount | None = Field(
        None,
        description="Number of heads, from 1 to 100000. Default: the number of matrices given, else 1. If the matrices "
        "come from heads.file it may be left out (None) and is the number found there.",
    )
    initial: Literal["identity", "zero", "gaussian-symmetric"] | None = Field(
        None,
        description="Initial logit matrices: identity, zero, or gaussian-symmetric (Z + Z^T with standard normal Z). "
        "At most one of initial, matrices and file may be given. Default: identity if none is.",
    )
    matrices: Matrices | None = Field(
        None, description="Initial logit matrices themselves, one d x d matrix for each head, rows first (d = "
        "model.dimension, 3 by default). Default: none."
    )
    file: MatrixFile | None = Field(
        None,
        description="File with the initial logit matrices: array logits (head, row, col) in .npz or netCDF (.nc). "
        "A relative name is taken from the case file's folder. Default: none.",
    )
    scale: Real = Field(1.0, description="Factor applied to the initial logit matrices.")
    seed: Seed = Field(
        0, description="Seed of all random numbers of the heads: an integer >= 0 or a list of such integers."
    )
    step: Positive = Field(5e-3, description="Spacing of the times at which the weight path is sampled, > 0.")
    values: Values | None = Field(
        "logits",
        description="Value matrices: logits (V = s A, s being the sign of model.direction), identity, a list with a "
        'matrix for each head, or a file ("v.npz" or {file = "v.npz"}) with the array values (head, row, col). '
        "Anything but logits needs model.velocity = attention.",
    )
    weights: Weights | None = Field(
        None,
        description="Weights of the heads: as many positive numbers as heads, with sum 1. Default: 1/count for each "
        "(None while count is).",
    )


class FrozenHeads(BaseHeads):
    """``[heads]`` with matrices that do not change in time."""

    schedule: Literal["frozen"] = Field("frozen", description="Logit matrices constant in time.")


class OrnsteinUhlenbeckHeads(BaseHeads):
    """``[heads]`` with dD = rate (mean - D) dt + sqrt(noise_var) dW_sym; symmetric matrices only."""

    schedule: Literal["ornstein-uhlenbeck"] = Field(
        "ornstein-uhlenbeck",
        description="dD = rate (mean - D) dt + sqrt(noise_var) dW_sym with dW_sym = (Z + Z^T)/2 sqrt(dt).",
    )
    rate: Positive = Field(1.0, description="Relaxation rate, > 0.")
    mean: Mean = Field(
        "identity",
        description="Matrix that the process relaxes to: identity, zero, a symmetric matrix, or a list with one "
        "for each head.",
    )
    noise_var: NonNegative = Field(2.0, description="Variance of the noise per unit time, >= 0; 0 means no noise.")
    scheme: Literal["exact", "euler-maruyama"] = Field(
        "exact", description="Steps of the process: its exact transition law, or Euler-Maruyama."
    )


class OscillatingHeads(BaseHeads):
    """``[heads]`` with dD/dt = F_h(t) - D for a given periodic symmetric F_h; symmetric matrices only."""

    schedule: Literal["oscillating"] = Field(
        "oscillating", description="dD/dt = F_h(t) - D, the forcing F_h periodic, symmetric and shifted for each head."
    )
    phase: Literal["equispaced", "random"] = Field(
        "equispaced", description="Phases of the heads: 2 pi h/count, or uniformly random from the seed."
    )
    scheme: Literal["exact", "euler"] = Field(
        "exact", description="Steps of the matrices: the exact solution, or explicit Euler."
    )


class TableHeads(BaseHeads):
    """``[heads]`` with matrices interpolated in a table of times."""

    schedule: Literal["table"] = Field("table", description="Interpolation in time between the matrices of a file.")
    interpolation: Literal["linear", "step"] = Field(
        "linear",
        description="Piecewise linear between the times of the file (linear), or constant from each time to the next and "
        "the last to the end of the run, layer after layer (step).",
    )
    file: MatrixFile = Field(
        description="File (.npz or netCDF .nc) with arrays t (K), logits (K, head, row, col) and optionally values "
        "(K, head, row, col). A relative name is taken from the case file's folder."
    )
    scale: Real = Field(1.0, description="Factor applied to all logit matrices of the file.")
    seed: Seed = Field(0, description="Not used by this schedule.")
    step: Positive = Field(5e-3, description="Not used by this schedule: the times are those of the file.")
    values: Values | None = Field(
        None,
        description="Value matrices, as with the other schedules. Default (None): the array values of the file if it "
        "has one, else logits.",
    )


class UniformInitial(Table):
    """``[initial]``: the uniform density 1/(4 pi)."""

    kind: Literal["uniform"] = Field("uniform", description="The uniform density 1/(4 pi).")


class MixtureInitial(Table):
    """``[initial]``: a mixture of von Mises-Fisher densities."""

    kind: Literal["vmf-mixture"] = Field("vmf-mixture", description="A mixture of von Mises-Fisher densities.")
    centers: Directions = Field(description="Centres: vectors of any length but 0, which are normalised.")
    kappa: Concentration = Field(
        50.0, description="Concentration: one number > 0 for all centres, or a list with one for each."
    )
    weights: Weights | None = Field(
        None, description="Mass of each centre: positive numbers with sum 1. Default: the same for all."
    )


class OctahedronInitial(Table):
    """``[initial]``: six equal von Mises-Fisher densities at the vertices of the octahedron."""

    kind: Literal["octahedron"] = Field(
        "octahedron", description="Six equal von Mises-Fisher densities at the octahedron's vertices +-x, +-y, +-z."
    )
    kappa: Positive = Field(50.0, description="Concentration of each of the six densities, > 0.")


class VerticesInitial(Table):
    """``[initial]``: equal von Mises-Fisher densities at the 2 d vertices +-e_i, or around the circle."""

    kind: Literal["vertices"] = Field(
        "vertices",
        description="Equal von Mises-Fisher densities at the 2d vertices +-e_i (d = 3: the octahedron), or at "
        "equispaced points of the circle.",
    )
    kappa: Positive = Field(50.0, description="Concentration of each of the densities, > 0.")
    clusters: Count | None = Field(
        None, description="Number of equispaced points, for dimension = 2 only. Default (None): the 4 vertices."
    )


class HarmonicInitial(Table):
    """``[initial]``: the uniform density with one spherical harmonic added, (1 + amplitude Y_lm)/(4 pi)."""

    kind: Literal["harmonic"] = Field(
        "harmonic", description="(1 + amplitude Y)/(4 pi) with the spherical harmonic Y of the given degree and order."
    )
    degree: Degree = Field(description="Degree l of the harmonic, >= 1 and below grid.nlat.")
    order: Integer = Field(0, description="Order m of the harmonic, from -degree to degree.")
    amplitude: Real = Field(0.01, description="Amplitude of the harmonic.")


class TokensInitial(Table):
    """``[initial]``: tokens from a file, smoothed to a density."""

    kind: Literal["tokens"] = Field("tokens", description="Tokens read from a file and smoothed to a density.")
    file: InputFile = Field(
        description="File with the tokens: .csv (x, y, z[, weight]), .npz (positions[, weights]), the first record of a "
        "particle run (.nc) or of the public code's result (.pt). A relative name is taken from the case file's folder."
    )
    kappa: Positive = Field(50.0, description="Concentration of the von Mises-Fisher density put on each token, > 0.")
    normalize: Flag = Field(
        False, description="Whether tokens off the unit sphere are projected to it; if false they are an error."
    )


class NetcdfInitial(Table):
    """``[initial]``: the density of an earlier run."""

    kind: Literal["netcdf"] = Field("netcdf", description="The density of an earlier run.")
    file: InputFile = Field(
        description="Output file of the run. A relative name is taken from the case file's folder."
    )
    time: Real | None = Field(None, description="Flow time of the record to start from. Default (None): the last one.")


DEFAULT_CFL = 0.3
DEFAULT_ERROR_TOLERANCE = 1e-4


class FiniteVolumeSolver(Table):
    """``[solver]``: unsplit finite volumes in space, a strong-stability-preserving Runge-Kutta scheme in time."""

    kind: Literal["finite-volume"] = Field("finite-volume", description="Finite volumes for the density.")
    t_end: Positive = Field(description="Flow time at which the run ends, > 0.")
    cfl: Courant | None = Field(
        None,
        description="Largest Courant number, > 0 and <= 1. "
        f"Default: {DEFAULT_CFL:g}; None, and an error to give, with dt.",
    )
    error_tolerance: Positive | None = Field(
        None,
        description="Tolerance of the time-step control, > 0. "
        f"Default: {DEFAULT_ERROR_TOLERANCE:g}; None, and an error to give, with dt.",
    )
    dt: Positive | None = Field(None, description="Fixed time step, > 0. Default (None): the step is controlled.")
    reconstruction: Literal["ppm", "upwind", "two-point"] = Field(
        "ppm",
        description="Reconstruction in the cells: piecewise parabolic (ppm), constant, first order (upwind), or the "
        "latter with two-point gradients and without merged polar cells, as minimising movements have it (two-point).",
    )


class MovementSolver(Table):
    """``[solver]``: minimising movements, each step a minimum of squared distance over twice the step, plus energy."""

    kind: Literal["minimizing-movement"] = Field("minimizing-movement", description="Minimising movements (JKO).")
    t_end: Positive = Field(description="Flow time at which the run ends, > 0.")
    tau: Positive = Field(0.01, description="Step, > 0; shortened so that steps end on records, or where one fails.")
    inner_steps: Count = Field(
        1, description="Number of linearised distances that the distance of a step is composed of, >= 1."
    )
    newton_tolerance: Positive = Field(
        1e-10, description="Residual in the energy norm, relative to the density's, at which a step is solved, > 0."
    )
    newton_limit: Count = Field(
        40, description="Newton iterations after which a step is tried again with half its length, >= 1."
    )


DEFAULT_TOKENS = 1000


class ParticleSolver(Table):
    """``[solver]``: tokens that move along the velocity field they make."""

    kind: Literal["particles"] = Field("particles", description="Tokens on the sphere S^(d-1).")
    t_end: Positive = Field(description="Flow time at which the run ends, > 0.")
    count: Count | None = Field(
        None,
        description="Number of random tokens drawn from the initial density, >= 1. Default: "
        f"{DEFAULT_TOKENS}; None, and the file's own tokens, with initial.kind = tokens; None with quadrature.",
    )
    quadrature: Flag = Field(
        False,
        description="Whether the tokens are the nodes of the grid, weighted with the initial density, not random.",
    )
    scheme: Literal["rk4", "euler"] = Field(
        "rk4",
        description="Steps, each followed by normalisation: the classical Runge-Kutta scheme of fourth order (rk4), or "
        "explicit Euler, one transformer layer a step (euler).",
    )
    dt: Positive = Field(
        5e-3, description="Time step, > 0; shorter where a record or a kink of the weights must be met."
    )
    seed: Seed = Field(0, description="Seed of the random tokens: an integer >= 0 or a list of such integers.")


class Output(Table):
    """``[output]``: where the results go and how often."""

    file: FileName | None = Field(
        None,
        description="Output file, relative to the current directory. Default: the name of the case file with .nc.",
    )
    every: Positive | None = Field(
        None, description="Spacing of the records in flow time, > 0 and <= solver.t_end. Default: solver.t_end/100."
    )
    fields: FieldNames | None = Field(
        None,
        description="Fields written with every record, any of density, potential, effective_mobility, "
        "first_variation and velocity, of particles position instead; of both resultant_length, with heads.kind = svflow "
        "surprisal and posterior_divergence, with model.experts local_gate_entropy and gates; an empty list writes "
        "none. "
        "Default: density, or position.",
    )
    checkpoint_every: NonNegative = Field(
        60.0,
        description="Wall seconds between checkpoints, >= 0; the first is made at the start. With 0 the only ones are those "
        "of an interrupt or of a full disk.",
    )


Heads = Annotated[
    FrozenHeads | OrnsteinUhlenbeckHeads | OscillatingHeads | TableHeads, Field(discriminator=KIND_KEYS["heads"][0])
]
Initial = Annotated[
    UniformInitial
    | MixtureInitial
    | OctahedronInitial
    | VerticesInitial
    | HarmonicInitial
    | TokensInitial
    | NetcdfInitial,
    Field(discriminator=KIND_KEYS["initial"][0]),
]
Solver = Annotated[FiniteVolumeSolver | MovementSolver | ParticleSolver, Field(discriminator=KIND_KEYS["solver"][0])]


class Case(Table):
    """A resolved case. Make one with `load_case` or `parse_case`: these also check what must hold between keys."""

    schema_version: SchemaVersion = Field(1, alias="schema", description="Version of this schema.")
    title: Text = Field("", description="Title of the run, stored in the output.")
    grid: Grid = Field(description="The grid.")
    model: Model = Field(description="The equation.")
    heads: Heads = Field(description="The attention heads.")
    initial: Initial = Field(description="The initial density.")
    solver: Solver = Field(description="The solver.")
    output: Output = Field(description="The output.")

    def to_toml(self):
        """Return the case as TOML text with all defaults explicit.

        `parse_case` makes an equal case of the text. Input files appear with their absolute paths.

        Returns
        -------
        str
        """
        return _dump_toml(self.model_dump(by_alias=True, exclude_none=True))

    @property
    def sha256(self):
        """SHA-256 (hexadecimal) of the resolved case, which moving a case or renaming its output does not change.

        It is taken of the text of `to_toml` without the output file's name, without `output.checkpoint_every` and
        without the folders of input files.
        What the input files hold is not part of it.
        """
        content = _without_folders(self.model_dump(by_alias=True, exclude_none=True))
        for key in ("file", "checkpoint_every"):
            content["output"].pop(key, None)
        return hashlib.sha256(_dump_toml(content).encode("utf-8", "surrogateescape")).hexdigest()


def variants(table):
    """Return the classes of a table by the name of their kind, or under the name "" if it has only one kind.

    Parameters
    ----------
    table : str
        Name of a table of the case.

    Returns
    -------
    dict of str to type
    """
    annotation = Case.model_fields[table].annotation
    classes = get_args(annotation) or (annotation,)
    if table not in KIND_KEYS:
        return {"": classes[0]}
    key, _ = KIND_KEYS[table]
    return {cls.model_fields[key].default: cls for cls in classes}


NESTED = {("model", "experts"): Expert, ("model", "mlp"): Perceptron}  # tables inside of tables

TABLES = tuple(name for name in Case.model_fields if name not in ("schema_version", "title"))


def _without_folders(value):
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    return value.name if isinstance(value, Path) else value


def _plain(value):
    """Return nested dictionaries and lists of what TOML knows."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _dump_toml(content):
    text = tomli_w.dumps(_plain(content))
    # tomli_w puts each item of an array on a line of its own; innermost rows of numbers read better on one line. The
    # pattern contains a line break after the bracket, which no string of tomli_w does, so that titles are safe.
    return re.sub(r"\[\n\s+([-+.\de,\s]+?),\n\s*\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
