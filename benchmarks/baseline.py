"""The baseline: a CSV file of figures (name, better, value), and the comparison of new ones with it.

The one that is kept has the worst values of three runs on the machine of docs/performance.md.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import Figure

ALLOWED = 1.25  # a figure may be so many times worse
FILE = Path(__file__).with_name("baseline.csv")


def write(path: Path, figures: Iterable[Figure]) -> None:
    """Write figures as a file that can be a baseline; those that do not repeat well enough are left out."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "better", "value"])
        rows.writerows([f.name, f.better, f"{f.value:.4g}"] for f in figures if f.steady)


def read(path: Path) -> dict[str, tuple[str, float]]:
    """Which way is better, and the value, by the name of the figure.

    Raises
    ------
    ValueError
        If the file is not such a table.
    """
    with open(path, newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != ["name", "better", "value"]:
            raise ValueError(f"{path}: its first line must be name,better,value")
        return {row["name"]: (row["better"], float(row["value"])) for row in rows}


def worsening(figure: Figure, before: float) -> float:
    """How many times worse a figure is than before; below 1 if it is better."""
    return before / figure.value if figure.better == "larger" else figure.value / before


def compare(figures: Iterable[Figure], known: dict[str, tuple[str, float]]) -> tuple[list[str], int]:
    """Sentences about the figures that are worse than `ALLOWED` times the baseline, and the number of those compared."""
    complaints, compared = [], 0
    for figure in figures:
        if figure.name not in known or not figure.steady:
            continue
        compared += 1
        factor = worsening(figure, known[figure.name][1])
        if not factor <= ALLOWED:
            complaints.append(
                f"{figure.name}: {figure.value:.4g} is {factor:.2f} times worse than the baseline {known[figure.name][1]:.4g}"
            )
    return complaints, compared
