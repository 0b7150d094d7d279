"""Exchange: rows that are sorted by expert on the ranks of their tokens, to the ranks of the experts, and back.

After `permute`, and before `unpermute`, of the same ids, these are dispatch and combine; see hpmoe.tracing.recognize.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.primitives.primitive import Primitive, transposed_by
from hpmoe.primitives.route import check_route
from hpmoe.primitives.sending import send, send_back
from hpmoe.routing.routing import Route
from hpmoe.support.errors import check_argument

exchange_rows = Primitive("exchange", collective=True)
return_rows = Primitive("exchange_back", collective=True)
exchange_rows.vjp(transposed_by(return_rows))
return_rows.vjp(transposed_by(exchange_rows))


def _entries(routes: list[Route]) -> list[np.ndarray]:
    """Returns for each rank the flat indices t * K + k of its entries (t, k), sorted by expert after the masked entries."""
    routing = routes[0].routing
    return [np.concatenate([np.flatnonzero(~kept), order]) for kept, order in zip(routing.kept, routing.order, strict=True)]


@exchange_rows.infer
def _(rows: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_route("hpmoe.token_ops.exchange", route)
    check_argument(route.tp_size == 1, "hpmoe.token_ops.exchange", "tp_size of the mesh", route.tp_size,
                   "1: hpmoe.dispatch and hpmoe.combine send rows to the shards of experts, and add their parts")
    entries = route.num_tokens * route.top_k
    check_argument(len(rows.shape) == 2 and rows.shape[0] == entries, "hpmoe.token_ops.exchange", "rows", rows,
                   f"[{entries}, H], the rows of all entries, as hpmoe.token_ops.permute sorts them")
    return ShapeDtypeStruct((route.rows, rows.shape[1]), rows.dtype)


@exchange_rows.reference
def _(rows: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    by_entry = [np.zeros_like(mine) for mine in rows]
    for mine, given, entries in zip(by_entry, rows, _entries(routes), strict=True):
        mine[entries] = given[:len(entries)]
    return send(by_entry, routes[0].routing, 1)


@exchange_rows.eager
def _(rows: Tensor, route: Route) -> Tensor:
    check_route("hpmoe.token_ops.exchange", route)
    entries = len(route.routing.kept[0])
    check_argument(rows.ndim == 2 and rows.shape[0] == entries, "hpmoe.token_ops.exchange", "rows", f"of shape {rows.shape}",
                   f"[{entries}, H], the rows of all entries, as hpmoe.token_ops.permute sorts them")
    return rows if route.num_rows == entries else mint.narrow(rows, 0, entries - route.num_rows, route.num_rows)


@return_rows.infer
def _(rows: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_route("hpmoe.token_ops.exchange_back", route)
    check_argument(len(rows.shape) == 2 and rows.shape[0] is route.rows, "hpmoe.token_ops.exchange_back", "rows", rows,
                   "received rows [R, H] of this route")
    return ShapeDtypeStruct((route.num_tokens * route.top_k, rows.shape[1]), rows.dtype)


@return_rows.reference
def _(rows: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    out = []
    for back, entries in zip(send_back(rows, routes[0].routing), _entries(routes), strict=True):
        mine = np.zeros_like(back)
        mine[:len(entries)] = back[entries]
        out.append(mine)
    return out


@return_rows.eager
def _(rows: Tensor, route: Route) -> Tensor:
    check_route("hpmoe.token_ops.exchange_back", route)
    check_argument(rows.ndim == 2 and rows.shape[0] == route.num_rows, "hpmoe.token_ops.exchange_back", "rows",
                   f"of shape {rows.shape}", f"[{route.num_rows}, H], one for each received row")
    absent = len(route.routing.kept[0]) - route.num_rows
    return mint.cat([mint.zeros((absent, rows.shape[1]), dtype=rows.dtype), rows]) if absent else rows
