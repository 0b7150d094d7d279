"""Tile operations that sum or reduce: over the columns of a row, or over rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import widen
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows, Experts
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import ByColumns, Params
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, Result, TilePrimitive, Work

ONE_COLUMN = Operand(cols=(col_modes.ALL, col_modes.ONE))
WHOLE_ROWS = Operand(cols=(col_modes.ALL,))
ANY_ROWS = Operand(cols=(col_modes.ALL,), may_be_integer=True)
SUMMED = (row_modes.EXPERT, row_modes.ALL)

ROW_REDUCE = TilePrimitive(
    "ROW_REDUCE", 9, params=ByColumns, result=Result.ROUNDED,
    work=Work(passes=4, integer_passes=SCALAR_PASSES), outputs=(dataclasses.replace(ONE_COLUMN, may_be_integer=True),),
    inputs=(ANY_ROWS,), numpy=lambda p, x: p.reduction.numpy(x, axis=1, keepdims=True))
ROW_DOT = TilePrimitive(
    "ROW_DOT", 10, result=Result.ROUNDED, outputs=(ONE_COLUMN,), inputs=(WHOLE_ROWS,) * 2,
    numpy=lambda x, y: np.sum(x * y, axis=1, keepdims=True))
COL_SUM = TilePrimitive(
    "COL_SUM", 11, result=Result.ROUNDED, work=Work(integer_passes=SCALAR_PASSES),
    domains=(Experts, AllRows), outputs=(Operand(may_be_integer=True),),
    inputs=(Operand(SUMMED, is_summed=True, may_be_integer=True),))


@COL_SUM.reference
def _(frame: Frame[Params]) -> int:
    frame.array(0)[frame.unit, frame.own(0)] = widen(frame.array(1)[frame.rows, frame.own(1)]).sum(axis=0)
    return 1


@ROW_REDUCE.fits
@ROW_DOT.fits
def _(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    if op.operands[0].cols is col_modes.ALL and op.width(0, buffers) != 1:
        return f"makes one column of {op.width(0, buffers)}"
    widths = [op.width(i, buffers) for i in range(1, len(op.operands))]
    return "" if len(set(widths)) == 1 else f"multiplies rows of {widths[0]} and {widths[1]} columns"


@COL_SUM.fits
def sum_fault(op: Operation[Params], buffers: Buffers, plan: RoutePlan | None) -> str:
    """All rows of a static array are summed, or those of each expert."""
    if isinstance(op.domain, AllRows) != (plan is None):
        return "sums all rows where a route brings those of experts" if plan else "sums rows of experts that no route brings"
    mode = row_modes.EXPERT if op.domain.route >= 0 else row_modes.ALL
    for access in op.operands[1:3]:
        buffer = buffers[access.buffer]
        if access.rows is not mode:
            return f"sums rows {access.rows} of {buffer.name}, not {mode}"
        if plan is None and op.domain.height != buffer.num_rows:
            return f"sums {op.domain.height} rows of {buffer.name}, which has {buffer.num_rows}"
    return ""
