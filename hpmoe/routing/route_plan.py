"""RoutePlan: a route as a kernel sees it, with a capacity for received rows."""

from __future__ import annotations

import dataclasses

from hpmoe.routing.capacity import MANY_MORE
from hpmoe.routing.kinds.kind import OfKind, RouteKind


@dataclasses.dataclass(frozen=True)
class RoutePlan(OfKind):
    """A kind of route in a taskflow: the buffers that decide where rows go, and the capacity for received rows."""

    kind: RouteKind
    ids: int  # the buffer of topk_ids
    max_rows: int  # the most received rows of a rank, the capacity of its buffers
    expected_rows: int  # received rows of a rank that the taskflow is ordered for
    tile_rows: int  # rows of a slot
    return_tokens: int  # tokens for whose returned rows there is one event, whole tiles of tokens
    weights: int = -1  # the buffer of the topk_weights that decide what is dropped, or -1
    of: int = -1  # if a row stands for a token, the index of the route of the token's experts; else -1
    over: int = -1  # the route over whose stops the rows come, or -1 if they come from the ranks of their tokens

    @property
    def drops_by_weight(self) -> bool:
        """True if the topk_weights decide which entries are dropped."""
        return self.capacity is not None and self.capacity.policy == "probs"

    @property
    def num_slots(self) -> int:
        return self.slots_of(self.num_local_experts)

    @property
    def num_returns(self) -> int:
        """Events for rows that come back, in the order of their tokens."""
        return -(-self.num_tokens // self.return_tokens)

    @property
    def is_mostly_empty(self) -> bool:
        """True if most slots are expected to be empty."""
        return self.max_rows > MANY_MORE * self.expected_rows

    def slots_of(self, num_experts: int, sources: int | None = None) -> int:
        """Returns the most slots that the first `num_experts` local experts need; see RouteKind.most_slots."""
        return self.kind.most_slots(num_experts, self.max_rows, self.tile_rows, sources)
