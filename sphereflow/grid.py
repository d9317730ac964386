"""The Gauss grid: nodes, finite-volume faces, areas and tangent frames.

Latitudes are Gauss-Legendre nodes ordered north to south; longitudes are equally spaced from 0 degrees east. The faces
between rings lie at

    z_{i+1/2} = 1 - sum_{k<=i} w_k        (w: Gauss weights, z = cos(colatitude)),

so that the area of a cell is exactly w_i * dlon: the finite-volume mass of a field and its Gauss quadrature, hence its
degree-0 spherical-harmonic coefficient, are the same number. Each node lies strictly inside its cell.
"""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import ducc0
import numpy as np

from sphereflow.errors import CaseError


def gauss_nodes(nlat: int) -> tuple[np.ndarray, np.ndarray]:
    """Colatitudes and weights of the northern Gauss-Legendre nodes, from the pole southward, shape (ceil(nlat/2),) each.

    By ducc0, to the last digit or two. scipy's weights of the rings next to the poles are off by 1e-12 for 64 latitudes and by
    1e-10 for 256 (numpy's too): noise of one sign at the pole in all coefficients of order 0.
    """
    half = (nlat + 1) // 2
    return ducc0.misc.GL_thetas(nlat)[:half], ducc0.misc.GL_weights(nlat, 1)[:half] / (2 * np.pi)


@dataclass(frozen=True)
class GaussGrid:
    """A Gauss-Legendre latitude-longitude grid on the unit sphere with `nlat` x `2 nlat` cells.

    Parameters
    ----------
    nlat : int
        Number of latitude rings; even and at least 8.

    Attributes
    ----------
    z, weight, colatitude : ndarray, shape (nlat,)
        cos(colatitude) of the nodes from north to south, Gauss weights (sum 2), colatitude in radians.
    z_face, colatitude_face : ndarray, shape (nlat + 1,)
        The same for the faces between rings; the first and last are the poles.
    longitude : ndarray, shape (nlon,)
        Longitudes of the nodes in radians; faces lie half a spacing to their west and east.
    cell_area : ndarray, shape (nlat,)
        Area of one cell of each ring; `nlon * cell_area.sum() == 4 pi`.

    Raises
    ------
    CaseError
        If `nlat` is odd or smaller than 8.
    """

    nlat: int
    z: np.ndarray = field(init=False, repr=False, compare=False)
    weight: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.nlat < 8 or self.nlat % 2:
            raise CaseError(f"grid.nlat: {self.nlat} is not allowed; must be even and at least 8")
        theta, weight = gauss_nodes(self.nlat)
        z = np.cos(theta)
        object.__setattr__(self, "z", np.concatenate([z, -z[::-1]]))
        object.__setattr__(self, "weight", np.concatenate([weight, weight[::-1]]))

    @property
    def nlon(self) -> int:
        """Number of longitudes, 2 nlat."""
        return 2 * self.nlat

    @property
    def shape(self) -> tuple[int, int]:
        """(nlat, nlon), the shape of a scalar field."""
        return self.nlat, self.nlon

    @property
    def dlon(self) -> float:
        """Spacing in longitude, radians."""
        return 2 * np.pi / self.nlon

    @cached_property
    def colatitude(self) -> np.ndarray:
        """Colatitude of the nodes, radians."""
        theta, _ = gauss_nodes(self.nlat)
        return np.concatenate([theta, np.pi - theta[::-1]])

    @cached_property
    def longitude(self) -> np.ndarray:
        """Longitude of the nodes, radians, from 0."""
        return self.dlon * np.arange(self.nlon)

    @cached_property
    def z_face(self) -> np.ndarray:
        """cos(colatitude) of the faces between rings, poles included.

        Summed from both poles to the equator so that the two hemispheres mirror each other exactly.
        """
        north = 1.0 - np.cumsum(self.weight[: self.nlat // 2 - 1])
        return np.concatenate([[1.0], north, [0.0], -north[::-1], [-1.0]])

    @cached_property
    def colatitude_face(self) -> np.ndarray:
        """Colatitude of the faces between rings, radians."""
        return np.arccos(self.z_face)

    @cached_property
    def cell_area(self) -> np.ndarray:
        """Area of one cell of each ring."""
        return self.weight * self.dlon

    @cached_property
    def points(self) -> np.ndarray:
        """Unit vectors of the nodes, shape (nlat, nlon, 3)."""
        s = np.sin(self.colatitude)[:, None]
        lon = self.longitude[None, :]
        return np.stack(np.broadcast_arrays(s * np.cos(lon), s * np.sin(lon), self.z[:, None]), axis=-1)

    @cached_property
    def e_theta(self) -> np.ndarray:
        """Unit tangent vectors to the south at the nodes, shape (nlat, nlon, 3)."""
        z, s = self.z[:, None], np.sin(self.colatitude)[:, None]
        lon = self.longitude[None, :]
        return np.stack(np.broadcast_arrays(z * np.cos(lon), z * np.sin(lon), -s), axis=-1)

    @cached_property
    def e_phi(self) -> np.ndarray:
        """Unit tangent vectors to the east at the nodes, shape (nlat, nlon, 3)."""
        lon = np.broadcast_to(self.longitude, self.shape)
        return np.stack([-np.sin(lon), np.cos(lon), np.zeros(self.shape)], axis=-1)

    def integrate(self, values: np.ndarray):
        """Integral over the sphere, sum of values times cell areas over the last two axes."""
        return np.sum(values, axis=-1) @ self.cell_area


@lru_cache(maxsize=32)
def gauss_grid(nlat: int) -> GaussGrid:
    """A shared grid; its tables are computed once."""
    return GaussGrid(nlat)
