"""What is too much: numbers too large to compute with, and runs that no memory of this machine holds.

A slip of the keyboard is told at once and in words, before anything is computed, allocated or written.
"""

import os
from decimal import Decimal

import numpy as np

from sphereflow.errors import CaseError

LARGEST_NUMBER = 1e100  # squares and quotients of such numbers are numbers, too

# Numbers of 8 bytes that a run holds at least. Measured (peak of numpy's arrays): 30 to 37 per node of a grid, 7 more per inner
# step, 25 to 37 per token and 14 to 29 per head and token handled at a time, in three dimensions.
PER_NODE = 20
PER_INNER_STEP = 6
TOKENS_AT_A_TIME = 2**13


def require_computable(name: str, array: np.ndarray, remedy: str) -> None:
    """Refuse an array with entries that are not finite or beyond `LARGEST_NUMBER`, where products would overflow.

    Parameters
    ----------
    name : str
        What it is, for the message.
    array : ndarray
    remedy : str
        What can be done, for the message.

    Raises
    ------
    CaseError
    """
    largest = np.abs(array).max(initial=0.0)
    if not largest <= LARGEST_NUMBER:
        found = f"an entry is {largest:.3g} in size" if np.isfinite(largest) else "an entry overflows"
        raise CaseError(f"{name}: {found}; must be at most {LARGEST_NUMBER:g}: {remedy}")


def memory_needs(case) -> dict[str, tuple[int, int]]:
    """What at least a run needs: bytes, and the value that asks for them, by key of the case.

    Lower bounds, from the case alone: what files hold is not counted.

    Parameters
    ----------
    case : Case
    """
    d, heads, solver = case.model.dimension, case.heads.count or 1, case.solver
    nodes = 2 * case.grid.nlat**2
    tokens = 0
    if solver.kind == "particles":
        tokens = nodes // 2 if solver.quadrature else solver.count or 0  # nodes without mass are left out
    per_token = 6 * d + 8
    numbers = {"heads.count": (heads, 4 * heads * d * d + (3 * d + 2) * heads * min(tokens, TOKENS_AT_A_TIME))}
    if solver.kind != "particles":
        numbers["grid.nlat"] = (case.grid.nlat, PER_NODE * nodes)
    elif solver.quadrature:
        numbers["grid.nlat"] = (case.grid.nlat, per_token * tokens)
    else:
        numbers["solver.count"] = (tokens, per_token * tokens)
    if inner := getattr(solver, "inner_steps", None):
        numbers["solver.inner_steps"] = (inner, PER_INNER_STEP * nodes * inner)
    if degree := getattr(case.initial, "degree", None):
        numbers["initial.degree"] = (degree, 2 * degree**2)  # the harmonic on a grid that has it
    if clusters := getattr(case.initial, "clusters", None):
        numbers["initial.clusters"] = (clusters, 2 * d * clusters)
    return {key: (value, 8 * number) for key, (value, number) in numbers.items()}


def physical_memory() -> int | None:
    """Bytes of memory of this machine, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def require_memory(case) -> None:
    """Refuse a run that this machine cannot hold in its memory.

    Raises
    ------
    CaseError
        Which names the key that needs most.
    """
    needs, available = memory_needs(case), physical_memory()
    needed = sum(size for _, size in needs.values())
    if available is None or needed <= available:
        return
    key, (value, _) = max(needs.items(), key=lambda item: item[1][1])
    found = value if value < 10**15 else f"{Decimal(value):.3g}"
    raise CaseError(
        f"{key}: {found} is too large for this machine: the run needs at least {_gigabytes(needed)} GB of memory, and "
        f"there are {_gigabytes(available)} GB; must be smaller"
    )


def _gigabytes(size: int) -> str:
    return f"{Decimal(size) / 10**9:.3g}"  # as a Decimal, whose range is larger than that of a float
