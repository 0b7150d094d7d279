"""Laws of the simulator over random taskflows, routings and machines."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import given, strategies as st
from random_machines import COSTS, NS, RATES, anything
from simulated_layers import plan
from tile_words import kind

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.costs.bound import rank_bounds
from hpmoe.costs.work import Work, with_fans
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.machines.machine import CONSTANTS
from hpmoe.routing.workload import balanced_ids
from hpmoe.timelines.run import RATES as SHARED
from hpmoe.timelines.text import after_last

few = hypothesis.settings(max_examples=10, derandomize=True)
# Shared rates so high that nobody ever gets less for others, and no cache whose hits depend on who comes first.
UNSHARED = {"l2.bytes_per_us": 1e15, "memory.bytes_per_us": 1e15, "link.bytes_per_us": 1e15, "link.node_bytes_per_us": 1e15,
            "l2.bytes": 0.0}
OF_WORKERS = "l2.worker_bytes_per_us", "memory.worker_bytes_per_us", "link.worker_bytes_per_us"


def core_us(flow, machine, ids):
    """Returns each task's worker time, [ep, num_tasks], from rows that NumPy counts."""
    work, layout = Work(flow, machine), Layout(flow, [list(ids)] * len(flow.routes), None)
    is_summed = np.array([kind(op) == "experts" for op in flow.ops])[flow.tasks["op"]]
    out = []
    for rank in range(flow.ep_size):
        work.table = np.stack([with_fans(of_op, fans(layout, op, rank))
                               for op, of_op in zip(flow.ops, work.by_routing, strict=True)])
        entries, rows = work.entries(flow.tasks), layout.task_rows(rank)
        granules = np.ceil(rows / entries["granule"]) * entries["granule"]
        of_rows = np.where((rows > 0) | is_summed, entries["core_fixed"] + granules * entries["core_row"], 0.0)
        us = machine.sync.task_us + of_rows
        passed = is_passed_by(flow, layout, rank) & (machine.host.cores == 0)
        out.append(np.where(passed, machine.sync.pass_us or machine.sync.task_us, us))
    return np.array(out)


def is_passed_by(flow, layout, rank):
    """Which tasks of a rank are of slots past the last with rows, wait for those rows and tell of rows alone, [tasks]."""
    used = [[int(np.flatnonzero(slots.rows > 0).max(initial=-1)) + 1 for slots in of_route] for of_route in layout.slots]
    past, route = np.full(flow.num_tasks, np.iinfo(np.int32).max), np.full(flow.num_tasks, -1)
    for i, op in enumerate(flow.ops):
        is_put = op.opcode in ("PUT", "PUT_BACK")
        if kind(op) == "slots" and not op.is_relayed and (is_put or not op.num_peers) and not op.primitive.is_blocking:
            mine, of = flow.tasks["op"] == i, used[op.domain.route]
            past[mine], route[mine] = max(of) if op.opcode == "PUT" else of[rank], op.domain.route
    passed, waits, signals = flow.tasks["row"] >= past, flow.deps.waits, flow.deps.signals
    events = flow.deps.events[waits["event"]]
    own = (waits["kind"] == 0) & (events["extent"] == tf.SLOT) & (events["index"] == flow.tasks["row"][waits["task"]]) & (
        events["route"] == route[waits["task"]])
    passed[waits["task"][~own]] = False
    passed[signals["task"][signals["amount"] == tf.COUNT]] = False
    return passed


def fans(layout, op, rank):
    """Returns the number of expert rows of each token that a rank received once."""
    routing = layout.routings[op.domain.route] if op.opcode.startswith("FAN") else None
    return routing.experts.num_rows(rank) / max(1, routing.num_rows(rank)) if routing else 0


@few
@given(anything)
def test_busy_time_is_the_work(case):
    """A body takes exactly its work if only the worker limits it, and otherwise at least that."""
    flow, ids = case
    limits = {**UNSHARED, **dict.fromkeys(OF_WORKERS, 1e15), "sync.signal_us": 0.0}
    for machine, is_alone in ((flow.machine.replace(limits), True), (flow.machine, False)):
        line = hpmoe.simulate(flow, machine, routing=ids)
        body, need = line.end - line.begin, core_us(flow, machine, ids)[line.rank, line.task]
        assert (body >= need - NS).all() and (not is_alone or (body <= need + NS).all())
        again = hpmoe.simulate(flow, machine, routing=ids)
        assert all((getattr(line, n) == getattr(again, n)).all() for n in ("wait_begin", "begin", "end", "traffic"))


