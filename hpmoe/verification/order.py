"""Queue order, waits and signals of a taskflow, to be asked about."""

from __future__ import annotations

import bisect
import collections
from typing import NamedTuple

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import moves_of
from hpmoe.support.known import known
from hpmoe.tile_ops.frame import Move
from hpmoe.tile_ops.params import Leg


class Task(NamedTuple):
    """A row of a TASK array."""

    op: int
    peer: int
    row: int
    col: int
    cols: int


class Wait(NamedTuple):
    """A row of a WAIT array."""

    task: int
    event: int
    kind: int


class Signal(NamedTuple):
    """A row of a SIGNAL array."""

    task: int
    event: int
    kind: int
    amount: int
    remote: int


def op_spans(flow: tf.Taskflow) -> np.ndarray:
    """Returns the most consecutive events of a wait or signal of each operation and kind, [num_ops, 3]."""
    sizes = np.ones((len(flow.ops), 3), np.int64)
    for i, op in enumerate(flow.ops):
        if op.domain.route >= 0:
            plan = flow.routes[op.domain.route]
            places = flow.routes[plan.of].num_slots if op.fans_out else plan.num_returns
            sizes[i] = 1, plan.num_local_experts, max(1, places)
    return sizes


HERE = -1  # the holder of a rank's own slots


def own_positions(flow: tf.Taskflow, leg: Leg | None) -> list[int]:
    """Returns the positions in the order of peers at which every rank has itself."""
    return np.flatnonzero((flow.order_of(leg) == np.arange(flow.ep_size)[:, None]).all(axis=0)).tolist()


class Order:
    """Queue order, waits and signals of a taskflow, whose tables name only existing tasks and events."""

    def __init__(self, flow: tf.Taskflow):
        self.flow = flow
        self.tasks = list(map(Task._make, flow.tasks.tolist()))
        self.lines = [np.asarray(q).tolist() for q in flow.queues] or [[t] for t in range(flow.num_tasks)]
        self.queue_of, self.position = [0] * flow.num_tasks, [0] * flow.num_tasks
        for q, line in enumerate(self.lines):
            for i, t in enumerate(line):
                self.queue_of[t], self.position[t] = q, i
        self.own = {leg: own_positions(flow, leg) for leg in (*Leg, None)}
        self._spans = op_spans(flow).tolist()
        self._waits, self._signals, self._spread = (collections.defaultdict(list) for _ in range(3))
        for wait in map(Wait._make, flow.deps.waits.tolist()):
            self._waits[wait.task].append(wait)
        for signal in map(Signal._make, flow.deps.signals.tolist()):
            (self._signals if signal.kind == tf.STATIC else self._spread)[signal.event].append(signal)
        self._firsts = sorted(self._spread)  # first events of signals that may be about several
        self._widest = max((self.span(s) for first in self._firsts for s in self._spread[first]), default=0)
        self._about: dict[int, list[Signal]] = {}
        self._events: dict[Wait | Signal, list[tuple[int, int | None]]] = {}

    def is_for_itself(self, task: int) -> bool:
        """Returns True if a task affects only its own rank."""
        return self.flow.ep_size == 1 or (self.tasks[task].peer in self.own[self.op_of(task).leg]
                                          and len(self.peers_of(task)) == 1)

    def peers_of(self, task: int) -> range:
        """Returns the positions of the ranks that a task is for."""
        return self.op_of(task).peers_of(self.tasks[task].peer, self.flow.ep_size)

    def stays(self, signal: Signal) -> bool:
        """Returns True if a signal reaches only the rank that makes it."""
        return signal.remote == tf.LOCAL or self.is_for_itself(signal.task)

    def waits_of(self, task: int) -> list[Wait]:
        return self._waits.get(task, [])

    def signals_about(self, event: int) -> list[Signal]:
        """Returns the signals that may be about an event."""
        if event not in self._about:
            about: list[Signal] = list(self._signals.get(event, ()))
            low, high = (bisect.bisect_right(self._firsts, e) for e in (event - self._widest, event))
            for first in self._firsts[low:high]:
                about += [s for s in self._spread[first] if event < first + self.span(s)]
            self._about[event] = about
        return self._about[event]

    def producers_of(self, event: int) -> list[Signal]:
        """Returns the signals that are about an event in some routing."""
        return [s for s in self.signals_about(event) if any(e == event for e, _ in self.events_of(s))]

    def op_of(self, task: int) -> tf.TileOp:
        return self.flow.ops[self.tasks[task].op]

    def span(self, row: Wait | Signal) -> int:
        """Returns the number of consecutive events that a wait or signal may concern."""
        return self._spans[self.tasks[row.task].op][row.kind]

    def kind(self, row: Wait | Signal) -> int:
        """Returns the kind of a wait or signal; static if it can be about only one event."""
        return tf.STATIC if row.kind == tf.STATIC or self.span(row) == 1 else row.kind

    def events_of(self, row: Wait | Signal) -> list[tuple[int, int | None]]:
        """Returns (event, expert of the task's slot if it decides) for all that a wait or signal is about in some routing.
        """
        if row not in self._events:
            self._events[row] = self._find_events(row)
        return self._events[row]

    def _find_events(self, row: Wait | Signal) -> list[tuple[int, int | None]]:
        kind, first = self.kind(row), row.event
        if kind == tf.STATIC:
            return [(first, None)]
        op, task = self.op_of(row.task), self.tasks[row.task]
        if op.primitive.moves_copies:
            moved = {move.expert for r in range(self.flow.ep_size) for move in self.moves(row.task, r)}
            return [(first + expert, None) for expert in sorted(moved)]
        if kind != tf.SLOT_EXPERT or not op.domain.is_slots:
            return [(first + i, None) for i in range(self.span(row))]
        plan, order, sources = self.flow.routes[op.domain.route], self.flow.order_of(op.leg), None
        if op.primitive.puts_back and plan.alignment == 1:  # the rank that the rows are of, the last such on any rank
            own = np.arange(len(order))[:, None]
            sources = 1 + int(((order[:, list(self.peers_of(row.task))] - own) % len(order)).max())
        return [(first + e, e) for e in range(plan.num_local_experts) if task.row < plan.slots_of(e + 1, sources)]

    def moves(self, task: int, rank: int) -> list[Move]:
        """Returns the replicas, or gradients of replicas, that a task moves from a rank."""
        op = self.op_of(task)
        return moves_of(known(self.flow.routes[op.domain.route].placement), op, rank, self.tasks[task].row)

    def reaches(self, signal: Signal, event: int, source: int, rank: int) -> bool:
        """Returns True if a signal of rank `source` may concern an event of a rank."""
        if self.op_of(signal.task).primitive.moves_copies:
            return any((move.peer, move.expert) == (rank, event - signal.event) for move in self.moves(signal.task, source))
        order = self.flow.order_of(self.op_of(signal.task).leg)
        return any(peer < 0 or order[source, peer] == rank for peer in self.peers_of(signal.task))

    def holder_of(self, task: int) -> tuple[int, int] | None:
        """Returns the route and the holder of the slot of a task: HERE, or the position of the one rank that rows go to.

        Returns None for a task of no slot, and for a put to several ranks.
        """
        op, peers = self.op_of(task), self.peers_of(task)
        if not op.domain.is_slots:
            return None
        if not op.primitive.sends_rows or self.is_for_itself(task):
            return op.domain.route, HERE
        return (op.domain.route, peers[0]) if len(peers) == 1 else None
