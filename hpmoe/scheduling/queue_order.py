"""Orders the tasks of an operation: by slots, in the order in which their rows arrive."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.likely_slots import LikelySlots, grids_of, workers_sending
from hpmoe.scheduling.op_order import op_order
from hpmoe.scheduling.vector_workers import num_computing
from hpmoe.support.known import known
from hpmoe.tile_ops.params import Way

L2_SHARE = 0.5  # of what a rank's L2 holds, for rows that are read once for each part of columns
LATE = 2  # parts of columns, until what other ranks put is likely to have come
SIGNALLED = 1.1  # time to put rows back with their signals, over that without
MOST_RUNS = 4  # in which the rows of experts are finished


def queue_order(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> np.ndarray:
    """For each task a number, the least of what is to be done first, [num_tasks] int64.

    Operation after operation as in `op_order`, and in each slot after slot; of the first few slots of an expert column after
    column, so that the matrix workers ask memory for a few columns of its weight at a time, and find the rest of what they
    need in L2; and so of every few slots where L2 does not hold the weight. What goes back in parts of some columns is made
    part after part, so that the first can be summed while the last are made. Weights of copies go out just before the first
    rows that they multiply, and what else is sent with rows goes out with them, slot by slot.

    Args:
        costs: microseconds of each task, [num_tasks].
    """
    order = np.arange(flow.num_tasks, dtype=np.int64)
    few, grids = round(machine.num_aic ** 0.5), []
    for op, tasks, (units, peers, cols) in grids_of(flow):
        grids.append(tasks)
        if op.domain.is_slots and op.unit == "aic":
            slots, width = LikelySlots(flow, op.domain.route), _returned_cols(flow, op)
            expert = slots.expert.astype(np.int64)[:, None]
            place = (slots.place - np.arange(units) + slots.round_the_nodes(machine.node_size))[:, None]
            if width:
                part = np.arange(cols) * op.tile_cols // width
                run = (_chunks(flow, op, machine, slots)[:, None] * cols + part) * units + expert
            else:
                group = _first_few if _weight_bytes(flow, op) <= slots.num_experts * machine.l2_bytes else _groups_of_few
                run = expert * units + group(slots, place, few)
            order[tasks].reshape(units, peers, cols)[:] = ((run * cols + np.arange(cols)) * units + place)[:, None, :]
        elif op.domain.is_slots and flow.routes[op.domain.route].once_of >= 0:
            turn = _round_the_ranks(units, flow.ep_size)
            order[tasks].reshape(units, peers * cols)[:] = turn[:, None] * peers * cols + np.arange(peers * cols)
        elif op.primitive.is_put:
            turn = LikelySlots(flow, op.domain.route).round_the_nodes(machine.node_size)
            order[tasks].reshape(units, peers * cols)[:] = turn[:, None] * peers * cols + np.arange(peers * cols)
    first, ranked = 0, op_order(flow, [costs[tasks].max(initial=0.0) for tasks in grids])
    for i in ranked:
        mine = order[grids[i]]  # a view
        if len(mine):
            mine += first - mine.min()
            first = int(mine.max()) + 1
    _puts_together(flow, machine.node_size, grids, order)
    if not machine.unified:
        _order_way_back(flow, machine, costs, ranked, order)
    _copies_in_turn(flow, grids, order)
    round_after_round(flow, order)
    return order


def round_after_round(flow: tf.Taskflow, order: np.ndarray) -> None:
    """Has matrix workers end a round before they begin the next: most ranks have rows for the first one alone."""
    if not any(plan.is_mostly_empty for plan in flow.routes):
        return
    total = int(order.max(initial=0)) + 1
    if total * flow.num_slots > np.iinfo(np.int64).max:
        order[:], total = np.unique(order, return_inverse=True)[1], flow.num_tasks
    for op, tasks, shape in grids_of(flow):
        if op.domain.is_slots and op.unit == "aic":
            order[tasks].reshape(shape)[:] += LikelySlots(flow, op.domain.route).round[:, None, None] * total


def _first_few(slots: LikelySlots, place: np.ndarray, few: int) -> np.ndarray:
    """The same number for the first few slots of each expert, of the first expert for those alone that wait for no other
    rank; then ascending."""
    own = max(1, int(slots.per_expert / slots.ep_size))
    return np.where(place < np.where(slots.expert[:, None] == 0, min(few, own), few), 0, place)


def _groups_of_few(slots: LikelySlots, place: np.ndarray, few: int) -> np.ndarray:
    """A number for each few slots of an expert, ascending: all of them read a weight anew that L2 does not hold."""
    per_expert = math.ceil(slots.per_expert)
    return place * math.ceil(per_expert / few) // per_expert


def _puts_together(flow: tf.Taskflow, node_size: int, grids: Sequence[slice], order: np.ndarray) -> None:
    """Has all that is sent with the rows of a slot go out together; else weights of rows would come after the last rows."""
    for route, plan in enumerate(flow.routes):
        puts = [tasks for op, tasks in zip(flow.ops, grids, strict=True)
                if op.primitive.sends_rows and op.domain.route == route and op.domain.size]
        first = min([int(order[tasks].min()) for tasks in puts], default=0)
        for tasks in puts if len(puts) > 1 and plan.once_of < 0 else ():
            turn = LikelySlots(flow, route).round_the_nodes(node_size)
            order[tasks].reshape(plan.num_slots, -1)[:] = first + turn[:, None]


def _order_way_back(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, ranked: Sequence[int],
                    order: np.ndarray) -> None:
    """Where rows take long to go back, has them go back as made, or experts finished half by half."""
    moved = dict.fromkeys(Way, 0.0)
    sending = workers_sending(flow, machine, machine.num_aiv - num_computing(flow, machine, costs))
    grids = [tasks for _, tasks, _ in grids_of(flow)]
    for op, tasks, shape in grids_of(flow):
        if op.primitive.is_put:
            is_likely = ~LikelySlots(flow, op.domain.route).is_spare
            moved[op.primitive.way] += costs[tasks].reshape(shape)[is_likely].sum() / sending
    sent_back = {flow.buffers[op.operands[1].buffer].storage for op in flow.ops if op.primitive.puts_back}
    matrix = [i for i in ranked if flow.ops[i].unit == "aic"]
    made = [n for n, i in enumerate(matrix) if flow.buffers[flow.ops[i].operands[0].buffer].storage in sent_back]
    us = [max(costs[grids[i]].sum() / machine.num_aic, _weight_bytes(flow, flow.ops[i]) / machine.memory_bytes_per_us)
          for i in matrix]
    if made and sum(us) <= moved[Way.OUT]:
        _back_as_made(flow, flow.ops[matrix[made[-1]]], machine, order)
    elif made and sum(us[made[-1]:]) < SIGNALLED * moved[Way.BACK]:
        _halve(flow, matrix[:made[-1] + 1], matrix[made[-1] + 1:], order)


def _halve(flow: tf.Taskflow, matrix: Sequence[int], later: Sequence[int], order: np.ndarray) -> None:
    """Where the way back is longer than what is multiplied meanwhile, and links are idle before it, has matrix workers
    finish the rows of half of the experts, then those of half of the rest, and so on: rows go back while others are made,
    and few are left when the last are."""
    grids, total = list(grids_of(flow)), int(order.max(initial=0)) + 1
    for i in (*matrix, *later):
        op, tasks, (units, _, _) = grids[i]
        run = np.full(units, MOST_RUNS if i in later else 0)
        if op.domain.is_slots:
            slots = LikelySlots(flow, op.domain.route)
            left = 1 - np.minimum(slots.expert, slots.num_experts - 1) / slots.num_experts
            run = np.minimum(-np.log2(left), MOST_RUNS - 1).astype(np.int64)
        order[tasks].reshape(units, -1)[:] += run[:, None] * total


def _back_as_made(flow: tf.Taskflow, made: tf.TileOp, machine: Machine, order: np.ndarray) -> None:
    """Where matmuls keep up with the rows that come, has all rows go back in the parts in which they are made: the first
    columns of all slots come home before the last ones of any, and are summed while these are under way."""
    for op, tasks, (units, peers, cols) in grids_of(flow):
        if op.primitive.puts_back and op.operands[1].buffer == made.operands[0].buffer:
            chunk = _chunks(flow, made, machine, LikelySlots(flow, op.domain.route))
            grid = order[tasks].reshape(units, peers, cols)  # a view
            grid += (chunk[:, None, None] * cols + np.arange(cols)) * (grid.max() + 1 - grid.min())


def _weight_bytes(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Of the weights that an operation multiplies by, of all experts."""
    weight = flow.buffers[op.operands[2].buffer]
    return known(weight.num_rows) * weight.row_bytes if op.primitive.operand(2).is_weight else 0


