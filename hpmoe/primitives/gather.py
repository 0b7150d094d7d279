"""Gather: whole rows of an array by an index, and its transpose, which sums rows into their places."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.primitive import Primitive, transposed_by
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.tokens import GATHER

gather_rows = Primitive("gather")
scatter_rows = Primitive("scatter")
gather_rows.reference(lambda x, index: x[index])
scatter_rows.vjp(transposed_by(gather_rows))


@gather_rows.infer
def _(x: ShapeDtypeStruct, index: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_argument(len(x.shape) >= 1, "gather", "x", x, "an array of rows")
    check_argument(index.dtype in ("int32", "int64"), "gather", "index", index, "an integer array")
    return ShapeDtypeStruct((*index.shape, *x.shape[1:]), x.dtype)


@gather_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, index = eqn.inputs
    return [b.add(scatter_rows, cotangents[0], index, num_rows=x.aval.shape[0]), None]


@gather_rows.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, index), out = eqn.inputs, eqn.outputs[0]
    if index.aval.dtype != "int32" or len(index.aval.shape) != 1 or len(x.aval.shape) != 2:
        tiler.refuse(f"gathers {x.aval} by {index.aval}; tiles gather rows of a matrix by a vector of int32")
    (count,) = fixed(index.aval.shape)
    column = tiler.view(tiler.buffer_of[index], index, (count, 1), 1, count)
    tiler.new(out)
    whole_rows = tiler.at(out, cols=col_modes.ALL, dtypes=tiler.HELD)
    tiler.emit(GATHER, tiler.rows_of(out), whole_rows, tiler.at(x, row_modes.ALL, col_modes.ALL, dtypes=tiler.HELD),
               dataclasses.replace(whole_rows, buffer=column, cols=col_modes.ONE), cols=0)


@scatter_rows.infer
def _(rows: ShapeDtypeStruct, index: ShapeDtypeStruct, *, num_rows: int) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((num_rows, *rows.shape[len(index.shape):]), rows.dtype)


@scatter_rows.reference
def _(rows: np.ndarray, index: np.ndarray, *, num_rows: int) -> np.ndarray:
    out = np.zeros((num_rows, *rows.shape[index.ndim:]), rows.dtype)
    np.add.at(out, index, rows)
    return out
