r"""The cells of a Gauss grid as a graph, with the conductances of its faces.

T_KL = l / (d b) for the face between cells K and L: l its length, d the distance of the nodes (along the ring, or
along the meridian) and b the effective mobility there, the logarithmic mean of the two nodes' values.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sphereflow.faces import two_point_conductance
from sphereflow.grid import GaussGrid


@dataclass(frozen=True)
class CellGraph:
    """Cells, numbered in C order, with up to four neighbours each: west, east, north, south.

    Attributes
    ----------
    grid : GaussGrid
    neighbour : ndarray of int, shape (N, 4)
    area : ndarray, shape (N,)
    """

    grid: GaussGrid
    neighbour: np.ndarray
    area: np.ndarray

    def conductance(self, mobility: np.ndarray) -> np.ndarray:
        """T (N, 4) for a mobility (nlat, nlon) at the nodes; 0 across the poles."""
        east, south = two_point_conductance(self.grid, mobility)
        around = [np.roll(east, 1, axis=1), east, south[:-1], south[1:]]
        return np.ascontiguousarray(np.stack([side.ravel() for side in around], axis=-1))


@lru_cache(maxsize=8)
def cell_graph(grid: GaussGrid) -> CellGraph:
    """The graph of a grid, made once. Beyond a pole stands the cell itself, with conductance 0."""
    index = np.arange(grid.nlat * grid.nlon).reshape(grid.shape)
    north, south = np.vstack([index[:1], index[:-1]]), np.vstack([index[1:], index[-1:]])
    around = [np.roll(index, 1, axis=1), np.roll(index, -1, axis=1), north, south]
    neighbour = np.ascontiguousarray(np.stack([side.ravel() for side in around], axis=-1))
    return CellGraph(grid, neighbour, np.repeat(grid.cell_area, grid.nlon))
