"""Reductions: sums and maxima along one axis, and the dot product of rows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from hpmoe.avals import Aval
from hpmoe.errors import check_argument
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.shape import broadcast_to, cast, dtype_param, in_dtype, reshape
from hpmoe.program import Atom, Builder, Equation, Var
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.params import ByColumns, Reduction
from hpmoe.tile_ops.reductions import COL_SUM, ROW_DOT, ROW_REDUCE

reduce_sum = Primitive("reduce_sum")
reduce_max = Primitive("reduce_max")
row_dot = Primitive("row_dot")


def _reduced(name: str, x: Aval, axis: int, keepdims: bool) -> Aval:
    check_argument(0 <= axis < len(x.shape), name, "axis", axis, f"in 0..{len(x.shape) - 1}")
    kept = (1,) if keepdims else ()
    return Aval(x.shape[:axis] + kept + x.shape[axis + 1:], x.dtype)


@reduce_sum.infer
def _(x: Aval, *, axis: int, keepdims: bool, dtype: str | None = None, mean: bool = False) -> Aval:
    """`mean` says that the sum is about to be divided by the size of the axis."""
    out = _reduced("reduce_sum", x, axis, keepdims)
    return Aval(out.shape, dtype or out.dtype)


@reduce_max.infer
def _(x: Aval, *, axis: int, keepdims: bool) -> Aval:
    return _reduced("reduce_max", x, axis, keepdims)


@reduce_sum.reference
def _(x: np.ndarray, *, axis: int, keepdims: bool, dtype: str | None = None, mean: bool = False) -> np.ndarray:
    return x.sum(axis=axis, keepdims=keepdims)


@reduce_max.reference
def _(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
    return x.max(axis=axis, keepdims=keepdims)


@reduce_sum.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    shape, axis = eqn.inputs[0].aval.shape, eqn.params["axis"]
    kept = shape[:axis] + (1,) + shape[axis + 1:]
    g = cotangents[0] if eqn.params["keepdims"] else b.add(reshape, cotangents[0], shape=kept)
    return [b.add(broadcast_to, in_dtype(b, g, eqn.inputs[0].aval.dtype), shape=shape)]


@reduce_max.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    from hpmoe.primitives.elementwise import div, equal
    x, axis = eqn.inputs[0], eqn.params["axis"]
    kept = x.aval.shape[:axis] + (1,) + x.aval.shape[axis + 1:]
    keep = (lambda v: v) if eqn.params["keepdims"] else (lambda v: b.add(reshape, v, shape=kept))
    hits = b.add(cast, b.add(equal, x, keep(eqn.outputs[0])), dtype=x.aval.dtype)
    share = b.add(div, keep(cotangents[0]), b.add(reduce_sum, hits, axis=axis, keepdims=True))
    return [b.add(mul, hits, share)]


@reduce_sum.tile
def _(tiler: Any, eqn: Equation) -> None:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    if _is_last(x.aval, axis):
        _tile_over_columns(tiler, eqn, Reduction.SUM)
    elif axis == 0 and len(x.aval.shape) <= 2:
        _tile_over_rows(tiler, eqn)
    else:
        tiler.refuse(f"reduces axis {axis} of {x.aval} and mixes rows")


@reduce_max.tile
def _(tiler: Any, eqn: Equation) -> None:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    if not _is_last(x.aval, axis):
        tiler.refuse(f"reduces axis {axis} of {x.aval} and mixes rows")
    _tile_over_columns(tiler, eqn, Reduction.MAX)


def _is_last(x: Aval, axis: int) -> bool:
    return axis == len(x.shape) - 1


def _tile_over_columns(tiler: Any, eqn: Equation, kind: Reduction) -> None:
    """One value for each row. The elements of a vector that is stored in rows are summed over these first."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    if len(x.aval.shape) == 1 and (x in tiler.vectors or tiler.buffer(x).num_rows != 1):
        _tile_over_vector(tiler, eqn, kind)
        return
    rows = math.prod(d for d in x.aval.shape[:-1] if isinstance(d, int))
    tiler.new(out, rows_and_cols=(rows, 1))
    tiler.emit(ROW_REDUCE, tiler.rows_of(x), tiler.at(out, cols=col_modes.ALL), tiler.at(x, cols=col_modes.ALL), cols=0,
               params=ByColumns(kind))
    if len(out.aval.shape) > 1:
        tiler.buffer_of[out] = tiler.regular(out)


def _tile_over_vector(tiler: Any, eqn: Equation, kind: Reduction) -> None:
    """One value of a vector that is stored in rows."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    whole, cols = tiler.at(x, cols=col_modes.ALL), tiler.buffer(x).cols
    if kind is Reduction.MAX:
        if tiler.buffer(x).num_rows is None:
            tiler.refuse(f"takes the maximum over the rows that {x.aval} stands for")
        whole = dataclasses.replace(whole, buffer=tiler.regular(x))
    elif cols == 1:
        _tile_over_rows(tiler, eqn)
        return
    else:
        domain, mode = tiler.experts_of(x)
        partial = tiler.hidden(f"{tiler.names(out)}.by_column", 1, cols)
        tiler.emit(COL_SUM, domain, dataclasses.replace(whole, buffer=partial, cols=col_modes.OWN), tiler.at(x, mode))
        whole = dataclasses.replace(whole, buffer=partial)
    tiler.new(out)
    tiler.emit(ROW_REDUCE, tiler.rows_of(out), tiler.at(out, cols=col_modes.ALL), whole, cols=0, params=ByColumns(kind))


def _tile_over_rows(tiler: Any, eqn: Equation) -> None:
    """One task for each column range; received rows are summed by expert first."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    cols = tiler.buffer(x).cols
    domain, mode = tiler.experts_of(x)
    if domain.route < 0:
        tiler.new(out, rows_and_cols=(1, cols))
        tiler.emit(COL_SUM, domain, tiler.at(out), tiler.at(x, mode))
        return
    partial = tiler.hidden(f"{tiler.names(out)}.by_expert", domain.num_rows, cols)
    sums = tiler.at(x, mode)
    tiler.emit(COL_SUM, domain, dataclasses.replace(sums, buffer=partial, rows=row_modes.OWN), sums)
    tiler.new(out, rows_and_cols=(1, cols))
    tiler.emit(COL_SUM, AllRows(1, height=domain.num_rows), tiler.at(out),
               dataclasses.replace(sums, buffer=partial, rows=row_modes.ALL))


@row_dot.infer
def _(x: Aval, y: Aval, *, dtype: str | None = None) -> Aval:
    check_argument(x == y and len(x.shape) == 2, "row_dot", "operands", f"{x} and {y}", "two equal matrices")
    return Aval((x.shape[0], 1), dtype or x.dtype)


@row_dot.reference
def _(x: np.ndarray, y: np.ndarray, *, dtype: str | None = None) -> np.ndarray:
    return np.sum(x * y, axis=1, keepdims=True)


@row_dot.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, y = eqn.inputs
    return [b.add(mul, y, cotangents[0]), b.add(mul, x, cotangents[0])]


def dots_for(b: Builder, x: Atom, y: Atom, wanted: Aval) -> Var:
    """row_dot(x, y), one scalar for each row, in the dtype of `wanted`: to be rounded no earlier than that."""
    return b.add(row_dot, x, y, **dtype_param(wanted.dtype, x.aval.dtype))


@row_dot.tile
def _(tiler: Any, eqn: Equation) -> None:
    (x, y), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    operands = (tiler.at(v, cols=col_modes.ALL) for v in (out, x, y))
    tiler.emit(ROW_DOT, tiler.rows_of(x), *operands, cols=0)
