"""verify: proves that a Taskflow is a correct schedule for every routing, or raises with the IR around the fault."""

from __future__ import annotations

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dependencies import derive_dependencies
from hpmoe.errors import VerifyError
from hpmoe.ordering import levels, make_graph, prune_waits
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
        > t0 swiglu[rows 0:4, cols 0:3] x -> a wait -  signal -
    """
    _check_tasks(flow)
    _check_peer_order(flow)
    _check_tables(flow)
    if flow.queues:
        _check_queues(flow)
    _check_acyclic(flow)
    _check_events(flow)


def check_queues(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless the queues hold every task once, on its unit, in an order without a cycle."""
    _check_queues(flow)
    _check_acyclic(flow)


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


def _check_queues(flow: tf.Taskflow) -> None:
    listed = np.concatenate([np.asarray(q) for q in flow.queues])
    bad = np.flatnonzero((listed < 0) | (listed >= flow.num_tasks))
    if len(bad):
        raise VerifyError(f"verify: a queue names task t{listed[bad[0]]}; there are {flow.num_tasks}")
    times = np.bincount(listed, minlength=flow.num_tasks)
    for t in np.flatnonzero(times != 1)[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} is in the queues {times[t]} times, not once", int(t))
    if len(flow.queues) != flow.machine.num_queues:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues, {flow.machine.name} has "
                          f"{flow.machine.num_queues}")
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
    events, waits, signals, blocks = derive_dependencies(flow.buffers, flow.ops, flow.routes, flow.tasks, flow.tile_rows)
    whole = flow.replace(events=events, waits=waits, signals=signals, blocks=blocks)
    number = _match_events(flow, whole)
    mine = flow.waits.copy()
    mine["event"] = number[mine["event"]] if len(mine) else mine["event"]
    have = {tuple(w) for w in mine.tolist()}
    required = waits[prune_waits(whole, make_graph(whole))] if flow.queues else waits
    for wait in required:
        if tuple(wait.tolist()) not in have:
            t = int(wait["task"])
            _fail(flow, f"task t{t} {task_name(flow, t)} reads what {event_name(whole, int(wait['event']))} stands for "
                        "and neither it nor what runs before it waits for it", t)
    known = {tuple(w) for w in waits.tolist()}
    for wait in sorted(have - known)[:1]:
        _fail(flow, f"task t{wait[0]} {task_name(flow, wait[0])} waits for {event_name(whole, wait[1])}, "
                    "which nothing it reads asks for", wait[0])
    _compare_signals(flow, whole, number)


def _match_events(flow: tf.Taskflow, whole: tf.Taskflow) -> np.ndarray:
    """For each event of `flow`, the derived event of the same region; their thresholds must agree."""
    def key(f: tf.Taskflow, e: int) -> tuple:
        event = f.events[e]
        block = f.blocks[event["block"]]
        return (block.name, block.unit, block.columns, int(event["index"]))

    index = {key(whole, e): e for e in range(len(whole.events))}
    number = np.zeros(len(flow.events), np.int64)
    for e, event in enumerate(flow.events):
        match = index.get(key(flow, e))
        if match is None:
            raise VerifyError(f"verify: event {event_name(flow, e)} stands for no region that is read")
        number[e] = match
        derived = whole.events[match]
        for column in ("extent", "index", "mult", "route"):
            if event[column] != derived[column]:
                waiting = flow.waits["task"][flow.waits["event"] == e]
                _fail(flow, f"event {event_name(flow, e)} has {column} {event[column]}, its producers add up to "
                            f"{column} {derived[column]}", int(waiting[0]) if len(waiting) else None)
    return number


def _compare_signals(flow: tf.Taskflow, whole: tf.Taskflow, number: np.ndarray) -> None:
    """Every event that is left is signalled by exactly its derived producers."""
    mine = flow.signals.copy()
    if len(mine):
        mine["event"] = number[mine["event"]]
    blocks = np.unique(whole.events["block"][number]) if len(number) else []
    wanted = whole.signals[np.isin(whole.signals["event"], number)]
    dynamic = whole.signals["kind"] != tf.STATIC
    in_block = np.isin(whole.events["block"][whole.signals["event"]], blocks) if len(whole.signals) else dynamic
    wanted = np.unique(np.concatenate([wanted, whole.signals[dynamic & in_block]]))
    values, counts = np.unique(mine, return_counts=True)
    for s in values[counts > 1][:1]:
        _fail(flow, f"task t{s['task']} signals {event_name(whole, int(s['event']))} twice", int(s["task"]))
    for s in np.setdiff1d(wanted, values)[:1]:
        _fail(flow, f"task t{s['task']} {task_name(flow, int(s['task']))} must signal "
                    f"{event_name(whole, int(s['event']))} and does not, or not with that amount and rank", int(s["task"]))
    for s in np.setdiff1d(values, wanted)[:1]:
        _fail(flow, f"task t{s['task']} {task_name(flow, int(s['task']))} signals "
                    f"{event_name(whole, int(s['event']))}, to which it adds nothing", int(s["task"]))


def _check_acyclic(flow: tf.Taskflow) -> None:
    """No cycle through events and queue order; ranks are folded onto one, so none across ranks either."""
    chained = flow
    if flow.queues:
        chained = _with_queue_order(flow)
    done = np.zeros(flow.num_tasks, bool)
    for tasks in levels(make_graph(chained)):
        done[tasks] = True
    for t in np.flatnonzero(~done)[:1]:
        _fail(flow, f"task t{t} {task_name(flow, int(t))} can never run: a cycle leads through what it waits for", int(t))


def _with_queue_order(flow: tf.Taskflow) -> tf.Taskflow:
    """The same taskflow with one more event between consecutive tasks of each queue."""
    before = np.concatenate([np.asarray(q)[:-1] for q in flow.queues])
    after = np.concatenate([np.asarray(q)[1:] for q in flow.queues])
    first = len(flow.events)
    events = np.zeros(len(before), tf.EVENT)
    events["block"] = len(flow.blocks)
    waits, signals = np.zeros(len(before), tf.WAIT), np.zeros(len(before), tf.SIGNAL)
    waits["task"], signals["task"] = after, before
    waits["event"] = signals["event"] = first + np.arange(len(before))
    block = tf.EventBlock("queue", "count", (), first, len(before), False)
    return flow.replace(events=np.concatenate([flow.events, events]), waits=np.concatenate([flow.waits, waits]),
                        signals=np.concatenate([flow.signals, signals]), blocks=(*flow.blocks, block))