@few
@given(anything, st.sampled_from((0.5, 1.0, 2.0, 2.5)))
def test_threads_of_a_host_work_while_there_is_work(case, cores):
    """No more bodies at a time than threads; and one thread that need not wait for a signal to arrive never rests."""
    flow, ids = case
    limits = {**UNSHARED, **dict.fromkeys(OF_WORKERS, 1e15)}
    free = {name: 0.0 for name in CONSTANTS if name.startswith("sync.") and name != "sync.task_us"}
    machine = flow.machine.replace({**limits, **free, "host.cores": cores})
    line = hpmoe.simulate(flow, machine, routing=ids)
    begins, ends = (np.stack([times, change + np.zeros(times.size)], axis=1)
                    for times, change in ((line.begin, 1), (line.end - NS, -1)))
    edges = np.concatenate([begins, ends])
    assert edges[np.lexsort(edges.T[::-1])][:, 1].cumsum().max() <= math.ceil(cores)
    work = core_us(flow, machine, ids).sum()
    assert line.span >= work / cores - NS * line.task.size
    assert cores > 1 or line.span == pytest.approx(work / cores, rel=1e-3)


@few
@given(anything)
def test_bytes_are_conserved(case):
    """Bytes served over time equal bytes requested; only bytes in the cache, and weights that a waiting worker reads early
    for a slot that stays empty, depend on rates."""
    flow, ids = case
    machine = flow.machine.replace({"memory.write_cost": 1.0})
    line, fast = (hpmoe.simulate(flow, on, routing=ids) for on in (machine, machine.replace(UNSHARED)))
    np.testing.assert_allclose(line.simulated.served.sum(axis=2), line.traffic[..., 0], rtol=1e-6, atol=1e-3)
    early = any(op.params.is_early for op in flow.ops)
    for rate in ("egress", "ingress", "node_egress", "node_ingress", *([] if early else ["l2"])):
        np.testing.assert_allclose(*(x.traffic[:, SHARED.index(rate), 0] for x in (line, fast)))
    missed = np.bincount(line.rank, line.simulated.missed, flow.ep_size)
    landed = line.traffic[:, SHARED.index("memory"), 0] - missed  # rows of other ranks, and of its own that it sends itself
    came = sum(line.traffic[:, SHARED.index(name), 0] for name in ("l2", "ingress", "node_ingress"))
    assert (landed >= -1e-6).all() and (landed <= came * (1 + 1e-9)).all()
    assert (missed <= line.traffic[:, SHARED.index("l2"), 0] * (1 + 1e-9)).all()
    for node in ("", "node_"):
        out, into = (line.traffic[:, SHARED.index(f"{node}{way}"), 0].sum() for way in ("egress", "ingress"))
        assert out == pytest.approx(into)


@few
@given(anything)
def test_no_run_is_shorter_than_what_it_must_do(case):
    flow, ids = case
    machine, line = flow.machine, hpmoe.simulate(flow, routing=ids)
    span = line.span * (1 + 1e-9) + NS
    bounds = rank_bounds(flow, machine, ids)
    assert span >= max(b.total for b in bounds)
    if flow.routes and len(flow.routes) == 1:  # a rank is not done before what it has to do by itself
        ends = np.array([line.end[line.rank == rank].max(initial=0.0) for rank in range(flow.ep_size)])
        assert (ends * (1 + 1e-9) + NS >= [max(b.aic + b.fill, b.aiv) for b in bounds]).all()
    need = core_us(flow, machine, ids)[line.rank, line.task]
    assert span >= np.bincount(line.rank * machine.num_queues + line.queue, need).max()
    links = [machine.link.bytes_per_us] * 2 + [machine.link.node_bytes_per_us] * 2
    rates = [machine.l2.bytes_per_us, machine.memory.bytes_per_us, *links]
    collectives = any(op.opcode.startswith("ALL_TO_ALL") for op in flow.ops)
    assert collectives or span >= (line.traffic[:, :, 0] / rates).max()
    assert (line.traffic[:, :, 1] <= span).all()


@few
@given(anything, st.floats(0.1, 10.0))
def test_everything_faster_by_a_factor_is_faster_by_that_factor(case, factor):
    flow, ids = case
    machine = flow.machine
    faster = machine.replace({n: machine[n] * (factor if n in RATES else 1 / factor) for n in (*RATES, *COSTS)})
    spans = [hpmoe.simulate(flow, m, routing=ids).span for m in (machine, faster)]
    assert spans[1] * factor == pytest.approx(spans[0], rel=1e-3, abs=NS * (1 + factor))


