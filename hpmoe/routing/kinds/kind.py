"""RouteKind: the questions that each kind of route answers."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Sequence

import numpy as np

from hpmoe.routing.capacity import ABSENT, DROP_POLICIES, Capacity, PerRank, Sort
from hpmoe.routing.placement import Placement
from hpmoe.routing.slots import max_slots, padded


class Sizes:
    """Sizes of a route."""

    ep_size: int  # number of ranks, ep * tp of the Mesh
    num_tokens: int  # number of tokens of a rank; an upper bound if ranks differ
    num_choices: int  # number of experts that a token chooses, K
    top_k: int  # rows that a token is sent as: num_choices * tp_size, one for each shard of each chosen expert
    num_model_experts: int  # number of experts of the model
    num_experts: int  # num_model_experts * tp_size; ep_size if a token's row is sent once to a rank
    num_own_experts: int  # number of experts that each rank owns
    num_local_experts: int  # num_own_experts, plus the replicas of other ranks' experts that a rank has capacity for
    tp_size: int  # number of shards of an expert; each shard is on a different rank
    alignment: int  # the received rows of each expert are padded to a multiple of this number
    capacity: Capacity | None  # the most rows that each expert takes from each rank; None if unlimited
    placement: Placement | None  # the ranks that hold replicas of experts; None if there are no replicas


class OfKind(Sizes):
    """An object with a kind of route, which answers for the sizes of its kind."""

    kind: RouteKind

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "kind"), name)  # which an object that is being copied lacks

    @property
    def num_replicas(self) -> int:
        """Replicas of other ranks' experts that each rank has capacity for."""
        return self.num_local_experts - self.num_own_experts


