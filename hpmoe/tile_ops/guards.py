"""COUNT_OUTSIDE: how many values of a row are out of a range. FILL_OUTSIDE: others stand in the place of those found.

COUNT_AND_FILL finds and fills at once, so that a row comes from memory once; REDUCE_AND_FILL does it to the sum of a token's
entries while that is in a cache. What is found in a row is int32 words: how many values, then a bit for each, the first one
lowest.
"""

from __future__ import annotations

import numpy as np

from hpmoe.support.dtypes import widen
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Tiles
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import Fill, Filled
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, ceil_div
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import WHOLE_ROWS, choices_rules, entries_of, sum_choices

WORD = 32  # bits
ROW = Operand(cols=(col_modes.ALL,))
FOUND = Operand(cols=(col_modes.ALL,), is_integer=True)
LIMIT = Operand(cols=(col_modes.ALL,), may_be_number=True)


def is_inside(tested: np.ndarray, low: float, high: float) -> np.ndarray:
    """Returns a mask of the values in [low, high]; NaN is in no range."""
    return (tested >= low) & (tested <= high)


def width_found(cols: Number) -> Number:
    """Returns the int32 words of the findings in a row of `cols` columns."""
    return 1 + ceil_div(cols, WORD)


def as_found(is_outside: np.ndarray) -> np.ndarray:
    """Returns the findings in rows [..., N] of bools: int32 [..., 1 + ceil(N / 32)]."""
    padding = -is_outside.shape[-1] % WORD
    bits = np.packbits(np.pad(is_outside, [(0, 0)] * (is_outside.ndim - 1) + [(0, padding)]), axis=-1, bitorder="little")
    return np.concatenate([np.sum(is_outside, axis=-1, keepdims=True, dtype=np.int32), bits.view("<i4")], axis=-1)


def where_found(found: np.ndarray, cols: int) -> np.ndarray:
    """Returns a mask [..., N] of the values that a guard found."""
    in_bytes = np.ascontiguousarray(found[..., 1:].astype("<i4")).view(np.uint8)
    return np.unpackbits(in_bytes, axis=-1, count=cols, bitorder="little").astype(bool)


def filled(values: np.ndarray, is_outside: np.ndarray, fill: Fill) -> np.ndarray:
    """Returns rows [..., N] in which values are replaced where the bool mask `is_outside`, of the same shape, is True.

    ZERO replaces them by 0; MEAN by the mean of the other values in the row, 0 if there are none. SPREAD, the transpose of
    MEAN, replaces them by 0 and adds their sum, divided by the number of the others, to each of the others.
    """
    fine = ~is_outside
    others = np.maximum(np.sum(fine, axis=-1, keepdims=True), 1).astype(values.dtype)
    if fill is Fill.SPREAD:
        share = np.sum(np.where(fine, 0, values), axis=-1, keepdims=True, dtype=values.dtype) / others
        return np.where(fine, values + share, values.dtype.type(0))
    mean = np.sum(np.where(fine, values, 0), axis=-1, keepdims=True, dtype=values.dtype) / others
    return np.where(fine, values, mean if fill is Fill.MEAN else values.dtype.type(0))


def _count_and_fill(params: Filled, tested: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    is_outside = ~is_inside(tested, low, high)
    return filled(tested, is_outside, params.fill), as_found(is_outside)


FILL_OUTSIDE = TilePrimitive(
    "FILL_OUTSIDE", 31, params=Filled, result=Result.ROUNDED, work=Work("MAP copy"), outputs=(ROW,),
    inputs=(ROW, FOUND), numpy=lambda p, values, found: filled(values, where_found(found, values.shape[1]), p.fill))
COUNT_OUTSIDE = TilePrimitive(
    "COUNT_OUTSIDE", 32, work=Work("ROW_REDUCE sum", npu_passes=12), outputs=(ROW,),
    inputs=(ROW, LIMIT, LIMIT),
    numpy=lambda tested, low, high: np.sum(~is_inside(tested, low, high), axis=-1, keepdims=True))
COUNT_AND_FILL = TilePrimitive(
    "COUNT_AND_FILL", 36, params=Filled, work=Work("MAP copy", npu_passes=13, npu_operand=2),
    outputs=(ROW, FOUND), inputs=(ROW, LIMIT, LIMIT), numpy=_count_and_fill)
REDUCE_AND_FILL = TilePrimitive(
    "REDUCE_AND_FILL", 37, params=Filled, work=Work("REDUCE", npu_passes=13, npu_operand=0),
    needs_route=True, domains=(Tiles,), outputs=(ROW, FOUND),
    inputs=(Operand((row_modes.ENTRIES,), (col_modes.ALL,)), LIMIT, LIMIT), optional=(WHOLE_ROWS,))

@REDUCE_AND_FILL.reference
def _(frame: Frame[Filled]) -> int:
    out, found, _, low, high, *_ = frame.operands()
    entries = widen(frame.array(2)[entries_of(frame), frame.columns(2)])
    made = sum_choices(frame, entries, frame.kept(), weights=5)
    out[...], found[...] = _count_and_fill(frame.params, widen(out), low, high)
    return made


@COUNT_OUTSIDE.fits
def _(op: Shapes) -> Rules:
    yield op.width(0) == 1, "counts into {} columns", op.width(0)


@FILL_OUTSIDE.fits
def _(op: Shapes) -> Rules:
    yield ((op.width(0) == op.width(1)) & (op.width(2) == width_found(op.width(0))),
           "fills {} columns by {} words into {}", op.width(1), op.width(2), op.width(0))


@COUNT_AND_FILL.fits
def _guard_rules(op: Shapes) -> Rules:
    yield ((op.width(0) == op.width(2)) & (op.width(1) == width_found(op.width(0))),
           "fills {} columns into {}, and {} words", op.width(2), op.width(0), op.width(1))


@REDUCE_AND_FILL.fits
def _(op: Shapes) -> Rules:
    yield from _guard_rules(op)
    yield from choices_rules(op, weights=5)
