"""Mutations of what orders tasks: waits, signals, events and queues."""

import numpy as np
from mutation import changed, in_table, mutation, pick, register, with_queue

from hpmoe.ir import taskflow as tf

# One row of a table, or one value in it.

def without_row(table):
    return lambda rng, flow: with_rows(rng, flow, table, lambda rows, i: np.delete(rows, i))


def with_row_twice(table):
    return lambda rng, flow: with_rows(rng, flow, table, lambda rows, i: np.concatenate([rows, rows[i:i + 1]]))


def with_rows(rng, flow, table, changed_at):
    rows = getattr(flow, table)
    i = pick(rng, rows)
    return None if i is None else flow.replace(**{table: changed_at(rows, i)})


def with_other_value(table, column, choices):
    return lambda rng, flow: in_table(rng, flow, table, column, lambda row: choices(flow, row))


def any_task(flow, row):
    return range(-1, flow.num_tasks + 1)


def any_event(flow, row):
    return range(-1, len(flow.events) + 1)


for words, weight, mutate in (
        ("drop wait", 3, without_row("waits")),
        ("drop signal", 2, without_row("signals")),
        ("repeat wait", 1, with_row_twice("waits")),
        ("repeat signal", 1, with_row_twice("signals")),
        ("wait for another event", 2, with_other_value("waits", "event", any_event)),
        ("another task waits", 1, with_other_value("waits", "task", any_task)),
        ("wait by another kind", 1, with_other_value("waits", "kind", lambda flow, w: range(-1, 4))),
        ("signal another event", 1, with_other_value("signals", "event", any_event)),
        ("another task signals", 1, with_other_value("signals", "task", any_task)),
        ("signal by another kind", 1, with_other_value("signals", "kind", lambda flow, s: range(-1, 4))),
        ("signal another amount", 1, with_other_value("signals", "amount", lambda flow, s: range(-1, 3))),
        ("signal another rank", 2, with_other_value("signals", "remote", lambda flow, s: range(-1, 4))),
        ("another threshold", 2, with_other_value("events", "mult", lambda flow, e: (
            e["mult"] + 1, e["mult"] - 1, 2 * e["mult"], 0, 1))),
        ("another extent", 2, with_other_value("events", "extent", lambda flow, e: range(-1, 16))),
        ("another unit", 1, with_other_value("events", "index", lambda flow, e: range(-1, e["index"] + 3))),
        ("another route", 1, with_other_value("events", "route", lambda flow, e: range(-1, len(flow.routes) + 1))),
        ("another block", 0.5, with_other_value("events", "block", lambda flow, e: range(-1, len(flow.blocks) + 1)))):
    register(words, mutate, weight)


# Waits.

@mutation(3)
def add_wait(rng, flow):
    if not len(flow.events):
        return None
    row = np.zeros(1, tf.WAIT)
    row["task"], row["event"] = rng.integers(flow.num_tasks), rng.integers(len(flow.events))
    return flow.replace(waits=np.concatenate([flow.waits, row]))


@mutation()
def shuffle_waits(rng, flow):
    waits, signals = (table[rng.permutation(len(table))] for table in (flow.waits, flow.signals))
    return flow.replace(waits=waits, signals=signals)


@mutation()
def forget_waits_of_a_task(rng, flow):
    t = int(rng.integers(flow.num_tasks))
    return flow.replace(waits=flow.waits[flow.waits["task"] != t]) if (flow.waits["task"] == t).any() else None


@mutation()
def exchange_waits_of_two_tasks(rng, flow):
    return flow.replace(waits=exchanged(rng, flow, flow.waits))


def exchanged(rng, flow, table):
    """A table of waits or signals with those of two tasks of one operation exchanged."""
    op = flow.tasks["op"][rng.integers(flow.num_tasks)]
    a, b = rng.choice(np.flatnonzero(flow.tasks["op"] == op), size=2)
    table, to = table.copy(), {a: b, b: a}
    table["task"] = [to.get(t, t) for t in table["task"].tolist()]
    return table


# Signals.

@mutation()
def exchange_signals_of_two_tasks(rng, flow):
    return flow.replace(signals=exchanged(rng, flow, flow.signals))


@mutation()
def swap_two_signals(rng, flow):
    i, j = pick(rng, flow.signals), pick(rng, flow.signals)
    if i is None:
        return None
    table = flow.signals.copy()
    table["event"][[i, j]] = table["event"][[j, i]]
    return flow.replace(signals=table)


# Events.

@mutation()
def threshold_of_another_event(rng, flow):
    """All that says what it counts is that of another event."""
    i, j = pick(rng, flow.events), pick(rng, flow.events)
    return None if i is None else flow.replace(events=changed(flow.events, i, **{
        name: flow.events[name][j] for name in ("extent", "index", "mult", "route")}))


@mutation()
def twice_the_signals_and_the_threshold(rng, flow):
    """Of a whole block, so that each event gets twice what it waits for."""
    i = pick(rng, flow.events)
    if i is None:
        return None
    block = flow.events["block"][i]
    mine = flow.events["block"][flow.signals["event"]] == block
    events = changed(flow.events, flow.events["block"] == block, mult=2 * flow.events["mult"][flow.events["block"] == block])
    return flow.replace(events=events, signals=np.concatenate([flow.signals, flow.signals[mine]]))


@mutation()
def add_event_of_its_own(rng, flow):
    """A new event that counts one task, and some task that waits for it."""
    event, signal, wait = np.zeros(1, tf.EVENT), np.zeros(1, tf.SIGNAL), np.zeros(1, tf.WAIT)
    event["extent"], event["mult"], event["route"], event["block"] = tf.ONE, 1, -1, max(0, len(flow.blocks) - 1)
    signal["task"], wait["task"] = rng.integers(flow.num_tasks, size=2)
    signal["event"] = wait["event"] = len(flow.events)
    signal["amount"] = tf.COUNT
    return flow.replace(events=np.concatenate([flow.events, event]), signals=np.concatenate([flow.signals, signal]),
                        waits=np.concatenate([flow.waits, wait]))


