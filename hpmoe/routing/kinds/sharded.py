"""Sharded: an expert whose columns lie on tp ranks counts as tp experts, one on each of these ranks.

Rank g * tp + s holds shard s of all experts of group g, so experts of the model lie group by group, shards rank by rank. An
entry k of a token is tp entries, s * num_choices + k: the same row goes to each shard of its expert, whose parts are summed.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.capacity import ABSENT, Sort
from hpmoe.routing.kinds.kind import ByIds, OfKind


@dataclasses.dataclass(frozen=True)
class Sharded(OfKind, ByIds):
    """The entries of another kind, each for all `tp_size` shards of its expert.

    Example:
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Sharded(Direct(ep_size=4, num_tokens=2, num_choices=2, num_model_experts=4), tp_size=2)
        >>> kind.top_k, kind.num_experts, kind.counts(0, np.array([[1, 0], [1, 2]])).tolist()
        (4, 8, [1, 2, 1, 2, 1, 0, 1, 0])
    """

    kind: ByIds
    tp_size: int

    @property
    def top_k(self) -> int:
        return self.kind.top_k * self.tp_size

    @property
    def num_experts(self) -> int:
        return self.kind.num_experts * self.tp_size

    def counts(self, rank: int, ids: np.ndarray) -> np.ndarray:
        return of_shards(self.kind.counts(rank, ids), self.num_own_experts, self.tp_size)

    def kept(self, rank: int, ids: np.ndarray, weights: np.ndarray | None, sort: Sort) -> np.ndarray:
        kept = self.kind.kept(rank, ids, weights, sort)
        return np.tile(kept.reshape(-1, self.num_choices), self.tp_size).reshape(-1)

    def order(self, rank: int, ids: np.ndarray, kept: np.ndarray, sort: Sort) -> np.ndarray:
        order = sort(shard_ids(ids, self.num_own_experts, self.tp_size).reshape(-1))
        return order[kept[order]]


def of_shards(of_experts: np.ndarray, num_own: int, tp_size: int) -> np.ndarray:
    """Repeats values of the model's experts, [..., E], for each of their shards, [..., E * tp], `num_own` of a rank.

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
    """Returns ids of the model's experts, [..., K], as those of all their shards, [..., tp * K].

    Example:
        >>> shard_ids(np.array([[3, -1]]), num_own=2, tp_size=2).tolist()
        [[5, -1, 7, -1]]
    """
    first = topk_ids + topk_ids // num_own * ((tp_size - 1) * num_own)
    return np.concatenate([np.where(topk_ids == ABSENT, ABSENT, first + s * num_own) for s in range(tp_size)],
                          axis=-1).astype(topk_ids.dtype)
