"""Tile operations that choose, pick, place and add up the elements of each row by itself: what routers are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import Choice, Params, Running
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import same_kind

WHOLE = (col_modes.ALL,)
ANY = Operand(cols=WHOLE, may_be_integer=True)
IDS = Operand(cols=WHOLE, is_integer=True)

# On an NPU: Sort32 and two of MrgSort at a pair a cycle, 14 instructions of whole vectors; integers by 16 bits at a time.
TOP_K = TilePrimitive(
    "TOP_K", 23, params=Choice, outputs=(ANY, IDS), inputs=(ANY,),
    work=Work("ROW_REDUCE max", passes=16, npu_passes=206, integer_passes=420, npu_operand=2))
# Gather of an element a cycle, and 14 instructions of whole vectors, most of which make offsets.
TAKE_COLS = TilePrimitive(
    "TAKE_COLS", 24, outputs=(ANY,),
    inputs=(ANY, Operand((row_modes.OWN, row_modes.ONE), WHOLE, may_be_integer=True)),
    work=Work("MAP copy", npu_passes=78, integer_passes=78, npu_operand=0),
    numpy=lambda x, index: np.take_along_axis(x, np.broadcast_to(index, (len(x), index.shape[1])), axis=1))
ADD_COLS = TilePrimitive(
    "ADD_COLS", 25, result=Result.ROUNDED, outputs=(ANY,),
    inputs=(Operand(cols=WHOLE, may_be_number=True, may_be_integer=True), ANY),
    work=Work("MAP copy", npu_passes=SCALAR_PASSES, integer_passes=SCALAR_PASSES, npu_operand=2))
CUMSUM = TilePrimitive(
    "CUMSUM", 26, params=Running, result=Result.ROUNDED, outputs=(ANY,), inputs=(ANY,),
    work=Work("ROW_REDUCE sum", npu_passes=SCALAR_PASSES, integer_passes=SCALAR_PASSES),
    numpy=lambda p, x: cumsum(x, p.reverse))


def top_k(x: np.ndarray, k: int, largest: bool) -> np.ndarray:
    """Returns the ids of the k largest or smallest of the last dimension, in order; NaN is largest, equals go by id."""
    transposed = x[..., ::-1] if largest else x
    order = np.argsort(transposed, axis=-1, kind="stable")
    order = x.shape[-1] - 1 - order[..., ::-1] if largest else order
    return order[..., :k].astype(np.int32)


def add_columns(rows: np.ndarray | float, index: np.ndarray, num_cols: int, dtype: DTypeLike) -> np.ndarray:
    """Returns zeros [..., num_cols] with each element of rows added to the column of its index, first to last."""
    out = np.zeros((*index.shape[:-1], num_cols), dtype)
    flat, places = out.reshape(-1, num_cols), index.reshape(-1, index.shape[-1])
    values = np.broadcast_to(rows, index.shape).reshape(places.shape)
    np.add.at(flat, (np.arange(len(flat))[:, None], places), values)
    return out


def cumsum(x: np.ndarray, reverse: bool) -> np.ndarray:
    """Returns sums along the last dimension up to each element, or with `reverse` from each element on."""
    return np.cumsum(x[..., ::-1], axis=-1, dtype=x.dtype)[..., ::-1] if reverse else np.cumsum(x, axis=-1, dtype=x.dtype)


@TOP_K.reference
def _(frame: Frame[Choice]) -> int:
    values, ids, x = frame.operands()
    ids[...] = top_k(x, ids.shape[1], frame.params.largest)
    values[...] = np.take_along_axis(x, ids, axis=1)
    return len(ids)


@ADD_COLS.reference
def _(frame: Frame[Params]) -> int:
    out, rows, index = frame.operands()
    out[...] = add_columns(rows, index, out.shape[1], np.int64 if out.dtype.kind == "i" else np.float32)
    return len(out)


@TOP_K.fits
def _(op: Shapes) -> Rules:
    yield ((op.width(0) == op.width(1)) & (op.width(0) <= op.width(2)),
           "chooses {} values and {} indices of {}", op.width(0), op.width(1), op.width(2))
    yield same_kind(op, 0, 2)


@TAKE_COLS.fits
def _(op: Shapes) -> Rules:
    yield op.is_integer(2), "takes indices that are no integers"
    yield op.width(0) == op.width(2), "has {} indices for {} columns", op.width(2), op.width(0)
    yield same_kind(op, 0, 1)


@ADD_COLS.fits
def _(op: Shapes) -> Rules:
    yield op.is_integer(2), "takes indices that are no integers"
    yield op.is_number(1) | (op.width(1) == op.width(2)), "has {} indices for {} columns", op.width(2), op.width(1)
    holds, text = same_kind(op, 0, 1)
    yield op.is_number(1) | holds, text


@CUMSUM.fits
def _(op: Shapes) -> Rules:
    yield op.width(0) == op.width(1), "makes rows of {} columns of {}", op.width(0), op.width(1)
    yield same_kind(op, 0, 1)
