"""Spherical-harmonic transforms on a Gauss grid: one protocol, two libraries behind it.

Conventions, for both libraries and everywhere in sphereflow:

* orthonormal harmonics with the Condon-Shortley phase, int Y_lm conj(Y_l'm') = delta delta;
  Y_10 = sqrt(3/4pi) cos(theta), Y_11 = -sqrt(3/8pi) sin(theta) exp(i phi);
* coefficients of a real field are complex, stored for m >= 0 only, m-major: (m=0: l=0..L), (m=1: l=1..L), ...;
  the coefficient at (l, m) has index m (2L + 1 - m) / 2 + l;
* a_lm = int f conj(Y_lm), f = sum_l a_l0 Y_l0 + 2 Re sum_{m>0} a_lm Y_lm;
* gradients are (d/dtheta, 1/sin(theta) d/dphi): components along south and east.
"""

from sphereflow.harmonics.base import HarmonicTransform, available_backends, get_transform
from sphereflow.harmonics.coefficients import (
    PRODUCT_PAIRS,
    change_degree,
    coefficient_index,
    coordinate_moments,
    degree_power,
    degrees_and_orders,
    inner_product,
    pair_moments,
    times_coordinates,
)
from sphereflow.harmonics.ducc0_backend import point_coefficients

__all__ = [
    "PRODUCT_PAIRS",
    "HarmonicTransform",
    "available_backends",
    "change_degree",
    "coefficient_index",
    "coordinate_moments",
    "degree_power",
    "degrees_and_orders",
    "get_transform",
    "inner_product",
    "pair_moments",
    "point_coefficients",
    "times_coordinates",
]
