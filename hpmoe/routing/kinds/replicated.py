"""Replicated: copies of experts on other ranks take parts of their experts' entries."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.capacity import Sort
from hpmoe.routing.kinds.kind import ByIds, OfKind
from hpmoe.routing.placement import Placement


@dataclasses.dataclass(frozen=True)
class Replicated(OfKind, ByIds):
    """The entries of another kind, divided among each expert and its copies as `placement` says.

    Example:
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Replicated(Direct(2, 4, 1, 2), Placement(2, ((-1,), (0,)), ((0,), (1 << 15,))))
        >>> kind.num_local_experts, kind.counts(0, np.array([[0], [0], [0], [1]])).tolist()
        (2, [1, 0, 1, 2])
    """

    kind: ByIds
    placement: Placement

    @property
    def num_local_experts(self) -> int:
        return self.num_own_experts + self.placement.num_replicas

    def counts(self, rank: int, ids: np.ndarray) -> np.ndarray:
        return np.diff(self.placement.split(self.kind.counts(rank, ids), rank), axis=1)[:, 0]

    def kept(self, rank: int, ids: np.ndarray, weights: np.ndarray | None, sort: Sort) -> np.ndarray:
        return self.kind.kept(rank, ids, weights, sort)

    def order(self, rank: int, ids: np.ndarray, kept: np.ndarray, sort: Sort) -> np.ndarray:
        order, counts = self.kind.order(rank, ids, kept, sort), self.kind.counts(rank, ids)
        first = (np.cumsum(counts) - counts)[self.placement.parts[:, 0]]
        return np.concatenate([order[start:stop] for start, stop in self.placement.split(counts, rank) + first[:, None]])

    def is_possible(self) -> bool:
        place = self.placement
        return super().is_possible() and (place.num_experts, place.ep_size) == (self.num_experts, self.ep_size)
