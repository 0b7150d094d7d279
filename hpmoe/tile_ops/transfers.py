"""Tile operations that move rows or matrices between ranks, or tell of it; and launches."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.routing import PADDING
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import CompletionFlags, Copies, Once, Slots
from hpmoe.tile_ops.frame import Frame, Move
from hpmoe.tile_ops.params import CompletionFlag, Launched, Leg, MatrixBlock, Params
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, implies
from hpmoe.tile_ops.tile_primitive import Operand, Payload, TilePrimitive, Transfer, Work

PARTS, WHOLE = (col_modes.OWN, col_modes.ALL), (col_modes.ALL,)
TOKEN_SIDE = (row_modes.ENTRIES, row_modes.TOKENS, row_modes.RELAY_ROWS)
RETURN_SIDE = (row_modes.ENTRIES, row_modes.RELAY_ENTRIES)

PUT = Transfer(
    "PUT", 1, Payload.ROWS, verb="put", domains=(Slots,),
    outputs=(Operand((row_modes.PEER,), PARTS),), inputs=(Operand(TOKEN_SIDE, PARTS),))
PUT_BACK = Transfer(
    "PUT_BACK", 2, Payload.ROWS, Leg.COMBINE, verb="put", domains=(Slots,),
    outputs=(Operand(RETURN_SIDE, PARTS),), inputs=(Operand(cols=PARTS),))
ALL_TO_ALL = Transfer(
    "ALL_TO_ALL", 12, Payload.ROWS, is_blocking=True, verb="all_to_all", domains=(Once,), work=Work("PUT"),
    outputs=(Operand((row_modes.PEER,), WHOLE),), inputs=(Operand(TOKEN_SIDE, WHOLE),))
ALL_TO_ALL_BACK = Transfer(
    "ALL_TO_ALL_BACK", 13, Payload.ROWS, Leg.COMBINE, is_blocking=True, verb="all_to_all", domains=(Once,),
    work=Work("PUT_BACK"), outputs=(Operand(RETURN_SIDE, WHOLE),), inputs=(Operand(cols=WHOLE),))
NOTIFY = Transfer("NOTIFY", 14, Payload.NOTICE, verb="notify", domains=(CompletionFlags,), params=CompletionFlag)
REPLICATE = Transfer(
    "REPLICATE", 19, Payload.MATRICES, domains=(Once, Copies), params=MatrixBlock, work=Work("PUT"),
    outputs=(Operand((row_modes.REPLICA,), WHOLE),), inputs=(Operand((row_modes.ALL,), WHOLE),))
RETURN_GRADS = Transfer(
    "RETURN_GRADS", 20, Payload.MATRICES, Leg.COMBINE, domains=(Once, Copies), params=MatrixBlock,
    work=Work("PUT"), outputs=(Operand((row_modes.RETURNED,), WHOLE),), inputs=(Operand((row_modes.REPLICA,), WHOLE),))
LAUNCH = TilePrimitive("LAUNCH", 18, verb="launch", domains=(Once,), params=Launched)
PUT.reference(lambda frame: {peer: _send(frame, peer, frame.rows_sent(frame.rank, peer)) for peer in frame.peers})
PUT_BACK.reference(lambda frame: {peer: _return(frame, peer, frame.rows_sent(peer, frame.rank)) for peer in frame.peers})
LAUNCH.reference(lambda frame: 1)


@ALL_TO_ALL.reference
def _(frame: Frame[Params]) -> dict[int, np.ndarray]:
    sources = frame.sent.source_of_row
    return {peer: _send(frame, peer, np.flatnonzero(sources[peer] == frame.rank)) for peer in frame.ranks}


def _send(frame: Frame[Params], peer: int, received: np.ndarray) -> np.ndarray:
    """Copies rows of tokens to their places at a peer, and zeros to those of padding; returns the rows' entries."""
    entries = frame.sent.entry_of_row[peer][received]
    index = entries if frame.op.operands[1].rows is row_modes.ENTRIES else entries // frame.routing.top_k
    is_row = entries != PADDING
    frame.whole(0, peer)[received[is_row]] = frame.whole(1)[index[is_row]]
    frame.whole(0, peer)[received[~is_row]] = 0
    return entries


