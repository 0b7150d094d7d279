"""Times of tasks on a machine with the rows that they are expected to have, before there is a routing.

The scheduler takes the time of each task; choices of tiles and schemes take sums over the tasks of each operation. Both ask
Work, whose table the simulator has, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpmoe.costs.footprint import DENSE, STREAM, WEIGHT
from hpmoe.costs.put_sizes import expected_puts
from hpmoe.costs.work import Work, core_us, link_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.support.known import known
from hpmoe.tiling.lifetimes import next_ops

Units = tuple[tuple[float, float], tuple[float, float]]  # of an operation: (rows, number of units with as many), twice


def task_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Returns microseconds of each task alone on the machine, with every slot full, [num_tasks]."""
    work = Work(flow, machine)
    out, first = np.empty(sum(math.prod(op.grid) for op in flow.ops)), 0
    for i, op in enumerate(flow.ops):
        rows = _full_rows(flow, op)
        of_tasks = out[first:first + math.prod(op.grid)].reshape(-1, op.grid[2])
        lower = slice(op.domain.blocks - 1, None, op.domain.blocks)
        for k, where in enumerate((np.s_[:], np.s_[:, -1], np.s_[lower], np.s_[lower, -1])):
            if k == 0 or work.table[i, k].tobytes() != work.table[i, 0].tobytes():
                used = work.table[i, k]["footprints"][:work.table[i, k]["num_footprints"]]
                touched = used["fixed"].sum() + rows * used["row"].sum()
                of_tasks[where] = _alone(work.table[i, k], rows, touched, machine, flow.ep_size)
        first += of_tasks.size
    return out


def _alone(work: np.ndarray | np.void, rows: np.ndarray | float, touched: np.ndarray, machine: Machine,
           ep_size: int) -> np.ndarray:
    """Returns microseconds of tasks to which L2 and links give all that one worker can take."""
    moved = np.maximum(touched / machine.l2.worker_bytes_per_us, rows * work["link_row"] / link_rate(machine, ep_size))
    return machine.sync.task_us + np.maximum(core_us(work, rows), moved)


def expected_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Returns microseconds of a rank whose experts share the rows evenly.

    The time is that of the busiest unit, of the link, of memory, or of the longest path of one task of each operation. A
    unit takes the sum of its tasks divided among its workers, and its longest task, which may begin last. Exchanges take the
    link. Tokens sent once arrive before most experts can begin and leave after all have ended: their exchanges are added.
    The last block of gradients that expert replicas return is added, too: no task is left to hide it.

    Args:
        flow: of `tile_operations`, without tasks.
    """
    busy, longest, memory = _ops_us(flow, machine)
    exchanges = {i: op for i, op in enumerate(flow.ops) if op.primitive.is_blocking}
    sent = {i: _exchange_us(flow, op, machine) for i, op in exchanges.items()}
    hops = {i: us for i, us in sent.items() if flow.routes[exchanges[i].domain.route].kind.is_of_tokens}
    latency = longest.tolist()
    for i in exchanges.keys() - hops.keys():
        latency[i] = _put_us(flow, exchanges[i], machine)
    is_matrix = np.array([machine.unified or op.unit == "aic" for op in flow.ops])
    units = ((busy[which].sum() / max(1, len(machine.queues_of(unit))) + longest[which].max(initial=0.0))
             for unit, which in (("aic", is_matrix), ("aiv", ~is_matrix)))
    all_hops = sum(hops.values())
    returned = max((_returned_us(flow, op, machine) for op in flow.ops), default=0.0)
    return float(max(*units, sum(sent.values()) - all_hops, memory / machine.memory.bytes_per_us,
                     _longest_path(flow, latency)) + all_hops + returned)


def _ops_us(flow: tf.Taskflow, machine: Machine) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns microseconds of all tasks of each operation and of its longest one, [num_ops], 0 for exchanges; and bytes of
    weights and of summed gradients, which memory moves once."""
    table = Work(flow, machine).table
    units = np.array([_expected_units(flow, op) for op in flow.ops]).reshape(-1, 2, 2)
    rows, counts = units[:, None, :, 0], units[:, None, :, 1]  # [num_ops, 1, 2]
    tiles = np.array([(op.domain.blocks, op.num_col_tiles) for op in flow.ops], float).reshape(-1, 2)
    of_blocks = np.stack([1 - 1 / tiles[:, 0], 1 / tiles[:, 0]], axis=1)
    of_cols = np.stack([tiles[:, 1] - 1, np.ones(len(tiles))], axis=1)
    times = (of_blocks[:, :, None] * of_cols[:, None, :]).reshape(-1, 4, 1)  # tasks of a unit, as `Work.table` has them
    used = table["footprints"]
    touched = used["fixed"].sum(axis=-1)[:, :, None] + rows * used["row"].sum(axis=-1)[:, :, None]
    us = _alone(table[:, :, None], rows, touched, machine, flow.ep_size) + machine.sync.wait_us + machine.sync.signal_us
    num_tasks = times * counts
    weights = np.where((used["part"] == WEIGHT) | (used["part"] == DENSE), used["whole"], 0.0).max(axis=-1, initial=0.0)
    streams = np.where(used["part"] == STREAM, used["fixed"], 0.0).sum(axis=-1)
    experts = [flow.routes[op.domain.route].num_local_experts if op.domain.is_slots else 1 for op in flow.ops]
    memory = (times[..., 0] * weights * np.array(experts)[:, None])[num_tasks.any(axis=2)].sum() \
        + (num_tasks.sum(axis=2) * streams).sum()
    return (num_tasks * us).sum(axis=(1, 2)), np.where(num_tasks > 0, us, 0.0).max(axis=(1, 2), initial=0.0), float(memory)


