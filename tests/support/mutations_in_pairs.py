"""Mutations of two places at once, of which one may make up for the other: a schedule is right or wrong as a whole."""

import dataclasses

import numpy as np
from mutation import changed, mutation, pick
from mutations_of_schedules import with_queue
from other_objects import PARAMS

import hpmoe
from hpmoe.ir import taskflow as tf


def neighbour(rng, flow, task, most=3):
    """A task a few places before or behind another in its queue, in program order where there are no queues."""
    line = next((q for q in map(list, flow.queues) if task in q), list(range(flow.num_tasks)))
    steps = rng.integers(1, most + 1) * rng.choice([-1, 1])
    return int(line[min(max(line.index(task) + steps, 0), len(line) - 1)])


# Along a queue.

@mutation(2)
def wait_moves_along_its_queue(rng, flow):
    i = pick(rng, flow.waits)
    return None if i is None else flow.replace(
        waits=changed(flow.waits, i, task=neighbour(rng, flow, int(flow.waits["task"][i]))))


@mutation()
def signal_moves_along_its_queue(rng, flow):
    i = pick(rng, flow.signals)
    return None if i is None else flow.replace(
        signals=changed(flow.signals, i, task=neighbour(rng, flow, int(flow.signals["task"][i]))))


@mutation()
def task_takes_over_a_neighbours_waits(rng, flow):
    """Which keeps them, or not."""
    i = pick(rng, flow.waits)
    if i is None:
        return None
    mine = flow.waits[flow.waits["task"] == flow.waits["task"][i]].copy()
    mine["task"] = neighbour(rng, flow, int(mine["task"][0]))
    kept = flow.waits if rng.random() < 0.5 else flow.waits[flow.waits["task"] != flow.waits["task"][i]]
    return flow.replace(waits=np.concatenate([kept, mine]))


@mutation()
def block_of_tasks_moves_along_its_queue(rng, flow):
    long = [q for q, tasks in enumerate(flow.queues) if len(tasks) > 2]
    if not long:
        return None
    q = int(rng.choice(long))
    queue = np.asarray(flow.queues[q])
    first = int(rng.integers(len(queue) - 1))
    block, rest = queue[first:first + 2], np.delete(queue, [first, first + 1])
    return with_queue(flow, q, np.insert(rest, rng.integers(len(rest) + 1), block))


# Events.

@mutation(2)
def event_and_its_copy(rng, flow):
    """A second event with the same signals and threshold, for which some wait instead."""
    i = pick(rng, flow.events)
    if i is None:
        return None
    signals, waits = flow.signals[flow.signals["event"] == i].copy(), flow.waits.copy()
    signals["event"] = len(flow.events)
    waits["event"][(waits["event"] == i) & (rng.random(len(waits)) < 0.5)] = len(flow.events)
    return flow.replace(events=np.concatenate([flow.events, flow.events[i:i + 1]]), waits=waits,
                        signals=np.concatenate([flow.signals, signals]))


@mutation(2)
def event_split_in_two(rng, flow):
    """Some signals go to a new event, both count tasks, and who waited waits for both, or now and then for one."""
    i = pick(rng, flow.events)
    mine = [] if i is None else np.flatnonzero(flow.signals["event"] == i)
    if len(mine) < 2:
        return None
    chosen, new = rng.permutation(mine)[:rng.integers(1, len(mine))], len(flow.events)
    signals = changed(changed(flow.signals, mine, amount=tf.COUNT), chosen, event=new)
    events = np.concatenate([flow.events, flow.events[i:i + 1]])
    for event, count in ((i, len(mine) - len(chosen)), (new, len(chosen))):
        events = changed(events, event, extent=tf.ONE, index=0, mult=count, route=-1)
    more = flow.waits[flow.waits["event"] == i].copy()
    more["event"] = new
    return flow.replace(events=events, signals=signals, waits=np.concatenate(
        [flow.waits, more if rng.random() < 0.7 else more[:-1]]))


@mutation()
def signals_and_threshold_of_one_event_doubled(rng, flow):
    i = pick(rng, flow.events)
    if i is None:
        return None
    mine = flow.signals[flow.signals["event"] == i]
    mine = mine if rng.random() < 0.7 else mine[:-1]
    return flow.replace(signals=np.concatenate([flow.signals, mine]),
                        events=changed(flow.events, i, mult=2 * flow.events["mult"][i]))


@mutation()
def two_events_change_places(rng, flow):
    """In the table, with all that is about them; their blocks stay."""
    i, j = pick(rng, flow.events), pick(rng, flow.events)
    if i is None:
        return None
    to = np.arange(len(flow.events))
    to[[i, j]] = j, i
    events = flow.events.copy()
    for column in ("extent", "index", "mult", "route"):
        events[column] = flow.events[column][to]
    return flow.replace(events=events, **{name: changed(table, slice(None), event=to[table["event"]])
                                          for name, table in (("waits", flow.waits), ("signals", flow.signals))})


