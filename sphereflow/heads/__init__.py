"""Head schedules and the sampled weight path.

A run's weights (the logit matrices A_h and, if they are general, the value matrices V_h) are sampled once, on their own
time grid and from their own seed, before the density is touched. Every solver evaluates the same `WeightPath`, so that
runs on different grids, or with tokens instead of a density, see the same weights.

`path` holds the path and its interpolation, `schedules` the laws that sample it.
"""

from sphereflow.heads.path import WeightPath
from sphereflow.heads.schedules import (
    Harmonic,
    head_generator,
    initial_logits,
    oscillating_forcing,
    oscillating_harmonics,
    sample_weight_path,
)

__all__ = [
    "Harmonic",
    "WeightPath",
    "head_generator",
    "initial_logits",
    "oscillating_forcing",
    "oscillating_harmonics",
    "sample_weight_path",
]
