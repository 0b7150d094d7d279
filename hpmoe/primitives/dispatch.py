"""Dispatch and combine: rows to the ranks of their experts and back."""

from __future__ import annotations

import dataclasses

import numpy as np
from mindspore import Tensor, dtype as ms_dtype, mint

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, is_differentiable
from hpmoe.primitives.elementwise import check_weights, mul
from hpmoe.primitives.entry_weights import combine_weights, dispatch_weights, of_entries
from hpmoe.primitives.in_float32 import factor_beside, in_float32, is_half
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.primitive import Primitive, transposed_by
from hpmoe.primitives.route import check_route, check_tensor, make_route
from hpmoe.primitives.row_dot import dots_for
from hpmoe.primitives.sending import gather_or_zero, send, send_back, sum_entries, tile_return
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.capacity import Capacity, make_capacity
from hpmoe.routing.routing import Route
from hpmoe.support.errors import TransformError, check_argument, is_int, kind_of, tensor_advice
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.tokens import REDUCE
from hpmoe.tile_ops.transfers import ALL_TO_ALL

MOST_ALIGNMENT = 65_536  # past it a rank's padding alone may be more rows than a kernel counts

dispatch_rows = Primitive("dispatch", collective=True)
combine_rows = Primitive("combine", collective=True)
dispatch_rows.reference(lambda xs, routes: send(xs, routes[0].routing, routes[0].routing.top_k))
dispatch_rows.vjp(transposed_by(combine_rows))
MOVES = (dispatch_rows, combine_rows)


def routes_moved(program: Program) -> list[RouteAval]:
    """Returns the route of each dispatch and combine."""
    return [as_route(e.inputs[1].aval) for e in program.equations if e.primitive in MOVES]


def check_moves(who: str, program: Program) -> None:
    """Raises TransformError if there is neither dispatch nor combine, except in a stage before the exchanges."""
    if program.token_rows is None and not routes_moved(program):
        raise TransformError(f"{who}: {program.name} has neither dispatch nor combine, so no rows leave a rank")


@suggests_keywords
def dispatch(hidden_states: Tensor, topk_ids: Tensor, *, num_local_experts: int, capacity_factor: float | None = None,
             drop_policy: str = "error", topk_weights: Tensor | None = None,
             expert_alignment: int = 1) -> tuple[Tensor, Route]:
    """Sends each token's row to the ranks of its experts, compacted there by expert.

    With a capacity_factor, an expert takes at most ceil(num_tokens * top_k / num_experts * capacity_factor) entries (token,
    choice) of each rank, as Megatron-LM's and MindFormers' `get_capacity` computes it; num_tokens excludes padding. A
    dropped entry has no row, adds nothing to `combine`, whose weights are not renormalised, and has no gradient.

    An id of -1 is a masked entry, such as top-p routing, padding or null experts have. It has no row, uses no capacity and
    is not counted. Its weight is never read and has gradient zero; a token without experts gets zeros.

    An expert_alignment pads the rows of each expert that has any with rows of zeros, made by the receiving rank. They count
    in `route.tokens_per_expert`, are computed like other rows, and are ignored by `combine`.

    Args:
        hidden_states: [T, H].
        topk_ids: [T, K] int32 or int64: distinct global expert ids of each token, or -1; an argument or computed.
        num_local_experts: experts of this rank or, with shards, of its group: `weight.shape[0]`. The model has
            num_local_experts * ep_size experts.
        capacity_factor: a positive number, or None for unlimited experts.
        drop_policy: policy for entries over capacity: "error" raises; "position" drops the last ones in token order;
            "probs" drops those with the smallest topk_weights, the last if equal.
        topk_weights: [T, K] floats, read only by "probs"; weights of experts must not be NaN.
        expert_alignment: the multiple, at most 65,536; 1 adds no rows.

    Returns:
        (rows, route): received rows [R, H], ordered by (local expert, source rank, token), and the route that
        `grouped_matmul`, `combine` and `drop_counts` take.

    Raises:
        ArgumentError: shapes or dtypes do not fit, an id is out of range, a token repeats an expert, an expert is over
            capacity and the policy is "error", or an expert's weight is NaN and the policy is "probs".

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, ids = ms.Tensor([[1.0], [2.0], [3.0]]), ms.Tensor(np.array([[1], [0], [0]], np.int32))
        >>> rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
        >>> rows.asnumpy().tolist(), route.tokens_per_expert.tolist()
        ([[2.0], [3.0], [1.0]], [2, 1])
        >>> rows, route = hpmoe.dispatch(x, ids, num_local_experts=2, capacity_factor=0.5, drop_policy="probs",
        ...                              topk_weights=ms.Tensor([[0.1], [0.2], [0.3]]))
        >>> rows.asnumpy().tolist(), hpmoe.router.drop_counts(route).asnumpy().tolist()
        ([[3.0], [1.0]], [1, 0])
        >>> rows, route = hpmoe.dispatch(x, ms.Tensor(np.array([[1], [-1], [0]], np.int32)), num_local_experts=2)
        >>> rows.asnumpy().tolist(), hpmoe.combine(rows, route).asnumpy().tolist()
        ([[3.0], [1.0]], [[1.0], [0.0], [3.0]])
        >>> rows, route = hpmoe.dispatch(x, ids, num_local_experts=3, expert_alignment=2)
        >>> rows.asnumpy().tolist(), route.tokens_per_expert.tolist()
        ([[2.0], [3.0], [1.0], [0.0]], [2, 2, 0])
    """
    outside_graphs("hpmoe.dispatch")
    _check(num_local_experts, expert_alignment, topk_weights)
    capacity = make_capacity(capacity_factor, drop_policy)
    route = make_route(topk_ids, *_deciding(capacity, topk_weights), num_local_experts=int(num_local_experts),
                       **_told(capacity, expert_alignment))
    return dispatch_rows(hidden_states, route), route


