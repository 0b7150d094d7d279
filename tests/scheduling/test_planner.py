"""The native planner: laws of its queues, and tables that it refuses."""

import numpy as np
import pytest
from mutants import with_deps
from simulated_layers import NPU, plan

import hpmoe
from hpmoe.ir import taskflow as tf
from hpmoe.planner import planner
from hpmoe.routing.workload import balanced_ids

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 40, 12, 8, 8, 2


def make_flow(ep, direction, signal="tile", rows=8, cols=8):
    local = EXPERTS // ep
    args = [hpmoe.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
        ((TOKENS, HIDDEN), "float32"), ((TOKENS, TOP_K), "int32"), ((TOKENS, TOP_K), "float32"),
        ((local, HIDDEN, 2 * INNER), "float32"), ((local, INNER, HIDDEN), "float32"))]
    f = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=rows, cols=cols), signal=signal)
    return f.lower(*args, mesh=hpmoe.Mesh(ep), direction=direction)


@pytest.fixture(scope="module", params=[(1, "forward", "tile"), (2, "backward", "tile"), (4, "backward", "expert"),
                                        (4, "forward", "peer")], ids=str)
def flow(request):
    return make_flow(*request.param)


@pytest.mark.parametrize("seen_us", [0.0, 0.5])
def test_no_worker_rests_while_a_task_is_ready(seen_us):
    """Replays the queues of random costs: no gap of a queue lies between a task of its kind getting ready and beginning."""
    f = hpmoe.tile_partition(lambda x, up, down: (hpmoe.swiglu(x @ up) * 2.0) @ down, rows=2, cols=2)
    flow = f.lower(*(hpmoe.ShapeDtypeStruct(shape, "float32") for shape in ((16, 4), (4, 8), (4, 6))))
    kinds, num_queues, rng = (~flow.units()).astype(int), (2, 3), np.random.default_rng(0)
    for _ in range(5):
        costs = rng.random(flow.num_tasks) + 0.1
        queues, sequence = planner.schedule(flow, costs, kinds, num_queues, rng.integers(5, size=flow.num_tasks), seen_us)
        assert sorted(np.concatenate(queues).tolist()) == list(range(flow.num_tasks))
        ready, begin, free, gaps = *np.zeros((2, flow.num_tasks)), np.zeros(len(queues)), [[] for _ in queues]
        for t in np.argsort(sequence):
            events = flow.deps.waits["event"][flow.deps.waits["task"] == t]
            needed = flow.deps.signals["task"][np.isin(flow.deps.signals["event"], events)]
            q = next(q for q, queue in enumerate(queues) if t in queue)
            assert (sequence[needed] < sequence[t]).all() and (q >= num_queues[0]) == kinds[t]
            ready[t] = (begin[needed] + costs[needed] + seen_us).max(initial=0.0)
            begin[t] = max(ready[t], free[q])
            gaps[q].append((free[q], begin[t]))
            free[q] = begin[t] + costs[t]
        for q, of_queue in enumerate(gaps):
            for first, last in [*of_queue, (free[q], np.inf)]:
                waiting = (kinds == (q >= num_queues[0])) & (np.maximum(ready, first) + 1e-9 < np.minimum(begin, last))
                assert not waiting.any()


def test_queues_hold_each_task_once_on_its_unit(flow):
    unit = np.array([1 + (op.unit == "aiv") for op in flow.ops])
    queues = [t for u in (1, 2) for t in np.array_split(np.flatnonzero(unit[flow.tasks["op"]] == u), 2)]
    takes = np.array([1, 1, 2, 3])
    assert planner.are_queues(flow.replace(queues=tuple(queues)), unit, takes)
    for other in ([queues[2], *queues[1:]], queues[::-1], [queues[0][1:], *queues[1:]],
                  [queues[0][[0, 0]], queues[1][:-1], *queues[2:]], [np.array([10**6]), *queues[1:]]):
        assert not planner.are_queues(flow.replace(queues=tuple(other)), unit, takes)


