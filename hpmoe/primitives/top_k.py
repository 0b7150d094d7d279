"""The k largest or smallest of each row, in order, and where they stood; a sort takes all of them.

Of equal values the one with the smaller index comes first, whether the largest are asked for or the smallest. NaN is the
largest: first among the largest, last among the smallest.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops

from hpmoe.ir.avals import Aval, fixed
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.columns import add_columns, check_rows
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.columns import TOP_K, top_k as indices_of
from hpmoe.tile_ops.params import Choice

top_k = Primitive("top_k")


@top_k.infer
def _(x: Aval, *, k: int, largest: bool) -> tuple[Aval, Aval]:
    check_rows("top_k", x)
    check_argument(1 <= k <= fixed(x.shape)[-1], "top_k", "k", k, f"in 1..{x.shape[-1]}, the columns of {x}")
    shape = (*x.shape[:-1], k)
    return Aval(shape, x.dtype), Aval(shape, "int32")


@top_k.reference
def _(x: np.ndarray, *, k: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    ids = indices_of(x, k, largest)
    return np.take_along_axis(x, ids, axis=-1), ids


@top_k.eager
def _(x: Tensor, *, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    ids = Tensor(indices_of(values_of("hpmoe.route", x), k, largest))
    return ops.gather_elements(x, x.ndim - 1, ids), ids


@top_k.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(add_columns, cotangents[0], eqn.outputs[1], num_cols=eqn.inputs[0].aval.shape[-1])]


@top_k.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), outputs = eqn.inputs, eqn.outputs
    for out in outputs:
        tiler.new(out)
    operands = (tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (*outputs, x))
    tiler.emit(TOP_K, tiler.rows_of(x), *operands, cols=0, params=Choice(eqn.params["largest"]))
