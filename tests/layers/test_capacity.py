"""Capacity and drop policies at every stage, against token-by-token NumPy and JAX in float64, and against brute force."""


import numpy as np
import pytest
from capped import assert_drops_by_hand, capped
from helpers import (
    SMALL_NPU,
    Layer,
    assert_close,
    at_stages,
    kept_by_hand,
    lowered,
    numpy_moe_ffn,
    run_spmd,
    stages,
    tensors,
    token_mask,
)

import hpmoe

LAYERS = {
    "several tiles": Layer(ep=2, T=7),
    "one rank": Layer(ep=1, T=9, E=5, K=3),
    "four ranks": Layer(ep=4, T=5, E=8, K=2, H=5, I=2),
    "uneven": Layer(ep=3, T=6, E=6, K=4, num_tokens=(6, 0, 3)),
    "no tokens": Layer(ep=2, T=0),
    "one expert takes all": Layer(ep=2, T=8, E=4, K=1, routing="one expert"),
}
FACTORS = {"several tiles": 0.8, "one rank": 1.0, "four ranks": 0.1, "uneven": 0.75, "no tokens": 1.0,
           "one expert takes all": 1.25}


def num_dropped(stage, layer, factor, policy):
    """Checks the results of a level and returns its number of dropped entries."""
    return assert_drops_by_hand(stage, layer, layer.arguments(), factor, policy)[1]


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
@pytest.mark.parametrize("policy", ["position", "probs"])
def test_every_stage(name, policy, stage):
    dropped = num_dropped(stages()[stage], LAYERS[name], FACTORS[name], policy)
    assert dropped > 0 or name == "no tokens"


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 1.5, 100.0, 2.0**30])
def test_every_factor(factor):
    dropped = num_dropped(stages()["fused"], Layer(ep=2, T=6, E=6, K=3, num_tokens=(6, 5)), factor, "probs")
    assert (dropped == 0) == (factor >= 1.5)


def test_without_pressure_nothing_changes():
    layer = Layer(ep=2, T=6)
    args, cotangent = layer.arguments(), layer.cotangent()
    stage = stages()["fused"]
    plain = run_spmd(stage(hpmoe.moe_ffn), layer.ep, args, [cotangent])
    for policy in ("error", "position", "probs"):
        def f(x, ids, w, up, down, policy=policy):
            return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=8.0, drop_policy=policy)
        for got, want in zip(run_spmd(stage(f), layer.ep, args, [cotangent]), plain, strict=True):
            assert all((a == b).all() for a, b in zip(got, want, strict=True))


def test_what_is_dropped_has_no_effect():
    """Neither a dropped entry's weight nor padding matters, be they infinite or NaN."""
    layer = Layer(ep=2, T=6, E=4, K=2, num_tokens=(6, 4))
    args, cotangent = layer.arguments(), layer.cotangent()
    kept, _ = kept_by_hand(args[1], args[2], 0.5, "position", layer.E, layer.num_tokens)
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens, kept)
    args[2][~kept] = np.nan
    padding = ~token_mask(cotangent.shape, layer.num_tokens)[..., 0]
    args[0][padding], args[1][padding], cotangent[padding] = np.inf, -9, np.nan

    def f(x, ids, w, up, down):
        return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=0.5, drop_policy="position")

    for name in ("plain", "queues", "fused"):
        outs, grads = run_spmd(stages()[name](f), layer.ep, args, [cotangent], layer.num_tokens)
        assert_close([*outs, *grads], [want, *want_grads], name)


@pytest.mark.parametrize("stage", ["plain", "queues", "fused"])
def test_equal_weights_go_by_position(stage):
    """Zeros of either sign are equal, infinities are ordered as numbers are."""
    weights = np.array([[0.0, -0.0, 0.0, np.inf, -np.inf, 1.0, 1.0, -0.0]], np.float32).reshape(1, 8, 1)
    ids = np.zeros((1, 8, 1), np.int32)

    def f(x, ids, w):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2, capacity_factor=1.25, drop_policy="probs", topk_weights=w)
        return hpmoe.combine(rows, route), hpmoe.router.drop_counts(route)

    out, counts = hpmoe.spmd(stages()[stage](f), hpmoe.Mesh(1))(*tensors([np.ones((1, 8, 1), np.float32), ids, weights]))
    assert out.asnumpy().reshape(-1).tolist() == [1, 1, 0, 1, 0, 1, 1, 0]
    assert counts.asnumpy().tolist() == [[3, 0]]


# Memory and plans.

