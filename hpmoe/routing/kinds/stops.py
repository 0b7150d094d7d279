"""Stops: a row stands for a token, which stops at a rank on its way to its experts."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from hpmoe.routing.kinds.kind import ByIds, OfKind, RouteKind


@dataclasses.dataclass(frozen=True)
class Stops(OfKind, RouteKind, abc.ABC):
    """Route that sends a token's row once to each rank on its way to its experts, which `kind` routes to.

    Each rank counts as one expert. A subclass is a frozen dataclass that defines `stop`: the rank at which a row from rank
    `source` to rank `dest` stops.
    """

    kind: ByIds
    capacity = None
    placement = None
    alignment = 1
    num_own_experts = 1
    num_local_experts = 1
    is_of_tokens = True

    @abc.abstractmethod
    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray: ...

    @property
    def num_experts(self) -> int:
        return self.ep_size

    @property
    def by_ids(self) -> ByIds:
        return self.kind

    @functools.cached_property
    def _senders(self) -> list[list[int]]:
        """Ranks that may send rows to each rank."""
        return [np.flatnonzero(column).tolist() for column in self.sends().T]

    @property
    def num_senders(self) -> int:
        return max(map(len, self._senders))

    def rows_of(self, of_experts: int, tokens: Sequence[int] | None = None, rank: int = 0) -> int:
        rows = self.most_rows() if tokens is None else sum(tokens[source] for source in self._senders[rank])
        return rows if self.is_to_relays else min(of_experts, rows)

    def rows_of_token(self) -> float:
        """Returns the expected number of rows that the experts of a stop's ranks receive of a token that arrives there.

        The mean is over all choices of distinct experts. Shards of an expert are on one group of ranks.

        Example:
            >>> from hpmoe.routing.kinds.stops import Deduplicated
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> round(Deduplicated(Direct(ep_size=2, num_tokens=8, num_choices=2, num_model_experts=4)).rows_of_token(), 3)
            1.2
        """
        return _rows_of_token(self)

    def is_possible(self) -> bool:
        return super().is_possible() and bool(((self.stops >= 0) & (self.stops < self.ep_size)).all())

    def text(self, ids: str, of: int) -> str:
        return f"once to each of {self.num_experts} ranks of route {of}"


@functools.lru_cache(maxsize=128)
def _rows_of_token(kind: Stops) -> float:
    of, ranks, num_groups = kind.kind, np.arange(kind.ep_size), kind.ep_size // kind.tp_size
    reached = np.unique((ranks[:, None] * kind.ep_size + kind.stops) * num_groups + ranks // kind.tp_size)
    _, of_stops = np.unique(reached // num_groups, return_counts=True)  # groups of ranks beyond each stop of each source
    groups, times = np.unique(of_stops, return_counts=True)
    arrivals, all_choices = 0.0, math.comb(of.num_model_experts, of.num_choices)
    for group, count in zip(groups.tolist(), times.tolist(), strict=True):
        elsewhere = math.comb(of.num_model_experts - of.num_own_experts * group, of.num_choices)
        arrivals += count / kind.ep_size * (1.0 - elsewhere / all_choices)
    return of.num_choices * of.tp_size / arrivals


@dataclasses.dataclass(frozen=True)
class Deduplicated(Stops):
    """Tokens that go to the ranks of their experts by `kind`, once to each."""

    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray:
        return np.asarray(dest)


@dataclasses.dataclass(frozen=True)
class Hierarchical(Stops):
    """Tokens that go to relays, one in each node of `node_size` ranks, which pass on rows to the ranks of their node.

    Example:
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Hierarchical(Direct(ep_size=4, num_tokens=1, num_choices=1, num_model_experts=4), node_size=2)
        >>> kind.stop(1, np.arange(4))
        array([1, 1, 3, 3])
    """

    node_size: int

    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray:
        return np.asarray(dest) // self.node_size * self.node_size + source % self.node_size

    def is_possible(self) -> bool:
        return self.node_size >= 1 and not self.ep_size % self.node_size and super().is_possible()
