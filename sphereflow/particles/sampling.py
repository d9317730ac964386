"""Initial tokens: random draws from an initial density, a file's tokens, or the nodes of a Gauss grid.

Mixtures of von Mises-Fisher densities are sampled exactly, in any dimension: a component for every token, a draw about
one fixed axis, and a reflection that takes the axis to the component's centre (the density is symmetric about it).
Densities on a grid are sampled by cells (the density is taken as constant in a cell), harmonics by rejection from the
uniform density.

A run's tokens come from one stream of random numbers of their own, so that the weights of the heads do not change with
the number of tokens: stream word 4 beside those of `sphereflow.heads`.
"""

from collections.abc import Callable
from numbers import Integral

import numpy as np
import scipy  # which loads scipy.stats, slow to import, when a name of it is first used

from sphereflow.cells import node_values
from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid
from sphereflow.initial import check_tokens, initial_density, real_harmonic

STREAM_TOKENS = 4
# Below, the density is uniform to as many digits as scipy's draws have: it takes (log z)/kappa, z being 1 + O(kappa).
UNIFORM_KAPPA = 1e-8


def token_generator(seed) -> np.random.Generator:
    """Random generator of the tokens of a run.

    Parameters
    ----------
    seed : int or sequence of int
        Seed of the case; ensembles append the member's number.
    """
    words = (int(seed),) if isinstance(seed, Integral) else tuple(int(word) for word in seed)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((STREAM_TOKENS, 0, len(words), *words))))


