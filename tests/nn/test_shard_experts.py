"""Weights as the ranks of a mesh hold them, and Cells on meshes whose ranks share experts."""

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import shard_experts, unshard_experts

MESHES = [hpmoe.Mesh(1), hpmoe.Mesh(2), hpmoe.Mesh(1, tp=3), hpmoe.Mesh(2, tp=2), hpmoe.Mesh(4, tp=6)]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("split, shape", [("gate_up", (4, 5, 24)), ("gate_up", (4, 24)), ("columns", (4, 5, 12)),
                                          ("rows", (4, 12, 5)), ("first", (4, 5))])
def test_shards_are_slices_and_come_together_again(mesh, split, shape):
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    parts = shard_experts(weight, mesh, split)
    for rank in range(mesh.num_ranks):
        group, s = divmod(rank, mesh.tp)
        mine = np.split(weight, mesh.ep)[group]
        if split == "gate_up":
            mine = np.concatenate([np.split(half, mesh.tp, -1)[s] for half in np.split(mine, 2, -1)], -1)
        elif split == "first":
            mine = mine if s == 0 else np.zeros_like(mine)
        else:
            mine = np.split(mine, mesh.tp, 1 if split == "rows" else -1)[s]
        assert (parts[rank] == mine).all()
    assert (unshard_experts(parts, mesh, split) == weight).all()
    tensors = shard_experts(ms.Tensor(weight), mesh, split)
    assert (tensors.asnumpy() == parts).all() and (unshard_experts(tensors, mesh, split).asnumpy() == weight).all()


LAYER = {"hidden_size": 8, "moe_ffn_hidden_size": 6, "num_moe_experts": 4, "moe_router_topk": 2, "init_method_std": 0.5,
         "moe_aux_loss_coeff": 0.1, "moe_shared_expert_intermediate_size": 4}


def trained(options, mesh, in_graph=False):
    """Output, counts, loss and all gradients of a layer."""
    ms.set_seed(3)
    layer = hpmoe.nn.MoELayer(**LAYER, **options, mesh=mesh)
    for p in layer.get_parameters():
        if "bias" in p.name:
            p.set_data(ms.Tensor(np.random.default_rng(5).standard_normal(p.shape), p.dtype))
    x = ms.Tensor(np.random.default_rng(1).standard_normal((4, 6, 8)), ms.float32)

    def loss(x):
        out, losses = layer(x, with_losses=True)
        return (out ** 2).sum() + losses, out
    weights = list(layer.trainable_params())
    grad = ms.value_and_grad(loss, 0, weights, has_aux=True)
    (value, out), (dx, grads) = (ms.jit(grad) if in_graph else grad)(x)
    return {"loss": value, "out": out, "x": dx, "counts": layer.tokens_per_expert, **{
        p.name: g for p, g in zip(weights, grads, strict=True)}}


@pytest.mark.parametrize("options", [
    {}, {"add_bias_linear": True}, {"gated_linear_unit": False, "activation": ms.mint.nn.functional.gelu},
    {"moe_apply_probs_on_input": True, "moe_expert_capacity_factor": 1.0}], ids=["plain", "biases", "no gate", "on input"])
def test_a_layer_on_shards_is_the_layer_on_as_many_ranks(options):
    whole, shards = (trained(options, mesh) for mesh in (hpmoe.Mesh(4), hpmoe.Mesh(2, tp=2)))
    for name, expected in whole.items():
        a, b = shards[name].asnumpy(), expected.asnumpy()
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1.0, abs(b).max()), err_msg=name)


def test_a_layer_on_shards_in_a_graph():
    eager, graph = (trained({"add_bias_linear": True}, hpmoe.Mesh(2, tp=2), in_graph) for in_graph in (False, True))
    for name, value in eager.items():
        assert value.asnumpy().tobytes() == graph[name].asnumpy().tobytes(), name


def test_experts_in_shards_move_between_groups():
    ms.set_seed(3)
    layer = hpmoe.nn.MoELayer(**{**LAYER, "num_moe_experts": 8}, mesh=hpmoe.Mesh(2, tp=2))
    layer.balance(every=1, replicas=1, min_gain=0.0)
    weights = layer.trainable_params()
    optimizer = ms.nn.SGD(weights, 0.0)
    x = ms.Tensor(np.random.default_rng(1).standard_normal((4, 6, 8)), ms.float32)
    before = layer(x).asnumpy()
    layer.counted_tokens.set_data(ms.Tensor([[90, 80, 70, 5, 1, 1, 1, 1]] * 2, ms.int64))
    move = layer.rebalance(optimizer)
    assert move.moved and move.after < move.before
    np.testing.assert_allclose(layer(x).asnumpy(), before, rtol=1e-5, atol=1e-6)
