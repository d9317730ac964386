"""The figure of docs/comparing.md: a density beside a particle result of others, and the verdict of `sphereflow compare`.

    python postprocess/compare_with_particles.py [RUN RESULT] [--picture FILE]

RUN is a density run (.nc) and RESULT its counterpart by particles (.nc, .pt, .npz, .csv). Without them
cases/public_oscillating.toml is run first, into a temporary folder, and compared with the public result in tests/data;
that takes about a minute.
"""

import argparse
import tempfile
from pathlib import Path

import sphereflow
from sphereflow.compare import compare
from sphereflow.plotting import plot_comparison

ROOT = Path(__file__).parents[1]
CASE = ROOT / "cases/public_oscillating.toml"
RESULT = ROOT / "tests/data/public_particles/s2_oscillating_H1.npz"
PICTURE = ROOT / "docs/images/comparing.png"


def main():
    """Run the case if need be, compare, draw, and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="a run and the result to compare it with")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="the picture to make (.png)")
    options = parser.parse_args()
    if len(options.files) not in (0, 2):
        parser.error("give both files, or none")
    with tempfile.TemporaryDirectory() as folder:
        files = options.files
        if not files:
            files = [Path(folder) / "public_oscillating.nc", RESULT]
            sphereflow.run(CASE, files[0]).close()
        result = compare(*files)
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        plot_comparison(result, options.picture)
    print(result.verdict)
    print(options.picture)


if __name__ == "__main__":
    main()
