"""Decides what a mutated schedule can do, for every routing of a list at once and without the library's own reasoning.

A Judge expands the operations of one taskflow over all ranks (see expansion.py) and knows, for each routing, which task must
run before which, and what each signal adds to which counter. A mutant is harmful where for some routing a counter misses its
threshold, tasks wait on a cycle, or a read is not ordered after the write it needs. Sets of (routing, task) are Python ints,
so that one bitwise operation does for all routings.
"""

import itertools

import numpy as np
from expansion import Expansion
from tile_words import kind as kind_of

from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout


class Judge:
    """Needs of the operations of `flow` under each routing of `cases`: (ids of each route, num_tokens, weights)."""

    def __init__(self, flow, cases, expansions=None):
        self.flow, self.cases, self.n = flow, cases, flow.num_tasks
        self.expansions = expansions or [Expansion(flow, *case) for case in cases]
        self.ranks = range(flow.ep_size)
        self.size = self.n * flow.ep_size
        self.blocks = [((1 << self.size) - 1) << (self.size * c) for c in range(len(cases))]
        ones = sum(1 << self.size * c for c in range(len(cases)))
        self.everywhere = [ones << node for node in range(self.size)]
        self.needed = [0] * self.size
        for c, x in enumerate(self.expansions):
            for writer, reader in conflicts(x):
                self.needed[reader] |= 1 << (self.size * c + writer)
        self._added, self._thresholds, self._experts, self._masks = {}, {}, {}, {}

    # What counters receive and wait for, [routings] each.

    def added(self, rank, *signal):
        """[(target rank, offset from the signal's event, amount, where positive)] of one signal of a task on `rank`."""
        key = rank, *signal
        if key not in self._added:
            out, (t, kind, amount, remote) = {}, signal
            row = {"event": 0, "kind": kind, "amount": amount, "remote": remote}
            for c, x in enumerate(self.expansions):
                for place, rows in x.added(rank, t, row).items():
                    out.setdefault(place, np.zeros(len(self.cases), np.int64))[c] += rows
            self._added[key] = [(target, offset, rows, self.mask(rows > 0)) for (target, offset), rows in out.items()]
        return self._added[key]

    def threshold(self, rank, extent, index, mult, route):
        key = rank, extent, index, mult, route
        if key not in self._thresholds:
            self._thresholds[key] = np.array([mult * extent_of(x, rank, extent, index, route) for x in self.expansions])
        return self._thresholds[key]

    def experts(self, rank, t):
        """[(expert, mask of the routings where it is that of the task's slot)]"""
        if (rank, t) not in self._experts:
            task = self.flow.tasks[t]
            route = self.flow.ops[task["op"]].domain.route
            found = np.array([x.received[route][rank][1][task["row"]][0] for x in self.expansions])
            self._experts[rank, t] = [(int(e), self.mask(found == e)) for e in np.unique(found)]
        return self._experts[rank, t]

    def mask(self, chosen):
        """The bits of the routings where `chosen`, [routings] bool, holds."""
        key = chosen.tobytes()
        if key not in self._masks:
            self._masks[key] = sum(self.blocks[c] for c in np.flatnonzero(chosen))
        return self._masks[key]

    # The verdict.

    def harm(self, flow):
        """Returns a fault of a schedule of the same operations, as (fault, routing or None), or None."""
        if not _are_queues(flow):
            return "a task is not in one queue of its unit, once", None
        try:
            return self._miscounted(flow) or self._disorder(self._direct(flow, self._producers(flow)[0]))
        except (AssertionError, IndexError, KeyError, OverflowError, StopIteration) as error:
            return f"the tables name what does not exist: {type(error).__name__} {error}", None

    def _producers(self, flow):
        """For each (rank, event) the tasks that signal it, each with the routings where it does; and how much in all."""
        producers, totals = {}, {}
        for t, event, *how in flow.deps.signals.tolist():
            for rank in self.ranks:
                for target, offset, amount, where in self.added(rank, t, *how):
                    key = target, event + offset
                    totals[key] = totals[key] + amount if key in totals else amount
                    producers.setdefault(key, []).append((rank * self.n + t, where))
        return producers, totals

    def _miscounted(self, flow):
        _, totals = self._producers(flow)
        assert all(0 <= e < len(flow.deps.events) for _, e in totals)
        for e, (*event, _block) in enumerate(flow.deps.events.tolist()):
            for rank in self.ranks:
                wrong = totals.get((rank, e), 0) != self.threshold(rank, *event)
                if wrong.any():
                    return f"event {e} of rank {rank} misses its threshold", int(np.flatnonzero(wrong)[0])
        return None

    def _direct(self, flow, producers):
        """For each (rank, task) the tasks right before it, each with the routings where it is."""
        direct = [[] for _ in range(self.size)]
        everywhere = self.mask(np.ones(len(self.cases), bool))
        for rank in self.ranks:
            for queue in flow.queues:
                for a, b in itertools.pairwise(np.asarray(queue).tolist()):
                    direct[rank * self.n + b].append((rank * self.n + a, everywhere))
            for t, event, kind in flow.deps.waits.tolist():
                node = rank * self.n + t
                if kind == tf.STATIC:
                    direct[node] += producers.get((rank, event), ())
                    continue
                for e, where in self.experts(rank, t):
                    direct[node] += [(p, m & where) for p, m in producers.get((rank, event + e), ())]
        return [[(p, m) for p, m in before if m] for before in direct]

    def _disorder(self, direct):
        order = _in_order(direct)
        if order is None:
            for c, block in enumerate(self.blocks):
                one = [[(p, m & block) for p, m in before if m & block] for before in direct]
                order = _in_order(one)
                if order is None:
                    return "tasks wait on a cycle", c
                found = self._unordered(one, order, block)
                if found:
                    return found
            return None
        return self._unordered(direct, order, self.mask(np.ones(len(self.cases), bool)))

    def _unordered(self, direct, order, within):
        before = [0] * self.size
        for node in order:
            known = 0
            for p, mask in direct[node]:
                known |= (before[p] | self.everywhere[p]) & mask
            before[node] = known
        for node in order:
            missing = self.needed[node] & within & ~before[node]
            if missing:
                c, writer = divmod((missing & -missing).bit_length() - 1, self.size)
                return f"t{node % self.n} of rank {node // self.n} is not ordered after t{writer % self.n} " \
                       f"of rank {writer // self.n}", c
        return None


