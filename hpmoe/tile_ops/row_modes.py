"""Row modes: which rows of an operand a task touches."""

from __future__ import annotations

from enum import Enum

from hpmoe.tile_ops.named import Named


class Ready(Enum):
    """Counter of the rows that a task writes."""

    UNIT = "unit"  # of the task
    ENTRIES = "entries"  # the tiles of tokens that they go back to
    FAN = "fan"  # the slots of experts that they are copied to
    COPIES = "copies"  # the expert whose copy they are of


class RowMode(Named):
    """Rule for the rows of an operand that a task touches; the members are the constants of this module.

    Attributes:
        needs_route: True if a route decides which rows these are.
        of_experts: True if they are rows of experts' matrices.
        of_slots_expert: True if they are rows of the matrix of a slot's expert.
        ready: counter of the rows when they are written.
        index: name in texts of the index by which a row finds its event.
    """

    def __init__(self, name: str, number: int, *, needs_route: bool = True, of_experts: bool = False,
                 of_slots_expert: bool = False, ready: Ready = Ready.UNIT, index: str = "token"):
        super().__init__(name, number)
        self.needs_route, self.of_experts, self.of_slots_expert = needs_route, of_experts, of_slots_expert
        self.ready, self.index = ready, index


OWN = RowMode("own", 0, needs_route=False)  # of the task's unit
ALL = RowMode("all", 1, needs_route=False)
ONE = RowMode("one", 2, needs_route=False)  # a single row, broadcast
SLOT_EXPERT = RowMode("slot_expert", 3, of_experts=True, of_slots_expert=True)  # of the expert of the slot
EXPERT = RowMode("expert", 4)  # received, of the task's expert
PEER = RowMode("peer", 5)  # of a slot on another rank
ENTRIES = RowMode("entries", 6, ready=Ready.ENTRIES)  # by token * top_k + k
TOKENS = RowMode("tokens", 7)  # by token
# Of the copy that the slot's expert is.
REPLICA = RowMode("replica", 8, of_experts=True, of_slots_expert=True, ready=Ready.COPIES)
RETURNED = RowMode("returned", 9, of_experts=True, ready=Ready.COPIES)  # of all copies of the expert, as they came back
# All that the rank's experts have of the tokens of the unit, whose route is one to ranks.
FAN = RowMode("fan", 10, ready=Ready.FAN, index="row")
# Of a relay, for the rows that it passes on: the rows that it has received, and what comes back by row * top_k + k.
RELAY_ROWS = RowMode("relay_rows", 11)
RELAY_ENTRIES = RowMode("relay_entries", 12)
