"""Rows that relays, the stops of one route, pass on to the ranks of another route, and sum on their way back."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, as_route, fixed
from hpmoe.ir.program import Equation
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.sending import send, send_back, sum_entries
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import Route
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.params import Relayed
from hpmoe.tile_ops.tokens import RELAY_SUM
from hpmoe.tile_ops.transfers import ALL_TO_ALL, ALL_TO_ALL_BACK

relay = Primitive("relay", collective=True)
relay_back = Primitive("relay_back", collective=True)
relay.reference(lambda xs, relays, routes: send(xs, _relayed(relays, routes), routes[0].routing.top_k))


@relay.infer
def _(x: ShapeDtypeStruct, relays: RouteAval, route: RouteAval) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((route.rows, x.shape[1]), x.dtype)


@relay.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, relays, route), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out, dtype=tiler.buffer(x).dtype)
    tiler.emit(ALL_TO_ALL, tiler.come_over(route, relays), tiler.at(out, row_modes.PEER, col_modes.ALL, dtypes=tiler.MOVED),
               tiler.at(x, row_modes.RELAY_ROWS, col_modes.ALL, dtypes=tiler.MOVED), cols=0)


@relay_back.infer
def _(rows: ShapeDtypeStruct, relays: RouteAval, route: RouteAval, *weights: ShapeDtypeStruct) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((relays.rows, rows.shape[1]), rows.dtype)


@relay_back.reference
def _(rows: list[np.ndarray], relays: list[Route], routes: list[Route], *weights: list[np.ndarray]) -> list[np.ndarray]:
    relayed = _relayed(relays, routes)
    return [sum_entries(back, relayed.kept[rank], relayed.top_k, *(w[rank] for w in weights))
            for rank, back in enumerate(send_back(rows, relayed))]


def _relayed(relays: list[Route], routes: list[Route]) -> RelayedRows:
    return RelayedRows.of(routes[0].routing, relays[0].routing)


@relay_back.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    """Sends rows back to their relays, where those of each token are summed in the order of its choices."""
    (rows, relays, route, *weights), out = eqn.inputs, eqn.outputs[0]
    most, cols = as_route(relays.aval).max_rows, fixed(rows.aval.shape[1:])[0]
    source = tiler.at(rows, cols=col_modes.ALL)
    entries = dataclasses.replace(source, rows=row_modes.RELAY_ENTRIES, buffer=tiler.hidden(
        f"{tiler.names(out)}.entries", most * as_route(route.aval).top_k, cols, tiler.buffer(rows).dtype))
    once = tiler.come_over(route, relays)
    tiler.emit(ALL_TO_ALL_BACK, once, entries, source, cols=0)
    tiler.new(out)
    tiler.emit(RELAY_SUM, tiler.rows_of(out), tiler.at(out), dataclasses.replace(entries, cols=col_modes.OWN),
               *(tiler.at(w, cols=col_modes.ALL) for w in weights), params=Relayed(once.route))
