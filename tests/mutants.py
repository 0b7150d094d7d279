"""Random mutations of a taskflow's tables: what each is called, and how to make one."""

import dataclasses

import numpy as np

from hpmoe import taskflow as tf

MUTATIONS = {}


def mutation(weight=1.0, anew=False):
    """Registers `f(rng, flow) -> flow or None`; `anew` where the operations, tasks or ranks are no longer the same."""
    def keep(f):
        MUTATIONS[f.__name__.replace("_", " ")] = (f, weight, anew)
        return f
    return keep


def changed(table, place, **columns):
    table = table.copy()
    for name, value in columns.items():
        table[name][place] = value
    return table


def pick(rng, table):
    return int(rng.integers(len(table))) if len(table) else None


def other(rng, value, choices):
    """One of `choices` that is not `value`, or None."""
    left = [c for c in choices if c != value]
    return left[rng.integers(len(left))] if left else None


def in_table(rng, flow, table, column, choices):
    """One row of a table with another value in one column."""
    rows = getattr(flow, table)
    i = pick(rng, rows)
    if i is None:
        return None
    value = other(rng, rows[column][i], choices(rows[i]))
    return None if value is None else flow.replace(**{table: changed(rows, i, **{column: value})})


# Waits.

@mutation(3)
def drop_wait(rng, flow):
    i = pick(rng, flow.waits)
    return None if i is None else flow.replace(waits=np.delete(flow.waits, i))


@mutation(3)
def add_wait(rng, flow):
    if not len(flow.events):
        return None
    row = np.zeros(1, tf.WAIT)
    row["task"], row["event"] = rng.integers(flow.num_tasks), rng.integers(len(flow.events))
    return flow.replace(waits=np.concatenate([flow.waits, row]))


@mutation()
def repeat_wait(rng, flow):
    i = pick(rng, flow.waits)
    return None if i is None else flow.replace(waits=np.concatenate([flow.waits, flow.waits[i:i + 1]]))


@mutation()
def shuffle_waits(rng, flow):
    return flow.replace(waits=rng.permutation(flow.waits), signals=rng.permutation(flow.signals))


@mutation(2)
def wait_for_another_event(rng, flow):
    return in_table(rng, flow, "waits", "event", lambda w: range(-1, len(flow.events) + 1))


@mutation()
def another_task_waits(rng, flow):
    return in_table(rng, flow, "waits", "task", lambda w: range(-1, flow.num_tasks + 1))


@mutation()
def wait_by_another_kind(rng, flow):
    return in_table(rng, flow, "waits", "kind", lambda w: range(-1, 4))


# Signals.

@mutation(2)
def drop_signal(rng, flow):
    i = pick(rng, flow.signals)
    return None if i is None else flow.replace(signals=np.delete(flow.signals, i))


@mutation()
def repeat_signal(rng, flow):
    i = pick(rng, flow.signals)
    return None if i is None else flow.replace(signals=np.concatenate([flow.signals, flow.signals[i:i + 1]]))


@mutation()
def signal_another_event(rng, flow):
    return in_table(rng, flow, "signals", "event", lambda s: range(-1, len(flow.events) + 1))


@mutation()
def another_task_signals(rng, flow):
    return in_table(rng, flow, "signals", "task", lambda s: range(-1, flow.num_tasks + 1))


@mutation()
def signal_by_another_kind(rng, flow):
    return in_table(rng, flow, "signals", "kind", lambda s: range(-1, 4))


@mutation()
def signal_another_amount(rng, flow):
    return in_table(rng, flow, "signals", "amount", lambda s: range(-1, 3))


@mutation(2)
def signal_another_rank(rng, flow):
    return in_table(rng, flow, "signals", "remote", lambda s: range(-1, 4))


@mutation()
def swap_two_signals(rng, flow):
    i, j = pick(rng, flow.signals), pick(rng, flow.signals)
    if i is None:
        return None
    table = flow.signals.copy()
    table["event"][[i, j]] = table["event"][[j, i]]
    return flow.replace(signals=table)


# Events.

@mutation(2)
def another_threshold(rng, flow):
    return in_table(rng, flow, "events", "mult", lambda e: (e["mult"] + 1, e["mult"] - 1, 2 * e["mult"], 0, 1))


@mutation(2)
def another_extent(rng, flow):
    return in_table(rng, flow, "events", "extent", lambda e: range(-1, 14))


@mutation()
def another_unit(rng, flow):
    return in_table(rng, flow, "events", "index", lambda e: range(-1, e["index"] + 3))


@mutation()
def another_route(rng, flow):
    return in_table(rng, flow, "events", "route", lambda e: range(-1, len(flow.routes) + 1))


@mutation(0.5)
def another_block(rng, flow):
    return in_table(rng, flow, "events", "block", lambda e: range(-1, len(flow.blocks) + 1))


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


def with_queue(flow, q, tasks):
    return flow.replace(queues=(*flow.queues[:q], np.asarray(tasks), *flow.queues[q + 1:]))


# Tasks.

