"""Ids of -1, which are no expert, at every stage: against NumPy and JAX in float64, and against brute force."""

import re

import mindspore as ms
import numpy as np
import pytest
from absent import ABSENT, TRANSFORMS, without
from capped import assert_drops_by_hand, capped
from helpers import (
    SMALL_NPU,
    Layer,
    assert_close,
    at_stages,
    avals_of,
    kept_by_hand,
    numpy_moe_ffn,
    stages,
    tensors,
)
from hypothesis import given, settings, strategies as st

import hpmoe
from hpmoe.ir.layout import Layout

LAYERS = {
    "several tiles": Layer(ep=2, T=7, E=6, K=3),
    "one rank": Layer(ep=1, T=9, E=5, K=3),
    "one choice": Layer(ep=2, T=6, K=1),
    "eight ranks": Layer(ep=8, T=3, E=8, K=2, H=3, I=2),
    "uneven": Layer(ep=3, T=6, E=6, K=4, num_tokens=(6, 0, 3)),
    "no tokens": Layer(ep=2, T=0),
    "one expert takes all": Layer(ep=2, T=8, E=4, K=1, routing="one expert"),
}


def assert_equals_numpy(stage, layer, pattern, factor=None, policy="error", seed=0):
    """Compares output, gradients and drop counts of moe_ffn with NumPy; masked entries leave exact zeros."""
    args, left = without(layer, pattern, seed)
    (out, d_x, d_weights, *_), dropped = assert_drops_by_hand(stage, layer, args, factor, policy, pattern)
    assert not d_weights[~left].any() and not out[~left.any(axis=-1)].any() and not d_x[~left.any(axis=-1)].any()
    return dropped


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_pattern_at_every_stage(name, stage):
    for pattern in ABSENT if (name, stage) == ("several tiles", "fused") else list(ABSENT)[len(name) % 4::4]:
        assert_equals_numpy(stages()[stage], LAYERS[name], pattern)


@pytest.mark.parametrize("policy, factor, stage", [
    ("error", 6.0, "plain"), ("error", 6.0, "fused"), ("position", 0.4, "overlap"), ("position", 0.4, "fused"),
    ("probs", 0.4, "blocking"), ("probs", 0.01, "fused")])
def test_every_drop_policy(policy, factor, stage):
    """Masked entries take no capacity, and their NaN weights do not change which entries are dropped."""
    dropped = [assert_equals_numpy(stages()[stage], LAYERS[("several tiles", "uneven")[i % 2]], pattern, factor, policy)
               for i, pattern in enumerate(list(ABSENT)[stage == "fused"::2])]
    dropped.append(assert_equals_numpy(stages()[stage], LAYERS["no tokens"], "a part", factor, policy))
    assert any(dropped) == (policy != "error")