def _are_queues(flow):
    """Returns True if each task is in one queue of its unit, once, or if there are no queues."""
    if not flow.queues:
        return True
    listed, units = np.sort(np.concatenate([np.asarray(q) for q in flow.queues])), flow.tasks["op"].tolist()
    return np.array_equal(listed, np.arange(flow.num_tasks)) and len(flow.queues) == flow.machine.num_queues and all(
        q in flow.machine.queues_of(flow.ops[units[t]].unit) for q, queue in enumerate(flow.queues)
        for t in np.asarray(queue).tolist())


def assert_ordered(flow, case):
    """AssertionError unless all conflicting accesses of one routing are ordered, and what is signalled adds up to the
    thresholds that the library's Layout computes."""
    judge, (ids, num_tokens, weights) = Judge(flow, [case]), case
    assert judge.harm(flow) is None
    layout = Layout(flow, [list(i) for i in ids], num_tokens, weights if weights is None else [list(weights)] * len(ids))
    for rank in judge.ranks:
        told = [int(judge.threshold(rank, *event)[0]) for *event, _block in flow.deps.events.tolist()]
        assert told == np.asarray(layout.thresholds(rank)).tolist()


def conflicts(x):
    """{(writer, reader)} of all reads of what a task writes; AssertionError where an element is written twice, an output not
    at all, or an unwritten element is read."""
    n, size = x.flow.num_tasks, x.flow.num_tasks * x.flow.ep_size
    touched = [], []
    for rank in x.ranks:
        for t in range(n):
            for kept, parts in zip(touched, x.footprint(rank, t), strict=True):
                kept += [(rank * n + t, cells) for cells in parts]
    reads, writes = map(cells_and_nodes, touched)
    writer = np.full(x.num_cells, -1)
    writer[writes[:, 0]] = writes[:, 1]
    once = len(np.unique(writes[:, 0])) == len(writes)
    assert once or isinstance(x, Arrivals), "an element is written twice"
    given = np.zeros(x.num_cells, bool)
    for rank in x.ranks:
        for b in x.flow.inputs:
            given[x.cells(rank, b, range(x._num_rows(rank, b)))] = True
        if not (x.has_padding or isinstance(x, Arrivals)):
            for b in x.flow.outputs:
                rows = x.cells(rank, b, range(x._num_rows(rank, b)))
                assert ((writer[rows] >= 0) | given[rows]).all(), "a row of an output is not written"
    asked = reads[~given[reads[:, 0]]]
    writers = writer[asked[:, 0]]
    assert (writers >= 0).all() or isinstance(x, Arrivals), "something is read that nobody writes"
    pairs = np.unique(writers[writers >= 0] * size + asked[writers >= 0, 1])
    return {divmod(pair, size) for pair in pairs.tolist()} | takeovers(x, reads, writes)


def cells_and_nodes(touched):
    """Rows of (cell, node) from pairs of (node, cells)."""
    nodes = np.repeat(np.array([node for node, _ in touched], int), [len(cells) for _, cells in touched])
    return np.stack([np.concatenate([np.zeros(0, int), *(cells for _, cells in touched)]), nodes], axis=1)


def takeovers(x, reads, writes):
    """{(user of the older storage, writer of the newer)} of storages that share a piece of memory."""
    if not x.homes:
        return set()
    written, used, out = x.pieces(writes), x.pieces(np.concatenate([reads, writes])), set()
    for piece, tenants in used.items():
        in_order = sorted(tenants, key=lambda s: min(n % x.flow.num_tasks for n in tenants[s]))
        for i, newer in enumerate(in_order):
            out |= {(user, w) for older in in_order[:i] for user in tenants[older]
                    for w in written[piece].get(newer, ())}
    return out


