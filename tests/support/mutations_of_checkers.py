"""Mutations that somebody who checks schedules by hand thinks of: two things exchanged, one off by one, one used twice."""

import dataclasses

import numpy as np
from mutation import changed, mutation, pick
from mutations_of_programs import with_op
from other_objects import other_params

from hpmoe.ir import taskflow as tf

# Operations.


@mutation(anew=True)
def operands_exchanged(rng, flow):
    chosen = [i for i, op in enumerate(flow.ops) if len(op.operands) > 1]
    if not chosen:
        return None
    i = int(rng.choice(chosen))
    a, b = rng.choice(len(flow.ops[i].operands), size=2, replace=False)
    operands = list(flow.ops[i].operands)
    operands[a], operands[b] = operands[b], operands[a]
    return with_op(flow, i, operands=tuple(operands))


@mutation(anew=True)
def operation_of_another_shape(rng, flow):
    """Its columns, its tiles, its peers or a parameter are one more or less, or it signals by another unit."""
    i = int(rng.integers(len(flow.ops)))
    op, field = flow.ops[i], str(rng.choice(["cols", "tile_cols", "num_peers", "params", "signal"]))
    if field == "signal":
        return with_op(flow, i, signal=str(rng.choice(["tile", "expert", "peer"])))
    if field != "params":
        return with_op(flow, i, **{field: getattr(op, field) + int(rng.choice([-1, 1]))})
    others = list(other_params(op.params))
    return with_op(flow, i, params=others[rng.integers(len(others))][-1])


@mutation(0.5, anew=True)
def buffer_in_the_memory_of_another(rng, flow):
    roots = [b for b, buffer in enumerate(flow.buffers) if buffer.storage == b and buffer.memory < 0]
    b = int(rng.integers(len(flow.buffers)))
    earlier = [r for r in roots if r < b]
    if not earlier:
        return None
    moved = dataclasses.replace(flow.buffers[b], memory=int(rng.choice(earlier)))
    return flow.replace(buffers=(*flow.buffers[:b], moved, *flow.buffers[b + 1:]))


# Events.

def alike(flow, i):
    """Other events of the same extent and multiplicity."""
    events = flow.events
    same = (events["extent"] == events["extent"][i]) & (events["mult"] == events["mult"][i])
    return [e for e in np.flatnonzero(same).tolist() if e != i]


@mutation(2)
def wait_for_another_event_of_the_same_count(rng, flow):
    i = pick(rng, flow.waits)
    others = [] if i is None else alike(flow, flow.waits["event"][i])
    return flow.replace(waits=changed(flow.waits, i, event=int(rng.choice(others)))) if others else None


@mutation()
def wait_for_the_next_event(rng, flow):
    i = pick(rng, flow.waits)
    return None if i is None else flow.replace(
        waits=changed(flow.waits, i, event=flow.waits["event"][i] + int(rng.choice([-1, 1]))))


@mutation(2)
def another_task_signals_too(rng, flow):
    """Some task signals what another signals; now and then the event waits for it as well."""
    i = pick(rng, flow.signals)
    if i is None:
        return None
    row = flow.signals[i:i + 1].copy()
    row["task"] = rng.integers(flow.num_tasks)
    events = flow.events
    if rng.random() < 0.5:
        events = changed(events, row["event"], mult=events["mult"][row["event"]] + 1)
    return flow.replace(signals=np.concatenate([flow.signals, row]), events=events)


@mutation(2)
def one_event_for_two(rng, flow):
    """All that is about one event is about another, too, which waits for both."""
    i = pick(rng, flow.events)
    others = [] if i is None else alike(flow, i)
    if not others:
        return None
    j = int(rng.choice(others))
    waits, signals = (changed(table, table["event"] == j, event=i) for table in (flow.waits, flow.signals))
    mult = flow.events["mult"][i] + (flow.events["mult"][j] if rng.random() < 0.5 else 0)
    return flow.replace(waits=waits, signals=signals, events=changed(flow.events, i, mult=mult))


@mutation()
def rows_signalled_a_task_early(rng, flow):
    """What a task signals is signalled by the one before it in its queue."""
    i = pick(rng, flow.signals)
    if i is None or not flow.queues:
        return None
    line = next(q for q in map(list, flow.queues) if flow.signals["task"][i] in q)
    place = line.index(flow.signals["task"][i])
    return flow.replace(signals=changed(flow.signals, i, task=line[place - 1])) if place else None


# Queues.

@mutation(2)
def before_what_it_waits_for(rng, flow):
    """A task goes right before one that it needs, a cycle unless other ranks' signals do."""
    i = pick(rng, flow.waits)
    if i is None or not flow.queues:
        return None
    t, event = int(flow.waits["task"][i]), flow.waits["event"][i]
    needed = flow.signals["task"][flow.signals["event"] == event].tolist()
    lines = [q for q, queue in enumerate(flow.queues) if set(needed) & set(np.asarray(queue).tolist())
             and q in flow.machine.queues_of(flow.ops[flow.tasks[t]["op"]].unit)]
    if not lines:
        return None
    to, queues = int(rng.choice(lines)), [[n for n in np.asarray(q).tolist() if n != t] for q in flow.queues]
    place = min([queues[to].index(n) for n in needed if n in queues[to]], default=0)
    queues[to].insert(place, t)
    return flow.replace(queues=tuple(np.array(q, np.int64) for q in queues))


def two_queues(rng, flow):
    """All queues, and which two of them."""
    return [np.asarray(q) for q in flow.queues], *rng.choice(len(flow.queues), size=2, replace=False)


@mutation()
def two_queues_in_one(rng, flow):
    """One takes over the other's tasks, merged by their place or one after the other, and leaves it empty."""
    if len(flow.queues) < 2:
        return None
    queues, a, b = two_queues(rng, flow)
    both = np.concatenate([queues[a], queues[b]])
    if rng.random() < 0.5:
        both = both[np.argsort(np.concatenate([np.arange(len(queues[a])), np.arange(len(queues[b]))]), kind="stable")]
    queues[a], queues[b] = both, both[:0]
    return flow.replace(queues=tuple(queues))


@mutation()
def every_other_task_to_another_queue(rng, flow):
    """A queue is split; what leaves goes behind all tasks of another, or before them."""
    if len(flow.queues) < 2:
        return None
    queues, a, b = two_queues(rng, flow)
    left = queues[a][1::2]
    queues[a], queues[b] = queues[a][::2], np.concatenate([queues[b], left] if rng.random() < 0.5 else [left, queues[b]])
    return flow.replace(queues=tuple(queues))


@mutation(0.5)
def counts_tasks_where_it_counted_rows(rng, flow):
    """All signals of an event, which now waits for as many tasks."""
    i = pick(rng, flow.events)
    if i is None:
        return None
    mine = flow.signals["event"] == i
    events = changed(flow.events, i, extent=tf.ONE, mult=int(mine.sum()), index=0, route=-1)
    return flow.replace(events=events, signals=changed(flow.signals, mine, amount=tf.COUNT))
