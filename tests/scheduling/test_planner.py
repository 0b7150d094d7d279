"""The native planner against plain Python: the same queues, the same waits, the same cycles."""

import numpy as np
import planner_reference as reference
import pytest
from simulated_layers import NPU, plan

import hpmoe
from hpmoe.costs.task_costs import task_costs
from hpmoe.ir import taskflow as tf
from hpmoe.planner import planner
from hpmoe.routing.workload import balanced_ids
from hpmoe.scheduling.queue_order import queue_order
from hpmoe.transforms.assign_queues import POLICIES

TOKENS, HIDDEN, INNER, EXPERTS, TOP_K = 40, 12, 8, 8, 2


def make_flow(ep, direction, signal="tile", rows=8, cols=8):
    local = EXPERTS // ep
    args = [hpmoe.Aval(shape, dtype) for shape, dtype in (
        ((TOKENS, HIDDEN), "float32"), ((TOKENS, TOP_K), "int32"), ((TOKENS, TOP_K), "float32"),
        ((local, HIDDEN, 2 * INNER), "float32"), ((local, INNER, HIDDEN), "float32"))]
    f = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=rows, cols=cols), signal=signal)
    return f.lower(*args, mesh=hpmoe.Mesh(ep), direction=direction)


@pytest.fixture(scope="module", params=[(1, "forward", "tile"), (2, "backward", "tile"), (4, "backward", "expert"),
                                        (4, "forward", "peer")], ids=str)
def flow(request):
    return make_flow(*request.param)


@pytest.fixture(params=[hpmoe.cpu(num_workers=3), hpmoe.ascend_a3.replace(num_aic=3, num_aiv=5)], ids=["cpu", "a3"])
def machine(request):
    return request.param


def kinds_and_queues(flow, machine):
    if machine.unified:
        return np.zeros(flow.num_tasks, int), (machine.num_queues,)
    return (~flow.units()).astype(int), (machine.num_aic, machine.num_aiv)


def test_list_scheduling_makes_the_same_queues(flow, machine):
    kinds, num_queues = kinds_and_queues(flow, machine)
    rng = np.random.default_rng(0)
    for costs in (task_costs(flow, machine), rng.random(flow.num_tasks), rng.integers(1, 4, flow.num_tasks).astype(float)):
        for order in (None, rng.integers(5, size=flow.num_tasks), queue_order(flow, machine, task_costs(flow, machine))):
            for seen_us in (0.0, float(costs.mean())):
                got, sequence = planner.schedule(flow, costs, kinds, num_queues, order, seen_us)
                wanted, begun = reference.schedule(flow, costs, kinds, num_queues, order, seen_us)
                assert [q.tolist() for q in got] == wanted and sequence.tolist() == begun.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_waits_are_needed(flow, machine, policy):
    queued = flow.replace(machine=machine, queues=tuple(POLICIES[policy](flow, machine)))
    needed = planner.prune_waits(queued)
    assert needed.tolist() == reference.prune_waits(queued).tolist()
    assert needed.any()


def test_tasks_are_dealt_out_in_the_order_in_which_they_begin(flow):
    rng, num_queues = np.random.default_rng(4), 7
    sequence, queue = rng.permutation(flow.num_tasks), rng.integers(-1, num_queues, flow.num_tasks)
    dealt = np.array([(i % 3, 1 + i % 4) for i in range(len(flow.ops))], planner.DEALT)
    wanted, turns = [[] for _ in range(num_queues)], np.zeros(len(flow.ops), int)
    for t in np.argsort(sequence):
        op, q = flow.tasks["op"][t], queue[t]
        if q < 0:
            q = dealt["first_queue"][op] + turns[op] % dealt["num_queues"][op]
            turns[op] += 1
        wanted[q].append(t)
    assert [q.tolist() for q in planner.deal(flow, sequence, queue, dealt, num_queues)] == wanted
    for one, other in ((sequence, queue + 1), (np.zeros_like(sequence), queue)):
        with pytest.raises(ValueError, match="deal: a task is for a queue that does not exist, or two have one number"):
            planner.deal(flow, one, other, dealt, num_queues)


def test_queues_hold_each_task_once_on_its_unit(flow):
    unit = np.array([1 + (op.unit == "aiv") for op in flow.ops])
    queues = [t for u in (1, 2) for t in np.array_split(np.flatnonzero(unit[flow.tasks["op"]] == u), 2)]
    takes = np.array([1, 1, 2, 3])
    assert planner.are_queues(flow.replace(queues=tuple(queues)), unit, takes)
    for other in ([queues[2], *queues[1:]], queues[::-1], [queues[0][1:], *queues[1:]],
                  [queues[0][[0, 0]], queues[1][:-1], *queues[2:]], [np.array([10**6]), *queues[1:]]):
        assert not planner.are_queues(flow.replace(queues=tuple(other)), unit, takes)


def test_the_same_tasks_run_when_queues_are_shuffled(flow):
    rng, stuck = np.random.default_rng(1), 0
    for _ in range(8):
        queues = tuple(np.array_split(rng.permutation(flow.num_tasks), 40))
        queues = tuple(np.sort(q) if rng.random() < 0.8 else q for q in queues)
        shuffled = flow.replace(queues=queues)
        done = planner.find_runnable(shuffled)
        assert done.tolist() == reference.find_runnable(shuffled).tolist()
        stuck += not done.all()
    assert stuck


