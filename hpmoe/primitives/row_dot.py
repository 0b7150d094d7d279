"""The dot product of each row with that of another matrix."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation, Var
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.shape import dtype_param
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.reductions import ROW_DOT

row_dot = Primitive("row_dot")
row_dot.reference(lambda x, y, *, dtype=None: np.sum(x * y, axis=1, keepdims=True))
row_dot.tile(lambda tiler, eqn: tiler.emit_rows(ROW_DOT, eqn))


@row_dot.infer
def _(x: ShapeDtypeStruct, y: ShapeDtypeStruct, *, dtype: str | None = None) -> ShapeDtypeStruct:
    check_argument(x == y and len(x.shape) == 2, "row_dot", "operands", f"{x} and {y}", "two equal matrices")
    return ShapeDtypeStruct((x.shape[0], 1), dtype or x.dtype)


@row_dot.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, y = eqn.inputs
    return [b.add(mul, y, cotangents[0]), b.add(mul, x, cotangents[0])]


def dots_for(b: Builder, x: Atom, y: Atom, wanted: ShapeDtypeStruct | RouteAval) -> Var:
    """Returns row_dot(x, y), one scalar for each row, in the dtype of `wanted`, so that it is not rounded earlier."""
    return b.add(row_dot, x, y, **dtype_param(wanted.dtype, x.aval.dtype))
