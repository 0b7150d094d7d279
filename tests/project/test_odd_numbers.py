"""Every public number: bools, NaN, infinities and numbers that float32 does not hold are errors; NumPy's are as Python's."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import hpmoe
from hpmoe import nn, router
from hpmoe.balance import Balancer
from hpmoe.testing import assert_same

BOOLS = [True, np.True_]
NOT_FINITE = [float("nan"), np.float32("nan"), float("inf"), -float("inf"), 1e39, 1e300, 10**400]
SIZES = {"hidden_size": 8, "moe_ffn_hidden_size": 4, "num_moe_experts": 4}
Z, IDS = Tensor(np.eye(6, 4, dtype=np.float32)), Tensor(np.array([[0, 1]] * 6, np.int32))
AVALS = [hpmoe.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
    ((4, 8), "float32"), ((4, 1), "int32"), ((4, 1), "float32"), ((2, 8, 6), "float32"), ((2, 3, 8), "float32"))]
TILES = hpmoe.tile_partition(hpmoe.moe_ffn)
ON_RANKS = hpmoe.spmd(hpmoe.chain(hpmoe.tile_partition, hpmoe.assign_queues)(lambda x: x * 2.0), hpmoe.Mesh(2))


def layer(**options):
    return nn.MoELayer(**{**SIZES, **options})


def dispatched(**options):
    return hpmoe.dispatch(Z, IDS, num_local_experts=4, **options)


def each(function, *names):
    return {f"{function.__name__}, {name}": lambda value, name=name: function(**{name: value}) for name in names}


INTS = {
    "spmd, num_tokens": lambda n: ON_RANKS(Tensor(np.ones((2, 4, 8), np.float32)), num_tokens=[n, 2]),
    "MoELayer, num_tokens": lambda n: layer(mesh=hpmoe.Mesh(2))(Tensor(np.ones((8, 8), np.float32)), num_tokens=(n, 2)),
    "interpret, seed": lambda n: ON_RANKS.interpret(Tensor(np.ones((2, 4, 8), np.float32)), seed=n),
    "Mesh": hpmoe.Mesh, "Mesh, tp_size": lambda n: hpmoe.Mesh(4, tp=n), "cpu": hpmoe.cpu,
    "ShapeDtypeStruct": lambda n: hpmoe.ShapeDtypeStruct((n, 2), "float32"),
    "tile_partition, rows": lambda n: hpmoe.tile_partition(hpmoe.moe_ffn, rows=n),
    "overlap_comm, put_cols": lambda n: hpmoe.overlap_comm(TILES, put_cols=n),
    "replicas": lambda n: hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1], replicas=n),
    "expert_alignment": lambda n: dispatched(expert_alignment=n),
    "top_k": lambda n: hpmoe.route(Z, n), "num_groups": lambda n: hpmoe.route(Z, 1, num_groups=n, topk_groups=1),
    "seed": lambda n: hpmoe.route(Z, 2, jitter=0.1, seed=n),
    "tokens_per_expert": lambda n: router.tokens_per_expert(IDS, num_experts=n),
    "balanced_ids": lambda n: router.balanced_ids(n, 4, 2), "aux_loss": lambda n: router.aux_loss(Z, n),
    "sequence_loss": lambda n: router.sequence_loss(Z, 2, n),
    "MoELayer, layer": lambda n: layer()(Tensor(np.ones((4, 8), np.float32)), topk_ids=Tensor(
        np.full((4, 3, 2), -1, np.int32)), unset="route", layer=n),
    "replay": lambda n: router.replay(IDS, Tensor(np.zeros((6, 3, 2), np.int32)), unset="mask", layer=n),
    **each(layer, *SIZES, "moe_router_topk", "moe_router_num_groups", "moe_shared_expert_intermediate_size"),
    "every": lambda n: layer(mesh=hpmoe.Mesh(2)).balance(every=n), "mask_experts": lambda n: layer().mask_experts([n]),
    "Machine": lambda n: hpmoe.machines.ascend_a3.replace(num_aic=n),
    "budget": lambda n: hpmoe.autotune(hpmoe.moe_ffn, budget=n),
}
FLOATS = {
    "timeout": lambda x: hpmoe.fuse_persistent(hpmoe.assign_queues(TILES), timeout=x),
    "warm_up": lambda x: ON_RANKS.warm_up(hpmoe.ShapeDtypeStruct((2, 4, 8), "float32"), imbalance=x),
    "limit_rows": lambda x: hpmoe.limit_rows(hpmoe.moe_ffn, rank_capacity_factor=x),
    "capacity_factor": lambda x: dispatched(capacity_factor=x, drop_policy="position"),
    "loads": lambda x: hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[x, 1]),
    "min_load": lambda x: hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1], min_load=x),
    "low": lambda x: hpmoe.guard_values(hpmoe.moe_ffn, low=x),
    **{name: lambda x, name=name: hpmoe.route(Z, 2, **{name: x}) for name in (
        "scale", "temperature", "jitter", "expert_dropout")},
    "weigh": lambda x: router.weigh(Z, IDS, scale=x), "z_loss": lambda x: router.z_loss(Z, coefficient=x),
    "update_bias": lambda x: router.update_bias(Z[0], ms.ops.ones(4, ms.int32), rate=x),
    "aux_loss, coefficient": lambda x: router.aux_loss(Z, 2, coefficient=x),
    **each(layer, "moe_router_topk_scaling_factor", "moe_router_bias_update_rate", "moe_aux_loss_coeff", "moe_z_loss_coeff",
           "moe_expert_capacity_factor", "init_method_std"),
    "clamped_swiglu": nn.clamped_swiglu, "alpha": lambda x: nn.gpt_oss_swiglu(alpha=x),
    "host.launch_us": lambda x: hpmoe.machines.ascend_a3.replace({"host.launch_us": x}),
    "rate": lambda x: hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": x}),
    "min_gain": lambda x: Balancer(lambda copies: copies, num_experts=4, ep_size=2, every=1, min_gain=x),
    "counts": lambda x: Balancer(lambda copies: copies, num_experts=2, ep_size=2, every=2).step([x, 1]),
    "tolerance": lambda x: assert_same(TILES, hpmoe.moe_ffn, *AVALS[:1], tolerance=x),
}
TINY = ("limit_rows", "capacity_factor", "temperature", "scale", "layer, moe_expert_capacity_factor", "rate",
        "clamped_swiglu")


@pytest.mark.parametrize("name", INTS)
def test_an_int_is_no_bool_float_or_huge(name):
    for value in (*BOOLS, *NOT_FINITE, 2.0, -0.0, "2", 2**70):
        with pytest.raises(hpmoe.ArgumentError):
            INTS[name](value)


@pytest.mark.parametrize("name", INTS)
def test_an_int_of_numpy_is_an_int(name):
    value = (np.int64(2), np.uint8(2))[len(name) % 2]
    assert type(INTS[name](value)) is type(INTS[name](2))


@pytest.mark.parametrize("name", FLOATS)
def test_a_number_is_finite_in_float32_and_no_bool(name):
    for value in (*BOOLS, *NOT_FINITE, "2"):
        with pytest.raises(hpmoe.ArgumentError):
            FLOATS[name](value)


@pytest.mark.parametrize("name", TINY)
def test_a_number_that_float32_rounds_to_0_is_an_error(name):
    with pytest.raises(hpmoe.ArgumentError):
        FLOATS[name](1e-300)
