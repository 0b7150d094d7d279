"""MindSpore's matmuls, and its product of groups, which is refused."""

from __future__ import annotations

from typing import NoReturn

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.matmul import matmul as matmul_primitive
from hpmoe.primitives.shape import reshape
from hpmoe.tracing.calls import call
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, promote_dtypes, to_dtype
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_shape import swap_axes
from hpmoe.tracing.tracer import Operand, Tracer


@call("MatMulExt", "Mm", "Mv", "Dot", "MatMul", "BatchMatMulExt", "BatchMatMul", "Matmul")
def matmul(r: Recorder, input: Tracer, other: Tracer, transpose_a: bool = False, transpose_b: bool = False) -> Tracer:
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
def linear(r: Recorder, input: Tracer, weight: Tracer, bias: Tracer | None = None) -> Tracer:
    out = matmul(r, input, weight, transpose_b=len(weight.hpmoe_aval.shape) == 2)
    return out if bias is None else emit(r, e.add, out, bias)


@call("Addmm")
def addmm(r: Recorder, input: Tracer, mat1: Tracer, mat2: Tracer, beta: Operand = 1, alpha: Operand = 1) -> Tracer:
    product = matmul(r, mat1, mat2)
    product = product if alpha == 1 else emit(r, e.mul, product, alpha)
    return emit(r, e.add, input if beta == 1 else emit(r, e.mul, input, beta), product)


@call("BiasAdd")
def bias_add(r: Recorder, input: Tracer, bias: Tracer, data_format: object = 0) -> Tracer:
    if len(input.hpmoe_aval.shape) != 2:
        raise not_traceable(f"BiasAdd on {input.hpmoe_aval}", "it is for matrices", "x + bias")
    return emit(r, e.add, input, bias)


@call("Outer")
def outer(r: Recorder, input: Tracer, vec2: Tracer) -> Tracer:
    for name, x in (("input", input), ("vec2", vec2)):
        if len(x.hpmoe_aval.shape) != 1:
            raise not_traceable(f"mint.outer with {name} of {x.hpmoe_aval}", f"{name} must be a vector",
                                f"{name}.flatten() as {name}")
    column = r(reshape, input, shape=(*input.hpmoe_aval.shape, 1))
    return emit(r, e.mul, column, vec2)


@call("GroupedMatmul", "GroupedMatmulV2", "GroupedMatmulV4")
def grouped_matmul(r: Recorder, *args: object, **kwargs: object) -> NoReturn:
    raise not_traceable("ops.grouped_matmul", "its groups are not tied to a route",
                        "rows, route = hpmoe.dispatch(...); hpmoe.grouped_matmul(rows, weight, route)")
