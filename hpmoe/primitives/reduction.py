"""Sums along one axis and broadcasting: each is the gradient of the other."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from hpmoe.ir.avals import RouteAval, Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation, Var
from hpmoe.primitives.in_rows import is_last_of_rows, reduce_along
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.shape import in_dtype, reshape
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import INTEGERS
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.axes import GROUP_REDUCE
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.functions import COPY
from hpmoe.tile_ops.params import ByColumns, ByGroups, Reduction
from hpmoe.tile_ops.reductions import COL_SUM, ROW_REDUCE

reduce_sum = Primitive("reduce_sum")
broadcast_to = Primitive("broadcast_to")
reduce_sum.reference(lambda x, *, axis, keepdims, dtype=None, mean=False: x.sum(axis=axis, keepdims=keepdims))
broadcast_to.reference(lambda x, *, shape, dtype=None: np.broadcast_to(x, shape).copy())
broadcast_to.vjp(lambda b, eqn, cotangents: [unbroadcast(b, cotangents[0], eqn.inputs[0].aval)])


def reduced(name: str, x: ShapeDtypeStruct, axis: int, keepdims: bool) -> ShapeDtypeStruct:
    check_argument(0 <= axis < len(x.shape), name, "axis", axis, f"in 0..{len(x.shape) - 1}")
    kept = (1,) if keepdims else ()
    return ShapeDtypeStruct(x.shape[:axis] + kept + x.shape[axis + 1:], x.dtype)


@reduce_sum.infer
def _(x: ShapeDtypeStruct, *, axis: int, keepdims: bool, dtype: str | None = None, mean: bool = False) -> ShapeDtypeStruct:
    """Returns the aval of a sum; `mean` means that the sum will be divided by the size of the axis."""
    out = reduced("reduce_sum", x, axis, keepdims)
    return ShapeDtypeStruct(out.shape, dtype or out.dtype)


@reduce_sum.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    shape, axis = eqn.inputs[0].aval.shape, eqn.params["axis"]
    kept = shape[:axis] + (1,) + shape[axis + 1:]
    g = cotangents[0] if eqn.params["keepdims"] else b.add(reshape, cotangents[0], shape=kept)
    return [b.add(broadcast_to, in_dtype(b, g, eqn.inputs[0].aval.dtype), shape=shape)]


@reduce_sum.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    rows = tiler.buffer(x).num_rows
    is_over_tokens = x in tiler.tokens and eqn.outputs[0] not in tiler.tokens  # of one token too, whose row is all there is
    if axis > 0 or len(x.aval.shape) == 1 or (tiler.axis_in_row(x, 0) and not is_over_tokens):
        tile_over_columns(tiler, eqn, Reduction.SUM)
    elif x.aval.shape[0] == rows or tiler.buffer(x).route >= 0:
        _tile_over_rows(tiler, eqn)
    elif x in tiler.groups and x.aval.shape[0] == known(rows) * tiler.groups[x]:
        _tile_over_groups(tiler, eqn)
    else:
        tile_over_columns(tiler, eqn, Reduction.SUM)


def tile_over_columns(tiler: Tiler, eqn: Equation, kind: Reduction) -> None:
    """Emits one value for each row, or each group of its columns; elements of a vector stored in rows are summed first."""
    (x,), out, axis = eqn.inputs, eqn.outputs[0], eqn.params["axis"]
    if x in tiler.tokens and out in tiler.tokens and x.aval.shape[axis] == 1 and not tiler.axis_in_row(x, axis):
        tiler.map(COPY, out, tiler.at(x))
        return
    if len(x.aval.shape) > 1 and not is_last_of_rows(tiler, x, axis):
        reduce_along(tiler, eqn, axis, kind)
        return
    if len(x.aval.shape) == 1 and (x in tiler.vectors or tiler.buffer(x).num_rows != 1):
        _tile_over_vector(tiler, eqn, kind)
        return
    rows = math.prod(d for d in x.aval.shape[:-1] if isinstance(d, int))
    tiler.new(out, rows_and_cols=(rows, 1))
    made, read = (tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (out, x))
    tiler.emit(ROW_REDUCE, tiler.rows_of(x), made, read, cols=0, params=ByColumns(kind))
    if len(out.aval.shape) > 1:
        tiler.buffer_of[out] = tiler.regular(out)


def _tile_over_vector(tiler: Tiler, eqn: Equation, kind: Reduction) -> None:
    """Emits one value of a vector that is stored in rows."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    whole, cols = tiler.at(x, cols=col_modes.ALL, dtypes=tiler.HELD), tiler.buffer(x).cols
    if kind is Reduction.MAX:
        if tiler.buffer(x).num_rows is None:
            tiler.refuse(f"takes the maximum over the received rows of {x.aval}, whose number the routing decides; tiles "
                         "take it over a fixed number of rows. Write it after hpmoe.combine")
        whole = dataclasses.replace(whole, buffer=tiler.regular(x))
    elif cols == 1:
        _tile_over_rows(tiler, eqn)
        return
    else:
        domain, mode = tiler.experts_of(x)
        partial = tiler.hidden(f"{tiler.names(out)}.by_column", 1, cols, _partial_dtype(x.aval))
        tiler.emit(COL_SUM, domain, dataclasses.replace(whole, buffer=partial, cols=col_modes.OWN),
                   tiler.at(x, mode, dtypes=tiler.HELD))
        whole = dataclasses.replace(whole, buffer=partial)
    tiler.new(out)
    made = tiler.at(out, cols=col_modes.ALL, dtypes=tiler.HELD)
    tiler.emit(ROW_REDUCE, tiler.rows_of(out), made, whole, cols=0, params=ByColumns(kind))