def extent_of(x, rank, extent, index, route):
    """Returns the extent whose multiple is an event's threshold, counted row by row."""
    flow = x.flow
    if extent in (tf.ONE, tf.STATIC_TILE):
        return 1
    tile = range(index * flow.tile_rows, (index + 1) * flow.tile_rows)
    if extent in (tf.TOKENS, tf.TILE):
        most = next(op.domain.num_rows for op in flow.ops if kind_of(op) == "tiles" and op.domain.clipped)
        return sum(extent == tf.TOKENS or t in tile for t in range(x.limit(rank, most, True)))
    plan, (rows, slots) = flow.routes[route], x.received[route][rank]
    if extent in (tf.ENTRIES, tf.TILE_ENTRIES):
        returned = range(index * plan.return_tokens, (index + 1) * plan.return_tokens)
        sent = [entry for r in x.ranks for _, source, entry in x.received[route][r][0] if source == rank]
        return sum(extent == tf.ENTRIES or max(0, entry) // plan.top_k in returned for entry in sent)
    if extent == tf.RELAYED:
        return sum(x.relayed(route, d, i)[0] == rank for d in x.ranks for i in range(len(x.received[route][d][0])))
    if extent == tf.SLOT:
        return len(slots[index][1])
    if extent in (tf.EXPERT, tf.RECEIVED):
        return sum(extent == tf.RECEIVED or e == index for e, _, _ in rows)
    if extent in (tf.REPLICA, tf.REPLICAS):
        placed, own = plan.placement.experts, plan.num_experts // flow.ep_size
        if extent == tf.REPLICA:
            return sum(own + slot == index and e >= 0 for slot, e in enumerate(placed[rank]))
        return sum(e == rank * own + index for mine in placed for e in mine) if index < own else 0
    by_expert = extent in (tf.SENT_TO_EXPERT, tf.RETURNED_TO_FROM_EXPERT)
    position, expert = divmod(index, plan.num_local_experts) if by_expert else (index, None)
    out = extent in (tf.SENT_TO, tf.SENT_TO_EXPERT)
    peer = x.order(rank, not out)[position]
    rows = x.received[route][peer if out else rank][0]
    return sum(source == (rank if out else peer) and expert in (None, e) for e, source, _ in rows)


def _in_order(direct):
    """Nodes, each after those right before it in any routing; None where they are on a cycle."""
    users, left = [[] for _ in direct], [len(before) for before in direct]
    for node, before in enumerate(direct):
        for p, _ in before:
            users[p].append(node)
    ready = [node for node, count in enumerate(left) if not count]
    for node in ready:
        for u in users[node]:
            left[u] -= 1
            if not left[u]:
                ready.append(u)
    return ready if len(ready) == len(direct) else None


class Arrivals(Expansion):
    """An Expansion by row counts instead of ids: its slots may receive counts that no top-k choice of the tokens sends.

    `rows` has one array for each rank: the rows received for each local expert from each rank, [local experts, ranks].
    """

    def __init__(self, flow, rng, rows):
        self.rng, self.rows = rng, rows
        count = min([op.domain.num_rows for op in flow.ops if kind_of(op) == "tiles" and op.domain.clipped] or [0])
        ids = [[np.zeros((count, plan.top_k), np.int32)] * flow.ep_size for plan in flow.routes]
        super().__init__(flow, ids, [count] * flow.ep_size)

    def _keep(self, plan, ids, weights):
        return [set(range(self.tokens[rank] * plan.top_k)) for rank in self.ranks]

    def _receive(self, plan, ids, kept):
        out = []
        for rank in self.ranks:
            rows = [(e, source, int(self.rng.integers(plan.num_tokens * plan.top_k)))
                    for (e, source), n in np.ndenumerate(self.rows[rank]) for _ in range(n)]
            slots = []
            for e in range(plan.num_local_experts):
                mine = [i for i, row in enumerate(rows) if row[0] == e]
                slots += [(e, mine[i:i + plan.tile_rows]) for i in range(0, len(mine), plan.tile_rows)]
            out.append((rows, slots + [(plan.num_local_experts - 1, [])] * (plan.num_slots - len(slots))))
        return out


def every_arrival(flow, rng, most):
    """Arrivals at all ranks that fit the slots: all of them, or `most`; then first those that are equal on all ranks."""
    plan = flow.routes[0]
    places, one_rank = plan.num_local_experts * flow.ep_size, []
    for total in range(plan.max_rows + 1):
        for bars in itertools.combinations(range(total + places - 1), places - 1):
            counts = np.diff([-1, *bars, total + places - 1]) - 1
            rows = counts.reshape(plan.num_local_experts, flow.ep_size)
            if (-(-rows.sum(axis=1) // plan.tile_rows)).sum() <= plan.num_slots:
                one_rank.append(rows)
    if len(one_rank) ** flow.ep_size <= most:
        chosen = itertools.product(one_rank, repeat=flow.ep_size)
    else:
        alike = [[np.roll(rows, r, axis=1) for r in range(flow.ep_size)] for rows in one_rank]
        chosen = alike + [[one_rank[i] for i in rng.integers(len(one_rank), size=flow.ep_size)]
                          for _ in range(most - len(alike))]
    return [Arrivals(flow, rng, rows) for rows in chosen]
