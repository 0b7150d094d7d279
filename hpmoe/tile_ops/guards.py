"""COUNT_OUTSIDE: how many values of a row are out of a range. FILL_OUTSIDE: others stand in their place.

COUNT_AND_FILL does both at once, so that a row comes from memory once; REDUCE_AND_FILL does it to the sum of a token's
entries while that is in a cache.
"""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import widen
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Tiles
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import Fill, Filled, Params
from hpmoe.tile_ops.tile_primitive import Operand, TilePrimitive
from hpmoe.tile_ops.tokens import WHOLE_ROWS, choices_fault, sum_choices

ROW = Operand(cols=(col_modes.ALL,))
LIMIT = Operand(cols=(col_modes.ALL,), may_be_number=True)
FILL_OUTSIDE = TilePrimitive("FILL_OUTSIDE", 31, targets=("cpu",), params=Filled, measured_as="MAP copy", rounds=True,
                             outputs=(ROW,), inputs=(ROW, ROW, ROW, LIMIT, LIMIT))
COUNT_OUTSIDE = TilePrimitive("COUNT_OUTSIDE", 32, targets=("cpu",), measured_as="ROW_REDUCE sum", outputs=(ROW,),
                              inputs=(ROW, LIMIT, LIMIT))
COUNT_AND_FILL = TilePrimitive("COUNT_AND_FILL", 36, targets=("cpu",), params=Filled, measured_as="MAP copy",
                               outputs=(ROW, ROW), inputs=(ROW, LIMIT, LIMIT))
REDUCE_AND_FILL = TilePrimitive(
    "REDUCE_AND_FILL", 37, targets=("cpu",), params=Filled, measured_as="REDUCE", needs_route=True, sums_choices=True,
    domains=(Tiles,), required=5, outputs=(ROW, ROW),
    inputs=(Operand((row_modes.ENTRIES,), (col_modes.ALL,)), LIMIT, LIMIT, WHOLE_ROWS))


def is_inside(tested: np.ndarray, low: float, high: float) -> np.ndarray:
    """Where values are in [low, high]; NaN is in no range."""
    return (tested >= low) & (tested <= high)


def filled(values: np.ndarray, tested: np.ndarray, low: float, high: float, fill: Fill) -> np.ndarray:
    """Rows [..., N] with another value where `tested` is NaN or outside [low, high].

    MEAN is that of the others in the row, 0 where there are none. SPREAD is its transpose: what stands where values are
    replaced is dealt out to the others.
    """
    fine = is_inside(tested, low, high)
    others = np.maximum(np.sum(fine, axis=-1, keepdims=True), 1).astype(values.dtype)
    if fill is Fill.SPREAD:
        share = np.sum(np.where(fine, 0, values), axis=-1, keepdims=True, dtype=values.dtype) / others
        return np.where(fine, values + share, values.dtype.type(0))
    mean = np.sum(np.where(fine, values, 0), axis=-1, keepdims=True, dtype=values.dtype) / others
    return np.where(fine, values, mean if fill is Fill.MEAN else values.dtype.type(0))


@COUNT_OUTSIDE.reference
def _(frame: Frame[Params]) -> int:
    counts, tested, low, high = frame.operands()
    counts[...] = np.sum(~is_inside(tested, low, high), axis=-1, keepdims=True)
    return len(counts)


@FILL_OUTSIDE.reference
def _(frame: Frame[Filled]) -> int:
    out, values, tested, _, low, high = frame.operands()
    out[...] = filled(values, tested, low, high, frame.params.fill)
    return len(out)


@COUNT_AND_FILL.reference
def _(frame: Frame[Filled]) -> int:
    out, counts, tested, low, high = frame.operands()
    _count_and_fill(out, counts, tested, low, high, frame.params.fill)
    return len(out)


@REDUCE_AND_FILL.reference
def _(frame: Frame[Filled]) -> int:
    out, counts, _, low, high, *_ = frame.operands()
    tile, top_k = frame.rows, frame.routing.top_k
    made = sum_choices(frame, widen(frame.array(2)[tile.start * top_k:tile.stop * top_k, frame.columns(2)]), weights=5)
    _count_and_fill(out, counts, widen(out), low, high, frame.params.fill)
    return made


def _count_and_fill(out: np.ndarray, counts: np.ndarray, tested: np.ndarray, low: float, high: float, fill: Fill) -> None:
    counts[...] = np.sum(~is_inside(tested, low, high), axis=-1, keepdims=True)
    out[...] = filled(tested, tested, low, high, fill)


@COUNT_OUTSIDE.fits
def _(op: Operation, buffers: Buffers, plan: RoutePlan | None) -> str:
    return "" if op.width(0, buffers) == 1 else f"counts into {op.width(0, buffers)} columns"


@FILL_OUTSIDE.fits
def _(op: Operation[Filled], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, values, tested, counts = (op.width(i, buffers) for i in range(4))
    fits = out == values == tested and counts == 1
    return "" if fits else f"fills {values} columns by {tested} and {counts} counts into {out}"


@COUNT_AND_FILL.fits
def _(op: Operation[Filled], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, counts, tested = (op.width(i, buffers) for i in range(3))
    fits = out == tested and counts == 1
    return "" if fits else f"fills {tested} columns into {out}, and {counts} counts"


@REDUCE_AND_FILL.fits
def _(op: Operation[Filled], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, counts, entries = (op.width(i, buffers) for i in range(3))
    if out != entries or counts != 1:
        return f"sums {entries} columns into {out}, and {counts} counts"
    return choices_fault(op, buffers, known(plan), weights=5)
