"""Tile operations on tokens and their choices: sums of what experts sent back, copies to experts, and gathers."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.routing import PADDING, Route, add_choices
from hpmoe.support.dtypes import widen
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Once, Slots, Tiles
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import Params, Relayed
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, implies
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work

WHOLE = (col_modes.ALL,)
WHOLE_ROWS = Operand(cols=WHOLE)

REDUCE = TilePrimitive(
    "REDUCE", 3, verb="reduce", needs_route=True, result=Result.ROUNDED, domains=(Tiles,),
    outputs=(Operand(),), inputs=(Operand((row_modes.ENTRIES,)),), optional=(WHOLE_ROWS,))
GATHER = TilePrimitive(
    "GATHER", 15, domains=(Once, Tiles), numpy=lambda x, index: x[index[:, 0]],
    outputs=(Operand(cols=WHOLE, may_be_integer=True),),
    inputs=(Operand((row_modes.ALL,), WHOLE, may_be_integer=True),
            Operand(cols=(col_modes.ALL, col_modes.ONE), is_integer=True)))
KEEP = TilePrimitive(
    "KEEP", 16, needs_route=True, result=Result.MOVED, domains=(Tiles,), outputs=(WHOLE_ROWS,),
    inputs=(Operand((row_modes.ENTRIES,), WHOLE),))
DROP_COUNTS = TilePrimitive(
    "DROP_COUNTS", 17, needs_route=True, domains=(Once,),
    outputs=(Operand(cols=WHOLE, is_integer=True),))
FAN_OUT = TilePrimitive(
    "FAN_OUT", 21, needs_route=True, result=Result.MOVED, domains=(Slots,), work=Work("MAP copy"),
    outputs=(Operand((row_modes.FAN,), may_be_bytes=True),), inputs=(Operand(may_be_bytes=True),))
FAN_IN = TilePrimitive(
    "FAN_IN", 22, needs_route=True, result=Result.ROUNDED, domains=(Slots,), work=Work("REDUCE"),
    outputs=(Operand(),), inputs=(Operand((row_modes.FAN,)),), optional=(Operand((row_modes.FAN,), WHOLE),))
RELAY_SUM = TilePrimitive(
    "RELAY_SUM", 38, needs_route=True, result=Result.ROUNDED, domains=(Slots,), work=Work("REDUCE"),
    params=Relayed, outputs=(Operand(),), inputs=(Operand((row_modes.RELAY_ENTRIES,)),), optional=(WHOLE_ROWS,))


@REDUCE.reference
def _(frame: Frame[Params]) -> int:
    return sum_choices(frame, widen(frame.array(1)[entries_of(frame), frame.own(1)]), frame.kept())


@RELAY_SUM.reference
def _(frame: Frame[Relayed]) -> int:
    relayed = frame.relayed(frame.params.route)
    kept = relayed.kept[frame.rank].reshape(-1, relayed.top_k)[frame.rows]
    return sum_choices(frame, widen(frame.whole(1)[entries_of(frame, relayed.top_k)]), kept)


def entries_of(frame: Frame[Params], top_k: int = 0) -> slice:
    """Returns the entries of a task's rows, each row with as many as a token of the route, or `top_k`."""
    top_k = top_k or frame.routing.top_k
    return slice(frame.rows.start * top_k, frame.rows.stop * top_k)


def sum_choices(frame: Frame[Params], entries: np.ndarray, kept: np.ndarray, weights: int = 2) -> int:
    """Sums the kept entries of each of the task's rows, in float32 and weighted where there is an operand `weights`."""
    parts, rows = entries.reshape(-1, kept.shape[1], entries.shape[1]), frame.rows
    total = np.zeros_like(parts[:, 0])
    for k in range(kept.shape[1]):
        weight = widen(frame.whole(weights)[rows, k:k + 1]) if len(frame.op.operands) > weights else 1.0
        total += np.where(kept[:, k:k + 1], parts[:, k] * weight, 0)
    frame.whole(0)[rows] = total
    return rows.stop - rows.start


@KEEP.reference
def _(frame: Frame[Params]) -> int:
    kept, out = frame.kept(), frame.array(0)[frame.rows]
    entries = frame.array(1)[entries_of(frame)].reshape(out.shape)
    out[...] = np.where(kept, widen(entries), 0)  # a mask of two dimensions fails on MindSpore's bfloat16 arrays
    return len(out)


