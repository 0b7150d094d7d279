"""router.replay against a float64 oracle: ids, weights and gradients; eager, as a program, as a kernel and in graphs."""

import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from mindspore import Tensor, mint
from router_runs import BIAS, EVERYWHERE, RUNS, SCORES, E, T, in_turn, logits

import hpmoe
from hpmoe import router

LAYERS = 3


def records(k, num_layers=LAYERS, tokens=T, seed=5):
    """[T, layers, K] distinct ids; about half are unset, the first row has none unset and the last row all."""
    rng = np.random.default_rng(seed)
    ids = rng.random((tokens, num_layers, E)).argsort(-1)[..., :k].astype(np.int32)
    ids[rng.random(ids.shape) < 0.5] = -1
    ids[0] = rng.random((num_layers, E)).argsort(-1)[:, :k]
    ids[-1] = -1
    return ids


def replayed(k, unset, layer=None, score="softmax", **options):
    """(ids, weights) of logits and a record."""
    def f(z, record):
        routed, _ = hpmoe.route(z, k, score=score, **options)
        ids = router.replay(routed, record, unset=unset, layer=layer)
        return ids, router.weigh(z, ids, score=score)
    return f


def assert_replayed(got, z, record, unset, score="softmax", **options):
    routed, _ = oracle.route(z, record.shape[1], score=score, **options)
    want = oracle.replay(routed, record, unset)
    np.testing.assert_array_equal(got[0].asnumpy(), want)
    np.testing.assert_allclose(got[1].asnumpy(), oracle.weigh(z, want, score), rtol=1e-5, atol=1e-7)
    for row in want:
        assert len(set(row[row >= 0])) == (row >= 0).sum()


@in_turn("k, unset", [1, 2, 8], ["route", "mask"])
def test_a_recorded_id_is_kept_and_the_rest_routed_or_masked(k, unset, run):
    z, record = logits(), records(k)[:, 1]
    assert_replayed(run(replayed(k, unset))(Tensor(z), Tensor(record)), z, record, unset)


@in_turn("dtype, unset", [np.int32, np.int64], ["route", "mask"])
def test_a_layer_of_a_record_of_all_layers(dtype, unset, run):
    z, record = logits(), records(4)
    for layer in range(LAYERS):
        got = run(replayed(4, unset, layer))(Tensor(z), Tensor(record.astype(dtype)))
        assert_replayed(got, z, record[:, layer], unset)
        assert got[0].asnumpy().dtype == dtype


@pytest.mark.parametrize("score", SCORES)
def test_unset_entries_follow_groups_and_bias(score):
    z, record = logits(), records(4)[:, 0]
    options = {"num_groups": 4, "topk_groups": 2}
    got = replayed(4, "route", score=score, bias=Tensor(BIAS), **options)(Tensor(z), Tensor(record))
    assert_replayed(got, z, record, "route", score, bias=BIAS, **options)


@pytest.mark.parametrize("score, graph, unset", [
    *((score, False, ("route", "mask")[i % 2]) for i, score in enumerate(SCORES)), ("sigmoid", True, "mask")])
def test_gradients_go_through_the_weights(score, graph, unset):
    z, record = logits(scale=0.5), records(4)[:, 2]
    c = np.random.default_rng(6).standard_normal(record.shape)
    ids = oracle.replay(oracle.route(z, 4, score=score)[0], record, unset)
    f = RUNS["kernel"](replayed(4, unset, score=score))
    cotangent = Tensor(c, ms.float32)

    def loss_of(z, record):
        return mint.sum(f(z, record)[1] * cotangent)
    grad = ms.grad(loss_of)
    got = (ms.jit(grad) if graph else grad)(Tensor(z), Tensor(record)).asnumpy()
    direction, step = np.random.default_rng(7).standard_normal(z.shape), 1e-6
    at = [(oracle.weigh(z + sign * step * direction, ids, score) * c).sum() for sign in (1, -1)]
    assert abs((got * direction).sum() - (at[0] - at[1]) / (2 * step)) < 1e-5
    assert np.abs(got).max() > 0


def test_an_entry_for_which_no_expert_was_routed_stays_unset():
    routed, record = Tensor([[2, -1], [2, 1]], ms.int32), Tensor([[2, -1], [-1, -1]], ms.int32)
    assert router.replay(routed, record, unset="route").asnumpy().tolist() == [[2, -1], [2, 1]]


def test_records_of_no_tokens():
    none = Tensor(np.zeros((0, 2), np.int32))
    assert router.replay(none, none, unset="route").shape == (0, 2)


@pytest.mark.parametrize("bad", [-2, E, 255])
@pytest.mark.parametrize("run", [RUNS["eager"], RUNS["kernel"]], ids=["eager", "kernel"])
def test_an_id_that_is_no_expert_is_not_unset(bad, run):
    record = records(2)[:, 0]
    record[3, 1] = bad
    x, weight = Tensor(np.ones((T, 4), np.float32)), Tensor(np.ones((E, 4, 4), np.float32))

    def layer(z, record):
        ids, weights = replayed(2, "route")(z, record)
        return hpmoe.moe_ffn(x, ids, weights, weight, weight[:, :2])
    with pytest.raises(hpmoe.ArgumentError, match=rf"topk_ids\[3, 1\] is {bad}"):
        run(layer)(Tensor(logits()), Tensor(record))


@EVERYWHERE
def test_weigh_leaves_masked_ids_as_they_are(run):
    ids = np.array([[-1, 2], [3, -1], [-1, -1]], np.int32)
    given = Tensor(ids)
    weights = run(router.weigh)(Tensor(logits(tokens=3)), given).asnumpy()
    np.testing.assert_array_equal(given.asnumpy(), ids)
    np.testing.assert_allclose(weights, oracle.weigh(logits(tokens=3), ids), rtol=1e-5)