def _expected_units(flow: tf.Taskflow, op: tf.TileOp) -> Units:
    """Returns the units of a local operation; slots of an expert are full but the last one."""
    plan = flow.routes[op.domain.route] if op.domain.route >= 0 else None
    if op.primitive.is_blocking or op.primitive.moves_copies:
        return (0.0, 0), (0.0, 0)
    if op.domain.sums_rows:
        return (rows_of_expert(op, plan), op.domain.size), (0.0, 0)
    experts = known(plan).num_local_experts if op.domain.is_slots else 1
    rows = known(plan).expected_rows / experts if op.domain.is_slots else float(max(1, op.domain.num_rows))
    whole, rest = divmod(rows, op.part_rows(flow.tile_rows))  # a unit counts as its parts
    return (float(op.part_rows(flow.tile_rows)), whole * experts), (rest, experts if rest else 0)


def _exchange_us(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> float:
    """Returns microseconds of a rank's link, or of its link between nodes if that takes longer, for an exchange of rows."""
    plan, ep_size = flow.routes[op.domain.route], flow.ep_size
    rows = float(plan.expected_rows)
    if plan.kind.is_of_tokens:
        rows = plan.top_k / plan.kind.rows_of_token() * plan.num_tokens
    ranks, near, far = _ranks_reached(flow, op, machine)
    us = max(near / machine.link.rate(ep_size), far / machine.link.node_bytes_per_us)
    return rows / ranks * us * flow.buffers[op.operands[0].buffer].row_bytes


def _returned_us(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> float:
    """Returns microseconds of a link for one block of a weight's gradient that goes back from an expert replica."""
    if not op.primitive.makes_blocks or op.domain.first == 0:
        return 0.0
    return op.params.block * flow.buffers[op.operands[0].buffer].row_bytes / link_rate(machine, flow.ep_size)


def _put_us(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> float:
    """Returns microseconds until a put of a slot's rows from one rank is seen, for an exchange that becomes puts."""
    plan, sent, sync = flow.routes[op.domain.route], flow.buffers[op.operands[0].buffer], machine.sync
    rows, reach = min(flow.tile_rows, plan.expected_rows / (plan.num_local_experts * flow.ep_size)), flow.ep_size
    if op.is_relayed:
        reach = _ranks_reached(flow, op, machine)[0]
    share = (expected_puts(flow, op, machine)[1] or sent.cols) / sent.cols
    return (sync.task_us + rows * sent.row_bytes * share / link_rate(machine, reach) + sync.signal_us + sync.poll_us
            + (sync.remote_us if reach <= machine.link.node_size else sync.node_remote_us))


def _ranks_reached(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> tuple[int, int, int]:
    """Returns how many ranks rank 0 sends rows to in an exchange: all, other ranks of its node, and ranks of other nodes."""
    plan = flow.routes[op.domain.route]
    sends = plan.kind.sends(flow.routes[plan.over].kind if op.is_relayed else None)[0]
    near = int(sends[1:machine.link.node_size].sum())
    return int(sends.sum()), near, int(sends[1:].sum()) - near


def _longest_path(flow: tf.Taskflow, latency: Sequence[float]) -> float:
    us, then = list(latency), next_ops(flow)
    for i in reversed(range(len(us))):
        us[i] += max((us[j] for j in then[i]), default=0.0)
    return max(us, default=0.0)


def _full_rows(flow: tf.Taskflow, op: tf.TileOp) -> float:
    """Returns rows of a task whose unit is full; of a transfer its share of them."""
    plan = flow.routes[op.domain.route] if op.domain.route >= 0 else None
    if op.primitive.is_completion_flag:
        return 0.0
    if op.primitive.is_blocking:
        return float(known(plan).max_rows)
    if op.primitive.moves_copies:
        copies = sum(map(len, known(known(plan).placement).copies)) / flow.ep_size  # of a rank, in the mean
        return op.params.block * copies / (op.domain.num_rows if op.domain.is_copies else 1)
    if op.domain.is_slots:
        return op.part_rows(flow.tile_rows) / (op.num_peers or 1)
    if op.domain.is_tiles:
        return float(min(op.part_rows(flow.tile_rows), max(op.domain.num_rows, 1)))
    if op.domain.sums_rows:
        return rows_of_expert(op, plan)
    return 1.0


def rows_of_expert(op: tf.TileOp, plan: tf.RoutePlan | None) -> float:
    """Returns rows that a task of an operation over experts sums if experts share the rows evenly.

    If copies were planned for loads, these are the rows of the operation's expert with the most.
    """
    if plan is None:
        return float(op.domain.height)
    if plan.placement is None:
        return plan.expected_rows / plan.num_local_experts
    first = op.domain.first_expert
    return plan.expected_rows * float(plan.placement.expected_shares[:, first:first + op.domain.num_rows].max())
