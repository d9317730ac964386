"""What the scripts of this folder share: runs and ensembles by name, quantities of runs, and files with pictures and tables."""

import csv
import sys
import tomllib
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from sphereflow.errors import CaseError, OutputError, SphereflowError
from sphereflow.plotting import save_figure
from sphereflow.plotting.style import BLACK, BLUE, GREEN, ORANGE, PINK, RED, SKY
from sphereflow.storage import open_run

COLOURS = (BLUE, RED, GREEN, ORANGE, PINK, SKY, BLACK)
SEEDS = ("heads.seed", "solver.seed")
SYMBOLS = {
    "energy": "$E$",
    "dissipation": "$P$",
    "metric_speed_squared": "$G^2$",
    "metric_slope_squared": "$S^2$",
    "gradient_flow_defect": "defect",
    "dissipation_integral": r"$\int P\,dt$",
    "metric_speed_integral": r"$\int G^2\,dt$",
    "weight_work": "$W$",
    "weight_variation": r"$\int\sum w_h|\dot A_h|\,dt$",
}


def run_files(paths) -> list[Path]:
    """Output files that are meant by names of runs (.nc) and of ensembles (the folder or its manifest.json).

    Of an ensemble only the complete runs are taken; a line on standard error says how many others there are.

    Raises
    ------
    OutputError
        If a manifest cannot be read or none of its runs is complete.
    """
    files = []
    for path in map(Path, paths):
        if path.suffix != ".json" and not path.is_dir():
            files.append(path)
            continue
        from sphereflow.ensemble.manifest import Manifest

        manifest = Manifest.load(path)
        complete = [manifest.file_of(run) for run in manifest.runs if run["status"] == "complete"]
        if not complete:
            raise OutputError(f"{manifest.path}: none of the {len(manifest.runs)} runs is complete")
        if len(complete) < len(manifest.runs):
            print(f"{manifest.path}: {len(complete)} of {len(manifest.runs)} runs are complete", file=sys.stderr)
        files += complete
    return files


@contextmanager
def opened(paths):
    """The runs that are meant by `paths` (see `run_files`), as a list of open datasets."""
    with ExitStack() as stack:
        yield [stack.enter_context(open_run(file)) for file in run_files(paths)]


def settings(run) -> dict:
    """The resolved case of a run as a flat dictionary: {"heads.count": 10, ...}; lists are text, files have no folder."""
    flat = {}

    def walk(prefix, table):
        for key, value in table.items():
            if isinstance(value, dict):
                walk(f"{prefix}{key}.", value)
            else:
                value = str(value) if isinstance(value, list) else value
                flat[prefix + key] = Path(value).name if key == "file" else value

    walk("", tomllib.loads(run.attrs["sphereflow_case"]))
    if "heads.count" not in flat and "head" in run.sizes:
        flat["heads.count"] = run.sizes["head"]  # it comes from the file with the matrices
    if "head_weight" in run and np.ptp(run["head_weight"].values) == 0:
        flat.pop("heads.weights", None)  # equal weights follow from the number of heads
    return flat


def varied(runs) -> list[str]:
    """Keys in which the cases of some runs differ; names of files for output, titles and seeds do not count."""
    tables = [settings(run) for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table)
    skip = {"title", "output.file", *SEEDS}
    return [key for key in keys if key not in skip and len({table.get(key) for table in tables}) > 1]


def groups(runs, keys) -> dict[tuple, list]:
    """Runs by the values of some keys, in the order of the values."""
    found = {}
    for run in runs:
        table = settings(run)
        found.setdefault(tuple(table.get(key) for key in keys), []).append(run)
    return dict(sorted(found.items(), key=lambda item: [(isinstance(v, str), v is None, v) for v in item[0]]))


def series(run, name) -> np.ndarray:
    """A recorded quantity (t,) of a run.

    Raises
    ------
    CaseError
        If the run does not hold it, or it is more than one number at a time.
    """
    where = run.encoding.get("source", "the run")
    if name not in run.variables:
        known = ", ".join(n for n, v in run.data_vars.items() if v.dims == ("t",))
        raise CaseError(f"{where}: holds no {name}; its quantities are {known}")
    if run[name].dims != ("t",):
        raise CaseError(f"{where}: {name} has the dimensions {run[name].dims}; only quantities over t alone can be taken")
    return np.asarray(run[name].values, dtype=float)


def late_mean(run, name, start=None) -> float:
    """Mean over time of a quantity from `start` (None: the middle of the run) to the end, by the trapezoidal rule.

    Raises
    ------
    CaseError
        If fewer than two records are left, or as `series`.
    """
    t = run["t"].values
    start = (t[0] + t[-1]) / 2 if start is None else start
    late = t >= start * (1 - 1e-12)
    if late.sum() < 2:
        raise CaseError(f"{run.encoding.get('source', 'the run')}: has fewer than two records from t = {start:g} on")
    return float(np.trapezoid(series(run, name)[late], t[late]) / np.ptp(t[late]))


def bootstrap(values, statistic, draws=2000, seed=0) -> tuple[float, float, float]:
    """A statistic of independent samples and its 95 % interval by the percentile bootstrap.

    Parameters
    ----------
    values : list of ndarray, each (n_i,)
        Groups of samples; every group is resampled on its own.
    statistic : callable
        Takes the list of groups and returns a number.

    Returns
    -------
    value, low, high : float
    """
    rng = np.random.default_rng(seed)
    found = [statistic([rng.choice(group, len(group)) for group in values]) for _ in range(draws)]
    return (float(statistic(values)), *map(float, np.percentile(found, [2.5, 97.5])))


def save(figure, stem, options) -> list[Path]:
    """Write a figure as STEM.png and STEM.pdf, with the options `force` and `dpi` of `add_files`."""
    return [save_figure(figure, f"{stem}{suffix}", force=options.force, dpi=options.dpi) for suffix in (".png", ".pdf")]


def write_table(rows, path, force=False) -> Path:
    """Write rows, dictionaries with the same keys, as CSV.

    Raises
    ------
    OutputError
        If the file exists and `force` is not given, or it cannot be written.
    """
    from sphereflow.plotting.saving import new_file

    path = Path(path)
    with new_file(path, force) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({key: f"{v:.6g}" if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    return path


def print_table(rows) -> None:
    """Print rows, dictionaries with the same keys, as a Markdown table."""
    names = list(rows[0])
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for row in rows:
        print("| " + " | ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()) + " |")


def add_files(parser, default) -> None:
    """The arguments that all scripts have: what to read and what to write."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run (.nc), or the folder or manifest of an ensemble")
    parser.add_argument("-o", "--output", default=default, metavar="NAME",
                        help=f"writes NAME.png, NAME.pdf and NAME.csv ({default})")  # fmt: skip
    parser.add_argument("--dpi", type=float, default=150, metavar="N", help="pixels per inch of the PNG (150)")
    parser.add_argument("--force", action="store_true", help="keep files that have these names as NAME.bak and write anew")


def script(work, options) -> int:
    """Do the work of a script and return its exit code; errors that a user can cause become one line."""
    try:
        for path in work(options):
            print(path)
    except SphereflowError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0
