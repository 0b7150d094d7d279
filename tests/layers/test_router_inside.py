"""Layers whose router is inside the function: values and all gradients against JAX, at every stage of the chain."""

import functools

import jax
import mindspore as ms
import numpy as np
import pytest
from helpers import (
    Layer,
    assert_close,
    at_stages,
    bitwise_equal,
    fused,
    jax_moe_ffn,
    jax_vjp,
    kept_by_hand,
    nothing,
    run_spmd,
    stages,
    tensors,
)
from jax import numpy as jnp
from mindspore import mint
from router_layers import (
    LAYERS,
    arguments,
    expected,
    jax_router,
    num_layers,
    positions,
    routed_ffn,
    router,
    side_by_side,
    two_layers,
)

import hpmoe
from hpmoe import Mesh, save_for_backward, spmd
from hpmoe.ir.stages import Stages


def assert_as_jax(f, layer, staged):
    outs, grads = run_spmd(staged, layer.ep, arguments(layer, num_layers(f)), [layer.cotangent()], layer.num_tokens,
                           positions(f))
    want, want_grads = expected(f, layer)
    assert_close([*outs, *grads], [want, *want_grads])
    return [*outs, *grads]


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    assert_as_jax(routed_ffn, LAYERS[name], stages()[stage](routed_ffn))


@pytest.mark.parametrize("f, name, stage", [
    (two_layers, "two ranks", "plain"), (two_layers, "two ranks", "tiles"), (two_layers, "uneven", "fused"),
    (side_by_side, "uneven", "plain"), (side_by_side, "uneven", "tiles"), (side_by_side, "uneven", "fused")])
def test_two_layers(f, name, stage):
    assert_as_jax(f, LAYERS[name], stages()[stage](f))


@pytest.mark.parametrize("f, policies", [(routed_ffn, ["recompute_swiglu", nothing]),
                                         (two_layers, ["dispatched_rows", nothing])])
def test_gradients_are_the_same_whatever_is_saved(f, policies):
    layer = LAYERS["two ranks"]
    everything = assert_as_jax(f, layer, fused()(f))
    for policy in policies:
        assert bitwise_equal(assert_as_jax(f, layer, fused()(save_for_backward(f, policy=policy))), everything)


def test_capacity_drops_by_weights_that_are_computed():
    layer = Layer(ep=2, T=8)
    args, cotangent = arguments(layer), layer.cotangent()

    def f(x, gate, up, down):
        ids, weights = router(x, gate, 2)
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2, capacity_factor=0.75, drop_policy="probs",
                                     topk_weights=weights)
        out = hpmoe.grouped_matmul(hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route)), down, route)
        return hpmoe.combine(out, route, weights), hpmoe.router.drop_counts(route)

    ids, weights = (np.asarray(a) for a in jax_router(args[0], args[1], 2))
    kept, dropped = kept_by_hand(ids, weights, 0.75, "probs", 4)

    def in_jax(x, gate, up, down):
        ids, weights = jax_router(x, gate, 2)
        return jax_moe_ffn(x, ids, jnp.where(kept, weights, 0), up, down)

    want, want_grads = jax_vjp(in_jax, args, cotangent, (0, 1, 2, 3))
    counts = np.zeros(dropped.shape, np.float32)
    for stage in ("plain", "tiles", "fused"):
        for policy in ("everything", nothing):
            staged = stages()[stage](save_for_backward(f, policy=policy))
            outs, grads = run_spmd(staged, 2, args, [cotangent, counts], positions=(0, 1, 2, 3))
            assert dropped.any() and (outs[1] == dropped).all()
            assert_close([outs[0], *grads], [want, *want_grads])


@pytest.mark.parametrize("f, forward", [(routed_ffn, 2), (side_by_side, 2), (two_layers, 3)])
def test_launches(f, forward):
    """One for each exchange of ids that are computed, and one before them; one for all of the backward."""
    layer = LAYERS["two ranks"]
    args, staged = tensors(arguments(layer, num_layers(f))), spmd(fused()(f), Mesh(2))
    grad = ms.grad(lambda *a: staged(*a).sum(), positions(f))
    _, timelines = hpmoe.measure(grad, *args)
    name = f.__name__
    assert [t.flow.name for t in timelines] == [*(f"{name}_stage_{i}" for i in range(forward)), f"{name}_vjp"]


