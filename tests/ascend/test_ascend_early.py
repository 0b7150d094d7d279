"""Weights that matrix cores of the Ascend kernel read while they wait for rows, on its emulator."""

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import LayerRun, from_seed, npu
from helpers import Layer
from int8_products import int8_run

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, overlap_comm, prefetch_weights, tile_partition, trace
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.support.dtypes import numpy_dtype

T, K, E, H, INNER, COLS = 24, 2, 3, 304, 144, 320


@pytest.mark.parametrize("dtype", [ms.bfloat16, pytest.param(ms.float32, marks=pytest.mark.slow)])
def test_results_are_the_same_bits(dtype, monkeypatch):
    layer, found = Layer(ep=2, T=5, H=144, I=80, E=2, K=1), []
    for prefetch in (False, True):
        from_seed(monkeypatch, 0)
        found.append(LayerRun(layer, dtype, rows=4, cols=160, blocks=2, prefetch=prefetch).assert_close_to_float64())
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_integer_weights_are_read_early_too(monkeypatch):
    found = []
    for prefetch in (False, True):
        from_seed(monkeypatch, 0)
        found.append(int8_run(prefetch=prefetch)())
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def counted(f, prefetch, monkeypatch):
    """The flow of a layer on one rank, and bytes that came to L1."""
    shapes = (T, H), (T, K), (T, K), (E, H, 2 * INNER), (E, INNER, H)
    program = trace(f, *(ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)))
    flow = overlap_comm.apply_to(tile_partition.apply_to(program, rows=8, cols=COLS))
    flow = prefetch_weights.apply_to(flow) if prefetch else flow
    flow = assign_queues.apply_to(flow, machine=npu(2))
    kernel, ids = EMULATOR.compile([flow], 100.0), np.arange(T * K, dtype=np.int32).reshape(T, K) % E
    from_seed(monkeypatch, 0)
    kernel.run([[ids if i == 1 else np.ones(s, numpy_dtype("bfloat16")) for i, s in enumerate(shapes)]])
    return flow, kernel.state.counts.gm_to_l1


def test_a_weight_is_read_once_more_at_most(monkeypatch):
    """By the first of two cores, for each of its tasks."""
    _, without = counted(hpmoe.moe_ffn, False, monkeypatch)
    flow, moved = counted(hpmoe.moe_ffn, True, monkeypatch)
    tasks = flow.tasks[flow.queues[0]]
    depth = np.array([flow.buffers[op.operands[2].buffer].rows_per_expert if op.opcode == "GMM" else 0 for op in flow.ops])
    assert 0 < moved - without <= 2 * (depth[tasks["op"]] * tasks["cols"]).sum()


def test_weights_that_the_program_makes_are_not_read_early(monkeypatch):
    def doubled(x, ids, weights, up, down):
        return hpmoe.moe_ffn(x, ids, weights, up * 2.0, down * 2.0)
    assert counted(doubled, True, monkeypatch)[1] == counted(doubled, False, monkeypatch)[1]
