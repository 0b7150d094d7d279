"""Elementwise primitives: unary, binary, comparisons and select, with NumPy broadcasting."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence

import numpy as np

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation, is_differentiable
from hpmoe.primitives.primitive import REGISTRY, Primitive
from hpmoe.primitives.reduction import broadcast_shapes, unbroadcast
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import HALVES
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import functions
from hpmoe.tile_ops.functions import Function


def _infer(name: str, result: str | None, *avals: ShapeDtypeStruct) -> ShapeDtypeStruct:
    for aval in avals:
        check_argument(isinstance(aval, ShapeDtypeStruct), name, "an operand", "a route", "an array")
    shape = broadcast_shapes(name, *(a.shape for a in avals))
    return ShapeDtypeStruct(shape, result or (_row_scale_dtype(avals) if name == "mul" else None)
                            or _common_dtype(name, avals))


def _common_dtype(name: str, avals: Sequence[ShapeDtypeStruct]) -> str:
    """Returns the dtype of the operands of primitive `name`; raises ArgumentError if they differ.

    Bool operands, as 0 or 1, and float32 scalars, which may be literals, adopt the dtype of the others.
    """
    numbers = [a for a in avals if a.dtype != "bool"]
    arrays = [a for a in numbers if a.shape != ()] or [a for a in numbers if a.dtype != "float32"] or numbers
    dtypes = {a.dtype for a in arrays} or {"bool"}
    check_argument(len(dtypes) == 1, name, "operand dtypes", sorted(dtypes), "equal", "Cast one with .astype().")
    return dtypes.pop()


def _row_scale_dtype(avals: Sequence[ShapeDtypeStruct]) -> str | None:
    """Returns the dtype of half-precision rows [R, N] times float32 [R, 1] routing weights, that of the rows, or None."""
    for rows, scale in (avals, avals[::-1]):
        if rows.dtype in HALVES and len(rows.shape) == 2 and scale == ShapeDtypeStruct((rows.shape[0], 1), "float32"):
            return rows.dtype
    return None


def check_weights(who: str, argument: str, weights: ShapeDtypeStruct, shape: tuple[int, int], rows_dtype: str) -> None:
    """Raises ArgumentError unless weights have this shape and the dtype of the rows, or float32 beside half precision."""
    allowed = [ShapeDtypeStruct(shape, rows_dtype), *([ShapeDtypeStruct(shape, "float32")] if rows_dtype in HALVES else [])]
    check_argument(weights in allowed, who, argument, weights, " or ".join(map(str, allowed)))


def _primitive(function: Function, name: str = "") -> Primitive:
    """Returns the operator that applies a function; under another `name` without the gradient."""
    primitive = Primitive(name or function.name)

    @primitive.infer
    def _(*avals: ShapeDtypeStruct) -> ShapeDtypeStruct:
        return _infer(primitive.name, function.result, *avals)

    operands = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY, annotation="ShapeDtypeStruct")
                for x in "xyz"[:function.inputs]]
    primitive.rules["infer"].__signature__ = inspect.Signature(operands)

    @primitive.reference
    def _(*arrays: np.ndarray) -> np.ndarray:
        return function.numpy(*arrays)

    @primitive.vjp
    def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
        if name or function.grad is None:
            return [None] * len(eqn.inputs)
        raw = function.grad(functools.partial(_apply, b), cotangents[0], eqn.outputs[0], *eqn.inputs)
        return [unbroadcast(b, g, a.aval) if g is not None and is_differentiable(a) else None
                for g, a in zip(raw, eqn.inputs, strict=True)]

    @primitive.tile
    def _(tiler: Tiler, eqn: Equation) -> None:
        out = eqn.outputs[0]
        tiler.map(function, out, *(tiler.read(a, out) for a in eqn.inputs))

    return primitive


def _apply(b: Builder, function: Function, *operands: Atom | float) -> Atom:
    return b.add(REGISTRY[function.name], *operands)


# An operator for each function but a copy, which is what stops gradients.
_OPERATORS = {f: _primitive(f) for f in Function.members.values() if f is not functions.COPY}
stop_gradient = _primitive(functions.COPY, "stop_gradient")
neg, exp, log, sqrt, rsqrt = (_OPERATORS[f] for f in (
    functions.NEG, functions.EXP, functions.LOG, functions.SQRT, functions.RSQRT))
sigmoid, tanh, silu, relu, erf = (_OPERATORS[f] for f in (
    functions.SIGMOID, functions.TANH, functions.SILU, functions.RELU, functions.ERF))
absolute, reciprocal, square, sin, cos = (_OPERATORS[f] for f in (
    functions.ABS, functions.RECIPROCAL, functions.SQUARE, functions.SIN, functions.COS))
sign, floor, round_, softplus, maximum, minimum = (_OPERATORS[f] for f in (
    functions.SIGN, functions.FLOOR, functions.ROUND, functions.SOFTPLUS, functions.MAXIMUM, functions.MINIMUM))
floor_div, remainder = (_OPERATORS[f] for f in (functions.FLOOR_DIV, functions.REMAINDER))
add, sub, mul, div, power, select = (_OPERATORS[f] for f in (
    functions.ADD, functions.SUB, functions.MUL, functions.DIV, functions.POW, functions.SELECT))
greater, greater_equal, less, less_equal, equal, not_equal = (_OPERATORS[f] for f in (
    functions.GREATER, functions.GREATER_EQUAL, functions.LESS, functions.LESS_EQUAL, functions.EQUAL, functions.NOT_EQUAL))
