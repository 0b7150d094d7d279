"""The choice of experts: the best of each token's scores, of the best groups where these are limited."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hpmoe.primitives.columns import add_columns, take_columns, top_k as best_of
from hpmoe.support.errors import check_argument, is_int

NUM_SUMMED = {"sum_of_two": 2, "largest": 1}  # by group_score: how many of its best experts a group's score adds up


def check_sizes(who: str, num_experts: int, top_k: int, num_groups: int, topk_groups: int) -> None:
    """Raises ArgumentError unless each token can choose top_k experts from topk_groups groups."""
    check_argument(is_int(top_k, 1, num_experts), who, "top_k", repr(top_k), f"an int in 1..{num_experts}")
    check_argument(is_int(num_groups, 1, num_experts) and num_experts % num_groups == 0, who, "num_groups",
                   repr(num_groups), f"an int that divides {num_experts} experts")
    check_argument(is_int(topk_groups, 1, num_groups), who, "topk_groups", repr(topk_groups), f"an int in 1..{num_groups}")
    of_groups = topk_groups * (num_experts // num_groups)
    check_argument(top_k <= of_groups, who, "top_k", top_k, f"at most {of_groups}, the experts of {topk_groups} groups")


def in_best_groups(scores: Tensor, num_groups: int, topk_groups: int, group_score: str = "sum_of_two") -> Tensor:
    """Returns a mask of the experts in the best groups of each token, bool [T, E], by group scores, see NUM_SUMMED.

    Experts of score -inf do not count: a group with one other expert has the score of that, a group of none is the last.
    """
    num_experts = scores.shape[1]
    size = int(num_experts // num_groups)  # MindSpore takes no integers of NumPy
    parts = (scores[:, first:first + size] for first in range(0, num_experts, size))
    best = (best_of(p, k=min(NUM_SUMMED[group_score], size), largest=True)[0] for p in parts)
    of_groups = mint.cat(tuple(v if v.shape[1] == 1 else v[:, :1] + mint.where(v[:, 1:] == -math.inf, 0.0, v[:, 1:])
                               for v in best), dim=-1)
    _, groups = best_of(of_groups, k=topk_groups, largest=True)
    group = Tensor(np.repeat(np.arange(num_groups, dtype=np.int32), size))
    return take_columns(add_columns(1.0, groups, num_cols=num_groups), group) > 0


def or_all_left(allowed: Tensor, is_left: Tensor, top_k: int) -> Tensor:
    """Returns the mask `allowed & is_left`, bool [T, E]; `is_left` alone if a token has fewer than top_k of both."""
    both = mint.logical_and(allowed, is_left)
    return mint.logical_and(is_left, mint.logical_or(both, mint.sum(both.astype(ms.float32), -1, True) < top_k))


def choose(order: Tensor, top_k: int, allowed: Tensor | None) -> Tensor:
    """Returns ids int32 [T, K] of the largest values of `order`, best first, the smaller id first if values are equal.

    An expert that is not `allowed` is chosen only if fewer than top_k are.
    """
    return best_of(order if allowed is None else mint.where(allowed, order, -math.inf), k=top_k, largest=True)[1]