def initial_tokens(
    spec,
    count: int | None,
    seed,
    dimension: int = 3,
    read_tokens: Callable | None = None,
    read_density: Callable | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens of equal weights drawn from the initial density of a case, or a file's own tokens.

    Parameters
    ----------
    spec : object
        The [initial] table of a case, see `sphereflow.initial.initial_density`.
    count : int or None
        Number of tokens; None, for the kind "tokens" only, takes those of `spec.file` as they are, with their weights.
    seed : int or sequence of int
    dimension : int
        Dimension d of the tokens.
    read_tokens, read_density : callable
        As for `initial_density`.

    Returns
    -------
    positions : ndarray, shape (count, d)
    weights : ndarray, shape (count,)
        Of sum 1.

    Raises
    ------
    CaseError
        If the file cannot be used, or the kind does not exist in this dimension.
    """
    if count is None:
        positions, weights = read_tokens(spec.file)
        return check_tokens(positions, weights, spec.file, spec.normalize, dimension)
    generator = token_generator(seed)
    if spec.kind == "uniform":
        positions = scipy.stats.uniform_direction(dimension).rvs(count, random_state=generator).reshape(count, dimension)
    elif spec.kind == "harmonic" and dimension == 3:
        positions = _harmonic(spec, count, generator)
    elif spec.kind == "netcdf" and dimension == 3:
        positions = _cells(*read_density(spec.file, spec.time), count, generator)
    else:
        centers, kappa, share = mixture(spec, dimension, read_tokens)
        positions = _mixture(centers, kappa, share, count, generator)
    positions /= np.linalg.norm(positions, axis=1, keepdims=True)
    return positions, np.full(count, 1 / count)


def quadrature_tokens(grid: GaussGrid, spec, read_tokens=None, read_density=None) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of a Gauss grid as tokens, weighted with the initial density of a case times the nodes' areas.

    Sums over them are Gauss quadratures: spectrally accurate for smooth densities, and along the flow as long as it
    stays smooth. Nodes without mass are left out.

    Returns
    -------
    positions : ndarray, shape (n, 3)
    weights : ndarray, shape (n,)
        Of sum 1.
    """
    density = initial_density(grid, spec, read_tokens=read_tokens, read_density=read_density)
    if spec.kind == "netcdf":  # which holds cell means
        density = np.maximum(node_values(grid, density), 0.0)
    weights = (density * grid.cell_area[:, None]).ravel()
    present = weights > 0
    return grid.points.reshape(-1, 3)[present], weights[present] / weights[present].sum()


def vertices(dimension: int, clusters: int | None = None) -> np.ndarray:
    """The 2 d vertices +-e_i, or `clusters` equispaced points of the circle, shape (number, d)."""
    if dimension == 2 and clusters is not None:
        angle = 2 * np.pi * np.arange(clusters) / clusters
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return np.concatenate([np.eye(dimension), -np.eye(dimension)])


def mixture(spec, dimension: int, read_tokens: Callable | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centres (k, d), concentrations (k,) and shares (k,) of an initial von Mises-Fisher mixture.

    Raises
    ------
    CaseError
        If the kind is no such mixture in this dimension.
    """
    if spec.kind == "vmf-mixture":
        centers = np.array(spec.centers, dtype=float)
        share = np.ones(len(centers)) if spec.weights is None else np.array(spec.weights)
    elif spec.kind in ("octahedron", "vertices"):
        centers = vertices(dimension, getattr(spec, "clusters", None))
        share = np.ones(len(centers))
    elif spec.kind == "tokens":
        centers, share = check_tokens(*read_tokens(spec.file), spec.file, spec.normalize, dimension)
    else:
        raise CaseError(f"initial.kind: {spec.kind!r} is not available in dimension {dimension}")
    if centers.shape[1] != dimension:
        raise CaseError(f"initial.centers: shape {centers.shape}; expected (n, {dimension})")
    centers /= np.abs(centers).max(axis=1, keepdims=True)
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    return centers, np.broadcast_to(np.asarray(spec.kappa, dtype=float), len(centers)), share / share.sum()


def _mixture(centers, kappa, share, count, generator):
    """Draws from a mixture of von Mises-Fisher densities."""
    dimension = centers.shape[1]
    component = generator.choice(len(centers), size=count, p=share)
    axis = np.eye(dimension)[0]
    draws = np.empty((count, dimension))
    for value in np.unique(kappa):
        here = kappa[component] == value
        number = int(here.sum())
        if number:
            uniform = value < UNIFORM_KAPPA
            law = scipy.stats.uniform_direction(dimension) if uniform else scipy.stats.vonmises_fisher(axis, value)
            draws[here] = np.reshape(law.rvs(number, random_state=generator), (number, dimension))
    mirror = axis - centers  # reflecting along it takes the axis to the centre
    norm = np.sum(mirror**2, axis=1)
    scale = np.divide(2.0, norm, out=np.zeros_like(norm), where=norm > 0)
    along = np.sum(draws * mirror[component], axis=1) * scale[component]
    return draws - along[:, None] * mirror[component]


def _harmonic(spec, count, generator):
    """Draws from (1 + amplitude Y)/(4 pi) by rejection."""
    bound = 1 + abs(spec.amplitude) * np.sqrt((2 * spec.degree + 1) / (2 * np.pi))  # |Y| <= sqrt(2 (2l+1)/(4 pi))
    accepted, number = [], 0
    while number < count:
        x = scipy.stats.uniform_direction(3).rvs(2 * count, random_state=generator).reshape(-1, 3)
        y = real_harmonic(spec.degree, spec.order, np.arccos(np.clip(x[:, 2], -1, 1)), np.arctan2(x[:, 1], x[:, 0]))
        accepted.append(x[generator.uniform(size=len(x)) * bound < 1 + spec.amplitude * y])
        number += len(accepted[-1])
    return np.concatenate(accepted)[:count]


def _cells(density, nlat, count, generator):
    """Draws from cell means on a Gauss grid: a cell by its mass, then a uniform point of it."""
    grid = GaussGrid(nlat)
    mass = np.maximum(density, 0.0) * grid.cell_area[:, None]
    cell = generator.choice(mass.size, size=count, p=mass.ravel() / mass.sum())
    row, column = np.unravel_index(cell, mass.shape)
    z = grid.z_face[row] + generator.uniform(size=count) * (grid.z_face[row + 1] - grid.z_face[row])
    longitude = (column + generator.uniform(-0.5, 0.5, size=count)) * grid.dlon
    s = np.sqrt(np.maximum(1 - z**2, 0.0))
    return np.stack([s * np.cos(longitude), s * np.sin(longitude), z], axis=-1)
