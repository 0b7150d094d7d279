"""Finds tasks of a taskflow that can never run because they wait for one another in every order.

Most flows are acyclic though every slot might hold rows of every expert. Where that is not so, the cases are told apart: of
an empty slot sends nothing and no task waits for it, and rows of a slot are of one expert. Slots that a rank sends to
are told apart as well, unless these are too many cases.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.planner.planner import find_runnable
from hpmoe.routing.slots import padded
from hpmoe.support.known import known
from hpmoe.verification.order import HERE, Order, Signal, Wait
from hpmoe.verification.shortest_cycle import EventLeads, Lead, Node

MAX_WORK = 1 << 19  # cases times edges; above it slots may hold any rows that make a cycle

Edges = list[list[int]]


class Stuck(NamedTuple):
    """Tasks that may wait on a cycle, ascending. Where one rank by itself has a cycle in some case, its leads by events
    there, and whether a cycle is one in any case."""

    order: Order
    tasks: list[int]
    on_one_rank: EventLeads | None
    is_possible: Callable[[list[Lead]], bool]


def find_stuck(flow: tf.Taskflow) -> Stuck | None:
    """Returns the tasks that may wait on a cycle through queue order and events in some routing, or behind one."""
    done = find_runnable(flow)  # with ranks folded onto one, and a block of events as one
    if not done.all():
        order = Order(flow)
        deps = flow.deps.replace(waits=_one_by_one(order, flow.deps.waits), signals=_one_by_one(order, flow.deps.signals))
        done = find_runnable(flow.replace(deps=deps))
    stuck = np.flatnonzero(~done).tolist()
    if not stuck:
        return None
    cases = _Cases(order, stuck)
    return None if cases.are_acyclic() else Stuck(order, stuck, cases.leads if cases.cyclic else None,
                                                       cases.has_cycle)


def _one_by_one(order: Order, table: np.ndarray) -> np.ndarray:
    """Waits or signals with one static row for every event that each may be about."""
    rows, make = [table[table["kind"] == tf.STATIC]], Wait if table.dtype == tf.WAIT else Signal
    for row in table[table["kind"] != tf.STATIC]:
        events = [event for event, _ in order.events_of(make(*row.item()))]
        several = np.repeat(np.array([row]), len(events))
        several["event"], several["kind"] = events, tf.STATIC
        rows.append(several)
    return np.concatenate(rows)


@dataclasses.dataclass(frozen=True)
class _Case:
    """A case of one rank: for each of `_Cases.holders` the expert of every slot with rows, and the row tiles with tokens."""

    experts: tuple[tuple[int, ...], ...]
    tiles: int


def _slots_of_experts(plan: tf.RoutePlan) -> Iterator[tuple[int, ...]]:
    """Yields the experts of the slots with rows, for every number of rows that the slots can hold."""
    most = -(-min(plan.max_rows, padded(plan.ep_size * plan.num_tokens, plan.alignment)) // plan.tile_rows)
    for counts in itertools.product(range(most + 1), repeat=plan.num_local_experts):
        fewest_rows = sum((n - 1) * plan.tile_rows + 1 for n in counts if n)
        if fewest_rows <= plan.max_rows and sum(counts) <= plan.num_slots:
            yield tuple(e for e, n in enumerate(counts) for _ in range(n))


class _Cases:
    """Tasks that a search cannot order, and the edges that each case leaves among them."""

    def __init__(self, order: Order, stuck: list[int]):
        self.order, self.flow, self.stuck = order, order.flow, stuck
        self.cyclic: _Case | None = None  # in which a rank by itself has a cycle
        self.node = {t: n for n, t in enumerate(stuck)}
        line = [[self.node[t] for t in queue if t in self.node] for queue in order.lines]
        self.before: Edges = [[] for _ in stuck]
        for queue in line:
            for a, b in itertools.pairwise(queue):
                self.before[b].append(a)
        self.waits = [(n, event, expert, self._feeders(event)) for n, t in enumerate(stuck) for w in order.waits_of(t)
                      for event, expert in order.events_of(w)]
        self.work = sum(map(len, (*self.before, *(f for *_, f in self.waits)))) + 1
        self.holders = [(route, HERE) for route in range(len(self.flow.routes))]
        others = sorted({holder for t in stuck if (holder := order.holder_of(t))} - set(self.holders))
        if self._num_cases(self.holders + others) * self.work <= MAX_WORK:
            self.holders += others
        self.holder = [self.holders.index(h) if (h := order.holder_of(t)) in self.holders else None for t in stuck]
        self._waits_of = collections.defaultdict(list)
        for i, (n, *_) in enumerate(self.waits):
            self._waits_of[stuck[n]].append(i)

    def _feeders(self, event: int) -> list[tuple[int, Signal]]:
        return [(self.node[s.task], s) for s in self.order.producers_of(event) if s.task in self.node]

    def are_acyclic(self) -> bool:
        """Returns True if no combination of the ranks' cases has a cycle.

        Signals of other ranks arrive in every case. A path from a wait for one, an entry, to a signal for other ranks, an
        exit, that exists in some case counts for all cases.
        """
        if self._num_cases(self.holders) * self.work > MAX_WORK:
            return False
        arrives = [[p for p, s in feeders if not self.order.stays(s)] for *_, feeders in self.waits]
        leads: dict[int, int] = {p: 0 for before in arrives for p in before}  # for each exit the entries before it, as bits
        for case in self._all():
            marks = [0] * len(self.stuck)
            for i, (wait, before) in enumerate(zip(self.waits, arrives, strict=True)):
                marks[wait[0]] |= int(bool(before) and self._is_waited_for(wait, case)) << i
            reached = _reached(self._edges(case), marks)
            if reached is None:
                self.cyclic = case
                return False
            for p in leads:
                leads[p] |= reached[p] if self._is_sent(p) or self._has_rows(p, case) else 0
        return _reached(self._across_ranks(leads)) is not None

    @property
    def _num_tiles(self) -> int:
        return max([op.domain.size for op in self.flow.ops if op.domain.clipped], default=0)

    def _num_cases(self, holders: list[tuple[int, int]]) -> int:
        """Returns an upper bound of the number of cases."""
        plans = (self.flow.routes[route] for route, _ in holders)
        return (self._num_tiles + 1) * math.prod((1 + -(-p.max_rows // p.tile_rows)) ** p.num_local_experts for p in plans)

    def _all(self) -> Iterator[_Case]:
        for experts in itertools.product(*(_slots_of_experts(self.flow.routes[route]) for route, _ in self.holders)):
            for used in range(self._num_tiles + 1):
                yield _Case(experts, used)

    def leads(self, node: Node) -> list[Lead]:
        """Returns the leads by events of a task in the case that has a cycle."""
        return self._leads_in(known(self.cyclic), node)

    def has_cycle(self, cycle: list[Lead]) -> bool:
        """Returns True if one rank has all leads of a cycle in some case."""
        by_event = [(lead, then.node) for lead, then in zip(cycle, [*cycle[1:], cycle[0]], strict=True) if lead.event >= 0]
        return any(all(lead in self._leads_in(case, node) for lead, node in by_event) for case in self._all())

    def _leads_in(self, case: _Case, node: Node) -> list[Lead]:
        waits = (self.waits[i] for i in self._waits_of[node.task])
        return [Lead(Node(node.rank, s.task), wait[1]) for wait in waits if self._is_waited_for(wait, case)
                for p, s in wait[3] if self.order.stays(s) and self._adds(p, s, wait[1], case)]

    def _across_ranks(self, leads: dict[int, int]) -> Edges:
        """Returns the edges among the entries and exits of every rank, or of one rank for all if there are too many."""
        arrives = [[(p, s) for p, s in feeders if not self.order.stays(s)] for *_, feeders in self.waits]
        size, is_apart = len(arrives) + len(leads), self.flow.ep_size * len(arrives) * (1 + len(leads)) <= MAX_WORK
        ranks, exits = range(self.flow.ep_size) if is_apart else range(1), {p: i for i, p in enumerate(leads, len(arrives))}
        edges: Edges = []
        for rank in ranks:
            for (_, event, _, _), before in zip(self.waits, arrives, strict=True):
                edges.append([source * size + exits[p] for source in ranks for p, s in before
                              if not is_apart or self.order.reaches(s, event, source, rank)])
            edges += [[rank * size + i for i in range(len(arrives)) if bits >> i & 1] for bits in leads.values()]
        return edges

    def _is_waited_for(self, wait: tuple, case: _Case) -> bool:
        """Returns True if a task waits for an event with a threshold above zero."""
        n, event, expert, _ = wait
        return expert in (None, self._expert(n, case)) and self._counts(self.flow.deps.events[event], case)

    def _edges(self, case: _Case) -> Edges:
        """Returns the direct predecessors of each task on its own rank."""
        edges = [list(before) for before in self.before]
        for wait in self.waits:
            n, event, _, feeders = wait
            if self._is_waited_for(wait, case):
                edges[n] += [p for p, s in feeders if self.order.stays(s) and self._adds(p, s, event, case)]
        return edges

    def _expert(self, n: int, case: _Case) -> int | None:
        """Returns the expert of a task's slot, the last one if it is empty; None if cases say nothing of the slot."""
        if (holder := self.holder[n]) is None:
            return None
        held, slot = case.experts[holder], self.order.tasks[self.stuck[n]].row
        return held[slot] if slot < len(held) else self.flow.routes[self.holders[holder][0]].num_local_experts - 1

    def _is_sent(self, n: int) -> bool:
        """Returns True for a task of a slot of another rank, which may signal that rank even if the slot is empty."""
        holder = self.holder[n]
        return holder is not None and self.holders[holder][1] != HERE

    def _has_rows(self, n: int, case: _Case) -> bool:
        """Returns True if a task may have rows."""
        if (holder := self.holder[n]) is not None:
            return self.order.tasks[self.stuck[n]].row < len(case.experts[holder])
        domain = self.order.op_of(self.stuck[n]).domain
        return not (domain.is_tiles and domain.clipped) or self.flow.tasks["row"][self.stuck[n]] < case.tiles

    def _adds(self, n: int, signal: Signal, event: int, case: _Case) -> bool:
        """Returns True if a signal to its own rank may add to an event."""
        if signal.amount == tf.ROWS and not self._has_rows(n, case):
            return False
        by_expert = self.order.kind(signal) == tf.SLOT_EXPERT and self.holder[n] is not None
        return not by_expert or self._expert(n, case) == event - signal.event

    def _counts(self, event: np.void, case: _Case) -> bool:
        """Returns True if an event's threshold may be above zero."""
        extent, index, route = int(event["extent"]), int(event["index"]), int(event["route"])
        if extent in (tf.TILE, tf.TOKENS):
            return case.tiles > (index if extent == tf.TILE else 0)
        if extent in (tf.SLOT, tf.EXPERT, tf.RECEIVED) and 0 <= route < len(self.flow.routes):
            held = case.experts[route]
            return {tf.SLOT: index < len(held), tf.EXPERT: index in held, tf.RECEIVED: bool(held)}[extent]
        return True


def _reached(edges: Edges, marks: Iterable[int] = ()) -> list[int] | None:
    """Returns each node's own marks and those of all nodes that lead to it, as bits; None if the edges have a cycle."""
    users: Edges = [[] for _ in edges]
    left, marks = [len(before) for before in edges], list(marks) or [0] * len(edges)
    for n, before in enumerate(edges):
        for p in before:
            users[p].append(n)
    ready = [n for n, count in enumerate(left) if not count]
    for n in ready:
        for u in users[n]:
            marks[u] |= marks[n]
            left[u] -= 1
            if not left[u]:
                ready.append(u)
    return marks if len(ready) == len(edges) else None
