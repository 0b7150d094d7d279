"""Elementwise primitives: unary, binary, comparisons and select, with NumPy broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpmoe.avals import Aval
from hpmoe.dtypes import HALVES
from hpmoe.errors import check_argument
from hpmoe.primitives.differentiable import is_differentiable
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import broadcast_shapes, unbroadcast
from hpmoe.program import Atom, Builder, Equation, Var

_erf = np.vectorize(math.erf, otypes=[np.float64])

def _infer(name: str, result: str | None, *avals: Aval) -> Aval:
    for aval in avals:
        check_argument(isinstance(aval, Aval), name, "an operand", "a route", "an array")
    shape = broadcast_shapes(name, *(a.shape for a in avals))
    return Aval(shape, result or (_row_scale_dtype(avals) if name == "mul" else None) or _common_dtype(name, avals))


def _common_dtype(name: str, avals: Sequence[Aval]) -> str:
    """The one dtype of the operands. A bool counts as 0 or 1, and a float32 without dimensions may be a literal's."""
    numbers = [a for a in avals if a.dtype != "bool"]
    arrays = [a for a in numbers if a.shape != ()] or [a for a in numbers if a.dtype != "float32"] or numbers
    dtypes = {a.dtype for a in arrays} or {"bool"}
    check_argument(len(dtypes) == 1, name, "operand dtypes", sorted(dtypes), "equal", "Cast one with .astype().")
    return dtypes.pop()


def _row_scale_dtype(avals: Sequence[Aval]) -> str | None:
    """That of the rows, for half-precision rows [R, N] by one float32 each, [R, 1]: the scale of a routing weight."""
    for rows, scale in (avals, avals[::-1]):
        if rows.dtype in HALVES and len(rows.shape) == 2 and scale == Aval((rows.shape[0], 1), "float32"):
            return rows.dtype
    return None


def check_weights(who: str, argument: str, weights: Aval, shape: tuple[int, int], rows_dtype: str) -> None:
    """Raises ArgumentError unless weights have this shape and the dtype of the rows, or float32 beside half precision."""
    allowed = [Aval(shape, rows_dtype), *([Aval(shape, "float32")] if rows_dtype in HALVES else [])]
    check_argument(weights in allowed, who, argument, weights, " or ".join(map(str, allowed)))


def _define(name: str, compute: Callable[..., np.ndarray], grad: Callable[..., list[Atom | None]] | None,
            result: str | None = None) -> Primitive:
    primitive = Primitive(name)

    @primitive.infer
    def _(*avals: Aval) -> Aval:
        return _infer(name, result, *avals)

    @primitive.reference
    def _(*arrays: np.ndarray) -> np.ndarray:
        return compute(*arrays)

    @primitive.vjp
    def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
        if grad is None:
            return [None] * len(eqn.inputs)
        raw = grad(b, cotangents[0], eqn.outputs[0], *eqn.inputs)
        return [unbroadcast(b, g, a.aval) if g is not None and is_differentiable(a) else None
                for g, a in zip(raw, eqn.inputs, strict=True)]

    @primitive.tile
    def _(tiler: Any, eqn: Equation) -> None:
        out = eqn.outputs[0]
        tiler.map("copy" if name == "stop_gradient" else name, out, *(tiler.read(a, out.aval) for a in eqn.inputs))

    return primitive


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _silu_grad(b, g, y, x):
    s = b.add(sigmoid, x)
    slope = b.add(mul, s, b.add(add, 1.0, b.add(mul, x, b.add(sub, 1.0, s))))
    return [b.add(mul, g, slope)]


def _pow_grad(b, g, y, x, n):
    dx = b.add(mul, g, b.add(mul, n, b.add(power, x, b.add(sub, n, 1.0) if isinstance(n, Var) else n.value - 1.0)))
    return [dx, b.add(mul, g, b.add(mul, y, b.add(log, x))) if isinstance(n, Var) else None]