def test_capacity_is_that_of_all_tokens():
    """Ids of -1 neither fill an expert nor shrink it: 4 tokens, 2 experts and a factor of 1 leave room for 2."""
    ids = np.array([[-1], [0], [-1], [0]], np.int32)
    x = ms.Tensor(np.ones((4, 1), np.float32))
    rows, route = hpmoe.dispatch(x, ms.Tensor(ids), num_local_experts=2, capacity_factor=1.0)
    assert rows.shape == (2, 1) and hpmoe.router.drop_counts(route).asnumpy().tolist() == [0, 0]
    with pytest.raises(hpmoe.ArgumentError, match="chose expert 0 is 3; it must be at most 2"):
        hpmoe.dispatch(x, ms.Tensor(np.where(ids < 0, [[0], [0], [-1], [0]], ids).astype(np.int32)), num_local_experts=2,
                       capacity_factor=1.0)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_layer(data):
    ep = data.draw(st.integers(1, 8))
    experts = ep * data.draw(st.integers(1, 3))
    tokens = data.draw(st.integers(0, 6))
    lengths = st.none() | st.tuples(*[st.integers(0, tokens)] * ep)
    layer = Layer(ep=ep, T=tokens, H=3, I=2, E=experts, K=data.draw(st.integers(1, min(4, experts))),
                  num_tokens=data.draw(lengths))
    factor, policy = data.draw(st.sampled_from([(None, "error"), (0.3, "position"), (0.6, "probs")]))
    transform = data.draw(st.sampled_from(list(TRANSFORMS)))
    made = TRANSFORMS[transform](layer)
    stage = stages(rows=data.draw(st.integers(1, 4)), signal=data.draw(st.sampled_from(["tile", "expert", "peer"])))[
        data.draw(st.sampled_from(list(stages())))]
    assert_equals_numpy(lambda f: stage(made(f)), layer, data.draw(st.sampled_from(list(ABSENT))), factor, policy,
                        data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("transform, stage, policy, factor", [  # test_any_layer draws the others
    ("deduplicated", "fused", "position", 0.5), ("deduplicated", "plain", "probs", 0.5),
    ("replicate_experts", "fused", "probs", 0.5), ("replicate_experts", "plain", "error", None),
    ("both", "fused", "error", None), ("both", "fused", "position", 0.5), ("both", "plain", "probs", 0.5)])
def test_under_other_transforms(transform, stage, policy, factor):
    for i, layer in enumerate((Layer(ep=2, T=7, E=8, K=4), Layer(ep=4, T=4, E=8, K=3, num_tokens=(4, 0, 2, 4)))):
        made = TRANSFORMS[transform](layer)
        for pattern in list(ABSENT)[len(policy) + i::6]:
            assert_equals_numpy(lambda f: stages()[stage](made(f)), layer, pattern, factor, policy)  # noqa: B023


def test_a_token_goes_to_no_rank_where_it_has_no_expert():
    """Deduplicated: token 0 has experts of rank 0 alone, token 1 of none, token 2 of both."""
    ids = np.array([[[1, 0, -1], [-1, -1, -1], [-1, 3, 0]], [[-1, -1, -1]] * 3], np.int32)
    layer = Layer(ep=2, T=3, E=4, K=3)
    args = layer.arguments()
    args[1] = ids
    flow = stages()["overlap"](hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated")).lower(*avals_of(args),
                                                                                            mesh=hpmoe.Mesh(2))
    layout = Layout(flow, [list(ids)] * len(flow.routes), None)
    by_expert, by_rank = sorted(layout.routings, key=lambda r: r.experts is not None)
    assert by_expert.counts.tolist() == [[2, 1, 0, 1], [0, 0, 0, 0]]
    assert by_rank.counts.tolist() == [[2, 1], [0, 0]]


@pytest.mark.parametrize("pattern, policy", [*((pattern, "error") for pattern in ABSENT), ("none", "position"),
                                             ("none", "probs"), ("a part", "probs")])
def test_outside_a_trace(pattern, policy):
    """Call by call, by MindSpore's own gradients."""
    layer, factor = Layer(ep=1, T=9, E=5, K=3), None if policy == "error" else 0.6
    args, _ = without(layer, pattern)
    cotangent = layer.cotangent()
    kept, dropped = kept_by_hand(args[1], args[2], factor or 1e9, policy, layer.E)
    given, weight = [ms.Tensor(a[0]) for a in args], ms.Tensor(cotangent[0])

    def loss(x, w, up, down):
        out, counts = capped(factor, policy)(x, given[1], w, up, down)
        return (out * weight).sum(), out, counts

    (_, out, counts), grads = ms.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(given[0], *given[2:])
    want, want_grads = numpy_moe_ffn(args, cotangent, None, kept)
    assert_close([out.asnumpy(), *(g.asnumpy() for g in grads)], [want[0], *(g[0] for g in want_grads)])
    assert counts.asnumpy().tolist() == dropped[0].tolist()


@pytest.mark.parametrize("dtype", [ms.bfloat16, ms.float16])
def test_half_precision(dtype):
    """Without any expert everything is zero, in the dtype of its argument."""
    layer = Layer(ep=2, T=6)
    for pattern in ("all", "a part"):
        args, _ = without(layer, pattern)
        x, ids, *rest = tensors(args)
        f = hpmoe.spmd(stages()["fused"](hpmoe.moe_ffn), hpmoe.Mesh(2))

        def loss(x, w, up, down):
            return f(x, ids, w, up, down).astype(ms.float32).sum()  # noqa: B023

        grads = ms.grad(loss, (0, 1, 2, 3))(*(a.astype(dtype) for a in (x, *rest)))
        want = numpy_moe_ffn(args, np.ones((2, 6, layer.H), np.float32))[1]
        assert all(g.dtype == dtype for g in grads)
        assert_close([g.astype(ms.float32).asnumpy() for g in grads], want, tolerance=5e-2)


# Plans and the simulator.

def test_planned_rows_are_those_that_are_sent():
    """A rank receives what has an expert: the plan of nearly nothing is small."""
    sizes = {}
    for pattern in ("none", "most"):
        args, left = without(Layer(ep=2, T=512, E=4, K=2), pattern)
        ir = stages(rows=64, cols=64)["fused"](hpmoe.moe_ffn)
        sizes[pattern] = hpmoe.spmd(ir, hpmoe.Mesh(2)).lower(*tensors(args)).flow.routes[0].max_rows
        received = [int(((args[1] // 2 == r) & left).sum()) for r in range(2)]
        assert max(received) <= sizes[pattern] <= 1.5 * max(received) + 64
    assert sizes["most"] * 4 < sizes["none"]


def test_a_simulated_launch_sends_less():
    avals = [hpmoe.ShapeDtypeStruct(s, d) for s, d in [((256, 64), "float32"), ((256, 2), "int32"), ((256, 2), "float32"),
                                           ((4, 64, 64), "float32"), ((4, 32, 64), "float32")]]
    ids = np.argsort(np.random.default_rng(0).random((2, 256, 8)), axis=-1)[..., :2].astype(np.int32)
    flow = stages(rows=32, cols=32, machine=SMALL_NPU)["queues"](hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(2))
    none, half = (np.where(ABSENT[p](ids, np.random.default_rng(1)), -1, ids) for p in ("all", "a part"))
    spans = [hpmoe.simulate(flow, routing=list(i)).span for i in (none, half, ids)]
    assert spans[0] < spans[1] < spans[2]
    with pytest.raises(hpmoe.ArgumentError, match=r"routing\[0\] is int32 of shape \(256, 2\) in -2..7; it must be ints of "
                                                  r"shape \(256, 2\) in 0..7, or -1 for no expert"):
        hpmoe.simulate(flow, routing=[np.where(ids[0] == 0, -2, ids[0]).astype(np.int32), ids[1]])


# Errors.

@pytest.mark.parametrize("stage", ["plain", "queues", "fused"])
@pytest.mark.parametrize("wrong", [-2, -2**31, 4, 2**31 - 1])
def test_other_ids_are_out_of_range(wrong, stage):
    args, _ = without(Layer(ep=2, T=5), "one token")
    args[1][1, 3, 1] = wrong
    with pytest.raises(hpmoe.ArgumentError) as error:
        hpmoe.spmd(stages()[stage](hpmoe.moe_ffn), hpmoe.Mesh(2))(*tensors(args))
    assert re.fullmatch(rf"hpmoe\.dispatch on rank 1: topk_ids\[3, 1\] is {wrong}; it must be an expert id in 0\.\.3, or -1 "
                        r"for none\. Ids out of range: 1\. The dispatch is written at .*test_absent_entries\.py:\d+\.",
                        str(error.value))


@pytest.mark.parametrize("stage", ["plain", "fused"])
def test_a_weight_that_decides_is_still_a_number(stage):
    args, _ = without(Layer(ep=2, T=5), "a part")
    rank, token, choice = np.argwhere(args[1] >= 0)[-1].tolist()
    args[2][rank, token, choice] = np.nan
    with pytest.raises(hpmoe.ArgumentError, match=rf"on rank {rank}: topk_weights\[{token}, {choice}\] is nan"):
        hpmoe.spmd(stages()[stage](capped(0.5, "probs")), hpmoe.Mesh(2))(*tensors(args))