@few
@given(anything, st.floats(1.05, 8.0))
def test_a_better_constant_is_never_worse(case, factor):
    """Exactly where workers share nothing. Where they do, being quicker elsewhere may let two meet at a link or push
    a line out of the cache: a few per cent, of real machines too."""
    flow, ids = case
    for shared, tolerance in ((UNSHARED, 0.0), ({}, 0.08)):
        machine = flow.machine.replace(shared)
        span = hpmoe.simulate(flow, machine, routing=ids).span
        for name in (*RATES, *COSTS):
            better = machine[name] * (factor if name in RATES else 1 / factor)
            other = hpmoe.simulate(flow, machine.replace({name: better}), routing=ids).span
            assert other <= span * (1 + tolerance) + NS, name


@few
@given(anything)
def test_time_of_workers_is_busy_waiting_or_after_the_last_task(case):
    """Every worker's time is one of the three; what they waited for, and the critical path, add up to the whole too."""
    flow, ids = case
    line = hpmoe.simulate(flow, routing=ids)
    worker = line.rank * len(flow.queues) + line.queue
    same = worker[1:] == worker[:-1]
    np.testing.assert_allclose(line.wait_begin[1:][same], line.end[:-1][same], atol=NS)
    np.testing.assert_allclose(line.wait_begin[np.flatnonzero(np.diff(worker, prepend=-1))], 0.0, atol=NS)
    whole = flow.ep_size * len(flow.queues) * line.span
    parts = (line.end - line.begin).sum(), line.waiting, after_last(line)
    assert sum(parts) == pytest.approx(whole, abs=NS * (len(line.task) + 1)) and min(parts) >= -NS * len(line.task)
    assert sum(line.waiting_for().values()) == pytest.approx(line.waiting)
    assert sum(step.us for step in line.critical_path().steps) == pytest.approx(line.span)
    assert ((line.utilisation() >= 0) & (line.utilisation() <= 1 + 1e-9)).all()
    exposed = line.exposed_communication()
    assert ((exposed >= -NS) & (exposed <= line.span + NS)).all()


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("node_size", [1, 2, 4])
def test_ranks_are_alike(direction, node_size):
    """Ranks with equal work take equal time, as slots hold rows of one rank; the hot rank's index does not matter."""
    machine = hpmoe.machines.ascend_a3.replace({"link.node_size": node_size}, num_aic=3, num_aiv=5)
    flow = plan(ep=4, T=512, direction=direction, machine=machine)
    order = flow.peer_orders[0] - np.arange(4)[:, None]
    assert (order % 4 == order[0] % 4).all()
    line = hpmoe.simulate(flow)
    for times in (line.begin, line.end):
        by_rank = times.reshape(4, -1)
        if node_size != 2:  # the ranks of a node are not alike: one has its neighbour in another
            np.testing.assert_allclose(by_rank, by_rank[:1].repeat(4, axis=0), atol=0.01)
    low = np.tile(np.arange(512) % 2 * 2, (4, 1)).astype(np.int32)  # the first two ranks get all rows, in whole tiles
    hot = np.stack([low, low + 1], axis=-1)
    turns = range(0, 4, 2 if node_size == 2 else 1)
    spans = [hpmoe.simulate(flow, routing=(hot + 2 * turn) % 8).span for turn in turns]
    np.testing.assert_allclose(spans, spans[0], rtol=1e-3)


def test_experts_of_a_rank_may_change_places():
    """A rank has the same work in other slots, so its time is nearly equal."""
    flow = plan(ep=2, T=512)
    hot = (np.random.default_rng(1).random((2, 512, 8)) * [1, 2, 1, 1, 3, 1, 1, 1]).argsort(-1)[..., -2:].astype(np.int32)
    other = np.array([2, 0, 3, 1, 5, 7, 4, 6], np.int32)[hot]
    lines = [hpmoe.simulate(flow, routing=ids) for ids in (hot, other)]
    bounds = [[(b.aic, b.aiv, b.egress, b.ingress) for b in rank_bounds(flow, flow.machine, ids)] for ids in (hot, other)]
    np.testing.assert_allclose(*bounds)
    np.testing.assert_allclose(*(line.traffic[:, [SHARED.index(n) for n in ("egress", "ingress")], 0] for line in lines))
    assert lines[0].span == pytest.approx(lines[1].span, rel=0.1)


