"""Proves that a task happens before another, whatever the routing, where no wait orders them.

A search goes back from the task through queue order, which always holds, and through waits: an event that a known task waits
for has heard of every producer that added to it. Which producers surely added follows from facts, the units that are not
empty: otherwise neither side of the order touches anything and there is nothing to prove.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops.params import Way
from hpmoe.verification.before import Before
from hpmoe.verification.facts import Facts
from hpmoe.verification.rows import Signal
from hpmoe.verification.slot_experts import SlotExperts


class Proof(SlotExperts):
    """What surely runs before what in a taskflow whose events add up."""

    def __init__(self, flow: tf.Taskflow):
        super().__init__(flow)
        self._before: dict[tuple, Before] = {}
        self._alike: dict[tuple, list[tuple[int, int]]] = {}
        self._feeding: dict[tuple[int, int], bool] = {}

    def is_after(self, reader: int, signal: Signal, offset: int, expert: int | None = None) -> bool:
        """Whether task `reader` surely starts after the task of `signal` wherever that signal adds to the event `offset`
        places after the one it names, on the reader's rank; `expert` is that of the reader's slot, where it is known."""
        facts, is_read = Facts(), self._feeds(signal.task, reader)
        if is_read or not self.op_of(reader).domain.sums_rows:
            self._add_touched(facts, reader, expert)
        self.add_producer_facts(facts, signal, offset, is_read)
        return self._holds(reader, signal, offset, facts, depth=2)

    def _holds(self, reader: int, signal: Signal, offset: int, facts: Facts, depth: int) -> bool:
        return self._is_after(reader, signal, offset, facts) or (depth > 0 and any(
            all(self._holds(reader, signal, offset, case, depth - 1) for case in cases)
            for cases in self._cases(reader, signal.task, facts)))

    def _cases(self, reader: int, producer: int, facts: Facts) -> Iterator[list[Facts]]:
        """The facts, told apart by the slot that may hold rows of an expert; by the expert of a slot in use, the producer's
        and that of the task before in the queue too; or by a peer that the rows of the reader's slot go back to."""
        held = {(route, e) for (route, _), e in facts.expert_of.items()}
        for route, expert in sorted(facts.experts - held)[:1]:
            yield [facts.with_slot(route, slot, expert) for slot in range(self.flow.routes[route].slots_of(expert + 1))]
        own, line = self.slot_of(reader), self.lines[self.queue_of[reader]]
        others = [self.slot_of(t) for t in (producer, *line[:self.position[reader]][-1:])]
        used = [slot for slot in others if slot and slot[1] <= facts.slots.get(slot[0], -1)]
        for route, place in sorted({*facts.slots.items(), *used, *([own] if own else ())}):
            experts = self.experts_of(facts, route, place)
            if len(experts) > 1:
                yield [facts.with_slot(route, place, e) for e in experts]
        if own and self.flow.ep_size > 1 and facts.returned is None:
            yield [dataclasses.replace(facts, returned=(*own, j)) for j in range(self.flow.ep_size)]

    def _is_after(self, reader: int, signal: Signal, offset: int, facts: Facts) -> bool:
        """Tried first without the facts that hold for few producers, as what is found then serves for the others too."""
        if self.flow.ep_size == 1:
            facts.add_alone(self.flow)
        theirs = None if self.stays(signal) else self.sender_facts(signal, offset)
        return self._is_known(reader, signal, offset, facts.in_general(), theirs and theirs.in_general()) or (
            (facts.returned is not None or (theirs is not None and theirs.sent is not None))
            and self._is_known(reader, signal, offset, facts, theirs))

    def _is_known(self, reader: int, signal: Signal, offset: int, facts: Facts, theirs: Facts | None) -> bool:
        """Whether it follows from facts of the reader's rank and, where another one signals, from `theirs`."""
        before = self._before_under(facts)
        known = before.of(reader)
        if theirs is None and known >> signal.task & 1:
            return True
        there = before if theirs is None else self._before_under(theirs)
        sent, waiting = known if theirs is None else 0, known | 1 << reader
        for task, event in self._alike_to(signal, offset):
            if before.is_heard_of(event, waiting):
                sent |= there.and_itself(task)
        waiting = sent | 1 << reader if theirs is None else sent
        return bool(sent >> signal.task & 1) or any(
            task == signal.task and there.is_heard_of(event, waiting) for task, event in self._alike_to(signal, offset))

    def _before_under(self, facts: Facts) -> Before:
        return self._before.setdefault(facts.key(), Before(self, facts))

    def _alike_to(self, signal: Signal, offset: int) -> list[tuple[int, int]]:
        """(task, event) of all signals, of the same rank, that surely add to that event wherever a signal adds to the one
        `offset` places after the event it names."""
        key = signal.task, self.kind(signal), offset, self.stays(signal)
        if key not in self._alike:
            self._alike[key] = [(other.task, event) for other in self._candidates(signal.task)
                                if self.stays(other) == key[-1] and (event := self._event_alike(other, offset)) is not None
                                and self._also_adds(signal, offset, other, event)]
        return self._alike[key]

    def _event_alike(self, other: Signal, offset: int) -> int | None:
        """The event that a signal is about where it is about one `offset` places behind the first, or about one alone."""
        if self.kind(other) == tf.STATIC:
            return other.event
        return other.event + offset if offset < self.span(other) else None

    def _candidates(self, task: int) -> list[Signal]:
        """Signals of the task, and of others for the same rows or for all rows that go the same way."""
        op = self.op_of(task)
        way = op.way, op.domain.route
        return list(dict.fromkeys(s for key in (task, (*way, op.primitive, self.tasks[task].row), way)
                                  for s in self._signals_for.get(key, ())))

    @functools.cached_property
    def _signals_for(self) -> dict[object, list[Signal]]:
        """All signals by their task and by their way, operation and row; by their way those that may be of many units."""
        out: dict[object, list[Signal]] = collections.defaultdict(list)
        for signal in map(Signal._make, self.flow.signals.tolist()):
            op = self.op_of(signal.task)
            way = op.way, op.domain.route
            out[signal.task].append(signal)
            out[(*way, op.primitive, self.tasks[signal.task].row)].append(signal)
            if op.primitive.is_notice or op.primitive.is_blocking:
                out[way].append(signal)
        return out

    def _also_adds(self, signal: Signal, offset: int, other: Signal, event: int) -> bool:
        """Whether `other`, of the same task or for the same rows on their way, adds to `event` wherever `signal` adds."""
        one, two = self.tasks[signal.task], self.tasks[other.task]
        op, other_op = self.flow.ops[one.op], self.flow.ops[two.op]
        kind, place = self.kind(other), event - other.event
        fits = kind == tf.STATIC or (kind == self.kind(signal) and place == offset)
        if signal.task == other.task:
            return fits
        if op.primitive.moves_copies or op.way != other_op.way or op.domain.route != other_op.domain.route:
            return False
        same_peers = self.peers_of(signal.task) == self.peers_of(other.task)
        same_rows = op.primitive is other_op.primitive and not op.primitive.is_notice and one.row == two.row and same_peers
        if same_rows or other_op.primitive.is_blocking:
            return fits
        if other_op.primitive.is_notice and same_peers:
            is_known = self.kind(signal) == tf.SLOT_EXPERT
            expert = offset if is_known else one.row if op.primitive.is_notice else -1
            if self.flow.routes[op.domain.route].num_local_experts == 1:
                expert = 0
            return kind == tf.STATIC and two.row in (-1, expert)
        return False

    # Facts.

    def _add_touched(self, facts: Facts, task: int, expert: int | None = None) -> None:
        """Adds what is not empty where a task touches anything, of sums over the rows of an expert where it reads anything:
        they are written though there be none."""
        op, row = self.op_of(task), self.tasks[task].row
        if op.way is Way.OUT:
            facts.tiles = max(facts.tiles, 0)
            if op.primitive.sends_rows and self.flow.ep_size == 1:
                facts.add_slot(op.domain.route, row)
        elif op.primitive.is_notice or (op.primitive.is_blocking and op.primitive.is_back):
            facts.add_expert(op.domain.route, row if op.primitive.is_notice and row >= 0 else None)
        elif op.domain.is_slots:
            facts.add_slot(op.domain.route, row, expert)
        elif op.domain.is_tiles:
            facts.tiles = max(facts.tiles, row if op.domain.clipped else -1)
        elif op.domain.sums_rows and op.domain.route >= 0:
            facts.add_expert(op.domain.route, row // op.domain.blocks)

    def add_producer_facts(self, facts: Facts, signal: Signal, offset: int, is_read: bool) -> None:
        """Adds what is not empty on the rank of an event to which a signal adds; where it counts tasks, what is not empty
        where a task on received rows touches any, for there is nothing to order after one that touches none."""
        task = self.tasks[signal.task]
        op, row, kind = self.flow.ops[task.op], task.row, self.kind(signal)
        if signal.amount == tf.COUNT:
            if (op.domain.sums_rows and not is_read) or (op.domain.is_slots and not op.primitive.sends_rows):
                self._add_touched(facts, signal.task)
            return
        is_own, peers, local = self.is_for_itself(signal.task), self.peers_of(signal.task), signal.remote == tf.LOCAL
        if op.way is not None and (is_own or local != (op.way is Way.BACK)):
            facts.tiles = max(facts.tiles, self.first_tile(op.domain.route, offset) if kind == tf.ENTRY_TILE else 0)
            if kind == tf.ENTRY_TILE:
                facts.counting.add((op.domain.route, offset))
            if not is_own:
                return
        if op.primitive.puts_back and local and len(peers) == 1:
            facts.returned = op.domain.route, row, task.peer
        elif op.primitive.sends_rows and (is_own or not local) and len(peers) == 1 \
                and (peer := self.returns(task.peer)) is not None:
            facts.returned = op.domain.route, row, peer
        if op.primitive.is_notice or op.primitive.is_blocking:
            facts.add_expert(op.domain.route, row if op.primitive.is_notice and row >= 0 else None)
        elif op.domain.is_slots:
            facts.add_slot(op.domain.route, row, offset if kind == tf.SLOT_EXPERT else None)
        elif op.domain.is_tiles and op.domain.clipped:
            facts.tiles = max(facts.tiles, row)

    def _feeds(self, writer: int, reader: int) -> bool:
        """Whether a task's operation reads of what another's writes, or has notified of."""
        key = self.tasks[writer].op, self.tasks[reader].op
        if key not in self._feeding:
            self._feeding[key] = self._is_fed(*(self.flow.ops[i] for i in key))
        return self._feeding[key]

    def _is_fed(self, writer: tf.TileOp, reader: tf.TileOp) -> bool:
        storage = [b.storage for b in self.flow.buffers]
        written = [writer.params.buffer] if writer.primitive.is_notice else [a.buffer for a in writer.outputs]
        return not {storage[b] for b in written}.isdisjoint(storage[a.buffer] for a in reader.inputs)

    def sender_facts(self, signal: Signal, offset: int) -> Facts:
        """What is not empty on the rank that sends what a remote signal counts."""
        facts, task = Facts(), self.tasks[signal.task]
        op, row = self.flow.ops[task.op], task.row
        if op.primitive.moves_copies:
            return facts
        if op.way is not Way.BACK:
            facts.tiles = 0
            if op.primitive.sends_rows and len(self.peers_of(signal.task)) == 1:
                expert = offset if self.kind(signal) == tf.SLOT_EXPERT else None
                facts.sent = op.domain.route, row, task.peer, expert
        elif op.primitive.puts_back:
            facts.add_slot(op.domain.route, row)
        else:
            facts.add_expert(op.domain.route, row if op.primitive.is_notice and row >= 0 else None)
        return facts