def _choose_grad(b, g, test: Primitive, x, y):
    """Gradient of maximum and minimum: to the chosen operand, half each where both are equal."""
    first, tie, half = b.add(test, x, y), b.add(equal, x, y), b.add(mul, g, 0.5)
    return [b.add(select, tie, half, b.add(select, first, *sides)) for sides in ((g, 0.0), (0.0, g))]


neg = _define("neg", np.negative, lambda b, g, y, x: [b.add(neg, g)])
exp = _define("exp", np.exp, lambda b, g, y, x: [b.add(mul, g, y)])
log = _define("log", np.log, lambda b, g, y, x: [b.add(div, g, x)])
sqrt = _define("sqrt", np.sqrt, lambda b, g, y, x: [b.add(mul, g, b.add(div, 0.5, y))])
rsqrt = _define("rsqrt", lambda x: 1 / np.sqrt(x),
                lambda b, g, y, x: [b.add(mul, g, b.add(mul, -0.5, b.add(div, y, x)))])
sigmoid = _define("sigmoid", _sigmoid, lambda b, g, y, x: [b.add(mul, g, b.add(mul, y, b.add(sub, 1.0, y)))])
tanh = _define("tanh", np.tanh, lambda b, g, y, x: [b.add(mul, g, b.add(sub, 1.0, b.add(mul, y, y)))])
silu = _define("silu", lambda x: x * _sigmoid(x), _silu_grad)
relu = _define("relu", lambda x: np.maximum(x, 0), lambda b, g, y, x: [b.add(mul, g, b.add(greater, x, 0.0))])
erf = _define("erf", lambda x: _erf(x).astype(x.dtype) if x.size else x, lambda b, g, y, x: [
    b.add(mul, g, b.add(mul, 2 / math.sqrt(math.pi), b.add(exp, b.add(neg, b.add(mul, x, x)))))])
absolute = _define("abs", np.abs, lambda b, g, y, x: [b.add(mul, g, b.add(sign, x))])
reciprocal = _define("reciprocal", np.reciprocal, lambda b, g, y, x: [b.add(neg, b.add(mul, g, b.add(mul, y, y)))])
square = _define("square", np.square, lambda b, g, y, x: [b.add(mul, g, b.add(mul, 2.0, x))])
sin = _define("sin", np.sin, lambda b, g, y, x: [b.add(mul, g, b.add(cos, x))])
cos = _define("cos", np.cos, lambda b, g, y, x: [b.add(neg, b.add(mul, g, b.add(sin, x)))])
sign = _define("sign", np.sign, None)
floor = _define("floor", np.floor, None)
softplus = _define("softplus", _softplus, lambda b, g, y, x: [b.add(mul, g, b.add(sigmoid, x))])
stop_gradient = _define("stop_gradient", np.copy, None)
add = _define("add", np.add, lambda b, g, z, x, y: [g, g])
sub = _define("sub", np.subtract, lambda b, g, z, x, y: [g, b.add(neg, g)])
mul = _define("mul", np.multiply, lambda b, g, z, x, y: [b.add(mul, g, y), b.add(mul, g, x)])
div = _define("div", np.divide, lambda b, g, z, x, y: [
    b.add(div, g, y), b.add(neg, b.add(div, b.add(mul, g, z), y))])
power = _define("pow", np.power, _pow_grad)
maximum = _define("maximum", np.maximum, lambda b, g, z, x, y: _choose_grad(b, g, greater, x, y))
minimum = _define("minimum", np.minimum, lambda b, g, z, x, y: _choose_grad(b, g, less, x, y))
greater = _define("greater", np.greater, None, "bool")
greater_equal = _define("greater_equal", np.greater_equal, None, "bool")
less = _define("less", np.less, None, "bool")
less_equal = _define("less_equal", np.less_equal, None, "bool")
equal = _define("equal", np.equal, None, "bool")
not_equal = _define("not_equal", np.not_equal, None, "bool")
select = _define("select", np.where, lambda b, g, z, c, x, y: [
    None, b.add(select, c, g, 0.0), b.add(select, c, 0.0, g)])
