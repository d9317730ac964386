"""What equally spaced phases leave of G^2: the harmonics of one head's velocity on a density at rest.

    python cases/paper/oscillating_weights/predict.py [--set KEY=VALUE]

Once its initial matrix is forgotten every head runs through the same closed loop of matrices D(tau), head h at
tau = t + 2 pi h/H. On a density at rest its velocity is a periodic field v(x, tau) = sum_k v_k(x) exp(i k tau), and the mean
over the heads keeps the orders k = 0, +-H, +-2H, ... only, since the others' phases add up to zero. At rest v_0 = 0, so that

    G^2 = sum over k = H, 2H, ... of 2 int b |v_k|^2 rho

The forcing has the orders 1 and 2 alone: what is left for more heads comes from the exponential and the logarithm. The density
is that of ten heads at the end of oscillating.toml. It is taken for at rest, which it is not for one or two heads: the slow
orders move it, and it screens them. The energy of that density, the mean of int m rho / 2, has the same orders: its amplitude
at k = H is printed too.
"""

import argparse
from pathlib import Path

import numpy as np

from sphereflow.case import load_case
from sphereflow.heads.schedules import oscillating_forcing
from sphereflow.runs import build_solver

CASE = Path(__file__).with_name("oscillating.toml")
PHASES = 40
ORDERS = 12
HEADS = (1, 2, 3, 4, 5, 10)


def density_at_rest(overrides=()):
    """Points (n, 3) of the grid and the mass (n,) at each, of ten heads at the end of the case."""
    solver = build_solver(load_case(CASE, ["heads.count=10", *overrides]))
    while solver.t < solver.path.time[-1]:
        solver.advance(solver.path.time[-1])
    grid, fields = solver.operator.grid, solver.fields
    return grid.points.reshape(-1, 3), (fields.mass_density * grid.cell_area[:, None]).ravel()


def loop(points, mass):
    """Velocities (PHASES, n, 3) and mobilities (PHASES, n) of one head along its loop of matrices, by sums over the points."""
    velocity, mobility = [], []
    for matrix in oscillating_forcing(2 * np.pi * np.arange(PHASES) / PHASES, np.zeros(1), relaxed=True)[:, 0]:
        kernel = np.exp(points @ matrix @ points.T) * mass
        mobility.append(kernel.sum(axis=1))
        pull = (kernel @ points) @ matrix.T / mobility[-1][:, None]
        velocity.append(points * np.sum(pull * points, axis=1)[:, None] - pull)
    return np.array(velocity), np.array(mobility)


def harmonics(velocity, mobility, mass):
    """2 int b |v_k|^2 rho for k = 1 ... ORDERS, and int b |v_0|^2 rho in front; b is that of many heads."""
    b = 1 / np.mean(1 / mobility, axis=0)
    orders = np.fft.rfft(velocity, axis=0)[: ORDERS + 1] / PHASES
    power = np.sum(np.abs(orders) ** 2, axis=2) @ (b * mass)
    return np.where(np.arange(ORDERS + 1) > 0, 2, 1) * power


def energy_amplitudes(mass, mobility):
    """Amplitudes of the orders k = 0 ... ORDERS of the energy int m rho / 2 of one head on a density, k = 0 being its mean."""
    orders = np.abs(np.fft.rfft(mobility @ mass / 2))[: ORDERS + 1] / PHASES
    return np.where(np.arange(ORDERS + 1) > 0, 2, 1) * orders


def main(arguments=None):
    """Print the harmonics and the G^2 that they make for some numbers of heads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="change the case")
    options = parser.parse_args(arguments)
    points, mass = density_at_rest(options.overrides)
    velocity, mobility = loop(points, mass)
    power, energy = harmonics(velocity, mobility, mass), energy_amplitudes(mass, mobility)
    print("order k and its share of G^2 for one head:")
    print("  ".join(f"{k}: {value:.1e}" for k, value in enumerate(power)))
    print("G^2 and E of equally spaced heads, without what the density answers:")
    for heads in HEADS:
        print(f"H = {heads:2d}: {power[heads::heads].sum():.2e}    amplitude of E at order H: {energy[heads]:.2e}")


if __name__ == "__main__":
    main()
