"""Counts of tokens per expert, and the bias that balances them without a loss."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.primitives.columns import add_columns
from hpmoe.primitives.outside_graphs import constexpr, outside_graphs
from hpmoe.router.ids import checked_ids
from hpmoe.router.scores import check_ids, sum_of_tokens
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords

Shape = tuple[int, ...] | None


@suggests_keywords
def tokens_per_expert(topk_ids: Tensor, *, num_experts: int) -> Tensor:
    """Counts the tokens of a rank that chose each expert; an id of -1 is no expert and not counted.

    Args:
        topk_ids: [T, K] int32 or int64, distinct experts of each token, or -1 any number of times.
        num_experts: number of experts of all ranks together.

    Returns:
        [num_experts] int32, counts of this rank only: sum counts over ranks for a bias or a loss of the global batch.

    Raises:
        ArgumentError: an argument does not fit, an id is out of range, or a token repeats an expert. A program raises it at
            the end of the call.

    Example:
        >>> import mindspore as ms
        >>> tokens_per_expert(ms.Tensor([[0, 2], [2, -1]], ms.int32), num_experts=4).asnumpy().tolist()
        [1, 0, 2, 0]
    """
    who = "hpmoe.router.tokens_per_expert"
    outside_graphs(who)
    check_argument(is_int(num_experts, 1, 2**31 - 2), who, "num_experts", repr(num_experts), "a positive int")
    check_ids(who, topk_ids)
    num_experts = int(num_experts)  # MindSpore takes no integers of NumPy
    places = mint.where(checked_ids(who, topk_ids, num_experts), topk_ids, num_experts).astype(ms.int32)
    rows = add_columns(1, places, num_cols=num_experts + 1, dtype="int32")[:, :num_experts]
    return sum_of_tokens(rows, 0).astype(ms.int32)


@suggests_keywords
def update_bias(bias: Tensor, counts: Tensor, *, rate: float = 1e-3, where: Tensor | None = None) -> Tensor:
    """Raises the bias of experts with fewer tokens than the mean, and lowers the bias of experts with more.

    Returns bias + rate * sign(mean(counts) - counts). Call it once a step, outside of the gradient. The sign is exact if
    counts sum to at most 2**53.

    Args:
        bias: [E] float32.
        counts: [E] int32 or int64, the tokens of each expert over all ranks and the steps since the last update.
        rate: the step of the bias.
        where: None for all experts, or [E] bool, false for experts that no token may choose: the mean excludes these
            experts, and their bias does not change.

    Returns:
        [E] float32.

    Raises:
        ArgumentError: rate is not a number, counts are not integers, or shapes differ.

    Formula: Wang et al., Auxiliary-loss-free load balancing (arXiv 2408.15664).

    Example:
        >>> import mindspore as ms
        >>> update_bias(ms.Tensor([0.0, 0.0, 0.5]), ms.Tensor([3, 1, 2], ms.int32), rate=0.25).asnumpy().tolist()
        [-0.25, 0.25, 0.5]
    """
    has_where = where is not None
    _check_update(rate, getattr(bias, "shape", None), getattr(counts, "shape", None), getattr(counts, "dtype", None),
                  getattr(where, "shape", None), getattr(where, "dtype", None), has_where)
    n = counts.astype(ms.int64)
    if where is None:
        above = n * n.shape[0] - mint.sum(n, 0, True)
    else:
        taken = where.astype(ms.int64)
        above = taken * (n * mint.sum(taken, 0, True) - mint.sum(n * taken, 0, True))
    return bias - mint.sign(above).astype(ms.float32) * float(rate)


@constexpr
def _check_update(rate: float, bias: Shape, counts: Shape, counts_dtype: object, where: Shape, where_dtype: object,
                  has_where: bool) -> None:
    """Raises ArgumentError unless shapes and dtypes are those that `update_bias` takes."""
    who = "hpmoe.router.update_bias"
    check_argument(is_number(rate), who, "rate", repr(rate), "a finite float32 number")
    check_argument(bias is not None and len(bias) == 1, who, "bias", _described(bias), "a Tensor [E]")
    fits = counts == bias and counts_dtype in (ms.int32, ms.int64)
    check_argument(fits, who, "counts", _described(counts, counts_dtype), f"int32 or int64 of shape {bias}, like bias")
    fits = not has_where or (where == bias and where_dtype == ms.bool_)
    check_argument(fits, who, "where", _described(where, where_dtype), f"bool of shape {bias}, like bias, or None")


def _described(shape: Shape, dtype: object = "") -> str:
    return "no tensor" if shape is None else f"{dtype} of shape {tuple(shape)}".strip()
