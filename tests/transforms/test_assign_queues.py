"""Schedules of a real layer on a modelled Ascend A3: how near the bound, how far ahead of the reference's. All simulated."""

import dataclasses

import numpy as np
import pytest
from modelled_layers import layer
from simulated_layers import NPU, plan
from tile_words import kind

import hpmoe
from hpmoe.commands.program import program as traced_program
from hpmoe.costs.task_costs import task_costs
from hpmoe.ir.layout import Layout
from hpmoe.routing.skewed import skewed_ids
from hpmoe.routing.workload import balanced_ids, imbalanced_ids
from hpmoe.runtime.planned_rows import rows_of_received
from hpmoe.scheduling.early_gradients import early_gradients
from hpmoe.scheduling.likely_slots import LikelySlots, grids_of, likely_costs
from hpmoe.scheduling.op_order import op_order
from hpmoe.scheduling.queue_order import queue_order, round_after_round
from hpmoe.scheduling.rules import without
from hpmoe.scheduling.spread_slots import spread_out
from hpmoe.scheduling.vector_workers import num_computing
from hpmoe.timelines.run import RATES
from hpmoe.transforms.assign_queues import as_reference
from hpmoe.verification.verify import verify


@pytest.mark.parametrize("makespan_over_bound, over_reference, what", [
    (1.018, 1.25, {}),
    (1.017, 1.09, {"direction": "backward", "ep": 2}),
    (1.07, 1.42, {"tokens": 512}),
    (1.035, 1.20, {"tokens": 512, "direction": "backward"}),
    (1.044, 1.20, {"tokens": 64}),
    (1.068, 1.20, {"tokens": 128}),
    (1.035, 1.18, {"tokens": 1024, "imbalance": 3.5}),
    (1.075, 1.20, {"tokens": 1024, "hidden": 4096, "intermediate": 1536, "experts": 96, "top_k": 6}),
    (1.09, 1.20, {"hidden": 2048, "intermediate": 1024}),
    (1.05, 1.05, {"hidden": 2048, "intermediate": 1024, "direction": "backward"}),
    (1.035, 1.10, {"hidden": 6144, "intermediate": 16384, "top_k": 2, "experts": 4, "tokens": 2048}),  # L2 holds no weight
    (1.11, 1.10, {"ep": 8, "hidden": 5120, "intermediate": 1536, "top_k": 6, "experts": 160, "tokens": 512}),  # experts fill
    (1.15, 1.69, {"ep": 16, "hidden": 2048, "intermediate": 1408, "top_k": 6, "experts": 64, "tokens": 128,  # part of a slot
                  "direction": "backward"}),
], ids=str)
def test_near_the_bound_and_ahead_of_the_reference(makespan_over_bound, over_reference, what):
    ours, other = layer(**what), layer(**what, tuned=False)
    line = ours.fused()
    span, bound = ours.span_us(line), ours.bound_us(line)
    assert bound * (1 - 1e-9) <= span <= makespan_over_bound * bound
    assert other.span_us(other.fused("expert_barrier")) >= over_reference * span


@pytest.mark.parametrize("makespan_over_bound, what", [
    (1.05, {"direction": "backward", "imbalance": 3.5}),
    (1.05, {"direction": "backward", "imbalance": 2.0}),
    (1.05, {"imbalance": 2.0}),
    (1.13, {"imbalance": 3.5}),  # one rank's link sends the others their copies, whose rows are half of all
], ids=str)
def test_copies_come_and_go_while_other_rows_are_multiplied(makespan_over_bound, what):
    copied = layer(**what, replicas=1)
    line = copied.fused()
    assert copied.span_us(line) <= makespan_over_bound * copied.bound_us(line)


@pytest.mark.parametrize("what", [{"imbalance": 3.5, "tokens": 1024},
                                  {"imbalance": 2.0, "tokens": 512, "direction": "backward"},
                                  {"tokens": 1024}, {"tokens": 1024, "direction": "backward"}], ids=str)
def test_list_scheduling_is_no_slower_than_turns(what):
    ours = layer(**what)
    # A hot rank's partly filled slots are not planned for.
    assert ours.fused().span <= 1.015 * ours.fused("round_robin").span


