"""Forced routing, counts, the bias that balances, and losses, against a float64 oracle."""

from fractions import Fraction

import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from mindspore import Tensor
from router_runs import BIAS, EVERYWHERE, RUNS, SCORES, E, T, in_turn, logits, seeded

import hpmoe
from hpmoe import router


def test_forced_ids():
    ids = router.balanced_ids(T, E, 5).asnumpy()
    counts = np.bincount(ids.ravel(), minlength=E)
    assert counts.max() - counts.min() <= 1 and all(len(set(row)) == 5 for row in ids)
    for run in RUNS.values():
        even = run(lambda z, seed: (router.uniform_ids(4000, 6, 2, seed), z))(Tensor(logits()), seeded())[0].asnumpy()
        assert even.dtype == np.int32 and (even[:, 0] != even[:, 1]).all()
        np.testing.assert_allclose(np.bincount(even.ravel(), minlength=6) / 8000, 1 / 6, atol=0.02)


@EVERYWHERE
def test_counts_leave_out_what_is_no_expert(run):
    rng = np.random.default_rng(0)
    ids = np.where(rng.random((T, 4)) < 0.2, -1, rng.permuted(np.tile(np.arange(E), (T, 1)), axis=1)[:, :4])  # int64
    got = run(lambda ids: router.tokens_per_expert(ids, num_experts=E))(Tensor(ids)).asnumpy()
    assert got.dtype == np.int32 and got.tolist() == [(ids == e).sum() for e in range(E)]


@EVERYWHERE
def test_counts_of_no_tokens_are_zero(run):
    count = run(lambda ids: router.tokens_per_expert(ids, num_experts=E))
    for _ in range(4):
        used = [Tensor(np.full(E, 7, np.int32)) * i for i in range(1, 50)]  # memory that MindSpore gives out again
        del used
        assert count(ms.mint.zeros((0, 2), dtype=ms.int32)).asnumpy().tolist() == [0] * E


@EVERYWHERE
def test_the_bias_moves_against_the_load(run):
    n = np.random.default_rng(0).integers(0, 9, E).astype(np.int32)
    n[0] = n[-1] = 3
    got = run(lambda b, n: router.update_bias(b, n, rate=0.01))(Tensor(BIAS), Tensor(n)).asnumpy()
    np.testing.assert_allclose(got, oracle.update_bias(BIAS, n, 0.01), rtol=1e-6)


def moved(bias, counts):
    return router.update_bias(bias, counts, rate=1)


def moved_where(bias, counts, where):
    return router.update_bias(bias, counts, rate=1, where=where)


IN_GRAPHS = {**RUNS, "graph of MindSpore": ms.jit}


COUNTS = ([16777218, 16777217, 16777216], [2000003] * 5, [2**31 - 1, 2**31 - 2, 2**31 - 3],
          [2**31 - 1, 0, 2**31 - 1, 2**31 - 1], [0, 0], [7], [2**51 + 1, 2**51, 2**51 - 1, 2**51])


@pytest.mark.parametrize("run", IN_GRAPHS.values(), ids=IN_GRAPHS)
@pytest.mark.parametrize("counts, dtype", [(n, (np.int32, np.int64)[i % 2 or max(n) > 2**31]) for i, n in enumerate(COUNTS)])
def test_the_bias_compares_counts_exactly(counts, dtype, run):
    mean = Fraction(sum(counts), len(counts))
    got = run(moved)(Tensor(np.zeros(len(counts), np.float32)), Tensor(np.array(counts, dtype)))
    assert got.asnumpy().tolist() == [(mean > n) - (mean < n) for n in counts]


@pytest.mark.parametrize("run", IN_GRAPHS.values(), ids=IN_GRAPHS)
@pytest.mark.parametrize(("counts", "where", "steps"), [
    ([400, 350, 330, 0], [1, 1, 1, 0], [-1, 1, 1, 0]), ([16777218, 9, 16777217, 16777216], [1, 0, 1, 1], [-1, 0, 0, 1]),
    ([5, 7], [0, 0], [0, 0]), ([5, 7], [0, 1], [0, 0])])
def test_the_bias_of_left_out_experts_stays(counts, where, steps, run):
    start = np.array([0.5] * len(counts), np.float32)
    got = run(moved_where)(Tensor(start), Tensor(np.array(counts, np.int32)), Tensor(np.array(where, bool)))
    assert got.asnumpy().tolist() == [0.5 + s for s in steps]


