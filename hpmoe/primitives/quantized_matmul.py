"""Grouped matmul with quantised weights, of rows of floats or of quantised ones.

What is computed is written in `hpmoe.tile_ops.quantized_matmuls`, how rows are rounded in `hpmoe.tile_ops.row_formats`.
"""

from __future__ import annotations

from typing import Protocol, TypedDict, cast

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, as_route, fixed
from hpmoe.ir.program import Atom, Builder, Equation, Literal, is_differentiable
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.expert import check_experts, expert_scale, expert_sum
from hpmoe.primitives.grouped_weight_grad import grouped_weight_grad
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.quantize_weight import ELEMENT_OF, STORED_AS, scales_aval, split_copies
from hpmoe.primitives.quantized_products import QuantizedProduct
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.replicate import return_weight_grads
from hpmoe.primitives.route import check_route, check_tensor
from hpmoe.primitives.shape import in_dtype, reshape
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import Route
from hpmoe.support.dtypes import BYTES, FLOATS, dtype_name, name_of_dtype, rounded, widen
from hpmoe.support.errors import ProgramError, check_argument, is_name
from hpmoe.support.mindspore_private import Differentiable, gradient_depth, takes_gradient
from hpmoe.tile_ops.quantized_matmuls import (
    MOST_TERMS,
    ROWS,
    block_scales,
    rescaled,
    sums_of,
)
from hpmoe.tile_ops.row_formats import (
    WEIGHT_FORMATS,
    dequantized,
    quantized,
    values_of as values_of_elements,
)

grouped_quantized = Primitive("grouped_matmul_quantized")

ROW_DTYPES = tuple(WEIGHT_FORMATS)
MULTIPLIED = {name: {"dtype": name, **({"block": form.block} if form.block else {})}
              for name, form in WEIGHT_FORMATS.items()}  # the params of quantize that makes rows to multiply
WHO = "hpmoe.grouped_matmul"


def check_quantised(weight: object, scale: object, row_dtype: object) -> str:
    """Returns a weight's element type, "" if not quantised; raises ArgumentError if scale or row_dtype do not fit."""
    element = ELEMENT_OF.get(name_of_dtype(getattr(weight, "dtype", None)) or "", "")
    if element == "float8_e4m3fn" and name_of_dtype(getattr(scale, "dtype", None)) == BYTES:
        element = "mxfp8"
    if not element:
        check_argument(scale is None, WHO, "scale", scale, f"None beside a weight of {getattr(weight, 'dtype', None)}",
                       "Quantised weights are int8, or uint8 that hold float8_e4m3fn.")
        check_argument(row_dtype is None, WHO, "row_dtype", repr(row_dtype), "None beside a weight that is not quantised")
        return element
    check_argument(scale is not None, WHO, "scale", "None", f"[num_local_experts, N] beside a weight of {element}",
                   "That of mxfp8, [num_local_experts, N, ceil(K / 32)], is of uint8, that hold e8m0.")
    check_argument(row_dtype is None or (is_name(row_dtype, ROW_DTYPES) and row_dtype == element), WHO, "row_dtype",
                   repr(row_dtype), f"\"{element}\" beside a weight of {element}, or None for rows as they are")
    return element


class _Product(TypedDict):
    element: str
    transpose: bool
    to: str


class ProductParams(_Product, total=False):
    """Params of grouped_quantized."""

    rows: str


def product_params(element: str, transpose: bool, rows: str, to: str) -> ProductParams:
    """Returns the params of a product, with `rows` only if rows are quantised."""
    params: ProductParams = {"element": element, "transpose": transpose, "to": to}
    return {**params, "rows": rows} if rows else params


