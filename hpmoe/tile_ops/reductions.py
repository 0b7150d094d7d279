"""Tile operations that sum or reduce: over the columns of a row, or over rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpmoe.dtypes import widen
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows, Experts
from hpmoe.tile_ops.params import ByColumns, Reduction
from hpmoe.tile_ops.tile_primitive import ANY_ROWS, Operand, TilePrimitive

ONE_COLUMN = Operand(cols=(col_modes.ALL, col_modes.ONE), takes_one_column=True)
WHOLE_ROWS = Operand(cols=(col_modes.ALL,))
SUMMED = (row_modes.EXPERT, row_modes.ALL)

ROW_REDUCE = TilePrimitive("ROW_REDUCE", 9, outputs=(ONE_COLUMN,), inputs=(WHOLE_ROWS,), params=ByColumns, rounds=True,
                           passes=4)
ROW_DOT = TilePrimitive("ROW_DOT", 10, outputs=(ONE_COLUMN,), inputs=(WHOLE_ROWS,) * 2, rounds=True, commutes=True)
COL_SUM = TilePrimitive("COL_SUM", 11, outputs=(Operand(ANY_ROWS),), inputs=(Operand(SUMMED, by_column=True, is_summed=True),),
                        domains=(Experts, AllRows), sums_rows=True, rounds=True)


@ROW_REDUCE.reference
def _(frame: Any) -> int:
    out, x = frame.operands()
    out[...] = (np.max if frame.params.reduction is Reduction.MAX else np.sum)(x, axis=1, keepdims=True)
    return len(out)


@ROW_DOT.reference
def _(frame: Any) -> int:
    out, x, y = frame.operands()
    out[...] = np.sum(x * y, axis=1, keepdims=True)
    return len(out)


@COL_SUM.reference
def _(frame: Any) -> int:
    x = widen(frame.array(1)[frame.rows, frame.cols])
    frame.array(0).reshape(-1, frame.op.cols)[frame.unit, frame.cols] = x.sum(axis=0)
    return 1
