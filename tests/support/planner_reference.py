"""The native planner's questions answered in plain Python, one task at a time."""

import heapq
from collections import defaultdict

import numpy as np

from hpmoe.ir import taskflow as tf


class Order:
    """Gates that tasks feed and need; a gate is an event, or a block of events whose index is found at run time."""

    def __init__(self, flow):
        dynamic = {int(flow.events["block"][row["event"]]) for table in (flow.waits, flow.signals)
                   for row in table if row["kind"] != tf.STATIC}
        self.gate = [("block", b) if b in dynamic else e for e, b in enumerate(flow.events["block"].tolist())]
        self.feeds, self.needs = defaultdict(list), defaultdict(list)
        self.producers, self.consumers = defaultdict(list), defaultdict(list)
        for task, event in zip(flow.signals["task"].tolist(), flow.signals["event"].tolist(), strict=True):
            self.feeds[task].append(self.gate[event])
            self.producers[self.gate[event]].append(task)
        for task, event in zip(flow.waits["task"].tolist(), flow.waits["event"].tolist(), strict=True):
            if self.gate[event] in self.producers:
                self.needs[task].append(self.gate[event])
                self.consumers[self.gate[event]].append(task)


class Unmet:
    """What tasks still wait for, while others end."""

    def __init__(self, order, num_tasks):
        self.order, self.missing = order, {g: len(p) for g, p in order.producers.items()}
        self.gates = [len(order.needs[t]) for t in range(num_tasks)]
        self.first = [t for t in range(num_tasks) if not self.gates[t]]

    def release(self, t):
        """The tasks that get ready as t ends."""
        for gate in self.order.feeds[t]:
            self.missing[gate] -= 1
            for user in self.order.consumers[gate] if not self.missing[gate] else ():
                self.gates[user] -= 1
                if not self.gates[user]:
                    yield user


def longest_paths(flow, order, costs):
    """From the start of each task to the end of the last that needs it."""
    unmet = Unmet(order, flow.num_tasks)
    line = list(unmet.first)
    for t in line:
        line.extend(unmet.release(t))
    length, of_gate = [0.0] * flow.num_tasks, defaultdict(float)
    for t in reversed(line):
        length[t] = costs[t] + max((of_gate[g] for g in order.feeds[t]), default=0.0)
        for g in order.needs[t]:
            of_gate[g] = max(of_gate[g], length[t])
    return length


def schedule(flow, costs, kinds, num_queues, rank=None, seen_us=0.0):
    order = Order(flow)
    unmet, length = Unmet(order, flow.num_tasks), longest_paths(flow, order, costs)
    free = [list(range(sum(num_queues[:k]), sum(num_queues[:k + 1]))) for k in range(len(num_queues))]
    ready, running, queues, now = [[] for _ in free], [], [[] for _ in range(sum(num_queues))], 0.0
    begun, ended = [], []

    def make_ready(t):
        heapq.heappush(ready[kinds[t]], (-length[t] if rank is None else rank[t], t))

    for t in unmet.first:
        make_ready(t)
    while any(ready) or running or ended:
        while ended and ended[0][0] <= now:
            for t in unmet.release(ended.pop(0)[1]):
                make_ready(t)
        for kind, waiting in enumerate(ready):
            while waiting and free[kind]:
                t, q = heapq.heappop(waiting)[1], heapq.heappop(free[kind])
                queues[q].append(t)
                begun.append(t)
                heapq.heappush(running, (now + costs[t], t, q))
        if ended and (not running or ended[0][0] < running[0][0]):
            now = ended[0][0]
        elif running:
            now, done, q = heapq.heappop(running)
            heapq.heappush(free[kinds[done]], q)
            ended.append((now + seen_us, done))
    return queues, np.argsort(begun)


def find_runnable(flow):
    """By going round the queues (or all tasks) until nothing moves."""
    order = Order(flow)
    done, moved = np.zeros(flow.num_tasks, bool), True
    lines = [q.tolist() for q in flow.queues] or [[t] for t in range(flow.num_tasks)]
    while moved:
        moved = False
        for line in lines:
            while line and all(done[order.producers[g]].all() for g in order.needs[line[0]]):
                done[line.pop(0)] = moved = True
    return done


def prune_waits(flow):
    order = Order(flow)
    place = {int(t): (q, i) for q, queue in enumerate(flow.queues) for i, t in enumerate(queue)}
    remote = {order.gate[s["event"]] for s in flow.signals if s["remote"] != tf.LOCAL}
    rows = [tuple(w) for w in flow.waits.tolist()]
    of_task = defaultdict(set)
    for task, event, kind in rows:
        if kind == tf.STATIC:
            of_task[task].add(event)

    def unit(event):
        e = flow.events[event]
        return tuple(e[["extent", "index", "route"]].tolist())

    def before(event):
        if unit(event)[0] not in (tf.SLOT, tf.TILE, tf.STATIC_TILE) or order.gate[event] != event or event in remote:
            return set()
        found = {e for p in order.producers[event] for e in of_task[p] if unit(e) == unit(event)}
        return found.union(*map(before, found))

    def is_implied(task, event, kind):
        gate = order.gate[event]
        users = [place[p] for p in order.producers[gate]]
        if users and gate not in remote and all(q == place[task][0] and i < place[task][1] for q, i in users):
            return True
        return kind == tf.STATIC and any(event in before(e) for e in of_task[task] - {event})

    needed, made = np.zeros(len(rows), bool), set()
    for w in sorted(range(len(rows)), key=lambda w: place[rows[w][0]]):
        task, event, kind = rows[w]
        key = (place[task][0], event)
        needed[w] = not is_implied(*rows[w]) and (kind != tf.STATIC or key not in made)
        if needed[w] and kind == tf.STATIC:
            made.add(key)
    return needed
