"""An independent proof that a taskflow orders every pair of conflicting accesses, for one routing and all ranks.

Nothing here uses the library's dependency rules, layouts or orderings: cells are counted one by one, thresholds are
recounted from what every task adds, and "before" is plain reachability over queues and counters. Where buffers share
memory, all accesses of one to a piece of it come before the first of the other.
"""

import numpy as np
from expansion import Expansion


class Unordered(AssertionError):
    """Some task reads or overwrites a cell without being ordered after the task that wrote it."""


def assert_ordered(flow, ids, num_tokens, thresholds, weights=None):
    """Raises Unordered (or AssertionError) unless every conflicting pair of accesses of all ranks is ordered.

    `thresholds[rank][event]` are those that the runtime would wait for; they must be what the tasks add up to. `weights`
    are the topk_weights of the ranks where they decide what is dropped.
    """
    x = Expansion(flow, ids, num_tokens, weights)
    n = flow.num_tasks
    producers, totals = {}, {}
    for rank in x.ranks:
        for signal in flow.signals:
            for key, amount in x.added(rank, int(signal["task"]), signal).items():
                totals[key] = totals.get(key, 0) + amount
                if amount:
                    producers.setdefault(key, set()).add(rank * n + int(signal["task"]))
    for rank in x.ranks:
        for e in range(len(flow.events)):
            got, want = totals.get((rank, e), 0), int(thresholds[rank][e])
            assert got == want, f"event {e} of rank {rank} receives {got}, its threshold is {want}"
    before = _ancestors(flow, x, producers)
    _check_accesses(flow, x, before)


def _ancestors(flow, x, producers):
    """For each (rank, task) the bit set of all that run before it; AssertionError where a cycle leaves some out."""
    n = flow.num_tasks
    direct = [set() for _ in range(n * flow.ep_size)]
    for rank in x.ranks:
        for wait in flow.waits:
            t = int(wait["task"])
            direct[rank * n + t] |= producers.get((rank, x.awaited(rank, t, wait)), set())
        for queue in flow.queues:
            for a, b in zip(queue[:-1], queue[1:], strict=True):
                direct[rank * n + int(b)].add(rank * n + int(a))
    users = [[] for _ in direct]
    for node, sources in enumerate(direct):
        for s in sources:
            users[s].append(node)
    left = [len(s) for s in direct]
    ready, before, done = [i for i, c in enumerate(left) if not c], [0] * len(direct), 0
    while ready:
        node = ready.pop()
        done += 1
        for s in direct[node]:
            before[node] |= before[s] | (1 << s)
        for u in users[node]:
            left[u] -= 1
            if not left[u]:
                ready.append(u)
    assert done == len(direct), "a cycle: some tasks never run"
    return before


def _check_accesses(flow, x, before):
    n = flow.num_tasks
    touched = [x.footprint(rank, t) for rank in x.ranks for t in range(n)]
    reads, writes = (_pairs([parts[i] for parts in touched]) for i in range(2))
    for i in np.flatnonzero(writes[1:, 0] == writes[:-1, 0])[:1]:
        raise AssertionError(f"a cell is written by {_name(flow, writes[i, 1])} and {_name(flow, writes[i + 1, 1])}")
    writer = np.full(x.num_cells, -1)
    writer[writes[:, 0]] = writes[:, 1]
    given = np.zeros(x.num_cells, bool)
    for rank in x.ranks:
        for b in flow.inputs:
            given[x.cells(rank, b, range(x._num_rows(rank, b)))] = True
        for b in flow.outputs:
            _check_written(flow, x, rank, b, writer)
    _check_shared_memory(flow, x, reads, writes, before)
    made = reads[~given[reads[:, 0]]]
    for writing, reading in set(zip(writer[made[:, 0]].tolist(), made[:, 1].tolist(), strict=True)):
        if writing < 0:
            raise Unordered(f"{_name(flow, reading)} reads what nobody writes")
        if not before[reading] >> writing & 1:
            raise Unordered(f"{_name(flow, reading)} does not wait for {_name(flow, writing)}")


def _pairs(parts):
    """(cell, node) of all accesses, each once and in order, from the lists of cells of each node."""
    cells = [cells for mine in parts for cells in mine]
    nodes = np.repeat(np.arange(len(parts)), [sum(map(len, mine)) for mine in parts])
    if not cells:
        return np.zeros((0, 2), int)
    return np.stack(np.divmod(np.unique(np.concatenate(cells) * len(parts) + nodes), len(parts)), axis=1)


def _check_shared_memory(flow, x, reads, writes, before):
    """Of two storages in a piece of memory, all accesses to one come before the other is written."""
    if not x.homes:
        return
    written = x.pieces(writes)
    used = x.pieces(np.concatenate([reads, writes]))
    known = set()
    for piece, tenants in used.items():
        for a in tenants:
            for b in tenants:
                if a < b:
                    known.add((a, b, *(frozenset(t[piece].get(s, ())) for t in (written, used) for s in (a, b))))
    for a, b, writing_a, writing_b, using_a, using_b in known:
        if not any(all(before[w] >> u & 1 for w in writing for u in using)
                   for writing, using in ((writing_b, using_a), (writing_a, using_b))):
            names = [_name(flow, next(iter(u))) for u in (using_a, using_b)]
            raise Unordered(f"{flow.buffers[a].name} and {flow.buffers[b].name} share memory, and neither is done before "
                            f"the other is written: {' and '.join(names)}")


def _check_written(flow, x, rank, b, writer):
    """Every row of an output is written, but for padding."""
    missing = writer[x.cells(rank, b, range(x._num_rows(rank, b)))] < 0
    assert x.has_padding or not missing.any(), f"output {b} of rank {rank} has rows that no task writes"


def _name(flow, node):
    from hpmoe.ir.taskflow_text import task_name
    rank, t = divmod(int(node), flow.num_tasks)
    return f"rank {rank} t{t} {task_name(flow, t)}"
