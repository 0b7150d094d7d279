"""Tile operations that sum or reduce: over the columns of a row, or over rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.support.dtypes import widen
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows, Experts
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import ByColumns, Params
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import implies, not_
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
def _(op: Shapes) -> Rules:
    yield implies(op.cols_are(0, col_modes.ALL), op.width(0) == 1), "makes one column of {}", op.width(0)
    yield (implies(op.has(2), op.same_cols(1, 2) & (op.width(1) == op.width(2))),
           "multiplies rows of {} and {} columns", op.width(1), op.width(2))


def sum_rules(op: Shapes) -> Rules:
    """Yields the rules of a sum over all rows of a static array, or the received rows of each expert."""
    sums_all = op.rows_are(1, row_modes.ALL)
    yield sums_all != op.has_route(), "sums all rows where a route brings those of experts, or the reverse"
    yield (implies(op.has(2), op.rows_are(2, row_modes.ALL) == sums_all),
           "sums other rows of {} than of {}", op.name(2), op.name(1))
    yield implies(sums_all, (op.num_rows() == 1) & (op.first_expert() == 0)), "sums all rows more than once"
    for i in (1, 2):
        yield (implies(sums_all & op.has(i) & not_(op.is_number(i)), op.has_rows(i, op.summed_rows())),
               "sums {} rows of {}, which has {}", op.summed_rows(), op.name(i), op.rows(i))
    last = op.first_expert() + op.num_rows()
    is_of_experts = (op.first_expert() >= 0) & (op.num_rows() >= 1) & (last <= op.num_local_experts())
    yield (sums_all | is_of_experts,
           "sums rows of experts {} to {}, and a rank has {}", op.first_expert(), last, op.num_local_experts())


@COL_SUM.fits
def _(op: Shapes) -> Rules:
    yield from sum_rules(op)
    yield (op.rows_are(1, row_modes.ALL) | (op.num_rows() == op.num_local_experts()),
           "sums rows of {} experts, and a rank has {}", op.num_rows(), op.num_local_experts())
    yield op.has_capacity(0, op.num_rows()), "makes {} rows of {}, which has fewer", op.num_rows(), op.name(0)
