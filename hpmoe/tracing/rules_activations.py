"""MindSpore's activation functions."""

from __future__ import annotations

import math

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.swiglu import gated
from hpmoe.tracing.calls import call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, floats_only, in_float32
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_arithmetic import expm1, scaled
from hpmoe.tracing.rules_choices import choose, clamp, hardtanh, select
from hpmoe.tracing.rules_shape import axis_of, cut, reshape, static_size
from hpmoe.tracing.tracer import Tracer

calls({
    "ReLU6": lambda r, input: clamp(r, emit(r, e.relu, input), max=6.0),
    "LeakyReLUExt LeakyReLU": lambda r, input, negative_slope=0.01: emit(
        r, e.select, emit(r, e.greater, input, 0.0), input, emit(r, e.mul, input, negative_slope)),
    "Threshold": lambda r, input, threshold, value: choose(
        r, emit(r, e.greater, input, threshold), input, value, input.hpmoe_aval.dtype),
    "HShrink": lambda r, input, lambd=0.5: choose(
        r, emit(r, e.less_equal, emit(r, e.absolute, input), lambd), 0.0, input, input.hpmoe_aval.dtype),
})


@call("PReLU")
def prelu(r: Recorder, input: Tracer, weight: Tracer) -> Tracer:
    """Traces prelu, with one slope for all channels, the second dimension, or a slope for each."""
    dims = input.hpmoe_aval.shape
    slope = reshape(r, weight, (-1, *(1,) * (len(dims) - 2)))
    return emit(r, e.select, emit(r, e.greater, input, 0.0), input, emit(r, e.mul, input, slope))


def elu(r: Recorder, input: Tracer, alpha: float = 1.0) -> Tracer:
    is_above = emit(r, e.greater, input, 0.0)
    below = expm1(r, emit(r, e.select, is_above, 0.0, input))
    return emit(r, e.select, is_above, input, scaled(r, below, alpha))


def gelu(r: Recorder, input: Tracer, approximate: str = "none") -> Tracer:
    if approximate == "tanh":
        return gelu_tanh(r, input)
    inner = emit(r, e.erf, emit(r, e.mul, input, math.sqrt(0.5)))
    return emit(r, e.mul, emit(r, e.mul, input, 0.5), emit(r, e.add, inner, 1.0))


def gelu_tanh(r: Recorder, input: Tracer) -> Tracer:
    cube = emit(r, e.mul, emit(r, e.mul, emit(r, e.square, input), input), 0.044715)
    inner = emit(r, e.mul, emit(r, e.add, input, cube), math.sqrt(2 / math.pi))
    return emit(r, e.mul, emit(r, e.mul, input, 0.5), emit(r, e.add, emit(r, e.tanh, inner), 1.0))


def softplus(r: Recorder, input: Tracer, beta: float = 1, threshold: float = 20) -> Tracer:
    x = scaled(r, input, beta)
    out = scaled(r, emit(r, e.softplus, x), 1 / beta)
    # Above 20 the two are the same in float32.
    return out if threshold >= 20 else select(r, emit(r, e.greater, x, threshold), input, out)


def glu(r: Recorder, input: Tracer, dim: int = -1) -> Tracer:
    axis = axis_of(input, dim)
    half, odd = divmod(static_size(input, axis, "a glu"), 2)
    if odd:
        raise not_traceable(f"a glu over {2 * half + 1} of {input.hpmoe_aval}", "its halves are equal", "an even size")
    return emit(r, e.mul, cut(r, input, axis, 0, half), emit(r, e.sigmoid, cut(r, input, axis, half, 2 * half)))


calls({
    "SoftShrink": lambda r, input, lambd=0.5: emit(r, e.sub, input, clamp(r, input, -lambd, lambd)),
    "Softsign": lambda r, input: emit(r, e.div, input, emit(r, e.add, emit(r, e.absolute, input), 1.0)),
    "EluExt Elu": elu,
    "SeLU SeLUExt": lambda r, input: emit(
        r, e.mul, elu(r, floats_only(input, "a SeLU"), 1.6732632423543772), 1.0507009873554805),
    "CeLU": lambda r, input, alpha=1.0: scaled(r, elu(r, scaled(r, input, 1 / alpha)), alpha),
    "GeluExt": gelu,
    "GeLU": gelu_tanh,
    "SoftplusExt": softplus,
    "LogSigmoid": lambda r, input: (emit(r, e.neg, emit(r, e.softplus, emit(r, e.neg, input))),) * 2,
    "MishExt": lambda r, input: emit(r, e.mul, input, emit(r, e.tanh, emit(r, e.softplus, input))),
    "HSigmoid": lambda r, input: emit(
        r, e.mul, hardtanh(r, emit(r, e.add, floats_only(input, "a hard sigmoid"), 3.0), 0.0, 6.0), 1 / 6),
    "HSwish": lambda r, input: emit(
        r, e.mul, input, emit(r, e.mul, clamp(r, emit(r, e.add, floats_only(input, "a hard swish"), 3.0), 0.0, 6.0), 1 / 6)),
    "GLU": glu,
}, in_float32)


@call("Swiglu")
def swiglu(r: Recorder, input: Tracer, dim: int = -1) -> Tracer:
    if dim % len(input.hpmoe_aval.shape) != len(input.hpmoe_aval.shape) - 1:
        raise not_traceable(f"ops.swiglu over dimension {dim}", "the gate and up halves are of the last one",
                            "ops.swiglu(x, -1)")
    return r(gated, input)
