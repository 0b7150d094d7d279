"""prefetch_weights: the same bits, and no weight is read early that the program makes."""

import dataclasses

import numpy as np
import pytest
from fp8_products import multiplied
from helpers import Layer, run_spmd

import hpmoe
from hpmoe import (
    ShapeDtypeStruct,
    assign_queues,
    chain,
    fuse_persistent,
    moe_ffn,
    overlap_comm,
    prefetch_weights,
    tile_partition,
)
from hpmoe.support.errors import VerifyError
from hpmoe.tiling.rebuild import rebuild

LAYER = Layer(ep=2, T=6, E=4, K=2)
QUEUES = assign_queues(machine=hpmoe.cpu(2))


def early_ops(flow):
    return [op.opcode for op in flow.ops if op.params.is_early]


@pytest.mark.parametrize("where", [chain(tile_partition(rows=4), prefetch_weights, overlap_comm),
                                   chain(tile_partition(rows=4), overlap_comm, prefetch_weights)], ids=["before", "after"])
def test_results_on_cpus_are_the_same_bits(where):
    found = []
    for first in (chain(tile_partition(rows=4), overlap_comm), where):
        outs, grads = run_spmd(chain(first, QUEUES, fuse_persistent)(moe_ffn), LAYER.ep, LAYER.arguments(),
                               [LAYER.cotangent()], LAYER.num_tokens)
        found.append([*outs, *grads])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def lowered(f, direction="forward"):
    avals = [ShapeDtypeStruct(a.shape[1:], "int32" if a.dtype.kind == "i" else "float32") for a in LAYER.arguments()]
    return prefetch_weights(tile_partition(f, rows=4)).lower(*avals, mesh=LAYER.mesh, direction=direction)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "mxfp8"])
def test_products_of_bytes_that_are_given_are_early(dtype):
    avals = (ShapeDtypeStruct((16, 7168), "bfloat16"), ShapeDtypeStruct((16, 1), "int32"),
             ShapeDtypeStruct((2, 2048, 7168), "uint8"),
             ShapeDtypeStruct((2, 2048, 224), "uint8") if dtype == "mxfp8" else ShapeDtypeStruct((2, 2048), "float32"))
    machine, spans = hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": 8e5}), []  # products wait for weights
    ids = np.arange(64, dtype=np.int32).reshape(4, 16, 1) % 8
    for transforms in ((), (prefetch_weights,)):
        stages = chain(tile_partition(machine=machine), *transforms, overlap_comm, assign_queues(machine=machine))
        flow = stages(multiplied(dtype)).lower(*avals, mesh=hpmoe.Mesh(4))
        assert early_ops(flow) == ["GMM_FP8"] * len(transforms)
        spans.append(hpmoe.simulate(flow, routing=ids).span)
    assert spans[1] < spans[0]


def test_products_with_given_weights_are_early_both_ways():
    assert early_ops(lowered(moe_ffn)) == ["GMM"] * 2
    assert early_ops(lowered(moe_ffn, direction="backward")) == ["GMM"] * 2  # by the same weights, transposed


def with_doubled_weights(x, ids, weights, up, down):
    return moe_ffn(x, ids, weights, up * 2.0, down)


def test_a_weight_that_the_program_makes_is_not_read_early():
    assert early_ops(lowered(with_doubled_weights)) == ["GMM"]
    flow = lowered(with_doubled_weights)
    ops = tuple(op.replace(params=dataclasses.replace(op.params, is_early=True)) if op.opcode == "GMM" else op
                for op in flow.ops)
    with pytest.raises(VerifyError, match="reads .* early, which other tasks write"):
        hpmoe.verify(rebuild(flow, ops))
