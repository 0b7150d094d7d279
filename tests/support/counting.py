"""Proves that the signals of a taskflow add up to the thresholds of its events, whatever the routing.

Amounts are sums of unknowns, and two sums are equal for every routing where they are equal once all are written in the same
unknowns. At the rank of the event, for position j of a peer: rows of slot s that are of expert e ("slot", s, e), sent by
the rank that has this one at j ("from", s, e, j), of the peer at j ("of", s, e, j); rows sent to the peer at j that are in
its slot s ("to", s, e, j); tokens of tile i ("tile", i); entries of tile i with a row ("entries", i), that come back from
slot s of the rank that has this one at j ("back", i, s, j), or of expert e there ("told", i, e, j); rows of slot s of expert
e that are copies of tokens' rows in slot t of a route to ranks ("fan", s, e, t); rows of slot s that are of expert e that
the rank at j passes on as a relay ("passed", s, e, j); rows that come back to this relay ("relayed"), from slot s of the
rank that has this one at j ("summed", s, j); and 1, on all ranks or on rank r alone ("on", r). Positions are of the order
in which rows go out, those of "of", "back", "told" and "summed" of that in which they come back.
Of this rank itself "from", "of" and "to" are the same rows, and called "of", with OWN for j.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import moves_of, num_copies
from hpmoe.routing.route_plan import relays_of
from hpmoe.support.known import known
from hpmoe.tile_ops.params import Way
from hpmoe.verification.order import own_positions
from hpmoe.verification.rows import Signal, Task, op_spans

WAY_OF = {"from": Way.OUT, "to": Way.OUT, "of": Way.BACK}  # the order that positions of an unknown are of
Sum = collections.Counter  # unknown -> how often
ONE: tuple = ("one",)
OWN = -1  # the position of a rank that every rank has itself at


class Counting:
    """The unknowns of one taskflow."""

    def __init__(self, flow: tf.Taskflow):
        self.flow = flow
        self.own = {way: own_positions(flow, way) for way in (*Way, None)}
        self.pivots = {way: min(set(range(flow.ep_size)) - set(own), default=OWN)  # of all peers the one the others give
                       for way, own in self.own.items()}
        clipped = [op.domain for op in flow.ops if op.domain.clipped]
        self.spans = op_spans(flow).tolist()
        self.tiles = range(-(-clipped[0].num_rows // flow.tile_rows) if clipped else 0)

    def is_exact(self, event: int, signals: Iterable[Signal]) -> bool:
        """Whether the signals that may be about an event add up to its threshold.

        What a rank sends to itself may be read as sent by it or as sent to it, so both are tried.
        """
        signals = list(signals)
        readings = (None, tf.LOCAL, tf.PEER) if any(self.own.values()) else (None,)
        return any(self._adds_up(event, signals, reading) for reading in readings)

    def _adds_up(self, event: int, signals: list[Signal], own: int | None) -> bool:
        difference = self.threshold(self.flow.events[event])
        for signal in signals:
            if own is not None and signal.amount == tf.ROWS and self._is_for_itself(signal.task):
                signal = signal._replace(remote=own)
            added = self.added(signal, event - signal.event)
            if difference is None or added is None:
                return False
            difference.subtract(added)
        return difference is not None and not any(self._reduced(difference).values())

    def _is_for_itself(self, task: int) -> bool:
        """Whether a task is for no other rank than its own."""
        peer, op = int(self.flow.tasks["peer"][task]), self.flow.ops[self.flow.tasks["op"][task]]
        return peer in self.own[op.way] and len(op.peers_of(peer, self.flow.ep_size)) == 1

    def threshold(self, event: np.void) -> Sum | None:
        """What an event waits for; None where it stands for nothing."""
        extent, index, route = int(event["extent"]), int(event["index"]), int(event["route"])
        routed = extent not in (tf.ONE, tf.STATIC_TILE, tf.TILE, tf.TOKENS)
        if event["mult"] < 0 or not 0 <= extent <= tf.RELAYED \
                or (routed and not 0 <= route < len(self.flow.routes)):
            return None
        unknowns = self._extent(extent, index, route)
        return None if unknowns is None else Sum({k: n * int(event["mult"]) for k, n in Sum(unknowns).items()})

    def _extent(self, extent: int, index: int, route: int) -> list[tuple] | None:
        if extent in (tf.ONE, tf.STATIC_TILE):
            return [ONE]
        if extent in (tf.TILE, tf.TOKENS):
            tiles = list(self.tiles) or None if extent == tf.TOKENS else self._at(index, self.tiles)
            return None if tiles is None else [("tile", i) for i in tiles]
        if extent == tf.RELAYED:
            return [("relayed", route)] if relays_of(self.flow.routes, route) not in (-1, route) else None
        plan, peers = self.flow.routes[route], range(self.flow.ep_size)
        if extent in (tf.ENTRIES, tf.TILE_ENTRIES):
            returns = range(plan.num_returns)
            chosen = list(returns) if extent == tf.ENTRIES else self._at(index, returns)
            return None if chosen is None else [("entries", route, i) for i in chosen]
        if extent == tf.SLOT:
            slots = self._at(index, range(plan.num_slots))
            return None if slots is None else [("slot", route, s, e) for s, e in self._cells(plan) if s == index]
        if extent in (tf.EXPERT, tf.RECEIVED):
            experts = range(plan.num_local_experts)
            experts = experts if extent == tf.RECEIVED else self._at(index, experts)
            return None if experts is None else [("slot", route, s, e) for s, e in self._cells(plan) if e in experts]
        if extent in (tf.REPLICA, tf.REPLICAS):
            if plan.placement is None or index not in range(plan.num_local_experts):
                return None
            return [("on", r) for r in peers for _ in range(num_copies(plan.placement, extent, r, index))]
        by_expert = extent in (tf.SENT_TO_EXPERT, tf.RETURNED_TO_FROM_EXPERT)
        position, expert = divmod(index, plan.num_local_experts) if by_expert else (index, None)
        family = "to" if extent in (tf.SENT_TO, tf.SENT_TO_EXPERT) else "of"
        return None if self._at(position, peers) is None else [
            self._part(family, route, s, e, position) for s, e in self._cells(plan) if expert in (None, e)]

    def _part(self, family: str, route: int, slot: int, expert: int, position: int) -> tuple:
        if position in self.own[WAY_OF[family]]:
            return "of", route, slot, expert, OWN
        return family, route, slot, expert, position

    @staticmethod
    def _at(index: int, among: range) -> list[int] | None:
        return [index] if index in among else None

    @staticmethod
    def _cells(plan: tf.RoutePlan) -> list[tuple[int, int]]:
        """(slot, expert) where a row can be."""
        return [(s, e) for e in range(plan.num_local_experts) for s in range(plan.slots_of(e + 1))]

    def added(self, signal: Signal, offset: int) -> Sum | None:
        """What a signal adds to the event `offset` places after the one it names; None where no task can signal so."""
        task = Task(*self.flow.tasks[signal.task].item())
        op, kind = self.flow.ops[task.op], signal.kind
        if op.fans_out and kind == tf.ENTRY_TILE:
            return self._fanned_out(op.domain.route, task.row, offset, signal)
        chosen = op.domain.is_slots if kind == tf.SLOT_EXPERT else op.primitive.moves_rows
        if chosen and self.spans[task.op][kind] == 1 and (kind, signal.amount) != (tf.ENTRY_TILE, tf.COUNT):
            kind = tf.STATIC  # there is only one event it can be about
        if op.way is not None:
            unknowns = self._moved(op, task, kind, offset, signal)
        elif op.primitive.moves_copies and signal.amount == tf.ROWS:
            unknowns = self._copied(op, task, offset, signal)
        else:
            unknowns = self._made_ready(op, task, kind, offset, signal)
        return None if unknowns is None else Sum(unknowns)

    def _fanned_out(self, route: int, row: int, slot: int, signal: Signal) -> Sum | None:
        """Rows of a slot of experts that are copies of a slot's tokens."""
        if signal.amount == tf.COUNT or signal.remote != tf.LOCAL:
            return None
        cells = self._cells(self.flow.routes[self.flow.routes[route].once_of])
        return Sum({("fan", route, s, e, row): 1 for s, e in cells if s == slot})

    def _copied(self, op: tf.TileOp, task: Task, expert: int, signal: Signal) -> dict | None:
        """Rows of an expert's matrix that other ranks send as copies, or as gradients of copies."""
        if (signal.kind, signal.remote) != (tf.SLOT_EXPERT, tf.PEER):
            return None
        placement, rows = self.flow.routes[op.domain.route].placement, Sum()
        for rank in range(self.flow.ep_size):
            for move in moves_of(known(placement), op, rank, task.row):
                rows["on", move.peer] += move.rows * (move.expert == expert)
        return rows

    def _made_ready(self, op: tf.TileOp, task: Task, kind: int, offset: int, signal: Signal) -> dict | None:
        """Rows of a unit of this rank, or one task."""
        domain, row = op.domain, task.row
        if signal.remote == tf.PEER or (signal.remote != tf.LOCAL and self.flow.ep_size > 1):
            return None
        if signal.amount == tf.COUNT or domain.counts_once:
            return {ONE: 1} if kind == tf.STATIC else None
        if domain.is_slots and kind != tf.ENTRY_TILE:
            return {("slot", domain.route, s, e): 1 for s, e in self._cells(self.flow.routes[domain.route])
                    if s == row and (kind == tf.STATIC or e == offset)}
        if not domain.is_tiles or kind != tf.STATIC:
            return None
        if domain.clipped:
            return {("tile", row): 1}
        return {ONE: min(self.flow.tile_rows, domain.num_rows - row * self.flow.tile_rows)}

    def _moved(self, op: tf.TileOp, task: Task, kind: int, offset: int, signal: Signal) -> dict | None:
        """Rows sent by all ranks, or by this one where the signal stays here."""
        route, row, j = op.domain.route, task.row, task.peer
        plan, local = self.flow.routes[route], signal.remote == tf.LOCAL
        if op.primitive.is_notice and kind != tf.STATIC:
            return None
        if signal.amount == tf.COUNT:
            return {ONE: 1} if local and kind == tf.STATIC else None
        if op.primitive.is_notice:
            back, experts = op.way is Way.BACK, range(plan.num_local_experts) if row < 0 else [row]
            cells = [(s, e) for s, e in self._cells(plan) if e in experts]
        else:
            back, cells = op.primitive.is_back, [(s, e) for s, e in self._cells(plan)
                                                       if op.primitive.is_blocking or s == row]
        peers = range(self.flow.ep_size) if op.primitive.is_blocking else op.peers_of(j, self.flow.ep_size)
        if op.is_relayed:
            return self._relayed(op, cells, kind, offset, row, peers) if not local else None
        if kind == tf.SLOT_EXPERT and op.primitive.is_put and (local or not back):
            kind, cells = tf.STATIC, [(s, e) for s, e in cells if e == offset]
        if back and not local:
            return self._returned(op, plan, kind, offset, row, peers)
        family = "from" if not local else "of" if back else "to"
        return {self._part(family, route, s, e, k): 1 for s, e in cells for k in peers} if kind == tf.STATIC else None

    def _relayed(self, op: tf.TileOp, cells: Sequence[tuple[int, int]], kind: int, offset: int, row: int,
                 peers: Iterable[int]) -> dict | None:
        """Rows that relays pass on to this rank, or get back on it."""
        route = op.domain.route
        if not op.primitive.is_back and kind in (tf.STATIC, tf.SLOT_EXPERT):
            return {("passed", route, s, e, k): 1 for s, e in cells for k in peers if kind == tf.STATIC or e == offset}
        if kind != tf.STATIC:
            return None
        return {("relayed", route): 1} if op.primitive.is_blocking else {("summed", route, row, k): 1 for k in peers}

    def _returned(self, op: tf.TileOp, plan: tf.RoutePlan, kind: int, offset: int, row: int, peers: Iterable[int]) \
            -> dict | None:
        """Entries that come back to this rank."""
        if kind == tf.SLOT_EXPERT:
            return None
        returns = range(plan.num_returns) if kind == tf.STATIC else [offset]
        if op.primitive.is_blocking:
            return {("entries", op.domain.route, i): 1 for i in returns}
        if op.primitive.puts_back:
            return {("back", op.domain.route, i, row, k): 1 for i in returns for k in peers}
        experts = range(plan.num_local_experts) if row < 0 else [row]
        return {("told", op.domain.route, i, e, k): 1 for i in returns for e in experts for k in peers}

    # One way to write each sum.

    def _reduced(self, total: Sum) -> Sum:
        """The sum without unknowns that the others give: of each partition the last part is the whole less the rest."""
        for step in (self._on_each_rank, self._fanned, self._passed_on, self._from_peers, self._returns, self._sent):
            total = step(Sum({k: v for k, v in total.items() if v}))
        return total

    def _eliminate(self, total: Sum, pivot: tuple, rest: Iterable[tuple], whole: dict) -> None:
        """Replaces `pivot`, which is the sum `whole` less the unknowns `rest`."""
        times = total.pop(pivot, 0)
        for unknown in rest if times else ():
            total[unknown] -= times
        for unknown, share in whole.items() if times else ():
            total[unknown] += times * share

    def _on_each_rank(self, total: Sum) -> Sum:
        self._eliminate(total, ONE, (), {("on", r): 1 for r in range(self.flow.ep_size)})
        return total

    def _fanned(self, total: Sum) -> Sum:
        """Every row of a slot is a copy of the row of a token."""
        for _, route, *cell in {k[:4] for k in total if k[0] == "fan"}:
            plan = self.flow.routes[route]
            parts = [("fan", route, *cell, row) for row in range(plan.num_slots)]
            self._eliminate(total, parts[-1], parts[:-1], {("slot", plan.once_of, *cell): 1})
        return total

    def _passed_on(self, total: Sum) -> Sum:
        """Every row of a slot is passed on by one relay, and comes back to it."""
        ranks = range(self.flow.ep_size)
        for place in {k[1:-1] for k in total if k[0] == "passed"}:
            parts = [("passed", *place, j) for j in ranks]
            self._eliminate(total, parts[-1], parts[:-1], {("slot", *place): 1})
        for route in {k[1] for k in total if k[0] == "summed"}:
            parts = [("summed", route, s, j) for s in range(self.flow.routes[route].num_slots) for j in ranks]
            self._eliminate(total, parts[-1], parts[:-1], {("relayed", route): 1})
        return total

    def _from_peers(self, total: Sum) -> Sum:
        pivots = [k for k in total if k[0] in ("from", "of") and k[-1] == self.pivots[WAY_OF[k[0]]]]
        for family, route, slot, expert, j in pivots:
            place = route, slot, expert
            parts = [self._part(family, *place, k) for k in range(self.flow.ep_size)]
            rest = [part for part in parts if part != (family, *place, j)]
            self._eliminate(total, (family, *place, j), rest, {("slot", *place): 1})
        return total

    def _returns(self, total: Sum) -> Sum:
        last = self.flow.ep_size - 1
        for family, route, i in {k[:3] for k in total if k[0] in ("back", "told")}:
            plan = self.flow.routes[route]
            parts = [(family, route, i, unit, j) for j in range(last + 1)
                     for unit in range(plan.num_slots if family == "back" else plan.num_local_experts)]
            self._eliminate(total, parts[-1], parts[:-1], {("entries", route, i): 1})
        return total

    def _sent(self, total: Sum) -> Sum:
        """All that is sent is all entries that have a row."""
        for route in {k[1] for k in total if k[0] == "to"}:
            plan = self.flow.routes[route]
            parts = [self._part("to", route, s, e, j) for s, e in self._cells(plan) for j in range(self.flow.ep_size)]
            pivot = next(p for p in parts if p[0] == "to")
            self._eliminate(total, pivot, [p for p in parts if p != pivot],
                            {("entries", route, i): 1 for i in range(plan.num_returns)})
        return total
