"""postprocess/prefix_shuffle.py: its measures, its table, what it refuses."""

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from closed_forms import unit
from scipy.special import softmax

from sphereflow.errors import CaseError
from sphereflow.variational import log_vmf_constant, resultant_length

SOURCE = Path(__file__).parents[1] / "postprocess/prefix_shuffle.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("prefix_shuffle", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small(script, **more):
    return script.synthetic(3.0, layers=3, count=10, d=4, **more)


def test_measures_of_a_token_given_those_before_it(script):
    model = small(script)
    x, logits, kappa = model["states"][0], model["logits"][0], 3.0
    surprisal, divergence, resultant = script.measure(model["states"], model)[:, 0, 6]
    context = x[:6]
    assert surprisal == pytest.approx(-np.log(np.mean(np.exp(kappa * context @ x[6] + log_vmf_constant(kappa, 4)))))
    q, p = softmax(x[6] @ logits @ context.T, axis=-1), softmax(kappa * context @ x[6])
    assert divergence == pytest.approx(np.mean(np.sum(q * np.log(q / p), axis=1)), abs=1e-12)
    assert resultant == pytest.approx(np.mean(np.linalg.norm(q @ context, axis=1)))


def test_three_regimes_of_the_synthetic_example_are_three_degrees_of_sensitivity(script):
    """Low, moderate and high concentration: low, moderate and high sensitivity, in every layer, and sharper attention."""
    tables = script.synthetic_tables(12, "content", 10)
    assert list(tables) == ["low", "moderate", "high"]
    low, moderate, high = map(script.mean_sensitivity, tables.values())
    assert 3 * low < moderate and 3 * moderate < high
    for name in ("sensitivity", "resultant_before", "kappa_before", "posterior_divergence_before"):
        means = [np.mean([row[name] for row in rows]) for rows in tables.values()]
        assert means[0] < means[1] < means[2], name
    for layers in zip(*tables.values(), strict=True):
        assert layers[0]["sensitivity"] < layers[1]["sensitivity"] < layers[2]["sensitivity"]


def test_sensitivity_is_the_mean_change_of_the_surprisal_behind_the_prefix(script):
    model = small(script)
    row = script.table(model, 4, "content", draws=1, seed=5)[1]
    after = script.shuffled(model["states"][0], 4, "content", np.random.default_rng(5))
    before, after = (script.measure(script.propagate(x, model), model)[:, 1, 4:] for x in (model["states"][0], after))
    assert row["sensitivity"] == pytest.approx(np.mean(np.abs(after[0] - before[0])), rel=1e-12) and row["sensitivity"] > 0.01
    for name, one, other in zip(script.COLUMNS, before, after, strict=True):
        assert row[f"{name}_before"] == pytest.approx(one.mean()) and row[f"{name}_after"] == pytest.approx(other.mean())
    assert resultant_length(row["kappa_after"], 4) == pytest.approx(row["resultant_after"])


@pytest.mark.parametrize("mode", ["content", "order"])
def test_shuffled_tokens_are_the_same_numbers_in_the_prefix_alone(script, mode):
    tokens = script.synthetic(3.0, layers=1, count=10, d=4)["states"][0]
    found = script.shuffled(tokens, 6, mode, np.random.default_rng(1))
    np.testing.assert_array_equal(found[6:], tokens[6:])
    assert np.abs(found[:6] - tokens[:6]).max() > 0.1
    rows = [np.sort(x[:6], axis=1) if mode == "content" else x[np.lexsort(x[:6].T)] for x in (found, tokens)]
    np.testing.assert_array_equal(*rows)  # of each token its coordinates, or the tokens


def test_table_and_figure_are_written_once(script, tmp_path, capsys):
    table, figure = tmp_path / "table.csv", tmp_path / "picture.svg"
    command = ["--draws", "1", "-o", str(table), "--figure", str(figure)]
    assert script.main(command) == 0
    printed = capsys.readouterr()
    assert not printed.out and printed.err.startswith("mean sensitivity by concentration: low 0.0")
    with open(table, encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["regime"] for row in rows[::6]] == ["low", "moderate", "high"] and len(rows) == 18
    drawn = script.draw(script.synthetic_tables(12, "content", 1), "title")
    curves = [line.get_ydata() for line in drawn.axes[3].lines]
    np.testing.assert_allclose(curves, np.reshape([float(row["sensitivity"]) for row in rows], (3, 6)), rtol=1e-5)
    for name in (table, figure):
        before = name.read_bytes()
        assert script.main(["--draws", "1", "-o" if name is table else "--figure", str(name)]) == 4
        assert "--force" in capsys.readouterr().err and name.read_bytes() == before
    assert script.main([*command, "--force"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "table.csv.bak", "picture.svg", "picture.svg.bak"}
    assert script.main(["--figure", str(tmp_path / "picture.bmp")]) == 2 and ".bmp" in capsys.readouterr().err
    for name, value, least in (("draws", 0, 1), ("seed", -1, 0)):
        assert script.main([f"--{name}", str(value)]) == 2
        assert f"{name}: {value} is not allowed; must be >= {least}" in capsys.readouterr().err


def test_order_alone_is_not_seen_in_the_first_layer(script):
    rows = script.table(small(script), 5, "order", draws=3)
    assert rows[0]["sensitivity"] < 1e-14 and rows[1]["sensitivity"] > 1e-4
    assert script.table(small(script), 5, "content", draws=3)[0]["sensitivity"] > 1e-2


def test_archive_gives_a_table_with_the_correlation_of_the_loss(script, tmp_path):
    model = small(script)
    surprisal = script.measure(model["states"], model)[0, 1]
    np.savez(tmp_path / "run.npz", loss=np.append(0.0, 3 + 2 * surprisal[1:]), **model)
    assert script.main([str(tmp_path / "run.npz"), "--prefix", "4", "--draws", "2", "-o", str(tmp_path / "table.csv")]) == 0
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == ["0", "1", "2"]
    assert float(rows[1]["loss_correlation"]) == pytest.approx(1)
    assert abs(float(rows[0]["loss_correlation"])) < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.ones((3, 2, 5, 5))}, r"'logits' has shape \(3, 2, 5, 5\); expected \(3, any, 4, 4\)"),
        ({"values": np.ones((3, 1, 4, 4))}, r"'values' has shape \(3, 1, 4, 4\); expected \(3, 2, 4, 4\)"),
        ({"kappa": np.float64(-1)}, "expected numbers >= 0"),
        ({"kappa": np.ones(3)}, r"'kappa' has shape \(3,\)"),
        ({"loss": np.ones(4)}, r"'loss' has shape \(4,\); expected \(10,\)"),
        ({"states": 2 * unit(np.ones((3, 10, 4)))}, "must hold unit vectors"),
        ({"states": np.full((3, 10, 4), np.nan)}, "'states' has non-finite entries"),
    ],
)
def test_bad_archives_are_refused(script, tmp_path, change, message, capsys):
    np.savez(tmp_path / "bad.npz", **(small(script) | change))
    with pytest.raises(CaseError, match=message):
        script.load(tmp_path / "bad.npz")
    assert script.main([str(tmp_path / "bad.npz")]) == 2
    assert "bad.npz" in capsys.readouterr().err


def test_prefix_must_leave_tokens_behind_it(script):
    with pytest.raises(CaseError, match="prefix: 10 is not allowed; must be from 1 to 9"):
        script.table(small(script), 10)
