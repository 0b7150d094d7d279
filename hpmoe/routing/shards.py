"""Shards: an expert whose columns lie on tp ranks counts as tp experts where rows are sent, one on each of these ranks.

Rank g * tp + s holds shard s of all experts of group g, so experts of the model lie group by group, shards rank by rank. An
entry k of a token is tp entries, s * top_k + k: the same row goes to every shard of its expert, and their parts are summed.
"""

from __future__ import annotations

import numpy as np

from hpmoe.routing.capacity import ABSENT


class OfShards:
    """What a route counts of the model, where each expert and each choice of a token is as many as an expert has shards."""

    top_k: int
    num_experts: int
    tp_size: int

    @property
    def num_choices(self) -> int:
        """Experts of the model that a token chooses."""
        return self.top_k // self.tp_size

    @property
    def num_model_experts(self) -> int:
        """Experts of the model, whatever the number of their shards."""
        return self.num_experts // self.tp_size


def of_shards(of_experts: np.ndarray, num_own: int, tp_size: int) -> np.ndarray:
    """Values of the model's experts, [..., E], for each of their shards, [..., E * tp]; a rank has `num_own` of these.

    Example:
        >>> of_shards(np.array([5, 6, 7, 8]), num_own=2, tp_size=2).tolist()
        [5, 6, 5, 6, 7, 8, 7, 8]
    """
    if tp_size == 1:
        return of_experts
    *others, experts = of_experts.shape
    groups = of_experts.reshape(*others, experts // num_own, 1, num_own)
    return np.broadcast_to(groups, (*groups.shape[:-2], tp_size, num_own)).reshape(*others, experts * tp_size)


def shard_ids(topk_ids: np.ndarray, num_own: int, tp_size: int) -> np.ndarray:
    """Ids of the model's experts, [..., K], as those of all their shards, [..., tp * K].

    Example:
        >>> shard_ids(np.array([[3, -1]]), num_own=2, tp_size=2).tolist()
        [[5, -1, 7, -1]]
    """
    if tp_size == 1:
        return topk_ids
    first = topk_ids + topk_ids // num_own * ((tp_size - 1) * num_own)
    return np.concatenate([np.where(topk_ids == ABSENT, ABSENT, first + s * num_own) for s in range(tp_size)],
                          axis=-1).astype(topk_ids.dtype)
