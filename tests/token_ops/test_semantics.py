"""Token operators refuse bad arguments and repeat bit for bit. test_oracles.py tests values and gradients."""

import numpy as np
import pytest
import token_oracles as oracle
from mindspore import Tensor, ops

import hpmoe


def example(tokens=7, top_k=3, cols=5, experts=4, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, experts, (tokens, top_k)).astype(np.int32)
    x = rng.standard_normal((tokens, cols)).astype(np.float32)
    return x, ids, rng.uniform(0.1, 1, (tokens, top_k)).astype(np.float32)


def test_calls_repeat_to_the_bit():
    x, ids, probs = example(tokens=3000, top_k=8, cols=200, experts=64)

    def run():
        rows, places = hpmoe.token_ops.permute(Tensor(x), Tensor(ids))
        return hpmoe.token_ops.unpermute(rows, places, Tensor(probs)).asnumpy().tobytes()

    assert run() == run()


def test_experts_of_any_number_and_wide_ids():
    x, _, _ = example(tokens=300, cols=2)
    ids = np.random.default_rng(0).integers(-2**31, 2**31 - 1, (300, 2)).astype(np.int32)
    for given in (ids, ids.astype(np.int64) * 2**20):
        np.testing.assert_array_equal(hpmoe.token_ops.permute(Tensor(x), Tensor(given))[1].asnumpy(), oracle.places_of(ids))


X, IDS = Tensor(np.zeros((4, 3), np.float32)), Tensor(np.zeros((4, 2), np.int32))
PLACES = Tensor(np.arange(8, dtype=np.int32))


@pytest.mark.parametrize("f, use", [
    (lambda x, i: hpmoe.token_ops.permute(x, i)[0], "hpmoe.dispatch, or hpmoe.token_ops.exchange"),
    (lambda x, i: hpmoe.token_ops.init_routing(x, i, 0, 2, 3, 1)[0], "hpmoe.dispatch with a capacity_factor"),
    (lambda x, i: hpmoe.token_ops.init_routing(x, i, expert_num=3, counts="count")[2], "hpmoe.router.tokens_per_expert"),
    (lambda x, i: hpmoe.token_ops.unpermute(x, i.reshape(-1)), "hpmoe.combine"),
])
def test_tiles_say_what_to_write_instead(f, use):
    with pytest.raises(hpmoe.TransformError, match=use):
        hpmoe.tile_partition(f).lower(hpmoe.ShapeDtypeStruct((8, 3), "float32"), hpmoe.ShapeDtypeStruct((8, 1), "int32"))


def test_mindspore_spellings_are_the_same_primitives():
    def mine(x, i, p):
        rows, places = hpmoe.token_ops.permute(x, i)
        return hpmoe.token_ops.unpermute(rows, places, p)

    def theirs(x, i, p):
        rows, places = ops.moe_token_permute(x, i)
        return ops.moe_token_unpermute(rows, places, p)

    args = (hpmoe.ShapeDtypeStruct((6, 4), "float32"), hpmoe.ShapeDtypeStruct((6, 2), "int32"),
            hpmoe.ShapeDtypeStruct((6, 2), "float32"))
    assert str(hpmoe.trace(mine, *args)).split("\n", 1)[1] == str(hpmoe.trace(theirs, *args)).split("\n", 1)[1]