@pytest.mark.parametrize("makespan_over_bound, over_runs, routing, sizes", [
    (1.15, 1.2, "hot", {"ep": 16, "tokens": 512, "hidden": 4096, "intermediate": 1536, "experts": 16, "top_k": 4}),
    (1.30, 1.05, "half", {"ep": 16, "tokens": 512, "hidden": 4096, "intermediate": 1536, "experts": 16, "top_k": 4}),
    (1.35, 1.05, "dirichlet", {"ep": 8, "tokens": 1024, "hidden": 2048, "intermediate": 1024, "experts": 8, "top_k": 4}),
], ids=str)
def test_a_rank_with_many_rows_multiplies_those_of_all_sources_as_they_come(makespan_over_bound, over_runs, routing, sizes):
    ours = layer(**sizes)
    o = ours.o
    ours = dataclasses.replace(ours, ids=skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts, 0))
    line = ours.fused()
    with without("spread_slots"):
        runs = ours.fused()
    assert ours.span_us(line) <= makespan_over_bound * ours.bound_us(line)
    assert over_runs * ours.span_us(line) <= ours.span_us(runs)


@pytest.mark.parametrize("num_slots", [1, 2, 7, 64, 100, 1000])
def test_any_beginning_of_the_spread_order_has_its_share_of_any_part_of_the_slots(num_slots):
    """Its discrepancy, in slots, is at most the logarithm of their number, and once more where that is no power of two."""
    turn, most = spread_out(num_slots), 2 + 2 * np.log2(num_slots)
    assert sorted(turn) == list(range(num_slots))
    for begin in range(1, num_slots + 1, max(1, num_slots // 16)):
        is_first = np.concatenate([[0], np.cumsum(turn < begin)])
        off = is_first - begin * np.arange(num_slots + 1) / num_slots
        assert np.ptp(off) <= most  # the largest of any part from one slot to another


def test_a_hot_rank_is_sent_its_rows_by_workers_of_its_own():
    flow = hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(layer(ep=8, imbalance=4.0).tiles, cols=1536))
    put = next(i for i, op in enumerate(flow.ops) if op.opcode == "PUT")
    of_peer = [{q for q, tasks in enumerate(flow.queues) if (np.isin(tasks, mine)).any()} for mine in (
        np.flatnonzero((flow.tasks["op"] == put) & (flow.tasks["peer"] == p)) for p in range(8))]
    sizes = [len(queues) for queues in of_peer]
    senders = hpmoe.ascend_a3.num_aiv - num_computing(flow, hpmoe.ascend_a3, likely_costs(flow, hpmoe.ascend_a3))
    assert max(sizes) <= hpmoe.ascend_a3.num_aiv // 2 and len(set().union(*of_peer)) == senders
    puts = [(flow.tasks["op"][tasks] == put).sum() for tasks in flow.queues[-senders:]]
    assert max(puts) <= 1.2 * np.mean(puts)


@pytest.mark.parametrize("sizes", [{}, {"top_k": 4, "experts": 64}], ids=str)
def test_puts_of_every_rank_are_dealt_out_alike(sizes):
    """Slots hold rows of two sources, of which the first is on odd ranks the one before the rank's own."""
    line = layer(ep=16, tokens=1024, tuned=False, **sizes).fused()
    for opcode in ("PUT", "PUT_BACK"):
        op = next(i for i, op in enumerate(line.flow.ops) if op.opcode == opcode)
        sent = (line.flow.tasks["op"][line.task] == op) & (line.end - line.begin > 1)
        counts = [np.sort(np.bincount(line.queue[sent & (line.rank == r)], minlength=72)).tolist() for r in range(16)]
        assert counts == counts[:1] * 16


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_puts_are_dealt_out_evenly_whatever_slots_rows_are_in(direction):
    ids = np.argsort(np.random.default_rng(0).random((16, 2048, 128)), axis=2)[:, :, :8].astype(np.int32)
    ours = dataclasses.replace(layer(direction, ep=16, tokens=2048, hidden=2048, intermediate=768), ids=ids)
    line = ours.fused()
    flow, senders = line.flow, hpmoe.ascend_a3.num_aiv - num_computing(line.flow, hpmoe.ascend_a3, likely_costs(
        line.flow, hpmoe.ascend_a3))
    rows = Layout(flow, [list(ours.ids)] * len(flow.routes), None).task_rows(3)
    for op in (i for i, op in enumerate(flow.ops) if op.opcode in ("PUT", "PUT_BACK") and op.cols):
        sent = rows * (flow.tasks["op"] == op)
        of_worker = [sent[tasks].sum() for tasks in flow.queues[-senders:]]
        assert max(of_worker) <= 1.2 * np.mean(of_worker)


@pytest.mark.parametrize("hidden, makespan_over_bound", [(4096, 1.07), (2048, 1.18)])
def test_links_between_nodes_are_busy(hidden, makespan_over_bound):
    whole = layer(ep=8, tokens=2048, hidden=hidden, machine=hpmoe.ascend_a3.replace(node_size=4))
    line = whole.fused()
    egress, bins = line.simulated.served[:, RATES.index("node_egress")], len(line.simulated.served[0, 0]) // 4
    possible = bins * line.simulated.bin_us * whole.machine.node_link_bytes_per_us
    assert (egress[:, :bins].sum(axis=1) > 0.95 * possible).all()
    assert whole.span_us(line) <= makespan_over_bound * whole.bound_us(line)


@pytest.mark.parametrize("makespan_over_bound, what", [
    (1.04, {"ep": 16, "tokens": 1024}),  # rows of ranks of one place in every node go back together
    (1.22, {"ep": 8, "hidden": 8192, "intermediate": 512, "top_k": 2}),  # tokens are summed while later columns go back
    (1.03, {"ep": 8, "hidden": 4096, "intermediate": 14336, "top_k": 2, "experts": 8,  # rows of one expert fill L2
            "direction": "backward"}),
    (1.075, {"ep": 16, "direction": "backward"}),  # no worker puts rows for much fewer ranks than another
    (1.08, {"ep": 16, "tokens": 1024, "direction": "backward"}),  # some gradients are summed while rows come
], ids=str)
def test_layers_that_links_or_memory_hold_up(makespan_over_bound, what):
    ours = layer(machine=hpmoe.ascend_a2, **what)
    line = ours.fused()
    assert ours.span_us(line) <= makespan_over_bound * ours.bound_us(line)


@pytest.mark.parametrize("most, machine, what", [
    (1.03, "ascend_a2", {"ep": 16, "tokens": 1024}),
    (1.06, "ascend_a3", {"ep": 8, "tokens": 512}),
    (1.155, "ascend_a3", {"ep": 16, "tokens": 2048, "hidden": 5120, "intermediate": 1536, "experts": 160, "top_k": 6}),
    (1.04, "ascend_a3", {"ep": 8, "tokens": 512, "imbalance": 4.0, "direction": "backward"}),
    (1.10, "ascend_a3", {"ep": 16, "tokens": 1024, "imbalance": 4.0}),
], ids=str)
def test_a_plan_with_room_for_all_rows_of_all_ranks(most, machine, what):
    """Most of its slots are empty: the others come first, in the order in which they would if they were all; on a hot rank
    the rest are dealt out evenly."""
    ours = layer(machine=getattr(hpmoe, machine), **what)
    program = traced_program(ours.o, ours.direction, lambda program: program)
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=ours.machine)
    line = hpmoe.simulate(hpmoe.assign_queues.apply_to(hpmoe.overlap_comm.apply_to(flow, cols="auto")), routing=ours.ids)
    assert ours.span_us(line) <= most * ours.bound_us(ours.fused())


