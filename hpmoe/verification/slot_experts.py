"""The experts whose rows a slot can hold, and those that have rows, as far as some facts tell."""

from __future__ import annotations

import bisect

from hpmoe.ir import taskflow as tf
from hpmoe.verification.facts import Facts
from hpmoe.verification.order import Order


class SlotExperts(Order):
    """The order of a taskflow, and the experts of its slots."""

    def __init__(self, flow: tf.Taskflow):
        super().__init__(flow)
        self._most_slots: dict[int, list[int]] = {}  # by route, of the first experts together

    def expert_of(self, facts: Facts, route: int, slot: int) -> int | None:
        """The expert of a slot where the facts tell it."""
        experts = self.experts_of(facts, route, slot)
        return experts[0] if len(experts) == 1 else None

    def experts_of(self, facts: Facts, route: int, slot: int) -> range:
        """Whose rows a slot can hold. Experts come in order, each with as many slots as its most rows need, and empty slots
        count as the last one's."""
        plan = self.flow.routes[route]
        if route not in self._most_slots:
            self._most_slots[route] = [plan.slots_of(e + 1) for e in range(plan.num_local_experts)]
        low = bisect.bisect_right(self._most_slots[route], slot) % plan.num_local_experts
        most, behind = max(1, self._most_slots[route][0]), max(0, facts.slots.get(route, -1) - slot)
        high = max(0, plan.num_local_experts - 1 - behind // most)  # slots in use behind it are of some expert too
        for (r, s), expert in facts.expert_of.items():
            if r == route and s <= slot:
                low = min(max(low, expert + (slot - s) // most), plan.num_local_experts - 1)
            if r == route and s >= slot:
                high = min(high, expert - (s - slot) // most)
        return range(low, max(low, high) + 1)

    def has_rows(self, facts: Facts, route: int, expert: int) -> bool:
        """Whether the facts say that an expert has rows."""
        used = range(facts.slots.get(route, -1) + 1)
        return (route, expert) in facts.experts or any(self.expert_of(facts, route, s) == expert for s in used)
