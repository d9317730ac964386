"""The table of docs/comparing.md: does G^2 or P balance the energy? Tokens under frozen heads, H = 1, 2, 10.

    python postprocess/energy_identity.py

Runs cases/energy_identity.toml with explicit Euler steps of three lengths and prints the residual of the energy
identity over the integral of G^2, in percent, once with G^2 and once with P. A second table does the same from the
initial tokens and matrices of the public results in tests/data. About a minute.
"""

from pathlib import Path

import numpy as np

from sphereflow.case import load_case, parse_case
from sphereflow.particles import ParticleSolver
from sphereflow.runs import build_solver

ROOT = Path(__file__).parents[1]
CASE = ROOT / "cases/energy_identity.toml"
PUBLIC = ROOT / "tests/data/public_particles"
STEPS = (5e-3, 2.5e-3, 1.25e-3)


def residuals(case, positions=None):
    """Residuals of the energy identity with G^2 and with P, percent of the integral of G^2."""
    solver = build_solver(case)
    if positions is not None:
        weights = np.full(len(positions), 1 / len(positions))
        solver = ParticleSolver(solver.operator, solver.path, positions, weights, solver.scheme, solver.max_dt)
    while solver.t < case.solver.t_end:
        solver.advance(case.solver.t_end)
    books = solver.ledger
    change = solver.energy - books.initial_energy
    integrals = np.array([books.metric_speed_integral, books.dissipation_integral])
    return 100 * (change + integrals) / books.metric_speed_integral


def own_case(heads, dt):
    """The case with a number of heads and a step of explicit Euler."""
    return load_case(CASE, [f"heads.count={heads}", "solver.scheme=euler", f"solver.dt={dt}"])


def public_case(heads, dt):
    """The same with the matrices of a public result; also its tokens."""
    with np.load(PUBLIC / f"s2_oscillating_H{heads}.npz") as result:
        case = own_case(heads, dt).model_dump(exclude_none=True, by_alias=True)
        case["heads"] = {"schedule": "frozen", "matrices": result["D0"].tolist()}
        return parse_case(case), result["x_first"]


def print_table(title, rows):
    """A Markdown table."""
    print(f"{title}\n\n| H | with | {' | '.join(f'dt = {dt:g}' for dt in STEPS)} |\n|---|---|{'---|' * len(STEPS)}")
    for heads, found in rows:
        for name, values in zip(("G²", "P"), np.transpose(found), strict=True):
            print(f"| {heads} | {name} | " + " | ".join(f"{value:+.2f} %" for value in values) + " |")
    print()


def main():
    """Run everything and print."""
    rows = [(heads, [residuals(own_case(heads, dt)) for dt in STEPS]) for heads in (1, 2, 10)]
    print_table("Random matrices and tokens of the case", rows)
    rows = [(heads, [residuals(*public_case(heads, dt)) for dt in STEPS]) for heads in (1, 10)]
    print_table("Matrices and tokens of the public results", rows)


if __name__ == "__main__":
    main()
