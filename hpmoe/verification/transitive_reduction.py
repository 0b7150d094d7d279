"""Proves that a taskflow's waits are a transitive reduction of those derived for it: they imply the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops.params import Way
from hpmoe.verification.happens_before import Proof
from hpmoe.verification.may_alias import may_alias
from hpmoe.verification.order import Order
from hpmoe.verification.rows import Signal, Wait


class TransitiveReduction:
    """Proves that the order that derived waits stand for holds in a taskflow that has other waits.

    A notification itself touches nothing. One that may come too early speaks for nobody: who waits for it must then come
    after the transfers themselves.
    """

    def __init__(self, flow: tf.Taskflow, derived: tf.Taskflow):
        self.order, self.derived, self.early = Proof(flow), Order(derived), set()

    def unordered(self, missing: np.ndarray) -> tuple[int, int, int] | None:
        """(task, event, producer) of the first wait for which it is not proved that its task starts late enough.

        Args:
            missing: which derived waits the flow has not, and its queues do not imply, [derived waits] bool.
        """
        waits, missing = list(map(Wait._make, self.derived.flow.waits.tolist())), missing.tolist()
        of_notify = [self.derived.op_of(wait.task).primitive.is_notice for wait in waits]
        self.early = {w.task for w, is_it, lacks in zip(waits, of_notify, missing, strict=True)
                      if is_it and lacks and self._unproved(w)}
        doubtful = np.isin(self.derived.flow.signals["task"], sorted(self.early))
        events = {e for s in self.derived.flow.signals[doubtful].tolist() for e, _ in self.derived.events_of(Signal(*s))}
        for wait, is_it, lacks in zip(waits, of_notify, missing, strict=True):
            if is_it or not (lacks or (events and any(e in events for e, _ in self.derived.events_of(wait)))):
                continue
            unproved = self._unproved(wait, always=lacks)
            if unproved:
                return wait.task, *unproved
        return None

    def _unproved(self, wait: Wait, always: bool = True) -> tuple[int, int] | None:
        """Of a wait that is missing, or else only of those it has for notifications that come too early."""
        for event, expert in self.derived.events_of(wait):
            for signal in self.derived.producers_of(event):
                p = signal.task
                if any(self.order.op_of(t).primitive.is_launch for t in (wait.task, p)) \
                        or not may_alias(self.derived.flow, wait.task, p):
                    continue  # one of the two touches nothing, or not what the other touches
                if (always or p in self.early) and not self._is_proved(wait, signal, event - signal.event, expert):
                    return event, p
        return None

    def _is_proved(self, wait: Wait, signal: Signal, offset: int, expert: int | None) -> bool:
        reader, producer = wait.task, signal.task
        if producer not in self.early and self.order.is_after(reader, signal, offset, expert):
            return True
        return self.order.op_of(producer).primitive.is_notice and all(
            self.order.is_after(reader, put, place, expert) for put, place in self._spoken_for(signal, reader))

    def _spoken_for(self, signal: Signal, reader: int) -> Iterator[tuple[Signal, int]]:
        """The transfers that a notification waits for and that a reader needs, as if each signalled what it moves."""
        op, row = self.order.op_of(reader), self.order.tasks[reader].row
        for wait in self.derived.waits_of(signal.task):
            for event, _ in self.derived.events_of(wait):
                for put in self.derived.producers_of(event):
                    sent, slot = self.order.op_of(put.task), self.order.tasks[put.task].row
                    if op.domain.is_slots and sent.domain.is_slots and op.way is not Way.OUT \
                            and op.domain.route == sent.domain.route and sent.way is Way.OUT and slot != row:
                        continue  # rows of another slot than the reader's
                    yield put._replace(remote=tf.PEER), event - put.event
