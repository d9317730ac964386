r"""The sphere on paper: projections, and the values of a field at the pixels of a picture.

A *face* is one connected picture: an orthographic view has two, the hemisphere in front and the one behind, a map has one. With
the unit vectors out (to the observer), east and north of a view, a point p has the components a = out . p, b = east . p,
c = north . p, and is drawn at

* orthographic      x = b, y = c, where a >= 0;
* mollweide         x = (2 / pi) lon cos t, y = sin t, with 2 t + sin 2 t = pi sin lat (areas are kept);
* equirectangular   x = 2 lon / pi, y = 2 lat / pi,

lon and lat being the angles of (a, b, c). Pixels ask for their point of the sphere (`Face.points`), never the other way round,
so that no pixel is left empty: neither at 180 degrees, where a map ends, nor at 0 degrees, where a field's array begins, nor at
the poles. Pixels beyond the rim get the value of the nearest point of the rim; the artist cuts the rim itself, smoothly.

Fields are interpolated linearly in colatitude and longitude (`interpolation_matrix`), in longitude around the circle. Beyond
the ring of nodes next to a pole the value goes to the mean of that ring, the one value at the pole that does not depend on
where one comes from. Linear interpolation makes no new extremes: what is positive stays positive.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.sparse import coo_array, csr_array

from sphereflow.errors import CaseError
from sphereflow.plotting.choices import check_choice

# Longitude and latitude (degrees) at the centre, unless told: a tilted globe shows a pole and most of the equator.
VIEWS = {"orthographic": (30.0, 25.0), "mollweide": (0.0, 0.0), "equirectangular": (0.0, 0.0)}
PROJECTIONS = tuple(VIEWS)
_MARGIN = 3  # pixels beyond the rim that are filled


def view_frame(longitude: float, latitude: float) -> np.ndarray:
    """Unit vectors of an observer above a point of the sphere.

    Parameters
    ----------
    longitude, latitude : float
        Of the point, degrees.

    Returns
    -------
    ndarray, shape (3, 3)
        Rows out, east, north.
    """
    lon, lat = np.radians([longitude, latitude])
    return np.array(
        [
            [np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)],
            [-np.sin(lon), np.cos(lon), 0.0],
            [-np.sin(lat) * np.cos(lon), -np.sin(lat) * np.sin(lon), np.cos(lat)],
        ]
    )


def unit_vectors(longitude: np.ndarray, latitude: np.ndarray) -> np.ndarray:
    """Points (..., 3) of the unit sphere from longitudes and latitudes in degrees."""
    lon, lat = np.radians(longitude), np.radians(latitude)
    return np.stack(np.broadcast_arrays(np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=-1)


@dataclass(frozen=True)
class Face:
    """One connected picture of a projection.

    Attributes
    ----------
    projection : {"orthographic", "mollweide", "equirectangular"}
    longitude, latitude : float
        At its centre, degrees.
    """

    projection: str
    longitude: float
    latitude: float

    @property
    def frame(self) -> np.ndarray:
        """Unit vectors out, east, north, see `view_frame`."""
        return view_frame(self.longitude, self.latitude)

    @property
    def half_width(self) -> float:
        """Half of the picture's width; its height is 2."""
        return 1.0 if self.projection == "orthographic" else 2.0

    def points(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Points of the sphere, shape (..., 3), at places of the picture; beyond the rim, of the nearest place on it."""
        if self.projection == "orthographic":
            radius = np.maximum(np.hypot(x, y), 1.0)
            b, c = x / radius, y / radius
            local = np.stack([np.sqrt(np.maximum(1.0 - b * b - c * c, 0.0)), b, c], axis=-1)
        elif self.projection == "mollweide":
            t = np.arcsin(np.clip(y, -1.0, 1.0))
            latitude = np.arcsin(np.clip((2 * t + np.sin(2 * t)) / np.pi, -1.0, 1.0))
            rim = np.maximum(2 * np.cos(t), 1e-12)
            local = _from_angles(np.pi * np.clip(x / rim, -1.0, 1.0), latitude)
        else:
            local = _from_angles(np.pi / 2 * np.clip(x, -2.0, 2.0), np.pi / 2 * np.clip(y, -1.0, 1.0))
        return local @ self.frame

    def plane(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places x, y of points of the sphere (..., 3) in the picture; NaN where they are hidden."""
        a, b, c = np.moveaxis(points @ self.frame.T, -1, 0)
        if self.projection == "orthographic":
            hidden = a < 0
            return np.where(hidden, np.nan, b), np.where(hidden, np.nan, c)
        longitude, latitude = np.arctan2(b, a), np.arcsin(np.clip(c, -1.0, 1.0))
        if self.projection == "equirectangular":
            return 2 / np.pi * longitude, 2 / np.pi * latitude
        t = _auxiliary_angle(latitude)
        return 2 / np.pi * longitude * np.cos(t), np.sin(t)

    def pixels(self, height: int) -> tuple[np.ndarray, np.ndarray]:
        """Centres x, y of the pixels of a picture `height` pixels high, both of its shape; row 0 at the bottom."""
        width = round(height * self.half_width)
        x = self.half_width * ((2 * np.arange(width) + 1) / width - 1)
        y = (2 * np.arange(height) + 1) / height - 1
        return tuple(np.meshgrid(x, y))

    def covers(self, x: np.ndarray, y: np.ndarray, margin: float = 0.0) -> np.ndarray:
        """Whether places lie within the rim, or beyond it by at most a margin (in units of the half height)."""
        if self.projection == "equirectangular":
            return np.ones(np.shape(x), bool)
        return np.hypot(x / self.half_width, y) <= 1.0 + margin


def _from_angles(longitude, latitude):
    return unit_vectors(np.degrees(longitude), np.degrees(latitude))


def _auxiliary_angle(latitude):
    """t in 2 t + sin 2 t = pi sin(latitude), by Newton's method in the colatitude's own variable.

    With u = pi / 2 - |t| the equation is 2 u - sin 2 u = pi (1 - sin|latitude|), whose left side is convex and near the pole
    4 u^3 / 3: the root of that is the start, and the iteration cannot leave the interval.
    """
    right = np.pi * (1.0 - np.abs(np.sin(latitude)))
    u = np.minimum(np.cbrt(0.75 * right), np.pi / 2)
    for _ in range(6):
        slope = np.maximum(2.0 - 2.0 * np.cos(2 * u), 1e-30)
        u = np.where(right > 0, u - (2 * u - np.sin(2 * u) - right) / slope, 0.0)
    return np.copysign(np.pi / 2 - u, latitude)


def faces(projection: str = "orthographic", view: tuple[float, float] | None = None) -> tuple[Face, ...]:
    """The faces of a projection.

    Parameters
    ----------
    projection : {"orthographic", "mollweide", "equirectangular"}
        Two hemispheres as seen from far away, or one map of the whole sphere.
    view : (float, float), optional
        Longitude and latitude at the centre, degrees.

    Raises
    ------
    CaseError
        If the projection is unknown or the view is no point of the sphere.
    """
    check_choice("projection", projection, PROJECTIONS)
    longitude, latitude = VIEWS[projection] if view is None else view
    if not (np.isfinite(longitude) and abs(latitude) <= 90):
        raise CaseError(f"view: {longitude:g},{latitude:g} is no longitude and latitude (-90 to 90) in degrees")
    front = Face(projection, longitude, latitude)
    if projection != "orthographic":
        return (front,)
    return front, Face(projection, longitude + 180.0, -latitude)


def interpolation_matrix(latitude: np.ndarray, longitude: np.ndarray, points: np.ndarray) -> csr_array:
    """The matrix that takes a field on a latitude-longitude grid to its values at points of the sphere.

    `matrix @ field.ravel()` are the values; one matrix serves all records of a run. See the module's notes.

    Parameters
    ----------
    latitude : ndarray, shape (nlat,)
        Degrees, from north to south, without the poles.
    longitude : ndarray, shape (nlon,)
        Degrees, increasing, around the whole circle.
    points : ndarray, shape (n, 3)
        Unit vectors.

    Returns
    -------
    scipy.sparse.csr_array, shape (n, nlat * nlon)
    """
    nlat, nlon = len(latitude), len(longitude)
    ring = np.concatenate([[0.0], np.radians(90.0 - np.asarray(latitude, float)), [np.pi]])
    colatitude = np.arctan2(np.hypot(points[:, 0], points[:, 1]), points[:, 2])
    above = np.clip(np.searchsorted(ring, colatitude, side="right") - 1, 0, nlat)
    down = (colatitude - ring[above]) / (ring[above + 1] - ring[above])

    column = np.radians(np.asarray(longitude, float) - longitude[0])
    column = np.append(column, 2 * np.pi)
    angle = (np.arctan2(points[:, 1], points[:, 0]) - np.radians(longitude[0])) % (2 * np.pi)
    west = np.clip(np.searchsorted(column, angle, side="right") - 1, 0, nlon - 1)
    across = (angle - column[west]) / (column[west + 1] - column[west])

    # Values live on nlat rings and, as two more entries at the end, at the poles.
    entry, share = [], []
    for row, part in ((above, 1.0 - down), (above + 1, down)):
        for col, within in ((west, 1.0 - across), ((west + 1) % nlon, across)):
            pole = np.where(row == 0, nlat * nlon, nlat * nlon + 1)
            entry.append(np.where((row > 0) & (row <= nlat), (row - 1) * nlon + col, pole))
            share.append(part * within)
    where = np.tile(np.arange(len(points)), 4)
    corners = coo_array((np.concatenate(share), (where, np.concatenate(entry))), shape=(len(points), nlat * nlon + 2))
    return csr_array(corners.tocsr() @ _with_poles(nlat, nlon))


@lru_cache(maxsize=4)
def _with_poles(nlat, nlon):
    """The matrix that appends the means of the first and the last ring to a field."""
    size = nlat * nlon
    rows = np.concatenate([np.arange(size), np.repeat([size, size + 1], nlon)])
    columns = np.concatenate([np.arange(size), np.arange(nlon), np.arange(size - nlon, size)])
    shares = np.concatenate([np.ones(size), np.full(2 * nlon, 1 / nlon)])
    return coo_array((shares, (rows, columns)), shape=(size + 2, size)).tocsr()


class FaceSampler:
    """Samples fields of one grid at the pixels of one face.

    Parameters
    ----------
    face : Face
    latitude, longitude : ndarray
        Nodes of the grid in degrees, see `interpolation_matrix`.
    height : int
        Height of the picture in pixels.

    Attributes
    ----------
    extent : tuple of float
        Left, right, bottom and top of the picture, as matplotlib's imshow takes it.
    """

    def __init__(self, face: Face, latitude: np.ndarray, longitude: np.ndarray, height: int):
        x, y = face.pixels(height)
        self._filled = face.covers(x, y, margin=2 * _MARGIN / height)
        self._matrix = interpolation_matrix(latitude, longitude, face.points(x[self._filled], y[self._filled]))
        self.extent = (-face.half_width, face.half_width, -1.0, 1.0)

    def __call__(self, field: np.ndarray) -> np.ndarray:
        """The picture of a field (nlat, nlon); row 0 at the bottom, NaN well beyond the rim."""
        picture = np.full(self._filled.shape, np.nan)
        picture[self._filled] = self._matrix @ np.ravel(field)
        return picture
