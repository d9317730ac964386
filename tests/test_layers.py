"""Tables of layers: weights constant from one time of the table to the next, and the ledger across their jumps."""

import numpy as np
import pytest
from builders import advance_to

from sphereflow import energy, run
from sphereflow.case import parse_case
from sphereflow.errors import CaseError
from sphereflow.heads import WeightPath
from sphereflow.layers import LayeredDensity, LayeredMovement, LayeredTokens
from sphereflow.runs import build_solver, build_weight_path
from sphereflow.storage import read_weight_path

TIMES = np.array([0.0, 0.1, 0.25])
LOGITS, VALUES = np.random.default_rng(2).normal(size=(2, 3, 2, 3, 3))


@pytest.fixture
def case_of(tmp_path):
    def make(arrays=None, solver=None, t_end=0.4, **heads):
        arrays = {"t": TIMES, "logits": LOGITS, "values": VALUES} if arrays is None else arrays
        np.savez(tmp_path / "table.npz", **arrays)
        table = {"schedule": "table", "file": str(tmp_path / "table.npz"), "interpolation": "step"}
        return parse_case({
            "grid": {"nlat": 16}, "heads": {**table, **heads}, "initial": {"kind": "octahedron", "kappa": 4.0},
            "solver": {"t_end": t_end, **(solver or {})},
        })  # fmt: skip

    return make


def test_layers_hold_from_their_time_to_the_next_and_the_last_to_the_end(case_of):
    path = build_weight_path(case_of(scale=2.0))
    np.testing.assert_array_equal(path.time, [0, 0.1, 0.25, 0.4])
    np.testing.assert_array_equal(path.breakpoints, [0.1, 0.25])
    for t, layer in ((0.0, 0), (0.0999, 0), (0.1, 1), (0.2, 1), (0.25, 2), (0.3, 2), (0.4, 2)):
        np.testing.assert_array_equal(path.logits_at(t), 2 * LOGITS[layer])
        np.testing.assert_array_equal(path.values_at(t), VALUES[layer])
        assert not path.rate_at(t).any()
    np.testing.assert_array_equal(path.logits_at(0.1, 0), 2 * LOGITS[0])  # as the layer that ends there sees it
    jump = np.linalg.norm(np.diff(2 * LOGITS, axis=0), axis=(-2, -1)).mean(axis=1)
    assert [path.variation(t) for t in (0.05, 0.1, 0.3)] == pytest.approx([0, jump[0], jump.sum()])


def test_a_table_may_start_before_the_run_and_have_a_single_layer(case_of):
    path = build_weight_path(case_of({"t": TIMES - 0.15, "logits": LOGITS}))
    np.testing.assert_allclose(path.time, [0, 0.1, 0.4])
    np.testing.assert_array_equal(path.logits, LOGITS[[1, 2, 2]])
    path = build_weight_path(case_of({"t": [0.0], "logits": LOGITS[:1]}))
    np.testing.assert_array_equal(path.time, [0, 0.4])
    path = build_weight_path(case_of({"t": [0.0, 1.0], "logits": LOGITS[:2]}))
    np.testing.assert_array_equal(path.time, [0, 1])


@pytest.mark.parametrize(("solver", "kind"), [({}, LayeredDensity), ({"kind": "particles", "count": 50}, LayeredTokens)])
def test_the_ledger_closes_across_jumps(case_of, solver, kind):
    run = build_solver(case_of(solver=solver))
    assert isinstance(run, kind)
    snapshot = advance_to(run, 0.4).snapshot()
    assert abs(snapshot.ledger.weight_work) > 1e-3
    assert abs(snapshot.ledger.residual(snapshot.energy)) < (3e-6 if kind is LayeredDensity else 1e-9)


SYMMETRIC = np.random.default_rng(3).normal(size=(2, 1, 3, 3))
SYMMETRIC = 0.3 * (SYMMETRIC + SYMMETRIC.swapaxes(-1, -2))


