"""Layout: the slots, extents and thresholds of a taskflow for one routing, which the kernel computes when it starts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.routing.capacity import PerRank
from hpmoe.routing.placement import Placement
from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import Routing, make_routing, routing_of_tokens
from hpmoe.routing.slots import Slots, make_slots
from hpmoe.support.errors import ArgumentError
from hpmoe.support.known import known
from hpmoe.tile_ops.frame import Move
from hpmoe.tile_ops.params import Leg


def moves_of(plan: Placement, op: tf.TileOp, rank: int, row: int) -> list[Move]:
    """Returns the moves of a task from `rank`: weights to replicas, or gradients of replicas back."""
    block, height = op.params.block, op.params.height
    if op.primitive.is_back:
        owners = [(e // plan.num_own, e % plan.num_own, slot) for slot, e in enumerate(plan.experts[rank])]
        every = [(owner, expert, slot, plan.copies[owner].index((expert, rank, slot))) if owner >= 0 else None
                 for owner, expert, slot in owners]
    else:
        every = [(host, plan.num_own + slot, expert, slot) for expert, host, slot in plan.copies[rank]]
    first = 0
    if op.domain.is_copies:
        copy, first = divmod(row, op.domain.blocks)
        every, first = every[copy:copy + 1], first * block
    rows = min(block, height - first)
    return [Move(peer, expert, source * height + first, target * height + first, rows)
            for peer, expert, source, target in filter(None, every)]


def num_copies(plan: Placement, extent: int, rank: int, expert: int) -> int:
    """Returns REPLICA if a local expert of a rank is a replica, else its number of replicas."""
    if extent == tf.REPLICA:
        return int(expert >= plan.num_own and plan.experts[rank][expert - plan.num_own] >= 0)
    return sum(copy.expert == expert for copy in plan.copies[rank])


class Layout:
    """Concrete numbers of a Taskflow for given ids.

    Attributes:
        num_tokens: tokens of each rank.
        routings: a Routing for each route of the taskflow.
        slots: for each route, the Slots of each rank.
        relayed: for each route whose rows relays pass on, the rows as relays see them.
    """

    def __init__(self, flow: tf.Taskflow, ids: Sequence[PerRank], num_tokens: Sequence[int] | None,
                 weights: Sequence[Sequence[np.ndarray] | None] | None = None):
        """`ids` and `weights` are those of each route by ids: topk_ids for each rank, and topk_weights where they decide."""
        self.flow = flow
        self.routings: list[Routing] = []
        for i, plan in enumerate(flow.routes):
            self.routings.append(
                routing_of_tokens(plan.kind, self.routings[plan.of]) if plan.kind.is_of_tokens else
                make_routing(plan.kind.by_ids, ids[i], num_tokens, weights[i] if weights else None))
        self.relayed = {i: RelayedRows.of(self.routings[i], self.routings[plan.over]) for i, plan in enumerate(flow.routes)
                        if plan.over >= 0}
        for routing, plan in zip(self.routings, flow.routes, strict=True):
            _check_planned(plan, [routing.num_rows(r) for r in range(flow.ep_size)])
        self.slots: list[list[Slots]] = [
            [make_slots(routing.tokens_per_expert(r), flow.tile_rows, plan.num_slots, routing.own_rows(r))
             for r in range(flow.ep_size)]
            for routing, plan in zip(self.routings, flow.routes, strict=True)]
        if num_tokens is None and flow.routes:
            num_tokens = self.routings[0].num_tokens
        self.num_tokens = None if num_tokens is None else [int(n) for n in num_tokens]

    def limit(self, rank: int, domain: tf.Domain) -> int:
        """Returns the number of static rows of a tiled domain that exist on `rank`."""
        if domain.clipped and self.num_tokens is not None:
            return min(domain.num_rows, self.num_tokens[rank])
        return domain.num_rows

    def tile(self, rank: int, domain: tf.Domain, index: int) -> slice:
        start = index * self.flow.tile_rows
        return slice(start, max(start, min(start + self.flow.tile_rows, self.limit(rank, domain))))

    def slot(self, rank: int, route: int, index: int) -> slice:
        slots = self.slots[route][rank]
        return slice(int(slots.start[index]), int(slots.start[index] + slots.rows[index]))

    def expert(self, rank: int, route: int, index: int) -> slice:
        stops = np.cumsum(self.routings[route].tokens_per_expert(rank))
        return slice(int(stops[index - 1]) if index else 0, int(stops[index]))

    def peer(self, rank: int, position: int, leg: Leg | None) -> int:
        return int(self.flow.order_of(leg)[rank, position])

    def peers(self, rank: int, op: tf.TileOp, task: np.void) -> list[int]:
        """Returns the ranks that a task of `rank` sends to."""
        return [self.peer(rank, position, op.leg) for position in op.peers_of(int(task["peer"]), self.flow.ep_size)]

    def moves(self, rank: int, op: tf.TileOp, row: int) -> list[Move]:
        """Returns `moves_of` of the placement of the operation's route."""
        return moves_of(known(self.flow.routes[op.domain.route].placement), op, rank, row)

    def sent_by(self, op: tf.TileOp) -> Routing | RelayedRows:
        """Returns the sender of the rows that an operation moves: the ranks of their tokens, or their relays."""
        return self.relayed[op.domain.route] if op.is_relayed else self.routings[op.domain.route]

    def put_rows(self, rank: int, op: tf.TileOp, peer: int, slot: int) -> np.ndarray:
        """Returns the rows of slot `slot` of rank `peer` that come from `rank`."""
        where = self.slot(peer, op.domain.route, slot)
        return where.start + np.flatnonzero(self.sent_by(op).source_of_row[peer][where] == rank)

    def task_rows(self, rank: int) -> np.ndarray:
        """Returns the number of rows that each task computes, sums or moves on `rank`, [num_tasks] int."""
        flow, out = self.flow, np.zeros(self.flow.num_tasks, np.int64)
        for i, op in enumerate(flow.ops):
            mine = flow.tasks["op"] == i
            row = flow.tasks["row"][mine]
            if op.primitive.is_put:
                rows = np.array([self._rows_between(rank, peer, op) for peer in range(flow.ep_size)])
                of_tasks = np.array([rows[j::op.num_peers].sum(axis=0) for j in range(op.num_peers)])
                out[mine] = of_tasks[flow.tasks["peer"][mine], row]
            elif op.primitive.is_blocking:
                sources = self.sent_by(op).source_of_row
                out[mine] = len(sources[rank]) if op.primitive.is_back else sum((s == rank).sum() for s in sources)
            elif not (op.primitive.is_completion_flag or op.primitive.is_launch):
                rows = op.rows_of_parts(op.domain.rows_of_units(self, rank)[0], flow.tile_rows)
                out[mine] = rows[row - op.domain.first, flow.tasks["col"][mine] if op.parts > 1 else 0]
        return out

    def _rows_between(self, rank: int, position: int, op: tf.TileOp) -> list[int]:
        """Returns the number of rows of each slot that a put of `rank` moves to the peer at `position` in its order."""
        peer = self.peer(rank, position, op.leg)
        owner, source = (rank, peer) if op.leg is Leg.COMBINE else (peer, rank)
        of_source = self.sent_by(op).source_of_row[owner] == source
        slots = self.slots[op.domain.route][owner]
        before = np.concatenate([[0], np.cumsum(of_source)])
        return (before[slots.start + slots.rows] - before[slots.start]).tolist()

    def thresholds(self, rank: int) -> np.ndarray:
        """Returns the threshold of each event on `rank`, [num_events] int64."""
        return np.array([mult * self._extent(rank, extent, index, route)
                         for extent, index, mult, route, _ in self.flow.deps.events.tolist()], np.int64)

    def _extent(self, rank: int, extent: int, index: int, route: int) -> int:
        if extent in (tf.ONE, tf.STATIC_TILE):
            return 1
        if extent in (tf.TOKENS, tf.TILE):
            return self._token_extent(rank, extent, index)
        routing = self.routings[route]
        if extent in (tf.ENTRIES, tf.TILE_ENTRIES):
            entries = self.flow.routes[route].return_tokens * routing.top_k
            start, stop = (0, None) if extent == tf.ENTRIES else (index * entries, (index + 1) * entries)
            padding = 0 if start else routing.padding[rank]  # which is counted with the first tokens
            return int(routing.kept[rank][start:stop].sum()) + padding
        if extent == tf.SLOT:
            return int(self.slots[route][rank].rows[index])
        if extent == tf.EXPERT:
            return int(routing.tokens_per_expert(rank)[index])
        if extent == tf.RECEIVED:
            return routing.num_rows(rank)
        if extent == tf.RELAYED:
            return int(self.relayed[route].kept[rank].sum())
        if extent in (tf.REPLICA, tf.REPLICAS):
            return num_copies(known(routing.placement), extent, rank, index)
        return self._sent(rank, extent, index, routing)

    def _token_extent(self, rank: int, extent: int, index: int) -> int:
        """Returns the number of rows of the clipped domain, whose static size is that of the tiles that signal it."""
        domain = next(op.domain for op in self.flow.ops if op.domain.is_tiles and op.domain.clipped)
        if extent == tf.TOKENS:
            return self.limit(rank, domain)
        tile = self.tile(rank, domain, index)
        return tile.stop - tile.start

    def _sent(self, rank: int, extent: int, index: int, routing: Routing) -> int:
        """Returns the number of rows between this rank and a peer, all of them or those of one expert."""
        local = routing.num_local_experts
        by_expert = extent in (tf.SENT_TO_EXPERT, tf.RETURNED_TO_FROM_EXPERT)
        leg = Leg.DISPATCH if extent in (tf.SENT_TO, tf.SENT_TO_EXPERT) else Leg.COMBINE
        peer = self.peer(rank, index // local if by_expert else index, leg)
        source, owner = (rank, peer) if leg is Leg.DISPATCH else (peer, rank)
        counts = routing.counts[source, owner * local:(owner + 1) * local]
        return int(counts[index % local] if by_expert else counts.sum())


def _check_planned(plan: tf.RoutePlan, received: Sequence[int]) -> None:
    """Raises ArgumentError if a rank receives more rows than the plan can hold."""
    if max(received) > plan.max_rows:
        rank = int(np.argmax(received))
        raise ArgumentError(f"hpmoe: rank {rank} receives {received[rank]} rows; the plan is for at most {plan.max_rows}. "
                            "Call lower with these ids, or with an hpmoe.ShapeDtypeStruct for any ids")


def received_rows(flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None,
                  received: Sequence[Sequence[int]] | None = None) -> list[list[int]]:
    """Returns the rows that each rank receives through each route; through a route to ranks, the most it can receive.

    Args:
        flow: whose routes.
        inputs: for each rank, one array for each program input.
        num_tokens: tokens of each rank; all if None.
        received: for each route by ids, the rows of each rank, if they are known; they are counted from the ids if there are
            other routes, which a rewrite of passes may add.
    """
    by_ids = [plan for plan in flow.routes if not plan.kind.is_of_tokens]
    if received is None or len(received) != len(by_ids):
        received = [_counted(flow, plan, inputs, num_tokens) for plan in by_ids]
    left, out = iter(received), []
    for plan in flow.routes:
        if plan.kind.is_of_tokens:
            tokens = [plan.num_tokens] * flow.ep_size if num_tokens is None else num_tokens
            out.append([plan.kind.rows_of(rows, tokens, rank) for rank, rows in enumerate(out[plan.of])])
        else:
            out.append(next(left))
            _check_planned(plan, out[-1])
    return [list(mine) for mine in zip(*out, strict=True)] or [[] for _ in range(flow.ep_size)]


def _counted(flow: tf.Taskflow, plan: tf.RoutePlan, inputs: Sequence[Sequence[np.ndarray]],
             num_tokens: Sequence[int] | None) -> list[int]:
    """Returns the number of rows that each rank receives through a route, by the ids among the inputs."""
    position, ends = flow.inputs.index(plan.ids), [None] * len(inputs) if num_tokens is None else num_tokens
    return plan.kind.by_ids.received([np.reshape(arrays[position], (plan.num_tokens, plan.num_choices))[:end]
                                      for arrays, end in zip(inputs, ends, strict=True)])
