"""Initial densities: nonnegative fields of total mass 1 on the Gauss grid.

Every kind is a closed form evaluated at the nodes, or a file, and is divided by its quadrature at the end so that
`grid.integrate` gives 1 to round-off. Concentrated kinds are sums of von Mises-Fisher densities

    vMF(x; c, kappa) = kappa/(4 pi sinh kappa) e^{kappa x.c}
                     = e^{kappa (x.c - 1)} / (4 pi (1 - e^{-2 kappa})/(2 kappa)),

the second form being free of overflow. A concentration that the grid cannot integrate is refused: dividing by a wrong
quadrature would hide that the density is not the one asked for.

Files are read by functions passed in, so that this room knows no file format.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import exprel, sph_harm_y

from sphereflow.errors import CaseError
from sphereflow.grid import GaussGrid

_MASS_TOLERANCE = 1e-3
# Error of the quadrature of vMF(kappa) at its worst place, the pole: 1e-3 at kappa = 0.22 nlat^2, for nlat = 8 ... 64.
_RESOLVED = 0.22
_OFF_SPHERE = 1e-6
_NEGATIVE = 1e-12
_BLOCK = 2**21


def initial_density(
    grid: GaussGrid, spec, read_tokens: Callable | None = None, read_density: Callable | None = None
) -> np.ndarray:
    """Initial density of a case.

    Parameters
    ----------
    grid : GaussGrid
        Grid of the run.
    spec : object
        The [initial] table of a case; `kind` decides which attributes are read:
        uniform; vmf-mixture (centers, kappa, weights); octahedron (kappa): equal vMF at the vertices +-e_i; harmonic
        (degree, order, amplitude): (1 + amplitude Y)/(4 pi) with the real orthonormal harmonic Y; tokens (file, kappa,
        normalize): a token set smoothed by vMF(kappa); netcdf (file, time): a record of an earlier run.
    read_tokens : callable, optional
        `read_tokens(path) -> (positions, weights or None)`, needed by tokens.
    read_density : callable, optional
        `read_density(path, time) -> (density, nlat)`, needed by netcdf: the record nearest to `time`, None being the
        last; the reader refuses a time outside the file's range.

    Returns
    -------
    ndarray, shape (nlat, nlon)
        Density with respect to area, nonnegative, of integral 1.

    Raises
    ------
    CaseError
        If the parameters or the file give no density that this grid can hold.
    """
    try:
        build = _KINDS[spec.kind]
    except KeyError:
        raise CaseError(f"initial.kind: unknown kind {spec.kind!r}; one of {', '.join(_KINDS)}") from None
    density = build(grid, spec, read_tokens=read_tokens, read_density=read_density)
    return density / grid.integrate(density)


def real_harmonic(degree: int, order: int, colatitude, longitude) -> np.ndarray:
    """Real orthonormal spherical harmonic, with the Condon-Shortley phase.

    Y_l0 for order 0, sqrt(2) Re Y_lm for m > 0, sqrt(2) Im Y_l|m| for m < 0; the integral of its square is 1.

    Parameters
    ----------
    degree, order : int
        l >= 0 and -l <= m <= l.
    colatitude, longitude : array_like
        Angles in radians; broadcast against each other.
    """
    y = sph_harm_y(degree, abs(order), colatitude, longitude)
    if order == 0:
        return y.real
    return np.sqrt(2) * (y.real if order > 0 else y.imag)


def check_tokens(
    positions: np.ndarray,
    weights: np.ndarray | None,
    source: str,
    normalize: bool = False,
    dimension: int = 3,
    remedy: str = "set initial.normalize = true",
) -> tuple[np.ndarray, np.ndarray]:
    """Token positions on the sphere to round-off and weights of sum 1, or an error that names the worst token.

    Parameters
    ----------
    positions : ndarray, shape (n, d)
        Positions; their norms may differ from 1 by 1e-6 (files hold rounded numbers) and are then set to 1.
    weights : ndarray, shape (n,), or None
        Nonnegative relative weights; None: equal.
    source : str
        Name of their file, for messages.
    normalize : bool
        Project positions of any nonzero norm to the sphere.
    dimension : int
        Dimension d that the positions must have.
    remedy : str
        How to accept tokens off the sphere, for messages.

    Raises
    ------
    CaseError
        If there is no token, the shapes do not fit, entries are not finite, a token is off the sphere, or the weights
        are negative or all zero.
    """
    if positions.ndim != 2 or positions.shape[1] != dimension:
        raise CaseError(f"{source}: positions have shape {positions.shape}; expected (n, {dimension})")
    count = len(positions)
    if count < 1:
        raise CaseError(f"{source}: holds no tokens")
    finite = np.isfinite(positions).all(axis=1)
    if not finite.all():
        raise CaseError(f"{source}: the position of token {int(np.argmin(finite))} is not finite")
    norm = np.linalg.norm(positions, axis=1)
    if normalize:
        if norm.min() == 0:
            raise CaseError(f"{source}: token {int(np.argmin(norm))} is at the origin and cannot be normalised")
    else:
        worst = int(np.argmax(np.abs(norm - 1)))
        if abs(norm[worst] - 1) > _OFF_SPHERE:
            raise CaseError(
                f"{source}: token {worst} has norm {norm[worst]:.9g}, off the unit sphere by more than {_OFF_SPHERE:g} "
                f"(the worst of all); {remedy} to project the tokens"
            )
    if weights is None:
        weights = np.ones(count)
    return positions / norm[:, None], _relative_weights(weights, count, f"{source}: weights")


def _relative_weights(weights, count, key):
    """Weights divided by their sum."""
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (count,):
        raise CaseError(f"{key}: shape {weights.shape}; expected ({count},)")
    if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and weights.any()):
        raise CaseError(f"{key}: must be finite, nonnegative and not all zero")
    weights = weights / weights.max()
    return weights / weights.sum()


def _vmf_sum(grid, centers, kappa, weights, keys):
    """Sum of von Mises-Fisher densities, in blocks of centres.

    centers (n, 3) of norm 1, kappa (n,), weights (n,); keys(j) names component j in the error of an unresolved kappa.
    """
    points = grid.points.reshape(-1, 3)
    area = np.repeat(grid.cell_area, grid.nlon)
    density = np.zeros(len(points))
    block = max(1, _BLOCK // len(points))
    for start in range(0, len(centers), block):
        part = slice(start, start + block)
        # Products beyond the largest number are the right infinities here: their component ends as 0 or as refused.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            component = points @ centers[part].T
            component -= 1.0
            component *= kappa[part]
            np.exp(component, out=component)
            component /= 4 * np.pi * exprel(-2 * kappa[part])
            mass = area @ component
        error = np.abs(mass - 1)
        if not np.all(error <= _MASS_TOLERANCE):
            worst = int(np.argmax(np.nan_to_num(error, nan=np.inf)))
            raise CaseError(
                f"{keys(start + worst)}: {kappa[start + worst]:.6g} is too large for grid.nlat = {grid.nlat}, which "
                f"finds the mass {mass[worst]:.4g} instead of 1; this grid resolves kappa up to about "
                f"{_RESOLVED * grid.nlat**2:.3g}"
            )
        density += component @ weights[part]
    return density.reshape(grid.shape)


def _require_kappa(kappa):
    if not (np.all(np.isfinite(kappa)) and np.all(kappa >= 0)):
        raise CaseError("initial.kappa: must be finite and nonnegative")


def _uniform(grid, spec, **_):
    return np.full(grid.shape, 1 / (4 * np.pi))


def _vmf_mixture(grid, spec, **_):
    centers = np.asarray(spec.centers, dtype=float)
    if centers.ndim != 2 or centers.shape[1] != 3 or len(centers) < 1:
        raise CaseError(f"initial.centers: shape {centers.shape}; expected (n, 3) with n >= 1")
    count = len(centers)
    largest = np.abs(centers).max(axis=1, keepdims=True)
    if not np.all(np.isfinite(largest)) or not largest.all():
        raise CaseError("initial.centers: must be finite and nonzero")
    centers = centers / largest
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    kappa = np.asarray(spec.kappa, dtype=float)
    if kappa.shape not in ((), (count,)):
        raise CaseError(f"initial.kappa: shape {kappa.shape}; expected ({count},), one for each centre")
    _require_kappa(kappa)
    weights = np.ones(count) if spec.weights is None else spec.weights
    weights = _relative_weights(weights, count, "initial.weights")
    return _vmf_sum(grid, centers, np.broadcast_to(kappa, count), weights, lambda j: f"initial.kappa[{j}]")


def _octahedron(grid, spec, **_):
    kappa = np.full(6, float(spec.kappa))
    _require_kappa(kappa)
    vertices = np.concatenate([np.eye(3), -np.eye(3)])
    return _vmf_sum(grid, vertices, kappa, np.full(6, 1 / 6), lambda j: "initial.kappa")


def _harmonic(grid, spec, **_):
    degree, order = spec.degree, spec.order
    if not 0 <= degree < grid.nlat:
        raise CaseError(f"initial.degree: {degree} is not allowed; must be from 0 to grid.nlat - 1 = {grid.nlat - 1}")
    if abs(order) > degree:
        raise CaseError(f"initial.order: {order} is not allowed; must be from -{degree} to {degree}, the degree")
    y = real_harmonic(degree, order, grid.colatitude[:, None], grid.longitude)
    lowest = np.min(np.sign(spec.amplitude) * y)
    if abs(spec.amplitude) * lowest < -1 - 1e-8:  # the largest amplitude, as printed below, is allowed
        raise CaseError(
            f"initial.amplitude: {spec.amplitude:g} makes the density negative; for this harmonic and sign the largest "
            f"absolute value is {-1 / lowest:.9g}"
        )
    return np.maximum(1 + spec.amplitude * y, 0.0) / (4 * np.pi)


def _tokens(grid, spec, read_tokens, **_):
    positions, weights = read_tokens(spec.file)
    positions, weights = check_tokens(positions, weights, spec.file, getattr(spec, "normalize", False))
    kappa = np.full(len(positions), float(spec.kappa))
    _require_kappa(kappa)
    return _vmf_sum(grid, positions, kappa, weights, lambda j: f"initial.kappa (token {j} of {spec.file})")


def _from_netcdf(grid, spec, read_density, **_):
    density, nlat = read_density(spec.file, spec.time)
    if density.shape != grid.shape:
        raise CaseError(
            f"{spec.file}: the density has shape {density.shape}, the grid of the case {grid.shape}; "
            f"use grid.nlat = {nlat}"
        )
    if not np.all(np.isfinite(density)):
        raise CaseError(f"{spec.file}: the density is not finite")
    if density.min() < -_NEGATIVE * density.max():
        raise CaseError(f"{spec.file}: the density is negative; its least value is {density.min():g}")
    mass = grid.integrate(density)
    if abs(mass - 1) > _MASS_TOLERANCE:
        raise CaseError(f"{spec.file}: the density has mass {mass:.6g} instead of 1")
    return np.maximum(density, 0.0)


_KINDS = {
    "uniform": _uniform,
    "vmf-mixture": _vmf_mixture,
    "octahedron": _octahedron,
    "vertices": _octahedron,
    "harmonic": _harmonic,
    "tokens": _tokens,
    "netcdf": _from_netcdf,
}