@mutation(anew=True)
def task_of_another_place(rng, flow):
    column = str(rng.choice(["op", "peer", "row", "col", "cols"]))
    return in_table(rng, flow, "tasks", column, lambda t: range(t[column] - 2, t[column] + 3))


@mutation(0.5, anew=True)
def tasks_exchange_places(rng, flow):
    a, b = rng.integers(flow.num_tasks, size=2)
    table = flow.tasks.copy()
    table[[a, b]] = table[[b, a]]
    return flow.replace(tasks=table)


@mutation(0.5, anew=True)
def task_missing(rng, flow):
    """A task is gone from all tables, as if it had never been."""
    t = int(rng.integers(flow.num_tasks))

    def without(table):
        table = table[table["task"] != t].copy()
        table["task"] -= table["task"] > t
        return table
    return flow.replace(tasks=np.delete(flow.tasks, t), waits=without(flow.waits), signals=without(flow.signals),
                        queues=tuple(q[q != t] - (q[q != t] > t) for q in map(np.asarray, flow.queues)))


# Ranks.

@mutation(anew=True)
def another_order_of_peers(rng, flow):
    order = flow.peer_order.copy()
    order[rng.integers(flow.ep_size)] = rng.permutation(flow.ep_size)
    return flow.replace(peer_order=order)


@mutation(0.5, anew=True)
def a_peer_twice(rng, flow):
    order = flow.peer_order.copy()
    order[rng.integers(flow.ep_size), rng.integers(flow.ep_size)] = rng.integers(flow.ep_size)
    return flow.replace(peer_order=order)


# Regions.

def with_op(flow, i, **changes):
    return flow.replace(ops=(*flow.ops[:i], flow.ops[i].replace(**changes), *flow.ops[i + 1:]))


@mutation(2, anew=True)
def another_region(rng, flow):
    """An operation touches other rows, columns or another buffer."""
    i = int(rng.choice([i for i, op in enumerate(flow.ops) if op.operands]))
    op = flow.ops[i]
    k = int(rng.integers(len(op.operands)))
    access = op.operands[k]
    field = str(rng.choice(["buffer", "rows", "cols", "offset"]))
    value = other(rng, getattr(access, field), {
        "buffer": range(len(flow.buffers)), "offset": range(-1, 4), "cols": ("own", "all", "one", "block"),
        "rows": ("own", "all", "one", "slot_expert", "expert", "peer", "entries", "tokens")}[field])
    operands = (*op.operands[:k], dataclasses.replace(access, **{field: value}), *op.operands[k + 1:])
    return with_op(flow, i, operands=operands)


@mutation(anew=True)
def another_domain(rng, flow):
    i = int(rng.integers(len(flow.ops)))
    domain = flow.ops[i].domain
    field = str(rng.choice(["num_rows", "clipped", "route", "blocks", "size"]))
    value = getattr(domain, field)
    value = not value if field == "clipped" else value + int(rng.choice([-1, 1]))
    return with_op(flow, i, domain=dataclasses.replace(domain, **{field: value}))


@mutation(anew=True)
def another_buffer(rng, flow):
    """A buffer of another size, or in the memory of another."""
    b = int(rng.integers(len(flow.buffers)))
    buffer = flow.buffers[b]
    field = str(rng.choice(["cols", "num_rows", "storage", "rows_per_expert", "route", "memory"]))
    value = getattr(buffer, field)
    value = other(rng, value, range(len(flow.buffers))) if field in ("storage", "memory") else (value or 0) + int(rng.choice([-1, 1]))
    return flow.replace(buffers=(*flow.buffers[:b], dataclasses.replace(buffer, **{field: value}), *flow.buffers[b + 1:]))


@mutation(0.5, anew=True)
def inputs_or_outputs_exchanged(rng, flow):
    name = str(rng.choice(["inputs", "outputs"]))
    order = rng.permutation(len(getattr(flow, name)))
    return flow.replace(**{name: tuple(getattr(flow, name)[i] for i in order)})


@mutation(0.5, anew=True)
def other_tiles(rng, flow):
    return flow.replace(tile_rows=max(1, flow.tile_rows + int(rng.choice([-1, 1]))))


@mutation(0.5, anew=True)
def what_is_printed(rng, flow):
    """Names, which no result depends on."""
    i, b = int(rng.integers(len(flow.ops))), int(rng.integers(len(flow.buffers)))
    renamed = dataclasses.replace(flow.buffers[b], name="renamed")
    return with_op(flow, i, label="renamed", equation=0).replace(
        buffers=(*flow.buffers[:b], renamed, *flow.buffers[b + 1:]))


def mutant(rng, flow):
    """(kind, mutant of the flow): one random mutation, now and then two."""
    names = list(MUTATIONS)
    weights = np.array([MUTATIONS[name][1] for name in names])
    while True:
        chosen = [str(n) for n in rng.choice(names, size=1 if rng.random() < 0.9 else 2, p=weights / weights.sum())]
        out = flow
        for name in chosen:
            if len(chosen) > 1 and MUTATIONS[name][2]:
                out = None
            out = out if out is None else MUTATIONS[name][0](rng, out)
        if out is not None:
            return (chosen[0] if len(chosen) == 1 else "two at once"), out
