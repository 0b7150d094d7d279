"""RoutePlan: the room that a taskflow has where rows are routed, and the number of slots that takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe.routing.capacity import MANY_MORE, Capacity
from hpmoe.routing.placement import Placement
from hpmoe.routing.shards import OfShards
from hpmoe.routing.slots import max_slots, padded


@dataclasses.dataclass(frozen=True)
class RoutePlan(OfShards):
    """A route as the kernel sees it: where the ids are, how many slots the plan has for them, and what is dropped.

    The plan has room for `max_rows` received rows of a rank, and is ordered for `likely_rows`.
    `num_experts` are the model's; `num_local_experts` of each rank, with the copies it holds under `placement`. `weights` is
    the buffer of the topk_weights that decide what is dropped, or -1. `once_of` is -1, or of a route to ranks, which takes a
    token to a rank once, the index of the route whose experts' ranks these are. One event is for the rows of `return_tokens`
    tokens that come back, whole tiles of them. An expert's rows are filled up to a multiple of `alignment`. `node_size` is
    that of a route to relays, which is one to one rank of each node; else 0. Where an expert lies in `tp_size` shards on as
    many ranks, each shard counts as an expert, and as an entry of the tokens that choose it.
    """

    ids: int
    num_experts: int
    num_local_experts: int
    top_k: int
    num_tokens: int
    max_rows: int
    likely_rows: int
    tile_rows: int
    ep_size: int
    return_tokens: int
    capacity: Capacity | None = None
    weights: int = -1
    placement: Placement | None = None
    once_of: int = -1
    alignment: int = 1
    node_size: int = 0
    tp_size: int = 1

    @property
    def num_own_experts(self) -> int:
        """Experts that each rank owns."""
        return self.num_experts // self.ep_size

    @property
    def num_replicas(self) -> int:
        """Copies of other ranks' experts that each rank has room for."""
        return self.num_local_experts - self.num_own_experts

    @property
    def drops_by_weight(self) -> bool:
        """Whether the topk_weights decide what is dropped."""
        return self.capacity is not None and self.capacity.policy == "probs"

    @property
    def num_senders(self) -> int:
        """Ranks that may send rows to one rank."""
        return self.ep_size // self.node_size if self.node_size else self.ep_size

    @property
    def num_slots(self) -> int:
        return self.slots_of(self.num_local_experts)

    @property
    def num_returns(self) -> int:
        """Events for rows that come back, in the order of their tokens."""
        return -(-self.num_tokens // self.return_tokens)

    @property
    def is_mostly_empty(self) -> bool:
        """Whether most of the slots are likely to be empty."""
        return self.max_rows > MANY_MORE * self.likely_rows

    def slots_of(self, num_experts: int, sources: int | None = None) -> int:
        """The most slots that the first `num_experts` local experts can need; each takes a token of a rank at most once, and
        of those no more than its capacity.

        Of the last one only the rows from `sources` ranks count, the receiving one and those after it, which come first; all
        where None. They may begin inside a slot.
        """
        most = self.num_tokens
        if self.capacity is not None and self.once_of < 0:
            most = self.capacity.limit(self.num_tokens, self.top_k, self.num_experts)
        whole, part = (-(-padded(n * most, self.alignment) // self.tile_rows)
                       for n in (self.num_senders, min(sources or self.ep_size, self.num_senders)))
        return min(max_slots(self.max_rows, num_experts, self.tile_rows), (num_experts - 1) * whole + min(whole, part + 1))


def relays_of(routes: Sequence[RoutePlan], route: int) -> int:
    """The index of the route to the relays that pass on the rows of a route; -1 where none do."""
    of = routes[route].once_of if routes[route].once_of >= 0 else route
    return next((i for i, plan in enumerate(routes) if plan.node_size and plan.once_of == of), -1)
