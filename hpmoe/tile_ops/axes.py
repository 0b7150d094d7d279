"""Tile operations along an axis inside a row: columns picked at a step, columns placed among zeros, and sums or maxima.

A row of [outer, size, inner] elements has its columns in that order; `outer` is what the width of the row leaves.
"""

from __future__ import annotations

import numpy as np

from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import AlongAxis, ByGroups
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, implies
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import same_kind

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
    """Returns the output, the input as [rows, outer, size, inner], the task's own columns and the output's `outer`."""
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


@PICK.fits
def _(op: Shapes) -> Rules:
    p = op.params
    yield from _axis_rules(op)
    yield (p.start + (p.size - 1) * p.step < _size_there(op),
           "picks {} elements, {} apart, of {}", p.size, p.step, _size_there(op))


@PLACE.fits
def _(op: Shapes) -> Rules:
    p = op.params
    yield from _axis_rules(op)
    yield p.step >= 1, "places elements {} apart", p.step
    yield (p.start + (_size_there(op) - 1) * p.step < p.size,
           "places {} elements, {} apart, in {}", _size_there(op), p.step, p.size)


@GROUP_REDUCE.fits
def _(op: Shapes) -> Rules:
    p = op.params
    yield from _whole_rules(op)
    yield same_kind(op, 0, 1)
    yield (p.size >= 1) & (p.inner >= 1), "reduces groups of {} elements, {} columns apart", p.size, p.inner
    yield ((op.width(1) == op.width(0) * p.size) & (op.width(0) % p.inner == 0),
           "makes rows of {} columns of {}, {} of each", op.width(0), op.width(1), p.size)


def _whole_rules(op: Shapes) -> Rules:
    """Yields the rule that tasks cover all columns, from the first one on."""
    yield (op.offset(0) == 0) & (op.offset(1) == 0), "begins at another column than the first"
    yield implies(op.own_cols() > 0, op.own_cols() == op.width(0)), "leaves columns out"


def _axis_rules(op: Shapes) -> Rules:
    p = op.params
    yield from _whole_rules(op)
    yield ((p.size >= 1) & (p.inner >= 1) & (p.start >= 0) & (p.step >= 0),
           "moves {} elements from {} on, {} apart", p.size, p.start, p.step)
    yield ((op.width(0) >= p.size * p.inner) & (op.width(0) % (p.size * p.inner) == 0),
           "makes rows of {} columns by axes of {}", op.width(0), p.size)
    yield ((op.width(1) > 0) & (op.width(1) % (_outer(op) * p.inner) == 0),
           "takes rows of {} columns, {} parts of {}", op.width(1), _outer(op), p.inner)


def _outer(op: Shapes) -> Number:
    return op.width(0) // (op.params.size * op.params.inner)


def _size_there(op: Shapes) -> Number:
    """Returns the size of the input's axis."""
    return op.width(1) // (_outer(op) * op.params.inner)
