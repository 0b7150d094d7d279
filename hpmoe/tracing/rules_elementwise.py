"""MindSpore's elementwise operations: arithmetic, comparisons, activations, choices."""

from __future__ import annotations

import math
from typing import Any

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.shape import broadcast_to
from hpmoe.primitives.swiglu import gated
from hpmoe.tracing.calls import call
from hpmoe.tracing.draws import refuse_draw
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, full, in_float32, promote_dtypes, refuse_integers, scaled_dtype, to_dtype, to_float
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_shape import axis_of, cut, static_size
from hpmoe.tracing.tracer import Tracer

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


def _unary(primitive: Any, to_floats: bool) -> Any:
    def rule(r: Recorder, input: Any) -> Any:
        return emit(r, primitive, to_float(r, input) if to_floats else input)
    return rule


def _binary(primitive: Any) -> Any:
    def rule(r: Recorder, input: Any, other: Any) -> Any:
        return emit(r, primitive, input, other)
    return rule


for _name, _primitive in _FLOAT_UNARY.items():
    call(_name)(_unary(_primitive, True))
for _name, _primitive in _UNARY.items():
    call(_name)(_unary(_primitive, False))
for _name, _primitive in _BINARY.items():
    call(_name)(_binary(_primitive))


@call("Mul", "Muls")
def mul(r: Recorder, input: Any, other: Any) -> Any:
    return emit(r, e.mul, input, other, dtype=scaled_dtype((input, other)))


def _scaled(r: Recorder, x: Any, factor: Any) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else mul(r, x, factor)


@call("AddExt")
def add(r: Recorder, input: Any, other: Any, alpha: Any = 1) -> Any:
    return emit(r, e.add, input, _scaled(r, other, alpha))


@call("Sub", "SubScalar", "SubExt")
def sub(r: Recorder, input: Any, other: Any, alpha: Any = 1) -> Any:
    if all(x.hpmoe_aval.dtype == "bool" if isinstance(x, Tracer) else isinstance(x, bool) for x in (input, other)):
        raise not_traceable("a difference of truth values", "it has no primitive", "a != b, or x.astype(mindspore.float32)")
    return emit(r, e.sub, input, _scaled(r, other, alpha))


@call("Div", "Divs", "RealDiv", "DivMod", "DivMods")
def div(r: Recorder, input: Any, other: Any, rounding_mode: str | None = None) -> Any:
    operands = [o.hpmoe_aval.dtype for o in (input, other) if isinstance(o, Tracer)]
    if rounding_mode and not any(d in e.FLOATS for d in operands):
        raise not_traceable("integer division", "only floats have it", "x.astype(mindspore.float32) first")
    dtype = scaled_dtype((input, other), [0.0])
    out = emit(r, e.div, *(to_dtype(r, o, dtype) for o in (input, other)), dtype=dtype)
    if rounding_mode not in (None, "floor"):
        raise not_traceable(f"div with rounding_mode={rounding_mode!r}", "it has no primitive",
                            "rounding_mode=None or 'floor'")
    return emit(r, e.floor, out) if rounding_mode else out


@call("Pow", "PowTensorScalar", "PowScalarTensor", "PowTensor")
def power(r: Recorder, input: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Tracer) and exponent == 2:
        return emit(r, e.square, input)
    return emit(r, e.power, input, exponent)


