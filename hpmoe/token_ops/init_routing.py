"""init_routing: rows sorted by expert, or a fixed number of places for each expert, and the number of entries of each."""

from __future__ import annotations

from mindspore import Tensor

from hpmoe.primitives.permute import expert_counts, expert_places, permute_rows, sort_indices
from hpmoe.support.errors import check_argument, is_int, is_name
from hpmoe.token_ops import checks
from hpmoe.token_ops.operator import operator

COUNTS = ("none", "cumsum", "count")


@operator
def init_routing(x: Tensor, expert_idx: Tensor, active_num: int = 0, expert_capacity: int = 0, expert_num: int = 0,
                 drop_pad_mode: int = 0, counts: str = "none") -> tuple[Tensor, Tensor, Tensor | None]:
    """Copies each token's row once for each of its experts: sorted by expert, or into the places that each expert has.

    The gradient of a token is the sum of those of its rows, in the order of its choices; a dropped one adds nothing.

    Args:
        x: [N, H] float32, float16 or bfloat16.
        expert_idx: int32 [N, K], the experts of each token, in 0..expert_num - 1 if expert_num is given; K is at most 512
            and N * K at most 16,777,214.
        active_num: in mode 0, number of sorted rows to keep, the first ones; 0, or a larger number than N * K, keeps all.
        expert_capacity: in mode 1, number of places of each expert, 1..N.
        expert_num: number of experts, needed in mode 1 and if counts are returned.
        drop_pad_mode: 0 keeps all entries; 1 gives each expert expert_capacity places: an expert's last entries over its
            places are dropped, and empty places are zero.
        counts: "none"; "count", which returns the number of entries of each expert before any are dropped; or "cumsum",
            which returns the sums of these numbers up to each expert.

    Returns:
        (expanded_x, expanded_row_idx, counts): [min(N * K, active_num), H], or [expert_num, expert_capacity, H] in mode 1;
        int32 [N * K], the row of each entry: in mode 0 its place among all sorted rows, kept or not, in mode 1 -1 for a
        dropped entry; int32 [expert_num], or None.

    Raises:
        ArgumentError: shapes or dtypes do not fit, an id is out of range, or a limit is exceeded.

    Source: CANN's MoeInitRoutingV2.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, experts = ms.Tensor([[1.0], [2.0], [3.0]]), ms.Tensor(np.array([[1], [0], [1]], np.int32))
        >>> rows, places, counts = hpmoe.token_ops.init_routing(x, experts, expert_capacity=1, expert_num=2, drop_pad_mode=1,
        ...                                           counts="count")
        >>> rows.asnumpy().tolist(), places.asnumpy().tolist(), counts.asnumpy().tolist()
        ([[[2.0]], [[1.0]]], [1, 0, -1], [1, 2])
    """
    who = "hpmoe.token_ops.init_routing"
    checks.check_rows(who, "x", x)
    top_k = checks.check_choices(who, "expert_idx", expert_idx, x)
    check_argument(len(expert_idx.shape) == 2 and str(expert_idx.dtype).lower() == "int32", who, "expert_idx",
                   f"{expert_idx.dtype} of shape {tuple(expert_idx.shape)}", "int32 [N, K]")
    check_argument(is_int(drop_pad_mode, 0, 1), who, "drop_pad_mode", drop_pad_mode, "0 or 1")
    check_argument(is_name(counts, COUNTS), who, "counts", repr(counts), f"one of {', '.join(COUNTS)}")
    is_read = drop_pad_mode == 1 or counts != "none"
    check_argument(is_int(expert_num, 1 if is_read else 0), who, "expert_num", expert_num,
                   "a positive int, the number of experts")
    counted = None
    if counts != "none":
        counted = expert_counts(expert_idx, num_experts=expert_num, cumulative=counts == "cumsum")
    if drop_pad_mode == 1:
        return *_with_places(who, x, expert_idx, expert_capacity, expert_num), counted
    for name, unless in (("active_num", active_num), ("expert_capacity", expert_capacity)):
        check_argument(is_int(unless, 0), who, name, unless, "an int of at least 0")
    entries, places = x.shape[0] * top_k, sort_indices(expert_idx)
    return permute_rows(x, places, top_k=top_k, num_rows=min(active_num or entries, entries)), places, counted


def _with_places(who: str, x: Tensor, expert_idx: Tensor, capacity: int, num_experts: int) -> tuple[Tensor, Tensor]:
    num_tokens = x.shape[0]
    check_argument(is_int(capacity, 1, num_tokens), who, "expert_capacity", capacity, f"an int in 1..{num_tokens}")
    num_rows = num_experts * capacity
    check_argument(num_rows <= checks.MOST_ENTRIES, who, "expert_num * expert_capacity", num_rows,
                   f"at most {checks.MOST_ENTRIES}")
    places = expert_places(expert_idx, num_experts=num_experts, capacity=capacity)
    rows = permute_rows(x, places, top_k=expert_idx.shape[1], num_rows=num_rows)
    return rows.reshape(num_experts, capacity, x.shape[1]), places
