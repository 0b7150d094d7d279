"""Reductions: sums and maxima along one axis, and the dot product of rows."""

from __future__ import annotations

import numpy as np

from hpmoe.errors import check_argument
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.shape import broadcast_to, reshape
from hpmoe.program import Atom, Aval, Builder, Equation

reduce_sum = Primitive("reduce_sum")
reduce_max = Primitive("reduce_max")
row_dot = Primitive("row_dot")


def _reduced(name: str, x: Aval, axis: int, keepdims: bool) -> Aval:
    check_argument(0 <= axis < len(x.shape), name, "axis", axis, f"in 0..{len(x.shape) - 1}")
    kept = (1,) if keepdims else ()
    return Aval(x.shape[:axis] + kept + x.shape[axis + 1:], x.dtype)


@reduce_sum.infer
def _(x: Aval, *, axis: int, keepdims: bool) -> Aval:
    return _reduced("reduce_sum", x, axis, keepdims)


@reduce_max.infer
def _(x: Aval, *, axis: int, keepdims: bool) -> Aval:
    return _reduced("reduce_max", x, axis, keepdims)


@reduce_sum.reference
def _(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
    return x.sum(axis=axis, keepdims=keepdims)


@reduce_max.reference
def _(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
    return x.max(axis=axis, keepdims=keepdims)


@reduce_sum.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    shape, axis = eqn.inputs[0].aval.shape, eqn.params["axis"]
    kept = shape[:axis] + (1,) + shape[axis + 1:]
    g = cotangents[0] if eqn.params["keepdims"] else b.add(reshape, cotangents[0], shape=kept)
    return [b.add(broadcast_to, g, shape=shape)]


@reduce_max.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    from hpmoe.primitives.elementwise import div, equal, select
    x, axis = eqn.inputs[0], eqn.params["axis"]
    kept = x.aval.shape[:axis] + (1,) + x.aval.shape[axis + 1:]
    keep = (lambda v: v) if eqn.params["keepdims"] else (lambda v: b.add(reshape, v, shape=kept))
    hits = b.add(select, b.add(equal, x, keep(eqn.outputs[0])), 1.0, 0.0)
    share = b.add(div, keep(cotangents[0]), b.add(reduce_sum, hits, axis=axis, keepdims=True))
    return [b.add(mul, hits, share)]


@reduce_sum.tile
def _(tiler, eqn: Equation) -> None:
    tiler.reduce(eqn, "sum")


@reduce_max.tile
def _(tiler, eqn: Equation) -> None:
    tiler.reduce(eqn, "max")


@row_dot.infer
def _(x: Aval, y: Aval) -> Aval:
    check_argument(x == y and len(x.shape) == 2, "row_dot", "operands", f"{x} and {y}", "two equal matrices")
    return Aval((x.shape[0], 1), x.dtype)


@row_dot.reference
def _(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.sum(x * y, axis=1, keepdims=True)


@row_dot.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, y = eqn.inputs
    return [b.add(mul, y, cotangents[0]), b.add(mul, x, cotangents[0])]


@row_dot.tile
def _(tiler, eqn: Equation) -> None:
    tiler.row_dot(eqn)