@call("Addcmul", "AddcmulExt")
@in_float32
def addcmul(r: Recorder, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return emit(r, e.add, input, _scaled(r, emit(r, e.mul, tensor1, tensor2), value))


@call("Addcdiv", "AddcdivExt")
@in_float32
def addcdiv(r: Recorder, input: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> Any:
    return emit(r, e.add, input, _scaled(r, div(r, tensor1, tensor2), value))


@call("Lerp", "LerpScalar")
@in_float32
def lerp(r: Recorder, input: Any, end: Any, weight: Any) -> Any:
    return emit(r, e.add, input, emit(r, e.mul, emit(r, e.sub, end, input), weight))


# Choices.

@call("Select", "Where")
def select(r: Recorder, condition: Any, input: Any, other: Any) -> Any:
    dtype = promote_dtypes([o.hpmoe_aval.dtype for o in (input, other) if isinstance(o, Tracer)],
                           [o for o in (input, other) if not isinstance(o, Tracer)])
    values = [to_dtype(r, o, dtype) for o in (input, other)]
    return emit(r, e.select, to_dtype(r, condition, "bool"), *values, dtype=dtype)


@call("Tensor.Select", "DeprecatedSelect", "DeprecatedWhere")
def select_method(r: Recorder, input: Any, condition: Any, y: Any) -> Any:
    return select(r, condition, input, y)


@call("MaskedFill", "MaskedFillScalar")
def masked_fill(r: Recorder, input: Any, mask: Any, value: Any) -> Any:
    return emit(r, e.select, mask, value, input, dtype=input.hpmoe_aval.dtype)


@call("FuncDropoutExt")
def dropout(r: Recorder, input: Any, p: Any, training: Any, *unused: Any) -> Any:
    if training:
        refuse_draw(r, "the random operation FuncDropoutExt")
    return input


@call("ClampScalar", "ClampTensor")
def clamp(r: Recorder, input: Any, min: Any = None, max: Any = None) -> Any:
    """What equals a bound keeps its gradient."""
    if min is None and max is None:
        raise not_traceable("a clamp without bounds", "it does nothing", "the tensor as it is, or min= or max=")
    out = input if min is None else select(r, emit(r, e.less, input, min), min, input)
    return out if max is None else select(r, emit(r, e.greater, out, max), max, out)


@call("Hardtanh")
def hardtanh(r: Recorder, input: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Any:
    """What equals a bound has no gradient."""
    out = select(r, emit(r, e.less_equal, input, min_val), min_val, input)
    return select(r, emit(r, e.greater_equal, out, max_val), max_val, out)


# Compositions of the above.

def _refined(r: Recorder, rough: Any, x: Any, near_zero: Any) -> Any:
    """`near_zero` where |x| < 1/2 and `rough`, which cancels there, elsewhere; the gradient is that of `rough`."""
    correction = emit(r, e.select, emit(r, e.less, emit(r, e.absolute, x), 0.5), emit(r, e.sub, near_zero, rough), 0.0)
    return emit(r, e.add, rough, emit(r, e.stop_gradient, correction))


def _expm1(r: Recorder, x: Any) -> Any:
    y = emit(r, e.exp, x)
    near_zero = emit(r, e.mul, emit(r, e.tanh, emit(r, e.mul, x, 0.5)), emit(r, e.add, y, 1.0))
    return _refined(r, emit(r, e.sub, y, 1.0), x, near_zero)


def _log1p(r: Recorder, x: Any) -> Any:
    y = emit(r, e.add, x, 1.0)
    lost = emit(r, e.sub, x, emit(r, e.sub, y, 1.0))  # by rounding y
    rough = emit(r, e.log, y)
    return _refined(r, rough, x, emit(r, e.add, rough, emit(r, e.div, lost, y)))


def _sinh(r: Recorder, x: Any) -> Any:
    up, down = emit(r, e.exp, x), emit(r, e.exp, emit(r, e.neg, x))
    near_zero = emit(r, e.mul, emit(r, e.tanh, x), emit(r, e.mul, emit(r, e.add, up, down), 0.5))
    return _refined(r, emit(r, e.mul, emit(r, e.sub, up, down), 0.5), x, near_zero)


_COMPOSED = {
    "Expm1": _expm1,
    "Log1p": _log1p,
    "Exp2": lambda r, x: emit(r, e.exp, emit(r, e.mul, x, math.log(2))),
    "Log2": lambda r, x: emit(r, e.mul, emit(r, e.log, x), 1 / math.log(2)),
    "Log10": lambda r, x: emit(r, e.mul, emit(r, e.log, x), 1 / math.log(10)),
    "Tan": lambda r, x: emit(r, e.div, emit(r, e.sin, x), emit(r, e.cos, x)),
    "Ceil": lambda r, x: emit(r, e.neg, emit(r, e.floor, emit(r, e.neg, x))),
    "Erfc": lambda r, x: emit(r, e.sub, 1.0, emit(r, e.erf, x)),
    "Sinh": _sinh,
    "Cosh": lambda r, x: emit(r, e.mul, emit(r, e.add, emit(r, e.exp, x), emit(r, e.exp, emit(r, e.neg, x))), 0.5),
}


def _composed(build: Any) -> Any:
    def rule(r: Recorder, input: Any) -> Any:
        return build(r, to_float(r, input))
    return in_float32(rule)


for _name, _build in _COMPOSED.items():
    call(_name)(_composed(_build))


@call("FloorDiv", "FloorDivScalar")
def floor_div(r: Recorder, input: Any, other: Any) -> Any:
    return div(r, input, other, "floor")


@call("RemainderTensorScalar", "RemainderTensorTensor", "RemainderScalarTensor", "FloorMod")
@in_float32
def remainder(r: Recorder, input: Any, other: Any) -> Any:
    return emit(r, e.sub, input, emit(r, e.mul, floor_div(r, input, other), other))


@call("LogicalNot")
def logical_not(r: Recorder, input: Any) -> Any:
    return r(e.equal, to_dtype(r, input, "bool"), False)


@call("LogicalAnd")
def logical_and(r: Recorder, input: Any, other: Any) -> Any:
    return r(e.minimum, to_dtype(r, input, "bool"), to_dtype(r, other, "bool"))


@call("LogicalOr")
def logical_or(r: Recorder, input: Any, other: Any) -> Any:
    return r(e.maximum, to_dtype(r, input, "bool"), to_dtype(r, other, "bool"))


def _bitwise(r: Recorder, input: Any, other: Any, rule: Any, sign: str) -> Any:
    for x in (input, other):
        if not isinstance(x, Tracer) or x.hpmoe_aval.dtype != "bool":
            raise not_traceable(f"{sign} on integers", "only bool tensors have it", "arithmetic and comparisons")
    return rule(r, input, other)


@call("BitwiseAndTensor", "BitwiseAndScalar")
def bitwise_and(r: Recorder, input: Any, other: Any) -> Any:
    return _bitwise(r, input, other, logical_and, "&")


@call("BitwiseOrTensor", "BitwiseOrScalar")
def bitwise_or(r: Recorder, input: Any, other: Any) -> Any:
    return _bitwise(r, input, other, logical_or, "|")


# Activations.

@call("ReLU6")
def relu6(r: Recorder, input: Any) -> Any:
    return clamp(r, emit(r, e.relu, input), max=6.0)


@call("LeakyReLUExt", "LeakyReLU")
def leaky_relu(r: Recorder, input: Any, negative_slope: float = 0.01) -> Any:
    return emit(r, e.select, emit(r, e.greater, input, 0.0), input, emit(r, e.mul, input, negative_slope))


@call("EluExt", "Elu")
@in_float32
def elu(r: Recorder, input: Any, alpha: float = 1.0) -> Any:
    is_above = emit(r, e.greater, input, 0.0)
    below = _expm1(r, emit(r, e.select, is_above, 0.0, input))
    return emit(r, e.select, is_above, input, _scaled(r, below, alpha))


@call("SeLU", "SeLUExt")
@in_float32
def selu(r: Recorder, input: Any) -> Any:
    refuse_integers(input, "a SeLU")
    return emit(r, e.mul, elu(r, input, 1.6732632423543772), 1.0507009873554805)


@call("CeLU")
@in_float32
def celu(r: Recorder, input: Any, alpha: float = 1.0) -> Any:
    return _scaled(r, elu(r, _scaled(r, input, 1 / alpha)), alpha)


@call("GeluExt")
@in_float32
def gelu(r: Recorder, input: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return gelu_tanh(r, input)
    inner = emit(r, e.erf, emit(r, e.mul, input, math.sqrt(0.5)))
    return emit(r, e.mul, emit(r, e.mul, input, 0.5), emit(r, e.add, inner, 1.0))


@call("GeLU")
@in_float32
def gelu_tanh(r: Recorder, input: Any) -> Any:
    cube = emit(r, e.mul, emit(r, e.mul, emit(r, e.square, input), input), 0.044715)
    inner = emit(r, e.mul, emit(r, e.add, input, cube), math.sqrt(2 / math.pi))
    return emit(r, e.mul, emit(r, e.mul, input, 0.5), emit(r, e.add, emit(r, e.tanh, inner), 1.0))


@call("SoftplusExt")
@in_float32
def softplus(r: Recorder, input: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = _scaled(r, input, beta)
    out = _scaled(r, emit(r, e.softplus, scaled), 1 / beta)
    # Above 20 the two are the same in float32.
    return out if threshold >= 20 else select(r, emit(r, e.greater, scaled, threshold), input, out)


@call("LogSigmoid")
@in_float32
def log_sigmoid(r: Recorder, input: Any) -> tuple[Any, Any]:
    out = emit(r, e.neg, emit(r, e.softplus, emit(r, e.neg, input)))
    return out, out


@call("MishExt")
@in_float32
def mish(r: Recorder, input: Any) -> Any:
    return emit(r, e.mul, input, emit(r, e.tanh, emit(r, e.softplus, input)))


@call("HSigmoid")
@in_float32
def hard_sigmoid(r: Recorder, input: Any) -> Any:
    refuse_integers(input, "a hard sigmoid")
    return emit(r, e.mul, hardtanh(r, emit(r, e.add, input, 3.0), 0.0, 6.0), 1 / 6)


@call("HSwish")
@in_float32
def hard_swish(r: Recorder, input: Any) -> Any:
    refuse_integers(input, "a hard swish")
    return emit(r, e.mul, input, emit(r, e.mul, clamp(r, emit(r, e.add, input, 3.0), 0.0, 6.0), 1 / 6))


@call("GLU")
@in_float32
def glu(r: Recorder, input: Any, dim: int = -1) -> Any:
    axis = axis_of(input, dim)
    half, odd = divmod(static_size(input, axis, "a glu"), 2)
    if odd:
        raise not_traceable(f"a glu over {2 * half + 1} of {input.hpmoe_aval}", "its halves are equal", "an even size")
    return emit(r, e.mul, cut(r, input, axis, 0, half), emit(r, e.sigmoid, cut(r, input, axis, half, 2 * half)))


@call("Swiglu")
def swiglu(r: Recorder, input: Any, dim: int = -1) -> Any:
    if dim % len(input.hpmoe_aval.shape) != len(input.hpmoe_aval.shape) - 1:
        raise not_traceable(f"ops.swiglu over dimension {dim}", "the gate and up halves are of the last one",
                            "ops.swiglu(x, -1)")
    return r(gated, input)


# Arrays of one value.

def _like(r: Recorder, input: Any, value: Any, dtype: Any) -> Any:
    return full(r, input.hpmoe_aval.shape, value, r.dtype_name(dtype) or input.hpmoe_aval.dtype)


@call("ZerosLike", "ZerosLikeExt")
def zeros_like(r: Recorder, input: Any, dtype: Any = None) -> Any:
    return _like(r, input, 0.0, dtype)


@call("OnesLike", "OnesLikeExt")
def ones_like(r: Recorder, input: Any, dtype: Any = None) -> Any:
    return _like(r, input, 1.0, dtype)


@call("FullLike")
def full_like(r: Recorder, input: Any, fill_value: Any, dtype: Any = None) -> Any:
    return _like(r, input, fill_value, dtype)


@call("ExpandAs")
def expand_as(r: Recorder, input: Any, other: Any) -> Any:
    return r(broadcast_to, input, shape=other.hpmoe_aval.shape)
