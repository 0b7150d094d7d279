"""Recorded expert ids, in the rows that the per-rank function of a layer takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.nn.on_ranks import constexpr, known_shape, reshaped, shape_of
from hpmoe.primitives.columns import take_columns
from hpmoe.router.replay import UNSET
from hpmoe.support.errors import check_argument, is_int, is_name


def rows_of_record(who: str, topk_ids: Tensor | None, unset: str | None, layer: int | None, tokens: Sequence[int],
                   top_k: int, ep_size: int) -> Tensor | None:
    """Returns ids [..., S, K], or those of a layer of [..., S, layers, K], as rows of all ranks; `tokens` is [..., S, H]."""
    if topk_ids is None:
        check_no_record(who, unset, layer)
        return None
    check_record(who, shape_of(topk_ids), getattr(topk_ids, "dtype", None), unset, layer, tokens, top_k)
    mine = topk_ids if layer is None else topk_ids[..., int(layer), :]  # MindSpore takes no integers of NumPy
    return reshaped(mine, (ep_size, -1, top_k) if ep_size else (-1, top_k))


@constexpr
def check_no_record(who: str, unset: str | None, layer: int | None) -> None:
    """Raises ArgumentError if `unset` or `layer` is given without a record."""
    check_argument(unset is None, who, "unset", repr(unset), "None without topk_ids")
    check_argument(layer is None, who, "layer", repr(layer), "None without topk_ids")


@constexpr
def check_record(who: str, shape: Sequence[int] | None, dtype: object, unset: str | None, layer: int | None,
                 tokens: Sequence[int], top_k: int) -> None:
    """Raises ArgumentError unless a record is integers that fit the tokens, `unset` is named and the layer is there."""
    shape = known_shape(who, "topk_ids", shape, "an int32 or int64 mindspore.Tensor")
    check_argument(is_name(unset, ("route", "mask")), who, "unset", repr(unset), "\"route\" or \"mask\" with topk_ids")
    check_argument(dtype in (ms.int32, ms.int64), who, "topk_ids", f"of dtype {str(dtype).lower()}",
                   "an int32 or int64 mindspore.Tensor",
                   "Write topk_ids=mindspore.Tensor(record, mindspore.int32), with -1 for unset entries.")
    expected = [*tokens[:-1], *([] if layer is None else ["layers"]), top_k]
    fits = len(shape) == len(expected) and (*shape[:len(tokens) - 1], shape[-1]) == (*tokens[:-1], top_k)
    hint = "Write layer= to choose one of [..., S, layers, K]." if layer is None and len(shape) > len(expected) else ""
    check_argument(fits, who, "topk_ids", f"of shape {tuple(shape)}", f"of shape [{', '.join(map(str, expected))}]", hint)
    check_argument(layer is None or is_int(layer, 0, shape[-2] - 1), who, "layer", repr(layer),
                   f"an int in 0..{shape[-2] - 1}")


def without_masked(record: Tensor, logits: Tensor) -> Tensor:
    """Returns ids [T, K] with -1 for each expert whose logit is -inf: a masked expert is not replayed."""
    is_expert = mint.logical_and(record >= 0, record < logits.shape[1])  # others are errors of what follows
    is_masked = take_columns(logits, mint.where(is_expert, record, 0)) == -math.inf
    return mint.where(mint.logical_and(is_expert, is_masked), UNSET, record)
