"""What is too much: numbers too large to compute with, and runs that no memory of this machine holds.

A slip of the keyboard is told at once and in words, before anything is computed, allocated or written.
"""

import numpy as np

from sphereflow.errors import CaseError

LARGEST_NUMBER = 1e100  # squares and quotients of such numbers are numbers, too


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