@DROP_COUNTS.reference
def _(frame: Frame[Params]) -> int:
    frame.array(0)[0] = frame.routing.dropped[frame.rank]
    return 1


@FAN_OUT.reference
def _(frame: Frame[Params]) -> int:
    to, sources = fanned(frame)
    frame.whole(0)[to] = frame.whole(1)[sources]
    frame.whole(0)[fanned_padding(frame)] = 0
    return frame.rows.stop - frame.rows.start


@FAN_IN.reference
def _(frame: Frame[Params]) -> int:
    index, _ = fanned(frame)
    out, received = frame.whole(0), frame.whole(1)
    weighted = len(frame.op.operands) > 2
    parts = widen(received[index]) * widen(frame.whole(2)[index]) if weighted else widen(received[index])
    total = np.zeros(out.shape, parts.dtype)
    add_choices(total, Route(frame.routing, frame.rank), index, parts)
    out[frame.rows] = total[frame.rows]
    return frame.rows.stop - frame.rows.start


def fanned(frame: Frame[Params]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of the rank's experts for the tokens of a task's unit, and these tokens' rows."""
    unit, sources = frame.rows, frame.routing.sources[frame.rank]
    mine = np.flatnonzero((unit.start <= sources) & (sources < unit.stop))
    return mine, sources[mine]


def fanned_padding(frame: Frame[Params]) -> np.ndarray:
    """Returns the rows of padding of the rank's experts, which the first unit makes; it has tokens if any are received."""
    return np.flatnonzero(frame.routing.sources[frame.rank] == PADDING)[:None if frame.unit == 0 else 0]


@REDUCE.fits
def choices_rules(op: Shapes, weights: int = 2) -> Rules:
    """Yields the rules of rows that are tokens; operand `weights`, if present, has a weight for each choice of a token."""
    yield (implies(op.has(weights), op.width(weights) == op.top_k()),
           "has {} weights for each of a token's {} choices", op.width(weights), op.top_k())
    yield ((op.num_rows() == op.num_tokens()) & op.is_clipped(),
           "has {} rows, and its route {} tokens", op.num_rows(), op.num_tokens())


@KEEP.fits
def _(op: Shapes) -> Rules:
    yield ((op.width(0) == op.top_k()) & (op.offset(0) == 0) & (op.cols(1) == 1),
           "keeps {} columns of entries in {}, of {} choices", op.cols(1), op.width(0), op.top_k())
    yield from choices_rules(op)


@DROP_COUNTS.fits
def _(op: Shapes) -> Rules:
    yield op.width(0) == op.num_model_experts(), "counts {} experts of {}", op.width(0), op.num_model_experts()


@FAN_OUT.fits
@FAN_IN.fits
def _(op: Shapes) -> Rules:
    yield op.is_of_tokens(), "fans rows out or in, and its route is not one to ranks"
    yield implies(op.has(2), op.width(2) == 1), "has {} weights for a row", op.width(2)


@RELAY_SUM.fits
def _(op: Shapes) -> Rules:
    route = op.params.route
    yield op.is_of_tokens(), "sums what came back to relays, and its route is not one to relays"
    yield op.has_relays(route), "is about relays, of which route {} has none", route
    yield (op.relays_are_own(route),
           "is of route {}, and sums what came back to the relays of another than route {}", op.own_route(), route)
    yield (implies(op.has(2), op.width(2) == op.top_k_of(route)),
           "has {} weights for each of a token's {} choices", op.width(2), op.top_k_of(route))


def same_kind(op: Shapes, i: int, j: int) -> tuple[Number, str]:
    """Returns the rule that operands i and j both hold integers, or both floats."""
    return op.is_integer(i) == op.is_integer(j), "makes integers of floats, or floats of integers"


@GATHER.fits
def _(op: Shapes) -> Rules:
    yield op.width(0) == op.width(1), "gathers rows of {} columns in {}", op.width(1), op.width(0)
    yield same_kind(op, 0, 1)
    yield op.cols_are(2, col_modes.ONE) | (op.width(2) == 1), "gathers by rows of several columns"
