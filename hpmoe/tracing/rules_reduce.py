"""MindSpore's sums, means, maxima, and what is made of them, losses among it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpmoe.ir.avals import Rows, fixed
from hpmoe.primitives import elementwise as e
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduce_max import reduce_max
from hpmoe.primitives.reduction import reduce_sum
from hpmoe.primitives.shape import dtype_param
from hpmoe.support.dtypes import HALVES
from hpmoe.tracing.calls import Rule, call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, floats_only, in_float32, to_dtype, to_float
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_arithmetic import logical_not
from hpmoe.tracing.rules_shape import axis_of
from hpmoe.tracing.tracer import Axes, Tracer


def axes_of(x: Tracer, dim: Axes) -> list[int]:
    rank = len(x.hpmoe_aval.shape)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted({axis_of(x, d) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))})


def _reduce(r: Recorder, primitive: Primitive, x: Tracer, axes: Sequence[int], keepdim: bool) -> Tracer:
    for axis in reversed(axes):
        x = r(primitive, x, axis=axis, keepdims=keepdim)
    return x


def _total(r: Recorder, x: Tracer, axes: Sequence[int], keepdim: bool, dtype: str, mean: bool = False) -> Tracer:
    """Returns the sum over axes in a dtype; half-precision numbers are not cast before, and rounded after the last sum only.
    """
    own = x.hpmoe_aval.dtype
    if own not in HALVES or not axes:
        return _sum(r, to_dtype(r, x, dtype), axes, keepdim, mean)
    between = dtype if len(axes) == 1 else "float32"
    x = _sum(r, x, axes[-1:], keepdim, mean, **dtype_param(between, own))
    return to_dtype(r, _sum(r, x, axes[:-1], keepdim, mean), dtype)


def _sum(r: Recorder, x: Tracer, axes: Sequence[int], keepdim: bool, mean: bool, **params: object) -> Tracer:
    """Sums over axes; a sum that may be over rows says if it is for a mean, which needs the number of rows."""
    for axis in reversed(axes):
        rank = len(x.hpmoe_aval.shape)
        said = {"mean": True} if mean and (rank == 1 or axis < rank - 1) else {}
        x = r(reduce_sum, x, axis=axis, keepdims=keepdim, **params, **said)
    return x


@call("SumExt")
def sum_(r: Recorder, input: Tracer, dim: Axes = None, keepdim: bool = False, dtype: object = None) -> Tracer:
    name = r.dtype_name(dtype) if dtype else None
    name = name or ("int64" if input.hpmoe_aval.dtype in ("bool", "int32") else input.hpmoe_aval.dtype)
    return _total(r, input, axes_of(input, dim), keepdim, name)


@call("ReduceSum")
def reduce_sum_(r: Recorder, input: Tracer, dim: Axes = None, keepdim: bool = False, skip_mode: bool = False) -> Tracer:
    if skip_mode:
        raise not_traceable("ReduceSum with skip_mode", "no axes would mean none or all of them", "mint.sum(x, axes)")
    if input.hpmoe_aval.dtype == "bool":
        return any_(r, input, dim, keepdim)
    return _total(r, input, axes_of(input, dim), keepdim, input.hpmoe_aval.dtype)


@call("MeanExt", "ReduceMean", "DeprecatedMean")
def mean(r: Recorder, input: Tracer, dim: Axes = None, keepdim: bool = False, dtype: object = None) -> Tracer:
    axes = axes_of(input, dim)
    sizes = [input.hpmoe_aval.shape[a] for a in axes]
    if any(isinstance(n, Rows) for n in sizes):
        raise not_traceable("a mean over the received rows", "their number is known only when the kernel runs",
                            "a mean over the columns, or over tokens after hpmoe.combine")
    if dtype is None:
        floats_only(input, "a mean")
    x = to_float(r, input)
    name = r.dtype_name(dtype) or x.hpmoe_aval.dtype
    total = _total(r, x, axes, keepdim, "float32" if name in HALVES else name, mean=True)
    count = math.prod(fixed(tuple(sizes)))
    return to_dtype(r, emit(r, e.mul, total, 1.0 / count if count else math.inf), name)  # 0 / 0 is not a number


@call("Max", "ReduceMax", "DeprecatedMax", "AmaxExt")
def max_(r: Recorder, input: Tracer, dim: Axes = None, keepdim: bool = False) -> Tracer:
    return _reduce(r, reduce_max, input, axes_of(input, dim), keepdim)


@call("Any", "AnyExt", "ReduceAny")
def any_(r: Recorder, input: Tracer, dim: Axes = None, keepdim: bool = False) -> Tracer:
    return max_(r, to_dtype(r, input, "bool"), dim, keepdim)


@call("Var")
@in_float32
def variance(r: Recorder, input: Tracer, dim: Axes = None, correction: int = 1, keepdim: bool = False) -> Tracer:
    axes = axes_of(input, dim)
    centered = emit(r, e.sub, input, mean(r, input, axes, True))
    count = math.prod(fixed(tuple(input.hpmoe_aval.shape[a] for a in axes)))
    total = _reduce(r, reduce_sum, emit(r, e.square, centered), axes, keepdim)
    return emit(r, e.mul, total, 1.0 / (count - correction) if count > correction else math.inf)  # 0 / 0 is not a number


@in_float32
def deviation(r: Recorder, input: Tracer, dim: Axes = None, correction: int = 1, keepdim: bool = False) -> Tracer:
    return emit(r, e.sqrt, variance(r, input, dim, correction, keepdim))


@call("Tensor.Std")
def deviation_of(r: Recorder, input: Tracer, dim: Axes = None, correction: int | None = None,
                 keepdim: bool = False) -> Tracer:
    if correction is None:
        raise not_traceable("x.std() without what it divides by", "that differs between MindSpore's back ends",
                            "x.std(axis, ddof), with ddof=0 for n and 1 for n - 1, or mint.std(x), for n - 1")
    return deviation(r, input, dim, correction, keepdim)


@call("LinalgVectorNorm", "Norm")
@in_float32
def vector_norm(r: Recorder, x: Tracer, ord: float = 2, dim: Axes = None, keepdim: bool = False,
                dtype: object = None) -> Tracer:
    if ord != 2:
        raise not_traceable(f"a norm of order {ord}", "it has no primitive", "ord=2, or sums of mint.abs(x)")
    wide = to_dtype(r, x, r.dtype_name(dtype) or x.hpmoe_aval.dtype)
    return emit(r, e.sqrt, sum_(r, emit(r, e.square, wide), dim, keepdim))


calls({
    "DeprecatedSum": lambda r, input, dim=None, dtype=None, keepdim=False: sum_(r, input, dim, keepdim, dtype),
    "All ReduceAll": lambda r, input, dim=None, keepdim=False: logical_not(
        r, any_(r, logical_not(r, input), dim, keepdim)),
    "Min ReduceMin DeprecatedMin": lambda r, input, dim=None, keepdim=False: emit(
        r, e.neg, max_(r, emit(r, e.neg, input), dim, keepdim)),
    "Std": deviation,
    "DeprecatedVar": lambda r, input, dim=None, ddof=0, keepdim=False: variance(r, input, dim, ddof, keepdim),
    "DeprecatedStd": lambda r, input, dim=None, ddof=0, keepdim=False: deviation(r, input, dim, ddof, keepdim),
})


# Losses.

SUM, MEAN = 0, 1  # what is made of all losses, as MindSpore numbers it; anything else leaves them as they are


def _loss(primitive: Primitive) -> Rule:
    def rule(r: Recorder, input: Tracer, target: Tracer, reduction: int = MEAN) -> Tracer:
        losses = emit(r, primitive, emit(r, e.sub, input, target))
        return mean(r, losses) if reduction == MEAN else sum_(r, losses) if reduction == SUM else losses
    return in_float32(rule)


calls({"MSELossExt": _loss(e.square), "L1LossExt": _loss(e.absolute)})