def _partial_dtype(x: ShapeDtypeStruct | RouteAval) -> str:
    return x.dtype if x.dtype in INTEGERS else "float32"


def _tile_over_rows(tiler: Tiler, eqn: Equation) -> None:
    """Emits one task for each column range; received rows are summed by expert first."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    cols = tiler.buffer(x).cols
    domain, mode = tiler.experts_of(x)
    made = tiler.new(out, rows_and_cols=(1, cols)) if len(x.aval.shape) < 3 else tiler.new_as_one_row(out, out.aval.dtype)
    total = dataclasses.replace(tiler.at(out, dtypes=tiler.HELD), buffer=made)
    if domain.route < 0:
        tiler.emit(COL_SUM, domain, total, tiler.at(x, mode, dtypes=tiler.HELD))
        return
    partial = tiler.hidden(f"{tiler.names(out)}.by_expert", domain.num_rows, cols, _partial_dtype(x.aval))
    sums = tiler.at(x, mode, dtypes=tiler.HELD)
    tiler.emit(COL_SUM, domain, dataclasses.replace(sums, buffer=partial, rows=row_modes.OWN), sums)
    tiler.emit(COL_SUM, AllRows(1, height=domain.num_rows), total,
               dataclasses.replace(sums, buffer=partial, rows=row_modes.ALL))


def _tile_over_groups(tiler: Tiler, eqn: Equation) -> None:
    """Sums rows of memory first, then the rows of a token in the result."""
    x, out = eqn.inputs[0], eqn.outputs[0]
    domain, mode = tiler.experts_of(x)
    b = tiler.buffer(x)
    partial = tiler.hidden(f"{tiler.names(out)}.by_row", 1, b.cols)
    tiler.emit(COL_SUM, domain, dataclasses.replace(tiler.at(x), buffer=partial), tiler.at(x, mode))
    made = tiler.new_as_one_row(out, out.aval.dtype)
    width = tiler.buffers[made].cols
    whole = dataclasses.replace(tiler.at(x, cols=col_modes.ALL), buffer=partial)
    tiler.emit(GROUP_REDUCE, tiler.domain_of(made), dataclasses.replace(whole, buffer=made), whole, cols=0,
               params=ByGroups(Reduction.SUM, b.cols // width, width))


def broadcast_shapes(who: str, *shapes: tuple[int | Rows, ...]) -> tuple[int | Rows, ...]:
    """Returns the shape of NumPy's broadcasting over dimensions that may be symbolic."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    out = []
    for dims in zip(*padded, strict=True):
        wide = {d for d in dims if d != 1} or {1}
        of_routes = "Received rows of two routes are different rows." if sum(isinstance(d, Rows) for d in wide) > 1 else ""
        check_argument(len(wide) == 1, who, "operands", " and ".join(map(str, shapes)), "broadcastable shapes", of_routes)
        out.append(wide.pop())
    return tuple(out)


@broadcast_to.infer
def _(x: ShapeDtypeStruct, *, shape: tuple[int | Rows, ...], dtype: str | None = None) -> ShapeDtypeStruct:
    check_argument(broadcast_shapes("broadcast_to", x.shape, shape) == tuple(shape), "broadcast_to", "shape", shape,
                   f"one that {x} broadcasts to")
    return ShapeDtypeStruct(tuple(shape), dtype or x.dtype)


@broadcast_to.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    out = eqn.outputs[0]
    tiler.map(COPY, out, tiler.read(eqn.inputs[0], out))


def unbroadcast(b: Builder, cotangent: Atom, aval: ShapeDtypeStruct | RouteAval) -> Atom | None:
    """Sums a cotangent over the dimensions along which an operand of abstract value `aval` was broadcast."""
    if not isinstance(cotangent, Var) or cotangent.aval.shape == aval.shape:
        return cotangent
    shape = cotangent.aval.shape
    missing = len(shape) - len(aval.shape)  # summed even where it is one row, which a rank without tokens does not have
    axes = [i for i, d in enumerate(shape) if i < missing or d != aval.shape[i - missing]]
    last = len(shape) - 1
    if last in axes:
        cotangent = b.add(reduce_sum, cotangent, axis=last, keepdims=True)
        axes.remove(last)
    if len(axes) > 1 and axes == list(range(len(axes))) and all(isinstance(d, int) for d in shape):
        rows = math.prod(fixed(shape[:len(axes)]))  # leading dimensions are summed as the rows of one matrix
        cotangent = b.add(reshape, cotangent, shape=(rows, *cotangent.aval.shape[len(axes):]))
        axes = [0]
    for axis in reversed(axes):
        cotangent = b.add(reduce_sum, cotangent, axis=axis, keepdims=True)
    return cotangent if cotangent.aval.shape == aval.shape else b.add(reshape, cotangent, shape=aval.shape)
