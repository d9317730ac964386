"""postprocess/prefix_shuffle.py: its measures, its table, what it refuses."""

import csv
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from closed_forms import unit
from scipy.special import softmax

from sphereflow.errors import CaseError
from sphereflow.variational import log_vmf_constant

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
    found = script.synthetic_sensitivities()
    assert list(found) == ["low", "moderate", "high"]
    assert 3 * found["low"] < found["moderate"] and 3 * found["moderate"] < found["high"]


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
