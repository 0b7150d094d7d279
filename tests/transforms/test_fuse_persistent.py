"""fuse_persistent: one plan serves many routings, forward and backward have one each, and plans are bounded."""

import jax
import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, jax_moe_ffn, jax_vjp, numpy_moe_ffn, run_spmd, tensors
from mindspore import ops

import hpmoe
from hpmoe import Mesh, spmd


def test_new_routing_hits_the_plan():
    f = spmd(fused()(hpmoe.moe_ffn), Mesh(2))
    layers = [Layer(T=6, routing=r) for r in ("random", "one expert", "one rank", "random")]
    for seed, layer in enumerate(layers):
        args = layer.arguments(seed)
        assert_close([f(*tensors(args)).asnumpy()], [numpy_moe_ffn(args, layer.cotangent())[0]])
    info = f.cache_info()
    assert (info.hits, info.misses, info.currsize) == (3, 1, 1)


def test_forward_and_backward_are_a_plan_each():
    layer, f = Layer(), spmd(fused()(hpmoe.moe_ffn), Mesh(2))
    for seed in range(3):
        ms.grad(lambda *a: f(*a).sum(), (0, 3))(*tensors(layer.arguments(seed)))
    assert f.cache_info().misses == 2


def run_shapes(f, shapes):
    for rows in shapes:
        f(*tensors([np.ones((rows, 4), np.float32)]))


def test_each_of_a_hundred_shapes_is_planned_once():
    f = hpmoe.tile_partition(hpmoe.swiglu)
    for _ in range(3):
        run_shapes(f, range(1, 101))
    info = f.cache_info()
    assert (info.misses, info.hits, info.currsize) == (100, 200, 100)
    assert 100 * 1000 < info.num_bytes < info.max_bytes == 256 << 20


def test_plans_are_bounded_by_bytes_and_thrashing_warns_once():
    f = hpmoe.tile_partition(hpmoe.swiglu)
    run_shapes(f, [1])
    plans = f._runner.plans._plans
    plans.most_bytes = int(5.5 * plans.num_bytes)
    run_shapes(f, range(1, 9))
    info = f.cache_info()
    assert (info.misses, info.hits, info.currsize) == (8, 1, 5) and info.num_bytes <= info.max_bytes
    run_shapes(f, [8])
    assert f.cache_info().hits == 2
    with pytest.warns(UserWarning, match=r"swiglu: plans of its calls take more than 0 MiB, so they are made again\. Pad"):
        run_shapes(f, [1])
    run_shapes(f, range(1, 9))  # warnings are errors


def test_a_crowded_rank_gets_a_larger_plan():
    """A plan serves a bucket of received rows: a much fuller rank is planned again, a slightly fuller rank is not."""
    f = spmd(fused(rows=16)(hpmoe.moe_ffn), Mesh(4))
    balanced = Layer(ep=4, T=80, E=4, K=1)
    args = balanced.arguments()
    for crowd, misses in ((0, 1), (2, 1), (80, 2)):
        ids = (np.arange(80)[None, :, None] % 4).repeat(4, 0).astype(np.int32)
        ids[:, :crowd] = 0
        args[1] = ids
        assert_close([f(*tensors(args)).asnumpy()], [numpy_moe_ffn(args, balanced.cotangent())[0]])
        assert f.cache_info().misses == misses


@pytest.mark.parametrize("crowded", ["first", "second"])
def test_backward_of_one_of_two_routes_is_planned_for_that_route(crowded):
    """The backward pass reads the second route only; its plan can hold that route's rows, not for the first's."""
    calm, busy = Layer(T=200, K=1), Layer(T=200, K=1, routing="one expert")
    layers = (busy, calm) if crowded == "first" else (calm, busy)
    args = [*layers[0].arguments(0), *layers[1].arguments(1)[1:]]

    def f(x, ids, w, up, down, *second):
        return hpmoe.moe_ffn(ops.stop_gradient(hpmoe.moe_ffn(x, ids, w, up, down)) + x, *second)

    def in_jax(x, ids, w, up, down, *second):
        return jax_moe_ffn(jax.lax.stop_gradient(jax_moe_ffn(x, ids, w, up, down)) + x, *second)

    cotangent, positions = calm.cotangent(), (0, 6, 7, 8)
    want, want_grads = jax_vjp(in_jax, args, cotangent, positions)
    outs, grads = run_spmd(fused(rows=16, cols=8)(f), 2, args, [cotangent], positions=positions)
    assert_close([*outs, *grads], [want, *want_grads])