def test_capacity_bounds_the_plan():
    """A rank receives at most ep * local experts * capacity rows under every routing."""
    avals = [hpmoe.ShapeDtypeStruct(s, d) for s, d in [((64, 4), "float32"), ((64, 2), "int32"), ((64, 2), "float32"),
                                           ((4, 4, 6), "float32"), ((4, 3, 4), "float32")]]
    rows = {}
    for factor in (None, 0.5, 1.0, 100.0):
        flow = hpmoe.tile_partition(lambda *a, c=factor: hpmoe.moe_ffn(*a, capacity_factor=c)).lower(
            *avals, mesh=hpmoe.Mesh(2))
        rows[factor] = flow.routes[0].max_rows
    assert rows == {None: 256, 0.5: 64, 1.0: 128, 100.0: 256}


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_a_simulated_launch_drops_too(policy):
    """All tokens choose expert 0: with a capacity its queue is done sooner."""
    avals = [hpmoe.ShapeDtypeStruct(s, d) for s, d in [((256, 64), "float32"), ((256, 1), "int32"), ((256, 1), "bfloat16"),
                                           ((4, 64, 64), "float32"), ((4, 32, 64), "float32")]]
    ids = [np.zeros((256, 1), np.int32)] * 2
    weights = [np.linspace(0, 1, 256, dtype=np.float32)[:, None]] * 2

    def span(factor):
        def f(x, ids, w, up, down):
            rows, route = hpmoe.dispatch(x, ids, num_local_experts=4, capacity_factor=factor, drop_policy=policy,
                                         topk_weights=w)
            act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route))
            return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route)
        flow = stages(rows=32, cols=32, machine=SMALL_NPU)["queues"](f).lower(*avals, mesh=hpmoe.Mesh(2))
        return hpmoe.simulate(flow, routing=ids, topk_weights=weights if policy == "probs" else None).span

    assert span(1.0) < span(4.0) <= 1.01 * span(None)


# Errors.

def over_capacity(layer=Layer(ep=2, T=6, K=1, routing="one expert"), **options):  # noqa: B008
    args = tensors(layer.arguments())
    return lambda stage: hpmoe.spmd(stages()[stage](lambda *a: hpmoe.moe_ffn(*a, capacity_factor=1.5)),
                                    hpmoe.Mesh(layer.ep))(*args, **options)


OVER = ("hpmoe.dispatch on rank 0: the number of tokens that chose expert 3 is 6; it must be at most 3, its capacity: "
        "ceil(6 tokens * 1 / 4 experts * 1.5). Give a capacity_factor of at least 4, or drop what is over: "
        "drop_policy=\"position\" or \"probs\".")


@pytest.mark.parametrize("stage", stages())
def test_over_capacity_is_an_error(stage):
    with pytest.raises(hpmoe.ArgumentError) as error:
        over_capacity()(stage)
    assert str(error.value) == OVER


@pytest.mark.parametrize("stage", ["plain", "queues", "fused"])
def test_a_weight_that_is_no_number(stage):
    layer = Layer(ep=2, T=5, num_tokens=(5, 3))
    args = layer.arguments()
    args[2][1, 4] = np.nan  # padding: nothing
    f = hpmoe.spmd(stages()[stage](capped(0.5, "probs")), hpmoe.Mesh(2))
    f(*tensors(args), num_tokens=layer.num_tokens)
    args[2][1, 2, 1] = np.nan
    with pytest.raises(hpmoe.ArgumentError, match=r"hpmoe.dispatch on rank 1: topk_weights\[2, 1\] is nan"):
        f(*tensors(args), num_tokens=layer.num_tokens)


NATIVE = {
    "error": (None, "6 tokens of rank 0 chose expert 3; its capacity is 3. Give a larger capacity_factor, or drop what is "
              "over: drop_policy=\"position\" or \"probs\"."),
    "probs": ((2, 0), "topk_weights[2, 0] of rank 1 is NaN, and decides what drop_policy=\"probs\" keeps."),
}


@pytest.mark.parametrize("policy", NATIVE)
def test_the_kernel_finds_it_too(policy, monkeypatch):
    """A launch whose host did not look: the prologue ends it, and the next one works."""
    broken, text = NATIVE[policy]
    layer = Layer(ep=2, T=6, K=1, routing="one expert")
    args = layer.arguments()
    args[1][1] = np.arange(6).reshape(6, 1) % 4
    if broken:
        args[2][1][broken] = np.nan
    arrays = [[a[r] for a in args] for r in range(2)]
    f = stages()["fused"](lambda *a: hpmoe.moe_ffn(*a, capacity_factor=1.5, drop_policy=policy))
    kernel = lowered(f, args, 2)
    monkeypatch.setattr("hpmoe.kernels.host_launch.received_rows",
                        lambda flow, *_: [[flow.routes[0].max_rows]] * flow.ep_size)
    for _ in range(2):
        with pytest.raises(hpmoe.LaunchError) as error:
            kernel.run(arrays)
        assert str(error.value) == f"<lambda>: {text}"
    monkeypatch.undo()
    args = Layer(ep=2, T=6, K=1).arguments(1)
    args[1][:] = np.arange(6).reshape(6, 1) % 4
    out = kernel.run([[a[r] for a in args] for r in range(2)])
    assert_close([np.stack([o[0] for o in out])], [numpy_moe_ffn(args, layer.cotangent())[0]])
