"""Noise of a router: its draws, what they are drawn from, and that evaluation and gradients draw none."""

import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from helpers import stages
from mindspore import Tensor, mint
from router_runs import BIAS, EVERYWHERE, SCORES, E, T, assert_routes, in_turn, logits, route_by, seeded

import hpmoe
from hpmoe import router


@EVERYWHERE
@pytest.mark.parametrize("seed", [0, 7, -3, 2**31 - 1])
def test_draws_are_those_of_philox(seed, run):
    """Bit by bit, for a seed that is an argument and one that is fixed."""
    u = np.float32(oracle.uniform(seed, 0, T, E))
    want = np.ones((T, E), np.float32) * (u * np.float32(0.4) + np.float32(0.8))
    got = run(lambda x, seed: router.jitter(x, 0.2, seed))(Tensor(np.ones((T, E), np.float32)), seeded(seed)).asnumpy()
    np.testing.assert_allclose(got, want, rtol=2e-7)
    fixed = run(lambda x: router.jitter(x, 0.2, seed))(Tensor(np.ones((T, E), np.float32))).asnumpy()
    np.testing.assert_array_equal(fixed, got)
    assert 0.79999 < got.min() < got.max() < 1.20001


@EVERYWHERE
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_gumbel_noise_relaxed_by_a_temperature(temperature, run):
    z = logits()
    noisy = (z + -np.log(-np.log(oracle.uniform(7, 1, T, E)))) / temperature
    ids, w = route_by(run, z, 4, temperature=temperature, seed=seeded())
    want = oracle.route(noisy, 4)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_allclose(w, want[1], rtol=2e-4, atol=1e-6)


def test_gumbel_samples_by_the_softmax_without_replacement():
    p = np.array([0.5, 0.25, 0.15, 0.1])
    z = Tensor(np.tile(np.log(p), (20000, 1)).astype(np.float32))
    ids = hpmoe.route(router.gumbel(z, 11), 2)[0].asnumpy()
    np.testing.assert_allclose(np.bincount(ids[:, 0], minlength=4) / len(ids), p, atol=0.012)
    second = ids[ids[:, 0] == 0, 1]
    np.testing.assert_allclose(np.bincount(second, minlength=4)[1:] / len(second), p[1:] / 0.5, atol=0.015)
    assert (ids[:, 0] != ids[:, 1]).all()


@EVERYWHERE
def test_straight_through_takes_values_and_gradients_apart(run):
    z = logits()
    def weights(z, hard):
        ids, soft = hpmoe.route(z, 1, normalize=False, temperature=0.7, seed=3)
        return router.straight_through(mint.zeros_like(soft) + 1.0 if hard is None else hard, soft)
    ones = Tensor(np.ones((T, 1), np.float32))
    assert (run(weights)(Tensor(z), ones).asnumpy() == 1).all()
    hard = ms.grad(run(lambda z, one: mint.sum(weights(z, one))))(Tensor(z), ones).asnumpy()
    soft = ms.grad(run(lambda z: mint.sum(hpmoe.route(z, 1, normalize=False, temperature=0.7, seed=3)[1])))(Tensor(z))
    np.testing.assert_allclose(hard, soft.asnumpy(), atol=1e-7)
    assert np.abs(hard).max() > 1e-3


@in_turn("rate, score", [0.1, 0.3, 0.5], SCORES)
def test_expert_dropout(rate, score, run):
    z = logits()
    dropped = np.float32(oracle.uniform(7, 2, T, E)) < np.float32(rate)
    got = route_by(run, z, 6, score=score, expert_dropout=rate, seed=seeded())
    assert_routes(got, oracle.route(z, 6, dropped, score=score))
    assert not np.take_along_axis(dropped, got[0], 1).any() and abs(dropped.mean() - rate) < 0.1
    np.testing.assert_allclose(got[1].sum(1), 1, rtol=1e-6)


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"num_groups": 4, "topk_groups": 2}, {"score": "softmax_of_chosen", "num_groups": 4,
                                     "topk_groups": 2}, {"score": "sigmoid", "bias": BIAS[:8], "num_groups": 2}])
def test_where_too_few_experts_are_left_none_is_dropped(options, run):
    """All experts of the best groups are chosen from, dropped or not."""
    z = logits(experts=8)
    dropped = np.float32(oracle.uniform(5, 2, T, 8)) < 0.5
    assert 0 < ((~dropped).sum(1) < 4).sum() < T
    ours = {name: Tensor(v) if name == "bias" else v for name, v in options.items()}
    assert_routes(route_by(run, z, 4, expert_dropout=0.5, seed=seeded(5), **ours), oracle.route(z, 4, dropped, **options))


@EVERYWHERE
def test_nothing_is_drawn_in_evaluation(run):
    z = logits()
    noisy = {"jitter": 0.3, "expert_dropout": 0.5, "score": "sigmoid"}
    assert_routes(route_by(run, z, 4, **noisy), oracle.route(z, 4, score="sigmoid"))
    assert_routes(route_by(run, z, 4, temperature=2.0), oracle.route(z / 2, 4))
    assert "draw" not in str(hpmoe.trace(lambda z: hpmoe.route(z, 4, **noisy), z))


def test_a_seed_argument_changes_without_another_trace():
    traces = []

    def f(z, seed):
        traces.append(1)
        return hpmoe.route(z, 4, temperature=1.0, seed=seed)
    kernel = stages(rows=4)["fused"](f)
    ids = [kernel(Tensor(logits()), seeded(s))[0].asnumpy() for s in (1, 2, 1)]
    assert len(traces) == 1 and (ids[0] != ids[1]).any() and (ids[0] == ids[2]).all()


def test_gradients_draw_nothing_again():
    """The backward pass reads what the forward drew, and a recomputation would draw the same."""
    program = hpmoe.trace(lambda z: hpmoe.route(z, 4, temperature=0.5, jitter=0.1, expert_dropout=0.2, seed=3)[1], logits())
    assert "draw" in str(program) and "draw" not in str(hpmoe.rewriting.vjp(program))


def test_noise_of_tokens_and_experts_is_independent():
    u = np.log(router.jitter(Tensor(np.full((512, 64), 1.0, np.float32)), 0.5, 1).asnumpy())
    for a, b in ((u[:-1], u[1:]), (u[:, :-1], u[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02
