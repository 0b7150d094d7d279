"""Tokens sent once to a rank: the route to ranks, the rows of a rank's experts copied from it, and summed up to go back."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.avals import RouteAval, Rows, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.elementwise import mul
from hpmoe.primitives.primitive import Primitive, transposed_by
from hpmoe.primitives.row_dot import dots_for
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.kinds.stops import Stops
from hpmoe.routing.routing import PADDING, Route, add_choices, routing_of_tokens
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.tokens import FAN_IN, FAN_OUT

route_to_ranks = Primitive("route_to_ranks", collective=True, differentiable=False)
route_to_ranks.tile(lambda tiler, eqn: None)  # the kernel computes a route when it starts
fan_out = Primitive("fan_out")
fan_in = Primitive("fan_in")
fan_out.vjp(transposed_by(fan_in))


@route_to_ranks.infer
def _(route: RouteAval, kind: type[Stops], **params: int) -> RouteAval:
    return RouteAval(Rows(), kind(route.kind.by_ids, **params))


@route_to_ranks.reference
def _(routes: list[Route], kind: type[Stops], **params: int) -> list[Route]:
    experts = routes[0].routing
    routing = routing_of_tokens(kind(experts.kind.by_ids, **params), experts)
    return [Route(routing, rank) for rank in range(routing.ep_size)]


# From a token's row to the rows of its experts on this rank, and back: transposes of each other.

@fan_out.infer
def _(x: ShapeDtypeStruct, ranks: RouteAval, route: RouteAval) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((route.rows, x.shape[1]), x.dtype)


@fan_out.reference
def _(x: np.ndarray, ranks: Route, route: Route) -> np.ndarray:
    sources = ranks.routing.sources[ranks.rank]
    out = np.zeros((len(sources), x.shape[1]), x.dtype)
    out[sources != PADDING] = x[sources[sources != PADDING]]
    return out


@fan_out.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    x, out = eqn.inputs[0], eqn.outputs[0]
    tiler.new(out, dtype=tiler.buffer(x).dtype)
    tiler.emit(FAN_OUT, tiler.rows_of(x), tiler.at(out, row_modes.FAN, dtypes=tiler.MOVED),
               tiler.at(x, dtypes=tiler.MOVED))


@fan_in.infer
def _(rows: ShapeDtypeStruct, ranks: RouteAval, route: RouteAval, *weights: ShapeDtypeStruct) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((ranks.rows, rows.shape[1]), rows.dtype)


@fan_in.reference
def _(rows: np.ndarray, ranks: Route, route: Route, *weights: np.ndarray) -> np.ndarray:
    out = np.zeros((ranks.num_rows, rows.shape[1]), rows.dtype)
    add_choices(out, ranks, np.arange(len(rows)), rows * weights[0] if weights else rows)
    return out


@fan_in.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    rows, ranks, route, *weights = eqn.inputs
    received = b.add(fan_out, cotangents[0], ranks, route)
    if not weights:
        return [received, None, None]
    return [b.add(mul, received, weights[0]), None, None, dots_for(b, received, rows, weights[0].aval)]


@fan_in.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (rows, _, _, *weights), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    tiler.emit(FAN_IN, tiler.rows_of(out), tiler.at(out), tiler.at(rows, row_modes.FAN),
               *(tiler.at(w, row_modes.FAN, col_modes.ALL) for w in weights))
