"""The transformer block against the particle solver, against torch, and against the exponential map."""

import re
from pathlib import Path

import numpy as np
import pytest
from closed_forms import unit
from scipy.spatial.distance import cdist

from sphereflow import TransformerBlock
from sphereflow.drift import Drift, Experts, Perceptron
from sphereflow.errors import CaseError, NumericalError
from sphereflow.heads import WeightPath
from sphereflow.layers import LayeredTokens
from sphereflow.particles import ParticleSolver, TokenOperator

NAN = float("nan")


def random_drift(rng, d, activation="gelu"):
    experts = Experts(rng.normal(size=(4, d)), rng.uniform(0, 2, 4), rng.normal(size=(4, d)), rng.normal(size=4))
    width = 2 * d
    mlp = Perceptron(
        rng.normal(size=(width, d)), rng.normal(size=width), rng.normal(size=(d, width)) / d, rng.normal(size=d), activation
    )
    return Drift(experts, mlp, 0.7)


def random_weights(rng, count, d):
    return rng.normal(size=(2, count, d, d)) * 2 / np.sqrt(d)


def tokens_of(rng, n, d):
    return unit(rng.normal(size=(n, d)))


def assert_equal_tokens(one, other, within):
    """Tokens that differ by no more than `within`; prints the largest difference, which the documentation quotes."""
    print(f"largest difference {np.abs(one - other).max():.1e}")
    np.testing.assert_allclose(one, other, rtol=0, atol=within)


@pytest.mark.parametrize("with_drift", [False, True])
@pytest.mark.parametrize("n", [40, 400])  # by the direct sum, and in three dimensions by the kernel expansion
@pytest.mark.parametrize("d", [3, 64])
def test_euler_step_of_the_particles_is_the_block(d, n, with_drift):
    rng = np.random.default_rng(d + n)
    logits, values = random_weights(rng, 3, d)
    drift = random_drift(rng, d) if with_drift else None
    x, p, w, h = tokens_of(rng, n, d), rng.dirichlet(np.ones(n)), np.array([0.5, 0.3, 0.2]), 0.1
    path = WeightPath(np.array([0.0, 1.0]), np.stack([logits] * 2), w, np.stack([values] * 2))
    solver = ParticleSolver(TokenOperator("attention", 1, 1e-14, drift), path, x, p, "euler", h)
    solver.advance(h)
    block = TransformerBlock.from_matrices(logits, values, head_weight=w, step=h, drift=drift)
    assert_equal_tokens(block(x, p), solver.positions, 1e-12)
    assert np.abs(solver.positions - x).max() > 1e-3


def test_queries_and_keys_enter_by_their_product_only():
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 4, 5, 16))
    v, o = rng.normal(size=(4, 7, 16)), rng.normal(size=(4, 16, 7))
    x = tokens_of(rng, 30, 16)
    by_product = TransformerBlock.from_matrices(q.transpose(0, 2, 1) @ k, o @ v)
    np.testing.assert_allclose(TransformerBlock(q, k, v, o)(x), by_product(x), atol=1e-13)


def test_block_as_built_is_an_euler_step_of_another_length_for_each_token():
    rng = np.random.default_rng(2)
    logits, values = random_weights(rng, 2, 8)
    x, h = tokens_of(rng, 50, 8), 0.2
    built = TransformerBlock.from_matrices(logits, values, step=h, tangent=False)
    a = built.attention(x)
    along = np.sum(a * x, axis=1, keepdims=True)
    expected = unit(x + h / (1 + h * along) * (a - along * x))
    np.testing.assert_allclose(built(x), expected, atol=1e-14)


def slopes(pairs_of_blocks, steps):
    """Fitted orders in h of the differences of pairs of results."""
    errors = np.array([[np.abs(one - other).max() for one, other in pairs_of_blocks(h)] for h in steps])
    return np.polyfit(np.log(steps), np.log(errors), 1)[0]


def test_orders_of_the_differences_between_block_and_flow_in_one_step():
    rng = np.random.default_rng(3)
    logits, values = random_weights(rng, 2, 5)
    x, drift = tokens_of(rng, 20, 5), random_drift(rng, 5)

    def pairs(h):
        tangent, built, sequential = (
            TransformerBlock.from_matrices(logits, values, step=h, drift=drift, tangent=t, sequential=s)
            for t, s in ((True, False), (False, False), (True, True))
        )
        flow = tangent.exponential_step(x)
        return (built(x), flow), (tangent(x), flow), (sequential(x), flow)

    built, tangent, sequential = slopes(pairs, np.geomspace(2e-3, 2e-2, 5))
    print(f"fitted slopes: as built {built:.2f}, tangent {tangent:.2f}, sequential {sequential:.2f}")
    assert built == pytest.approx(2, abs=0.1)
    assert tangent == pytest.approx(3, abs=0.1)
    assert sequential == pytest.approx(2, abs=0.1)


