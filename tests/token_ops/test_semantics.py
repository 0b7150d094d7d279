"""What token operators refuse, and that they repeat to the bit. Their values and gradients are in test_oracles.py."""

import mindspore as ms
import numpy as np
import pytest
import token_oracles as oracle
from mindspore import Tensor

import hpmoe
from hpmoe import ArgumentError, ProgramError


def example(tokens=7, top_k=3, cols=5, experts=4, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, experts, (tokens, top_k)).astype(np.int32)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    return x, ids, rng.uniform(0.1, 1, (tokens, top_k)).astype(np.float32)


def test_calls_repeat_to_the_bit():
    x, ids, probs = example(tokens=3000, top_k=8, cols=200, experts=64)

    def run():
        rows, places = hpmoe.permute(Tensor(x), Tensor(ids))
        return hpmoe.unpermute(rows, places, Tensor(probs)).asnumpy().tobytes()

    assert run() == run()


def test_experts_of_any_number_and_wide_ids():
    x, _, _ = example(tokens=300, cols=2)
    ids = np.random.default_rng(0).integers(-2**31, 2**31 - 1, (300, 2)).astype(np.int32)
    for given in (ids, ids.astype(np.int64) * 2**20):
        np.testing.assert_array_equal(hpmoe.permute(Tensor(x), Tensor(given))[1].asnumpy(), oracle.places_of(ids))


X, IDS = Tensor(np.zeros((4, 3), np.float32)), Tensor(np.zeros((4, 2), np.int32))
PLACES = Tensor(np.arange(8, dtype=np.int32))


@pytest.mark.parametrize("call, text", {
    "K": (lambda: hpmoe.permute(X, Tensor(np.zeros((4, 513), np.int32))), "top_k is 513; it must be in 1..512"),
    "entries": (lambda: hpmoe.permute(Tensor(np.zeros((2**20, 1), np.float32)), Tensor(np.zeros((2**20, 16), np.int32))),
                "indices is 16777216 entries; it must be at most 16777214"),
    "K of probs": (lambda: hpmoe.unpermute(X, PLACES, Tensor(np.zeros((4, 513), np.float32))), "top_k is 513"),
    "range": (lambda: hpmoe.permute_with_ep(X, IDS, None, (3, 9)), "range is \\(3, 9\\)"),
    "turned": (lambda: hpmoe.permute_with_ep(X, IDS, None, (3, 2)), "range is \\(3, 2\\)"),
    "rows of range": (lambda: hpmoe.unpermute_with_ep(X, PLACES, None, (1, 3)), "permuted is of shape \\(4, 3\\)"),
    "probs": (lambda: hpmoe.permute_with_ep(X, IDS, X), "probs is of shape \\(4, 3\\)"),
    "floats": (lambda: hpmoe.permute(X.astype(ms.int32), IDS), "tokens is of Int32"),
    "id": (lambda: hpmoe.init_routing(X, IDS + 2, 0, 1, 2, 1), "expert_idx\\[0, 0\\] is 2; it must be an expert id in 0..1"),
    "mode": (lambda: hpmoe.init_routing(X, IDS, drop_pad_mode=2), "drop_pad_mode is 2"),
    "capacity": (lambda: hpmoe.init_routing(X, IDS, 0, 5, 2, 1), "expert_capacity is 5; it must be an int in 1..4"),
    "counts": (lambda: hpmoe.init_routing(X, IDS, counts="all"), "counts is 'all'"),
    "number": (lambda: hpmoe.init_routing(X, IDS, counts="count"), "expert_num is 0"),
    "places": (lambda: hpmoe.init_routing(X, IDS, 0, 4, 2**23, 1), "expert_num \\* expert_capacity is 33554432"),
    "active": (lambda: hpmoe.init_routing(X, IDS, -1), "active_num is -1"),
    "padded ids": (lambda: hpmoe.permute(X, IDS + 4, padded_mode=True), "indices is with \\[4\\]; it must be in 0..3"),
    "restored": (lambda: hpmoe.unpermute(X, PLACES, restore_shape=(4, 3)), "restore_shape is \\(4, 3\\)"),
    "shape": (lambda: hpmoe.unpermute(X, PLACES[:4], None, True, (4, 4)), "restore_shape is \\(4, 4\\)"),
    "not a sort": (lambda: ms.grad(lambda r: hpmoe.unpermute(r, PLACES * 0).sum())(X), "naming row 0 twice"),
}.values())
def test_what_does_not_fit_is_named(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


def test_a_gradient_of_the_gradient_is_refused():
    def first(x):
        return ms.grad(lambda x: (hpmoe.permute(x, IDS)[0] ** 2).sum())(x).sum()
    with pytest.raises(ProgramError, match="a gradient is taken of its gradient"):
        ms.grad(first)(X)


@pytest.mark.parametrize("f, use", [
    (lambda x, i: hpmoe.permute(x, i)[0], "hpmoe.dispatch, or hpmoe.exchange"),
    (lambda x, i: hpmoe.init_routing(x, i, 0, 2, 3, 1)[0], "hpmoe.dispatch with a capacity_factor"),
    (lambda x, i: hpmoe.init_routing(x, i, expert_num=3, counts="count")[2], "hpmoe.router.tokens_per_expert"),
    (lambda x, i: hpmoe.unpermute(x, i.reshape(-1)), "hpmoe.combine"),
])
def test_tiles_say_what_to_write_instead(f, use):
    with pytest.raises(hpmoe.TransformError, match=use):
        hpmoe.tile_partition(f).lower(hpmoe.Aval((8, 3), "float32"), hpmoe.Aval((8, 1), "int32"))
