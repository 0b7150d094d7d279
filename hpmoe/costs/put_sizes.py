"""How many columns one put moves, where that is left to the machine's rates."""

from __future__ import annotations

import math

from hpmoe import taskflow as tf
from hpmoe.costs.work import link_rate
from hpmoe.machine import Machine

PUT_US, LEAST_COLS = 6.0, 256
SIGNAL_SHARE = 0.2  # of the time of a put, the most for its signals
PARTS = ((32, 32768), (16, 65536))  # the most of a row, and of the puts of a rank with as many


def num_peers_of(plan: tf.RoutePlan) -> int:
    """For how many peers, or groups of them, a slot has puts of their own: for all, but where most slots are likely to be
    empty, for twice as many as one is likely to have rows of."""
    if not plan.is_mostly_empty:
        return plan.ep_size
    per_expert = max(1.0, plan.likely_rows / (plan.num_local_experts * plan.tile_rows))
    return min(plan.ep_size, 2 * math.ceil(plan.ep_size / per_expert))


def likely_put_cols(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> int | None:
    """Columns of a put of which what a slot is likely to have of one rank takes a worker about PUT_US, as far as PARTS
    allow; None for whole rows.

    Args:
        op: the exchange, "ALL_TO_ALL" or "ALL_TO_ALL_BACK".
    """
    plan, sent = flow.routes[op.domain.route], flow.buffers[op.operands[0].buffer]
    rows = min(flow.tile_rows, plan.likely_rows / (plan.num_local_experts * flow.ep_size))
    us = rows * sent.row_bytes / link_rate(machine, flow.ep_size)
    parts = min(us / PUT_US, max(min(most, puts / (plan.num_slots * num_peers_of(plan))) for most, puts in PARTS))
    if op.opcode == "ALL_TO_ALL_BACK":  # a signal for each event that rows of one expert are counted in
        returns = min(plan.num_returns, rows * plan.num_experts / (plan.top_k * plan.return_tokens))
        parts = min(parts, SIGNAL_SHARE * us / (max(1.0, returns) * max(machine.signal_us, 1e-9)))
    made = [made.tile_cols for made in flow.ops if op.operands[1].buffer in (a.buffer for a in made.outputs)]
    least = max([LEAST_COLS, *made])
    cols = None if parts < 2 else -(-sent.cols // int(parts) // least) * least
    return None if cols is None or cols >= sent.cols else cols