def test_exponential_step_turns_each_token_by_the_length_of_its_velocity():
    """On the great circle of its velocity, whatever the length; the drift takes part."""
    rng = np.random.default_rng(8)
    logits, values = random_weights(rng, 2, 4)
    x, drift = tokens_of(rng, 15, 4), random_drift(rng, 4)
    for h, with_drift in ((0.3, drift), (1.0, None)):
        block = TransformerBlock.from_matrices(logits, values, step=h, drift=with_drift)
        update = block.attention(x) + (0 if with_drift is None else drift.ambient(x))
        velocity = h * (update - np.sum(update * x, axis=1, keepdims=True) * x)
        length = np.linalg.norm(velocity, axis=1, keepdims=True)
        expected = np.cos(length) * x + np.sin(length) * velocity / length
        np.testing.assert_allclose(block.exponential_step(x), expected, atol=1e-14)
        assert length.max() > 0.5


def test_layers_of_a_step_path_are_as_many_blocks():
    rng = np.random.default_rng(4)
    layers, d, h = 6, 7, 0.25
    logits, values = (np.stack(part) for part in zip(*(random_weights(rng, 2, d) for _ in range(layers)), strict=True))
    time = h * np.arange(layers + 1)
    held = [np.concatenate([part, part[-1:]]) for part in (logits, values)]
    path = WeightPath(time, held[0], np.full(2, 0.5), held[1], interpolation="step")
    x = tokens_of(rng, 25, d)
    solver = LayeredTokens(TokenOperator("attention", 1), path, x, np.full(25, 1 / 25), "euler", h)
    for k in range(layers):
        solver.advance(time[-1])
        x = TransformerBlock.from_matrices(logits[k], values[k], step=h)(x)
        assert solver.t == pytest.approx(time[k + 1])
        assert_equal_tokens(solver.positions, x, 1e-12)


def test_causal_tokens_see_no_later_ones():
    rng = np.random.default_rng(5)
    block = TransformerBlock.from_matrices(*random_weights(rng, 2, 6), causal=True)
    x = tokens_of(rng, 12, 6)
    changed = np.concatenate([x[:7], tokens_of(rng, 5, 6)])
    np.testing.assert_allclose(block(changed)[:7], block(x)[:7], atol=1e-15)
    assert cdist(block(changed)[7:], block(x)[7:]).diagonal().min() > 1e-3
    np.testing.assert_allclose(block(x)[0], block(x[:1])[0], atol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": np.ones((2, 3, 5))}, r"key has shape \(2, 3, 5\); expected \(2, 3, 4\) to go with query of shape \(2, 3, 4\)"),
        ({"value": np.ones((1, 4, 4))}, r"value has shape \(1, 4, 4\); expected \(2, 4, 4\)"),
        ({"head_weight": np.ones(3)}, r"head_weight has shape \(3,\); expected \(2,\)"),
        ({"query": np.ones((3, 4))}, r"query has shape \(3, 4\); expected \(H, k, d\)"),
        ({"value": np.full((2, 4, 4), np.nan)}, "value has non-finite entries"),
        ({"drift": Drift(mlp=Perceptron(np.ones((2, 3)), np.ones(2), np.ones((3, 2)), np.ones(3)))},
         r"w1 has shape \(2, 3\); expected \(2, 4\) for tokens in dimension d = 4"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_match_are_both_named(arguments, message):
    good = {"query": np.ones((2, 3, 4)), "key": np.ones((2, 3, 4)), "value": np.ones((2, 4, 4))}
    with pytest.raises(CaseError, match=message):
        TransformerBlock(**(good | arguments))
    with pytest.raises(CaseError, match=r"tokens have shape \(5, 3\); expected \(n, 4\)"):
        TransformerBlock(**good)(np.ones((5, 3)))


GOOD = {"query": np.ones((2, 3, 4)), "key": np.ones((2, 3, 4)), "value": np.ones((2, 4, 4))}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"head_weight": [1.5, -0.5]}, r"head_weight\[1\] is -0.5; must be > 0"),
        ({"head_weight": [1.0, 0.0]}, r"head_weight\[1\] is 0; must be > 0"),
        ({"head_weight": [0.5, 0.6]}, "head_weight sums to 1.1; must sum to 1 within 1e-09"),
        ({"head_weight": ["a", "b"]}, "head_weight is no array of numbers"),
        ({"head_weight": [NAN, 1.0]}, "head_weight has non-finite entries"),
        ({"key": np.full((2, 3, 4), np.inf)}, "key has non-finite entries"),
        ({"value": np.full((2, 4, 4), 1e300)}, r"value: an entry is 1e\+300 in size; must be at most 1e\+100"),
        ({"query": np.ones((0, 3, 4))}, r"query has shape \(0, 3, 4\); expected \(H, k, d\), none of them 0"),
        ({"query": [[1.0], [1.0, 2.0]]}, "query is no array of numbers"),
        *(({"step": step}, "step: .* not allowed; must be a number > 0") for step in (0, -1.0, NAN, np.inf, 1e300, "1", None)),
    ],
)
def test_bad_blocks_are_refused(arguments, message):
    with pytest.raises(CaseError, match=message):
        TransformerBlock(**(GOOD | arguments))


