"""Chooses gradients of weights that are summed while rows still come, by matrix workers that do nothing else."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.likely_slots import grids_of

LEAST_TASKS = 8  # of such a worker: with few, when the last one ends is chance


def early_gradients(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, movers: int) -> tuple[int, np.ndarray]:
    """How many matrix workers take no slots, and which gradients of weights they sum instead.

    A gradient waits for all slots of its expert, and which these are nobody knows before there is a routing: a worker can
    have none before a slot that it is to multiply. Where rows come slower than they are multiplied, all would be idle now
    and then until the last have come. So as many as are left over begin with the gradients of the first experts, those of
    the operation with the most work, and have as much of it as the others have in all.

    Args:
        costs: microseconds of each task, [num_tasks].
        movers: vector workers that put rows.
    """
    grids, num_aic = list(grids_of(flow)), machine.num_aic
    gradients = [(costs[tasks].sum(), tasks, op) for op, tasks, _ in grids if op.primitive.makes_blocks]
    arriving = sum(costs[tasks].sum() for op, tasks, _ in grids if op.primitive.sends_rows) / movers
    if gradients and arriving:
        multiplied = sum(costs[t].sum() for op, t, _ in grids if op.unit == "aic" and op.domain.is_slots) / num_aic
        us, tasks, op = max(gradients, key=lambda of_op: of_op[0])
        first = arriving / flow.routes[op.domain.route].num_local_experts  # when all rows of an expert have come
        left = max(arriving, multiplied + sum(us for us, *_ in gradients) / num_aic) - first
        workers = min(round(num_aic * (1 - multiplied / arriving)), num_aic - 1, int(us / left) if left > 0 else 0)
        early = np.arange(tasks.start, tasks.start + np.searchsorted(np.cumsum(costs[tasks]), workers * left))
        if len(early) >= LEAST_TASKS * max(workers, 1):
            return workers, early
    return 0, np.zeros(0, np.int64)