def _copies_in_turn(flow: tf.Taskflow, grids: Sequence[slice], order: np.ndarray) -> None:
    """Has weights that copies multiply received rows by put just before the first of those rows."""
    storage = [b.storage for b in flow.buffers]
    read = [{storage[a.buffer] for a in op.inputs} for op in flow.ops]
    for op, copies in zip(flow.ops, grids, strict=True):
        for put, rows in zip(flow.ops, grids, strict=True) if op.primitive.moves_copies and not op.primitive.is_back else ():
            multiplied = {storage[a.buffer] for a in (*op.outputs, *put.outputs)}
            if put.primitive.sends_rows and put.domain.size and any(multiplied <= r for r in read):
                plan = flow.routes[op.domain.route]
                slot = min(int(known(plan.placement).own_share * plan.max_rows / flow.tile_rows), put.domain.size - 1)
                order[copies] = order[rows].reshape(put.domain.size, -1)[slot].min()


def _returned_cols(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Columns of the parts in which rows that an operation makes are put back, in whole tiles; 0 where they are whole."""
    made = flow.buffers[op.operands[0].buffer].storage
    parts = [put.tile_cols for put in flow.ops if put.primitive.puts_back and put.tile_cols < put.cols
             and flow.buffers[put.operands[1].buffer].storage == made]
    return max([*parts, op.tile_cols]) if parts else 0


def _chunks(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, slots: LikelySlots) -> np.ndarray:
    """A number for each slot, ascending: slots of one are of experts, or of a part of one, whose rows L2 holds while other
    things pass."""
    read = flow.buffers[op.operands[1].buffer]
    of_slot = flow.tile_rows * read.row_bytes
    of_expert = slots.per_expert * of_slot
    expert, held = slots.expert - slots.is_spare, max(machine.l2_bytes * L2_SHARE, of_slot)
    experts, parts = int(held / of_expert), math.ceil(of_expert / held)
    if experts:
        return (expert + -slots.num_experts % experts) // experts
    part = np.minimum(slots.place * parts // math.ceil(slots.per_expert), parts - 1)
    return expert * parts + np.where(slots.is_spare, parts - 1, part)


def _round_the_ranks(num_slots: int, ep_size: int) -> np.ndarray:
    """The turn of each slot where those of one rank, that sends to them or gets their sums back, do not come one after the
    other: only the links to it would be busy at a time, and with unequal links the ranks get out of step."""
    slot, of_rank = np.arange(num_slots), max(1, -(-num_slots // ep_size))
    return np.argsort(np.argsort(slot % of_rank * ep_size + slot // of_rank))


def late_sums(flow: tf.Taskflow) -> tf.Taskflow:
    """The taskflow with waits of sums of entries for LATE parts that come back after theirs, to be planned with.

    What other ranks put is later than a plan knows. A worker that waits for it has its own puts behind it, for which others
    wait in turn.
    """
    blocks = [b for b in flow.blocks if b.columns and (
        (b.unit == "tile" and b.dynamic) or flow.events["extent"][b.first] == tf.RELAYED)]
    if not blocks:
        return flow
    later = np.arange(len(flow.events))
    for name in dict.fromkeys(b.name for b in blocks):
        parts = [b for b in blocks if b.name == name]
        for part, other in zip(parts, parts[LATE:] + parts[-1:] * LATE, strict=False):
            later[part.first:part.first + part.size] = np.arange(other.first, other.first + part.size)
    more = flow.waits[later[flow.waits["event"]] != flow.waits["event"]]
    if not len(more):
        return flow
    more["event"] = later[more["event"]]
    waits = np.concatenate([flow.waits, more])
    return flow.replace(waits=waits[np.argsort(tf.row_keys(waits), kind="stable")])