@pytest.mark.parametrize(
    ("tokens", "weight", "message"),
    [
        (np.ones((0, 4)), None, r"tokens have shape \(0, 4\); expected \(n, 4\) with n >= 1 for query of \(2, 3, 4\)"),
        (np.eye(4)[0], None, r"tokens have shape \(4,\); expected \(n, 4\)"),
        (np.zeros((2, 4)), None, "token 0 has the length 0; tokens must be unit vectors"),
        (np.eye(4) * [1, 1, 3, 1], None, "token 2 has the length 3; tokens must be unit vectors"),
        (np.full((2, 4), NAN), None, "tokens has non-finite entries"),
        (np.eye(4), np.ones(3), r"token_weight has shape \(3,\); expected \(4,\) to go with tokens of shape \(4, 4\)"),
        (np.eye(4), [1, -1, 1, 1], "token_weight: must be >= 0 and not all 0; the least is -1"),
        (np.eye(4), np.zeros(4), "token_weight: must be >= 0 and not all 0; the least is 0"),
        (np.eye(4), [NAN, 1, 1, 1], "token_weight has non-finite entries"),
    ],
)
def test_bad_tokens_are_refused(tokens, weight, message):
    block = TransformerBlock(**GOOD)
    for method in (block.attention, block.forward, block.exponential_step):
        with pytest.raises(CaseError, match=message):
            method(tokens, weight)


def test_the_first_of_causal_tokens_needs_weight():
    block = TransformerBlock(**GOOD, causal=True)
    with pytest.raises(CaseError, match="the first one > 0 as it sees itself only"):
        block(np.eye(4), [0, 1, 1, 1])


def test_tokens_that_cannot_be_normalised_are_an_error():
    d, x = 3, np.eye(3)[:1]
    cancelled = TransformerBlock.from_matrices(np.zeros((1, d, d)), -np.eye(d)[None], tangent=False)
    with pytest.raises(NumericalError, match="token 0 cannot be normalised: with its update its length is 0"):
        cancelled(x)
    huge = TransformerBlock.from_matrices(np.zeros((1, d, d)), np.full((1, d, d), 1e90), step=1e90)
    with pytest.raises(NumericalError, match="token 0 cannot be normalised: with its update its length is inf"):
        huge(x)
    with pytest.raises(NumericalError, match="token 0 cannot be moved: its velocity has the length inf"):
        huge.exponential_step(x)


def test_example_of_the_documentation_works():
    page = (Path(__file__).parents[1] / "docs/transformer-block.md").read_text(encoding="utf-8")
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    np.testing.assert_allclose(np.linalg.norm(names["after"], axis=1), 1, atol=1e-14)


@pytest.mark.torch
@pytest.mark.parametrize("activation", ["gelu", "relu", "tanh"])
@pytest.mark.parametrize("causal", [False, True])
def test_block_as_built_agrees_with_torch(activation, causal):
    import torch

    torch.manual_seed(0)
    d, count, n, h = 64, 4, 20, 0.5
    layer = {"gelu": torch.nn.GELU, "relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[activation]
    attention = torch.nn.MultiheadAttention(d, count, bias=False, batch_first=True, dtype=torch.float64)
    feed = torch.nn.Sequential(torch.nn.Linear(d, 2 * d), layer(), torch.nn.Linear(2 * d, d)).double()
    norm = torch.nn.RMSNorm(d, eps=0.0, elementwise_affine=False, dtype=torch.float64)
    x = norm(torch.randn(1, n, d, dtype=torch.float64))  # tokens of RMS 1, that is sqrt(d) times unit vectors
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1) if causal else None
    with torch.no_grad():
        y = norm(x + h * attention(x, x, x, attn_mask=mask, need_weights=False)[0])
        y = norm(y + h * feed(y))
    q, k, v = (part.reshape(count, d // count, d) for part in attention.in_proj_weight.detach().numpy().reshape(3, d, d))
    out = attention.out_proj.weight.detach().numpy().reshape(d, count, -1).transpose(1, 0, 2)
    w1, b1, w2, b2 = (parameter.detach().numpy() for parameter in feed.parameters())
    root = np.sqrt(d)  # unit tokens: logits take root^2, what is added to them is divided by root
    block = TransformerBlock(
        q * root**2 / np.sqrt(d // count), k, v, count * out, step=h, tangent=False, sequential=True, causal=causal,
        drift=Drift(mlp=Perceptron(w1 * root, b1, w2 / root, b2 / root, activation)),
    )  # fmt: skip
    assert_equal_tokens(block(x[0].numpy() / root), y[0].numpy() / root, 1e-13)
    assert (y - x).abs().max() > 0.1