@pytest.mark.parametrize("most, what", [
    (1.05, {"ep": 8, "tokens": 512}), (1.01, {"ep": 8, "tokens": 512, "direction": "backward"}),
    (1.06, {"ep": 32, "tokens": 512, "hidden": 4096, "intermediate": 1536, "experts": 128, "top_k": 6})], ids=str)
def test_room_for_all_rows_costs_little_where_rows_are_drawn(most, what):
    """Against a plan for as many as the fullest rank has; tasks of slots past the last with rows are passed by."""
    known = layer(**what)
    o = known.o
    known = dataclasses.replace(known, ids=skewed_ids("uniform", o.ep, o.tokens, o.top_k, o.experts, 5))
    every = dataclasses.replace(known, room="all")
    assert every.tiles.num_slots > 6 * known.tiles.num_slots
    assert every.span_us(every.fused()) <= most * known.span_us(known.fused())


def test_likely_rows_are_those_planned_for_where_they_are_known():
    known, every = (plan(ep=4, T=300, E=16, K=2, max_rows=rows, make=lambda f: f).routes[0] for rows in (700, None))
    assert (known.likely_rows, every.likely_rows) == (700, 600)
    assert every.num_slots > 3 * every.likely_rows / every.tile_rows


def test_likely_rows_where_an_expert_has_a_capacity_are_not_those_that_it_has_room_for():
    args = [hpmoe.Aval((600, 64), "float32"), hpmoe.Aval((600, 2), "int32"), hpmoe.Aval((600, 2), "float32"),
            hpmoe.Aval((4, 64, 256), "float32"), hpmoe.Aval((4, 128, 64), "float32")]
    capped = hpmoe.tile_partition(lambda *args: hpmoe.moe_ffn(*args, capacity_factor=1.5, drop_policy="position"))
    route = hpmoe.spmd(capped, hpmoe.Mesh(ep_size=2)).lower(*(hpmoe.Aval((2, *a.shape), a.dtype) for a in args)).routes[0]
    assert (route.max_rows, route.likely_rows) == (1800, 1200) and not route.is_mostly_empty


