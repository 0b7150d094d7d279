"""rank_bounds: what every schedule must pay before its first matrix task and after its last one, and nothing else."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import given, strategies as st
from random_machines import COSTS, NS, RATES as RATES_OF_MACHINES, anything
from simulated_layers import plan

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.costs.bound import rank_bounds
from hpmoe.routing.workload import balanced_ids
from hpmoe.timelines.run import RATES

ROWS, HIDDEN, OUT = 128, 256, 64
MACHINE = hpmoe.machines.ascend_a3.replace({
    "sync.poll_us": 7.0, "sync.wait_us": 3.0, "sync.signal_us": 11.0, "sync.remote_us": 23.0, "sync.node_remote_us": 41.0,
    "link.worker_bytes_per_us": 1e3}, num_aic=1, num_aiv=4)


def multiplied(x, ids, w):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=1)
    return hpmoe.combine(hpmoe.grouped_matmul(rows, w, route), route)


def chain(machine, policy="critical_path", prefetch=False):
    """One slot on each of two ranks, of rows of both, multiplied in one task."""
    staged = hpmoe.overlap_comm(hpmoe.tile_partition(multiplied, rows=ROWS, cols=OUT))
    staged = hpmoe.prefetch_weights(staged) if prefetch else staged
    staged = hpmoe.assign_queues(staged, machine=machine, policy=policy)
    avals = (ShapeDtypeStruct((ROWS // 2, HIDDEN), "bfloat16"), ShapeDtypeStruct((ROWS // 2, 2), "int32"),
             ShapeDtypeStruct((1, HIDDEN, OUT), "bfloat16"))
    return staged.lower(*avals, mesh=Mesh(2)), np.tile(np.int32([0, 1]), (2, ROWS // 2, 1))


@pytest.mark.parametrize("node_size", [1, 2])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("changes", [{}, {"sync.signal_us": 0.0}, {"sync.task_us": 50.0}], ids=str)
def test_one_chain_takes_no_longer_than_its_bound(node_size, prefetch, changes):
    """Nothing can be done at once, so that the bound is what the run takes."""
    machine = MACHINE.replace({"link.node_size": node_size, **changes})
    flow, ids = chain(machine, prefetch=prefetch)
    span, bounds = hpmoe.simulate(flow, routing=ids).span, rank_bounds(flow, machine, ids)
    assert span == pytest.approx(bounds[0].total, abs=3 * NS) == pytest.approx(bounds[1].total, abs=3 * NS)


@pytest.mark.parametrize("node_size", [1, 2, 4])
def test_rows_of_a_slot_have_no_more_than_the_links_of_its_rank(node_size):
    """Rank 0 has all rows of four ranks, each of which could fill its link, as the run shows."""
    link = 20.0  # for all rows, where one of its vector workers alone could put 50 times as many
    machine = MACHINE.replace({"link.node_size": node_size, "link.bytes_per_us": 2 * link,
                               "link.far_bytes_per_us": 2 * link, "link.node_bytes_per_us": link})
    staged = hpmoe.overlap_comm(hpmoe.tile_partition(multiplied, rows=ROWS, cols=OUT))
    avals = (ShapeDtypeStruct((ROWS // 4, HIDDEN), "bfloat16"), ShapeDtypeStruct((ROWS // 4, 1), "int32"),
             ShapeDtypeStruct((1, HIDDEN, OUT), "bfloat16"))
    flow = hpmoe.assign_queues(staged, machine=machine).lower(*avals, mesh=Mesh(4))
    ids = np.zeros((4, ROWS // 4, 1), np.int32)
    bound, span = rank_bounds(flow, machine, ids)[0], hpmoe.simulate(flow, routing=ids).span
    us = max((node_size - 1) / (2 * link), (4 - node_size) / link) * ROWS // 4 * 2
    assert bound.fill >= HIDDEN * us and bound.drain >= OUT * us
    assert span == pytest.approx(bound.total, abs=3 * NS)


def test_a_prefetched_weight_takes_no_time_after_rows_arrive():
    """Its bytes come while the only product waits, at the rate of one worker; in all memory brings as many."""
    machine = MACHINE.replace({"memory.worker_bytes_per_us": 1e3})
    (plain, ids), (early, _) = (chain(machine, prefetch=p) for p in (False, True))
    lines, weight = [hpmoe.simulate(flow, routing=ids) for flow in (plain, early)], HIDDEN * OUT * 2
    assert lines[0].span - lines[1].span == pytest.approx(weight / 1e3, abs=3 * NS)
    assert np.array_equal(*(line.traffic[:, RATES.index("memory"), 0] for line in lines))
    bounds = [rank_bounds(flow, machine, ids)[0] for flow in (plain, early)]
    assert [b.weights - b.late for b in bounds] == pytest.approx([0.0, weight / 1e3])
    assert all(b.total <= line.span + NS for b, line in zip(bounds, lines, strict=True))


def test_a_tasks_signals_are_work_of_its_worker():
    flow, ids = plan(T=1024, machine=MACHINE), balanced_ids(2, 1024, 2, 8)
    bounds = [rank_bounds(flow, MACHINE.replace({"sync.signal_us": us}), ids)[0].aic for us in (0.0, 1.0)]
    line, is_matmul = hpmoe.simulate(flow, routing=ids), flow.units()
    ran = np.flatnonzero(is_matmul[line.task] & (line.rank == 0) & (line.end - line.begin > MACHINE.sync.task_us + NS))
    assert bounds[1] - bounds[0] == pytest.approx(len(ran))  # each signals one event, of its rows


def test_parts_that_nobody_reads_end_with_their_product():
    """Half of the columns are summed; the last product may be of the other half."""
    def half(x, up):
        return (x @ up)[:, :8] + 1.0
    staged = hpmoe.assign_queues(hpmoe.tile_partition(half, rows=64, cols=8), machine=MACHINE)
    flow = staged.lower(ShapeDtypeStruct((64, 32), "float32"), ShapeDtypeStruct((32, 16), "float32"))
    ids = np.zeros((1, 0, 1), np.int32)
    (bound,) = rank_bounds(flow, MACHINE, ids)
    assert bound.drain == 0.0 and hpmoe.simulate(flow).span >= bound.total


@st.composite
def odd_machines(draw, base):
    """A machine with the same workers of which some constants are out of all proportion, or nothing."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    off = {name: base[name] * float(rng.choice([1, 1, 1e3, 1e-3, 2.0 ** rng.uniform(-6, 6)]))
           for name in (*RATES_OF_MACHINES, *COSTS, "l2.bytes")}
    nothing = {n: 0.0 for n in COSTS if rng.random() < 0.2}
    cores = float(rng.choice([0, 0, 0, 0.5, 1, 2.5]))
    return base.replace({**off, **nothing, "host.cores": cores, "sync.repoll_us": float(rng.choice([0, 0, 20])),
                         "link.node_size": int(rng.integers(1, 4))})