def test_tasks_on_a_cycle_never_run_and_are_in_no_queue(flow):
    signal = flow.signals[0]
    back = np.array([(signal["task"], signal["event"], tf.STATIC)], tf.WAIT)
    cyclic = flow.replace(waits=np.concatenate([flow.waits, back]))
    done = planner.find_runnable(cyclic)
    assert done.tolist() == reference.find_runnable(cyclic).tolist() and not done.all()
    queues, sequence = planner.schedule(cyclic, np.ones(flow.num_tasks), np.zeros(flow.num_tasks), (4,))
    assert sorted(np.concatenate(queues).tolist()) == np.flatnonzero(done).tolist()
    assert ((sequence >= 0) == done).all()


@pytest.mark.parametrize("table, column, value", [("waits", "task", -1), ("waits", "event", 10**6), ("signals", "event", -1),
                                                  ("signals", "task", 10**6)])
def test_a_table_that_points_nowhere_is_refused(flow, table, column, value):
    rows = getattr(flow, table).copy()
    rows[column][3] = value
    with pytest.raises(ValueError, match="find_runnable: a table of moe_ffn.* names a task or an event that does not exist"):
        planner.find_runnable(flow.replace(**{table: rows}))


def test_rules_are_expanded_in_the_order_of_the_tasks():
    rng = np.random.default_rng(3)
    sizes = [(0, 3, 0, 2, 1), (-1, 1, 2, 1, 1), (0, 0, 0, 4, 1), (0, 4, 3, 3, 2)]
    places = [(op, u, j, c) for op, (first, units, peers, cols, _) in enumerate(sizes)
              for u in range(first, first + units) for j in range(max(1, peers)) for c in range(cols)]
    rules = sorted((tuple(int(n) for n in (op, *np.sort(rng.integers(sizes[op][3] + 1, size=2)),
                                           rng.integers(-1, sizes[op][4]),
                                           rng.integers(3), rng.integers(1, 4), *rng.integers(3, size=6)))
                    for op in rng.integers(len(sizes), size=40)),
                   key=lambda rule: rule[0])
    waits, signals = [], []
    for t, (op, u, j, c) in enumerate(places):
        rows = [(t, event + int(u / units) * by_unit + u // sizes[op][4] * by_expert + j * by_peer, kind, amount, remote)
                for o, low, high, block, event, units, by_unit, by_expert, by_peer, kind, amount, remote in rules
                if o == op and low <= c < high and block in (-1, u % sizes[op][4])]
        signals += rows
        waits += sorted({row[:3] for row in rows})
    tables = np.array(sizes, planner.GRID), np.array(rules, planner.RULE)
    assert planner.expand_rules(*tables, len(signals), tf.WAIT).tolist() == waits
    assert planner.expand_rules(*tables, len(signals), tf.SIGNAL).tolist() == signals
    unsorted, of_no_op, of_no_column = rules[::-1], [(4, *rules[0][1:])], [(0, 0, 9, *rules[0][3:])]
    for bad, room in ((unsorted, len(signals)), (of_no_op, 99), (of_no_column, 99), (rules, 3)):
        with pytest.raises(ValueError, match="expand_rules: a rule is about tasks that do not exist"):
            planner.expand_rules(tables[0], np.array(bad, planner.RULE), room, tf.SIGNAL)


def test_rows_about_events_that_are_left_out(flow):
    kept = np.random.default_rng(2).random(len(flow.events)) < 0.6
    number, some = np.where(kept, np.cumsum(kept) - 1, -1), np.arange(len(flow.waits)) % 3 > 0
    for table, chosen in ((flow.waits, some), (flow.signals, None)):
        wanted = table[kept[table["event"]] & (True if chosen is None else chosen)].copy()
        wanted["event"] = number[wanted["event"]]
        assert np.array_equal(planner.renumbered(table, number, chosen), wanted)
    with pytest.raises(ValueError, match="renumbered: one of the signals is about an event that does not exist"):
        planner.renumbered(flow.signals, number[:2])


def test_empty_flow():
    empty = make_flow(1, "forward").replace(tasks=np.zeros(0, tf.TASK), events=np.zeros(0, tf.EVENT),
                                            waits=np.zeros(0, tf.WAIT), signals=np.zeros(0, tf.SIGNAL))
    assert [q.tolist() for q in planner.schedule(empty, *np.zeros((2, 0)), (2,))[0]] == [[], []]
    assert planner.find_runnable(empty).tolist() == planner.prune_waits(empty).tolist() == []


@pytest.mark.parametrize("poll_us", [4.0, 8.0])
def test_a_plan_counts_the_time_until_signals_are_seen(poll_us):
    """One for a machine whose workers see at once puts tasks that would wait in front of ready ones."""
    machine, ids = NPU.replace(poll_us=poll_us), balanced_ids(2, 1024, 2, 8)
    of_machine, at_once = (plan(T=1024, direction="backward", machine=m, max_rows=2048)
                           for m in (machine, machine.replace(poll_us=0.0, signal_us=0.0, wait_us=0.0)))
    spans = [hpmoe.simulate(flow, machine, routing=ids).span for flow in (of_machine, at_once)]
    assert spans[0] < 0.97 * spans[1]