@mutation()
def nobody_waits_for_an_event(rng, flow):
    """All waits for an event are gone, the event stays."""
    i = pick(rng, flow.events)
    return None if i is None else flow.replace(waits=flow.waits[flow.waits["event"] != i])


@mutation()
def event_of_nothing(rng, flow):
    """An event that nobody signals one by one any more, and that waits for nothing."""
    i = pick(rng, flow.events)
    if i is None:
        return None
    silent = changed(flow.events, i, mult=0)
    if rng.random() < 0.5:
        silent = changed(silent, i, extent=tf.ONE, index=0, route=-1)
    return flow.replace(events=silent, signals=flow.signals[flow.signals["event"] != i])


@mutation()
def event_left_out(rng, flow):
    """An event is gone with all that is about it, and those behind it move up."""
    i = pick(rng, flow.events)
    if i is None:
        return None

    def without(table):
        table = table[table["event"] != i].copy()
        table["event"] -= table["event"] > i
        return table
    return flow.replace(events=np.delete(flow.events, i), waits=without(flow.waits), signals=without(flow.signals))


# Queues.

@mutation(3)
def swap_neighbours(rng, flow):
    q = with_two(rng, flow)
    if q is None:
        return None
    i = int(rng.integers(len(flow.queues[q]) - 1))
    queue = np.array(flow.queues[q])
    queue[[i, i + 1]] = queue[[i + 1, i]]
    return with_queue(flow, q, queue)


@mutation(2)
def swap_tasks(rng, flow):
    if not flow.queues:
        return None
    queues = [np.array(q) for q in flow.queues]
    a, b = rng.integers(flow.num_tasks, size=2)
    for queue in queues:
        both = [queue == a, queue == b]
        queue[both[0]], queue[both[1]] = b, a
    return flow.replace(queues=tuple(queues))


@mutation(3)
def move_task(rng, flow):
    """To another place of any queue of its unit."""
    if not flow.queues:
        return None
    t = int(rng.integers(flow.num_tasks))
    queues = [np.asarray(q)[np.asarray(q) != t] for q in flow.queues]
    to = int(rng.choice(flow.machine.queues_of(flow.ops[flow.tasks[t]["op"]].unit)))
    queues[to] = np.insert(queues[to], rng.integers(len(queues[to]) + 1), t)
    return flow.replace(queues=tuple(queues))


@mutation(0.5)
def move_to_any_queue(rng, flow):
    if not flow.queues:
        return None
    t, to = int(rng.integers(flow.num_tasks)), int(rng.integers(len(flow.queues)))
    queues = [np.asarray(q)[np.asarray(q) != t] for q in flow.queues]
    queues[to] = np.append(queues[to], t)
    return flow.replace(queues=tuple(queues))


@mutation(0.5)
def repeat_task(rng, flow):
    q = with_two(rng, flow)
    return None if q is None else with_queue(flow, q, np.append(flow.queues[q], rng.choice(flow.queues[q])))


@mutation(0.5)
def lose_task(rng, flow):
    q = with_two(rng, flow)
    return None if q is None else with_queue(flow, q, np.delete(flow.queues[q], rng.integers(len(flow.queues[q]))))


@mutation(0.5)
def reverse_queue(rng, flow):
    q = with_two(rng, flow)
    return None if q is None else with_queue(flow, q, flow.queues[q][::-1])


@mutation()
def rotate_part_of_a_queue(rng, flow):
    q = with_two(rng, flow)
    if q is None:
        return None
    a, b = np.sort(rng.integers(len(flow.queues[q]) + 1, size=2))
    queue = np.array(flow.queues[q])
    queue[a:b] = np.roll(queue[a:b], 1)
    return with_queue(flow, q, queue)


@mutation()
def exchange_tails(rng, flow):
    """Two queues go on with what was the other's."""
    if len(flow.queues) < 2:
        return None
    queues = list(map(np.asarray, flow.queues))
    a, b = rng.choice(len(queues), size=2, replace=False)
    i, j = rng.integers(len(queues[a]) + 1), rng.integers(len(queues[b]) + 1)
    queues[a], queues[b] = np.concatenate([queues[a][:i], queues[b][j:]]), np.concatenate([queues[b][:j], queues[a][i:]])
    return flow.replace(queues=tuple(queues))


@mutation()
def in_order_of_the_tables(rng, flow):
    """All queues, or one, in the order of the tasks."""
    chosen = range(len(flow.queues)) if rng.random() < 0.5 else rng.integers(max(1, len(flow.queues)), size=1)
    return flow.replace(queues=tuple(np.sort(q) if i in chosen else q for i, q in enumerate(flow.queues))) \
        if flow.queues else None


@mutation(0.5)
def exchange_queues(rng, flow):
    if len(flow.queues) < 2:
        return None
    queues = list(flow.queues)
    a, b = rng.integers(len(queues), size=2)
    queues[a], queues[b] = queues[b], queues[a]
    return flow.replace(queues=tuple(queues))


@mutation(0.3)
def one_queue_less(rng, flow):
    return flow.replace(queues=(*flow.queues[:-2], np.concatenate(flow.queues[-2:]))) if len(flow.queues) > 1 else None


def with_two(rng, flow):
    """A queue of at least two tasks."""
    long = [q for q, tasks in enumerate(flow.queues) if len(tasks) > 1]
    return int(rng.choice(long)) if long else None