def test_where_only_matmuls_take_time_they_are_the_bound():
    """Nothing else costs: matrix workers are always busy, but for what the last tiles leave."""
    machine = flow_machine = hpmoe.machines.ascend_a3.replace(num_aic=2, num_aiv=4)
    free = {n: 1e15 for n in RATES if n != "cube.flops_per_us"} | dict.fromkeys(COSTS, 0.0)
    flow = plan(ep=2, T=2048, machine=flow_machine)
    line = hpmoe.simulate(flow, machine.replace(free))
    work = core_us(flow, machine.replace(free), balanced_ids(2, 2048, 2, 8))[0]
    is_matmul = flow.units().astype(bool)
    longest = work[is_matmul].max()
    bound = work[is_matmul].sum() / 2
    assert bound <= line.span + NS <= bound + 4 * longest + NS * flow.num_tasks
    assert line.exposed_communication().max() <= 0.01 * line.span


@pytest.mark.parametrize("sizes, work", [({"T": 4096}, 2), ({"H": 512, "I": 256}, 4), ({"K": 4}, 2)])
def test_twice_as_much_takes_twice_as_long(sizes, work):
    """Time grows with tokens, choices and widths as the work does, if that is many tiles."""
    small, large = plan(**{"T": 2048}), plan(**{"T": 2048, **sizes})
    machine = small.machine.replace({**dict.fromkeys(COSTS, 0.0), **{n: 1e15 for n in RATES if n != "cube.flops_per_us"}})
    spans = [hpmoe.simulate(flow, machine).span for flow in (small, large)]
    bounds = [max(b.aic for b in rank_bounds(f, machine, balanced_ids(2, f.routes[0].num_tokens, f.routes[0].top_k, 8)))
              for f in (small, large)]
    assert bounds[1] / bounds[0] == pytest.approx(work, rel=0.02)
    assert spans[1] / spans[0] == pytest.approx(work, rel=0.15)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("machine",
                         [hpmoe.machines.ascend_a3, hpmoe.machines.ascend_a3.replace({"link.node_size": 1}), hpmoe.cpu(2)])
def test_runs_without_tokens(machine, direction):
    """Without tokens on all ranks there is no work; an empty rank among others has only its traffic's bound."""
    empty = plan(T=0, machine=machine, direction=direction, max_rows=0)
    line, ids = hpmoe.simulate(empty), np.zeros((2, 0, 2), np.int32)
    assert line.span >= max(b.total for b in rank_bounds(empty, machine, ids)) and line.span < 50
    flow = plan(machine=machine, direction=direction)
    spans = [hpmoe.simulate(flow, num_tokens=n).span for n in ((256, 256), (256, 0), (0, 0))]
    assert spans[0] > spans[1] > spans[2]
    everything = np.tile(np.int32([0, 1]), (2, 256, 1))  # of both ranks to the first one
    bounds = rank_bounds(flow, machine, everything)
    assert bounds[1].fill == bounds[1].drain == bounds[1].ingress * 0 and bounds[0].fill > 0 or direction == "backward"
    assert hpmoe.simulate(flow, routing=everything).span >= bounds[0].total


BOUND_BY = {  # what is made the bottleneck, and by how much its rate is lowered
    "link.bytes_per_us": 1e-4, "link.worker_bytes_per_us": 1e-3, "cube.flops_per_us": 1e-4, "vector.bytes_per_us": 1e-4,
    "memory.bytes_per_us": 1e-4, "l2.bytes_per_us": 1e-4}


@pytest.mark.parametrize("name", BOUND_BY)
def test_the_bottleneck_sets_the_time(name):
    """Half the rate of what limits a run takes twice as long; what it does not use changes nothing."""
    flow = plan(ep=2)
    machine = flow.machine.replace({name: flow.machine[name] * BOUND_BY[name]})
    run = lambda changes={}: hpmoe.simulate(flow, machine.replace(changes)).span  # noqa: E731
    assert run({name: machine[name] / 2}) == pytest.approx(2 * run(), rel=0.03)
    for unused in ("link.node_bytes_per_us", "sync.node_remote_us", "host.launch_us", "host.sync_us", "host.collective_us"):
        assert run({unused: machine[unused] * 7}) == run(), unused


def test_what_each_cost_adds():
    """A chain of tasks on two workers: every link of it waits for the one before."""
    def chain(x):
        for _ in range(20):
            x = x + 1.0
        return x
    machine = hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2)
    tiled = hpmoe.tile_partition(chain, rows=4, cols=4)
    flow = hpmoe.assign_queues(tiled, machine=machine, policy="round_robin").lower(ShapeDtypeStruct((4, 4), "float32"))
    span = hpmoe.simulate(flow, machine).span
    for name, times in (("sync.task_us", 20), ("sync.wait_us", 19), ("sync.poll_us", 19), ("sync.signal_us", 19),
                        ("sync.remote_us", 0)):
        more = hpmoe.simulate(flow, machine.replace({name: machine[name] + 5.0})).span
        assert more - span == pytest.approx(5.0 * times, abs=NS * 40), name
