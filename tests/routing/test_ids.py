"""Ids out of range, and experts that a token repeats, are errors of every function that takes ids, at every stage."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from router_runs import RUNS

import hpmoe
from hpmoe import router

Z = Tensor(np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32))
UP, DOWN = Tensor(np.ones((4, 4, 6), np.float32)), Tensor(np.ones((4, 3, 4), np.float32))
GOOD = [[0, 1], [-1, 3], [-1, -1]]
BAD = {"one too large": ([[0, 1], [3, 4], [2, 3]], r"topk_ids\[1, 1\] is 4; it must be an expert id in 0\.\.3"),
       "far too large": ([[0, 1], [3, 2**30], [2, 3]], rf"topk_ids\[1, 1\] is {2**30};"),
       "below the mask": ([[0, 1], [2, 3], [-2, 3]], r"topk_ids\[2, 0\] is -2;"),
       "twice": ([[0, 1], [2, 3], [3, 3]], r"topk_ids\[2\] is \[3, 3\]; it must be distinct experts")}
STAGES = {**RUNS, "graph": lambda f: ms.jit(RUNS["kernel"](f))}


def weighed(z, ids):
    return router.weigh(z, ids, score="sigmoid")


def counted(z, ids):
    return router.tokens_per_expert(ids, num_experts=4), z.sum()


def placed(z, ids):
    return hpmoe.balance.physical_ids(ids, Tensor([2, 0, 3, 1], ms.int32)), z.sum()


def fed(z, ids):
    return hpmoe.moe_ffn(z, ids, z[:, :2], UP, DOWN)


def exchanged(z, ids):
    permuted, places = hpmoe.token_ops.permute(z, ids)
    rows, route = hpmoe.token_ops.exchange(permuted, ids, num_local_experts=4)
    return hpmoe.token_ops.unpermute(hpmoe.token_ops.exchange_back(rows, route), places, z[:, :2])


def hashed(z, ids):
    """The words are good, the table is not."""
    return router.weigh(z, router.hash_ids(Tensor([0, 1, 2], ms.int32), ids))


def computed(z, ids):
    return router.weigh(z, (ids * 2 - ids).astype(ms.int64))


FUNCTIONS = [weighed, counted, placed, fed, exchanged, hashed, computed]


@pytest.mark.parametrize("f, what, stage", [
    *((f, what, list(STAGES)[(i + j) % 4]) for i, f in enumerate(FUNCTIONS) for j, what in enumerate(BAD)),
    *((f, "far too large", "kernel") for f in FUNCTIONS[::2])])
def test_bad_ids_are_an_error(f, what, stage):
    ids, text = BAD[what]
    with pytest.raises(hpmoe.ArgumentError, match=text):
        STAGES[stage](f)(Z, Tensor(np.array(ids, np.int32)))
    good = Tensor(np.array(GOOD, np.int32))
    STAGES[stage](f)(Z, good)  # nothing of the error is left


@pytest.mark.parametrize("row, stage", [*zip((-2, -1, 3, 2**30), STAGES, strict=True), (-1, "kernel"), (3, "graph")])
def test_a_row_that_no_token_has_is_an_error_in_padded_mode(row, stage):
    def picked(x, rows):
        return hpmoe.token_ops.permute(x, rows, padded_mode=True)[0]
    with pytest.raises(hpmoe.ArgumentError, match=rf"permute: indices is an array with \[{row}\]; .* in 0..2"):
        STAGES[stage](picked)(Z, Tensor(np.array([[0, 1], [row, 2]], np.int32)))
    out = STAGES[stage](picked)(Z, Tensor(np.array([[0, 1], [0, 2]], np.int32)))
    np.testing.assert_array_equal(out.asnumpy(), Z.asnumpy()[[0, 1, 0, 2]])


@pytest.mark.parametrize("run", [RUNS["program"], RUNS["kernel"]], ids=["program", "kernel"])
def test_bad_ids_are_an_error_under_a_gradient(run):
    weighed_by = run(weighed)

    def loss(z, ids):
        return (weighed_by(z, ids) ** 2).sum()
    slope_of = ms.jit(ms.grad(loss))
    slope = slope_of(Z, Tensor(np.array(GOOD, np.int32))).asnumpy()
    s = 1 / (1 + np.exp(-Z.asnumpy().astype(np.float64)[0, :2]))
    share = s / s.sum()
    want = np.zeros((3, 4))  # one expert by itself has the weight 1 whatever its score
    want[0, :2] = 2 * (share - (share**2).sum()) / s.sum() * s * (1 - s)
    np.testing.assert_allclose(slope, want, atol=1e-6)
    for grad in (slope_of, ms.grad(loss)):
        with pytest.raises(hpmoe.ArgumentError, match=r"topk_ids\[2, 0\] is -2;"):
            grad(Z, Tensor(np.array(BAD["below the mask"][0], np.int32))).asnumpy()


@pytest.mark.parametrize("run", [RUNS["program"], RUNS["kernel"]], ids=["program", "kernel"])
def test_the_rank_of_a_bad_id_is_named_and_padding_is_not_read(run):
    layer = hpmoe.spmd(run(weighed), hpmoe.Mesh(2))
    z, ids = Tensor(np.stack([Z.asnumpy()] * 2)), Tensor(np.array([GOOD, BAD["twice"][0]], np.int32))
    with pytest.raises(hpmoe.ArgumentError, match=r"weigh on rank 1: topk_ids\[2\] is \[3, 3\](.|\n)*at .*test_ids.py"):
        layer(z, ids)
    np.testing.assert_allclose(layer(z, ids, num_tokens=[3, 2]).asnumpy().sum(-1), [[1, 1, 0], [1, 1, 0]], rtol=1e-6)


@pytest.mark.parametrize("word, stage", [(-1, "eager"), (3, "program"), (2**30, "kernel"), (-1, "graph"), (3, "kernel")])
def test_a_word_without_a_row_in_the_table_is_an_error(word, stage):
    def words_hashed(words, table):
        return router.hash_ids(words, table)
    table = Tensor(np.array(GOOD, np.int32))
    with pytest.raises(hpmoe.ArgumentError, match=rf"token_ids\[1\] is {word}; it must be an int in 0..2, a row"):
        STAGES[stage](words_hashed)(Tensor([0, word], ms.int32), table)
    assert STAGES[stage](words_hashed)(Tensor([2, 0], ms.int32), table).asnumpy().tolist() == [GOOD[2], GOOD[0]]


def test_ids_that_a_router_chose_are_not_checked_again():
    def f(z):
        ids, _ = hpmoe.route(z, 2)
        return router.tokens_per_expert(ids.astype(ms.int64), num_experts=4), router.weigh(z, ids)
    assert not hpmoe.trace(f, Z).reports and len(hpmoe.trace(weighed, Z, Tensor(np.array(GOOD, np.int32))).reports) == 1
