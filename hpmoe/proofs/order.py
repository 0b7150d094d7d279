"""Queue order, waits and signals of a taskflow, to be asked about."""

from __future__ import annotations

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.proofs.counting import TRANSFERS, op_spans, own_positions, spans


class Order:
    """Queue order, waits and signals of a taskflow whose tables name what exists."""

    def __init__(self, flow: tf.Taskflow):
        self.flow = flow
        self.lines = [np.asarray(q).tolist() for q in flow.queues] or [[t] for t in range(flow.num_tasks)]
        self.queue_of, self.position = np.zeros((2, flow.num_tasks), np.int64)
        for q, line in enumerate(self.lines):
            self.queue_of[line], self.position[line] = q, np.arange(len(line))
        self.own = own_positions(flow)
        self._waits = _rows_by(flow.waits, flow.waits["task"])
        self._signals = _rows_by(flow.signals, flow.signals["event"])
        dynamic = flow.signals[flow.signals["kind"] != tf.STATIC]
        self._spread, self._spans = dynamic, spans(flow, dynamic)
        self._span_of, self._op_of = op_spans(flow).tolist(), flow.tasks["op"].tolist()

    def is_to_itself(self, signal: np.void) -> bool:
        """Whether a signal counts rows that every rank moves to itself: it may be given as local or as of a peer."""
        op, peer = self.op_of(signal["task"]), self.flow.tasks["peer"][signal["task"]]
        return op.opcode in TRANSFERS and signal["amount"] == tf.ROWS and (peer in self.own or self.flow.ep_size == 1)

    def stays(self, signal: np.void) -> bool:
        """Whether a signal is for the rank that makes it."""
        return signal["remote"] == tf.LOCAL or self.flow.tasks["peer"][signal["task"]] in self.own or self.flow.ep_size == 1

    def returns(self, peer: int) -> int | None:
        """The position in the order of peers of those who have this rank at position `peer`, if it is one for all ranks."""
        order = self.flow.peer_order
        places = np.unique(np.nonzero(order[order[:, peer]] == np.arange(len(order))[:, None])[1])
        return int(places[0]) if len(places) == 1 else None

    def waits_of(self, task: int) -> list[np.void]:
        return self._waits.get(task, [])

    def signals_about(self, event: int) -> list[np.void]:
        """Signals that may be about an event."""
        static = [s for s in self._signals.get(event, ()) if s["kind"] == tf.STATIC]
        offset = event - self._spread["event"]
        return static + list(self._spread[(0 <= offset) & (offset < self._spans)])

    def producers_of(self, event: int) -> list[np.void]:
        """Signals that are about an event in some routing."""
        return [s for s in self.signals_about(event) if any(e == event for e, _ in self.events_of(s))]

    def op_of(self, task: int) -> tf.TileOp:
        return self.flow.ops[self._op_of[task]]

    def span(self, row: np.void) -> int:
        """How many consecutive events a wait or signal may be about."""
        return self._span_of[self._op_of[row["task"]]][row["kind"]]

    def kind(self, row: np.void) -> int:
        """The kind of a wait or signal; static where there is only one event it can be about."""
        kind = int(row["kind"])
        return tf.STATIC if kind == tf.STATIC or self.span(row) == 1 else kind

    def events_of(self, row: np.void) -> list[tuple[int, int | None]]:
        """(event, expert of the task's slot where it decides) for all that a wait or signal is about in some routing."""
        kind, first = self.kind(row), int(row["event"])
        if kind == tf.STATIC:
            return [(first, None)]
        op, task = self.op_of(row["task"]), self.flow.tasks[row["task"]]
        if kind != tf.SLOT_EXPERT or op.domain.kind != "slots":
            return [(first + i, None) for i in range(self.span(row))]
        plan, order, sources = self.flow.routes[op.domain.route], self.flow.peer_order, None
        if op.opcode == "PUT_BACK":  # the rank that the rows are of, the last such on any rank
            sources = 1 + int(((order[:, task["peer"]] - np.arange(len(order))) % len(order)).max())
        return [(first + e, e) for e in range(plan.num_local_experts) if task["row"] < plan.slots_of(e + 1, sources)]

    def slot_of(self, task: int) -> tuple[int, int] | None:
        """Route and index of the slot of this rank that a task is about, if any."""
        op = self.op_of(task)
        is_here = op.domain.kind == "slots" and (op.opcode != "PUT" or self.flow.ep_size == 1)
        return (op.domain.route, int(self.flow.tasks["row"][task])) if is_here else None


def direction(op: tf.TileOp) -> str:
    """"out" for what goes to the ranks of experts, "back" for what returns, "" for local work."""
    if op.opcode not in TRANSFERS:
        return ""
    return "back" if op.opcode.endswith("BACK") or (op.opcode == "NOTIFY" and op.params[0]) else "out"


def _rows_by(table: np.ndarray, keys: np.ndarray) -> dict[int, list[np.void]]:
    out: dict[int, list[np.void]] = {}
    for key, row in zip(keys.tolist(), table, strict=True):
        out.setdefault(key, []).append(row)
    return out