@ALL_TO_ALL_BACK.reference
def _(frame: Frame[Params]) -> dict[int, np.ndarray]:
    sources = frame.sent.source_of_row[frame.rank]
    return {peer: _return(frame, peer, np.flatnonzero(sources == peer)) for peer in frame.ranks}


def _return(frame: Frame[Params], peer: int, received: np.ndarray) -> np.ndarray:
    """Copies received rows back to their entries; returns these entries."""
    entries = frame.sent.entry_of_row[frame.rank][received]
    is_row = entries != PADDING
    frame.whole(0, peer)[entries[is_row]] = frame.whole(1)[received[is_row]]
    return entries


@NOTIFY.reference
def _(frame: Frame[CompletionFlag]) -> dict[int, int]:
    routing, (peer,), expert = frame.routing, frame.peers, frame.unit
    source, owner = (frame.rank, peer) if frame.params.leg is Leg.DISPATCH else (peer, frame.rank)
    local = routing.num_local_experts
    counts = routing.counts[source, owner * local:(owner + 1) * local]
    return {peer: int(counts.sum() if expert < 0 else counts[expert])}


@REPLICATE.reference
@RETURN_GRADS.reference
def _(frame: Frame[MatrixBlock]) -> list[Move]:
    moves = frame.moves()
    for peer, _, first, target, count in moves:
        frame.array(0, peer)[target:target + count] = frame.array(1)[first:first + count]
    return moves


def _moved_rules(op: Shapes, received: int) -> Rules:
    """Yields the rules of a transfer whose operand `received` holds the rows that experts receive."""
    is_relayed = op.rows_are(1, row_modes.RELAY_ROWS) | op.rows_are(0, row_modes.RELAY_ENTRIES)
    yield ((op.cols(0) == op.cols(1)) & op.same_cols(0, 1) & (op.offset(0) == op.offset(1)),
           "moves rows of {} to unlike rows of {}", op.name(1), op.name(0))
    yield implies(is_relayed, op.has_relays(op.own_route())), "is about relays, of which route {} has none", op.own_route()
    yield implies(is_relayed, op.alignment() == 1), "has relays pass on rows of its route, which is filled up"
    yield (op.has_capacity(received, op.max_rows()),
           "receives {} rows in {}, which has {}", op.max_rows(), op.name(received), op.rows(received))


PUT.fits(lambda op: _moved_rules(op, 0))
ALL_TO_ALL.fits(lambda op: _moved_rules(op, 0))
PUT_BACK.fits(lambda op: _moved_rules(op, 1))
ALL_TO_ALL_BACK.fits(lambda op: _moved_rules(op, 1))


def _copied_rules(op: Shapes, copies: int, own: int, most_own: Number) -> Rules:
    """Yields the rules of operand `copies`, the replicas on a rank, and `own`, the rank's matrices or their gradients."""
    block, height = op.params.block, op.params.height
    num_copies = op.num_local_experts() - op.num_own_experts()
    yield op.has_copies(), "moves copies of a route that has none"
    yield (op.cols(0) == op.cols(1),
           "moves matrices of {} to unlike ones of {}", op.name(1), op.name(0))
    for i in (0, 1):
        yield op.height(i) == height, "moves matrices of {} rows, and those of {} have {}", height, op.name(i), op.height(i)
    yield ((block >= 1) & (height >= 1) & ((op.blocks() - 1) * block < height),
           "moves {} blocks of {} rows of {}", op.blocks(), block, height)
    yield (op.has_capacity(copies, num_copies * height),
           "moves {} copies, of which {} has too few rows", num_copies, op.name(copies))
    yield op.has_capacity(own, most_own * height), "moves {} matrices, of which {} has too few rows", most_own, op.name(own)


REPLICATE.fits(lambda op: _copied_rules(op, 0, 1, op.num_own_experts()))
RETURN_GRADS.fits(lambda op: _copied_rules(op, 1, 0, op.most_copies()))