LOSSES = {
    "aux": (lambda z, k, score: router.aux_loss(z, k, score=score, coefficient=0.5),
            lambda z, k, score: 0.5 * oracle.aux_loss(z, k, score)),
    "sequence": (lambda z, k, score: router.sequence_loss(z, k, 3, score=score, coefficient=0.5),
                 lambda z, k, score: 0.5 * oracle.sequence_loss(z, k, 3, score)),
    "global": (lambda z, k, score: router.global_batch_loss(z, Tensor(STEPS.sum(0)), score=score, coefficient=0.5),
               lambda z, k, score: 0.5 * oracle.global_batch_loss(z, STEPS, k, score)),
    "z": (lambda z, k, score: router.z_loss(z, coefficient=0.5), lambda z, k, score: 0.5 * oracle.z_loss(z)),
}
STEPS = np.random.default_rng(2).integers(0, 50, (4, E)).astype(np.int32)  # all-reduced counts of four steps


@in_turn("name, score", LOSSES, SCORES)
def test_losses_and_their_gradients(name, score, run):
    """Values against the oracle; gradients against its differences, along one direction, in float64."""
    z, direction = logits(5, tokens=12), np.random.default_rng(6).standard_normal((12, E))
    z += np.random.default_rng(7).standard_normal(z.shape).astype(np.float32)  # no equals, which a step would part
    ours, theirs = LOSSES[name]
    f = run(lambda z: ours(z, 3, score))
    np.testing.assert_allclose(float(f(Tensor(z)).asnumpy()), theirs(z, 3, score), rtol=1e-5)
    at = lambda h: theirs(z.astype(np.float64) + h * direction, 3, score)  # noqa: E731
    slope = (at(1e-6) - at(-1e-6)) / 2e-6
    np.testing.assert_allclose((ms.grad(f)(Tensor(z)).asnumpy() * direction).sum(), slope, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("run", [RUNS["program"], RUNS["kernel"]], ids=["program", "kernel"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_of_real_tokens(name, run):
    """Beside num_tokens: those of a rank's own rows, 0 without any; padding has no gradient."""
    ours, theirs = LOSSES[name]
    z, lengths = logits(5, tokens=36).reshape(3, 12, E), (12, 0, 8)
    f = hpmoe.spmd(run(lambda z: (ours(z, 3, "sigmoid"), z)), hpmoe.Mesh(3))
    got = f(Tensor(z), num_tokens=lengths)[0].asnumpy()
    of_some = (np.mean([0.5 * oracle.aux_loss(part, 3, "sigmoid") for part in (z[2, :4], z[2, 4:8])])
               if name == "sequence" else theirs(z[2, :8], 3, "sigmoid"))  # two of three sequences have tokens
    want = [theirs(z[0], 3, "sigmoid"), 0, of_some]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    grad = ms.grad(lambda z: f(z, num_tokens=lengths)[0].sum())(Tensor(z)).asnumpy()
    assert np.isfinite(grad).all() and grad[0].any() and not grad[1].any() and not grad[2, 8:].any()


@in_turn("name, score", [*LOSSES, "no sequences"], SCORES[:2])
def test_losses_of_no_tokens_are_zero(name, score, run):
    loss = {**{n: ours for n, (ours, _) in LOSSES.items()},
            "no sequences": lambda z, k, score: router.sequence_loss(z, k, 0, score=score)}[name]
    value, slope = ms.value_and_grad(run(lambda z: loss(z, 3, score)))(ms.mint.zeros((0, E)))
    assert float(value) == 0 and slope.shape == (0, E)


def test_the_global_loss_leaves_experts_of_minus_infinity_out():
    z, n = logits(5), STEPS[0].copy()
    z[:, 3], n[3] = -np.inf, 0
    found, want = (float(router.global_batch_loss(Tensor(logits), Tensor(counts))) for logits, counts in (
        (z, n), (np.delete(z, 3, 1), np.delete(n, 3))))
    assert found == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("name", ["aux", "sequence", "global"])
def test_losses_rise_with_imbalance(name):
    """From 1, where all experts get the same, with every push towards one of them."""
    base = np.kron(np.ones((10, 1)), 6 * np.eye(4)).astype(np.float32)
    def loss(push):
        z = base + push * np.eye(4, dtype=np.float32)[0]
        if name == "sequence":
            return float(router.sequence_loss(Tensor(z), 1, 2))
        counts = router.tokens_per_expert(hpmoe.route(Tensor(z), 1)[0], num_experts=4)
        return float(router.aux_loss(Tensor(z), 1) if name == "aux" else router.global_batch_loss(Tensor(z), counts))
    losses = [loss(push) for push in (0.0, 5.0, 6.5, 8.0, 12.0)]
    assert losses[0] == pytest.approx(1.0, rel=1e-5) and np.diff(losses).min() > -1e-5 and losses[-1] > 3.5
