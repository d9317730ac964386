"""Colour scales of fields on the sphere, shared by all pictures of a page or a film.

Densities are drawn in units of the uniform density 1 / (4 pi): 1 means "as if the tokens were spread evenly".
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LogNorm, Normalize

from sphereflow.errors import CaseError
from sphereflow.plotting.choices import check_choice
from sphereflow.plotting.style import DIVERGING, SEQUENTIAL

SCALES = ("auto", "linear", "log")
UNIFORM = 1 / (4 * np.pi)
DECADES = 1e3  # a logarithmic scale ends at the largest value over this
WIDE = 20.0  # ratio of largest and smallest from which a scale is logarithmic
SMALL = 0.01  # deviation from uniform below which the deviation itself is drawn
_NOTHING = 1e-12  # relative size of differences that are round-off


@dataclass(frozen=True)
class ColourScale:
    """Colours of the values of one quantity.

    Attributes
    ----------
    norm : matplotlib.colors.Normalize
        Fixed limits.
    cmap : str
        Name of a colour map.
    label : str
        Of the colour bar.
    factor, offset : float
        What is drawn is factor * value - offset.
    extend : {"neither", "min", "max", "both"}
        Whether values lie beyond the limits.
    """

    norm: Normalize
    cmap: str
    label: str
    factor: float = 1.0
    offset: float = 0.0
    extend: str = "neither"

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The drawn numbers of some values; on a logarithmic scale those below its end are put there."""
        drawn = self.factor * values - self.offset
        return np.maximum(drawn, self.norm.vmin) if isinstance(self.norm, LogNorm) else drawn


def density_scale(smallest: float, largest: float, kind: str = "auto") -> ColourScale:
    """The scale of densities.

    Parameters
    ----------
    smallest, largest : float
        Extremes of the density over everything that is drawn.
    kind : {"auto", "linear", "log"}
        `auto` is logarithmic over three decades where the largest is more than 20 times the smallest, linear otherwise, and
        shows the deviation from the uniform density where that is below 1 %.

    Raises
    ------
    CaseError
        If the kind is unknown, or logarithmic although no density is positive.
    """
    check_choice("scale", kind, SCALES)
    low, high = smallest / UNIFORM, largest / UNIFORM
    if not np.isfinite([low, high]).all():
        low, high = 0.0, 2.0  # a failed run's last record; what is finite in it is drawn
    if kind == "log" and high <= 0:
        raise CaseError("scale: a logarithmic one needs a positive density; use linear")
    if kind == "log" or (kind == "auto" and high > WIDE * max(low, 0.0) and high > 0):
        floor = max(low, high / DECADES) if low > 0 else high / DECADES
        floor = min(floor, 0.9 * high)
        return ColourScale(
            LogNorm(floor, high), SEQUENTIAL, "density / uniform density", 1 / UNIFORM,
            extend="min" if low < floor * (1 - 1e-9) else "neither",
        )  # fmt: skip
    if kind == "auto" and max(high - 1.0, 1.0 - low) < SMALL:
        norm = Normalize(*_apart(low - 1.0, high - 1.0, 1.0))
        return ColourScale(norm, SEQUENTIAL, "density / uniform density − 1", 1 / UNIFORM, 1.0)
    norm = Normalize(*_apart(low, high, max(abs(low), abs(high))))
    return ColourScale(norm, SEQUENTIAL, "density / uniform density", 1 / UNIFORM)


def field_scale(smallest: float, largest: float, label: str, kind: str = "auto") -> ColourScale:
    """The scale of any other field: about zero where it has both signs, else from the smallest to the largest value.

    Parameters
    ----------
    smallest, largest : float
        Extremes over everything that is drawn.
    label : str
        Of the colour bar.
    kind : {"auto", "linear", "log"}
        `auto` is as for densities.

    Raises
    ------
    CaseError
        If the kind is unknown, or logarithmic although a value is not positive.
    """
    check_choice("scale", kind, SCALES)
    if not np.isfinite([smallest, largest]).all():
        smallest, largest = -1.0, 1.0
    if kind == "log" and smallest <= 0:
        raise CaseError(f"scale: a logarithmic one needs positive values; the smallest of {label} is {smallest:g}")
    if kind == "log" or (kind == "auto" and 0 < smallest < largest / WIDE):
        floor = min(max(smallest, largest / DECADES), 0.9 * largest)
        return ColourScale(LogNorm(floor, largest), "viridis", label, extend="min" if smallest < floor else "neither")
    if smallest < 0 < largest:
        size = max(-smallest, largest)
        return ColourScale(Normalize(-size, size), DIVERGING, label)
    return ColourScale(Normalize(*_apart(smallest, largest, max(abs(smallest), abs(largest)))), "viridis", label)


def _apart(low, high, size):
    """Limits that differ: about a constant, one hundredth (a thousandth of a millionth for tiny deviations) around it."""
    if high - low > _NOTHING * size:
        return low, high
    middle, half = (low + high) / 2, max(0.01 * max(abs(low), abs(high)), 1e-9)
    return middle - half, middle + half
