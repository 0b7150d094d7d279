"""The route: where every (token, choice) entry goes and which are dropped; and the counts of the dropped ones."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, dtype as ms_dtype

from hpmoe.ir.avals import RouteAval, Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Equation
from hpmoe.primitives.outside_graphs import outside_graphs, values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.capacity import Sort, make_capacity
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.kinds.kind import ByIds
from hpmoe.routing.kinds.replicated import Replicated
from hpmoe.routing.kinds.sharded import Sharded
from hpmoe.routing.placement import Placement
from hpmoe.routing.routing import Route, check_topk_ids, make_routing
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument, kind_of, tensor_advice
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import PyTree
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.tokens import DROP_COUNTS

make_route = Primitive("route", collective=True, differentiable=False)
make_route.tile(lambda tiler, eqn: None)  # the kernel computes a route when it starts
count_drops = Primitive("drop_counts", collective=True, differentiable=False)
count_drops.reference(lambda routes: [route.dropped for route in routes])
count_drops.eager(lambda route: Tensor(route.dropped))


@suggests_keywords
def drop_counts(route: Route) -> Tensor:
    """Returns the number of this rank's entries that each expert had no capacity for; masked entries (-1) are not counted.

    Args:
        route: the second result of `hpmoe.dispatch`.

    Returns:
        [num_experts] int32, by global expert id, without a gradient. All zeros if no entry is dropped.

    Raises:
        ArgumentError: route is not a route.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, ids = ms.Tensor([[1.0], [2.0], [3.0]]), ms.Tensor(np.array([[1], [1], [0]], np.int32))
        >>> rows, route = hpmoe.dispatch(x, ids, num_local_experts=3, capacity_factor=1.0, drop_policy="position")
        >>> rows.asnumpy().tolist(), hpmoe.router.drop_counts(route).asnumpy().tolist()
        ([[3.0], [1.0]], [0, 1, 0])
    """
    outside_graphs("hpmoe.router.drop_counts")
    check_route("hpmoe.router.drop_counts", route)
    return count_drops(route)


def check_route(who: str, route: object) -> None:
    """Raises ArgumentError unless `route` is one: of tensors, of a trace, or abstract."""
    is_traced = isinstance(getattr(route, "aval", None), RouteAval)
    check_argument(is_traced or isinstance(route, (RouteAval, Route)), who, "route", kind_of(route),
                   "the second result of hpmoe.dispatch")


def check_tensor(who: str, argument: str, x: object) -> None:
    """Raises ArgumentError unless `x` is a MindSpore tensor: what an eager rule asks before it looks at a shape."""
    check_argument(isinstance(x, Tensor), who, argument, kind_of(x), "a mindspore.Tensor", tensor_advice(argument, x))


@make_route.infer
def route_aval(ids: ShapeDtypeStruct, *weights: ShapeDtypeStruct, num_local_experts: int, ep_size: int,
               capacity_factor: float | None = None,
               drop_policy: str = "error", max_rows: int | None = None, expected_rows: int | None = None,
               placement: Placement | None = None, expert_alignment: int = 1, node_size: int | None = None,
               tp_size: int = 1, rank_capacity_factor: float | None = None) -> RouteAval:
    """Returns the aval of a route from the ids of a rank's tokens."""
    check_argument(isinstance(ids, ShapeDtypeStruct) and len(ids.shape) == 2 and ids.dtype in ("int32", "int64"),
                   "hpmoe.dispatch",
                   "topk_ids", ids, "[T, K] int32 or int64", _hint(ids))
    check_argument(all(isinstance(d, int) for d in ids.shape), "hpmoe.dispatch", "topk_ids", ids, "ids of tokens")
    num_tokens, top_k = fixed(ids.shape)
    num_experts, groups = num_local_experts * ep_size, ep_size // tp_size
    check_argument(1 <= top_k <= num_local_experts * groups, "hpmoe.dispatch", "top_k", top_k,
                   f"in 1..{num_local_experts * groups}", f"There are {num_local_experts} local experts on each of "
                   + (f"{ep_size} ranks." if tp_size == 1 else f"{groups} groups of {tp_size} ranks."))
    for w in weights:
        check_argument(isinstance(w, ShapeDtypeStruct) and w.shape == ids.shape and w.dtype in FLOATS, "hpmoe.dispatch",
                       "topk_weights",
                       w, f"a float of shape {list(ids.shape)}, as topk_ids")
    kind: ByIds = Direct(ep_size, num_tokens, top_k, num_experts // tp_size, make_capacity(capacity_factor, drop_policy),
                         expert_alignment)
    kind = Sharded(kind, tp_size) if tp_size > 1 else kind
    kind = Replicated(kind, placement) if placement is not None else kind
    return RouteAval(Rows(), kind, node_size, rank_capacity_factor)


