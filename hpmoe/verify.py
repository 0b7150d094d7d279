"""verify: proves that a Taskflow is a correct schedule for every routing, or raises with the IR around the fault."""

from __future__ import annotations

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dependencies import derive_dependencies
from hpmoe.errors import VerifyError, check_argument
from hpmoe.lifetimes import memory_fault
from hpmoe.native.planner import find_runnable, prune_waits
from hpmoe.taskflow_text import event_name, task_name, taskflow_window


def verify(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless the taskflow is a correct schedule whatever the routing.

    Checks that the tasks are exactly those its operations need; that every queue holds tasks of its unit and every task
    is in one queue, once; that every region a task reads is waited for, by itself or by what runs before it, until all
    its writers have signalled it, with the threshold their signals add up to; that signals go to the rank that reads;
    and that no cycle runs through queue order and events, across ranks too.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=4).lower(hpmoe.Aval((8, 6), "float32"))
        >>> hpmoe.verify(flow.replace(tasks=flow.tasks[:1]))
        Traceback (most recent call last):
        ...
        hpmoe.errors.VerifyError: verify: swiglu has 1 tasks of swiglu, its 2 tiles need 2
        >    t0 swiglu[rows 0:4, cols 0:3] x -> a wait -  signal -
    """
    check_argument(isinstance(flow, tf.Taskflow), "hpmoe.verify", "flow", f"a {type(flow).__name__}",
                   "a Taskflow, as f.lower(*args) makes it after tile_partition")
    _check_tasks(flow)
    _check_peer_order(flow)
    _check_memory(flow)
    _check_tables(flow)
    if flow.queues:
        check_queues(flow)
    _check_acyclic(flow)
    _check_events(flow)


def _fail(flow: tf.Taskflow, what: str, task: int | None = None) -> None:
    window = "" if task is None or not flow.num_tasks else "\n" + taskflow_window(flow, task)
    raise VerifyError(f"verify: {what}{window}")


def _check_tasks(flow: tf.Taskflow) -> None:
    """Each tile of each operation is a task, once."""
    expected = tf.make_tasks(flow.ops)
    bad = np.flatnonzero((flow.tasks["op"] < 0) | (flow.tasks["op"] >= len(flow.ops)))
    if len(bad):
        raise VerifyError(f"verify: task t{bad[0]} is of operation {flow.tasks['op'][bad[0]]}, there are {len(flow.ops)}")
    got, want = (np.bincount(t["op"], minlength=len(flow.ops)) for t in (flow.tasks, expected))
    for i in np.flatnonzero(got != want)[:1]:
        _fail(flow, f"{flow.name} has {got[i]} tasks of {flow.ops[i].label}, its {want[i]} tiles need {want[i]}", 0)
    for t in np.flatnonzero(flow.tasks != expected)[:1]:
        _fail(flow, f"task t{t} is {task_name(flow, int(t))}; its place is that of another tile of "
                    f"{flow.ops[flow.tasks[t]['op']].label}", int(t))


def _check_peer_order(flow: tf.Taskflow) -> None:
    order = flow.peer_order
    if order.shape != (flow.ep_size, flow.ep_size) or (np.sort(order, axis=1) != np.arange(flow.ep_size)).any():
        raise VerifyError(f"verify: peer_order is {order.tolist()}; each row must name each of {flow.ep_size} ranks once")


def _check_memory(flow: tf.Taskflow) -> None:
    """Only temporaries share memory, one after the other."""
    if fault := memory_fault(flow):
        raise VerifyError(f"verify: {fault}")


def check_queues(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless each task is in one queue of its unit, once."""
    if len(flow.queues) != flow.machine.num_queues:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues, {flow.machine.name} has "
                          f"{flow.machine.num_queues}")
    listed = np.concatenate([np.asarray(q) for q in flow.queues])
    bad = np.flatnonzero((listed < 0) | (listed >= flow.num_tasks))
    if len(bad):
        raise VerifyError(f"verify: a queue names task t{listed[bad[0]]}; there are {flow.num_tasks}")
    times = np.bincount(listed, minlength=flow.num_tasks)
    for t in np.flatnonzero(times != 1)[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} is in the queues {times[t]} times, not once", int(t))
    is_aic = flow.units()
    for q, tasks in enumerate(flow.queues):
        for unit, mine in (("aic", is_aic[tasks]), ("aiv", ~is_aic[tasks])):
            if mine.any() and q not in flow.machine.queues_of(unit):
                t = int(np.asarray(tasks)[np.flatnonzero(mine)[0]])
                _fail(flow, f"task t{t} {task_name(flow, t)} is {unit} work in queue {flow.machine.queue_name(q)}", t)