def _check(num_local_experts: int, expert_alignment: int, topk_weights: Tensor | None) -> None:
    check_argument(is_int(num_local_experts), "hpmoe.dispatch", "num_local_experts", repr(num_local_experts),
                   "a positive int, weight.shape[0]")
    check_argument(is_int(expert_alignment, 1, MOST_ALIGNMENT), "hpmoe.dispatch", "expert_alignment", repr(expert_alignment),
                   f"an int in 1..{MOST_ALIGNMENT}")
    check_argument(topk_weights is None or isinstance(topk_weights, Tensor), "hpmoe.dispatch", "topk_weights",
                   kind_of(topk_weights), "a mindspore.Tensor [T, K], or None", tensor_advice("topk_weights", topk_weights))


def _told(capacity: Capacity | None, expert_alignment: int) -> dict[str, int | float | str]:
    """Returns the options of a route that differ from their defaults."""
    aligned: dict[str, int | float | str] = {"expert_alignment": int(expert_alignment)} if expert_alignment > 1 else {}
    return aligned if capacity is None else {**aligned, "capacity_factor": capacity.factor, "drop_policy": capacity.policy}


def _deciding(capacity: Capacity | None, topk_weights: Tensor | None) -> list[Tensor]:
    """Returns the weights, if they decide which entries are dropped."""
    if capacity is None or capacity.policy != "probs":
        return []
    check_argument(topk_weights is not None, "hpmoe.dispatch", "topk_weights", "None",
                   "given: drop_policy=\"probs\" keeps the entries with the largest")
    return [known(topk_weights)]


@suggests_keywords
def combine(rows: Tensor, route: Route, topk_weights: Tensor | None = None) -> Tensor:
    """Sends each row back to its token and sums a token's rows, with weights if given.

    Args:
        rows: [R, H], one for each received row of the route.
        route: the second result of `hpmoe.dispatch`.
        topk_weights: optional [T, K], in float32 or half precision; without it every weight is 1.

    Returns:
        [T, H], out[t] = sum over k of topk_weights[t, k] * row of entry (t, k). Dropped and masked entries (-1) add nothing.

    Raises:
        ArgumentError: shapes or dtypes do not fit the route.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x = ms.Tensor([[1.0], [2.0]])
        >>> rows, route = hpmoe.dispatch(x, ms.Tensor(np.array([[1, 0], [0, 1]], np.int32)), num_local_experts=2)
        >>> hpmoe.combine(rows, route, ms.Tensor([[0.5, 0.5], [1.0, 2.0]])).asnumpy().tolist()
        [[1.0], [6.0]]
    """
    outside_graphs("hpmoe.combine")
    return combine_rows(rows, route) if topk_weights is None else combine_rows(
        rows, route, of_entries(factor_beside(rows, topk_weights), route))


# dispatch and its transpose, combine without weights

