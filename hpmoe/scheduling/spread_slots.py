"""Orders slots so that whatever ranks their rows are of, every rank has its share of the first ones."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.rules import rule
from hpmoe.support.known import known

UNEVEN = 1.25  # rows of the fullest rank over those that a rank sends
RUNS, FEWEST = 2, 16  # slots of them for each rank that sends some; ranks of which there are runs enough


@rule("spread_slots", otherwise=lambda flow, machine: False)
def is_spread(flow: tf.Taskflow, machine: Machine) -> bool:
    """Has slots be sent and multiplied in an order of which every beginning is spread over all of them. A rank that gets
    many rows gets those of all sources at a time, and each source fills a run of slots: if one run were multiplied after the
    other, all but the first would be waited for until the last rows come. So it is where the fullest rank gets many more
    rows than one sends and L2 holds the weights of all experts.
    """
    if any(plan.once_of >= 0 or plan.node_size or plan.placement for plan in flow.routes):
        return False
    has_runs = all(plan.likely_rows >= RUNS * max(plan.ep_size, FEWEST) * plan.tile_rows for plan in flow.routes)
    return has_runs and any(map(is_uneven, flow.routes)) and _weight_bytes(flow) <= machine.l2_bytes


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


def spread_out(num_slots: int) -> np.ndarray:
    """The turn of each slot, [num_slots]: by its number with the bits in reverse (van der Corput's sequence), so that those
    of any beginning are about as many in each part of the slots.

    Example:
        >>> spread_out(8).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    slot, backwards, bits = np.arange(num_slots), np.zeros(num_slots, np.int64), max(1, (num_slots - 1).bit_length())
    for bit in range(bits):
        backwards |= (slot >> bit & 1) << (bits - 1 - bit)
    return np.argsort(np.argsort(backwards))
