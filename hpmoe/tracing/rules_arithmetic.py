"""MindSpore's arithmetic, comparisons, logic, and elementary functions of numbers."""

from __future__ import annotations

import math

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.primitive import Primitive
from hpmoe.support.dtypes import INTEGERS, REALS
from hpmoe.tracing.calls import Rule, call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, in_float32, promote_dtypes, scaled_dtype, to_dtype, to_float
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Operand, Tracer

_FLOAT_UNARY = {
    "Exp": e.exp, "Log": e.log, "Sqrt": e.sqrt, "Rsqrt": e.rsqrt, "Sigmoid": e.sigmoid, "Tanh": e.tanh, "SiLU": e.silu,
    "Erf": e.erf, "Reciprocal": e.reciprocal, "Sin": e.sin, "Cos": e.cos, "Floor": e.floor, "Softplus": e.softplus,
}
_UNARY = {"Neg": e.neg, "Abs": e.absolute, "Sign": e.sign, "Square": e.square, "ReLU": e.relu,
          "StopGradient": e.stop_gradient}
_BINARY = {
    "Add": e.add, "AddScalar": e.add, "Maximum": e.maximum, "Minimum": e.minimum, "Greater": e.greater,
    "GreaterEqual": e.greater_equal, "Less": e.less, "LessEqual": e.less_equal, "Equal": e.equal, "NotEqual": e.not_equal,
    "GreaterScalar": e.greater, "GreaterEqualScalar": e.greater_equal, "LessScalar": e.less,
    "LessEqualScalar": e.less_equal, "EqScalar": e.equal, "NeScalar": e.not_equal,
}


def _unary(primitive: Primitive) -> Rule:
    return lambda r, input: emit(r, primitive, input)


def _float_unary(primitive: Primitive) -> Rule:
    return lambda r, input: emit(r, primitive, to_float(r, input))


def _binary(primitive: Primitive) -> Rule:
    return lambda r, input, other: emit(r, primitive, input, other)


calls({name: _float_unary(primitive) for name, primitive in _FLOAT_UNARY.items()})
calls({name: _unary(primitive) for name, primitive in _UNARY.items()})
calls({name: _binary(primitive) for name, primitive in _BINARY.items()})


@call("Mul", "Muls")
def mul(r: Recorder, input: Operand, other: Operand) -> Tracer:
    return emit(r, e.mul, input, other, dtype=scaled_dtype((input, other)))


def scaled(r: Recorder, x: Operand, factor: Operand) -> Tracer:
    return x if isinstance(factor, (int, float)) and factor == 1 else mul(r, x, factor)


@call("AddExt")
def add(r: Recorder, input: Operand, other: Operand, alpha: Operand = 1) -> Tracer:
    return emit(r, e.add, input, scaled(r, other, alpha))


@call("Sub", "SubScalar", "SubExt")
def sub(r: Recorder, input: Operand, other: Operand, alpha: Operand = 1) -> Tracer:
    if all(x.hpmoe_aval.dtype == "bool" if isinstance(x, Tracer) else isinstance(x, bool) for x in (input, other)):
        raise not_traceable("a difference of truth values", "it has no primitive", "a != b, or x.astype(mindspore.float32)")
    return emit(r, e.sub, input, scaled(r, other, alpha))


def _integers(*operands: Operand) -> str:
    """Returns the integer dtype that numbers and tensors have in common, or ""."""
    dtype = promote_dtypes([o.hpmoe_aval.dtype for o in operands if isinstance(o, Tracer)],
                           [o for o in operands if not isinstance(o, Tracer)])
    return dtype if dtype in INTEGERS else ""


@call("Div", "Divs", "RealDiv", "DivMod", "DivMods")
def div(r: Recorder, input: Operand, other: Operand, rounding_mode: str | None = None) -> Tracer:
    if rounding_mode == "floor" and (integers := _integers(input, other)):
        return emit(r, e.floor_div, input, other, dtype=integers)
    dtype = scaled_dtype((input, other), [0.0])
    out = emit(r, e.div, *(to_dtype(r, o, dtype) for o in (input, other)), dtype=dtype)
    if rounding_mode not in (None, "floor"):
        raise not_traceable(f"div with rounding_mode={rounding_mode!r}", "it has no primitive",
                            "rounding_mode=None or 'floor'")
    return emit(r, e.floor, out) if rounding_mode else out


@call("Pow", "PowTensorScalar", "PowScalarTensor", "PowTensor")
def power(r: Recorder, input: Operand, exponent: Operand) -> Tracer:
    if not isinstance(exponent, Tracer) and exponent == 2:
        return emit(r, e.square, input)
    return emit(r, e.power, input, exponent)


@call("Round")
def round_(r: Recorder, input: Tracer, decimals: int = 0) -> Tracer:
    """Traces rounding of halves to the even number; it has no gradient."""
    if decimals != 0:
        raise not_traceable(f"rounding to {decimals} decimals", "MindSpore has it on some devices only",
                            "mint.round(x * n) / n")
    return emit(r, e.round_, input) if input.hpmoe_aval.dtype in REALS else input


def logaddexp(r: Recorder, input: Tracer, other: Tracer) -> Tracer:
    high, low = emit(r, e.maximum, input, other), emit(r, e.minimum, input, other)
    is_same = emit(r, e.equal, low, high)  # or both infinite, whose difference is no number
    apart = emit(r, e.select, is_same, 0.0, emit(r, e.sub, low, high))
    return emit(r, e.add, high, emit(r, e.softplus, apart))


