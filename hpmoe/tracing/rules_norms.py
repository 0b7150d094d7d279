"""MindSpore's softmax and norms."""

from __future__ import annotations

import math

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.reduce_max import reduce_max
from hpmoe.primitives.reduction import reduce_sum
from hpmoe.primitives.shape import reshape
from hpmoe.support.known import known
from hpmoe.tracing.calls import Rule, call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, in_float32, promote_dtypes, to_dtype, to_float, wide
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_reduce import axes_of, mean
from hpmoe.tracing.rules_shape import axis_of, dims_of
from hpmoe.tracing.tracer import Axes, Sizes, Tracer

Normed = tuple[Tracer, Tracer, Tracer]


def _one_axis(x: Tracer, dim: Axes) -> int:
    axes = axes_of(x, -1 if dim is None else dim)
    if len(axes) != 1:
        raise not_traceable("softmax over several dimensions", "it is over one", "softmax over one dimension")
    return axes[0]


def _softmax(is_log: bool) -> Rule:
    def rule(r: Recorder, input: Tracer, dim: Axes = -1, dtype: object = None) -> Tracer:
        x, axis = to_dtype(r, input, known(r.dtype_name(dtype))) if dtype else input, _one_axis(input, dim)
        shifted = emit(r, e.sub, x, r(e.stop_gradient, r(reduce_max, x, axis=axis, keepdims=True)))
        powers = emit(r, e.exp, shifted)
        total = r(reduce_sum, powers, axis=axis, keepdims=True)
        return emit(r, e.sub, shifted, emit(r, e.log, total)) if is_log else emit(r, e.div, powers, total)
    return rule


calls({"Softmax": _softmax(False), "LogSoftmax LogSoftmaxExt": _softmax(True)}, in_float32)


@call("LogSumExp")
@in_float32
def log_sum_exp(r: Recorder, input: Tracer, dim: Axes, keepdim: bool = False) -> Tracer:
    """Traces log(sum(exp(x))); an infinite maximum is not subtracted, so that it stays the result."""
    input, axis = to_float(r, input), _one_axis(input, dim)
    peak = r(reduce_max, input, axis=axis, keepdims=True)
    peak = r(e.stop_gradient, emit(r, e.select, emit(r, e.less, emit(r, e.absolute, peak), math.inf), peak, 0.0))
    total = r(reduce_sum, emit(r, e.exp, emit(r, e.sub, input, peak)), axis=axis, keepdims=True)
    out = emit(r, e.add, emit(r, e.log, total), peak)
    dims = out.hpmoe_aval.shape
    return out if keepdim else r(reshape, out, shape=dims[:axis] + dims[axis + 1:])


def _affine(r: Recorder, x: Tracer, weight: Tracer | None, bias: Tracer | None) -> Tracer:
    """Returns x * weight + bias, without the ones and zeros that MindSpore adds if the user gave none."""
    if weight is not None and not r.is_constant(weight, 1.0):
        x = emit(r, e.mul, x, weight)
    return x if bias is None or r.is_constant(bias, 0.0) else emit(r, e.add, x, bias)


def _layer_norm(r: Recorder, x: Tracer, normalized: int, weight: Tracer | None, bias: Tracer | None,
                eps: float) -> Normed:
    """Returns MindSpore's three results: normalized over the last dimensions, mean, 1 / deviation."""
    axes = list(range(len(x.hpmoe_aval.shape)))[-normalized:]
    dtype = promote_dtypes([o.hpmoe_aval.dtype for o in (x, weight, bias) if o is not None], [])
    x = wide(r, x)
    center = mean(r, x, axes, True)
    shifted = emit(r, e.sub, x, center)
    square = mean(r, emit(r, e.square, shifted), axes, True)
    scale = emit(r, e.rsqrt, emit(r, e.add, square, eps))
    return to_dtype(r, _affine(r, emit(r, e.mul, shifted, scale), weight, bias), dtype), center, scale


@call("LayerNormExt")
def layer_norm(r: Recorder, input: Tracer, normalized_shape: Sizes, weight: Tracer | None = None, bias: Tracer | None = None,
               eps: float = 1e-5) -> Normed:
    sizes, dims = dims_of((normalized_shape,)), input.hpmoe_aval.shape
    if dims[len(dims) - len(sizes):] != sizes:
        raise not_traceable(f"layer_norm of {input.hpmoe_aval} over {sizes}", "these are not its last dimensions",
                            f"normalized_shape={dims[-1:]}")
    return _layer_norm(r, input, len(sizes), weight, bias, eps)


@call("LayerNorm")
def layer_norm_old(r: Recorder, input: Tracer, gamma: Tracer, beta: Tracer, begin_norm_axis: int = 1,
                   begin_params_axis: int = 1, epsilon: float = 1e-7) -> Normed:
    normalized = len(input.hpmoe_aval.shape) - axis_of(input, begin_norm_axis)
    return _layer_norm(r, input, normalized, gamma, beta, epsilon)


@call("RmsNorm")
@in_float32
def rms_norm(r: Recorder, x: Tracer, gamma: Tracer, epsilon: float = 1e-6) -> tuple[Tracer, Tracer]:
    rank, normalized = len(x.hpmoe_aval.shape), len(gamma.hpmoe_aval.shape)
    square = mean(r, emit(r, e.square, x), list(range(rank - normalized, rank)), True)
    scale = emit(r, e.rsqrt, emit(r, e.add, square, epsilon))
    return emit(r, e.mul, emit(r, e.mul, x, scale), gamma), scale
