"""What tests of the nonlocal operator compare with: closed forms for von Mises-Fisher data, and plain double sums.

Nothing here uses the package beyond the grid's nodes and areas, so that the formulas are written twice.
"""

import numpy as np


def log_i0(r):
    """log of the modified spherical Bessel function sinh(r)/r."""
    r = np.asarray(r, dtype=float)
    large = np.maximum(r, 1e-3)
    return np.where(r < 1e-3, r**2 / 6, large + np.log(-np.expm1(-2 * large) / (2 * large)))


def langevin(r):
    """coth r - 1/r, the derivative of `log_i0`."""
    r = np.asarray(r, dtype=float)
    large = np.maximum(r, 1e-2)
    return np.where(r < 1e-2, r / 3 - r**3 / 45, 1 / np.tanh(large) - 1 / large)


def unit(vector):
    """The vector, or each row of an array, at length 1."""
    vector = np.asarray(vector, dtype=float)
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


def tangent(points, vectors):
    """P_x u: the parts of Cartesian vectors (..., 3) that are tangent to the sphere."""
    return vectors - np.sum(vectors * points, axis=-1, keepdims=True) * points


def vmf(points, mu, kappa):
    """von Mises-Fisher density at points (..., 3)."""
    return kappa / (2 * np.pi * -np.expm1(-2 * kappa)) * np.exp(kappa * (points @ mu - 1))


def vmf_mobility(points, matrix, mu, kappa):
    """log m(x) and the softmax mean (..., 3) for von Mises-Fisher data and any matrix A.

    m(x) = i_0(|z|) / i_0(kappa) with z = A^T x + kappa mu; the mean is z/|z| (coth |z| - 1/|z|).
    """
    z = points @ matrix + kappa * mu
    r = np.linalg.norm(z, axis=-1)
    mean = z * (langevin(r) / np.maximum(r, 1e-300))[..., None]
    return log_i0(r) - log_i0(kappa), mean


def point(colatitude, longitude):
    """Unit vectors, shape (..., 3), broadcast over the angles."""
    s = np.sin(colatitude)
    return np.stack(np.broadcast_arrays(s * np.cos(longitude), s * np.sin(longitude), np.cos(colatitude)), axis=-1)


def south_and_east(colatitude, longitude):
    """Unit tangent vectors to the south and to the east, each (..., 3)."""
    c, s = np.cos(colatitude), np.sin(colatitude)
    south = np.broadcast_arrays(c * np.cos(longitude), c * np.sin(longitude), -s)
    east = np.broadcast_arrays(-np.sin(longitude) + 0 * c, np.cos(longitude), 0.0)
    return np.stack(south, axis=-1), np.stack(east, axis=-1)


def face_points(grid):
    """Midpoints of the faces to the east (nlat, nlon, 3) and to the north (nlat + 1, nlon, 3), each with its normal."""
    half = grid.longitude + grid.dlon / 2
    theta, face = grid.colatitude[:, None], grid.colatitude_face[:, None]
    east = point(theta, half), south_and_east(theta, half)[1]
    return east, (point(face, grid.longitude), south_and_east(face, grid.longitude)[0])


def normal_components(grid, vector):
    """What face velocities should be: a vector field, given as a function of points, dotted with the faces' normals."""
    (east_at, east), (south_at, south) = face_points(grid)
    to_south = np.sum(vector(south_at) * south, axis=-1)
    to_south[[0, -1]] = 0.0
    return np.sum(vector(east_at) * east, axis=-1), to_south


def means_with_node_values(grid, values, node_values):
    """Cell means that `node_values(grid, means)` turns into the given values, by fixed-point iteration."""
    means = values.copy()
    for _ in range(60):
        means += values - node_values(grid, means)
    return means


class DoubleSums:
    """The model by plain sums over the nodes of a grid: fields at other points, and the energy's rates at the nodes.

    Parameters
    ----------
    grid : GaussGrid
    density : ndarray, shape (nlat, nlon)
        Node values.
    matrices, weight : ndarray, shape (H, 3, 3) and (H,)
    direction : int
    """

    def __init__(self, grid, density, matrices, weight, direction):
        self.y = grid.points.reshape(-1, 3)
        self.mass = (density * grid.cell_area[:, None]).ravel()
        self.matrices, self.weight, self.direction = matrices, weight, direction

    def mobility(self, x, matrix):
        """m(x) and int y exp(x . A y) rho(y) dy."""
        kernel = np.exp(x.reshape(-1, 3) @ matrix @ self.y.T) * self.mass
        return kernel.sum(axis=1).reshape(x.shape[:-1]), (kernel @ self.y).reshape(x.shape)

    def potential(self, x):
        """Phi and its surface gradient."""
        value, gradient = 0.0, 0.0
        for w, a in zip(self.weight, self.matrices, strict=True):
            m, moment = self.mobility(x, a)
            value = value + w * np.log(m)
            gradient = gradient + w * moment @ a.T / m[..., None]
        return value, tangent(x, gradient)

    def effective_mobility(self, x):
        """b, the weighted harmonic mean."""
        return 1 / sum(w / self.mobility(x, a)[0] for w, a in zip(self.weight, self.matrices, strict=True))

    def variation(self, x):
        """xi and its surface gradient."""
        value, gradient = 0.0, 0.0
        for w, a in zip(self.weight, self.matrices, strict=True):
            for b in (a, a.T):
                m, moment = self.mobility(x, b)
                value = value + 0.5 * w * m
                gradient = gradient + 0.5 * w * moment @ b.T
        return value, tangent(x, gradient)

    def attention(self, x, values):
        """P_x sum_h w_h V_h (softmax mean of head h)."""
        total = 0.0
        for w, a, v in zip(self.weight, self.matrices, values, strict=True):
            m, moment = self.mobility(x, a)
            total = total + w * moment @ v.T / m[..., None]
        return tangent(x, total)

    def velocity(self, x, model):
        """The velocity of a model (general values aside)."""
        if model == "attention":
            return self.direction * self.potential(x)[1]
        gradient = self.direction * self.variation(x)[1]
        return gradient if model == "unnormalized" else gradient / self.effective_mobility(x)[..., None]

    def energy(self):
        """1/2 sum_h w_h sum_ij exp(x_i . A_h x_j) p_i p_j."""
        return 0.5 * sum(
            w * self.mass @ np.exp(self.y @ a @ self.y.T) @ self.mass for w, a in zip(self.weight, self.matrices, strict=True)
        )

    def rates(self, model):
        """P, G^2, S^2 and the defect of a model, each by its own formula."""
        slope, b, v = self.variation(self.y)[1], self.effective_mobility(self.y), self.velocity(self.y, model)
        flow = self.direction * slope / b[:, None]
        return (
            -self.mass @ np.sum(slope * v, axis=1),
            self.mass @ (b * np.sum(v**2, axis=1)),
            self.mass @ (np.sum(slope**2, axis=1) / b),
            0.5 * self.mass @ (b * np.sum((v - flow) ** 2, axis=1)),
        )