def _check_tables(flow: tf.Taskflow) -> None:
    """Waits and signals name tasks and events that exist."""
    for name, table in (("wait", flow.waits), ("signal", flow.signals)):
        for column, bound in (("task", flow.num_tasks), ("event", len(flow.events))):
            bad = np.flatnonzero((table[column] < 0) | (table[column] >= bound))
            if len(bad):
                raise VerifyError(f"verify: a {name} names {column} {table[column][bad[0]]}; there are {bound}")


def _check_events(flow: tf.Taskflow) -> None:
    """Compares waits, thresholds and signals with those derived anew from what every task touches."""
    events, waits, signals, blocks = derive_dependencies(flow.buffers, flow.ops, flow.routes, flow.tile_rows)
    whole = flow.replace(events=events, waits=waits, signals=signals, blocks=blocks)
    number = _match_events(flow, whole)
    mine = _renumbered(flow.waits, number)
    required = waits[prune_waits(whole)] if flow.queues else waits
    for wait in _missing(required, mine):
        t = int(wait["task"])
        _fail(flow, f"task t{t} {task_name(flow, t)} reads what {event_name(whole, int(wait['event']))} stands for "
                    "and neither it nor what runs before it waits for it", t)
    for wait in _missing(mine, waits):
        t = int(wait["task"])
        _fail(flow, f"task t{t} {task_name(flow, t)} waits for {event_name(whole, int(wait['event']))}, "
                    "which nothing it reads asks for", t)
    _compare_signals(flow, whole, number)


def _renumbered(table: np.ndarray, number: np.ndarray) -> np.ndarray:
    table = table.copy()
    if len(table):
        table["event"] = number[table["event"]]
    return table


def _missing(wanted: np.ndarray, have: np.ndarray) -> np.ndarray:
    """The first row of `wanted` that is not in `have`, or none."""
    return wanted[~np.isin(tf.row_keys(wanted), tf.row_keys(have))][:1]


def _match_events(flow: tf.Taskflow, whole: tf.Taskflow) -> np.ndarray:
    """For each event of `flow`, the derived event of the same region; their thresholds must agree."""
    def keys(f: tf.Taskflow) -> list[tuple]:
        names = [(b.name, b.unit, b.columns) for b in f.blocks]
        bad = [b for b in f.events["block"].tolist() if not 0 <= b < len(names)]
        if bad:
            raise VerifyError(f"verify: an event is of block {bad[0]}; there are {len(names)}")
        return [(names[b], i) for b, i in zip(f.events["block"].tolist(), f.events["index"].tolist(), strict=True)]

    index = {key: e for e, key in enumerate(keys(whole))}
    number = np.zeros(len(flow.events), np.int64)
    for e, key in enumerate(keys(flow)):
        if key not in index:
            raise VerifyError(f"verify: event {event_name(flow, e)} stands for no region that is read")
        number[e] = index[key]
    derived = whole.events[number]
    for column in ("extent", "index", "mult", "route"):
        for e in np.flatnonzero(flow.events[column] != derived[column])[:1]:
            waiting = flow.waits["task"][flow.waits["event"] == e]
            _fail(flow, f"event {event_name(flow, int(e))} has {column} {flow.events[column][e]}, its producers add up to "
                        f"{column} {derived[column][e]}", int(waiting[0]) if len(waiting) else None)
    return number


def _compare_signals(flow: tf.Taskflow, whole: tf.Taskflow, number: np.ndarray) -> None:
    """Every event that is left is signalled by exactly its derived producers."""
    mine = _renumbered(flow.signals, number)
    blocks = np.unique(whole.events["block"][number])
    dynamic = whole.signals["kind"] != tf.STATIC
    in_block = np.isin(whole.events["block"][whole.signals["event"]], blocks)
    wanted = whole.signals[np.isin(whole.signals["event"], number) | (dynamic & in_block)]
    keys, first, counts = np.unique(tf.row_keys(mine), return_index=True, return_counts=True)
    for s in mine[first[counts > 1]][:1]:
        _fail(flow, f"task t{s['task']} signals {event_name(whole, int(s['event']))} twice", int(s["task"]))
    for s in _missing(wanted, mine):
        _fail(flow, f"task t{s['task']} {task_name(flow, int(s['task']))} must signal "
                    f"{event_name(whole, int(s['event']))} and does not, or not with that amount and rank", int(s["task"]))
    for s in _missing(mine, wanted):
        _fail(flow, f"task t{s['task']} {task_name(flow, int(s['task']))} signals "
                    f"{event_name(whole, int(s['event']))}, to which it adds nothing", int(s["task"]))


def _check_acyclic(flow: tf.Taskflow) -> None:
    """No cycle through events and queue order; ranks are folded onto one, so none across ranks either."""
    for t in np.flatnonzero(~find_runnable(flow))[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} can never run: a cycle leads through what it waits for", int(t))