@grouped_quantized.infer
def _(x: ShapeDtypeStruct, w: ShapeDtypeStruct, route: RouteAval, *more: ShapeDtypeStruct, element: str, transpose: bool,
      rows: str = "",
      to: str = "float32") -> ShapeDtypeStruct:
    """Quantizes float rows to `rows` and passes quantized rows through; the result has dtype `to`.

    `more` is the scale, if there is one, then, for a route with replicas, the replicas of the weight and of the scale.
    """
    scale, copies, of_scales = split_copies(getattr(route, "placement", None), more)
    check_experts("grouped_matmul", w, route, 3, copies)
    for one, copied in zip(scale, of_scales, strict=False):
        check_argument(copied == ShapeDtypeStruct((route.num_replicas, *one.shape[1:]), one.dtype), "grouped_matmul",
                       "replicas of the scale", copied, f"those of {route.num_replicas} experts, like {one}")
    check_argument(w.dtype == STORED_AS[element], "grouped_matmul", "weight", w, f"of {STORED_AS[element]}")
    check_argument(len(x.shape) == 2 and x.shape[0] is route.rows, "grouped_matmul", "rows", x,
                   "received rows [R, K] of this route")
    check_argument(x.dtype in FLOATS or (x.dtype == BYTES and rows == element), "grouped_matmul", "rows", x,
                   f"of {', '.join(FLOATS)}")
    outer, inner = fixed(w.shape[1:]) if transpose else fixed(w.shape[:0:-1])
    width = WEIGHT_FORMATS[element].packed_cols(inner) if x.dtype == BYTES else inner
    check_argument(fixed(x.shape[1:])[0] == width, "grouped_matmul", "rows and weight", f"{x} and {w}",
                   "equal in their inner dimension", "Weights are [num_local_experts, K, N].")
    check_argument(rows != "int8" or inner <= MOST_TERMS, "grouped_matmul", "rows", x,
                   f"of at most {MOST_TERMS} columns, so that an int32 holds the sums")
    if WEIGHT_FORMATS[element].block:
        of_blocks = scales_aval(w, element)
        check_argument(scale == (of_blocks,), "grouped_matmul", "scale", scale, f"{of_blocks}, of blocks of a weight's rows")
        return ShapeDtypeStruct((x.shape[0], outer), to)
    for columns in scale:
        check_argument(columns.shape == (w.shape[0], outer) and columns.dtype in FLOATS, "grouped_matmul", "scale", columns,
                       f"floats of shape [{w.shape[0]}, {outer}], one for each column of an expert's weight")
    return ShapeDtypeStruct((x.shape[0], outer), to)


@grouped_quantized.reference
def _(x: np.ndarray, w: np.ndarray, route: Route, *more: np.ndarray, element: str, transpose: bool, rows: str = "",
      to: str = "float32") -> np.ndarray:
    scale, copies, of_scales = split_copies(route.routing.placement, more)
    if copies:
        w, scale = np.concatenate([w, *copies]), tuple(np.concatenate(s) for s in zip(scale, of_scales, strict=True))
    form = WEIGHT_FORMATS[element]
    packed = x if x.dtype == np.uint8 or not rows else quantized(x, form)
    out = np.zeros((len(x), w.shape[1] if transpose else w.shape[2]), np.float32 if rows else x.dtype)
    stops, numbers = np.cumsum(route.tokens_per_expert), values_of_elements(form.element, w)
    if form.block:
        numbers, scale = numbers * block_scales(scale[0], form.block, 0, w.shape[2]), ()
        x = dequantized(packed, form) if rows else x
    for e, (count, stop) in enumerate(zip(route.tokens_per_expert, stops, strict=True)):
        mine, matrix = slice(int(stop - count), int(stop)), w[e].T if transpose else w[e]
        if rows and not form.block:
            elements = packed[mine, :-ROWS.scale_bytes]
            exact = sums_of(elements, matrix) if rows == "int8" else values_of_elements(form.element, elements) @ (
                numbers[e].T if transpose else numbers[e])
            out[mine] = rescaled(exact, packed[mine])
        else:
            out[mine] = x[mine] @ (numbers[e].T if transpose else numbers[e])
    with np.errstate(all="ignore"):
        return out * scale[0][route.expert_of_row] if scale else out


@grouped_quantized.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    """Passes gradients straight through the rounding of rows; gradients of the scales are exact."""
    (x, w, route, *more), params, g = eqn.inputs, eqn.params, cotangents[0]
    scale, copies, of_scales = split_copies(as_route(route.aval).placement, tuple(more))
    of_scale: list[Atom | None] = [None] * len(more)
    has_blocks = bool(WEIGHT_FORMATS[params["element"]].block)
    if scale and not has_blocks and is_differentiable(scale[0]):
        product = b.add(grouped_quantized, x, w, route, *copies, **{**params, "to": "float32"})
        of_scale[0] = _summed(b, b.add(mul, product, in_dtype(b, g, "float32")), route)
    dx = None
    if is_differentiable(x):
        scaled = b.add(expert_scale, g, scale[0], route, *of_scales) if scale and not has_blocks else g
        back = product_params(params["element"], not params["transpose"], "", params["to"])
        dx = b.add(grouped_quantized, scaled, w, route, *(more if has_blocks else copies), **back)
    return [dx, None, None, *of_scale]


