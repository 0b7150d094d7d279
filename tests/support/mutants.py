"""Random mutants of a taskflow: an edit of a table, of an operation or of what lies beside them, or other queues.

verify derives the tables again, so one edit of each form stands for its kind. Queues are the user's own: many forms of other
queues are tried, and requeue answers for them.
"""

import dataclasses

import numpy as np
from changed_operations import of_buffer, of_one, of_route

import hpmoe
from hpmoe import VerifyError
from hpmoe.rewriting import rebuild, requeue

TABLES = ("waits", "signals", "events")
FIELDS = ("queues", "ops", "buffers", "routes", "peer_orders", "inputs", "outputs", "tile_rows", "ep_size", "machine")


def changed(table, place, **columns):
    table = table.copy()
    for name, value in columns.items():
        table[name][place] = value
    return table


def with_deps(flow, **changes):
    """The taskflow with other tables of dependencies, or another origin of these."""
    return flow.replace(deps=flow.deps.replace(**changes))


def replaced(objects, i, **changes):
    return (*objects[:i], dataclasses.replace(objects[i], **changes), *objects[i + 1:])


def edited_table(rng, flow):
    """A cell with another value, or a row that is gone, there twice, or exchanged with another."""
    name = str(rng.choice(TABLES))
    rows = getattr(flow.deps, name)
    if len(rows) < 2:
        return None
    (i, j), column = rng.choice(len(rows), size=2, replace=False), str(rng.choice(rows.dtype.names))
    others = [rows[column][j], rows[column][i] - 1, rows[column][i] + 1, 2 * rows[column][i], 0, -1]
    exchanged = np.arange(len(rows))
    exchanged[[i, j]] = j, i
    form = rng.integers(6)
    edited = (np.delete(rows, i), np.insert(rows, j, rows[i]), rows[exchanged])[form] if form < 3 else changed(
        rows, i, **{column: others[rng.integers(len(others))]})
    return with_deps(flow, **{name: edited})


def edited_object(rng, flow):
    """Another attribute of an operation, a buffer or a route, in the tables that were made for it before."""
    name, changes = (("ops", of_one), ("buffers", of_buffer), ("routes", of_route))[rng.integers(3)]
    objects = getattr(flow, name)
    if not objects:
        return None
    i = int(rng.integers(len(objects)))
    every = [new for _, _, new in changes(flow, objects[i])]
    return flow.replace(**{name: (*objects[:i], every[rng.integers(len(every))], *objects[i + 1:])})


def edited_surroundings(rng, flow):
    """Another order of ranks, of inputs or outputs; another number of ranks or rows; another machine."""
    orders, ranks = flow.peer_orders.copy(), flow.ep_size
    orders[rng.integers(2), rng.integers(ranks)] = rng.permutation(ranks) if rng.random() < 0.7 else orders[0, 0, 0]
    name = str(rng.choice(["peer_orders", "inputs", "outputs", "tile_rows", "ep_size", "machine", "blocks"]))
    if name == "blocks":
        return with_deps(flow, blocks=flow.deps.blocks[1:])
    value = {"inputs": rng.permutation(flow.inputs).tolist(), "outputs": rng.permutation(flow.outputs).tolist(),
             "tile_rows": max(1, flow.tile_rows + int(rng.choice([-1, 1]))),
             "ep_size": max(1, ranks + int(rng.choice([-1, 1]))), "peer_orders": orders,
             "machine": hpmoe.cpu(len(flow.queues) + int(rng.integers(2))) if flow.queues else flow.machine}[name]
    return flow.replace(**{name: tuple(value) if isinstance(value, list) else value})


def other_queues(rng, flow):
    """Queues in which some tasks have other places."""
    if len(flow.queues) < 2:
        return None
    queues = [np.array(q) for q in flow.queues]
    a, b = rng.choice(len(queues), size=2, replace=False)
    change = QUEUES[rng.integers(len(QUEUES))]
    change(rng, flow, queues, int(a), int(b))
    return flow.replace(queues=tuple(np.asarray(q, np.int64) for q in queues))


def neighbours_swap(rng, flow, queues, a, b):
    i = int(rng.integers(max(1, len(queues[a]) - 1)))
    queues[a][i:i + 2] = queues[a][i:i + 2][::-1].copy()


def part_rotates(rng, flow, queues, a, b):
    i, j = np.sort(rng.integers(len(queues[a]) + 1, size=2))
    queues[a][i:j] = np.roll(queues[a][i:j], int(rng.integers(1, 3)))


