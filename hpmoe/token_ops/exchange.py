"""exchange and exchange_back: between permute and the experts, and between these and unpermute."""

from __future__ import annotations

from mindspore import Tensor

from hpmoe.primitives.exchange import exchange_rows, return_rows
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.route import check_tensor, make_route
from hpmoe.routing.routing import Route
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def exchange(rows: Tensor, topk_ids: Tensor, *, num_local_experts: int) -> tuple[Tensor, Route]:
    """Sends rows that `hpmoe.token_ops.permute` sorted by `topk_ids` to the ranks of their experts, grouped there by expert.

    The function replaces the all-to-all of Megatron's and MindFormers' token dispatchers, the sort of chunks after it, and
    the exchange of counts before it. In a function given to transforms, permute and exchange by the same ids become one
    `hpmoe.dispatch`, and exchange_back and unpermute one `hpmoe.combine`, without another pass over the rows.

    Args:
        rows: [T * K, H], the first result of `hpmoe.token_ops.permute` by `topk_ids`.
        topk_ids: [T, K] int32 or int64, as for `hpmoe.dispatch`.
        num_local_experts: number of experts of this rank.

    Returns:
        (received, route): rows [R, H], ordered by (local expert, source rank, token), and the route that `grouped_matmul`
        and `exchange_back` take.

    Raises:
        ArgumentError: shapes or dtypes do not fit, an id is out of range, or a token repeats an expert.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, ids = ms.Tensor([[1.0], [2.0], [3.0]]), ms.Tensor(np.array([[1], [0], [0]], np.int32))
        >>> permuted, sorted_indices = hpmoe.token_ops.permute(x, ids)
        >>> received, route = hpmoe.token_ops.exchange(permuted, ids, num_local_experts=2)
        >>> received.asnumpy().tolist(), route.tokens_per_expert.tolist()
        ([[2.0], [3.0], [1.0]], [2, 1])
        >>> hpmoe.token_ops.unpermute(hpmoe.token_ops.exchange_back(received, route), sorted_indices).asnumpy().tolist()
        [[1.0], [2.0], [3.0]]
    """
    outside_graphs("hpmoe.token_ops.exchange")
    check_tensor("hpmoe.token_ops.exchange", "rows", rows)
    check_argument(is_int(num_local_experts), "hpmoe.token_ops.exchange", "num_local_experts", repr(num_local_experts),
                   "a positive int, weight.shape[0]")
    route = make_route(topk_ids, num_local_experts=int(num_local_experts))
    return exchange_rows(rows, route), route


@suggests_keywords
def exchange_back(rows: Tensor, route: Route) -> Tensor:
    """Sends received rows back to the ranks of their tokens, in the order that `hpmoe.token_ops.exchange` took them from.

    Args:
        rows: [R, H], one for each received row of the route.
        route: the second result of `hpmoe.token_ops.exchange`.

    Returns:
        [T * K, H], for `hpmoe.token_ops.unpermute`; zero for an id of -1.

    Raises:
        ArgumentError: shapes do not fit the route.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, ids = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1], [0]], np.int32))
        >>> received, route = hpmoe.token_ops.exchange(hpmoe.token_ops.permute(x, ids)[0], ids, num_local_experts=2)
        >>> hpmoe.token_ops.exchange_back(received * 10.0, route).asnumpy().tolist()
        [[20.0], [10.0]]
    """
    outside_graphs("hpmoe.token_ops.exchange_back")
    check_tensor("hpmoe.token_ops.exchange_back", "rows", rows)
    return return_rows(rows, route)
