"""permute and unpermute: eager, traced and differentiated, against loops written out."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.evaluate import evaluate
from hpmoe.ir.avals import Aval
from hpmoe.support.errors import ArgumentError
from hpmoe.token_ops import permute, unpermute
from hpmoe.tracing import trace

RNG = np.random.default_rng(0)


def example(num_tokens, top_k, hidden=3, num_experts=5):
    tokens = RNG.standard_normal((num_tokens, hidden)).astype(np.float32)
    shape = (num_tokens, top_k) if top_k else (num_tokens,)
    return tokens, RNG.integers(0, num_experts, shape).astype(np.int32)


def by_hand(tokens, indices, kept):
    """The definition: entries in expert order, ties in entry order."""
    top_k = indices.shape[1] if indices.ndim == 2 else 1
    order = sorted(range(indices.size), key=lambda i: (indices.reshape(-1)[i], i))
    places = [order.index(i) for i in range(indices.size)]
    return np.array([tokens[i // top_k] for i in order[:kept]]).reshape(kept, tokens.shape[1]), np.array(places)


@pytest.mark.parametrize("num_tokens, top_k, num_out", [(6, 2, 0), (5, None, 0), (4, 3, 7), (1, 1, 0)])
def test_permute_is_a_stable_sort_of_entries(num_tokens, top_k, num_out):
    tokens, indices = example(num_tokens, top_k)
    rows, places = by_hand(tokens, indices, num_out or indices.size)
    permuted, sorted_indices = permute(Tensor(tokens), Tensor(indices), num_out)
    np.testing.assert_array_equal(permuted.asnumpy(), rows)
    np.testing.assert_array_equal(sorted_indices.asnumpy(), places)
    assert sorted_indices.dtype == ms.int32
    program = trace(lambda x, i: permute(x, i, num_out), tokens, indices)
    traced = evaluate(program, [[tokens, indices]])[0]
    np.testing.assert_array_equal(traced[0], rows)
    np.testing.assert_array_equal(traced[1], places)


@pytest.mark.parametrize("num_out", [0, 5])
def test_unpermute_sums_weighted_rows(num_out):
    tokens, indices = example(4, 2)
    probs = RNG.uniform(size=(4, 2)).astype(np.float32)
    rows, places = by_hand(tokens, indices, num_out or 8)
    expected = np.zeros_like(tokens)
    for i in range(4):
        for j in range(2):
            if places[i * 2 + j] < len(rows):
                expected[i] += probs[i, j] * rows[places[i * 2 + j]]
    out = unpermute(Tensor(rows), Tensor(places.astype(np.int32)), Tensor(probs))
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-6)
    moved = unpermute(Tensor(rows), Tensor(places.astype(np.int32))).asnumpy()
    np.testing.assert_array_equal(moved[places < len(rows)], rows[places[places < len(rows)]])
    assert not moved[places >= len(rows)].any()


def round_trip(num_out, tokens, probs, indices):
    permuted, places = permute(tokens, indices, num_out)
    return unpermute(permuted * permuted, places, probs)


@pytest.mark.parametrize("num_out", [0, 5])
def test_gradients_agree_with_mindspore(num_out):
    tokens, indices = example(4, 2)
    probs = RNG.uniform(size=(4, 2)).astype(np.float32)
    arrays = (tokens, probs, indices)

    def loss(*args):
        return ops.square(round_trip(num_out, *args)).sum()

    expected = ms.grad(loss, (0, 1))(*map(Tensor, arrays))
    parts = linearize(trace(loss, *arrays))
    saved = evaluate(parts.forward, [arrays])[0][1:]
    kept = [arrays[i] for i in parts.kept_inputs]
    got = evaluate(parts.backward, [[*kept, *saved, np.float32(1)]])[0]
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, e.asnumpy(), rtol=1e-5, atol=1e-6)


def test_mindspore_spellings_are_the_same_primitives():
    def mine(x, i, p):
        rows, places = permute(x, i)
        return unpermute(rows, places, p)

    def theirs(x, i, p):
        rows, places = ops.moe_token_permute(x, i)
        return ops.moe_token_unpermute(rows, places, p)

    args = Aval((6, 4), "float32"), Aval((6, 2), "int32"), Aval((6, 2), "float32")
    assert str(trace(mine, *args)).split("\n", 1)[1] == str(trace(theirs, *args)).split("\n", 1)[1]


@pytest.mark.parametrize("change, text", [
    (lambda x, i: permute(x, i, padded_mode=1), "padded_mode is 1"),
    (lambda x, i: permute(x, i, 99), "num_out_tokens is 99"),
    (lambda x, i: permute(x[:2], i), "same N tokens"),
    (lambda x, i: permute(x, i.astype(ms.float32)), "int32 or int64"),
    (lambda x, i: unpermute(x, i), "second result of hpmoe.permute"),
    (lambda x, i: unpermute(*permute(x, i), x[:2, :2]), "probs is f32"),
])
def test_wrong_arguments_are_named(change, text):
    tokens, indices = map(Tensor, example(4, 2))
    with pytest.raises(ArgumentError, match=text):
        change(tokens, indices)
    with pytest.raises(ArgumentError, match=text):
        trace(change, tokens, indices)