calls({
    "IsFinite": lambda r, x: emit(r, e.less, emit(r, e.absolute, x), math.inf),
    "IsInf": lambda r, x: emit(r, e.equal, emit(r, e.absolute, x), math.inf),
    "FloorDiv FloorDivScalar": lambda r, input, other: div(r, input, other, "floor"),
})
calls({
    "Addcmul AddcmulExt": lambda r, input, tensor1, tensor2, value=1: emit(
        r, e.add, input, scaled(r, emit(r, e.mul, tensor1, tensor2), value)),
    "Addcdiv AddcdivExt": lambda r, input, tensor1, tensor2, value=1: emit(
        r, e.add, input, scaled(r, div(r, tensor1, tensor2), value)),
    "Lerp LerpScalar": lambda r, input, end, weight: emit(
        r, e.add, input, emit(r, e.mul, emit(r, e.sub, end, input), weight)),
    "LogAddExp": logaddexp,
    "LogAddExp2": lambda r, input, other: emit(
        r, e.mul, logaddexp(r, *(emit(r, e.mul, x, math.log(2)) for x in (input, other))), 1 / math.log(2)),
}, in_float32)


def _refined(r: Recorder, rough: Tracer, x: Tracer, near_zero: Tracer) -> Tracer:
    """Returns `near_zero` if |x| < 1/2, else `rough`, which cancels near 0; the gradient is that of `rough`."""
    correction = emit(r, e.select, emit(r, e.less, emit(r, e.absolute, x), 0.5), emit(r, e.sub, near_zero, rough), 0.0)
    return emit(r, e.add, rough, emit(r, e.stop_gradient, correction))


def expm1(r: Recorder, x: Tracer) -> Tracer:
    y = emit(r, e.exp, x)
    near_zero = emit(r, e.mul, emit(r, e.tanh, emit(r, e.mul, x, 0.5)), emit(r, e.add, y, 1.0))
    return _refined(r, emit(r, e.sub, y, 1.0), x, near_zero)


def _log1p(r: Recorder, x: Tracer) -> Tracer:
    y = emit(r, e.add, x, 1.0)
    lost = emit(r, e.sub, x, emit(r, e.sub, y, 1.0))  # by rounding y
    rough = emit(r, e.log, y)
    return _refined(r, rough, x, emit(r, e.add, rough, emit(r, e.div, lost, y)))


def _sinh(r: Recorder, x: Tracer) -> Tracer:
    up, down = emit(r, e.exp, x), emit(r, e.exp, emit(r, e.neg, x))
    near_zero = emit(r, e.mul, emit(r, e.tanh, x), emit(r, e.mul, emit(r, e.add, up, down), 0.5))
    return _refined(r, emit(r, e.mul, emit(r, e.sub, up, down), 0.5), x, near_zero)


def _of_floats(build: Rule) -> Rule:
    return in_float32(lambda r, input: build(r, to_float(r, input)))


calls({
    "Expm1": expm1,
    "Log1p": _log1p,
    "Exp2": lambda r, x: emit(r, e.exp, emit(r, e.mul, x, math.log(2))),
    "Log2": lambda r, x: emit(r, e.mul, emit(r, e.log, x), 1 / math.log(2)),
    "Log10": lambda r, x: emit(r, e.mul, emit(r, e.log, x), 1 / math.log(10)),
    "Tan": lambda r, x: emit(r, e.div, emit(r, e.sin, x), emit(r, e.cos, x)),
    "Ceil": lambda r, x: emit(r, e.neg, emit(r, e.floor, emit(r, e.neg, x))),
    "Erfc": lambda r, x: emit(r, e.sub, 1.0, emit(r, e.erf, x)),
    "Sinh": _sinh,
    "Cosh": lambda r, x: emit(r, e.mul, emit(r, e.add, emit(r, e.exp, x), emit(r, e.exp, emit(r, e.neg, x))), 0.5),
}, _of_floats)


@call("RemainderTensorScalar", "RemainderTensorTensor", "RemainderScalarTensor", "FloorMod")
@in_float32
def remainder(r: Recorder, input: Operand, other: Operand) -> Tracer:
    if integers := _integers(input, other):
        return emit(r, e.remainder, input, other, dtype=integers)
    return emit(r, e.sub, input, emit(r, e.mul, div(r, input, other, "floor"), other))


# Logic.

@call("LogicalNot")
def logical_not(r: Recorder, input: Tracer) -> Tracer:
    return r(e.equal, to_dtype(r, input, "bool"), False)


def _logical(primitive: Primitive) -> Rule:
    return lambda r, input, other: r(primitive, to_dtype(r, input, "bool"), to_dtype(r, other, "bool"))


def _bitwise(primitive: Primitive, sign: str) -> Rule:
    def rule(r: Recorder, input: Operand, other: Operand) -> Tracer:
        for x in (input, other):
            if not isinstance(x, Tracer) or x.hpmoe_aval.dtype != "bool":
                raise not_traceable(f"{sign} on integers", "only bool tensors have it", "arithmetic and comparisons")
        return r(primitive, input, other)
    return rule


calls({
    "LogicalAnd": _logical(e.minimum), "LogicalOr": _logical(e.maximum), "LogicalXor": _logical(e.not_equal),
    "BitwiseAndTensor BitwiseAndScalar": _bitwise(e.minimum, "&"),
    "BitwiseOrTensor BitwiseOrScalar": _bitwise(e.maximum, "|"),
})