def test_tasks_on_a_cycle_never_run_and_are_in_no_queue(flow):
    signal = flow.deps.signals[0]
    back = np.array([(signal["task"], signal["event"], tf.STATIC)], tf.WAIT)
    cyclic = with_deps(flow, waits=np.concatenate([flow.deps.waits, back]))
    done = planner.find_runnable(cyclic)
    assert not done[signal["task"]] and 0 < done.sum() < flow.num_tasks
    queues, sequence = planner.schedule(cyclic, np.ones(flow.num_tasks), np.zeros(flow.num_tasks), (4,))
    assert sorted(np.concatenate(queues).tolist()) == np.flatnonzero(done).tolist()
    assert ((sequence >= 0) == done).all()


@pytest.mark.parametrize("table, column, value", [("waits", "task", -1), ("waits", "event", 10**6), ("signals", "event", -1),
                                                  ("signals", "task", 10**6)])
def test_a_table_that_points_nowhere_is_refused(flow, table, column, value):
    rows = getattr(flow.deps, table).copy()
    rows[column][3] = value
    with pytest.raises(ValueError, match="find_runnable: a table of moe_ffn.* names a task or an event that does not exist"):
        planner.find_runnable(with_deps(flow, **{table: rows}))


def test_rules_about_tasks_that_do_not_exist_are_refused():
    sizes = np.array([(0, 3, 0, 2, 1), (-1, 1, 2, 1, 1)], planner.GRID)
    rule, other = (0, 0, 2, -1, 0, 1, 0, 0, 0, 0, 0, 0), (1, 0, 1, -1, 0, 1, 0, 0, 0, 0, 0, 0)
    assert len(planner.expand_rules(sizes, np.array([rule, other], planner.RULE), 8, tf.SIGNAL)) == 8
    unsorted, of_no_op, of_no_column = [other, rule], [(4, *rule[1:])], [(0, 0, 9, *rule[3:])]
    for bad, row_capacity in ((unsorted, 8), (of_no_op, 99), (of_no_column, 99), ([rule, other], 3)):
        with pytest.raises(ValueError, match="expand_rules: a rule is about tasks that do not exist"):
            planner.expand_rules(sizes, np.array(bad, planner.RULE), row_capacity, tf.SIGNAL)


def test_rows_about_events_that_are_left_out(flow):
    kept = np.random.default_rng(2).random(len(flow.deps.events)) < 0.6
    number, some = np.where(kept, np.cumsum(kept) - 1, -1), np.arange(len(flow.deps.waits)) % 3 > 0
    for table, chosen in ((flow.deps.waits, some), (flow.deps.signals, None)):
        wanted = table[kept[table["event"]] & (True if chosen is None else chosen)].copy()
        wanted["event"] = number[wanted["event"]]
        assert np.array_equal(planner.renumbered(table, number, chosen), wanted)
    with pytest.raises(ValueError, match="renumbered: one of the signals is about an event that does not exist"):
        planner.renumbered(flow.deps.signals, number[:2])


def test_empty_flow():
    empty = make_flow(1, "forward").replace(ops=(), deps=tf.Dependencies())
    assert [q.tolist() for q in planner.schedule(empty, *np.zeros((2, 0)), (2,))[0]] == [[], []]
    assert planner.find_runnable(empty).tolist() == planner.prune_waits(empty).tolist() == []


@pytest.mark.parametrize("poll_us", [4.0, 8.0])
def test_a_plan_that_counts_signal_times_is_no_slower(poll_us):
    machine, ids = NPU.replace({"sync.poll_us": poll_us}), balanced_ids(2, 1024, 2, 8)
    free = machine.replace(dict.fromkeys(("sync.poll_us", "sync.signal_us", "sync.wait_us"), 0.0))
    of_machine, at_once = (plan(T=1024, direction="backward", machine=m, max_rows=2048) for m in (machine, free))
    spans = [hpmoe.simulate(flow, machine, routing=ids).span for flow in (of_machine, at_once)]
    assert spans[0] <= spans[1]
