"""Orders slots so that whatever ranks their rows are of, every rank has its share of the first ones."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.likely_slots import LikelySlots
from hpmoe.scheduling.rules import rule
from hpmoe.support.known import known

UNEVEN = 1.25  # rows of the fullest rank over those that a rank sends
RUN, FEWEST = 1.25, 32  # slots that each rank which sends some fills, the least; all slots, the least
MOST_PARTS = 2  # of the slots, each spread by itself


@rule("spread_slots", otherwise=lambda flow, machine: 0)
def spread_parts(flow: tf.Taskflow, machine: Machine) -> int:
    """Has slots be sent and multiplied in an order of which every beginning is spread over all of them. A rank that gets
    many rows gets those of all sources at a time, and each source fills a run of slots: if one run were multiplied after the
    other, all but the first would be waited for until the last rows come. So it is where the fullest rank gets many more
    rows than one sends, and each source fills slots of its own. Where L2 does not hold the
    weights of all experts, one half of the slots comes after the other. How many such parts there are, 0 where slots are
    not spread.
    """
    if any(plan.kind.is_of_tokens or plan.placement for plan in flow.routes):
        return 0
    parts = max(1, math.ceil(_weight_bytes(flow) / max(1.0, machine.l2.bytes)))
    return parts if all(map(_has_runs, flow.routes)) and any(map(is_uneven, flow.routes)) and parts <= MOST_PARTS else 0


def is_spread(flow: tf.Taskflow, machine: Machine) -> bool:
    """Whether slots are spread, see `spread_parts`."""
    return spread_parts(flow, machine) > 0


def _has_runs(plan: tf.RoutePlan) -> bool:
    """Whether the sources of a rank's rows fill slots enough to be told apart by them."""
    return plan.likely_rows >= max(RUN * plan.ep_size, FEWEST) * plan.tile_rows


def is_uneven(plan: tf.RoutePlan) -> bool:
    """Whether a plan is for a routing in which a rank gets many more rows than one sends; not of two ranks, of which one may
    get all, and a plan for any routing is for that."""
    return plan.ep_size > 2 and rows_over_sent(plan) > UNEVEN


def rows_over_sent(plan: tf.RoutePlan) -> float:
    """The rows that the fullest rank is likely to get, over those that one sends."""
    return plan.likely_rows / max(1, plan.num_tokens * plan.top_k)


def _weight_bytes(flow: tf.Taskflow) -> int:
    """Of all weights that rows of slots are multiplied by."""
    read = {op.operands[2].buffer for op in flow.ops if op.domain.is_slots and op.primitive.is_matmul
            and op.primitive.operand(2).is_weight}
    return sum(known(flow.buffers[b].num_rows) * flow.buffers[b].row_bytes for b in read)


def spread_out(num_slots: int, parts: int = 1) -> np.ndarray:
    """The turn of each slot, [num_slots]: part after part of them, and in each by its number with the bits in reverse (van
    der Corput's sequence), so that those of any beginning are about as many in each stretch of it.

    Example:
        >>> spread_out(8).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
        >>> spread_out(8, parts=2).tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    slot, bits = np.arange(num_slots), max(1, (num_slots - 1).bit_length())
    part = slot * parts // max(1, num_slots)
    place, backwards = slot - np.searchsorted(part, part), np.zeros(num_slots, np.int64)
    for bit in range(bits):
        backwards |= (place >> bit & 1) << (bits - 1 - bit)
    return np.argsort(np.lexsort((backwards, part)))


def turns_of(slots: LikelySlots, parts: int) -> np.ndarray:
    """The turn of each slot of a route, [num_slots], so many parts being of those that are likely to have rows; of the
    others there are more, as large."""
    num_slots = len(slots.place)
    more = round(num_slots * parts / max(1, slots.num_likely)) if parts > 1 else 1
    return spread_out(num_slots, max(parts, more))
