"""The standard transport tests on one grid: errors, extrema and mass drift after one period.

    python benchmarks/transport.py [nlat]
"""

import sys
from pathlib import Path

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from builders import (  # noqa: E402
    cosine_bell,
    cosine_bells,
    deformation,
    gaussian_hills,
    l2_error,
    slotted_cylinders,
    solid_rotation,
    transported,
)

from sphereflow.grid import GaussGrid  # noqa: E402

ROWS = [
    ("cosine bell, rotation 0", cosine_bell, lambda g: solid_rotation(g, 0.0)),
    ("cosine bell, rotation 45", cosine_bell, lambda g: solid_rotation(g, np.pi / 4)),
    ("cosine bell, rotation 90", cosine_bell, lambda g: solid_rotation(g, np.pi / 2)),
    ("Gaussian hills, divergent", gaussian_hills, lambda g: deformation(g, True)),
    ("Gaussian hills, non-divergent", gaussian_hills, lambda g: deformation(g, False)),
    ("cosine bells, non-divergent", cosine_bells, lambda g: deformation(g, False)),
    ("slotted cylinders, non-divergent", slotted_cylinders, lambda g: deformation(g, False)),
]


def main():
    """Print the table."""
    numba.set_num_threads(1)
    grid = GaussGrid(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
    print(f"{grid.nlat} x {grid.nlon}                         l1        l2        min       max       mass drift")
    for name, data, flow in ROWS:
        q, start, lowest = transported(grid, data(grid), flow(grid))
        l1 = grid.integrate(np.abs(q - start)) / grid.integrate(start)
        drift = grid.integrate(q - start) / grid.integrate(start)
        print(f"{name:34s}  {l1:.4f}    {l2_error(grid, q, start):.4f}    {lowest:.1e}   {q.max():.4f}    {drift:.1e}")


if __name__ == "__main__":
    main()
