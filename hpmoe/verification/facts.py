"""Facts about a rank's rows while an order is proved: units that are not empty, and whose rows they hold."""

from __future__ import annotations

import copy
import dataclasses

from hpmoe.ir import taskflow as tf


@dataclasses.dataclass
class Facts:
    """What is not empty on one rank, slots and token tiles up to an index and experts, and the expert of a slot; and which
    events for returned rows, of a route, count any."""

    slots: dict[int, int] = dataclasses.field(default_factory=dict)
    tiles: int = -1
    experts: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    expert_of: dict[tuple[int, int], int] = dataclasses.field(default_factory=dict)
    counting: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    returned: tuple[int, int, int] | None = None  # route, slot and position of a peer that rows of the slot go back to
    sent: tuple[int, int, int, int | None] | None = None  # route, slot of a peer, its position, expert if known

    def key(self) -> tuple:
        """Equal where the same is known."""
        return (*(frozenset(d.items()) for d in (self.slots, self.expert_of)), frozenset(self.experts),
                frozenset(self.counting), self.tiles, self.returned, self.sent)

    def in_general(self) -> Facts:
        """Without those about single peers."""
        return dataclasses.replace(self, returned=None, sent=None)

    def add_slot(self, route: int, slot: int, expert: int | None = None) -> None:
        """Slots fill up in order."""
        self.slots[route] = max(self.slots.get(route, -1), slot)
        if expert is not None:
            self.expert_of[route, slot] = expert
            self.experts.add((route, expert))

    def with_slot(self, route: int, slot: int, expert: int) -> Facts:
        facts = copy.deepcopy(self)
        facts.add_slot(route, slot, expert)
        return facts

    def add_expert(self, route: int, expert: int | None) -> None:
        self.add_slot(route, 0)
        if expert is not None:
            self.experts.add((route, expert))

    def add_alone(self, flow: tf.Taskflow) -> None:
        """Adds what the rows of a lone rank say of its tokens, which may have none."""
        for route, last in self.slots.items():
            self.tiles = max(self.tiles, (_fewest_tokens(flow.routes[route], last + 1) - 1) // flow.tile_rows)


def _fewest_tokens(plan: tf.RoutePlan, num_slots: int) -> int:
    """Tokens of a lone rank that it takes to fill so many slots: no expert gets more rows than there are tokens."""
    choices, experts = plan.num_choices, plan.num_local_experts
    return next((n for n in range(1, plan.num_tokens) if min(n * choices, experts * -(-n // plan.tile_rows)) >= num_slots),
                plan.num_tokens)
