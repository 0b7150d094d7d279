"""Time that a plan leaves between a task and what waits for it, as rows come otherwise than planned."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.spread_slots import is_spread

SHARE = 0.02  # of the time of all matrix tasks


def slack_us(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> float:
    """How much later than it could begin what waits for a task is planned, in microseconds, where slots are spread; 0
    where a plan has room for no more rows than are likely, and before gradients of weights, which fill what is waited.

    There each slot is finished as soon as it can be. If fewer of them had rows than planned, a worker would come too early
    to what waits for others, again and again.

    Args:
        costs: microseconds of each task, [num_tasks].
    """
    is_known = all(plan.max_rows == plan.likely_rows for plan in flow.routes)
    if is_known or any(op.primitive.makes_blocks for op in flow.ops) or not is_spread(flow, machine):
        return 0.0
    return float(SHARE * costs[flow.units()].sum() / machine.num_aic)
