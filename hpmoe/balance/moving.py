"""Experts lie at places: ids are mapped to them, and weights with what belongs to them are moved there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hpmoe.primitives.columns import take_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.ids import checked_ids
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def physical_ids(topk_ids: Tensor, places: Tensor) -> Tensor:
    """Returns the places of the experts that tokens chose, places[topk_ids], eager or traced; an id of -1 stays -1.

    Args:
        topk_ids: [..., K] int32 or int64, logical ids.
        places: [E] int32, where each expert lies: place p is the p-th expert of all ranks' weights, rank by rank.

    Returns:
        [..., K] of the dtype of topk_ids, what `hpmoe.dispatch` and `hpmoe.moe_ffn` take.

    Raises:
        ArgumentError: an argument is no Tensor of that dtype and rank, an id is out of range, or a token repeats an expert.

    Example:
        >>> import mindspore as ms
        >>> physical_ids(ms.Tensor([[0, 2], [1, -1]], ms.int32), ms.Tensor([2, 0, 1], ms.int32)).asnumpy().tolist()
        [[2, 1], [0, -1]]
    """
    who = "hpmoe.balance.physical_ids"
    outside_graphs(who)
    for name, x, dtypes, fits, wanted in (
            ("topk_ids", topk_ids, (ms.int32, ms.int64), lambda n: n >= 2, "an int32 or int64 Tensor [..., K]"),
            ("places", places, (ms.int32,), lambda n: n == 1, "an int32 Tensor [E]")):
        is_one = isinstance(x, Tensor) and x.dtype in dtypes and fits(x.ndim)
        got = f"{str(x.dtype).lower()}{list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        check_argument(is_one, who, name, got, wanted)
    is_expert = checked_ids(who, topk_ids.reshape(-1, topk_ids.shape[-1]), places.shape[0]).reshape(topk_ids.shape)
    # A table of one row serves all rows where it stands in each of them: tiles are of whole rows.
    table = places.reshape(*[1] * (topk_ids.ndim - 1), -1) + (topk_ids[..., :1] * 0).astype(ms.int32)
    found = take_columns(table, mint.where(is_expert, topk_ids, 0).astype(ms.int32)).astype(topk_ids.dtype)
    return mint.where(is_expert, found, topk_ids)


@suggests_keywords
def move_experts(tensors: Iterable[Tensor], before: Sequence[int] | np.ndarray, after: Sequence[int] | np.ndarray) -> None:
    """Reorders experts in place, bit for bit: weights, moments of an optimizer, float32 main weights and gradients.

    Args:
        tensors: [E, ...] or [ep, E / ep, ...], Parameters or Tensors of any dtype; each keeps its memory.
        before, after: [E], the expert at each place before and after the call, such as `Balancer.experts`. Pass range(E)
            as `after` to store experts in their own order.

    Raises:
        ArgumentError: the two are not the same experts in some order, or a tensor has another number of experts.

    Example:
        >>> import mindspore as ms
        >>> weight = ms.Tensor([[0.0], [1.0], [2.0]])
        >>> move_experts([weight], before=[0, 1, 2], after=[2, 0, 1])
        >>> weight.asnumpy().tolist()
        [[2.0], [0.0], [1.0]]
    """
    who = "hpmoe.balance.move_experts"
    old, new = (np.asarray(order).reshape(-1) for order in (before, after))
    check_argument(sorted(old) == sorted(new) == list(range(len(old))), who, "after", f"{new.tolist()}, from {old.tolist()}",
                   "the same experts, each once")
    tensors = list(tensors)
    for i, tensor in enumerate(tensors):
        is_tensor = isinstance(tensor, Tensor)
        check_argument(is_tensor and len(old) in (*tensor.shape[:1], int(np.prod(tensor.shape[:2]))), who, f"tensors[{i}]",
                       f"of shape {tuple(tensor.shape)}" if is_tensor else f"a {type(tensor).__name__}",
                       f"a Tensor of {len(old)} experts, [E, ...] or [ep, E / ep, ...]")
    if (old == new).all():
        return
    source = np.argsort(old)[new]
    for tensor in tensors:
        values = tensor.asnumpy()
        tensor.copy_(Tensor(values.reshape(len(old), -1)[source].reshape(values.shape)))
