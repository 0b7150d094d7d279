"""Schedules of a real layer on a modelled Ascend A3: above the bound, ahead of launches; which tasks each worker takes."""


import numpy as np
import pytest
from simulated_layers import NPU, layer, plan

import hpmoe
from hpmoe.commands.layer import wait_for_experts
from hpmoe.ir.layout import Layout
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.workload import balanced_ids, imbalanced_ids
from hpmoe.runtime.planned_rows import rows_of_received
from hpmoe.scheduling.expected_slots import ExpectedSlots


@pytest.mark.parametrize("what", [
    {"tokens": 512}, {"tokens": 512, "direction": "backward"}, {"tokens": 1024, "imbalance": 3.5},
    {"tokens": 1024, "imbalance": 3.5, "replicas": 1}, {"ep": 8, "tokens": 512, "machine": hpmoe.machines.ascend_a2},
    {"ep": 8, "tokens": 512, "machine": hpmoe.machines.ascend_a3.replace({"link.node_size": 4})}], ids=str)
def test_a_layer_is_above_its_bound_and_ahead_of_launches(what):
    """schedule_grid.py and paper_table.py of the benchmarks print by how much."""
    ours, other = layer(**what), layer(**what, tuned=False)
    line = ours.fused()
    others = other.baseline().span, other.span_us(other.fused("expert_barrier"))
    assert ours.least_us(line.flow) * (1 - 1e-9) <= ours.span_us(line) <= min(others)


def test_likely_rows_are_those_planned_for_where_they_are_known():
    known, every = (plan(ep=4, T=300, E=16, K=2, max_rows=rows, make=lambda f: f).routes[0] for rows in (700, None))
    assert (known.expected_rows, every.expected_rows) == (700, 600)
    assert every.num_slots > 3 * every.expected_rows / every.tile_rows


def test_expected_rows_of_an_expert_are_not_its_capacity():
    args = [hpmoe.ShapeDtypeStruct((600, 64), "float32"), hpmoe.ShapeDtypeStruct((600, 2), "int32"),
            hpmoe.ShapeDtypeStruct((600, 2), "float32"),
            hpmoe.ShapeDtypeStruct((4, 64, 256), "float32"), hpmoe.ShapeDtypeStruct((4, 128, 64), "float32")]
    capped = hpmoe.tile_partition(lambda *args: hpmoe.moe_ffn(*args, capacity_factor=1.5, drop_policy="position"))
    route = hpmoe.spmd(capped, hpmoe.Mesh(ep=2)).lower(*(hpmoe.ShapeDtypeStruct((2, *a.shape), a.dtype)
                                                              for a in args)).routes[0]
    assert (route.max_rows, route.expected_rows) == (1800, 1200) and not route.is_mostly_empty


@pytest.mark.parametrize("received, rows", [(1000, (1024, 1024)), (1100, (1536, 1088)), (1300, (1536, 1088)),
                                            (1330, (1536, 1536)), (4000, (4096, 4096))])
def test_expected_rows_are_balanced_unless_many_more_arrived(received, rows):
    route = hpmoe.ir.avals.RouteAval(hpmoe.ir.avals.Rows(), Direct(4, 512, 2, 8))
    assert rows_of_received(received, route) == rows


def test_matrix_workers_share_slots_that_are_not_likely():
    flow = hpmoe.assign_queues.apply_to(plan(ep=8, T=512, E=16, K=2, make=hpmoe.overlap_comm), machine=NPU)
    is_later = ~ExpectedSlots(flow, 0).is_expected[flow.tasks["row"]]
    for op in (i for i, op in enumerate(flow.ops) if op.opcode == "GMM"):
        counts = [(is_later & (flow.tasks["op"] == op))[tasks].sum() for tasks in flow.queues[:NPU.num_aic]]
        assert max(counts) <= min(counts) + 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_workers_that_compute_rows_move_none(direction):
    flow = hpmoe.overlap_comm.apply_to(layer(direction, tokens=512).tiles, put_cols="auto")
    flow = hpmoe.assign_queues.apply_to(flow, machine=hpmoe.machines.ascend_a3)
    opcodes = [{flow.ops[o].opcode for o in np.unique(flow.tasks["op"][tasks])} for tasks in flow.queues[24:]]
    computes = [bool(codes & {"SWIGLU", "SWIGLU_GRAD", "MAP", "ROW_DOT"}) for codes in opcodes]
    moves = [bool(codes & {"PUT", "PUT_BACK"}) for codes in opcodes]
    assert any(computes) and [not c for c in computes] == moves
    puts = [i for i, op in enumerate(flow.ops) if op.opcode == "PUT"]
    for tasks in flow.queues[-1:]:
        slots = flow.tasks["row"][tasks[np.isin(flow.tasks["op"][tasks], puts)]]
        assert (np.diff(slots) >= 0).all() and len(puts) == (2 if direction == "backward" else 1)


@pytest.mark.parametrize("ep", (1, 2, 5))
def test_slots_begin_with_the_ranks_own_rows(ep):
    flow = plan(ep=ep, T=300, E=2 * ep, K=min(2, 2 * ep), make=lambda f: f)
    ids = balanced_ids(ep, 300, 2, 2 * ep) if ep == 1 else imbalanced_ids(ep, 300, 2, 2 * ep, imbalance=min(1.5, ep), seed=4)
    layout = Layout(flow, [list(ids)], None)
    for rank in range(ep):
        slots, routing = layout.slots[0][rank], layout.routings[0]
        taken = np.concatenate([np.arange(s, s + n) for s, n in zip(slots.start, slots.rows, strict=True)])
        assert sorted(taken) == list(range(routing.num_rows(rank))) and (np.diff(slots.expert) >= 0).all()
        for e in range(2):
            mine = (slots.expert == e) & (slots.rows > 0)
            first = slice(slots.start[mine][0], slots.start[mine][0] + slots.rows[mine][0])
            sources = routing.source_of_row[rank]
            assert rank in sources[first] or not (sources[routing.expert_of_row(rank) == e] == rank).any()
            ahead = (sources[slots.start[mine]] - rank) % ep  # of the first row of each slot: it goes round once
            assert (np.diff(ahead[1:]) >= 0).all()


def test_a_worker_that_looks_seldom_is_later():
    flow, ids = plan(ep=2, T=500), imbalanced_ids(2, 500, 2, 8, imbalance=1.5, seed=1)
    spans = [hpmoe.simulate(flow, NPU.replace({"sync.repoll_us": us}), routing=ids).span for us in (0.0, 20.0, 200.0)]
    assert spans[0] < spans[1] < spans[2]
    seldom = hpmoe.simulate(flow, NPU.replace({"sync.repoll_us": 20.0}), routing=ids)
    slept = seldom.simulated.released_by >= 0
    looks = (seldom.begin - seldom.wait_begin)[slept] / 20
    assert slept.any() and np.abs(looks - looks.round())[looks < 1.5].max() * 20 < NPU.sync.wait_us + 0.01


def test_the_reference_waits_for_whole_experts():
    flow = plan(make=hpmoe.overlap_comm)
    coarse = wait_for_experts.apply_to(flow)
    assert {b.unit for b in flow.deps.blocks} >= {"slot"}
    assert {b.unit for b in coarse.deps.blocks if b.name in ("b", "c", "d")} == {"expert"}
    hpmoe.verify(coarse)