@dispatch_rows.infer
def _(x: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_route("hpmoe.dispatch", route)
    check_argument(len(x.shape) == 2 and x.shape[0] == route.num_tokens, "hpmoe.dispatch", "hidden_states", x,
                   f"[{route.num_tokens}, H], as many rows as topk_ids")
    return ShapeDtypeStruct((route.rows, x.shape[1]), x.dtype)


@dispatch_rows.eager
@in_float32
def _(x: Tensor, route: Route) -> Tensor:
    check_route("hpmoe.dispatch", route)
    check_tensor("hpmoe.dispatch", "hidden_states", x)
    check_argument(x.ndim == 2 and x.shape[0] == route.routing.num_tokens[0], "hpmoe.dispatch", "hidden_states",
                   f"of shape {x.shape}", f"[{route.routing.num_tokens[0]}, H], as many rows as topk_ids")
    if route.num_rows == 0:
        return mint.zeros((0, x.shape[1]), dtype=x.dtype)
    return gather_or_zero(x, route.routing.entry_of_row[0] // route.routing.top_k)


@dispatch_rows.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x, route), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out, dtype=tiler.buffer(x).dtype)
    tiler.emit(ALL_TO_ALL, tiler.once(route), tiler.at(out, row_modes.PEER, col_modes.ALL, dtypes=tiler.MOVED),
               tiler.at(x, row_modes.TOKENS, col_modes.ALL, dtypes=tiler.MOVED), cols=0)


@combine_rows.infer
def _(rows: ShapeDtypeStruct, route: RouteAval, *weights: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_route("hpmoe.combine", route)
    check_argument(isinstance(rows, ShapeDtypeStruct) and len(rows.shape) == 2 and rows.shape[0] is route.rows,
                   "hpmoe.combine",
                   "rows", rows, "received rows [R, H] of this route")
    for w in weights:
        check_weights("hpmoe.combine", "topk_weights", w, (route.num_tokens, route.top_k), rows.dtype)
    return ShapeDtypeStruct((route.num_tokens, rows.shape[1]), rows.dtype)


@combine_rows.reference
def _(rows: list[np.ndarray], routes: list[Route], *weights: list[np.ndarray]) -> list[np.ndarray]:
    routing = routes[0].routing
    return [sum_entries(back, routing.kept[rank], routing.top_k, *(w[rank] for w in weights))
            for rank, back in enumerate(send_back(rows, routing))]


@combine_rows.eager
def _(rows: Tensor, route: Route, *weights: Tensor) -> Tensor:
    check_route("hpmoe.combine", route)
    num_tokens, top_k = route.routing.num_tokens[0], route.routing.top_k
    for argument, given in (("rows", rows), *(("topk_weights", w) for w in weights)):
        check_tensor("hpmoe.combine", argument, given)
    check_argument(rows.ndim == 2 and rows.shape[0] == route.num_rows, "hpmoe.combine", "rows", f"of shape {rows.shape}",
                   f"[{route.num_rows}, H], one for each received row")
    for w in weights:
        fits = w.dtype == rows.dtype or (is_half(rows) and w.dtype == ms_dtype.float32)
        check_argument(w.shape == (num_tokens, top_k) and fits, "hpmoe.combine", "topk_weights",
                       f"{w.dtype} of shape {w.shape}", f"[{num_tokens}, {top_k}] {rows.dtype}, as the rows"
                       + (", or Float32" if is_half(rows) else ""))
    if route.num_rows == 0:
        return mint.zeros((num_tokens, rows.shape[1]), dtype=rows.dtype)
    return _sum_entries(rows, route, *weights)


@in_float32
def _sum_entries(rows: Tensor, route: Route, *weights: Tensor) -> Tensor:
    num_tokens, top_k = route.routing.num_tokens[0], route.routing.top_k
    (_, row), = route.routing.row_of_entry()
    back = gather_or_zero(rows, row).reshape(num_tokens, top_k, rows.shape[1])
    for w in weights:
        entry = np.where(row < 0, -1, np.arange(len(row)))
        back = back * gather_or_zero(w.reshape(-1, 1), entry).reshape(num_tokens, top_k, 1)
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
def _(tiler: Tiler, eqn: Equation) -> None:
    """Sends rows back to their tokens' rank, where each token's entries are summed in the order of its choices."""
    (rows, route), out = eqn.inputs[:2], eqn.outputs[0]
    entries = tile_return(tiler, rows, route, out)
    tiler.new(out)
    domain = dataclasses.replace(tiler.rows_of(out), route=tiler.once(route).route)
    weights = (tiler.at(w, cols=col_modes.ALL) for w in eqn.inputs[2:])
    tiler.emit(REDUCE, domain, tiler.at(out), dataclasses.replace(entries, cols=col_modes.OWN), *weights)
