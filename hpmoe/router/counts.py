"""How many tokens each expert gets, and the bias that balances them without a loss."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.primitives.columns import add_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.scores import check_ids, described
from hpmoe.support.errors import check_argument, is_int, is_number


def tokens_per_expert(topk_ids: Tensor, *, num_experts: int) -> Tensor:
    """How many of a rank's tokens chose each expert; an id of -1 is no expert and not counted.

    Args:
        topk_ids: [T, K] int32 or int64.
        num_experts: of all ranks together.

    Returns:
        [num_experts] int32, of this rank alone: sum them over ranks for a bias or a loss of the global batch.

    Raises:
        ArgumentError: an argument does not fit.

    Example:
        >>> import mindspore as ms
        >>> tokens_per_expert(ms.Tensor([[0, 2], [2, -1]], ms.int32), num_experts=4).asnumpy().tolist()
        [1, 0, 2, 0]
    """
    outside_graphs("hpmoe.router.tokens_per_expert")
    check_ids("hpmoe.router.tokens_per_expert", topk_ids)
    check_argument(is_int(num_experts, 1, 2**31 - 2), "hpmoe.router.tokens_per_expert", "num_experts", repr(num_experts),
                   "a positive int")
    places = mint.where(topk_ids < 0, num_experts, topk_ids).astype(ms.int32)
    rows = add_columns(1, places, num_cols=num_experts + 1, dtype="int32")[:, :num_experts]
    return mint.sum(rows, 0).astype(ms.int32)


def update_bias(bias: Tensor | None, counts: Tensor, *, rate: float = 1e-3) -> Tensor:
    """The bias of the next step: raised where an expert got fewer tokens than the mean, lowered where it got more.

    b + rate * sign(mean n - n), once a step, outside of the gradient.

    Args:
        bias: [E] float32.
        counts: [E], the tokens of each expert over all ranks and the steps since the last update.
        rate: how far it moves.

    Returns:
        [E] float32.

    Raises:
        ArgumentError: rate is not a number, or the two have other shapes.

    Formula: Wang et al., Auxiliary-loss-free load balancing (arXiv 2408.15664).

    Example:
        >>> import mindspore as ms
        >>> update_bias(ms.Tensor([0.0, 0.0, 0.5]), ms.Tensor([3, 1, 2], ms.int32), rate=0.25).asnumpy().tolist()
        [-0.25, 0.25, 0.5]
    """
    outside_graphs("hpmoe.router.update_bias")
    check_argument(is_number(rate), "hpmoe.router.update_bias", "rate", repr(rate), "a number")
    is_one_each = isinstance(bias, Tensor) and isinstance(counts, Tensor) and tuple(bias.shape) == tuple(counts.shape)
    check_argument(is_one_each, "hpmoe.router.update_bias", "counts", described(counts),
                   f"a Tensor like bias, {described(bias)}")
    n = counts.astype(ms.float32)
    return bias + mint.sign(mint.mean(n, 0, True) - n) * float(rate)
