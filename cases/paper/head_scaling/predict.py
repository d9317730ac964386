"""What ou.toml should give for many heads, from linear response about the uniform density.

    python cases/paper/head_scaling/predict.py [--paths N] [--seed SEED]

Around the uniform density one head with matrix A has m = sinh r / r with r = |A x|, log m = log(sinh r / r), and its force
f = log m - mean varies over the sphere. Heads are independent, so the mean force of H of them has 1/H of one head's variance.
The density answers: with delta rho it adds k delta rho to the potential, k the eigenvalue at degree l of the mean kernel
E[exp(x.A y)/m(x)], and moves as

    d(delta rho)/dt = - l (l + 1)/(4 pi) (f + k delta rho)

so that it screens what is slower than the rate lambda = l (l + 1) k/(4 pi). S^2 and P follow from the same delta rho through
xi = m - mean + K delta rho, K the eigenvalue of E[exp(x.A y)]. With b = 1/E[1/m] the limits of many heads are

    H G^2 = b E|grad(f + k delta rho)|^2,   H S^2 = E|grad(xi)|^2/b,   H P = E[grad(f + k delta rho).grad(xi)]

and the rows "without the answer" set delta rho = 0. All expectations are taken over sampled weights in the stationary state.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.special import eval_legendre, roots_legendre

from sphereflow.case import load_case
from sphereflow.runs import build_weight_path

CASE = Path(__file__).with_name("ou.toml")
DEGREES = (2, 4, 6, 8)  # log m is even; higher degrees carry nothing that shows
NODES = 32


def weights(paths, seed, t_end=40.0, step=0.05):
    """Matrices of independent stationary heads, (K, H, 3, 3), and their step; the first 10 times are left out."""
    case = load_case(CASE, [f"heads.count={paths}", f"heads.seed={seed}", f"heads.step={step}", f"solver.t_end={t_end}"])
    path = build_weight_path(case)
    return path.logits[int(10 / step) :], step


def mobility(r):
    """sinh r / r."""
    return np.sinh(r) / np.where(r > 0, r, 1.0)


def coefficients(matrices):
    """Legendre coefficients about the z axis of log m and m, each (degree, K, H): int F(x) P_l(z) dx / (4 pi).

    The law of the weights is the same in all directions, so that the other orders have the same statistics.
    """
    z, weight = roots_legendre(NODES)
    azimuth = np.pi * (np.arange(NODES) + 0.5) / NODES  # half a turn: the fields are even
    ring = np.sqrt(1 - z**2)[:, None]
    x = np.stack(np.broadcast_arrays(ring * np.cos(azimuth), ring * np.sin(azimuth), z[:, None]), axis=-1)
    legendre = np.array([eval_legendre(degree, z) for degree in DEGREES]) * weight / 2
    forces, masses = [], []
    for some in matrices:  # one time after another: all at once would not fit
        m = mobility(np.linalg.norm(np.einsum("hij,abj->habi", some, x), axis=-1))
        forces.append(legendre @ np.log(m).mean(axis=-1).T)
        masses.append(legendre @ m.mean(axis=-1).T)
    return np.moveaxis(forces, 0, 1), np.moveaxis(masses, 0, 1)


def eigenvalues(matrices):
    """Eigenvalues (degree,) of E[exp(x.A y)/m(x)] and E[exp(x.A y)], and b = 1/E[1/m]; x is the z axis.

    The mean over y at a fixed angle to x is taken exactly: exp(x.A y) = exp(p z + q ring cos) averages to I0(q ring).
    """
    z, weight = roots_legendre(NODES)
    row = matrices[..., 2, :].reshape(-1, 3)  # A x
    r, across = np.linalg.norm(row, axis=-1), np.hypot(row[:, 0], row[:, 1])
    kernel = np.exp(np.outer(row[:, 2], z)) * np.i0(np.outer(across, np.sqrt(1 - z**2)))
    legendre = 2 * np.pi * weight * np.array([eval_legendre(degree, z) for degree in DEGREES])
    m = mobility(r)
    return legendre @ np.mean(kernel / m[:, None], axis=0), legendre @ kernel.mean(axis=0), 1 / np.mean(1 / m)


def answer(force, k, degree, step):
    """delta rho of one degree that follows a force (K, H); exponential steps with the force linear between its times."""
    rate = degree * (degree + 1) / (4 * np.pi)
    decay = np.exp(-rate * k * step)
    # the integral of exp(-rate k (step - s)) against 1 - s/step and s/step
    total = (1 - decay) / k
    late = (1 - (1 - decay) / (rate * k * step)) / k
    density = np.zeros_like(force)
    for n in range(len(force) - 1):
        density[n + 1] = decay * density[n] - (total - late) * force[n] - late * force[n + 1]
    return density


def predict(paths=200, seed=0):
    """H G^2, H S^2, H P with and without the density's answer, and their standard errors, as {name: (with, error, without)}."""
    matrices, step = weights(paths, seed)
    force, mass = coefficients(matrices)
    eigen, kernel, b = eigenvalues(matrices[::10])
    sums = {name: np.zeros((2, paths)) for name in ("G2", "S2", "P")}
    settled = slice(len(force[0]) // 3, None)
    for index, degree in enumerate(DEGREES):
        density = answer(force[index], eigen[index], degree, step)
        # 2 l + 1 orders, each with |grad|^2 = l (l + 1) and the norm of P_l; the mean is over the sphere
        size = degree * (degree + 1) * (2 * degree + 1) ** 2
        for case, reply in enumerate((density, 0.0)):
            phi = (force[index] + eigen[index] * reply)[settled]
            xi = (mass[index] + kernel[index] * reply)[settled]
            for name, product in (("G2", b * phi**2), ("S2", xi**2 / b), ("P", phi * xi)):
                sums[name][case] += size * product.mean(axis=0)
    return {
        name: (found[0].mean(), found[0].std(ddof=1) / np.sqrt(paths), found[1].mean()) for name, found in sums.items()
    }, {degree: degree * (degree + 1) * k / (4 * np.pi) for degree, k in zip(DEGREES, eigen, strict=True)}


def main(arguments=None):
    """Print the prediction."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paths", type=int, default=200, help="number of sampled heads (200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (0)")
    options = parser.parse_args(arguments)
    limits, rates = predict(options.paths, options.seed)
    print("rates at which the density answers, by degree: " + ", ".join(f"{d}: {rate:.3f}" for d, rate in rates.items()))
    print(f"{'':8}{'many heads':>20}{'without the answer':>22}")
    for name, (value, error, bare) in limits.items():
        print(f"{'H ' + name:8}{value:>12.3f} +- {error:.3f}{bare:>20.3f}")


if __name__ == "__main__":
    main()
