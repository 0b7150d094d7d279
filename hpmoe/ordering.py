"""The order that events impose on tasks, the same for every routing: a graph of tasks and gates.

A gate is an event, or a whole block of events where the kernel finds the index at run time: then every producer may feed
every one of them. Ranks are folded onto one: what is acyclic here is acyclic on any number of ranks.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe import taskflow as tf


@dataclasses.dataclass(frozen=True)
class Csr:
    """Lists of ints: list i is items[starts[i]:starts[i + 1]]."""

    starts: np.ndarray
    items: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        return self.items[self.starts[i]:self.starts[i + 1]]

    def gather(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(position in `indices`, item) of every item of the lists `indices`, concatenated."""
        counts = self.starts[indices + 1] - self.starts[indices]
        owner = np.repeat(np.arange(len(indices)), counts)
        offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return owner, self.items[self.starts[indices][owner] + offset]


def _csr(keys: np.ndarray, items: np.ndarray, size: int) -> Csr:
    width = int(items.max(initial=0)) + 1
    owner, item = np.divmod(np.unique(keys.astype(np.int64) * width + items), width)
    return Csr(np.searchsorted(owner, np.arange(size + 1)), item)


@dataclasses.dataclass(frozen=True)
class Graph:
    """Tasks and gates: `feeds[t]` gates that task t signals, `needs[t]` gates it waits for, and their inverses.

    A gate that no task signals is open from the start and nobody needs it.
    """

    num_tasks: int
    num_gates: int
    gate_of_event: np.ndarray
    feeds: Csr
    needs: Csr
    producers: Csr
    consumers: Csr


def make_graph(flow: tf.Taskflow) -> Graph:
    """The graph of a taskflow's waits and signals."""
    gate = np.arange(len(flow.events))
    firsts = np.array([b.first for b in flow.blocks] or [0])
    for table in (flow.waits, flow.signals):
        dynamic = table[table["kind"] != tf.STATIC]
        for block in np.unique(flow.events["block"][dynamic["event"]]) if len(dynamic) else ():
            gate[flow.events["block"] == block] = firsts[block]
    n, g = flow.num_tasks, len(flow.events)
    signals = gate[flow.signals["event"]]
    needed = flow.waits[np.isin(gate[flow.waits["event"]], signals)]
    waits = gate[needed["event"]]
    return Graph(n, g, gate, _csr(flow.signals["task"], signals, n), _csr(needed["task"], waits, n),
                 _csr(signals, flow.signals["task"], g), _csr(waits, needed["task"], g))


def levels(graph: Graph) -> list[np.ndarray]:
    """Tasks by the length of the longest chain of gates before them; tasks on a cycle are in none."""
    missing, unmet = np.diff(graph.producers.starts), np.diff(graph.needs.starts)
    ready = np.flatnonzero(unmet == 0)
    out = []
    while len(ready):
        out.append(ready)
        _, fed = graph.feeds.gather(ready)
        np.subtract.at(missing, fed, 1)
        gates = np.unique(fed)
        _, waiting = graph.consumers.gather(gates[missing[gates] == 0])
        np.subtract.at(unmet, waiting, 1)
        candidates = np.unique(waiting)
        ready = candidates[unmet[candidates] == 0]
    return out


def runnable(graph: Graph, queues: tuple[np.ndarray, ...]) -> np.ndarray:
    """Which tasks get to run when every queue runs in order, [num_tasks] bool; the rest wait on a cycle."""
    lines = [np.asarray(q).tolist() for q in queues]
    starts, items = graph.needs.starts.tolist(), graph.needs.items.tolist()
    feed_starts, feeds = graph.feeds.starts.tolist(), graph.feeds.items.tolist()
    missing = np.diff(graph.producers.starts).tolist()
    heads, asleep = [0] * len(lines), {}
    awake = list(range(len(lines)))
    done = np.zeros(graph.num_tasks, bool)
    while awake:
        q = awake.pop()
        line = lines[q]
        while heads[q] < len(line):
            t = line[heads[q]]
            closed = next((g for g in items[starts[t]:starts[t + 1]] if missing[g]), None)
            if closed is not None:
                asleep.setdefault(closed, []).append(q)
                break
            heads[q] += 1
            for g in feeds[feed_starts[t]:feed_starts[t + 1]]:
                missing[g] -= 1
                if not missing[g]:
                    awake += asleep.pop(g, ())
    for q, line in enumerate(lines):
        done[line[:heads[q]]] = True
    return done


