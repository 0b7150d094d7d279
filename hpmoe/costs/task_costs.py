"""The time of each task of a Taskflow alone on a machine, before there is a routing."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.costs.work import Work, core_us, link_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.support.known import known


def task_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Estimated microseconds of each task alone on the machine, every slot taken as full, [num_tasks]."""
    work = Work(flow, machine)
    out, first = np.empty(sum(math.prod(op.grid) for op in flow.ops)), 0
    for i, op in enumerate(flow.ops):
        rows = _full_rows(flow, op)
        of_tasks = out[first:first + math.prod(op.grid)].reshape(-1, op.grid[2])
        lower = slice(op.domain.blocks - 1, None, op.domain.blocks)
        for k, where in enumerate((np.s_[:], np.s_[:, -1], np.s_[lower], np.s_[lower, -1])):
            if k == 0 or work.table[i, k].tobytes() != work.table[i, 0].tobytes():
                of_tasks[where] = _alone(work.table[i, k], rows, machine, flow.ep_size)
        first += of_tasks.size
    return out


def _alone(work: np.void, rows: float, machine: Machine, ep_size: int) -> float:
    """Microseconds of one task to which memory and links give all that one worker can take."""
    used = work["footprints"][:work["num_footprints"]]
    return float(machine.sync.task_us + max(core_us(work, rows),
                                       (used["fixed"].sum() + rows * used["row"].sum()) / machine.l2.worker_bytes_per_us,
                                       rows * work["link_row"] / link_rate(machine, ep_size)))


def _full_rows(flow: tf.Taskflow, op: tf.TileOp) -> float:
    """Rows of a task whose unit is full, of a transfer its share of them."""
    plan = flow.routes[op.domain.route] if op.domain.route >= 0 else None
    if op.primitive.is_notice:
        return 0.0
    if op.primitive.is_blocking:
        return float(known(plan).max_rows)
    if op.primitive.moves_copies:
        copies = sum(map(len, known(known(plan).placement).copies)) / flow.ep_size  # of a rank, in the mean
        return op.params.block * copies / (op.domain.num_rows if op.domain.is_copies else 1)
    if op.domain.is_slots:
        return flow.tile_rows / (op.num_peers or 1)
    if op.domain.is_tiles:
        return float(min(flow.tile_rows, max(op.domain.num_rows, 1)))
    if op.domain.sums_rows:
        return rows_of_expert(op, plan)
    return 1.0


def rows_of_expert(op: tf.TileOp, plan: tf.RoutePlan | None) -> float:
    """Rows that a task of an operation over experts sums, where experts share the rows evenly; where copies were planned
    for loads, the most that one of its experts is likely to have."""
    if plan is None:
        return float(op.domain.height)
    if plan.placement is None:
        return plan.likely_rows / plan.num_local_experts
    first = op.domain.first_expert
    return plan.likely_rows * float(plan.placement.likely_shares[:, first:first + op.domain.num_rows].max())