def tasks_swap(rng, flow, queues, a, b):
    if len(queues[a]) and len(queues[b]):
        i, j = int(rng.integers(len(queues[a]))), int(rng.integers(len(queues[b])))
        queues[a][i], queues[b][j] = queues[b][j], queues[a][i]


def tails_swap(rng, flow, queues, a, b):
    i, j = (int(rng.integers(len(queues[q]) + 1)) for q in (a, b))
    queues[a], queues[b] = np.concatenate([queues[a][:i], queues[b][j:]]), np.concatenate([queues[b][:j], queues[a][i:]])


def two_merge(rng, flow, queues, a, b):
    """By their places, or one after the other."""
    both = np.concatenate([queues[a], queues[b]])
    places = np.concatenate([np.arange(len(queues[a])), np.arange(len(queues[b]))])
    queues[a], queues[b] = (both[np.argsort(places, kind="stable")] if rng.random() < 0.5 else both), both[:0]


def half_leaves(rng, flow, queues, a, b):
    left = queues[a][1::2]
    queues[a], queues[b] = queues[a][::2], np.concatenate([queues[b], left] if rng.random() < 0.5 else [left, queues[b]])


def in_program_order(rng, flow, queues, a, b):
    queues[:] = [np.sort(q) if rng.random() < 0.7 else q for q in queues]


def task_moves(rng, flow, queues, a, b):
    """To any place of a queue of its unit, or right before a task that it needs."""
    waits, signals = flow.deps.waits, flow.deps.signals
    waits = waits[rng.integers(len(waits))] if len(waits) else None
    t = int(rng.integers(flow.num_tasks)) if waits is None or rng.random() < 0.5 else int(waits["task"])
    to = int(rng.choice(flow.machine.queues_of(flow.ops[flow.tasks[t]["op"]].unit)))
    queues[:] = [q[q != t] for q in queues]
    needed = [] if waits is None else np.flatnonzero(np.isin(
        queues[to], signals["task"][signals["event"] == waits["event"]]))
    place = int(needed[0]) if len(needed) and rng.random() < 0.7 else int(rng.integers(len(queues[to]) + 1))
    queues[to] = np.insert(queues[to], place, t)


def task_is_lost_or_twice(rng, flow, queues, a, b):
    if len(queues[a]):
        queues[a] = queues[a][1:] if rng.random() < 0.5 else np.append(queues[a], queues[a][0])


QUEUES = (neighbours_swap, neighbours_swap, task_moves, task_moves, task_moves, part_rotates, tasks_swap, tails_swap,
          two_merge, half_leaves, in_program_order, task_is_lost_or_twice)
KINDS = (edited_table, edited_object, edited_surroundings, other_queues)


def mutant(rng, flow):
    """(kind, mutant of the flow); half of the mutants of a flow with queues have other queues."""
    while True:
        kind = other_queues if flow.queues and rng.random() < 0.5 else KINDS[rng.integers(3)]
        out = kind(rng, flow)
        if out is not None and differences(flow, out):
            return kind.__name__.replace("_", " "), out


def differences(flow, other):
    """The fields in which a mutant differs, for the reader of a failed test."""
    pairs = {name: (getattr(flow, name), getattr(other, name)) for name in FIELDS}
    pairs.update({name: (getattr(flow.deps, name), getattr(other.deps, name)) for name in (*TABLES, "blocks")})
    return [f"{name}: {a} -> {b}" for name, (a, b) in pairs.items() if a is not b and not _are_equal(a, b)]


def _are_equal(a, b):
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    return np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b


def accepted(flow):
    try:
        hpmoe.verify(flow)
    except VerifyError:
        return False
    return True


def fault_of_verifier(judge, flow, other, may_hang=lambda whole: False):
    """Returns the wrong verdict of verify, or of requeue for other queues, on a mutant, by the judge; or None."""
    verdict = accepted(other)
    if verdict and (harm := judge.harm(other)):
        return f"accepted: {harm}"
    if [name for name in ("deps", *FIELDS) if getattr(flow, name) is not getattr(other, name)] != ["queues"]:
        return None
    whole = rebuild(other, other.ops).replace(queues=other.queues)
    harm = judge.harm(whole)
    try:
        made = requeue(flow, other.queues)
    except VerifyError as error:
        return None if harm or may_hang(whole) else f"requeue refuses: {error}"
    return f"requeue takes queues that are wrong: {harm}" if harm or judge.harm(made) else None
