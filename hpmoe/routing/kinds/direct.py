"""Direct: each entry of a token goes to the rank that owns its expert."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.capacity import ABSENT, Capacity, Sort, check_topk_weights, kept_counts, kept_entries
from hpmoe.routing.kinds.kind import ByIds


@dataclasses.dataclass(frozen=True)
class Direct(ByIds):
    """A row for each entry of a token, on the rank that owns the expert. Fields are described in Sizes.

    Example:
        >>> kind = Direct(ep_size=2, num_tokens=2, num_choices=2, num_model_experts=4)
        >>> kind.num_own_experts, kind.counts(0, np.array([[1, 0], [1, 2]])).tolist()
        (2, [1, 2, 1, 0])
    """

    ep_size: int
    num_tokens: int
    num_choices: int
    num_model_experts: int
    capacity: Capacity | None = None
    alignment: int = 1
    tp_size = 1
    placement = None

    @property
    def top_k(self) -> int:
        return self.num_choices

    @property
    def num_experts(self) -> int:
        return self.num_model_experts

    def counts(self, rank: int, ids: np.ndarray) -> np.ndarray:
        return kept_counts(ids, self.num_model_experts, self.capacity, rank, self.ep_size)

    def kept(self, rank: int, ids: np.ndarray, weights: np.ndarray | None, sort: Sort) -> np.ndarray:
        if self.capacity is None or not self.capacity.drops:
            return ids.reshape(-1) != ABSENT
        if self.capacity.policy == "probs":
            weights = np.asarray(weights)[:len(ids)]
            check_topk_weights(ids, weights, rank, self.ep_size)
        return kept_entries(ids, self.num_model_experts, self.capacity, weights, sort)

    def order(self, rank: int, ids: np.ndarray, kept: np.ndarray, sort: Sort) -> np.ndarray:
        order = sort(ids.reshape(-1))
        return order[kept[order]]
