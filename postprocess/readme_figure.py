"""The picture in the README: the density of cases/octahedron_oscillating.toml at four times, and its energy ledger.

    python postprocess/readme_figure.py [octahedron_oscillating.nc]

Without the name of a finished run the case is run first, into a temporary folder. No map library is needed: Mollweide
is one of matplotlib's own projections. It takes longitudes from -180 to 180 degrees and edges of cells, not centres.
"""

import argparse
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import sphereflow

ROOT = Path(__file__).parents[1]
CASE = ROOT / "cases/octahedron_oscillating.toml"
PICTURE = ROOT / "docs/images/octahedron_oscillating.png"
TIMES = (0.0, 1.0, 3.0, 20.0)
UNIFORM = 1 / (4 * np.pi)


def map_columns(run):
    """Edges of the columns of a map from -180 to 180 degrees, and which longitude each column shows.

    The cell about 180 degrees is cut in two by the rim of the map and appears at both ends.
    """
    lon = run.lon.values
    east = run.lon_bnds.values[:, 1]
    middle = int(np.argmin(np.abs(lon - 180)))
    column = np.r_[middle : lon.size, 0 : middle + 1]
    edges = np.r_[-180, east[middle:] - 360, east[:middle], 180]
    return np.radians(edges), column


def draw_density(axes, run, time, norm):
    """One map of the density relative to the uniform one."""
    edges, column = map_columns(run)
    latitude = np.radians(np.append(run.lat_bnds.values[:, 0], run.lat_bnds.values[-1, 1]))
    density = run.density.sel(t=time, method="nearest").values[:, column] / UNIFORM
    drawn = axes.pcolormesh(
        edges, latitude, np.maximum(density, norm.vmin), norm=norm, cmap="magma", shading="flat", rasterized=True
    )
    axes.set_xticks(np.radians([-90, 0, 90]), [])
    axes.set_yticks(np.radians([-45, 0, 45]), [])
    axes.grid(color="white", alpha=0.25, linewidth=0.5)
    axes.set_title(f"t = {time:g}", fontsize=11, pad=4)
    return drawn


def draw_ledger(axes, run):
    """The energy, what changed it, and what is left unexplained."""
    axes.plot(run.t, run.energy - run.energy[0], color="black", linewidth=2, label=r"change of energy $E(t) - E(0)$")
    axes.plot(run.t, run.weight_work, color="tab:blue", label="work of the weights $W$")
    axes.plot(run.t, -run.dissipation_integral, color="tab:red", label=r"minus the dissipated $\int P\,dt$")
    size = float(np.abs(run.edi_residual).max())
    axes.plot(run.t, run.edi_residual, color="tab:green", label=f"residual, at most {size:.0e}")
    axes.set(xlim=(0, float(run.t[-1])), xlabel="flow time t", ylabel="energy")
    axes.legend(loc="lower right", ncols=2, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def draw(run, picture):
    """Draw the whole picture into a file."""
    figure = plt.figure(figsize=(11, 4.6), layout="constrained")
    grid = figure.add_gridspec(2, len(TIMES), height_ratios=[1, 1.25])
    norm = LogNorm(0.02, 20)
    maps = [figure.add_subplot(grid[0, k], projection="mollweide") for k in range(len(TIMES))]
    for axes, time in zip(maps, TIMES, strict=True):
        drawn = draw_density(axes, run, time, norm)
    bar = figure.colorbar(drawn, ax=maps, shrink=0.75, aspect=12, pad=0.01, extend="min")
    bar.set_label("density /\nuniform density")
    draw_ledger(figure.add_subplot(grid[1, :]), run)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def main():
    """Run the case if need be, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", help="finished run of the case (.nc)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="the picture to make (.png)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = options.run is None
        run = sphereflow.run(CASE, Path(folder, "run.nc")) if made else sphereflow.open_run(options.run)
        with run:
            draw(run, options.picture)
    print(options.picture)


if __name__ == "__main__":
    main()
