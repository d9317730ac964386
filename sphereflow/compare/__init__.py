"""Do two runs agree? Densities, tokens and the data of others, compared in numbers, sampling noise included.

=============== ==========================================================================================
``sides``       one side of a comparison, whatever file it comes from, and what its model was
``measures``    distances of two measures on the sphere: spectra, moments, Wasserstein with geodesic cost
``noise``       what random tokens are expected to be off by
``verdict``     the comparison itself: differences beside expected differences, and the judgement
``separation``  how fast two runs part, beside the bound of how fast they can
=============== ==========================================================================================
"""

from sphereflow.compare.separation import Separation, separation
from sphereflow.compare.sides import Side, open_side
from sphereflow.compare.verdict import Comparison, compare

__all__ = ["Comparison", "Separation", "Side", "compare", "open_side", "separation"]
