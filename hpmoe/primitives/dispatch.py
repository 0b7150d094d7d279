"""Dispatch and combine: rows to the ranks of their experts and back, with their per-entry scalars."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from mindspore import Tensor, dtype as ms_dtype, mint, ops

from hpmoe.errors import check_argument
from hpmoe.primitives.elementwise import check_weights, is_differentiable, mul
from hpmoe.primitives.in_float32 import in_float32, is_half
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import dots_for
from hpmoe.program import Atom, Aval, Builder, Equation, RouteAval, Rows, Var
from hpmoe.routing import Route, check_topk_ids, make_routing

make_route = Primitive("route", collective=True)
dispatch_rows = Primitive("dispatch", collective=True)
combine_rows = Primitive("combine", collective=True)
dispatch_weights = Primitive("dispatch_weights", collective=True)
combine_weights = Primitive("combine_weights", collective=True)


def dispatch(hidden_states: Any, topk_ids: Any, *, num_local_experts: int) -> tuple[Any, Any]:
    """Sends each token's row to the ranks of its experts, compacted there by expert.

    Args:
        hidden_states: [T, H].
        topk_ids: [T, K] int32, distinct global expert ids of each token.
        num_local_experts: experts of this rank, `weight.shape[0]`; the model has that many times the ranks of the mesh.

    Returns:
        (rows, route): received rows [R, H], ordered by (local expert, source rank, token), and the route that
        `grouped_matmul` and `combine` take.

    Raises:
        ArgumentError: shapes or dtypes do not fit, an id is out of range, or a token repeats one.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x = ms.Tensor([[1.0], [2.0]])
        >>> rows, route = hpmoe.dispatch(x, ms.Tensor(np.array([[1], [0]], np.int32)), num_local_experts=2)
        >>> rows.asnumpy().tolist(), route.tokens_per_expert.tolist()
        ([[2.0], [1.0]], [1, 1])
    """
    route = make_route(topk_ids, num_local_experts=num_local_experts)
    return dispatch_rows(hidden_states, route), route


def combine(rows: Any, route: Any, topk_weights: Any = None) -> Any:
    """Sends each row back to its token and sums a token's rows, weighted where weights are given.

    Args:
        rows: [R, H], one for each received row of the route.
        route: the second result of `hpmoe.dispatch`.
        topk_weights: optional [T, K] of the dtype of `rows`, or float32; without it every weight is 1.

    Returns:
        [T, H], out[t] = sum over k of topk_weights[t, k] * row of entry (t, k).

    Raises:
        ArgumentError: shapes or dtypes do not fit the route.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x = ms.Tensor([[1.0], [2.0]])
        >>> rows, route = hpmoe.dispatch(x, ms.Tensor(np.array([[1, 0], [0, 1]], np.int32)), num_local_experts=2)
        >>> hpmoe.combine(rows, route, ms.Tensor([[0.5, 0.5], [1.0, 2.0]])).asnumpy().tolist()
        [[1.0], [6.0]]
    """
    return combine_rows(rows, route) if topk_weights is None else combine_rows(rows, route, topk_weights)


def _check_route(who: str, route: Any) -> None:
    check_argument(isinstance(route, (RouteAval, Route)), who, "route", route, "the second result of hpmoe.dispatch")


# route

@make_route.infer
def _(ids: Aval, *, num_local_experts: int, ep_size: int, max_rows: int | None = None) -> RouteAval:
    check_argument(isinstance(ids, Aval) and len(ids.shape) == 2 and ids.dtype == "int32", "hpmoe.dispatch", "topk_ids",
                   ids, "[T, K] int32", "Cast with topk_ids.astype(mindspore.int32).")
    num_tokens, top_k = ids.shape
    num_experts = num_local_experts * ep_size
    check_argument(1 <= top_k <= num_experts, "hpmoe.dispatch", "top_k", top_k, f"in 1..{num_experts}",
                   f"There are {num_local_experts} local experts on each of {ep_size} ranks.")
    return RouteAval(Rows(), num_tokens, top_k, num_experts, ep_size)


@make_route.reference
def _(ids: list[np.ndarray], *, num_local_experts: int, ep_size: int, num_tokens: list[int],
      max_rows: int | None = None) -> list[Route]:
    routing = make_routing(ids, num_local_experts * ep_size, num_tokens)
    return [Route(routing, rank) for rank in range(ep_size)]


@make_route.eager
def _(topk_ids: Any, *, num_local_experts: int) -> Route:
    is_ids = isinstance(topk_ids, Tensor) and topk_ids.ndim == 2 and topk_ids.dtype == ms_dtype.int32
    got = f"{topk_ids.dtype} of shape {topk_ids.shape}" if isinstance(topk_ids, Tensor) else type(topk_ids).__name__
    check_argument(is_ids, "hpmoe.dispatch", "topk_ids", got, "a [T, K] int32 Tensor",
                   "Cast with topk_ids.astype(mindspore.int32).")
    ids = topk_ids.asnumpy()
    check_argument(1 <= ids.shape[1] <= num_local_experts, "hpmoe.dispatch", "top_k", ids.shape[1],
                   f"in 1..{num_local_experts}")
    check_topk_ids(ids, num_local_experts)
    return Route(make_routing([ids], num_local_experts))


@make_route.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [None]


@make_route.tile
def _(tiler: Any, eqn: Equation) -> None:
    """A route makes no tasks: the kernel computes it when it starts."""


# dispatch and its transpose, combine without weights

@dispatch_rows.infer
def _(x: Aval, route: RouteAval) -> Aval:
    _check_route("hpmoe.dispatch", route)
    check_argument(len(x.shape) == 2 and x.shape[0] == route.num_tokens, "hpmoe.dispatch", "hidden_states", x,
                   f"[{route.num_tokens}, H], as many rows as topk_ids")
    return Aval((route.rows, x.shape[1]), x.dtype)


def _send(xs: list[np.ndarray], routes: list[Route], entries_per_row: int) -> list[np.ndarray]:
    """out[d][row] = xs[source of row][entry of row // entries_per_row]."""
    routing, out = routes[0].routing, []
    for rank in range(routing.ep_size):
        rows = np.zeros((routing.num_rows(rank), xs[0].shape[1]), xs[0].dtype)
        for source, x in enumerate(xs):
            mine = routing.source_of_row[rank] == source
            rows[mine] = x[routing.entry_of_row[rank][mine] // entries_per_row]
        out.append(rows)
    return out


def _send_back(rows: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    """out[rank][entry] = its row; zero for entries of padding tokens."""
    routing, out = routes[0].routing, []
    for destination, row in routing.row_of_entry():
        back = np.zeros((routing.max_tokens * routing.top_k, rows[0].shape[1]), rows[0].dtype)
        for rank in range(routing.ep_size):
            there = np.flatnonzero(destination == rank)
            back[there] = rows[rank][row[there]]
        out.append(back)
    return out


@dispatch_rows.reference
def _(xs: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    return _send(xs, routes, routes[0].routing.top_k)


@dispatch_rows.eager
@in_float32
def _(x: Any, route: Route) -> Any:
    _check_route("hpmoe.dispatch", route)
    check_argument(isinstance(x, Tensor) and x.ndim == 2 and x.shape[0] == route.routing.num_tokens[0], "hpmoe.dispatch",
                   "hidden_states", f"of shape {getattr(x, 'shape', None)}",
                   f"[{route.routing.num_tokens[0]}, H], as many rows as topk_ids")
    if route.num_rows == 0:
        return x
    token = route.routing.entry_of_row[0] // route.routing.top_k
    return ops.gather(x, Tensor(token.astype(np.int32)), 0)


@dispatch_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(combine_rows, cotangents[0], eqn.inputs[1]), None]


@dispatch_rows.tile
def _(tiler: Any, eqn: Equation) -> None:
    (x, route), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    tiler.emit("ALL_TO_ALL", tiler.once(route), tiler.at(out, "peer", "all"), tiler.at(x, "tokens", "all"), cols=0)


@combine_rows.infer
def _(rows: Aval, route: RouteAval, *weights: Aval) -> Aval:
    _check_route("hpmoe.combine", route)
    check_argument(isinstance(rows, Aval) and len(rows.shape) == 2 and rows.shape[0] is route.rows, "hpmoe.combine",
                   "rows", rows, "received rows [R, H] of this route")
    for w in weights:
        check_weights("hpmoe.combine", "topk_weights", w, (route.num_tokens, route.top_k), rows.dtype)
    return Aval((route.num_tokens, rows.shape[1]), rows.dtype)


@combine_rows.reference
def _(rows: list[np.ndarray], routes: list[Route], *weights: list[np.ndarray]) -> list[np.ndarray]:
    top_k, out = routes[0].routing.top_k, []
    for rank, back in enumerate(_send_back(rows, routes)):
        parts = back.reshape(-1, top_k, back.shape[1])
        if weights:
            parts = parts * weights[0][rank][:, :, None]
        total = np.zeros_like(parts[:, 0])
        for k in range(top_k):
            total += parts[:, k]
        out.append(total)
    return out


@combine_rows.eager
def _(rows: Any, route: Route, *weights: Any) -> Any:
    _check_route("hpmoe.combine", route)
    num_tokens, top_k = route.routing.num_tokens[0], route.routing.top_k
    check_argument(rows.ndim == 2 and rows.shape[0] == route.num_rows, "hpmoe.combine", "rows", f"of shape {rows.shape}",
                   f"[{route.num_rows}, H], one for each received row")
    for w in weights:
        fits = w.dtype == rows.dtype or (is_half(rows) and w.dtype == ms_dtype.float32)
        check_argument(w.shape == (num_tokens, top_k) and fits, "hpmoe.combine", "topk_weights",
                       f"{w.dtype} of shape {w.shape}", f"[{num_tokens}, {top_k}] {rows.dtype}, as the rows"
                       + (", or Float32" if is_half(rows) else ""))
    return rows if num_tokens == 0 else _sum_entries(rows, route, *weights)


@in_float32
def _sum_entries(rows: Any, route: Route, *weights: Any) -> Any:
    num_tokens, top_k = route.routing.num_tokens[0], route.routing.top_k
    (_, row), = route.routing.row_of_entry()
    back = ops.gather(rows, Tensor(row.astype(np.int32)), 0).reshape(num_tokens, top_k, rows.shape[1])
    if weights:
        back = back * mint.unsqueeze(weights[0], -1)
    return mint.sum(back, 1)


@combine_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    rows, route = eqn.inputs[:2]
    received = b.add(dispatch_rows, cotangents[0], route)
    if len(eqn.inputs) == 2:
        return [received, None]
    weights = eqn.inputs[2]
    d_rows = b.add(mul, received, b.add(dispatch_weights, weights, route))
    d_weights = None
    if is_differentiable(weights):
        d_weights = b.add(combine_weights, dots_for(b, received, rows, weights.aval), route)
    return [d_rows, None, d_weights]


@combine_rows.tile
def _(tiler: Any, eqn: Equation) -> None:
    """Rows go back to their tokens' rank, where each token's entries are summed in the order of its choices."""
    (rows, route), out = eqn.inputs[:2], eqn.outputs[0]
    entries = _tile_return(tiler, rows, route, tiler.hidden(
        f"{tiler.names(out)}.entries", route.aval.num_tokens * route.aval.top_k, rows.aval.shape[1], rows.aval.dtype))
    tiler.new(out)
    domain = dataclasses.replace(tiler.rows_of(out), route=tiler.once(route).route)
    weights = (tiler.at(w, cols="all") for w in eqn.inputs[2:])
    tiler.emit("REDUCE", domain, tiler.at(out), dataclasses.replace(entries, cols="own"), *weights)


def _tile_return(tiler: Any, rows: Var, route: Var, entries: int) -> Any:
    """Sends rows back to buffer `entries`, one row for each entry; returns how it is accessed."""
    source = tiler.at(rows, cols="all")
    access = dataclasses.replace(source, buffer=entries, rows="entries")
    tiler.emit("ALL_TO_ALL_BACK", tiler.once(route), access, source, cols=0)
    return access


# scalars of entries, and their transpose

@dispatch_weights.infer
def _(weights: Aval, route: RouteAval) -> Aval:
    return Aval((route.rows, 1), weights.dtype)


@dispatch_weights.reference
def _(weights: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    return _send([w.reshape(-1, 1) for w in weights], routes, 1)


@dispatch_weights.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(combine_weights, cotangents[0], eqn.inputs[1]), None]


@dispatch_weights.tile
def _(tiler: Any, eqn: Equation) -> None:
    (weights, route), out = eqn.inputs, eqn.outputs[0]
    entries = tiler.at(weights, "entries", "all")
    column = tiler.view(entries.buffer, weights, *_as_column(weights.aval))
    tiler.new(out)
    tiler.emit("ALL_TO_ALL", tiler.once(route), tiler.at(out, "peer", "all"), dataclasses.replace(entries, buffer=column),
               cols=0)


def _as_column(weights: Aval) -> tuple[tuple[int, int], int, int]:
    """[T, K] as shape, columns and rows of one column with a row for each entry."""
    entries = weights.shape[0] * weights.shape[1]
    return (entries, 1), 1, entries


@combine_weights.infer
def _(values: Aval, route: RouteAval) -> Aval:
    return Aval((route.num_tokens, route.top_k), values.dtype)


@combine_weights.reference
def _(values: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    return [back.reshape(-1, routes[0].routing.top_k) for back in _send_back(values, routes)]


@combine_weights.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(dispatch_weights, cotangents[0], eqn.inputs[1]), None]


@combine_weights.tile
def _(tiler: Any, eqn: Equation) -> None:
    (values, route), out = eqn.inputs, eqn.outputs[0]
    column = tiler.view(tiler.new(out), out, *_as_column(out.aval))
    _tile_return(tiler, values, route, column)
