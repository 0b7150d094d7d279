"""More of error_cases.py: arguments of Cells, and of spmd's rank axes."""

import mindspore as ms
from error_cases import cases
from mindspore import Tensor, ops

from hpmoe import Mesh, ShapeDtypeStruct, nn, spmd, tile_partition

X = ops.ones((2, 6, 8))
IDS, RECORD = ops.zeros((2, 6, 2), ms.int32), ops.zeros((2, 6, 3, 2), ms.int32)
TWO_RANKS = {"mesh": Mesh(2)}


def _layer(**options):
    return nn.MoELayer(**{"hidden_size": 8, "moe_ffn_hidden_size": 4, "num_moe_experts": 4, **options})


def _made(**options):
    return lambda: _layer(**options)


def _called(x=X, **options):
    return lambda: _layer(**options)(x, with_losses=True)


def _experts(x=X, weights=None, ids=None):
    experts = nn.GroupedMLP(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=4)
    weights = ops.ones((2, 6, 1)) if weights is None else weights
    return lambda: experts(x, weights, ops.zeros((2, 6, 1), ms.int32) if ids is None else ids)


cases("MoELayer", {
    "no hidden size": _made(hidden_size=0),
    "more choices than experts": _made(moe_router_topk=5),
    "an unknown score": _made(moe_router_score_function="relu"),
    "groups that do not divide": _made(moe_router_num_groups=3),
    "more groups than there are": _made(moe_router_num_groups=2, moe_router_group_topk=3),
    "an unknown score of groups": _made(moe_router_group_score="mean"),
    "a negative epsilon": _made(moe_router_norm_epsilon=-1.0),
    "half a zero expert": _made(moe_num_zero_experts=0.5),
    "a scale of words": _made(moe_router_topk_scaling_factor="2.5"),
    "a flag of one": _made(norm_topk_prob=1),
    "another flag of one": _made(moe_router_enable_expert_bias=1),
    "an expert flag of one": _made(gated_linear_unit=1),
    "an unknown loss": _made(moe_router_load_balancing_type="sub_seq_aux_loss"),
    "an auxiliary coefficient of words": _made(moe_aux_loss_coeff="1"),
    "a z coefficient of words": _made(moe_z_loss_coeff="1"),
    "a rate of words": _made(moe_router_bias_update_rate="1"),
    "a shared expert of nothing": _made(moe_shared_expert_intermediate_size=0),
    "an activation by name": _made(activation="silu"),
    "no capacity": _made(moe_expert_capacity_factor=0),
    "an unknown policy": _made(moe_token_drop_policy="none"),
    "a negative deviation": _made(init_method_std=-1),
    "whole numbers as weights": _made(dtype=ms.int32),
    "transforms by name": _made(transforms="fused"),
    "a transform that makes nothing": _made(transforms=lambda f: None),
    "a mesh of a number": _made(mesh=2),
    "ranks that do not divide experts": _made(num_moe_experts=3, **TWO_RANKS),
    "hidden states of integers": lambda: _layer()(X.astype(ms.int32)),
    "fewer tokens without ranks": lambda: _layer()(X, num_tokens=(3, 2)),
    "a mask of numbers": lambda: _layer()(X, padding_mask=ops.ones((2, 6))),
    "a mask of other tokens": lambda: _layer()(X, padding_mask=ops.ones((2, 5)) > 0),
    "hidden states of another size": _called(ops.ones((2, 6, 7))),
    "ranks that do not divide tokens": _called(ops.ones((3, 8)), **TWO_RANKS),
    "ranks that do not divide sequences": _called(ops.ones((3, 2, 8)), moe_router_load_balancing_type="seq_aux_loss",
                                                  **TWO_RANKS),
    "a record without a choice": lambda: _layer()(X, topk_ids=IDS),
    "a choice without a record": lambda: _layer()(X, unset="route"),
    "a layer without a record": lambda: _layer()(X, layer=0),
    "a record of bytes": lambda: _layer()(X, topk_ids=IDS.astype(ms.uint8), unset="mask"),
    "a record of other tokens": lambda: _layer()(X, topk_ids=IDS[:, :1], unset="mask"),
    "a record of NumPy": lambda: _layer()(X, topk_ids=IDS.asnumpy(), unset="mask"),
    "a layer that was not recorded": lambda: _layer()(X, topk_ids=RECORD, unset="mask", layer=3),
    "an update of no bias": lambda: _layer().update_expert_bias(),
    "counts of another number": lambda: _layer(moe_router_enable_expert_bias=True).update_expert_bias(Tensor([1, 2])),
    "counts that are a mean": lambda: _layer(moe_router_enable_expert_bias=True).update_expert_bias(Tensor([4.5, 4, 4, 0])),
    "an update by no call": lambda: _layer(moe_router_enable_expert_bias=True).update_expert_bias(),
    "a list of counts": lambda: _layer(moe_router_enable_expert_bias=True).update_expert_bias([1, 2, 3, 4]),
})
cases("TopKRouter", {
    "a list of hidden states": lambda: nn.TopKRouter(hidden_size=8, num_moe_experts=4)([[1.0] * 8]),
    "hidden states of integers": lambda: nn.TopKRouter(hidden_size=8, num_moe_experts=4)(X.astype(ms.int32)),
})
cases("GroupedMLP", {
    "no tensor of ids": _experts(ids=[[0]]),
    "ids of floats": _experts(ids=ops.zeros((2, 6, 1))),
    "hidden states of float64": _experts(x=X.astype(ms.float64)),
    "weights of other tokens": _experts(weights=ops.ones((3, 1))),
})
cases("nn", {"a limit of nothing": lambda: nn.clamped_swiglu(0)})


def _axes(in_axes, *args):
    return lambda: spmd(lambda x, w: x * w, Mesh(2), in_axes=in_axes)(*args)


cases("warm_up", {
    "imbalance": lambda: tile_partition(lambda x: x * 2.0).warm_up(ShapeDtypeStruct((2, 3), "float32"), imbalance=0.5),
})


cases("in_axes", {
    "one": _axes(1, X, X),
    "another tree": _axes((0, (None, None)), X, X),
    "a rank axis that is not there": _axes((0, None), X[0], X),
})