@make_route.reference
def _(ids: list[np.ndarray], *weights: list[np.ndarray], ep_size: int, num_tokens: list[int],
      **options: PyTree) -> list[Route]:
    aval = route_aval(ShapeDtypeStruct(ids[0].shape, "int32"), ep_size=ep_size, **options)
    for mine, count in zip(ids, num_tokens or [None] * ep_size, strict=True):
        check_topk_ids(mine[:count], aval.num_model_experts)
    routing = make_routing(aval.kind.by_ids, ids, num_tokens, next(iter(weights), None))
    aval.check_received([routing.num_rows(rank) for rank in range(ep_size)])
    return [Route(routing, rank) for rank in range(ep_size)]


def route_of_tensors(sort: Sort, topk_ids: Tensor, *weights: Tensor, num_local_experts: int,
                     capacity_factor: float | None = None, drop_policy: str = "error", expert_alignment: int = 1) -> Route:
    """Returns the route of one rank's tensors; `sort` as for make_routing. Its eager rule is in hpmoe.kernels.token_rows."""
    is_ids = isinstance(topk_ids, Tensor) and topk_ids.ndim == 2 and topk_ids.dtype in (ms_dtype.int32, ms_dtype.int64)
    check_argument(is_ids, "hpmoe.dispatch", "topk_ids", _describe(topk_ids), "a [T, K] int32 or int64 Tensor",
                   _hint(topk_ids))
    ids = values_of("hpmoe.dispatch", topk_ids)
    check_argument(1 <= ids.shape[1] <= num_local_experts, "hpmoe.dispatch", "top_k", ids.shape[1],
                   f"in 1..{num_local_experts}")
    check_topk_ids(ids, num_local_experts)
    for w in weights:
        is_float = isinstance(w, Tensor) and w.shape == ids.shape and str(w.dtype).lower() in FLOATS
        check_argument(is_float, "hpmoe.dispatch", "topk_weights", _describe(w),
                       f"a float Tensor of shape {list(ids.shape)}, as topk_ids")
    values = [[values_of("hpmoe.dispatch", w)] for w in weights]
    capacity = make_capacity(capacity_factor, drop_policy)
    kind = Direct(1, len(ids), ids.shape[1], num_local_experts, capacity, expert_alignment)
    return Route(make_routing(kind, [ids], None, values[0] if values else None, sort))


def _hint(ids: object) -> str:
    if not isinstance(ids, (Tensor, ShapeDtypeStruct)):
        return tensor_advice("topk_ids", ids)
    if len(ids.shape) > 2:
        return ("Reshape [B, S, K] to [B * S, K]. Arrays have a rank axis only under hpmoe.spmd on an hpmoe.Mesh, not on "
                "hpmoe.world().")
    if len(ids.shape) < 2:
        return "For one expert of each token write topk_ids.reshape(-1, 1)."
    return "Cast with topk_ids.astype(mindspore.int32), before the call."


def _describe(x: object) -> str:
    return f"{x.dtype} of shape {x.shape}" if isinstance(x, Tensor) else kind_of(x)


# drop counts

@count_drops.infer
def _(route: RouteAval) -> ShapeDtypeStruct:
    check_route("hpmoe.router.drop_counts", route)
    return ShapeDtypeStruct((route.num_model_experts,), "int32")


@count_drops.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    out = eqn.outputs[0]
    tiler.new(out)
    tiler.emit(DROP_COUNTS, tiler.once(eqn.inputs[0]), tiler.at(out, cols=col_modes.ALL, dtypes=("int32",)), cols=0)
