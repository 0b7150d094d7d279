"""Elements of each row by an index of columns, the sums of elements by such an index, and running sums: row by row."""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import Aval, Rows
from hpmoe.ir.program import Atom, Builder, Equation, Literal
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import INTEGERS
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes, columns as bodies, row_modes
from hpmoe.tile_ops.columns import ADD_COLS, CUMSUM, TAKE_COLS
from hpmoe.tile_ops.params import Running

take_columns = Primitive("take_columns")
add_columns = Primitive("add_columns")
cumsum = Primitive("cumsum")


def check_rows(who: str, x: Aval) -> None:
    """Raises ArgumentError unless `x` is of rows, whose number of columns is known."""
    check_argument(len(x.shape) >= 2 and isinstance(x.shape[-1], int), who, "x", x, "an array of rows, [..., N]")


def _check_index(who: str, rows: tuple[int | Rows, ...], index: Aval) -> None:
    check_argument(index.dtype in INTEGERS, who, "index", index, "an integer array")
    check_argument(index.shape[:-1] == rows, who, "index", index, f"of rows {list(rows)}, as what it is about")


# out[..., j] = x[..., index[..., j]]; a negative index counts from the end; one row of indices may serve all rows

@take_columns.infer
def _(x: Aval, index: Aval) -> Aval:
    check_rows("take_columns", x)
    if len(index.shape) != 1:
        _check_index("take_columns", x.shape[:-1], index)
    return Aval((*x.shape[:-1], index.shape[-1]), x.dtype)


@take_columns.reference
def _(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[..., index] if index.ndim == 1 else np.take_along_axis(x, index, axis=-1)


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
def _(rows: Aval, index: Aval, *, num_cols: int, dtype: str | None = None) -> Aval:
    check_rows("add_columns", index)
    _check_index("add_columns", index.shape[:-1], index)
    check_argument(rows.shape in ((), index.shape), "add_columns", "rows", rows, f"one number, or {list(index.shape)}")
    return Aval((*index.shape[:-1], num_cols), dtype or rows.dtype)


@add_columns.reference
def _(rows: np.ndarray | float, index: np.ndarray, *, num_cols: int, dtype: str | None = None) -> np.ndarray:
    return bodies.add_columns(rows, index, num_cols, np.asarray(rows).dtype)


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


@add_columns.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    (rows, index), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    target, places = (tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (out, index))
    added = tiler.read(rows, out) if isinstance(rows, Literal) else tiler.at(rows, cols=col_modes.ALL,
                                                                                  dtypes=tiler.HELD)
    tiler.emit(ADD_COLS, tiler.rows_of(out), target, added, places, cols=0)


# out[..., j] = the sum of x[..., :j + 1], or of x[..., j:] where it is reversed

@cumsum.infer
def _(x: Aval, *, reverse: bool) -> Aval:
    check_rows("cumsum", x)
    return x


@cumsum.reference
def _(x: np.ndarray, *, reverse: bool) -> np.ndarray:
    return bodies.cumsum(x, reverse)


@cumsum.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(cumsum, cotangents[0], reverse=not eqn.params["reverse"])]


@cumsum.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    out = eqn.outputs[0]
    tiler.new(out)
    operands = (tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (out, *eqn.inputs))
    tiler.emit(CUMSUM, tiler.rows_of(out), *operands, cols=0, params=Running(eqn.params["reverse"]))
