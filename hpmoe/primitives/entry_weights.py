"""Scalars of entries, such as routing weights, sent to the rows of their entries; and back, its transpose."""

from __future__ import annotations

import dataclasses
import math

from mindspore import Tensor, mint

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Equation
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.primitive import Primitive, transposed_by
from hpmoe.primitives.sending import gather_or_zero, send, send_back, tile_return
from hpmoe.primitives.tiler import Tiler
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.tokens import KEEP
from hpmoe.tile_ops.transfers import ALL_TO_ALL

dispatch_weights = Primitive("dispatch_weights", collective=True)
combine_weights = Primitive("combine_weights", collective=True)
dispatch_weights.eager(in_float32(
    lambda weights, route: gather_or_zero(weights.reshape(-1, 1), route.routing.entry_of_row[0])))
dispatch_weights.reference(lambda weights, routes: send([w.reshape(-1, 1) for w in weights], routes[0].routing, 1))
dispatch_weights.vjp(transposed_by(combine_weights))
combine_weights.reference(
    lambda values, routes: [b.reshape(-1, routes[0].routing.top_k) for b in send_back(values, routes[0].routing)])
combine_weights.vjp(transposed_by(dispatch_weights))


def of_entries(weights: Tensor, route: object) -> Tensor:
    """Converts weights of choices, [T, K], to weights of entries, [T, tp * K]: each shard has its expert's weight."""
    aval = getattr(route, "aval", None)
    tp_size = aval.tp_size if isinstance(aval, RouteAval) else 1
    return weights if tp_size == 1 else mint.cat([weights] * tp_size, -1)


@dispatch_weights.infer
def _(weights: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((route.rows, 1), weights.dtype)


@dispatch_weights.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (weights, route), out = eqn.inputs, eqn.outputs[0]
    entries = tiler.at(weights, row_modes.ENTRIES, col_modes.ALL)
    column = tiler.view(entries.buffer, weights, *_as_column(weights.aval))
    tiler.new(out, dtype=tiler.buffer(weights).dtype)
    tiler.emit(ALL_TO_ALL, tiler.once(route), tiler.at(out, row_modes.PEER, col_modes.ALL),
               dataclasses.replace(entries, buffer=column), cols=0)


def _as_column(weights: ShapeDtypeStruct | RouteAval) -> tuple[tuple[int, int], int, int]:
    """Returns the shape, columns and rows of a buffer of one column with a row for each entry of [T, K]."""
    entries = math.prod(fixed(weights.shape))
    return (entries, 1), 1, entries


@combine_weights.infer
def _(values: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((route.num_tokens, route.top_k), values.dtype)


@combine_weights.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (values, route), out = eqn.inputs, eqn.outputs[0]
    entries = tile_return(tiler, values, route, out)
    tiler.new(out, dtype=tiler.buffer(values).dtype)
    domain = dataclasses.replace(tiler.rows_of(out), route=tiler.once(route).route)
    tiler.emit(KEEP, domain, tiler.at(out, cols=col_modes.ALL), entries, cols=0)