def test_minimising_movements_act_under_the_layer_they_lie_in(case_of):
    """Steps of the length of a layer: the first under layer 0 alone, the second from there under layer 1."""
    movement = {"kind": "minimizing-movement", "tau": 0.1}
    layers = build_solver(case_of({"t": [0.0, 0.15], "logits": SYMMETRIC}, movement, t_end=0.3))
    assert isinstance(layers, LayeredMovement)
    frozen = [
        build_solver(case_of({"t": [0.0], "logits": SYMMETRIC[[k]]}, movement, t_end=0.3), state=None) for k in (0, 1)
    ]
    advance_to(frozen[0], 0.15)
    advance_to(layers, 0.15)
    assert layers.step == 2
    np.testing.assert_array_equal(layers.density, frozen[0].density)
    frozen[1].density = frozen[0].density
    frozen[1].t = 0.15
    np.testing.assert_allclose(advance_to(layers, 0.3).density, advance_to(frozen[1], 0.3).density, rtol=1e-12)
    snapshot = layers.snapshot()
    assert abs(snapshot.ledger.weight_work) > 1e-3
    jump = frozen[1].fields.operator(frozen[0].density, frozen[1]._heads_at(0.2))
    before = frozen[0].fields
    assert snapshot.ledger.weight_work == pytest.approx(energy.energy(jump) - energy.energy(before), rel=1e-6)
    assert abs(snapshot.ledger.residual(snapshot.energy)) < 0.2 * abs(snapshot.ledger.dissipation_integral)


def test_metric_speed_of_one_symmetric_head_is_the_dissipation_across_jumps(case_of):
    """`attention` with one symmetric head is the gradient flow, layer by layer: int G^2 = -s int P, to the grid's error."""
    found = []
    for dt in (0.02, 0.01):
        case = case_of({"t": [0.0, 0.2], "logits": SYMMETRIC}, {"dt": dt})
        ledger = advance_to(build_solver(case), 0.4).ledger
        found.append(ledger.metric_speed_integral / ledger.dissipation_integral - 1)
    assert abs(found[1] - found[0]) < 1e-4  # of the jump of G^2, half a step would be booked under the wrong layer: 1e-2
    assert abs(found[1]) < 0.02


def test_equal_layers_are_frozen_heads(case_of):
    same = {"t": TIMES, "logits": LOGITS[[0, 0, 0]]}
    one = advance_to(build_solver(case_of(same, {"kind": "particles", "count": 50})), 0.4)
    frozen = case_of(same, {"kind": "particles", "count": 50}, interpolation="linear", t_end=0.25)
    other = advance_to(build_solver(frozen), 0.25)
    other.path = WeightPath(np.array([0, 0.4]), LOGITS[[0, 0]], other.path.head_weight)
    np.testing.assert_allclose(one.positions, advance_to(other, 0.4).positions, atol=1e-9)
    assert one.ledger.weight_work == pytest.approx(0, abs=1e-14)


def test_the_path_comes_back_from_the_output_file(case_of, tmp_path):
    case = case_of(solver={"kind": "particles", "count": 20})
    run(case, tmp_path / "layers.nc").close()
    before, after = build_weight_path(case), read_weight_path(tmp_path / "layers.nc")
    assert after.interpolation == "step"
    for name in ("time", "logits", "values"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"t": [0.0, 0.3, 0.2], "logits": LOGITS}, r"array 't' must increase strictly; t\[1\] = 0.3, t\[2\] = 0.2"),
        ({"t": [0.1, 0.2, 0.3], "logits": LOGITS}, "the table starts at t = 0.1, after the start of the run"),
        ({"t": TIMES, "logits": LOGITS[:2]}, r"array 'logits' has shape \(2, 2, 3, 3\); expected \(3, any, 3, 3\)"),
        ({"t": TIMES, "logits": LOGITS, "values": VALUES[:, :1]},
         r"'values' has shape \(3, 1, 3, 3\); expected \(3, 2, 3, 3\)"),
    ],
)  # fmt: skip
def test_bad_tables_are_refused(case_of, arrays, message):
    with pytest.raises(CaseError, match=message):
        build_weight_path(case_of(arrays))


def test_unknown_interpolation_is_refused(case_of):
    with pytest.raises(CaseError, match='heads.interpolation: "stp" is not allowed; .* did you mean step'):
        case_of(interpolation="stp")
    with pytest.raises(ValueError, match="unknown interpolation"):
        WeightPath(np.array([0.0, 1.0]), LOGITS[:2], np.full(2, 0.5), interpolation="nearest")
