"""MindSpore's reductions, softmax, norms and matmuls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hpmoe.dtypes import HALVES
from hpmoe.primitives import elementwise as e
from hpmoe.primitives.matmul import matmul as matmul_primitive
from hpmoe.primitives.reduction import reduce_max, reduce_sum
from hpmoe.primitives.shape import dtype_param, reshape
from hpmoe.program import Rows
from hpmoe.tracing.calls import call
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, in_float32, promote_dtypes, refuse_integers, to_dtype, to_float, wide
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_elementwise import logical_not
from hpmoe.tracing.rules_shape import axis_of, dims_of, swap_axes


def _axes(x: Any, dim: Any) -> list[int]:
    rank = len(x.hpmoe_aval.shape)
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return sorted({axis_of(x, d) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))})


def _reduce(r: Recorder, primitive: Any, x: Any, axes: Sequence[int], keepdim: bool) -> Any:
    for axis in reversed(axes):
        x = r(primitive, x, axis=axis, keepdims=keepdim)
    return x


def _total(r: Recorder, x: Any, axes: Sequence[int], keepdim: bool, dtype: str, mean: bool = False) -> Any:
    """The sum over some axes in a dtype; half-precision numbers are not cast before, and rounded after the last sum only."""
    own = x.hpmoe_aval.dtype
    if own not in HALVES or not axes:
        return _sum(r, to_dtype(r, x, dtype), axes, keepdim, mean)
    between = dtype if len(axes) == 1 else "float32"
    x = _sum(r, x, axes[-1:], keepdim, mean, **dtype_param(between, own))
    return to_dtype(r, _sum(r, x, axes[:-1], keepdim, mean), dtype)


def _sum(r: Recorder, x: Any, axes: Sequence[int], keepdim: bool, mean: bool, **params: Any) -> Any:
    """Sums over axes; one that may be of rows says whether it is for a mean, where it matters how many rows there are."""
    for axis in reversed(axes):
        rank = len(x.hpmoe_aval.shape)
        said = {"mean": True} if mean and (rank == 1 or axis < rank - 1) else {}
        x = r(reduce_sum, x, axis=axis, keepdims=keepdim, **params, **said)
    return x


@call("SumExt")
def sum_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    name = r.dtype_name(dtype) if dtype else None
    name = name or ("int64" if input.hpmoe_aval.dtype in ("bool", "int32") else input.hpmoe_aval.dtype)
    return _total(r, input, _axes(input, dim), keepdim, name)


@call("ReduceSum")
def reduce_sum_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False, skip_mode: bool = False) -> Any:
    if skip_mode:
        raise not_traceable("ReduceSum with skip_mode", "no axes would mean none or all of them", "mint.sum(x, axes)")
    if input.hpmoe_aval.dtype == "bool":
        return any_(r, input, dim, keepdim)
    return _total(r, input, _axes(input, dim), keepdim, input.hpmoe_aval.dtype)


@call("DeprecatedSum")
def sum_method(r: Recorder, input: Any, dim: Any = None, dtype: Any = None, keepdim: bool = False) -> Any:
    return sum_(r, input, dim, keepdim, dtype)


@call("MeanExt", "ReduceMean", "DeprecatedMean")
def mean(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    axes = _axes(input, dim)
    sizes = [input.hpmoe_aval.shape[a] for a in axes]
    if any(isinstance(n, Rows) for n in sizes):
        raise not_traceable("a mean over the received rows", "their number is known only when the kernel runs",
                            "a mean over the columns, or over tokens after hpmoe.combine")
    if dtype is None:
        refuse_integers(input, "a mean")
    x = to_float(r, input)
    name = r.dtype_name(dtype) or x.hpmoe_aval.dtype
    total = _total(r, x, axes, keepdim, "float32" if name in HALVES else name, mean=True)
    return to_dtype(r, emit(r, e.mul, total, 1.0 / max(1, math.prod(sizes))), name)


@call("Max", "ReduceMax", "DeprecatedMax", "AmaxExt")
def max_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _reduce(r, reduce_max, input, _axes(input, dim), keepdim)


@call("Any", "ReduceAny")
def any_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return max_(r, to_dtype(r, input, "bool"), dim, keepdim)


@call("All", "ReduceAll")
def all_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return logical_not(r, any_(r, logical_not(r, input), dim, keepdim))


@call("Min", "ReduceMin", "DeprecatedMin")
def min_(r: Recorder, input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return emit(r, e.neg, max_(r, emit(r, e.neg, input), dim, keepdim))


@call("MaxDim", "ArgMaxWithValue", "MinDim", "ArgMinWithValue")
def max_with_index(r: Recorder, *args: Any, **kwargs: Any) -> Any:
    raise not_traceable("a maximum or minimum with its index", "the index has no primitive",
                        "mint.amax(x, dim=-1) or mint.amin(x, dim=-1), which give the value alone")


@call("Var")
@in_float32
def variance(r: Recorder, input: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
    axes = _axes(input, dim)
    centered = emit(r, e.sub, input, mean(r, input, axes, True))
    count = math.prod(input.hpmoe_aval.shape[a] for a in axes)
    total = _reduce(r, reduce_sum, emit(r, e.square, centered), axes, keepdim)
    return emit(r, e.mul, total, 1.0 / (count - correction) if count > correction else math.inf)  # 0 / 0 is not a number


@call("Std")
@in_float32
def deviation(r: Recorder, input: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
    return emit(r, e.sqrt, variance(r, input, dim, correction, keepdim))


@call("DeprecatedVar")
def variance_method(r: Recorder, input: Any, dim: Any = None, ddof: int = 0, keepdim: bool = False) -> Any:
    return variance(r, input, dim, ddof, keepdim)


@call("DeprecatedStd")
def deviation_method(r: Recorder, input: Any, dim: Any = None, ddof: int = 0, keepdim: bool = False) -> Any:
    return deviation(r, input, dim, ddof, keepdim)


@call("Tensor.Std")
def deviation_of(r: Recorder, input: Any, dim: Any = None, correction: int | None = None, keepdim: bool = False) -> Any:
    if correction is None:
        raise not_traceable("x.std() without what it divides by", "that differs between MindSpore's back ends",
                            "x.std(axis, ddof), with ddof=0 for n and 1 for n - 1, or mint.std(x), for n - 1")
    return deviation(r, input, dim, correction, keepdim)


@call("LinalgVectorNorm", "Norm")
@in_float32
def vector_norm(r: Recorder, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    if ord != 2:
        raise not_traceable(f"a norm of order {ord}", "it has no primitive", "ord=2, or sums of mint.abs(x)")
    return emit(r, e.sqrt, sum_(r, emit(r, e.square, x), dim, keepdim))


# Softmax and norms.

def _shifted(r: Recorder, x: Any, axis: int) -> Any:
    peak = r(e.stop_gradient, r(reduce_max, x, axis=axis, keepdims=True))
    return emit(r, e.sub, x, peak)


def _one_axis(x: Any, dim: Any) -> int:
    axes = _axes(x, -1 if dim is None else dim)
    if len(axes) != 1:
        raise not_traceable("softmax over several dimensions", "it is over one", "softmax over one dimension")
    return axes[0]


@call("Softmax")
@in_float32
def softmax(r: Recorder, input: Any, dim: Any = -1, dtype: Any = None) -> Any:
    x, axis = to_dtype(r, input, r.dtype_name(dtype)) if dtype else input, _one_axis(input, dim)
    powers = emit(r, e.exp, _shifted(r, x, axis))
    return emit(r, e.div, powers, r(reduce_sum, powers, axis=axis, keepdims=True))


@call("LogSoftmax", "LogSoftmaxExt")
@in_float32
def log_softmax(r: Recorder, input: Any, dim: Any = -1, dtype: Any = None) -> Any:
    x, axis = to_dtype(r, input, r.dtype_name(dtype)) if dtype else input, _one_axis(input, dim)
    shifted = _shifted(r, x, axis)
    total = r(reduce_sum, emit(r, e.exp, shifted), axis=axis, keepdims=True)
    return emit(r, e.sub, shifted, emit(r, e.log, total))


@call("LogSumExp")
@in_float32
def log_sum_exp(r: Recorder, input: Any, dim: Any, keepdim: bool = False) -> Any:
    axis = _one_axis(input, dim)
    peak = r(e.stop_gradient, r(reduce_max, input, axis=axis, keepdims=True))
    total = r(reduce_sum, emit(r, e.exp, emit(r, e.sub, input, peak)), axis=axis, keepdims=True)
    out = emit(r, e.add, emit(r, e.log, total), peak)
    dims = out.hpmoe_aval.shape
    return out if keepdim else r(reshape, out, shape=dims[:axis] + dims[axis + 1:])


def _affine(r: Recorder, x: Any, weight: Any, bias: Any) -> Any:
    """x * weight + bias; the ones and zeros MindSpore makes up where the user gave none are left out."""
    if weight is not None and not r.is_constant(weight, 1.0):
        x = emit(r, e.mul, x, weight)
    return x if bias is None or r.is_constant(bias, 0.0) else emit(r, e.add, x, bias)


def _layer_norm(r: Recorder, x: Any, normalized: int, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any]:
    """(normalized over the last dimensions, mean, 1 / deviation), the three results MindSpore gives."""
    axes = list(range(len(x.hpmoe_aval.shape)))[-normalized:]
    dtype = promote_dtypes([o.hpmoe_aval.dtype for o in (x, weight, bias) if o is not None], [])
    x = wide(r, x)
    center = mean(r, x, axes, True)
    shifted = emit(r, e.sub, x, center)
    square = mean(r, emit(r, e.square, shifted), axes, True)
    scale = emit(r, e.rsqrt, emit(r, e.add, square, eps))
    return to_dtype(r, _affine(r, emit(r, e.mul, shifted, scale), weight, bias), dtype), center, scale


@call("LayerNormExt")
def layer_norm(r: Recorder, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None,
               eps: float = 1e-5) -> Any:
    sizes, dims = dims_of((normalized_shape,)), input.hpmoe_aval.shape
    if dims[len(dims) - len(sizes):] != sizes:
        raise not_traceable(f"layer_norm of {input.hpmoe_aval} over {sizes}", "these are not its last dimensions",
                            f"normalized_shape={dims[-1:]}")
    return _layer_norm(r, input, len(sizes), weight, bias, eps)


@call("LayerNorm")
def layer_norm_old(r: Recorder, input: Any, gamma: Any, beta: Any, begin_norm_axis: int = 1, begin_params_axis: int = 1,
                   epsilon: float = 1e-7) -> Any:
    normalized = len(input.hpmoe_aval.shape) - axis_of(input, begin_norm_axis)
    return _layer_norm(r, input, normalized, gamma, beta, epsilon)


@call("RmsNorm")
@in_float32
def rms_norm(r: Recorder, x: Any, gamma: Any, epsilon: float = 1e-6) -> Any:
    rank, normalized = len(x.hpmoe_aval.shape), len(gamma.hpmoe_aval.shape)
    square = mean(r, emit(r, e.square, x), list(range(rank - normalized, rank)), True)
    scale = emit(r, e.rsqrt, emit(r, e.add, square, epsilon))
    return emit(r, e.mul, emit(r, e.mul, x, scale), gamma), scale


# Matmuls.

@call("MatMulExt", "Mm", "Mv", "Dot", "MatMul", "BatchMatMulExt", "BatchMatMul", "Matmul")
def matmul(r: Recorder, input: Any, other: Any, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    left, right = len(input.hpmoe_aval.shape), len(other.hpmoe_aval.shape)
    if right > 2:
        raise not_traceable(f"a batched matmul of {input.hpmoe_aval} and {other.hpmoe_aval}",
                            "the right operand is one matrix", "hpmoe.grouped_matmul(rows, weight, route) for experts' "
                            "weights, or one matmul for each matrix of ops.unstack(w, 0)")
    x = swap_axes(r, input, -1, -2) if transpose_a else input
    dtype = promote_dtypes([input.hpmoe_aval.dtype, other.hpmoe_aval.dtype], [])
    x, w = to_dtype(r, x, dtype), to_dtype(r, other, dtype)
    if right == 1:
        column = r(reshape, w, shape=(*w.hpmoe_aval.shape, 1))
        x = x if left > 1 else r(reshape, x, shape=(1, *x.hpmoe_aval.shape))
        out = r(matmul_primitive, x, column, transpose=False)
        return r(reshape, out, shape=input.hpmoe_aval.shape[:-1])
    if left == 1:
        out = r(matmul_primitive, r(reshape, x, shape=(1, *x.hpmoe_aval.shape)), w, transpose=bool(transpose_b))
        return r(reshape, out, shape=out.hpmoe_aval.shape[1:])
    return r(matmul_primitive, x, w, transpose=bool(transpose_b))


@call("Dense", "Linear")
def linear(r: Recorder, input: Any, weight: Any, bias: Any = None) -> Any:
    out = matmul(r, input, weight, transpose_b=len(weight.hpmoe_aval.shape) == 2)
    return out if bias is None else emit(r, e.add, out, bias)


@call("Addmm")
def addmm(r: Recorder, input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Any:
    product = matmul(r, mat1, mat2)
    product = product if alpha == 1 else emit(r, e.mul, product, alpha)
    return emit(r, e.add, input if beta == 1 else emit(r, e.mul, input, beta), product)


@call("BiasAdd")
def bias_add(r: Recorder, input: Any, bias: Any, data_format: Any = 0) -> Any:
    if len(input.hpmoe_aval.shape) != 2:
        raise not_traceable(f"BiasAdd on {input.hpmoe_aval}", "it is for matrices", "x + bias")
    return emit(r, e.add, input, bias)


@call("Outer")
def outer(r: Recorder, input: Any, vec2: Any) -> Any:
    for x in (input, vec2):
        if len(x.hpmoe_aval.shape) != 1:
            raise not_traceable(f"an outer product with {x.hpmoe_aval}", "it is of two vectors", "x.flatten()")
    column = r(reshape, input, shape=(*input.hpmoe_aval.shape, 1))
    return emit(r, e.mul, column, vec2)
