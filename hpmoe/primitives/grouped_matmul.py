"""Grouped matmul: each received row by the weights of its expert."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation, is_differentiable
from hpmoe.primitives.expert import check_experts, expert_bias
from hpmoe.primitives.grouped_weight_grad import grouped_weight_grad, groups_of
from hpmoe.primitives.in_float32 import check_dtypes, in_float32, weight_beside
from hpmoe.primitives.matmul import tile_matmul
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.quantized_matmul import check_quantised, grouped_quantized, product_params
from hpmoe.primitives.replicate import return_weight_grads
from hpmoe.primitives.route import check_route, check_tensor
from hpmoe.routing.routing import Route
from hpmoe.support.dtypes import name_of_dtype
from hpmoe.support.errors import ProgramError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops import row_modes

grouped = Primitive("grouped_matmul")
grouped.tile(lambda tiler, eqn: tile_matmul(tiler, eqn, row_modes.SLOT_EXPERT, eqn.params["transpose"]))


@suggests_keywords
def grouped_matmul(rows: Tensor, weight: Tensor, route: Route, *, bias: Tensor | None = None, scale: Tensor | None = None,
                   row_dtype: str | None = None) -> Tensor:
    """Multiplies each received row by the weight matrix of its expert, and adds the expert's bias if given.

    A quantised weight needs `scale`: element [k, n] of expert e is weight[e, k, n] * scale[e, n]. Rows are multiplied as
    floats (W8), or rounded to `row_dtype` first with a scale per row (W8A8):

        W8    out[r, n] = (sum_k x[r, k] * weight[e, k, n]) * scale[e, n], summed in float32
        W8A8  out[r, n] = float32(sum_k q[r, k] * weight[e, k, n]) * s[r] * scale[e, n], with q[r, k] = x[r, k] / s[r]
              rounded to nearest even and s[r] = amax_k |x[r, k]| / L. int8: L = 127, the sum is exact in int32.
              float8_e4m3fn: L = 448, products are exact and summed in float32.

    mxfp8 (OCP MX) has a scale for each 32 elements of a column, 2^(scale[e, n, k // 32] - 127); W8A8 rounds rows to mxfp8,
    too. Gradients treat rounding of rows as the identity. Quantised weights have no gradient; float scales do.

    Args:
        rows: [R, K], from `hpmoe.dispatch` or computed row by row from it.
        weight: [num_local_experts, K, N] of the rows' dtype, or float32 beside rows in half precision: rounded to their
            dtype, as `auto_mixed_precision` does for a Dense, with a float32 gradient. Quantised: int8, or uint8 that holds
            float8_e4m3fn; for mxfp8 transposed, [num_local_experts, N, K].
        route: the second result of `hpmoe.dispatch`.
        bias: optional [num_local_experts, N] of the rows' dtype, also beside quantised weights; or float32 beside rows in
            half precision, rounded to their dtype.
        scale: for quantised weights, [num_local_experts, N] floats; or [num_local_experts, N, ceil(K / 32)] uint8 that hold
            e8m0, by which a weight counts as mxfp8.
        row_dtype: for W8A8 the weight's element type, "int8", "float8_e4m3fn" or "mxfp8"; None for W8.

    Returns:
        [R, N] of the rows' dtype.

    Raises:
        ArgumentError: shapes, dtypes or the number of experts do not fit.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, ids = ms.Tensor(np.eye(2, dtype=np.float32)), ms.Tensor(np.array([[1], [0]], np.int32))
        >>> rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
        >>> weight = ms.Tensor(np.array([[[1.0], [2.0]], [[3.0], [4.0]]], np.float32))
        >>> hpmoe.grouped_matmul(rows, weight, route).asnumpy().tolist()
        [[2.0], [3.0]]
        >>> int8, scale = ms.Tensor([[[10], [20]], [[30], [40]]], ms.int8), ms.Tensor([[0.1], [0.1]])
        >>> hpmoe.grouped_matmul(rows, int8, route, scale=scale, row_dtype="int8").asnumpy().tolist()
        [[2.0], [3.0]]
    """
    outside_graphs("hpmoe.grouped_matmul")
    if element := check_quantised(weight, scale, row_dtype):
        to = name_of_dtype(getattr(rows, "dtype", None)) or ""
        params = product_params(element, element == "mxfp8", row_dtype or "", to)
        out = grouped_quantized(rows, weight, route, scale, **params)
    else:
        out = grouped(rows, weight_beside(rows, weight), route, transpose=False)
    return out if bias is None else expert_bias(out, weight_beside(rows, bias), route)


@grouped.infer
def _(x: ShapeDtypeStruct, w: ShapeDtypeStruct, route: RouteAval, *replicas: ShapeDtypeStruct,
      transpose: bool) -> ShapeDtypeStruct:
    check_experts("grouped_matmul", w, route, 3, replicas)
    check_argument(len(x.shape) == 2 and x.shape[0] is route.rows, "grouped_matmul", "rows", x,
                   "received rows [R, K] of this route")
    inner, outer = (w.shape[2], w.shape[1]) if transpose else w.shape[1:]
    check_argument(x.shape[1] == inner, "grouped_matmul", "rows and weight", f"{x} and {w}",
                   "equal in their inner dimension", "Weights are [num_local_experts, K, N].")
    check_dtypes("grouped_matmul", "rows", x.dtype, "weight", w.dtype)
    return ShapeDtypeStruct((x.shape[0], outer), x.dtype)


@grouped.reference
def _(x: np.ndarray, w: np.ndarray, route: Route, *replicas: np.ndarray, transpose: bool) -> np.ndarray:
    out = np.zeros((len(x), w.shape[1] if transpose else w.shape[2]), x.dtype)
    for e, rows in groups_of(route.tokens_per_expert):
        weight = w[e] if e < len(w) else replicas[0][e - len(w)]
        out[rows] = x[rows] @ (weight.T if transpose else weight)
    return out


@grouped.eager
def _(x: Tensor, w: Tensor, route: Route, *, transpose: bool) -> Tensor:
    check_route("hpmoe.grouped_matmul", route)
    for argument, given in (("rows", x), ("weight", w)):
        check_tensor("hpmoe.grouped_matmul", argument, given)
    counts = [int(n) for n in route.tokens_per_expert]
    check_argument(w.ndim == 3 and w.shape[0] == len(counts), "hpmoe.grouped_matmul", "weight", f"of shape {w.shape}",
                   f"[{len(counts)}, K, N], the experts of the route")
    inner = w.shape[2 if transpose else 1]
    check_argument(x.ndim == 2 and x.shape == (sum(counts), inner), "hpmoe.grouped_matmul", "rows", f"of shape {x.shape}",
                   f"[{sum(counts)}, {inner}], the route's rows by a weight of shape {w.shape}")
    check_dtypes("hpmoe.grouped_matmul", "rows", x.dtype, "weight", w.dtype)
    if sum(counts) == 0 or inner == 0:  # MindSpore's product over nothing is what lay in memory
        return mint.zeros((sum(counts), w.shape[1] if transpose else w.shape[2]), dtype=x.dtype)
    return _matmul_by_expert(x, w, counts, transpose)


@in_float32
def _matmul_by_expert(x: Tensor, w: Tensor, counts: list[int], transpose: bool) -> Tensor:
    weights = ops.unstack(w, 0)
    parts = [mint.matmul(p, mint.transpose(weights[e], 0, 1) if transpose else weights[e])
             for e, p in enumerate(mint.split(x, counts, 0)) if counts[e]]
    return mint.cat(tuple(parts), 0) if len(parts) > 1 else parts[0]


@grouped.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    (x, w, route, *replicas), g, transposed = eqn.inputs, cotangents[0], eqn.params["transpose"]
    dx = b.add(grouped, g, w, route, *replicas, transpose=not transposed) if is_differentiable(x) else None
    dw, pair = None, (g, x) if transposed else (x, g)
    if is_differentiable(w) and replicas:  # copies are the weights of their owners, and so are their gradients
        returned = b.add(return_weight_grads, b.add(grouped_weight_grad, *pair, route, of="replicas"), route)
        dw = b.add(grouped_weight_grad, *pair, route, returned, of="owners")
    elif is_differentiable(w):
        dw = b.add(grouped_weight_grad, *pair, route)
    return [dx, dw, None, *[None] * len(replicas)]


@grouped_weight_grad.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    if eqn.params.get("of"):
        raise ProgramError("vjp asked grouped_weight_grad what its gradient is, and with copies of experts it has none")
    (x, g, route), ct = eqn.inputs[:3], cotangents[0]
    return [b.add(grouped, g, ct, route, transpose=True), b.add(grouped, x, ct, route, transpose=False), None,
            *[ct] * len(eqn.inputs[3:])]
