"""Tile operations on tokens and their choices: sums of what experts sent back, copies to experts, and gathers."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.routing.routing import PADDING, Route, add_choices
from hpmoe.support.dtypes import INTEGERS, widen
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Once, Slots, Tiles
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import Params, Relayed
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
    """The entries of a task's rows, of which each has as many as a token of the route, or `top_k`."""
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
    """The rows of the rank's experts that are of the tokens of a task's unit, and these tokens' rows."""
    unit, sources = frame.rows, frame.routing.sources[frame.rank]
    mine = np.flatnonzero((unit.start <= sources) & (sources < unit.stop))
    return mine, sources[mine]


def fanned_padding(frame: Frame[Params]) -> np.ndarray:
    """The rows of zeros of the rank's experts, which the first unit makes: it is of tokens wherever any are received."""
    return np.flatnonzero(frame.routing.sources[frame.rank] == PADDING)[:None if frame.unit == 0 else 0]


@REDUCE.fits
def choices_fault(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None, weights: int = 2) -> str:
    """Its rows are tokens, with a weight for each choice where there is an operand `weights`."""
    plan = known(plan)
    if len(op.operands) > weights and op.width(weights, buffers) != plan.top_k:
        return f"has {op.width(weights, buffers)} weights for each of a token's {plan.top_k} choices"
    return _tokens_fault(op, plan)


@KEEP.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    plan, (out, entries) = known(plan), (buffers[a.buffer] for a in op.operands)
    if (op.width(0, buffers), out.cols, entries.cols) != (plan.top_k, plan.top_k, 1):
        return f"keeps {entries.cols} columns of entries in {op.width(0, buffers)}, of {plan.top_k} choices"
    return _tokens_fault(op, plan)


def _tokens_fault(op: Operation[Params], plan: RoutePlan) -> str:
    """Its rows are tokens, as only these have choices."""
    if op.domain.num_rows != plan.num_tokens or not op.domain.clipped:
        kept = "" if op.domain.clipped else ", padding included"
        return f"has {op.domain.num_rows} rows{kept}, and its route {plan.num_tokens} tokens"
    return ""


@DROP_COUNTS.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    counted, experts = op.width(0, buffers), known(plan).num_model_experts
    return f"counts {counted} experts of {experts}" if counted != experts else ""


@FAN_IN.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    return "" if len(op.operands) < 3 or op.width(2, buffers) == 1 else f"has {op.width(2, buffers)} weights for a row"


@RELAY_SUM.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    return "" if known(plan).kind.is_of_tokens else "sums what came back to relays, and its route is not one to relays"


def is_integer(op: Operation[Params], i: int, buffers: Buffers) -> bool:
    """Whether an operand of an operation is of integers."""
    return buffers[op.operands[i].buffer].dtype in INTEGERS


def same_dtype_fault(op: Operation[Params], i: int, j: int, buffers: Buffers) -> str:
    """Whether one of two operands is of integers and the other of floats."""
    is_same = is_integer(op, i, buffers) == is_integer(op, j, buffers)
    return "" if is_same else "makes integers of floats, or floats of integers"


@GATHER.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, source = op.width(0, buffers), op.width(1, buffers)
    if out != source:
        return f"gathers rows of {source} columns in {out}"
    if is_integer(op, 0, buffers) != is_integer(op, 1, buffers):
        return "gathers integers as floats, or floats as integers"
    is_one = op.operands[2].cols is col_modes.ONE or op.width(2, buffers) == 1
    return "" if is_one else "gathers by rows of several columns"
