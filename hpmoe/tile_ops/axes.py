"""Tile operations along an axis inside a row: columns picked at a step, columns placed among zeros, and sums or maxima.

A row of [outer, size, inner] elements has its columns in that order; `outer` is what the width of the row leaves.
"""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import AlongAxis, ByGroups, Params
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import same_dtype_fault

WHOLE_ROWS = Operand(cols=(col_modes.ALL,), may_be_integer=True)
ANY_COLUMNS = Operand(may_be_integer=True)

def _reduced(p: ByGroups, x: np.ndarray) -> np.ndarray:
    return p.reduction.numpy(x.reshape(len(x), -1, p.size, p.inner), axis=2).reshape(len(x), -1)


PICK = TilePrimitive("PICK", 28, outputs=(ANY_COLUMNS,), inputs=(WHOLE_ROWS,),
                     params=AlongAxis, result=Result.MOVED, work=Work("MAP copy"))
PLACE = TilePrimitive("PLACE", 29, outputs=(ANY_COLUMNS,), inputs=(WHOLE_ROWS,),
                      params=AlongAxis, result=Result.MOVED, work=Work("MAP copy"))
GROUP_REDUCE = TilePrimitive("GROUP_REDUCE", 30, outputs=(WHOLE_ROWS,), inputs=(WHOLE_ROWS,),
                             params=ByGroups, result=Result.ROUNDED,
                             work=Work("ROW_REDUCE", passes=4, integer_passes=SCALAR_PASSES),
                             numpy=_reduced)


def _axes(frame: Frame[AlongAxis]) -> tuple[np.ndarray, np.ndarray, slice, int]:
    """The output, the input as [rows, outer, size, inner], the task's own columns and the output's `outer`."""
    out, x = frame.operands()
    p, width = frame.params, frame.array(0).shape[1]
    outer = width // (p.size * p.inner)
    return out, x.reshape(len(x), outer, -1, p.inner), frame.own(0), outer


@PICK.reference
def _(frame: Frame[AlongAxis]) -> int:
    out, x, own, _ = _axes(frame)
    p = frame.params
    out[...] = x[:, :, p.start + p.step * np.arange(p.size)].reshape(len(x), -1)[:, own]
    return len(out)


@PLACE.reference
def _(frame: Frame[AlongAxis]) -> int:
    out, x, own, outer = _axes(frame)
    p = frame.params
    whole = np.zeros((len(x), outer, p.size, p.inner), x.dtype)
    whole[:, :, p.start + p.step * np.arange(x.shape[2])] = x
    out[...] = whole.reshape(len(x), -1)[:, own]
    return len(out)


def _size_there(op: Operation[AlongAxis], buffers: Buffers) -> int:
    """The size of the input's axis; 0 where the widths do not fit."""
    p, width, given = op.params, op.width(0, buffers), op.width(1, buffers)
    outer, rest = divmod(width, max(1, p.size * p.inner))
    return 0 if rest or not outer or given % (outer * p.inner) else given // (outer * p.inner)


@PICK.fits
def _(op: Operation[AlongAxis], buffers: Buffers, plan: RoutePlan | None) -> str:
    p = op.params
    fits = p.start >= 0 and p.step >= 0 and p.start + (p.size - 1) * p.step < _size_there(op, buffers)
    return _whole_fault(op, buffers) or ("" if fits else _faulty(op, buffers))


@PLACE.fits
def _(op: Operation[AlongAxis], buffers: Buffers, plan: RoutePlan | None) -> str:
    p, there = op.params, _size_there(op, buffers)
    fits = there > 0 and p.start >= 0 and p.step >= 1 and p.start + (there - 1) * p.step < p.size
    return _whole_fault(op, buffers) or ("" if fits else _faulty(op, buffers))


@GROUP_REDUCE.fits
def _(op: Operation[ByGroups], buffers: Buffers, plan: RoutePlan | None) -> str:
    p, width, given = op.params, op.width(0, buffers), op.width(1, buffers)
    fits = p.size >= 1 and p.inner >= 1 and given == width * p.size and width % p.inner == 0
    return _whole_fault(op, buffers) or same_dtype_fault(op, 0, 1, buffers) or ("" if fits else _faulty(op, buffers))


def _faulty(op: Operation[Params], buffers: Buffers) -> str:
    return f"makes rows of {op.width(0, buffers)} columns of rows of {op.width(1, buffers)} by {op.params}"


def _whole_fault(op: Operation[Params], buffers: Buffers) -> str:
    """Columns are counted from the first one, and those of the tasks are all that there are."""
    if any(a.offset for a in op.operands):
        return "begins at another column than the first"
    return "leaves columns out" if op.cols and op.cols != op.width(0, buffers) else ""
