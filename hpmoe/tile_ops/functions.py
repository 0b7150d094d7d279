"""Elementwise functions, each defined once: what it computes, its gradient, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from hpmoe.tile_ops.named import Named

V = TypeVar("V")  # an atom of a Program
Gradient = Callable[..., Sequence[Any]]  # takes Apply and the function's number of atoms


class Apply(Protocol[V]):
    """Callable `apply(function, *operands)` that adds an equation and returns its result, of the operands' class V."""

    def __call__(self, function: Function, /, *operands: V | float) -> V: ...


class Function(Named):
    """A function of numbers, applied element by element.

    Attributes:
        inputs: number of arguments.
        numpy: the function on NumPy arrays.
        grad: function (apply, cotangent, output, *inputs) that returns the cotangent of each input before sums over
            broadcasting, or None for an input; None for a function without gradient.
        result: dtype of the result, if it differs from that of the inputs.
        passes: passes of an NPU's vector instructions over float32 elements; 0 if moving bytes takes longer.
        npu_passes: passes if an NPU's scalar unit works element by element.
    """

    def __init__(self, name: str, number: int, inputs: int, numpy: Callable[..., np.ndarray],
                 grad: Gradient | None = None, *, result: str | None = None, passes: int = 0,
                 npu_passes: int = 0):
        super().__init__(name, number)
        self.inputs, self.numpy, self.grad, self.result = inputs, numpy, grad, result
        self.passes, self.npu_passes = passes, npu_passes


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _floor_div(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", over="ignore"):
        return np.floor_divide(x, y)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.remainder(x, y)


def _erf_grad(f: Apply[V], g: V, y: V, x: V) -> list[V]:
    return [f(MUL, g, f(MUL, 2 / math.sqrt(math.pi), f(EXP, f(NEG, f(MUL, x, x)))))]


def _silu_grad(f: Apply[V], g: V, y: V, x: V) -> list[V]:
    s = f(SIGMOID, x)
    return [f(MUL, g, f(MUL, s, f(ADD, 1.0, f(MUL, x, f(SUB, 1.0, s)))))]


def _pow_grad(f: Apply[V], g: V, y: V, x: V, n: V) -> list[V | None]:
    number = getattr(n, "value", None)
    less = f(SUB, n, 1.0) if number is None else number - 1.0
    return [f(MUL, g, f(MUL, n, f(POW, x, less))), None if number is not None else f(MUL, g, f(MUL, y, f(LOG, x)))]


def _choice_grad(test: Function) -> Gradient:
    """Returns the gradient of a choice by `test`: to the chosen input, half each if both are equal."""
    def grad(f: Apply[V], g: V, z: V, x: V, y: V) -> list[V]:
        first, tie, half = f(test, x, y), f(EQUAL, x, y), f(MUL, g, 0.5)
        return [f(SELECT, tie, half, f(SELECT, first, *sides)) for sides in ((g, 0.0), (0.0, g))]
    return grad


COPY = Function("copy", 0, 1, np.copy)
NEG = Function("neg", 1, 1, np.negative, lambda f, g, y, x: [f(NEG, g)])
EXP = Function("exp", 2, 1, np.exp, lambda f, g, y, x: [f(MUL, g, y)])
LOG = Function("log", 3, 1, np.log, lambda f, g, y, x: [f(DIV, g, x)])
SQRT = Function("sqrt", 4, 1, np.sqrt, lambda f, g, y, x: [f(MUL, g, f(DIV, 0.5, y))])
RSQRT = Function("rsqrt", 5, 1, lambda x: 1 / np.sqrt(x), lambda f, g, y, x: [f(MUL, g, f(MUL, -0.5, f(DIV, y, x)))])
SIGMOID = Function("sigmoid", 6, 1, _sigmoid, lambda f, g, y, x: [f(MUL, g, f(MUL, y, f(SUB, 1.0, y)))], passes=7)
TANH = Function("tanh", 7, 1, np.tanh, lambda f, g, y, x: [f(MUL, g, f(SUB, 1.0, f(MUL, y, y)))], passes=9)
SILU = Function("silu", 8, 1, lambda x: x * _sigmoid(x), _silu_grad)
RELU = Function("relu", 9, 1, lambda x: np.maximum(x, 0), lambda f, g, y, x: [f(MUL, g, f(GREATER, x, 0.0))])
ERF = Function("erf", 10, 1, lambda x: _erf(x).astype(x.dtype) if x.size else x, _erf_grad, passes=37)
ABS = Function("abs", 11, 1, np.abs, lambda f, g, y, x: [f(MUL, g, f(SIGN, x))])
RECIPROCAL = Function("reciprocal", 12, 1, np.reciprocal, lambda f, g, y, x: [f(NEG, f(MUL, g, f(MUL, y, y)))])
SQUARE = Function("square", 13, 1, np.square, lambda f, g, y, x: [f(MUL, g, f(MUL, 2.0, x))])
SIN = Function("sin", 14, 1, np.sin, lambda f, g, y, x: [f(MUL, g, f(COS, x))], passes=33)
COS = Function("cos", 15, 1, np.cos, lambda f, g, y, x: [f(NEG, f(MUL, g, f(SIN, x)))], passes=33)
SIGN = Function("sign", 16, 1, np.sign, passes=9)
SOFTPLUS = Function("softplus", 17, 1, _softplus, lambda f, g, y, x: [f(MUL, g, f(SIGMOID, x))], passes=15)
FLOOR = Function("floor", 18, 1, np.floor)
ROUND = Function("round", 19, 1, np.rint)  # halves to even
ADD = Function("add", 32, 2, np.add, lambda f, g, z, x, y: [g, g])
SUB = Function("sub", 33, 2, np.subtract, lambda f, g, z, x, y: [g, f(NEG, g)])
MUL = Function("mul", 34, 2, np.multiply, lambda f, g, z, x, y: [f(MUL, g, y), f(MUL, g, x)])
DIV = Function("div", 35, 2, np.divide, lambda f, g, z, x, y: [f(DIV, g, y), f(NEG, f(DIV, f(MUL, g, z), y))])
POW = Function("pow", 36, 2, np.power, _pow_grad, passes=38)
GREATER = Function("greater", 39, 2, np.greater, result="bool", passes=7)
GREATER_EQUAL = Function("greater_equal", 40, 2, np.greater_equal, result="bool", passes=7)
LESS = Function("less", 41, 2, np.less, result="bool", passes=7)
LESS_EQUAL = Function("less_equal", 42, 2, np.less_equal, result="bool", passes=7)
EQUAL = Function("equal", 43, 2, np.equal, result="bool", passes=7)
NOT_EQUAL = Function("not_equal", 44, 2, np.not_equal, result="bool", passes=7)
MAXIMUM = Function("maximum", 37, 2, np.maximum, _choice_grad(GREATER))
MINIMUM = Function("minimum", 38, 2, np.minimum, _choice_grad(LESS))
FLOOR_DIV = Function("floor_div", 45, 2, _floor_div, npu_passes=3200)  # of integers 0 where the divisor is
REMAINDER = Function("remainder", 46, 2, _remainder, npu_passes=3200)  # of the divisor's sign
SELECT = Function("select", 64, 3, np.where, lambda f, g, z, c, x, y: [None, f(SELECT, c, g, 0.0), f(SELECT, c, 0.0, g)],
                  passes=7)
# Functions of integers, too, which wrap around where they overflow.
OF_INTEGERS = frozenset({COPY, NEG, RELU, ABS, SQUARE, SIGN, ADD, SUB, MUL, MAXIMUM, MINIMUM, FLOOR_DIV, REMAINDER, SELECT,
                         GREATER, GREATER_EQUAL, LESS, LESS_EQUAL, EQUAL, NOT_EQUAL})
