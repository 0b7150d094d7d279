"""overlap_comm: blocking collectives -> one-sided put + signal tile tasks, in a chosen order of destinations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from hpmoe.costs.put_sizes import expected_puts, whole_row_groups
from hpmoe.ir.taskflow import RoutePlan, Taskflow, TileOp
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import TransformError, call_user, check_argument, is_int, is_name
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.domains import CompletionFlags, Copies, Slots
from hpmoe.tile_ops.params import NO_PARAMS, CompletionFlag, Leg, MatrixBlock
from hpmoe.tile_ops.transfers import NOTIFY, PUT, PUT_BACK
from hpmoe.tiling.rebuild import rebuild

Order = Callable[[int, int], Sequence[int]]
PUT_OF = {Leg.DISPATCH: PUT, Leg.COMBINE: PUT_BACK}
SIGNALS = ("tile", "expert", "peer")


def ratr(rank: int, ep_size: int) -> list[int]:
    """Returns rank-aware destinations: each rank starts at its right neighbour, so that no two send to one rank at once."""
    return [*range(rank + 1, ep_size), *range(rank + 1)]


def sequential(rank: int, ep_size: int) -> list[int]:
    """Returns destinations in the order of ranks: rank 0 first, then rank 1, and so on."""
    return list(range(ep_size))


ORDERS: dict[str, Order] = {"ratr": ratr, "sequential": sequential}


def _check(order: str | Order = "ratr", combine_order: str | Order | None = None, signal: str = "tile",
           put_cols: int | Literal["auto"] | None = None, returns: int | None = None) -> None:
    for name, value in (("order", order), ("combine_order", "ratr" if combine_order is None else combine_order)):
        check_argument(callable(value) or is_name(value, ORDERS), "overlap_comm", name, repr(value),
                       "\"ratr\", \"sequential\" or a function (rank, ep_size) -> destinations")
    check_argument(is_name(signal, SIGNALS), "overlap_comm", "signal", repr(signal), f"one of {', '.join(SIGNALS)}")
    check_argument(put_cols is None or is_name(put_cols, ("auto",)) or is_int(put_cols), "overlap_comm", "put_cols",
                   repr(put_cols),
                   "an int in 1..2**30, \"auto\" or None")
    check_argument(returns is None or is_int(returns), "overlap_comm", "returns", repr(returns),
                   "an int in 1..2**30 or None")


@transform(requires="tiles", once=True, check=_check)
def overlap_comm(flow: Taskflow, *, order: str | Order = "ratr", combine_order: str | Order | None = None,
                 signal: str = "tile", put_cols: int | Literal["auto"] | None = None,
                 returns: int | None = None) -> Taskflow:
    """Turns collectives into one-sided put + signal tile tasks on the vector side, so that they overlap the rest.

    Rewrite:
        all_to_all[] x -> a              signal !a.all@every += rows
        ->
        put[slot 0 -> peer 0] x -> a     signal !a.0@peer += rows
        put[slot 0 -> peer 1] ...        one task for each slot and destination

    With very many slots and ranks, a task is for several ranks: on 64 ranks, put[slot 0 -> peers 1::8] is for the ranks at
    places 1, 9, 17 and so on of the order. Few of them have rows in one slot.

    Requires: tile_partition, and no assign_queues yet.
    Ensures: no collective is left; a consumer of a slot waits for that slot's rows alone (signal="tile").

    Args:
        f: the staged function.
        order: "ratr", "sequential", or a function (rank, ep_size) -> the ranks in the order in which to send.
        combine_order: the order for rows that go back from experts to their tokens: rows of combine, and in the backward
            pass the gradients of dispatched rows. None for `order`.
        signal: rows that one remote signal counts: a "tile"; all rows for one "expert" of a peer; all rows for a "peer".
            Rows that relays pass on, or get back, signal by the tile.
        put_cols: columns that one put moves; whole rows if None. Several workers share a transfer that is cut, so that rows
            arrive sooner, for more tasks. "auto" cuts puts that take a worker of tile_partition's machine long, fewer the
            more puts there are, and makes puts for several ranks if few have rows of one slot.
        returns: number of events that count rows that come back, each for equally many tiles of tokens; None for one for
            each tile. A put back signals each event that it has rows of, so that fewer events take less time.

    Raises:
        ArgumentError: an option is none of these.
        TransformError: applied out of order or twice, or the user's order is not a permutation of the ranks.

    Example:
        >>> import hpmoe
        >>> hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn), signal="peer").level
        'tiles'
    """
    out = _peer_order("order", order, flow.ep_size)
    back = out if combine_order is None else _peer_order("combine_order", combine_order, flow.ep_size)
    ops: list[TileOp] = []
    flow = flow.replace(routes=tuple(_with_returns(flow, plan, returns) for plan in flow.routes))
    for op in flow.ops:
        if op.primitive.moves_copies:
            ops.append(_copies(flow, op))
        else:
            ops += _puts(flow, op, signal, put_cols) if op.primitive.is_blocking else [op]
    return rebuild(flow, tuple(ops), peer_orders=np.stack([out, back]))


def _peer_order(option: str, order: str | Order, ep_size: int) -> np.ndarray:
    order = ORDERS[order] if isinstance(order, str) else order
    rows, ranks = np.empty((ep_size, ep_size), "i4"), list(range(ep_size))
    for rank in ranks:
        row = call_user("overlap_comm", f"{option}(rank, ep_size)", "the ranks to send to, each once", order, rank, ep_size)
        row = list(row) if isinstance(row, (Sequence, np.ndarray)) else row
        if not isinstance(row, list) or sorted(row) != ranks:
            raise TransformError(f"overlap_comm: {option}({rank}, {ep_size}) is {row}; it must name each of the ranks "
                                 f"0..{ep_size - 1} once")
        rows[rank] = row
    return rows


def _with_returns(flow: Taskflow, plan: RoutePlan, returns: int | None) -> RoutePlan:
    """Returns the route with `returns` events for combined rows, or one per tile of tokens."""
    tiles = -(-plan.num_tokens // flow.tile_rows)
    return dataclasses.replace(plan, return_tokens=max(1, -(-tiles // (returns or tiles or 1))) * flow.tile_rows)


def _copies(flow: Taskflow, op: TileOp) -> TileOp:
    """Returns an operation with a task for each block of rows of each matrix that goes to a replica, or comes back."""
    plan, height = flow.routes[op.domain.route], op.params.height
    source = flow.buffers[op.operands[1].buffer].storage
    made = [w.params.block for w in flow.ops
            if w.primitive.makes_blocks and flow.buffers[w.operands[0].buffer].storage == source]
    rows = min([*made, height]) if made else min(flow.tile_rows, height)
    blocks = -(-height // rows)
    count = plan.num_replicas if op.primitive.is_back else known(plan.placement).most_copies
    return op.replace(domain=Copies(count * blocks, op.domain.route, blocks=blocks, count=count),
                      params=MatrixBlock(rows, height))


def _puts(flow: Taskflow, op: TileOp, signal: str, cols: int | str | None) -> list[TileOp]:
    """Returns the put tasks of a collective and, for signals coarser than a tile, the tasks that send them."""
    plan, leg = flow.routes[op.domain.route], op.primitive.leg
    width = flow.buffers[op.operands[0].buffer].cols
    num_peers = whole_row_groups(plan)
    if cols == "auto":
        num_peers, cols = expected_puts(flow, op, flow.machine) if flow.machine else (num_peers, None)
    if plan.kind.is_to_relays:  # of a slot one relay in the mean has rows of a rank
        num_peers = 1
    if op.is_relayed:  # of ranks a node apart in the order one is of the node, and the others get nothing
        receivers = plan.kind.sends(flow.routes[plan.over].kind).sum(axis=1)
        num_peers, signal = min(num_peers, int(receivers.max())), "tile"
    if cols is not None and int(cols) < width:
        cols = int(cols)
        operands = tuple(dataclasses.replace(a, cols=col_modes.OWN) for a in op.operands)
        op = op.replace(cols=width, tile_cols=cols, operands=operands)
    put = op.replace(primitive=PUT_OF[leg], domain=Slots(plan.num_slots, op.domain.route), num_peers=flow.ep_size,
                     signal=signal, params=NO_PARAMS)
    if signal == "tile":
        return [put.replace(num_peers=num_peers)]
    units = plan.num_local_experts if signal == "expert" else 1
    flags = CompletionFlags(units, op.domain.route, by_expert=signal == "expert")
    notify = TileOp(NOTIFY, op.label, op.equation, NOTIFY.unit, flags, (), 0,
                    params=CompletionFlag(leg, put.operands[0].buffer), num_peers=flow.ep_size, signal=signal)
    return [put, notify]
