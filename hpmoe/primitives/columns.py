"""Elements of each row by an index of columns, sums of elements by such an index, running sums, and the k first in order."""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation, Literal
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import INTEGERS
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes, columns as bodies, row_modes
from hpmoe.tile_ops.columns import ADD_COLS, CUMSUM, TAKE_COLS, TOP_K
from hpmoe.tile_ops.params import Choice, Running

take_columns = Primitive("take_columns")
add_columns = Primitive("add_columns")
cumsum = Primitive("cumsum")
top_k = Primitive("top_k")
take_columns.reference(lambda x, index: x[..., index] if index.ndim == 1 else np.take_along_axis(x, index, axis=-1))
add_columns.reference(
    lambda rows, index, *, num_cols, dtype=None: bodies.add_columns(rows, index, num_cols, np.asarray(rows).dtype))
cumsum.reference(bodies.cumsum)
cumsum.vjp(lambda b, eqn, cotangents: [b.add(cumsum, cotangents[0], reverse=not eqn.params["reverse"])])
top_k.vjp(
    lambda b, eqn, cotangents: [b.add(add_columns, cotangents[0], eqn.outputs[1], num_cols=eqn.inputs[0].aval.shape[-1])])
add_columns.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(ADD_COLS, eqn)))
cumsum.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(CUMSUM, eqn, Running(eqn.params["reverse"]))))
top_k.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(TOP_K, eqn, Choice(eqn.params["largest"]))))


def check_rows(who: str, x: ShapeDtypeStruct) -> None:
    """Raises ArgumentError unless `x` is of rows, whose number of columns is known."""
    check_argument(len(x.shape) >= 2 and isinstance(x.shape[-1], int), who, "x", x, "an array of rows, [..., N]")


def _check_index(who: str, rows: tuple[int | Rows, ...], index: ShapeDtypeStruct) -> None:
    check_argument(index.dtype in INTEGERS, who, "index", index, "an integer array")
    check_argument(index.shape[:-1] == rows, who, "index", index,
                   f"an array with leading dimensions {list(rows)}, like the indexed array")


# out[..., j] = x[..., index[..., j]]; a negative index counts from the end; one row of indices may serve all rows

@take_columns.infer
def _(x: ShapeDtypeStruct, index: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_rows("take_columns", x)
    if len(index.shape) != 1:
        _check_index("take_columns", x.shape[:-1], index)
    return ShapeDtypeStruct((*x.shape[:-1], index.shape[-1]), x.dtype)


@take_columns.eager
def _(x: Tensor, index: Tensor) -> Tensor:
    index = mint.broadcast_to(index, (*x.shape[:-1], index.shape[0])) if index.ndim == 1 else index
    # On a CPU gather_elements replaces negative numbers in the index tensor itself.
    return ops.gather_elements(x, x.ndim - 1, mint.where(index < 0, index + x.shape[-1], index))


@take_columns.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, index = eqn.inputs
    if len(index.aval.shape) == 1:
        index = b.add(broadcast_to, index, shape=cotangents[0].aval.shape)
    return [b.add(add_columns, cotangents[0], index, num_cols=x.aval.shape[-1]), None]


@take_columns.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, index), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    made, read, places = (tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (out, x, index))
    if len(index.aval.shape) == 1:
        places = dataclasses.replace(places, rows=row_modes.ONE, buffer=tiler.regular(index))
    tiler.emit(TAKE_COLS, tiler.rows_of(out), made, read, places, cols=0)


# out[..., e] = the sum of rows[..., j] over the j whose index[..., j] is e; rows may be one number

@add_columns.infer
def _(rows: ShapeDtypeStruct, index: ShapeDtypeStruct, *, num_cols: int, dtype: str | None = None) -> ShapeDtypeStruct:
    check_rows("add_columns", index)
    _check_index("add_columns", index.shape[:-1], index)
    check_argument(rows.shape in ((), index.shape), "add_columns", "rows", rows, f"one number, or {list(index.shape)}")
    return ShapeDtypeStruct((*index.shape[:-1], num_cols), dtype or rows.dtype)


@add_columns.eager
def _(rows: Tensor | float, index: Tensor, *, num_cols: int, dtype: str | None = None) -> Tensor:
    places, name = values_of("hpmoe.router", index), dtype or str(getattr(rows, "dtype", "float32")).lower()
    zeros, added = (Tensor(np.full(shape, value, name)) for shape, value in (
        ((*places.shape[:-1], num_cols), 0), (places.shape, 0 if isinstance(rows, Tensor) else rows)))
    return ops.tensor_scatter_elements(zeros, index, rows if isinstance(rows, Tensor) else added, index.ndim - 1, "add")


@add_columns.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    rows, index = eqn.inputs
    return [None if isinstance(rows, Literal) else b.add(take_columns, cotangents[0], index), None]


# out[..., j] = the sum of x[..., :j + 1], or of x[..., j:] where it is reversed

@cumsum.infer
def _(x: ShapeDtypeStruct, *, reverse: bool) -> ShapeDtypeStruct:
    check_rows("cumsum", x)
    return x


# The k largest or smallest of each row, in order, and their columns. Of equal values the first comes first. NaN is the
# largest: first among the largest, last among the smallest.

@top_k.infer
def _(x: ShapeDtypeStruct, *, k: int, largest: bool) -> tuple[ShapeDtypeStruct, ShapeDtypeStruct]:
    check_rows("top_k", x)
    check_argument(1 <= k <= fixed(x.shape)[-1], "top_k", "k", k, f"in 1..{x.shape[-1]}, the columns of {x}")
    shape = (*x.shape[:-1], k)
    return ShapeDtypeStruct(shape, x.dtype), ShapeDtypeStruct(shape, "int32")


@top_k.reference
def _(x: np.ndarray, *, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    ids = bodies.top_k(x, k, largest)
    return np.take_along_axis(x, ids, axis=-1), ids


@top_k.eager
def _(x: Tensor, *, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    ids = Tensor(bodies.top_k(values_of("hpmoe.route", x), k, largest))
    return ops.gather_elements(x, x.ndim - 1, ids), ids