def test_a_function_under_a_transform_of_ones_own():
    seen = []

    @hpmoe.transform(requires="tiles")
    def noted(flow):
        seen.append(flow.name)
        return flow

    layer = LAYERS["two ranks"]
    staged = hpmoe.chain(hpmoe.tile_partition, noted, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    assert_as_jax(routed_ffn, layer, staged(routed_ffn))
    assert set(seen) == {"routed_ffn_stage_0", "routed_ffn_stage_1", "routed_ffn_vjp"}


def noisy(x, gate, up, down, seed):
    ids, weights = hpmoe.route(x @ gate, 2, jitter=0.2, expert_dropout=0.2, temperature=0.7, seed=seed)
    return hpmoe.moe_ffn(x, ids, weights, up, down)


def test_the_backward_never_draws_again():
    """Not even where nothing is saved, and the seed is another one by then."""
    args, seed = tensors(arguments(LAYERS["two ranks"])), ms.Tensor([5, 6], ms.int32)

    def gradients(policy, seed):
        staged = spmd(fused()(save_for_backward(noisy, policy=policy)), Mesh(2))

        def loss(*given):
            out = staged(*given, seed)
            seed.asnumpy()[...] = 99  # after the forward pass
            return (out ** 2).sum()

        return [g.asnumpy() for g in ms.grad(loss, positions(routed_ffn))(*args)]

    want = gradients("everything", seed.copy())
    assert bitwise_equal(gradients(nothing, seed.copy()), want)
    assert not np.allclose(gradients(nothing, seed + 1)[0], want[0])
    backward = spmd(save_for_backward(noisy, policy=nothing), Mesh(2)).lower(*args, seed, direction="backward")
    assert not any(e.primitive.name in ("draw", "top_k") for e in backward.equations)


def test_choices_that_are_left_out():
    """Top-p by ids of -1: experts until their probabilities add up to 0.6."""
    layer = Layer(ep=2, T=7)
    args, cotangent = arguments(layer), layer.cotangent()

    def f(x, gate, up, down):
        weights, ids = mint.topk(mint.softmax(x @ gate, dim=-1), 3, dim=-1)
        before = mint.cumsum(weights, -1) - weights
        return hpmoe.moe_ffn(x, mint.where(before < 0.6, ids.astype(ms.int32), -1), weights, up, down)

    def in_jax(x, gate, up, down):
        probs = jax.nn.softmax(jnp.einsum("rth,rhe->rte", x, gate))
        weights, ids = jax.lax.top_k(probs, 3)
        is_chosen = jnp.cumsum(weights, -1) - weights < 0.6
        return jax_moe_ffn(x, ids, jnp.where(is_chosen, weights, 0), up, down)

    want, want_grads = jax_vjp(in_jax, args, cotangent, (0, 1, 2, 3))
    for stage in ("plain", "tiles", "fused"):
        outs, grads = run_spmd(stages()[stage](f), 2, args, [cotangent], positions=(0, 1, 2, 3))
        assert_close([*outs, *grads], [want, *want_grads])


# Given ids in other forms.

GIVEN = {
    "of batches": lambda ids, ep: (ids.reshape(ep, 3, 2, 2), lambda x: x.reshape(-1, 2)),
    "flat": lambda ids, ep: (ids.reshape(ep, 12), lambda x: x.reshape(6, 2)),
    "in other groups": lambda ids, ep: (ids.reshape(ep, 4, 3), lambda x: x.reshape(6, 2)),
    "int64": lambda ids, ep: (ids.astype(np.int64), lambda x: x),
    "int64 of batches": lambda ids, ep: (ids.astype(np.int64).reshape(ep, 2, 3, 2), lambda x: x.reshape(-1, 2)),
    "cast": lambda ids, ep: (ids.astype(np.int64), lambda x: x.astype(ms.int32)),
    "cut": lambda ids, ep: (np.concatenate([ids, ids + 9], -1), lambda x: x[:, :2]),
    "shifted": lambda ids, ep: (ids + 1, lambda x: x - 1),
    "chosen": lambda ids, ep: (np.where(ids > 1, ids, -1 - ids), lambda x: mint.where(x > 1, x, -1 - x)),
}
ONE_LAUNCH = ("of batches", "flat", "in other groups", "int64", "int64 of batches")


@functools.cache
def of_given_ids():
    layer = Layer(ep=2, T=6)
    return layer, layer.arguments(), jax_vjp(jax_moe_ffn, layer.arguments(), layer.cotangent(), (0, 2, 3, 4))


@pytest.mark.parametrize("name, stage", at_stages(GIVEN))
def test_given_ids_in_another_form(name, stage):
    layer, args, (want, want_grads) = of_given_ids()
    ids, back = GIVEN[name](args[1], layer.ep)

    def f(x, ids, weights, up, down):
        return hpmoe.moe_ffn(x, back(ids), weights, up, down)

    staged, given = stages()[stage](f), [args[0], ids, *args[2:]]
    outs, grads = run_spmd(staged, 2, given, [layer.cotangent()])
    assert_close([*outs, *grads], [want, *want_grads])
    lowered = spmd(staged, Mesh(2)).lower(*tensors(given))
    assert isinstance(lowered, Stages) == (name not in ONE_LAUNCH)
    (padded,), _ = run_spmd(staged, 2, given, [layer.cotangent()], num_tokens=(4, 1))
    assert_close([padded[0, :4], padded[1, :1]], [want[0, :4], want[1, :1]])
    assert not padded[0, 4:].any() and not padded[1, 1:].any()


# What is wrong.

def test_ids_out_of_range_say_what_computed_them():
    layer, args, _ = of_given_ids()

    def f(x, ids, weights, up, down):
        return hpmoe.moe_ffn(x, ids + 1, weights, up, down)

    for stage in ("plain", "tiles", "fused"):
        with pytest.raises(hpmoe.ArgumentError) as error:
            spmd(stages()[stage](f), Mesh(2))(*tensors(args))
        assert "topk_ids[" in str(error.value) and "is 4; it must be an expert id in 0..3, or -1" in str(error.value)
        assert "They are computed by add, written at tests/layers/test_router_inside.py:" in str(error.value)


@pytest.mark.parametrize("stage, name", [("plain", "equations"), ("tiles", "tasks"), ("queues", "queues"),
                                         ("fused", "flow")])
def test_what_each_stage_has_is_said_to_be_of_each(stage, name):
    args = tensors(arguments(LAYERS["two ranks"]))
    staged = spmd(stages()[stage](hpmoe.save_for_backward(routed_ffn)), Mesh(2))
    lowered = staged.lower(*args)
    with pytest.raises(AttributeError, match=rf"{name} is of each stage: routed_ffn computes its ids, so lower returns 2"):
        getattr(lowered, name)
    assert [getattr(stage, name) is not None for stage in lowered] == [True, True]
    assert (lowered.name, lowered.direction) == ("routed_ffn", "forward") and not hasattr(lowered, "colour")
    for f in (staged, staged.function):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; it is of the IR that lower returns"):
            getattr(f, name)
        assert not hasattr(f, "colour")