@hypothesis.settings(max_examples=12, derandomize=True)
@given(st.data())
def test_no_odd_machine_beats_its_bound(data):
    flow, ids = data.draw(anything)
    machine = data.draw(odd_machines(flow.machine))
    bounds = rank_bounds(flow, machine, ids)
    assert hpmoe.simulate(flow, machine, routing=ids).span * (1 + 1e-9) + NS >= max(b.total for b in bounds), bounds
    assert all(getattr(b, f.name) >= 0 for b in bounds for f in dataclasses.fields(b))


@hypothesis.settings(max_examples=20, derandomize=True)
@given(anything)
def test_memory_brings_no_less_than_the_bound_says(case):
    """And hardly more where L2 holds everything."""
    flow, ids = case
    for changes, most in (({}, np.inf), ({"l2.bytes": 1e15, "memory.write_cost": 1.0}, 1.2)):
        machine = flow.machine.replace(changes)
        came = hpmoe.simulate(flow, machine, routing=ids).traffic[:, RATES.index("memory"), 0]
        least = np.array([b.memory for b in rank_bounds(flow, machine, ids)]) * machine.memory.bytes_per_us
        assert (least <= came * (1 + 1e-9) + 1e-6).all() and (came <= most * least + 1e-6).all()


@pytest.mark.parametrize("write_cost", [1.0, 1.74, 3.0])
def test_written_bytes_cost_what_the_machine_says(write_cost):
    """SwiGLU writes half as many bytes as it reads, and memory is all that it waits for."""
    machine = hpmoe.machines.ascend_a3.replace({"memory.write_cost": write_cost})
    tiles = hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256).lower(ShapeDtypeStruct((8192, 4096), "bfloat16"))
    flow = hpmoe.assign_queues.apply_to(tiles, machine=machine)
    bound, = rank_bounds(flow, machine, balanced_ids(1, 8, 1, 1))
    assert bound.total == pytest.approx(8192 * 2048 * 2 * (2 + write_cost) / machine.memory.bytes_per_us)
    assert bound.total - NS <= hpmoe.simulate(flow).span <= 1.01 * bound.total
