"""A layer in the style of Megatron-LM and MindFormers is the layer with dispatch and combine: at every stage, to the bit."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, fused, tensors

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct

EP, T, H, WIDTH, E, K = 2, 12, 16, 8, 2, 3
PARTS = {"hidden_states": ((T, H), "float32"), "topk_ids": ((T, K), "int32"), "topk_weights": ((T, K), "float32"),
         "gate_up_weight": ((E, H, 2 * WIDTH), "float32"), "down_weight": ((E, WIDTH, H), "float32")}
AVALS = [ShapeDtypeStruct(*part) for part in PARTS.values()]


def moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    permuted, sorted_indices = hpmoe.token_ops.permute(hidden_states, topk_ids)
    received, route = hpmoe.token_ops.exchange(permuted, topk_ids, num_local_experts=gate_up_weight.shape[0])
    act = hpmoe.swiglu(hpmoe.grouped_matmul(received, gate_up_weight, route))
    out = hpmoe.token_ops.exchange_back(hpmoe.grouped_matmul(act, down_weight, route), route)
    return hpmoe.token_ops.unpermute(out, sorted_indices, topk_weights)


def arrays(absent=False, seed=0):
    rng = np.random.default_rng(seed)
    made = [rng.standard_normal((EP, *shape)).astype(np.float32) for shape, _ in PARTS.values()]
    made[1] = rng.random((EP, T, EP * E)).argsort(-1)[..., :K].astype(np.int32)
    if absent:
        made[1][rng.random(made[1].shape) < 0.3] = -1
    return made


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_stage_has_the_same_text(direction):
    mesh, machine = Mesh(EP), hpmoe.cpu(num_workers=2)
    chains = [hpmoe.save_for_backward, hpmoe.tile_partition(rows=8),
              hpmoe.chain(hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues(machine=machine))]
    for chain in chains:
        mine, theirs = (str(chain(f).lower(*AVALS, mesh=mesh, direction=direction)) for f in (moe_ffn, hpmoe.moe_ffn))
        assert mine == theirs


def test_a_kernel_computes_the_same_bits_both_ways():
    def run(f):
        layer = hpmoe.spmd(fused()(f), Mesh(EP))
        return layer(*tensors(arrays())), *ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2, 3, 4))(*tensors(arrays()))
    for mine, theirs in zip(run(moe_ffn), run(hpmoe.moe_ffn), strict=True):
        np.testing.assert_array_equal(mine.asnumpy(), theirs.asnumpy())


def test_wide_ids_are_the_same_ids():
    def wide(x, ids, *rest):
        return moe_ffn(x, ids.astype(ms.int64), *rest)
    assert [e.primitive.name for e in hpmoe.trace(wide, *AVALS, mesh=Mesh(EP)).equations][:2] == ["route", "dispatch"]


def between(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    permuted, sorted_indices = hpmoe.token_ops.permute(hidden_states, topk_ids)
    received, route = hpmoe.token_ops.exchange(permuted * 2.0, topk_ids, num_local_experts=gate_up_weight.shape[0])
    out = hpmoe.token_ops.exchange_back(received * 3.0, route)
    return hpmoe.token_ops.unpermute(out * 5.0, sorted_indices, topk_weights)


def combined(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    received, route = hpmoe.dispatch(hidden_states * 2.0, topk_ids, num_local_experts=gate_up_weight.shape[0])
    return hpmoe.combine(received * 15.0, route, topk_weights)


@pytest.mark.parametrize("absent", [False, True])
def test_what_lies_between_is_computed_between(absent):
    given = arrays(absent)

    def of(f):
        layer = hpmoe.spmd(hpmoe.save_for_backward(f), Mesh(EP))
        grads = ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2))(*tensors(given))
        return [x.asnumpy() for x in (layer(*tensors(given)), *grads)]
    for mine, theirs in zip(of(between), of(combined), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_on_tensors_it_is_the_layer_of_one_rank():
    layer = Layer(ep=1)
    for ids in (layer.arguments()[1][0], np.where(layer.arguments()[1][0] == 1, -1, layer.arguments()[1][0])):
        given = tensors(a[0] for a in layer.arguments())
        given[1] = ms.Tensor(ids.astype(np.int32))
        np.testing.assert_allclose(moe_ffn(*given).asnumpy(), hpmoe.moe_ffn(*given).asnumpy(), rtol=1e-4, atol=1e-5)


def other_ids(x, ids, more):
    permuted, _ = hpmoe.token_ops.permute(x, more)
    return hpmoe.token_ops.exchange(permuted, ids, num_local_experts=2)[0]


def test_rows_sorted_by_other_ids_are_not_dispatched():
    with pytest.raises(hpmoe.TransformError, match="hpmoe.token_ops.exchange of permuted rows by the same topk_ids"):
        hpmoe.tile_partition(other_ids).lower(ShapeDtypeStruct((4, 3), "float32"), ShapeDtypeStruct((4, 1), "int32"),
                                              ShapeDtypeStruct((4, 1), "int32"))