def _summed(b: Builder, x: Atom, route: Atom) -> Atom:
    """Returns sums [num_own_experts, N] of the rows `x` of each expert, with those of its replicas: a scale's gradient."""
    aval = as_route(route.aval)
    if aval.placement is None:
        return b.add(expert_sum, x, route)
    ones = b.add(broadcast_to, Literal(1.0), shape=(x.aval.shape[0], 1))
    returned = b.add(return_weight_grads, b.add(grouped_weight_grad, ones, x, route, of="replicas"), route)
    sums = b.add(grouped_weight_grad, ones, x, route, returned, of="owners")
    return b.add(reshape, sums, shape=(aval.num_own_experts, x.aval.shape[1]))


@grouped_quantized.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    product = QuantizedProduct(tiler, eqn)
    if eqn.params.get("rows"):
        product.of_quantised_rows()
    else:
        product.of_floats()


# On tensors.

class _Call(Protocol):
    """Values of a call of grouped_matmul that its gradient needs."""

    route: Route
    params: ProductParams
    arrays: list[np.ndarray]
    is_nested: bool


class _OnTensors(Differentiable):
    """Outside a trace, one rank's; computed in NumPy."""

    @staticmethod
    def forward(ctx: _Call, route: Route, params: ProductParams, *tensors: Tensor) -> Tensor:
        ctx.route, ctx.params, ctx.is_nested = route, params, gradient_depth() > 1
        ctx.arrays = [values_of(WHO, t) for t in tensors]
        return Tensor.from_numpy(_computed(ctx.route, params, *ctx.arrays))

    @staticmethod
    def backward(ctx: _Call, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.is_nested:
            raise ProgramError(f"{WHO}: a gradient is taken of its gradient, which is not differentiable beside quantised "
                               "weights")
        x, w, scale = ctx.arrays
        g, params = widen(values_of(WHO, grad)), ctx.params
        back = product_params(params["element"], not params["transpose"], "", params["to"])
        if WEIGHT_FORMATS[params["element"]].block:
            return None, None, Tensor.from_numpy(_computed(ctx.route, back, rounded(g, params["to"]), w, scale)), None, None
        dx = _computed(ctx.route, back, rounded(g * widen(scale)[ctx.route.expert_of_row], params["to"]), w)
        products = g * _computed(ctx.route, {**params, "to": "float32"}, x, w)
        d_scale = rounded(expert_sum.rule("reference", WHO)(products, ctx.route), dtype_name(scale.dtype))
        return None, None, Tensor.from_numpy(dx), None, Tensor.from_numpy(d_scale)


def _computed(route: Route, params: ProductParams, x: np.ndarray, w: np.ndarray, *scale: np.ndarray) -> np.ndarray:
    rule = grouped_quantized.rule("reference", WHO)
    return rounded(rule(widen(x), w, route, *map(widen, scale), **params), params["to"])


@grouped_quantized.eager
def _(x: Tensor, w: Tensor, route: Route, scale: Tensor, *, element: str, transpose: bool, to: str,
      rows: str = "") -> Tensor:
    params = product_params(element, transpose, rows, to)
    check_route(WHO, route)
    for argument, given in (("rows", x), ("weight", w), ("scale", scale)):
        check_tensor(WHO, argument, given)
    experts, (inner, outer) = len(route.tokens_per_expert), w.shape[1:] if w.ndim == 3 else (0, 0)
    inner, outer, sizes = (outer, inner, "N, K") if transpose else (inner, outer, "K, N")
    check_argument(w.ndim == 3 and w.shape[0] == experts, WHO, "weight", f"of shape {w.shape}",
                   f"[{experts}, {sizes}], the experts of the route")
    check_argument(tuple(x.shape) == (route.num_rows, inner) and name_of_dtype(x.dtype) in FLOATS, WHO, "rows",
                   f"{x.dtype} of shape {x.shape}", f"floats of shape [{route.num_rows}, {inner}]")
    of_blocks = scales_aval(ShapeDtypeStruct(w), element) if element == "mxfp8" else None
    fits = tuple(scale.shape) == (experts, outer) and name_of_dtype(scale.dtype) in FLOATS
    check_argument(ShapeDtypeStruct(scale) == of_blocks if of_blocks else fits, WHO, "scale",
                   f"{scale.dtype} of shape {scale.shape}",
                   f"uint8 of shape {list(of_blocks.shape)}" if of_blocks else f"floats of shape [{experts}, {outer}]")
    check_argument(rows != "int8" or inner <= MOST_TERMS, WHO, "rows", f"of {inner} columns",
                   f"of at most {MOST_TERMS} columns, so that an int32 holds the sums")
    if takes_gradient():
        return cast("Tensor", _OnTensors.apply(route, params, x, w, scale))
    return Tensor.from_numpy(_computed(route, params, *(values_of(WHO, t) for t in (x, w, scale))))