@mutation()
def waits_for_what_its_producers_wait_for(rng, flow):
    """A wait is left out, and its task waits for what the tasks that signal it wait for."""
    i = pick(rng, flow.waits)
    if i is None:
        return None
    producers = flow.signals["task"][flow.signals["event"] == flow.waits["event"][i]]
    theirs = flow.waits[np.isin(flow.waits["task"], producers)].copy()
    theirs["task"] = flow.waits["task"][i]
    return flow.replace(waits=np.concatenate([np.delete(flow.waits, i), theirs]))


@mutation(0.5)
def another_note_on_a_block(rng, flow):
    """What `blocks` says of events is for text and queries."""
    i = pick(rng, flow.blocks)
    if i is None:
        return None
    change = {"name": "renamed", "unit": "count", "columns": ((0, 1),), "dynamic": not flow.blocks[i].dynamic,
              "first": flow.blocks[i].first + 1, "size": flow.blocks[i].size - 1}
    name = str(rng.choice(list(change)))
    return flow.replace(blocks=(*flow.blocks[:i], flow.blocks[i].replace(**{name: change[name]}), *flow.blocks[i + 1:]))


# Machines and ranks.

@mutation(0.5)
def on_another_machine(rng, flow):
    """Of as many queues, or of others."""
    if not flow.queues:
        return None
    machines = [hpmoe.cpu(len(flow.queues)), hpmoe.cpu(len(flow.queues) + 1),
                *(hpmoe.ascend_a3.replace(num_aic=n, num_aiv=len(flow.queues) - n) for n in range(1, len(flow.queues)))]
    return flow.replace(machine=machines[rng.integers(len(machines))])


@mutation(0.3)
def one_queue_more(rng, flow):
    return flow.replace(queues=(*flow.queues, np.zeros(0, np.int64))) if flow.queues else None


@mutation(0.3, anew=True)
def another_number_of_ranks(rng, flow):
    size = max(1, flow.ep_size + int(rng.choice([-1, 1])))
    order = (np.arange(size)[:, None] + np.arange(size)) % size
    return flow.replace(ep_size=size, peer_orders=np.stack([order, order]) if rng.random() < 0.5 else flow.peer_orders)


# Operations, buffers and routes.

@mutation(anew=True)
def operation_of_another_kind(rng, flow):
    """Another body, unit or number of operands, or params, or another immediate value."""
    i = int(rng.integers(len(flow.ops)))
    op, what = flow.ops[i], str(rng.choice(["primitive", "unit", "operands", "value", "params"]))
    k = int(rng.integers(len(op.operands))) if op.operands else 0
    value = {"primitive": lambda: flow.ops[rng.integers(len(flow.ops))].primitive,
             "unit": lambda: "aic" if op.unit == "aiv" else "aiv",
             "operands": lambda: op.operands[:k] + op.operands[k:k + 1] * int(rng.choice([0, 2])) + op.operands[k + 1:],
             "params": lambda: PARAMS[rng.integers(len(PARAMS))]}.get(what)
    if what == "value":
        if not op.operands:
            return None
        immediate = dataclasses.replace(op.operands[k], value=op.operands[k].value + 0.5)
        what, value = "operands", lambda: (*op.operands[:k], immediate, *op.operands[k + 1:])
    return flow.replace(ops=(*flow.ops[:i], op.replace(**{what: value()}), *flow.ops[i + 1:]))


@mutation(anew=True)
def operands_of_two_operations_exchanged(rng, flow):
    chosen = [i for i, op in enumerate(flow.ops) if op.operands]
    if len(chosen) < 2:
        return None
    i, j = rng.choice(chosen, size=2, replace=False).tolist()
    ops, k = list(flow.ops), int(rng.integers(min(len(flow.ops[i].operands), len(flow.ops[j].operands))))
    for a, b in ((i, j), (j, i)):
        mine = list(flow.ops[a].operands)
        mine[k] = flow.ops[b].operands[k]
        ops[a] = flow.ops[a].replace(operands=tuple(mine))
    return flow.replace(ops=tuple(ops))


@mutation(anew=True)
def buffer_of_another_make(rng, flow):
    """Its dtype, or the shape that a user sees."""
    b = int(rng.integers(len(flow.buffers)))
    change = {"dtype": str(rng.choice(["float32", "float16", "bfloat16", "int32"])), "shape": (*flow.buffers[b].shape, 1)}
    what = str(rng.choice(list(change)))
    made = dataclasses.replace(flow.buffers[b], **{what: change[what]})
    return flow.replace(buffers=(*flow.buffers[:b], made, *flow.buffers[b + 1:]))


@mutation(anew=True)
def route_of_another_size(rng, flow):
    """But for its rows: room for more of them, for which there are no tasks, changes nothing as long as they stay away."""
    if not flow.routes:
        return None
    i = int(rng.integers(len(flow.routes)))
    what = str(rng.choice(["ids", "num_experts", "num_local_experts", "top_k", "num_tokens", "tile_rows",
                           "return_tokens", "weights", "once_of"]))
    plan = dataclasses.replace(flow.routes[i], **{what: getattr(flow.routes[i], what) + int(rng.choice([-1, 1]))})
    return flow.replace(routes=(*flow.routes[:i], plan, *flow.routes[i + 1:]))
