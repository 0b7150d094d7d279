"""The shortest cycle through tasks that wait for one another, by queue order and events, and how it is printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from hpmoe.ir.taskflow_text import event_name, task_lines
from hpmoe.support.known import known
from hpmoe.verification.order import Order, Signal

MOST_STEPS = 1 << 18  # of the search; past them the shortest cycle found so far is taken
ANY = -1  # the rank of a task where it is the same on every rank


class Node(NamedTuple):
    """A task of a rank."""

    rank: int
    task: int


class Lead(NamedTuple):
    """A task for which another one waits: by an event that the task signals, or (-1) by its earlier place in the queue."""

    node: Node
    event: int = -1


EventLeads = Callable[[Node], Iterable[Lead]]


@dataclasses.dataclass
class Search:
    """Searches cycles among the tasks of `stuck`, whose leads by events `event_leads` gives."""

    order: Order
    stuck: list[int]
    event_leads: EventLeads
    ranks: range | tuple[int, ...] = (ANY,)

    def __post_init__(self) -> None:
        self._leads: dict[Node, list[Lead]] = {}
        self.lines: dict[int, list[int]] = {}  # of each queue the stuck tasks, in order
        among = set(self.stuck)
        for queue in {self.order.queue_of[t] for t in self.stuck}:
            self.lines[queue] = [t for t in self.order.lines[queue] if t in among]
        self.place = {t: i for line in self.lines.values() for i, t in enumerate(line)}

    def shortest(self) -> list[Lead] | None:
        """Returns the leads of a cycle of the fewest tasks, each task before the one that it leads to, or None."""
        best = self._any()
        if best is None:
            return None
        first = [lead.node for lead in best]
        starts = [*first, *(Node(r, t) for r in self.ranks for t in self.stuck)]
        steps = 0
        for start in starts:
            found, used = self._through(start, len(best))
            best, steps = found or best, steps + used
            if len(best) == 1 or steps > MOST_STEPS:
                break
        return best

    def leads(self, node: Node) -> list[Lead]:
        """Returns the predecessors of a node by events."""
        if node not in self._leads:
            self._leads[node] = list(dict.fromkeys(self.event_leads(node)))
        return self._leads[node]

    def _right_before(self, node: Node) -> Iterator[Lead]:
        """Returns the predecessors of a node by events, and the task before it in its queue."""
        yield from self.leads(node)
        if place := self.place[node.task]:
            yield Lead(Node(node.rank, self.lines[self.order.queue_of[node.task]][place - 1]))

    def _any(self) -> list[Lead] | None:
        """Returns a cycle, not the shortest, by a search depth first until a task occurs again; None if there is none."""
        done: set[Node] = set()
        for start in (Node(r, t) for r in self.ranks for t in self.stuck):
            way: list[Lead] = [Lead(start)]
            at, left = {start: 0}, [self._right_before(start)]
            while way and start not in done:
                lead = next(left[-1], None)
                if lead is None:
                    left.pop()
                    done.add(way.pop().node)
                    del at[next(reversed(at))]
                elif lead.node in at:
                    return [lead, *reversed(way[at[lead.node] + 1:])]
                elif lead.node not in done:
                    at[lead.node] = len(way)
                    way.append(lead)
                    left.append(self._right_before(lead.node))
        return None

    def _through(self, start: Node, fewer_than: int) -> tuple[list[Lead] | None, int]:
        """Returns the shortest cycle through a task if shorter than `fewer_than`, and the steps of the search."""
        came: dict[Node, tuple[Node, Lead]] = {}  # from which task the search came to one
        covered: dict[tuple[int, int], int] = {}  # tasks of a queue that it came to by queue order
        level, steps = [start], 0
        for length in range(1, fewer_than):
            below: list[Node] = []
            for node in level:
                for lead in self._all_before(node, covered):
                    steps += 1
                    if lead.node == start:
                        return [lead, *_back(came, node, start)][:length], steps
                    if lead.node not in came:
                        came[lead.node] = node, lead
                        below.append(lead.node)
            level = below
        return None, steps

    def _all_before(self, node: Node, covered: dict[tuple[int, int], int]) -> Iterator[Lead]:
        """Returns the predecessors by events, and the tasks before it in its queue that the search has not covered."""
        yield from self.leads(node)
        queue, place = self.order.queue_of[node.task], self.place[node.task]
        known = covered.get((node.rank, queue), 0)
        if place > known:
            covered[node.rank, queue] = place
            for task in reversed(self.lines[queue][known:place]):
                yield Lead(Node(node.rank, task))


def _back(came: dict[Node, tuple[Node, Lead]], node: Node, start: Node) -> Iterator[Lead]:
    """Yields the leads from a task to the start of a search."""
    while node != start:
        node, lead = came[node]
        yield lead


class MayLeads:
    """Leads by events in some routing: between tasks of certain ranks (`by_rank`), or of any, as far as all ranks have them
    (`everywhere`) or one of them has."""

    def __init__(self, order: Order, stuck: Iterable[int], by_rank: bool, everywhere: bool):
        self.order, self.stuck, self.by_rank, self.everywhere = order, set(stuck), by_rank, everywhere
        self.ranks = range(order.flow.ep_size)
        self._of_all: dict[tuple[int, int], bool] = {}

    def __call__(self, node: Node) -> Iterator[Lead]:
        for wait in self.order.waits_of(node.task):
            for event, _ in self.order.events_of(wait):
                for signal in self.order.producers_of(event):
                    if signal.task in self.stuck:
                        yield from self._leads(signal, event, node.rank)

    def _leads(self, signal: Signal, event: int, rank: int) -> Iterator[Lead]:
        if self.by_rank and not self.order.stays(signal):
            yield from (Lead(Node(r, signal.task), event) for r in self.ranks if self.order.reaches(signal, event, r, rank))
        elif self.by_rank or not self.everywhere or self.order.stays(signal) or self._is_of_all(signal, event):
            yield Lead(Node(rank, signal.task), event)

    def _is_of_all(self, signal: Signal, event: int) -> bool:
        """Returns True if this task of some rank signals the event on every rank."""
        key = signal.task, event
        if key not in self._of_all:
            self._of_all[key] = all(any(self.order.reaches(signal, event, source, rank) for source in self.ranks)
                                    for rank in self.ranks)
        return self._of_all[key]


def find_cycle(order: Order, stuck: list[int], on_one_rank: EventLeads | None,
               is_possible: Callable[[list[Lead]], bool]) -> list[Lead]:
    """A shortest cycle among stuck tasks: of those that wait for one another on all ranks, else on certain ranks, else
    of what may be in some routing. Where one rank has a cycle by itself, one that is possible there, or that one's case has.
    """
    flow = order.flow
    searches = [Search(order, stuck, MayLeads(order, stuck, by_rank=False, everywhere=True))]
    if on_one_rank is not None:
        cycle = searches[0].shortest()
        return cycle if cycle and is_possible(cycle) else known(Search(order, stuck, on_one_rank).shortest())
    if flow.ep_size > 1 and flow.ep_size * len(stuck) <= MOST_STEPS:
        searches.append(Search(order, stuck, MayLeads(order, stuck, by_rank=True, everywhere=False), range(flow.ep_size)))
    searches.append(Search(order, stuck, MayLeads(order, stuck, by_rank=False, everywhere=False)))
    return next(cycle for search in searches if (cycle := search.shortest()))


def cycle_text(order: Order, cycle: list[Lead]) -> str:
    """Returns a line of IR for each task of a cycle, with its queue and the reason why the next task waits for it."""
    first = min(range(len(cycle)), key=lambda i: (cycle[i].node.task, cycle[i].node.rank))
    cycle = [*cycle[first:], *cycle[:first]]
    lines = task_lines(order.flow, np.array([lead.node.task for lead in cycle]))
    then = [*cycle[1:], cycle[0]]
    wide = max(map(len, lines))
    return "\n".join(f"{line:<{wide}}  # {_line(order, *pair)}" for line, pair in
                     zip(lines, zip(cycle, then, strict=True), strict=True))


def _line(order: Order, lead: Lead, then: Lead) -> str:
    """Returns text such as `aic.0, then t4 of a peer: event !a.0`."""
    (rank, task), flow = lead.node, order.flow
    crosses = lead.event >= 0 and not any(order.stays(s) for s in order.producers_of(lead.event) if s.task == task)
    here, there = (f"rank {rank} ", f" of rank {then.node.rank}") if rank != ANY else ("", " of a peer")
    queue = f"{here}{known(flow.machine).queue_name(order.queue_of[task])}, " if flow.queues else here
    by = f"event {event_name(flow, lead.event)}" if lead.event >= 0 else "queue order"
    return f"{queue}then t{then.node.task}{there if crosses else ''}: {by}"