def longest_path_to_end(graph: Graph, order: list[np.ndarray], costs: np.ndarray) -> np.ndarray:
    """For each task, its cost plus the longest chain of costs after it: the priority of list scheduling."""
    rank = np.zeros(graph.num_tasks)
    gate_rank = np.zeros(max(graph.num_gates, 1))
    for tasks in reversed(order):
        after = np.zeros(len(tasks))
        owner, fed = graph.feeds.gather(tasks)
        np.maximum.at(after, owner, gate_rank[fed])
        rank[tasks] = costs[tasks] + after
        owner, needed = graph.needs.gather(tasks)
        np.maximum.at(gate_rank, needed, rank[tasks][owner])
    return rank


def prune_waits(flow: tf.Taskflow, graph: Graph) -> np.ndarray:
    """Which waits of an assigned taskflow are needed, [num_waits] bool.

    Dropped is a wait (1) whose producers all run earlier in the same queue, (2) that an earlier task of the queue makes
    already, or (3) that the producers of another wait of the task make for the same unit. Waits are never skipped, so 1
    and 2 always hold; 3 is limited to one unit because a unit that turns out empty is not waited for at all.
    """
    position = np.full(flow.num_tasks, -1)
    queue_of = np.full(flow.num_tasks, -1)
    for q, tasks in enumerate(flow.queues):
        position[tasks], queue_of[tasks] = np.arange(len(tasks)), q
    waits, needed = flow.waits, np.ones(len(flow.waits), bool)
    remote = np.zeros(max(graph.num_gates, 1), bool)
    remote[graph.gate_of_event[flow.signals["event"][flow.signals["remote"] != tf.LOCAL]]] = True
    needed &= ~_in_program_order(graph, remote, position, queue_of, waits)
    needed &= ~_implied_by_unit(flow, graph, remote, waits)
    kept = np.flatnonzero(needed)
    kept = kept[waits["kind"][kept] == tf.STATIC]
    order = kept[np.lexsort((position[waits["task"][kept]], queue_of[waits["task"][kept]]))]
    _, first = np.unique(queue_of[waits["task"][order]] * len(flow.events) + waits["event"][order], return_index=True)
    repeated = np.ones(len(order), bool)
    repeated[first] = False
    needed[order[repeated]] = False
    return needed


def _in_program_order(graph: Graph, remote: np.ndarray, position: np.ndarray, queue_of: np.ndarray,
                      waits: np.ndarray) -> np.ndarray:
    """Waits all of whose producers are earlier tasks of the waiting task's queue, on its own rank."""
    size = max(graph.num_gates, 1)
    low, high, last = np.full(size, np.iinfo(np.int64).max), np.full(size, -1), np.full(size, -1)
    gates = np.repeat(np.arange(graph.num_gates), np.diff(graph.producers.starts))
    np.minimum.at(low, gates, queue_of[graph.producers.items])
    np.maximum.at(high, gates, queue_of[graph.producers.items])
    np.maximum.at(last, gates, position[graph.producers.items])
    gate, task = graph.gate_of_event[waits["event"]], waits["task"]
    one_queue = (low[gate] == high[gate]) & (high[gate] == queue_of[task])
    return one_queue & (last[gate] < position[task]) & ~remote[gate]


def _implied_by_unit(flow: tf.Taskflow, graph: Graph, remote: np.ndarray, waits: np.ndarray) -> np.ndarray:
    """Waits already made, for the same unit, by the producers of another wait of the same task."""
    implied = np.zeros(len(waits), bool)
    local_unit = np.isin(flow.events["extent"], (tf.SLOT, tf.TILE, tf.STATIC_TILE)) & ~remote[graph.gate_of_event]
    units = flow.events[["extent", "index", "route"]].tolist()
    tasks, events = waits["task"].tolist(), waits["event"].tolist()
    of_task: dict[int, list[int]] = {}
    for i in np.flatnonzero(waits["kind"] == tf.STATIC).tolist():
        of_task.setdefault(tasks[i], []).append(i)
    known: dict[int, frozenset[int]] = {}

    def before(event: int) -> frozenset[int]:
        """Events of the same unit that are complete once `event` is."""
        if event not in known:
            known[event] = frozenset()
            producers = graph.producers[event].tolist() if local_unit[event] else ()
            earlier = {events[i] for p in producers for i in of_task.get(p, ()) if units[events[i]] == units[event]}
            known[event] = frozenset(earlier).union(*(before(e) for e in earlier))
        return known[event]

    for indices in of_task.values():
        for i in indices if len(indices) > 1 else ():
            implied[i] = any(events[i] in before(events[j]) for j in indices if j != i)
    return implied
