"""Estimates the time of a rank with tiles of some size, before there are tasks, queues or a routing."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from hpmoe.costs.footprint import DENSE, STREAM, WEIGHT
from hpmoe.costs.put_sizes import likely_puts
from hpmoe.costs.start import pass_us
from hpmoe.costs.task_costs import rows_of_expert
from hpmoe.costs.work import Work, core_us, link_rate, rows_of_token
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.routing.route_plan import relays_of
from hpmoe.support.known import known
from hpmoe.tiling.next_ops import next_ops

APART = 1.25  # longest tasks by which the last ones of static queues end apart
WAITS = 1.08  # times as long as its bytes a link between nodes takes where experts are drawn: 1.07 to 1.18 simulated


class Demand(NamedTuple):
    """What an operation asks of a rank.

    Attributes:
        busy: microseconds of workers, all its tasks together.
        longest: of these, of one task.
        latency: until what the longest has made is seen.
        link: microseconds of the rank's link.
        l2, memory: bytes that pass L2, and those of them that memory is sure to be asked for.
        returned: microseconds until a block of what copies of experts return has come.
        hop: of the rank's link, while which it does nothing else: of tokens that come once, all have come before most
            experts can begin, and all of theirs are done before any goes back.
    """

    busy: float = 0.0
    longest: float = 0.0
    latency: float = 0.0
    link: float = 0.0
    l2: float = 0.0
    memory: float = 0.0
    returned: float = 0.0
    hop: float = 0.0


def estimated_us(flow: tf.Taskflow, machine: Machine, waits: float = 1.0) -> tuple[float, float]:
    """Microseconds of a rank where experts share the rows evenly, by what takes longest; and by its matrix workers alone.

    These take what their tasks do, or what passes L2 and memory, and more than the longest task, as the last ones do not end
    together. Vector workers and links take what is computed and moved, and the longest task; and the longest path has one
    task of each operation. What copies return, block by block, comes after, and rows of tokens sent once before and after.

    Args:
        flow: of `tile_operations`.
        waits: times as long as its bytes a link between nodes takes; `WAITS` where experts are drawn.
    """
    work = Work(flow, machine)
    demands = [_demand(flow, i, work, machine, waits) for i in range(len(flow.ops))]
    is_matrix = [machine.unified or op.unit == "aic" for op in flow.ops]
    matrix = list(itertools.compress(demands, is_matrix))
    vector = [demand for demand, other in zip(demands, is_matrix, strict=True) if not other]
    shared = max(sum(s.memory for s in demands) / machine.memory.bytes_per_us,
                 sum(s.l2 for s in demands) / machine.l2.bytes_per_us)
    link, hops = sum(s.link for s in demands), sum(s.hop for s in demands)
    returned = max((s.returned for s in demands), default=0.0)
    of_matrix = max(_share(matrix, machine, "aic"), shared) + APART * max((s.longest for s in matrix), default=0.0)
    of_vector = max(_share(vector, machine, "aiv"), link) + max((s.longest for s in vector), default=0.0)
    return max(of_matrix, of_vector, _longest_path(flow, demands)) + hops + returned, of_matrix + returned


def _share(demands: list[Demand], machine: Machine, unit: str) -> float:
    """Microseconds of each worker of a unit."""
    return sum(s.busy for s in demands) / len(machine.queues_of(unit))


def _longest_path(flow: tf.Taskflow, demands: list[Demand]) -> float:
    """Microseconds until one task of each operation on a path was seen."""
    us, then = [0.0] * len(demands), next_ops(flow)
    for i in reversed(range(len(demands))):
        us[i] = demands[i].latency + max((us[j] for j in then[i]), default=0.0)
    return max(us, default=0.0)


def _demand(flow: tf.Taskflow, index: int, work: Work, machine: Machine, waits: float) -> Demand:
    op = flow.ops[index]
    if op.primitive.moves_copies:
        return Demand()
    return _exchange(flow, op, machine, waits) if op.primitive.is_blocking else _tasks(flow, index, work, machine)


def _exchange(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, waits: float) -> Demand:
    """As puts of the size that suits the machine, each of what a slot is likely to have of one rank."""
    plan, sent, ep_size = flow.routes[op.domain.route], flow.buffers[op.operands[0].buffer], flow.ep_size
    rows = min(flow.tile_rows, plan.likely_rows / (plan.num_local_experts * ep_size))
    if not rows:
        return Demand()
    cols = likely_puts(flow, op, machine)[1] or sent.cols
    if op.is_relayed:  # rows go to the ranks of the node alone
        ep_size = flow.routes[relays_of(flow.routes, op.domain.route)].node_size
    of_node = min(ep_size, machine.link.node_size)
    far = waits * (ep_size - of_node) / machine.link.node_bytes_per_us
    link = max((of_node - 1) / machine.link.rate(ep_size), far)
    rate = link_rate(machine, ep_size) if ep_size > 1 else machine.vector.copy_bytes_per_us / 2  # read and written
    us = machine.sync.task_us + rows * sent.row_bytes * cols / sent.cols / rate
    remote = max(1, ep_size - 1) / ep_size
    sync = machine.sync
    seen = sync.signal_us + sync.poll_us + (sync.remote_us if of_node == ep_size else sync.node_remote_us)
    busy = (us + machine.sync.signal_us) * plan.likely_rows / rows * -(-sent.cols // cols) * remote
    if plan.once_of >= 0:
        busy *= (machine.sync.task_us + machine.sync.signal_us) / (us + machine.sync.signal_us)  # the hop has what rows take
        return Demand(busy, us, us + seen, hop=_hop(flow, op, machine))
    return Demand(busy, us, us + seen, link * plan.likely_rows / ep_size * sent.row_bytes)


def _hop(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> float:
    """Microseconds of a rank's link for the rows of tokens that go once to each rank, or node, with experts for them."""
    plan = flow.routes[op.domain.route]
    of, step = flow.routes[plan.once_of], plan.node_size or 1
    there = of.top_k / rows_of_token(of, plan) * plan.num_tokens / (flow.ep_size // step)  # rows for each rank, or node
    ranks = range(0, flow.ep_size, step)
    near = sum(r < machine.link.node_size for r in ranks) - 1
    far = 0 if op.is_relayed else len(ranks) - near - 1
    us = max(near / machine.link.rate(flow.ep_size), far / machine.link.node_bytes_per_us)
    return there * us * flow.buffers[op.operands[0].buffer].row_bytes


def _tasks(flow: tf.Taskflow, index: int, work: Work, machine: Machine) -> Demand:
    op = flow.ops[index]
    units, experts = _units(flow, op)
    num_units = sum(count for _, count in units)
    longest = l2 = memory = returned = 0.0
    num_empty = flow.routes[op.domain.route].num_slots - num_units if op.domain.is_slots else 0
    busy = num_empty * op.grid[2] * pass_us(machine)
    blocks, tiles = ((0, 1 - 1 / op.domain.blocks), (2, 1 / op.domain.blocks)), ((0, op.grid[2] - 1), (1, 1))
    for (block, share), (tile, times) in itertools.product(blocks, tiles):
        row, times = work.table[index, block + tile], share * times
        if not times:
            continue
        footprints = row["footprints"][:row["num_footprints"]]
        fixed, of_row = footprints["fixed"], float(footprints["row"].sum())
        for rows, count in units:
            passed = float(fixed.sum()) + rows * of_row
            us = max(machine.sync.task_us + float(core_us(row, rows)), passed / machine.l2.worker_bytes_per_us)
            us += machine.sync.wait_us + machine.sync.signal_us
            busy, longest, l2 = busy + times * count * us, max(longest, us), l2 + times * count * passed
        memory += times * float(fixed[footprints["part"] == WEIGHT][:1].sum() * experts
                                + fixed[footprints["part"] == DENSE][:1].sum()
                                + fixed[footprints["part"] == STREAM].sum() * num_units)
    if op.primitive.makes_blocks and op.domain.first > 0:
        returned = op.params.block * flow.buffers[op.operands[0].buffer].row_bytes / link_rate(machine, flow.ep_size)
    return Demand(busy, longest, longest + machine.sync.poll_us, 0.0, l2, memory, returned)


def _units(flow: tf.Taskflow, op: tf.TileOp) -> tuple[list[tuple[float, int]], int]:
    """(rows of a unit, how many units have as many), and how many experts they are of."""
    plan = flow.routes[op.domain.route] if op.domain.route >= 0 else None
    experts = plan.num_local_experts if plan else 1
    if op.domain.sums_rows:
        return [(rows_of_expert(op, plan), op.domain.size)], experts
    rows = known(plan).likely_rows / experts if op.domain.is_slots else float(max(1, op.domain.num_rows))
    times = experts if op.domain.is_slots else 1
    whole, rest = divmod(rows, flow.tile_rows)
    return [(n, count) for n, count in ((float(flow.tile_rows), int(whole) * times), (rest, times)) if n and count], times
