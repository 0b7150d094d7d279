"""Vectors of an expert: added to each of its rows, multiplied with them, and summed over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Equation, Var
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.replicate import check_placed
from hpmoe.primitives.route import check_tensor
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import Route
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.elementwise import MAP
from hpmoe.tile_ops.functions import ADD, COPY, MUL
from hpmoe.tile_ops.params import Elementwise
from hpmoe.tile_ops.reductions import COL_SUM

expert_bias = Primitive("expert_bias")
expert_scale = Primitive("expert_scale")
expert_sum = Primitive("expert_sum")
expert_bias.reference(lambda x, bias, route: x + bias[route.expert_of_row])
expert_bias.vjp(lambda b, eqn, cotangents: [cotangents[0], b.add(expert_sum, cotangents[0], eqn.inputs[2]), None])
expert_scale.reference(lambda x, scale, route, *replicas: x * np.concatenate([scale, *replicas])[route.expert_of_row])


def check_experts(who: str, weight: ShapeDtypeStruct, route: RouteAval, num_dims: int,
                  replicas: tuple[ShapeDtypeStruct, ...] = ()) -> None:
    """Raises ArgumentError unless `weight` has `num_dims` dimensions, the first one the route's local experts.

    Where there are `replicas`, they are those of copies, and `weight` those of the rank's own experts.
    """
    check_argument(isinstance(route, RouteAval), who, "route", route, "the second result of hpmoe.dispatch")
    for copies in replicas:
        check_placed(who, route)
        check_argument(copies == ShapeDtypeStruct((route.num_replicas, *weight.shape[1:]), weight.dtype), who, "replicas",
                       copies,
                       f"{route.num_replicas} matrices like those of {weight}")
    experts = route.num_own_experts if replicas else route.num_local_experts
    check_argument(len(weight.shape) == num_dims and weight.shape[0] == experts, who, "weight", weight,
                   f"{num_dims}-dimensional with {experts} local experts first",
                   f"The route has {route.num_experts} experts over {route.ep_size} ranks.")


@expert_bias.infer
def _(x: ShapeDtypeStruct, bias: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_experts("expert_bias", bias, route, 2)
    check_argument(x.shape == (route.rows, bias.shape[1]) and x.dtype == bias.dtype, "expert_bias", "rows and bias",
                   f"{x} and {bias}", "[R, N] and [num_local_experts, N] of one dtype")
    return x


@expert_bias.eager
@in_float32
def _(x: Tensor, bias: Tensor, route: Route) -> Tensor:
    check_tensor("hpmoe.grouped_matmul", "bias", bias)
    expected = (len(route.tokens_per_expert), x.shape[1])
    check_argument(bias.shape == expected, "hpmoe.grouped_matmul", "bias", f"of shape {bias.shape}", f"of shape {expected}")
    if route.num_rows == 0:
        return x
    return mint.add(x, ops.gather(bias, Tensor(route.expert_of_row.astype(np.int32)), 0))


@expert_bias.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, bias), out = eqn.inputs[:2], eqn.outputs[0]
    tiler.map(ADD, out, tiler.at(x), tiler.at(bias, row_modes.SLOT_EXPERT))


@expert_scale.infer
def _(x: ShapeDtypeStruct, scale: ShapeDtypeStruct, route: RouteAval, *replicas: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_experts("expert_scale", scale, route, 2, replicas)
    check_argument(x.shape == (route.rows, scale.shape[1]), "expert_scale", "rows and scale", f"{x} and {scale}",
                   "[R, N] and [num_local_experts, N]")
    return x


@expert_scale.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, scale, _, *replicas), out = eqn.inputs, eqn.outputs[0]
    tiler.map(MUL, out, tiler.at(x), rows_of_experts(tiler, scale, replicas))


def rows_of_experts(tiler: Tiler, rows: Atom, replicas: Sequence[Atom] = ()) -> Access:
    """Returns the access of a task to its slot's expert in [E, N] arrays; replicas' rows follow the own rows."""
    access = dataclasses.replace(tiler.at(rows, row_modes.SLOT_EXPERT), buffer=tiler.regular(rows))
    for copies in replicas:
        (experts, cols), (more, _) = fixed(rows.aval.shape), fixed(copies.aval.shape)
        joined, dtype, size = Var(ShapeDtypeStruct((experts + more, cols),
                                                   rows.aval.dtype)), tiler.buffer(rows).dtype, experts * cols
        row = tiler.new_as_one_row(joined, dtype)
        for given, first in ((rows, 0), (copies, size)):
            tiler.emit(MAP, tiler.domain_of(row), Access(row, offset=first), Access(tiler.as_one_row(given)),
                       cols=tiler.buffers[tiler.as_one_row(given)].cols, params=Elementwise(COPY))
        access = dataclasses.replace(access, buffer=tiler.buffer_of[joined])
    return access


@expert_sum.infer
def _(x: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((route.num_local_experts, x.shape[1]), x.dtype)


@expert_sum.reference
def _(x: np.ndarray, route: Route) -> np.ndarray:
    out = np.zeros((len(route.tokens_per_expert), x.shape[1]), x.dtype)
    np.add.at(out, route.expert_of_row, x)
    return out


@expert_sum.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    x, out = eqn.inputs[0], eqn.outputs[0]
    domain, mode = tiler.experts_of(x)
    tiler.new(out)
    tiler.emit(COL_SUM, domain, tiler.at(out), tiler.at(x, mode))
