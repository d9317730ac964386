"""How far runs are apart: the library's account, and postprocess/stability.py and the experiments that use it."""

import csv
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import sphereflow
from sphereflow.case import load_case
from sphereflow.compare import separation
from sphereflow.compare.separation import _weight_size
from sphereflow.errors import CaseError
from sphereflow.heads import WeightPath
from sphereflow.stability import growth_rate

ROOT = Path(__file__).parents[1]
HEADS = {"matrices": [[[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, -0.5]]]}


def script(path):
    spec = importlib.util.spec_from_file_location(f"script_{Path(path).parent.name}_{Path(path).stem}", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(file, positions=None, nlat=12, t_end=0.4, initial=None, solver=None, **tables):
    """Run tokens at given positions, or a density."""
    if positions is None:
        state = {"kind": "vmf-mixture", "centers": [[1, 1, 0.5]], "kappa": 3.0} | (initial or {})
        numerics = {"t_end": t_end, "dt": 0.02} | (solver or {})
    else:
        np.savez(file.with_suffix(".npz"), positions=positions)
        state = {"kind": "tokens", "file": str(file.with_suffix(".npz"))}
        numerics = {"kind": "particles", "t_end": t_end, "dt": 0.05} | (solver or {})
    case = {"grid": {"nlat": nlat}, "heads": HEADS, "initial": state, "solver": numerics, "output": {"every": t_end / 4}}
    sphereflow.run(case | tables, file).close()
    return file


def tokens(n=30, seed=1):
    x = np.random.default_rng(seed).standard_normal((n, 3))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Files of runs by name."""
    folder = tmp_path_factory.mktemp("runs")
    x, turn = tokens(), Rotation.from_rotvec([0, 0, 0.05])
    strong = {"matrices": (1.1 * np.array(HEADS["matrices"])).tolist()}
    return {
        "tokens": write_run(folder / "tokens.nc", x),
        "turned": write_run(folder / "turned.nc", turn.apply(x)),
        "turned_more": write_run(folder / "turned_more.nc", Rotation.from_rotvec([0, 0, 0.1]).apply(x)),
        "other_weights": write_run(folder / "other_weights.nc", x, heads=strong),
        "density": write_run(folder / "density.nc"),
        "density_other": write_run(folder / "density_other.nc", heads=strong),
        "density_fine": write_run(folder / "density_fine.nc", nlat=20),
    }


def test_tokens_turned_about_an_axis(runs):
    found = separation(runs["tokens"], runs["turned"])
    x = tokens()
    # A turn by an angle moves a token at distance s from the axis by 2 arcsin(s sin(angle/2)); the plan is optimal, the angle
    # being small against the tokens' distances.
    moved = 2 * np.arcsin(np.hypot(x[:, 0], x[:, 1]) * np.sin(0.025))
    assert found.wasserstein_2[0] == pytest.approx(np.sqrt(np.mean(moved**2)), rel=1e-9)
    assert found.input_size == found.wasserstein_2[0] and found.weight_size == 0
    assert not found.bound_2.any() and np.isnan(found.l1).all()
    constant = float(growth_rate(np.array(HEADS["matrices"]), np.ones(1)))
    assert found.exponent == pytest.approx(constant * found.t, rel=1e-12)
    assert found.ceiling == pytest.approx(np.minimum(np.pi, found.wasserstein_2[0] * np.exp(constant * found.t)), rel=1e-9)
    rate = np.log(found.wasserstein_2[1:] / found.wasserstein_2[0]) / found.t[1:]
    assert found.observed_rate[1:] == pytest.approx(rate) and np.isnan(found.observed_rate[0])
    # No pair of runs this near parts faster than the linearised flow, beyond the perturbation's finite size.
    assert np.all(found.observed_rate[1:] <= found.linear_rate.max() + 0.02)
    assert found.linear_rate.max() < constant


def test_energies_with_the_weights_of_the_first_run(runs):
    found = separation(runs["tokens"], runs["other_weights"])
    assert not found.wasserstein_2[0] and found.bound_2[0] == 0 and found.fixed_energy_difference[0] == 0
    a, x = np.array(HEADS["matrices"][0]), tokens()
    energy = [0.5 * np.mean(np.exp(scale * x @ a @ x.T)) for scale in (1.0, 1.1)]
    assert found.energy_difference[0] == pytest.approx(energy[1] - energy[0], rel=1e-9)
    assert found.weight_difference == pytest.approx(np.full(5, 0.1 * np.linalg.norm(a)))
    assert found.weight_size == pytest.approx(0.1 * np.linalg.norm(a))
    assert 0 < found.wasserstein_2[-1] <= found.ceiling[-1] and found.ceiling[0] == 0
    # Of unchanged tokens both energies fall, and the stronger weights push them further from where they were.
    assert np.all(found.fixed_energy_difference[1:] < 0)


def test_size_of_weights_that_relax_between_records(tmp_path, runs):
    quick = {"schedule": "ornstein-uhlenbeck", "matrices": [(2 * np.eye(3)).tolist()], "rate": 50.0}
    quick |= {"noise_var": 0.0, "step": 1e-3}
    frozen = write_run(tmp_path / "frozen.nc", tokens(), heads={"matrices": [np.eye(3).tolist()]})
    found = separation(frozen, write_run(tmp_path / "quick.nc", tokens(), heads=quick))
    exact = np.sqrt(3) * -np.expm1(-50 * 0.4) / 50 / 0.4  # |A - 1|_F = sqrt(3) e^(-50 t), and a record every 0.1
    assert found.weight_size == pytest.approx(exact, rel=1e-3)


def side(time, sizes, interpolation, rate=None):
    """What `_weight_size` needs of a side whose weights are multiples of one matrix of norm 1."""
    one = np.zeros((1, 3, 3))
    one[0, 0, 1] = 1.0
    matrices = [None if m is None else np.multiply.outer(np.array(m, float), one) for m in (sizes, rate)]
    return SimpleNamespace(path=WeightPath(np.array(time, float), matrices[0], np.ones(1), None, matrices[1], interpolation))


@pytest.mark.parametrize("records", [[0.0, 3.0], [0.0, 1.0, 2.0, 3.0], np.linspace(0, 3, 8)])
def test_size_of_weights_that_jump_or_bend(records):
    records = np.array(records)
    zero = side([0, 3], [0, 0], "linear")
    layers, more = side([0, 1, 2.5, 3], [1, 5, 2, 7], "step"), side([0, 0.5, 3], [4, 1, 9], "step")  # the last is no layer
    assert _weight_size(layers, zero, records) == pytest.approx((1 + 1.5 * 5 + 0.5 * 2) / 3, rel=1e-14)
    assert _weight_size(layers, more, records) == pytest.approx((0.5 * 3 + 0 + 1.5 * 4 + 0.5 * 1) / 3, rel=1e-14)
    sloping = side([0, 1, 3], [7, 3, 4], "linear")
    assert _weight_size(sloping, zero, records) == pytest.approx((5 + 2 * 3.5) / 3, rel=1e-14)
    assert _weight_size(layers, sloping, records) == pytest.approx((4 + 1.5 * 1.625 + 0.5 * 1.875) / 3, rel=1e-14)
    bent = side([0, 3], [1, 2], "hermite", [4, -1])  # its integral is that of the cubic: h (a + b)/2 + h^2 (a' - b')/12
    assert _weight_size(bent, zero, records) == pytest.approx((4.5 + 9 * 5 / 12) / 3, rel=1e-13)
    assert _weight_size(layers, zero, records[-1:]) == 2


def test_densities_on_one_grid_and_on_two(runs):
    same = separation(runs["density"], runs["density_other"])
    assert same.l1[0] == 0 and np.all(np.diff(same.l1) > 0) and same.l1[-1] < 0.1
    other = separation(runs["density"], runs["density_fine"])
    assert np.isnan(other.l1).all() and np.all(other.bound_2 > 0)
    assert np.all(other.wasserstein_2 <= other.bound_2)
    mixed = separation(runs["tokens"], runs["density"])
    assert np.all(mixed.wasserstein_2 + mixed.bound_2 > 0.1) and np.isfinite(mixed.fixed_energy_difference).all()


def test_models_without_a_bound_say_why(tmp_path, runs):
    up = write_run(tmp_path / "up.nc", tokens(), model={"direction": "ascend"})
    flow = write_run(tmp_path / "flow.nc", tokens(), model={"velocity": "unnormalized"})
    one = write_run(tmp_path / "one.nc", tokens(), model={"velocity": "gradient-flow"})
    for file, reason in ((up, "direction"), (flow, "unnormalized")):
        found = separation(runs["tokens"], file)
        assert np.isnan(found.ceiling).all() and reason in found.notes[0]
    assert np.isfinite(separation(runs["tokens"], one).ceiling).all()  # one symmetric head: the same as attention
    pair = write_run(tmp_path / "pair.nc", tokens(), heads={"matrices": HEADS["matrices"] * 2})
    found = separation(runs["tokens"], pair)
    assert np.isnan(found.ceiling).all() and "different heads" in found.notes[0] and np.isfinite(found.exponent).all()


def test_runs_that_cannot_be_compared(tmp_path, runs):
    with pytest.raises(CaseError, match="times: 0"):
        separation(runs["tokens"], runs["turned"], 0)
    bare = write_run(tmp_path / "bare.nc", output={"every": 0.1, "fields": []})
    with pytest.raises(CaseError, match="no common time with densities or tokens"):
        separation(runs["tokens"], bare)


def test_script_writes_tables_and_pictures(tmp_path, runs, capsys):
    names = ("tokens", "turned", "turned_more")
    out = tmp_path / "new" / "pair"
    assert script("postprocess/stability.py").main([*(str(runs[name]) for name in names), "-o", str(out)]) == 0
    for end in (".png", ".pdf"):
        assert out.with_name(out.name + end).stat().st_size > 10_000
    with open(f"{out}.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10 and {row["run"] for row in rows} == {"turned", "turned_more"}
    found = separation(runs["tokens"], runs["turned"])
    assert [float(row["wasserstein_2"]) for row in rows[:5]] == pytest.approx(found.wasserstein_2, rel=1e-9)
    with open(f"{out}_sizes.csv", encoding="utf-8") as file:
        sizes = list(csv.DictReader(file))
    assert float(sizes[2]["wasserstein_2"]) == pytest.approx(1.0, abs=0.05)
    shown = capsys.readouterr().out
    assert "wasserstein_2 1.0" in shown.partition("fitted orders: ")[2] and f"{out}.png" in shown


def test_script_takes_densities_pairs_and_manifests(tmp_path, runs, capsys):
    main = script("postprocess/stability.py").main
    order = ("density", "density_other", "tokens", "density_fine")
    arguments = ["--pairs", "--times", "2", "--at", "end", "-o", str(tmp_path / "pairs")]
    assert main([*(str(runs[name]) for name in order), *arguments]) == 0
    assert "coarsening can have changed" in capsys.readouterr().out
    entries = [{"member": k, "status": s, "file": str(runs[name])} for k, (name, s) in enumerate(
        [("tokens", "complete"), ("density", "failed"), ("other_weights", "complete")])]  # fmt: skip
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps({"format": "sphereflow ensemble 1", "runs": entries}), encoding="utf-8")
    assert main([str(manifest), "--times", "2", "-o", str(tmp_path / "ensemble")]) == 0
    assert "tokens, other_weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["one.nc"], "two runs or more"), (["a.nc", "b.nc", "c.nc", "--pairs"], "3 runs are no pairs"),
     (["missing.nc", "also.nc"], "missing.nc")],
)  # fmt: skip
def test_script_refuses(tmp_path, monkeypatch, capsys, arguments, reason):
    monkeypatch.chdir(tmp_path)
    assert script("postprocess/stability.py").main(arguments) in (2, 4)
    assert reason in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_script_explains_itself(capsys):
    with pytest.raises(SystemExit) as end:
        script("postprocess/stability.py").main(["--help"])
    assert end.value.code == 0 and "Groenwall" in capsys.readouterr().out


def test_fitted_order_is_the_slope():
    fitted_order = script("postprocess/stability.py").fitted_order
    size = np.array([0.4, 0.1, 0.2, 0.0, np.nan])
    assert fitted_order(size, 3 * size**2) == pytest.approx(2)
    assert fitted_order(size, size + 100 * size**4, 2) < fitted_order(size, size + 100 * size**4)
    assert np.isnan(fitted_order(size, np.zeros(5)))
    near = np.array([0.3, 0.31, 0.33])  # an order of such sizes would be noise
    assert np.isnan(fitted_order(near, near))


@pytest.mark.parametrize("path", sorted((ROOT / "cases/paper").glob("*_stability/*.toml")), ids=lambda p: p.stem)
def test_cases_of_the_experiments_say_what_they_are(path):
    case = load_case(path)
    assert case.title and case.output.file == f"{path.stem}.nc" and path.read_text(encoding="utf-8").startswith("#")


@pytest.mark.slow
def test_input_experiment(tmp_path, monkeypatch):
    module = script("cases/paper/input_stability/run.py")
    monkeypatch.setattr(module, "NUMBERS", (10, 20))
    settings = ["solver.count=24", "solver.t_end=0.4", "solver.dt=0.1", "output.every=0.2"]
    options = [word for setting in settings for word in ("--set", setting)]
    monkeypatch.setattr("sys.argv", ["run.py", "uniform_attention", "--folder", str(tmp_path), *options])
    module.main()
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = {row["perturbation"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["rotated_0.01", "rotated_0.1", "rotated_0.5", "noised_0.01", "noised_0.1", "10_tokens", "20_tokens"]
    for row in rows.values():
        assert float(row["C"]) == pytest.approx(2)  # A = 0, V = I
    # That flow commutes with rotations: turned tokens stay turned, the distance is that of one measure from itself.
    assert float(rows["rotated_0.01"]["W2(0)"]) == pytest.approx(0.01 * np.sqrt(2 / 3), rel=0.2)
    assert {p.name for p in tmp_path.glob("*.png")} == {"uniform_attention_perturbed.png", "uniform_attention_resampled.png"}


def test_noise_moves_tokens_by_its_size():
    noised = script("cases/paper/input_stability/run.py").noised
    x = tokens(4000)
    y = noised(x, 0.1, np.random.default_rng(2))
    assert np.linalg.norm(y, axis=1) == pytest.approx(np.ones(4000), abs=1e-14)
    angle = np.arccos(np.clip(np.sum(x * y, axis=1), -1, 1))
    assert np.sqrt(np.mean(angle**2)) == pytest.approx(0.1 * np.sqrt(2), rel=0.03)


@pytest.mark.slow
def test_weight_experiments(tmp_path, monkeypatch):
    module = script("cases/paper/weight_stability/run.py")
    monkeypatch.setattr(module, "SIZES", (0.1, 0.05))
    monkeypatch.setattr(module, "STRONG", (20.0, 40.0))
    monkeypatch.setattr(module, "SEEDS", range(2))
    settings = ["grid.nlat=10", "initial.kappa=2", "solver.t_end=0.4", "output.every=0.2", "solver.dt=0.1"]
    options = [word for setting in settings for word in ("--set", setting)]
    monkeypatch.setattr("sys.argv", ["run.py", "generic", "balanced", "noisy", "--folder", str(tmp_path), *options])
    module.main()
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = {row["experiment"]: row for row in csv.DictReader(file)}
    assert float(rows["generic"]["wasserstein_2"]) == pytest.approx(1, abs=0.1)
    assert float(rows["balanced"]["wasserstein_2"]) == pytest.approx(2, abs=0.1)
    assert float(rows["balanced"]["energy_difference"]) == pytest.approx(2, abs=0.1)
    assert rows["generic"]["l1"] == "nan" and (tmp_path / "noisy_sizes.csv").exists()
