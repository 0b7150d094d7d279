"""Rows that relays pass on inside their node to the ranks of a route, and sum up on their way back."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.avals import Aval, RouteAval, as_route, fixed
from hpmoe.ir.program import Equation
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import Route
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.params import Relayed
from hpmoe.tile_ops.tokens import RELAY_SUM
from hpmoe.tile_ops.transfers import ALL_TO_ALL, ALL_TO_ALL_BACK

relay = Primitive("relay", collective=True)
relay_back = Primitive("relay_back", collective=True)


@relay.infer
def _(x: Aval, relays: RouteAval, route: RouteAval) -> Aval:
    return Aval((route.rows, x.shape[1]), x.dtype)


@relay.reference
def _(xs: list[np.ndarray], relays: list[Route], routes: list[Route]) -> list[np.ndarray]:
    relayed, top_k = RelayedRows.of(routes[0].routing, relays[0].routing), routes[0].routing.top_k
    out = []
    for source, entry in zip(relayed.source_of_row, relayed.entry_of_row, strict=True):
        rows = np.zeros((len(source), xs[0].shape[1]), xs[0].dtype)
        for at in np.unique(source):
            rows[source == at] = xs[at][entry[source == at] // top_k]
        out.append(rows)
    return out


@relay.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, _, route), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out, dtype=tiler.buffer(x).dtype)
    tiler.emit(ALL_TO_ALL, tiler.once(route), tiler.at(out, row_modes.PEER, col_modes.ALL, dtypes=tiler.MOVED),
               tiler.at(x, row_modes.RELAY_ROWS, col_modes.ALL, dtypes=tiler.MOVED), cols=0)


@relay_back.infer
def _(rows: Aval, relays: RouteAval, route: RouteAval, *weights: Aval) -> Aval:
    return Aval((relays.rows, rows.shape[1]), rows.dtype)


@relay_back.reference
def _(rows: list[np.ndarray], relays: list[Route], routes: list[Route], *weights: list[np.ndarray]) -> list[np.ndarray]:
    relayed, top_k = RelayedRows.of(routes[0].routing, relays[0].routing), routes[0].routing.top_k
    back = [np.zeros((len(kept), rows[0].shape[1]), rows[0].dtype) for kept in relayed.kept]
    for mine, source, entry in zip(rows, relayed.source_of_row, relayed.entry_of_row, strict=True):
        for at in np.unique(source):
            back[at][entry[source == at]] = mine[source == at]
    out = []
    for rank, (mine, kept) in enumerate(zip(back, relayed.kept, strict=True)):
        parts, total = mine.reshape(-1, top_k, mine.shape[1]), np.zeros((len(mine) // top_k, mine.shape[1]), mine.dtype)
        for k in range(top_k):
            weight = weights[0][rank][:, k:k + 1] if weights else 1
            total += np.where(kept[k::top_k, None], parts[:, k] * weight, 0)
        out.append(total)
    return out


@relay_back.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    """Rows go back to their relays, where those of each token are summed in the order of its choices."""
    (rows, relays, route, *weights), out = eqn.inputs, eqn.outputs[0]
    most, cols = as_route(relays.aval).max_rows, fixed(rows.aval.shape[1:])[0]
    source = tiler.at(rows, cols=col_modes.ALL)
    entries = dataclasses.replace(source, rows=row_modes.RELAY_ENTRIES, buffer=tiler.hidden(
        f"{tiler.names(out)}.entries", most * as_route(route.aval).top_k, cols, tiler.buffer(rows).dtype))
    tiler.emit(ALL_TO_ALL_BACK, tiler.once(route), entries, source, cols=0)
    tiler.new(out)
    tiler.emit(RELAY_SUM, tiler.rows_of(out), tiler.at(out), dataclasses.replace(entries, cols=col_modes.OWN),
               *(tiler.at(w, cols=col_modes.ALL) for w in weights), params=Relayed(tiler.once(route).route))