@pytest.mark.parametrize("received, rows", [(1000, (1024, 1024)), (1100, (1536, 1088)), (1300, (1536, 1088)),
                                            (1330, (1536, 1536)), (4000, (4096, 4096))])
def test_likely_rows_of_a_bucket_are_those_of_even_experts_unless_many_more_came(received, rows):
    route = hpmoe.ir.avals.RouteAval(hpmoe.ir.avals.Rows(), 512, 2, 8, 4)
    assert rows_of_received(received, route) == rows


@pytest.mark.parametrize("most, what", [
    (1.07, {"tokens": 600}), (1.04, {"tokens": 600, "direction": "backward"}),
    (1.07, {"tokens": 600, "imbalance": 2.0})], ids=str)
def test_a_plan_for_a_bucket_of_rows(most, what):
    """It has room for a third more rows than come, or the hot rank's: it is not ordered as if it were full, or as if the hot
    rank's were few."""
    ours = dataclasses.replace(layer(ep=8, **what), room="bucket")
    assert ours.tiles.routes[0].max_rows > 1.06 * ours.imbalance * 600 * 8
    line = ours.fused()
    assert ours.span_us(line) <= most * ours.bound_us(line)


def test_matrix_workers_take_likely_slots_before_others():
    flow = plan(ep=8, T=512, E=16, K=2, make=hpmoe.overlap_comm)
    order, is_later = queue_order(flow, NPU, task_costs(flow, NPU)), LikelySlots(flow, 0).round[flow.tasks["row"]] > 0
    is_matmul = flow.units() & np.array([kind(op) == "slots" for op in flow.ops])[flow.tasks["op"]]
    assert order[is_matmul & ~is_later].max() < order[is_matmul & is_later].min()


def test_rounds_have_room_in_an_order_of_large_numbers():
    flow = plan(ep=8, T=512, E=16, K=2, make=hpmoe.overlap_comm)
    small, large = np.arange(flow.num_tasks), np.arange(flow.num_tasks) * 2**(62 - flow.num_tasks.bit_length())
    for order in (small, large):
        round_after_round(flow, order)
    assert (np.argsort(small) == np.argsort(large)).all() and large.min() >= 0


def test_matrix_workers_share_slots_that_are_not_likely():
    flow = hpmoe.assign_queues.apply_to(plan(ep=8, T=512, E=16, K=2, make=hpmoe.overlap_comm), machine=NPU)
    is_later = LikelySlots(flow, 0).round[flow.tasks["row"]] > 0
    for op in (i for i, op in enumerate(flow.ops) if op.opcode == "GMM"):
        counts = [(is_later & (flow.tasks["op"] == op))[tasks].sum() for tasks in flow.queues[:NPU.num_aic]]
        assert max(counts) <= min(counts) + 1


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_workers_that_compute_rows_move_none_and_move_them_together(direction):
    flow = hpmoe.overlap_comm.apply_to(layer(direction, tokens=512).tiles, cols="auto")
    flow = hpmoe.assign_queues.apply_to(flow, machine=hpmoe.ascend_a3)
    opcodes = [{flow.ops[o].opcode for o in np.unique(flow.tasks["op"][tasks])} for tasks in flow.queues[24:]]
    computes = [bool(codes & {"SWIGLU", "SWIGLU_GRAD", "MAP", "ROW_DOT"}) for codes in opcodes]
    moves = [bool(codes & {"PUT", "PUT_BACK"}) for codes in opcodes]
    assert any(computes) and [not c for c in computes] == moves
    puts = [i for i, op in enumerate(flow.ops) if op.opcode == "PUT"]
    for tasks in flow.queues[-1:]:
        slots = flow.tasks["row"][tasks[np.isin(flow.tasks["op"][tasks], puts)]]
        assert (np.diff(slots) >= 0).all() and len(puts) == (2 if direction == "backward" else 1)


