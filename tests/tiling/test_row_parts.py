"""Rows of a slot or a tile divided among several tasks: the same bits, a task for each part, and only where that is safe."""

import itertools

import numpy as np
import pytest
from ascend_helpers import emulator, from_seed
from helpers import Layer, in_parts, lowered, run_spmd, stages

import hpmoe
from hpmoe import ShapeDtypeStruct, VerifyError, moe_ffn, quantize_rows
from hpmoe.costs.bound import rank_bounds
from hpmoe.ir.layout import Layout
from hpmoe.kernels.ascendc.emulator import target as emulator_target
from hpmoe.rewriting import rebuild
from hpmoe.routing.workload import balanced_ids

LAYER = Layer(ep=2, T=9, H=8, I=6, E=4, K=2)
quantised = quantize_rows(moe_ffn, backward="quantized")


def run(f, layer=LAYER):
    out, grads = run_spmd(f, layer.ep, layer.arguments(), [layer.cotangent()], num_tokens=layer.num_tokens)
    return [*map(np.asarray, (*out, *grads))]


def small(stage, **options):
    return lowered(stages(rows=4, cols=3, **options)[stage](quantised), LAYER.arguments(), LAYER.ep)


@pytest.mark.parametrize("stage", ["tiles", "overlap", "queues", "blocking", "fused"])
@pytest.mark.parametrize("rows, parts", [(4, 2), (4, 3), (3, 8), (16, 5)])
def test_parts_change_no_bit(stage, rows, parts):
    want, got = (run(stages(rows=rows, cols=3, parts=p)[stage](quantised)) for p in (None, parts))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_ranks_with_fewer_tokens_than_parts():
    layer = Layer(ep=2, T=9, H=8, I=6, E=4, K=2, num_tokens=(9, 1), routing="one expert")
    want, got = (run(stages(rows=8, cols=3, parts=p)["fused"](quantised), layer) for p in (None, 4))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_emulator_divides_rows(monkeypatch):
    monkeypatch.setattr(emulator_target, "SEEDS", itertools.count(0))
    want = run(emulator(quantised, rows=8))
    for seed in (0, 100):
        from_seed(monkeypatch, seed)
        got = run(emulator(quantised, rows=8, parts=3))
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(a, b)


def flow_of(tokens, ep, hidden=7168, experts=64, machine=hpmoe.machines.ascend_a3, f=quantised, direction="forward"):
    local = experts // ep
    avals = [ShapeDtypeStruct(shape, dtype) for shape, dtype in (
        ((tokens, hidden), "bfloat16"), ((tokens, 8), "int32"), ((tokens, 8), "float32"),
        ((local, hidden, 4096), "bfloat16"), ((local, 2048, hidden), "bfloat16"))]
    return hpmoe.tile_partition(f, machine=machine).lower(*avals, mesh=hpmoe.Mesh(ep), direction=direction)


def parts_of(flow):
    return {op.label: op.parts for op in flow.ops if op.can_divide_rows}


def test_an_npu_divides_rows_while_workers_are_free():
    assert parts_of(flow_of(128, 16)) == {"quantize": 8, "dequantize": 4}
    assert parts_of(flow_of(32, 16)) == {"quantize": 1, "dequantize": 8}  # two parts would gain little
    assert parts_of(flow_of(4096, 8)) == {"quantize": 1, "dequantize": 1}
    assert parts_of(flow_of(128, 16, hidden=256)) == {"quantize": 1, "dequantize": 1}  # rows of one tile's columns
    assert parts_of(flow_of(128, 16, machine=hpmoe.cpu(8))) == {"quantize": 1, "dequantize": 1}


def test_each_row_is_a_part_of_one_task():
    flow = small("overlap", parts=3)
    ids = LAYER.arguments()[1]
    layout = Layout(flow, [list(ids)] * len(flow.routes), None)
    for rank in range(2):
        rows = layout.task_rows(rank)
        for i, op in enumerate(flow.ops):
            if op.can_divide_rows:
                of_parts = rows[flow.tasks["op"] == i].reshape(-1, 3)
                assert of_parts.sum(axis=1).tolist() == op.domain.rows_of_units(layout, rank)[0].tolist()
                assert of_parts.max() <= 2


def test_a_task_is_printed_with_its_part():
    flow = small("tiles", parts=2)
    assert "quantize[rows 0:4, part 1 of 2]" in str(flow)


def changed(flow, name, **changes):
    return rebuild(flow, tuple(op.replace(**changes) if op.label == name else op for op in flow.ops))


@pytest.mark.parametrize("name, parts", [("quantize", 0), ("quantize", -1), ("swiglu", 2), ("combine", 2), ("dispatch", 2)])
def test_verify_refuses_parts_of_what_needs_more_rows(name, parts):
    flow = small("overlap")
    with pytest.raises(VerifyError, match=f"{name} divides the rows of a unit into {parts} parts"):
        hpmoe.verify(changed(flow, name, parts=parts))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("tokens, ep", [(128, 16), (64, 8), (32, 64)])
def test_divided_rows_are_no_slower_and_not_under_the_bound(tokens, ep, direction):
    flow, machine = flow_of(tokens, ep, direction=direction), hpmoe.machines.ascend_a3
    ids, times = balanced_ids(ep, tokens, 8, 64), []
    for tiles in (flow, in_parts.apply_to(flow, parts=1)):
        layer = hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(tiles), machine=machine)
        times.append(hpmoe.simulate(layer, routing=ids).span)
        assert times[-1] >= max(of_rank.total for of_rank in rank_bounds(layer, machine, ids))
    assert times[0] <= 1.01 * times[1]
