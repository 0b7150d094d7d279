"""Finds tasks of a rank that surely end before another starts, where some facts hold."""

from __future__ import annotations

from collections.abc import Iterable

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops.params import Way
from hpmoe.verification.facts import Facts
from hpmoe.verification.rows import Signal, Task, Wait
from hpmoe.verification.slot_experts import SlotExperts


class Before:
    """What comes before the tasks of one rank, found when it is asked for; a set of tasks is an int with a bit for each.

    Facts under which tasks would surely wait for each other are those of no routing, as none gets stuck: then everything is
    before everything.
    """

    def __init__(self, order: SlotExperts, facts: Facts):
        self.order, self.facts = order, facts
        self._sets: dict[int, int] = {}
        self._adding: dict[int, list[int]] = {}
        self._made: dict[int, int] = {}
        self._awaiting: dict[int, int] = {}
        self._experts: dict[tuple[int, int], int | None] = {}
        self._is_void = False

    def of(self, task: int) -> int:
        """Tasks that surely end before this one starts: all before it in its queue, those that surely added to what it waits
        for, and what is before them."""
        todo, visited = [task], set()
        while todo and not self._is_void:
            t = todo[-1]
            if t in self._sets:
                todo.pop()
            elif t in visited:
                self._sets[t] = self._union(t)
                todo.pop()
            else:
                visited.add(t)
                left = [p for p in self._directly_before(t) if p not in self._sets]
                self._is_void = not visited.isdisjoint(left)
                todo += left
        return -1 if self._is_void else self._sets[task]

    def and_itself(self, task: int) -> int:
        return self.of(task) | 1 << task

    def is_heard_of(self, event: int, tasks: int) -> bool:
        """Whether one of a set of tasks surely waits for an event."""
        if event not in self._awaiting:
            self._awaiting[event] = _bits(w.task for w in self.order.waits_about(event) if self.awaited(w) == event)
        return self._awaiting[event] & tasks != 0

    def _directly_before(self, task: int) -> list[int]:
        queue, place = self.order.queue_of[task], self.order.position[task]
        out = [self.order.lines[queue][place - 1]] if place else []
        for event in self._events_of(task):
            if event not in self._made:
                out += self._adders(event)
        return out

    def _union(self, task: int) -> int:
        queue, place = self.order.queue_of[task], self.order.position[task]
        known = 0
        if place:
            last = self.order.lines[queue][place - 1]
            known = self._sets[last] | 1 << last
        for event in self._events_of(task):
            if event not in self._made:
                made = 0
                for p in self._adders(event):
                    made |= self._sets[p] | 1 << p
                self._made[event] = made
            known |= self._made[event]
        return known

    def _events_of(self, task: int) -> list[int]:
        events = (self.awaited(wait) for wait in self.order.waits_of(task))
        return [event for event in events if event is not None]

    def _adders(self, event: int) -> list[int]:
        """Tasks of this rank that surely added to an event that is reached."""
        if event not in self._adding:
            self._adding[event] = [s.task for s in self.order.signals_about(event)
                                   if self.order.stays(s) and self.always_adds(s, event)]
        return self._adding[event]

    def expert_of(self, route: int, slot: int) -> int | None:
        """The expert of a slot where the facts tell it."""
        place = route, slot
        if place not in self._experts:
            self._experts[place] = self.order.expert_of(self.facts, route, slot)
        return self._experts[place]

    def awaited(self, wait: Wait) -> int | None:
        """The event of a wait, where the facts tell it."""
        if self.order.kind(wait) == tf.STATIC:
            return wait.event
        expert = self.expert_of(self.order.op_of(wait.task).domain.route, self.order.tasks[wait.task].row)
        return None if expert is None else wait.event + expert

    def always_adds(self, signal: Signal, event: int) -> bool:
        """Whether the facts say that the task's rows, which are on this rank, add to the event."""
        task = self.order.tasks[signal.task]
        op, row, offset = self.order.flow.ops[task.op], task.row, event - signal.event
        route, kind = op.domain.route, self.order.kind(signal)
        if signal.amount == tf.COUNT:
            return kind == tf.STATIC
        if op.way is not None and self.order.flow.ep_size > 1:
            is_sent = kind != tf.ENTRY_TILE and self._moves_sent(op, task, offset if kind == tf.SLOT_EXPERT else None)
            return is_sent or (kind == tf.STATIC and self._moves_returned(op, task))
        if kind == tf.SLOT_EXPERT:
            return row <= self.facts.slots.get(route, -1) and self.expert_of(route, row) == offset
        if kind == tf.ENTRY_TILE:
            is_told = op.primitive.is_blocking and op.primitive.is_back and (route, offset) in self.facts.counting
            return is_told or self._is_of_last_tokens(op, row, offset)
        if op.primitive.is_notice:
            return self.order.has_rows(self.facts, route, row) if row >= 0 else route in self.facts.slots
        if op.domain.is_slots:
            return row <= self.facts.slots.get(route, -1)
        if op.way is not None:
            return route in self.facts.slots
        return op.domain.is_tiles and (not op.domain.clipped or row <= self.facts.tiles)

    def _is_of_last_tokens(self, op: tf.TileOp, slot: int, returned: int) -> bool:
        """Whether a lone rank's slot is so far behind the first of its expert that its rows, each of another token and in
        their order, are of tokens of the last event for returned rows."""
        flow, facts, route = self.order.flow, self.facts, op.domain.route
        first = slot - self.order.first_tile(route, returned)
        if not op.primitive.puts_back or first < 0 or slot > facts.slots.get(route, -1):
            return False
        plan, expert = flow.routes[route], self.order.expert_of(facts, route, slot)
        is_last = returned == plan.num_returns - 1 and plan.tile_rows == flow.tile_rows
        return is_last and expert is not None and self.order.expert_of(facts, route, first) == expert

    def _moves_sent(self, op: tf.TileOp, task: Task, expert: int | None) -> bool:
        """Whether a transfer moves rows, if given of an expert, of which the facts say that this rank sends them."""
        *place, of = self.facts.sent or (-1,)
        return op.primitive.sends_rows and place == [op.domain.route, task.row, task.peer] and expert in (None, of)

    def _moves_returned(self, op: tf.TileOp, task: Task) -> bool:
        """Whether a transfer moves, or tells of, rows of this rank of which the facts say that they go back to a peer."""
        route, slot, peer = self.facts.returned or (-1, -1, -1)
        peers, own = op.peers_of(task.peer, self.order.flow.ep_size), self.order.own
        is_for = peer in peers if op.way is Way.BACK else peer in own[Way.BACK] and not set(peers).isdisjoint(own[op.way])
        if route != op.domain.route or not is_for:
            return False
        return op.primitive.is_notice and task.row in (-1, self.order.expert_of(self.facts, route, slot)) or (
            not op.primitive.is_notice and task.row == slot)


def _bits(tasks: Iterable[int]) -> int:
    out = 0
    for t in tasks:
        out |= 1 << t
    return out