@pytest.mark.parametrize("machine, workers", [("ascend_a2", range(1, 6)), ("ascend_a3", range(1))])
def test_matrix_workers_that_rows_leave_idle_sum_gradients_of_the_first_experts_alone(machine, workers):
    ours = layer("backward", ep=16, tokens=1024, machine=getattr(hpmoe, machine))
    flow = ours.fused().flow
    verify(flow)
    opcodes = [[flow.ops[o].opcode for o in flow.tasks["op"][tasks]] for tasks in flow.queues[:ours.machine.num_aic]]
    assert sum("GMM" not in codes for codes in opcodes) in workers
    for codes, tasks in zip(opcodes, flow.queues, strict=False):
        assert codes == sorted(codes)  # slots before gradients, which may wait for any slot
        assert "GMM" in codes or len(set(flow.tasks["op"][tasks])) == 1


def test_no_matrix_worker_is_without_slots_where_multiplying_takes_longer_than_what_comes():
    """One token a rank: weights are read much longer than rows come."""
    ours = layer("backward", ep=16, tokens=1, hidden=2048, intermediate=768, experts=16, top_k=4)
    assert early_gradients(ours.tiles, hpmoe.ascend_a3, task_costs(ours.tiles, hpmoe.ascend_a3), 48)[0] == 0
    line = ours.fused()
    assert ours.span_us(line) <= 1.13 * ours.bound_us(line)


@pytest.mark.parametrize("num_aic, experts", [(1, 16), (2, 16), (2, 2)])
def test_some_matrix_worker_takes_slots_however_slow_links_are(num_aic, experts):
    slow = hpmoe.ascend_a2.replace(num_aic=num_aic, worker_link_bytes_per_us=10.0, link_bytes_per_us=10.0)
    sizes = {"hidden": 512, "intermediate": 512, "experts": experts, "top_k": 2}
    flow = layer("backward", ep=2, tokens=256, machine=slow, **sizes).fused().flow
    assert any("GMM" in {flow.ops[o].opcode for o in flow.tasks["op"][tasks]} for tasks in flow.queues[:num_aic])


@pytest.mark.parametrize("sizes, runs", [({"hidden": 2048, "intermediate": 1024}, True), ({}, False)], ids=str)
def test_rows_of_half_of_the_experts_are_finished_first_where_the_way_back_is_long(sizes, runs):
    flow = hpmoe.overlap_comm.apply_to(layer(**sizes).tiles, cols="auto")
    flow = hpmoe.assign_queues.apply_to(flow, machine=hpmoe.ascend_a3)
    up, down = (i for i, op in enumerate(flow.ops) if op.opcode == "GMM")
    ops = flow.tasks["op"][flow.queues[0]]
    assert (np.flatnonzero(ops == down)[0] < np.flatnonzero(ops == up)[-1]) == runs


def test_what_others_wait_for_comes_first():
    flow = hpmoe.overlap_comm.apply_to(layer("backward", imbalance=3.5, replicas=1).tiles)
    costs = likely_costs(flow, hpmoe.ascend_a3)
    order = [(flow.ops[i].opcode, flow.ops[i].domain.num_rows)
             for i in op_order(flow, [costs[tasks].max(initial=0.0) for _, tasks, _ in grids_of(flow)])]
    products = [name for name in order if name[0] in ("GMM", "WGRAD")]
    # Gradients of copies go to where others begin with them; rows go back; gradients of own experts stay.
    assert [name for name, _ in products] == ["GMM", "WGRAD", "WGRAD", "GMM", "WGRAD", "WGRAD"]
    assert [experts for name, experts in products if name == "WGRAD"] == [1, 1, 8, 8]


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
    spans = [hpmoe.simulate(flow, NPU.replace(repoll_us=us), routing=ids).span for us in (0.0, 20.0, 200.0)]
    assert spans[0] < spans[1] < spans[2]
    seldom = hpmoe.simulate(flow, NPU.replace(repoll_us=20.0), routing=ids)
    slept = seldom.simulated.released_by >= 0
    looks = (seldom.begin - seldom.wait_begin)[slept] / 20
    assert slept.any() and np.abs(looks - looks.round())[looks < 1.5].max() * 20 < NPU.wait_us + 0.01


def test_the_reference_waits_for_whole_experts():
    flow = plan(make=hpmoe.overlap_comm)
    coarse, machine = as_reference(flow, NPU)
    assert machine.repoll_us > 0 and {b.unit for b in flow.blocks} >= {"slot"}
    assert {b.unit for b in coarse.blocks if b.name in ("b", "c", "d")} == {"expert"}
    hpmoe.verify(coarse)
