"""Chooses gradients of weights that are summed while rows still come, by matrix workers that do nothing else."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.likely_slots import grids_of
from hpmoe.scheduling.rules import rule
from hpmoe.scheduling.spread_slots import is_spread

LEAST_TASKS = 8  # of such a worker: with few, when the last one ends is chance


@rule("early_gradients", otherwise=lambda flow, machine, costs, movers: (0, np.zeros(0, np.int64)))
def early_gradients(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, movers: int) -> tuple[int, np.ndarray]:
    """Has a few matrix workers take no slots where rows come slower than they are multiplied, and sum gradients of weights.

    A gradient waits for all slots of its expert, and which these are nobody knows before there is a routing: a worker can
    have none before a slot that it is to multiply. Where rows come slowly, all would be idle now and then until the last
    have come. So as many as are left over have gradients of the operation with the most work, as much of it as the others
    have in all, and of every expert the same share: none is left alone with a hot one. Their number, and the tasks.

    Args:
        costs: microseconds of each task, [num_tasks].
        movers: vector workers that put rows.
    """
    grids, num_aic = list(grids_of(flow)), machine.num_aic
    gradients = [(costs[tasks].sum(), tasks, op) for op, tasks, _ in grids if op.primitive.makes_blocks]
    arriving = sum(costs[tasks].sum() for op, tasks, _ in grids if op.primitive.sends_rows) / movers
    if gradients and arriving and not is_spread(flow, machine):
        multiplied = sum(costs[t].sum() for op, t, _ in grids if op.unit == "aic" and op.domain.is_slots) / num_aic
        us, tasks, op = max(gradients, key=lambda of_op: of_op[0])
        first = arriving / flow.routes[op.domain.route].num_local_experts  # when all rows of an expert have come
        left = max(arriving, multiplied + sum(us for us, *_ in gradients) / num_aic) - first
        idle = max(0.0, 1 - multiplied / arriving)
        workers = min(round(num_aic * idle), num_aic - 1, int(us / left) if left > 0 else 0)
        experts = op.domain.size // op.domain.blocks
        of_expert = np.arange(tasks.start, tasks.stop).reshape(experts, -1)
        early = of_expert[:, :int(of_expert.shape[1] * workers * left / us)].reshape(-1)
        if len(early) >= LEAST_TASKS * max(workers, 1):
            return workers, early
    return 0, np.zeros(0, np.int64)