class RouteKind(Sizes):
    """A way to route rows: by ids of experts (Direct, Sharded, Replicated) or over stops (Deduplicated, Hierarchical).

    Kinds are frozen dataclasses, compared by value.
    """

    by_ids: ByIds  # the kind by ids of experts: the kind itself, or the one to whose ranks tokens go
    is_of_tokens: bool = False  # whether a row stands for a token, not for an entry of a token

    @functools.cached_property
    def stops(self) -> np.ndarray:
        """Table of `stop` for all ranks, [source, dest]."""
        return _stops(self)

    @functools.cached_property
    def is_to_relays(self) -> bool:
        """True if rows stop at ranks that pass the rows on to other ranks."""
        return self.is_of_tokens and bool((self.stops != np.arange(self.ep_size)).any())

    def sends(self, over: RouteKind | None = None) -> np.ndarray:
        """Returns True for each pair of ranks of which the first sends rows to the second, [sender, receiver] bool.

        Args:
            over: the kind of the route from whose stops the rows are passed on; None if they come from the ranks of tokens.

        Example:
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> from hpmoe.routing.kinds.stops import Hierarchical
            >>> kind = Direct(ep_size=4, num_tokens=1, num_choices=1, num_model_experts=4)
            >>> kind.sends(Hierarchical(kind, node_size=2))[2].tolist()
            [False, False, True, True]
        """
        return _sends(self, over)

    @property
    def num_senders(self) -> int:
        """Ranks that may send rows to one rank."""
        return self.ep_size

    @property
    def most_of_sender(self) -> int:
        """The most rows that one rank sends to one expert."""
        if self.capacity is None:
            return self.num_tokens
        return self.capacity.limit(self.num_tokens, self.num_choices, self.num_model_experts)

    def most_rows(self, row_capacity: int | None = None) -> int:
        """Returns the most rows that a rank can receive by any routing, rows of padding included.

        Args:
            row_capacity: the most rows, without padding, that a rank accepts; None for all rows.

        Example:
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> Direct(ep_size=8, num_tokens=100, num_choices=4, num_model_experts=16).most_rows()
            1600
            >>> Direct(ep_size=1, num_tokens=1, num_choices=2, num_model_experts=4, alignment=8).most_rows()
            16
        """
        experts = self.num_local_experts
        rows = self.num_senders * min(self.num_tokens * min(self.num_choices, experts), experts * self.most_of_sender)
        rows = rows if row_capacity is None else min(row_capacity, rows)
        filled = rows + min(rows, experts) * (self.alignment - 1)
        return filled - filled % self.alignment

    def most_slots(self, num_experts: int, max_rows: int, tile_rows: int, sources: int | None = None) -> int:
        """Returns the most slots of `tile_rows` rows that the first `num_experts` local experts need for `max_rows` rows.

        Args:
            sources: ranks whose rows count of the last expert: the receiving rank and the ranks after it, whose rows come
                first and may begin inside a slot. None for all ranks.
        """
        whole, part = (-(-padded(n * self.most_of_sender, self.alignment) // tile_rows)
                       for n in (self.num_senders, min(sources or self.ep_size, self.num_senders)))
        return min(max_slots(max_rows, num_experts, tile_rows), (num_experts - 1) * whole + min(whole, part + 1))

    def is_possible(self) -> bool:
        """Returns True if the sizes fit together."""
        numbers = self.num_experts, self.num_local_experts, self.top_k, self.tp_size, self.alignment
        capacity = self.capacity
        return min(numbers) >= 1 and self.num_tokens >= 0 and not self.ep_size % self.tp_size \
            and not self.num_experts % self.ep_size \
            and (capacity is None or (0 < capacity.factor < math.inf and capacity.policy in DROP_POLICIES))

    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray:
        """Returns the ranks at which rows of `source` for experts on `dest` arrive."""
        return np.asarray(dest)

    def way_fault(self, over: RouteKind) -> str:
        """Returns the fault in the way of these rows over the stops of another kind, or "" if there is no fault.

        Rows that stop together at a rank must have come over one stop before: the ways of a rank's rows form a tree. So the
        stop before is `over.stop(source, stop)`.

        Example:
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> from hpmoe.routing.kinds.stops import Hierarchical
            >>> kind = Direct(ep_size=4, num_tokens=1, num_choices=1, num_model_experts=4)
            >>> Hierarchical(kind, 4).way_fault(Hierarchical(kind, 2))
            'rows of rank 0 for ranks 0 and 2 stop at rank 0, and come there over ranks 0 and 2'
        """
        before = np.take_along_axis(over.stops, self.stops, axis=1)
        wrong = np.argwhere(before != over.stops)
        if not len(wrong):
            return ""
        source, dest = wrong[0].tolist()
        at = int(self.stops[source, dest])
        return (f"rows of rank {source} for ranks {at} and {dest} stop at rank {at}, and come there over ranks "
                f"{int(over.stops[source, at])} and {int(over.stops[source, dest])}")

    def rows_of(self, of_experts: int, tokens: Sequence[int] | None = None, rank: int = 0) -> int:
        """Returns the most rows that a rank receives if its experts receive `of_experts` rows and each rank has `tokens`."""
        return of_experts

    def rows_of_token(self) -> float:
        """Returns the expected number of rows that the experts of a stop's ranks receive of a row that arrives there."""
        return 1.0

    def text(self, ids: str, of: int) -> str:
        """Returns the kind as printed, by the name of the ids or by the index of another route."""
        groups = f", groups of a multiple of {self.alignment}" if self.alignment > 1 else ""
        return f"{ids}, {self.num_experts} experts, top_k={self.top_k}{groups}"


@functools.lru_cache(maxsize=128)
def _stops(kind: RouteKind) -> np.ndarray:
    ranks = np.arange(kind.ep_size)
    return np.array(np.broadcast_to(kind.stop(ranks[:, None], ranks), (kind.ep_size, kind.ep_size)), np.int32)


@functools.lru_cache(maxsize=128)
def _sends(kind: RouteKind, over: RouteKind | None) -> np.ndarray:
    out = np.zeros((kind.ep_size, kind.ep_size), bool)
    out[np.arange(kind.ep_size)[:, None] if over is None else over.stops, kind.stops] = True
    return out


class ByIds(RouteKind, abc.ABC):
    """Entries of tokens go to the experts that ids name."""

    @property
    def by_ids(self) -> ByIds:
        return self

    @property
    def num_own_experts(self) -> int:
        return self.num_experts // self.ep_size

    @property
    def num_local_experts(self) -> int:
        return self.num_own_experts

    @abc.abstractmethod
    def counts(self, rank: int, ids: np.ndarray) -> np.ndarray:
        """Returns the number of entries of a rank for each expert or replica, [ep_size * num_local_experts]."""

    @abc.abstractmethod
    def kept(self, rank: int, ids: np.ndarray, weights: np.ndarray | None, sort: Sort) -> np.ndarray:
        """Returns True for each entry of a rank that has a row, [tokens * top_k] bool."""

    @abc.abstractmethod
    def order(self, rank: int, ids: np.ndarray, kept: np.ndarray, sort: Sort) -> np.ndarray:
        """Returns the kept entries of a rank, sorted stably by expert and copy."""

    def received(self, topk_ids: PerRank) -> list[int]:
        """Returns the number of rows that each rank receives, by the ids of all ranks' tokens, which must be valid.

        Example:
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> Direct(2, 2, 2, 4).received([np.array([[1, 0], [1, 2]]), np.array([[0, 1], [1, 0]])])
            [7, 1]
        """
        if self.ep_size == 1 and self.capacity is None and self.alignment == 1:
            return [int(np.count_nonzero(topk_ids[0] != ABSENT))]
        return self.received_of(np.sum([self.counts(rank, ids) for rank, ids in enumerate(topk_ids)], axis=0))

    def received_of(self, counts: np.ndarray) -> list[int]:
        """Returns the rows that each rank receives, from all ranks' entries for each expert, [ep_size * num_local_experts].

        Example:
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> Direct(2, 6, 2, 4, alignment=4).received_of(np.array([3, 0, 4, 5]))
            [4, 12]
        """
        return padded(counts.astype(np.int64), self.alignment).reshape(self.ep_size, -1).sum(axis=1).tolist()
