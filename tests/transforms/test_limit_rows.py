"""limit_rows: the same numbers where rows have room, less memory, and the same error on every rank where they have none."""

import dataclasses
import math

import numpy as np
import pytest
from ascend_helpers import LayerRun, from_seed, npu
from helpers import Layer, avals_of, fused, lowered, run_spmd, stages, tensors

import hpmoe
from hpmoe import chain, limit_rows, moe_ffn
from hpmoe.kernels import host_launch
from hpmoe.kernels.protocol import Code
from hpmoe.support.errors import ArgumentError, LaunchError

LAYER = Layer(ep=4, T=6, E=8, K=2)
HOT = dataclasses.replace(LAYER, routing="one rank")  # 48 rows for rank 0
TOO_MANY = "limit_rows: the number of rows that rank 0 receives is 48; it must be at most 18, as rank_capacity_factor=1.5 " \
           "has it. Give a rank_capacity_factor of at least 4: balanced, a rank receives 12."


def results(f, layer, **options):
    """Output and gradients."""
    outs, grads = run_spmd(f, layer.ep, layer.arguments(), [layer.cotangent()], layer.num_tokens, **options)
    return [*outs, *grads]


def call(f, layer):
    """The output; an error inside a gradient would leave MindSpore's flag of one set."""
    return hpmoe.spmd(f, layer.mesh)(*tensors(layer.arguments()))


def most(f, layer, direction="forward"):
    """The rows of a rank that a plan for any routing can hold."""
    flow = lowered(f, layer.arguments(), layer.ep, direction).flow
    return [plan.max_rows for plan in flow.routes]


@pytest.mark.parametrize("stage", stages())
def test_every_stage(stage):
    """Bitwise the same; the fullest rank has just enough."""
    received = np.bincount(LAYER.arguments()[1].reshape(-1) // 2).max()
    limited = limit_rows(moe_ffn, rank_capacity_factor=received / (LAYER.T * LAYER.K))
    for got, want in zip(*(results(stages()[stage](f), LAYER) for f in (limited, moe_ffn)), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ArgumentError, match=f"receives is {received}; it must be at most {received - 1}"):
        call(stages()[stage](limit_rows(moe_ffn, rank_capacity_factor=(received - 1) / (LAYER.T * LAYER.K))), LAYER)


@pytest.mark.parametrize("stage", stages())
def test_too_many_rows_are_an_error_at_every_stage(stage):
    f = stages()[stage](limit_rows(moe_ffn, rank_capacity_factor=1.5))
    with pytest.raises(ArgumentError) as error:
        call(f, HOT)
    assert str(error.value) == TOO_MANY
    call(f, LAYER)  # and the call after works


@pytest.mark.parametrize("factor", [0.1, 1.0, 1.25, 3.0, 4.0, 9.0, 2.0**30])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_room_without_ids(factor, direction):
    rows = min(math.ceil(min(12 * factor, 1e9)), 48)
    f = fused()(limit_rows(moe_ffn, rank_capacity_factor=factor))
    assert most(f, LAYER, direction) == [rows]
    whole = most(fused()(moe_ffn), LAYER, direction)
    assert whole == [48]


def test_memory_falls_with_the_room():
    """Memory of received rows is a quarter in both passes; that of a rank's own tokens stays."""
    layer = Layer(ep=8, T=64, H=64, I=32, E=16, K=2)
    reports = [fused(rows=16, cols=32)(f).memory(*avals_of(layer.arguments()), mesh=hpmoe.Mesh(8))
               for f in (moe_ffn, limit_rows(moe_ffn, rank_capacity_factor=2.0))]
    for part, cols in (("inference", 64), ("forward", 64), ("backward", 65)):  # with the gradient of the weight
        whole, limited = (getattr(report, part) for report in reports)
        sent = 8 * 64 * 2 * cols * 4  # bytes that all ranks send
        assert (whole.symmetric, limited.symmetric) == ((8 + 1) * sent, (2 + 1) * sent), part
        assert (limited.inputs, limited.outputs) == (whole.inputs, whole.outputs) and limited.peak < whole.peak, part
    assert reports[1].saved == reports[0].saved / 4


def aligned(x, ids, weights, up, down):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=up.shape[0], expert_alignment=8)
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, up, route))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, weights)


def test_rows_that_fill_up_have_room_of_their_own():
    f = fused()(limit_rows(aligned, rank_capacity_factor=1.5))
    assert most(f, LAYER) == [32]  # 18 and 7 for each of two experts
    with pytest.raises(ArgumentError, match="is 48; it must be at most 32"):
        call(f, HOT)


# --- kernels whose ids no host looks at, as on an NPU ---

@pytest.fixture
def unseen(monkeypatch):
    """Gives buffers the plan's capacity for any ids."""
    monkeypatch.setattr(host_launch, "received_rows", lambda flow, *_: [
        [plan.max_rows for plan in flow.routes]] * flow.ep_size)


def per_rank(layer, dtype=np.float32):
    return [[a[rank].astype(dtype) if a.dtype == np.float32 else a[rank] for a in layer.arguments()]
            for rank in range(layer.ep)]


@pytest.mark.parametrize("target, machine", [("cpu", hpmoe.cpu(2)), ("ascend-emulator", npu())], ids=["cpu", "emulator"])
def test_a_kernel_finds_out_before_rows_move(monkeypatch, unseen, target, machine):
    """Cores run in any order, and the next launch works; two ranks lack capacity, and the first is named."""
    layer = Layer(ep=4, T=6, H=16, I=16, E=8, K=2)
    to_kernel = chain(limit_rows(rank_capacity_factor=1.5), hpmoe.tile_partition(rows=16, cols=32), hpmoe.overlap_comm,
                      hpmoe.assign_queues(machine=machine), hpmoe.fuse_persistent(target=target, timeout=60.0))
    kernel = lowered(to_kernel(moe_ffn), layer.arguments(), 4)
    inputs, bad = per_rank(layer), per_rank(layer)
    for mine in bad:
        mine[1][...] = (2, 7)  # of ranks 1 and 3, 24 rows for each
    want = kernel.run(inputs)
    text = r"rank [13] would receive 24 rows through route 0, and can hold 18\."
    for seed in (range(4) if target == "ascend-emulator" else range(1)):
        from_seed(monkeypatch, seed)
        with pytest.raises(LaunchError, match=text) as error:
            kernel.run(bad)
        assert error.value.status["code"] == Code.SLOT_OVERFLOW
        assert target == "cpu" or error.value.status["rank"] == 1
        for got, array in zip(kernel.run(inputs), want, strict=True):
            np.testing.assert_array_equal(got[0], array[0])


def test_gradients_on_the_emulator_with_the_room_of_any_routing(unseen):
    """Forward and backward in buffers that are as large as the plan has it, and no larger."""
    run = LayerRun(Layer(ep=4, T=6, H=32, I=16, E=8, K=2), f=limit_rows(moe_ffn, rank_capacity_factor=2.0), blocks=2)
    run.assert_close_to_float64()
