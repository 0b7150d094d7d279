"""Orders the tasks of an operation: by slots, in the order in which their rows arrive."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.likely_slots import LikelySlots, grids_of, workers_sending
from hpmoe.scheduling.op_order import gradients_last, op_order
from hpmoe.scheduling.rules import rule
from hpmoe.scheduling.spread_slots import spread_parts, turns_of
from hpmoe.scheduling.vector_workers import num_computing
from hpmoe.support.known import known
from hpmoe.tile_ops.params import Way

L2_SHARE = 0.5  # of what a rank's L2 holds, for rows that are read once for each part of columns
NEARLY_EMPTY = 0.1  # of a slot, with which most experts do not reach it where loads are not quite even

Finish = Callable[[LikelySlots], np.ndarray]


def queue_order(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> np.ndarray:
    """For each task a number, the least of what is to be done first, [num_tasks] int64.

    Operation after operation as in `op_order`, and in each slot after slot; then what the rules of this file say.

    Args:
        costs: microseconds of each task, [num_tasks].
    """
    order = np.arange(flow.num_tasks, dtype=np.int64)
    grids, parts = [], spread_parts(flow, machine)
    for op, tasks, (units, peers, cols) in grids_of(flow):
        grids.append(tasks)
        if parts and op.domain.is_slots and (op.unit == "aic" or op.primitive.is_put):
            _take_turns(order[tasks], turns_of(LikelySlots(flow, op.domain.route), parts))
        elif op.domain.is_slots and op.unit == "aic":
            slots, width = LikelySlots(flow, op.domain.route), _returned_cols(flow, op)
            expert = slots.expert.astype(np.int64)[:, None]
            place = (slots.place - np.arange(units) + slots.round_the_nodes(machine.link.node_size))[:, None]
            if width:
                part = np.arange(cols) * op.tile_cols // width
                run = (_chunks(flow, op, machine, slots)[:, None] * cols + part) * units + expert
            else:
                holds = _weight_bytes(flow, op) <= slots.num_experts * machine.l2.bytes
                run = expert * units + (_first_few if holds else _groups_of_few)(slots, place, round(machine.num_aic ** 0.5))
            order[tasks].reshape(units, peers, cols)[:] = ((run * cols + np.arange(cols)) * units + place)[:, None, :]
        elif op.domain.is_slots and flow.routes[op.domain.route].kind.is_of_tokens:
            _take_turns(order[tasks], _round_the_ranks(units, flow.ep_size))
        elif op.primitive.is_put:
            _take_turns(order[tasks], LikelySlots(flow, op.domain.route).round_the_nodes(machine.link.node_size))
    first, ranked = 0, gradients_last(flow, op_order(flow, [costs[tasks].max(initial=0.0) for tasks in grids]))
    for i in ranked:
        mine = order[grids[i]]  # a view
        if len(mine):
            mine += first - mine.min()
            first = int(mine.max()) + 1
    _puts_together(flow, machine.link.node_size, grids, order, parts)
    if not machine.unified:
        _order_way_back(flow, machine, costs, ranked, order, parts)
    _copies_in_turn(flow, grids, order)
    return order


def _take_turns(tasks: np.ndarray, turn: np.ndarray) -> None:
    """Numbers an operation's tasks by the turn of their slot, [num_slots], and in a slot one after the other."""
    of_slot = len(tasks) // max(1, len(turn))
    tasks.reshape(len(turn), of_slot)[:] = turn[:, None] * of_slot + np.arange(of_slot)


@rule("first_few", otherwise=lambda slots, place, few: place)
def _first_few(slots: LikelySlots, place: np.ndarray, few: int) -> np.ndarray:
    """Has the first few slots of an expert be multiplied column after column. So matrix workers ask memory for a few columns
    of its weight at a time, and find the rest of what they need in L2. Only of slots that have rows where experts are even,
    and of the first expert those that wait for no other rank. A number for each slot of an expert, ascending."""
    own = max(1, int(slots.per_expert / slots.ep_size))
    filled = math.ceil(slots.likely_rows / (slots.num_experts * slots.tile_rows) - NEARLY_EMPTY)
    is_likely = (slots.round == 0) & ~slots.is_spare
    first = np.where(slots.expert == 0, min(few, own), few)
    return np.where(is_likely[:, None] & (place < np.minimum(first, filled)[:, None]), 0, place)


@rule("groups_of_few", otherwise=lambda slots, place, few: place)
def _groups_of_few(slots: LikelySlots, place: np.ndarray, few: int) -> np.ndarray:
    """Has every few slots of an expert be multiplied column after column where L2 does not hold its weight. All of them read
    that anew. A number for each slot of an expert, ascending."""
    per_expert = math.ceil(slots.per_expert)
    return place * math.ceil(per_expert / few) // per_expert


@rule("puts_together", otherwise=lambda flow, node_size, grids, order, parts: None)
def _puts_together(flow: tf.Taskflow, node_size: int, grids: Sequence[slice], order: np.ndarray, parts: int) -> None:
    """Has all that is sent with the rows of a slot go out together; else weights of rows would come after the last rows."""
    for route, plan in enumerate(flow.routes):
        puts = [tasks for op, tasks in zip(flow.ops, grids, strict=True)
                if op.primitive.sends_rows and op.domain.route == route and op.domain.size]
        first = min([int(order[tasks].min()) for tasks in puts], default=0)
        for tasks in puts if len(puts) > 1 and not plan.kind.is_of_tokens else ():
            slots = LikelySlots(flow, route)
            turn = turns_of(slots, parts) if parts else slots.round_the_nodes(node_size)
            order[tasks].reshape(plan.num_slots, -1)[:] = first + turn[:, None]


def _order_way_back(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, ranked: Sequence[int], order: np.ndarray,
                    parts: int) -> None:
    """Has matrix workers finish slots in turn: in the order of `turns_of` in `parts` if there are any, else half by half if
    rows take long to go back."""
    sent_back = {flow.buffers[op.operands[1].buffer].storage for op in flow.ops if op.primitive.puts_back}
    matrix = [i for i in ranked if flow.ops[i].unit == "aic"]
    made = [n for n, i in enumerate(matrix) if flow.buffers[flow.ops[i].operands[0].buffer].storage in sent_back]
    if not made:
        return
    if parts:
        _finish_in_runs(flow, matrix[:made[-1] + 1], matrix[made[-1] + 1:], order, lambda slots: turns_of(slots, parts))
    elif _is_way_back_long(flow, machine, costs, matrix[made[-1]:]):
        _halve(flow, machine.num_aic, matrix[:made[-1] + 1], matrix[made[-1] + 1:], order)


def _is_way_back_long(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, meanwhile: Sequence[int]) -> bool:
    """Whether putting rows back takes longer than the matrix operations that run meanwhile; not what relays get back, who
    pass nothing on before all has come."""
    if any(op.is_relayed for op in flow.ops if op.primitive.puts_back):
        return False
    back, grids = 0.0, [tasks for _, tasks, _ in grids_of(flow)]
    sending = workers_sending(flow, machine, machine.num_aiv - num_computing(flow, machine, costs))
    for op, tasks, shape in grids_of(flow):
        if op.primitive.is_put and op.primitive.way is Way.BACK:
            is_likely = ~LikelySlots(flow, op.domain.route).is_spare
            back += costs[tasks].reshape(shape)[is_likely].sum() / sending
    us = (max(costs[grids[i]].sum() / machine.num_aic, _weight_bytes(flow, flow.ops[i]) / machine.memory.bytes_per_us)
          for i in meanwhile)
    return sum(us) < back


@rule("halves", otherwise=lambda flow, num_aic, matrix, later, order: None)
def _halve(flow: tf.Taskflow, num_aic: int, matrix: Sequence[int], later: Sequence[int], order: np.ndarray) -> None:
    """Has matrix workers finish half of the slots, then half of the rest, and so on, where the way back takes longer than
    what is multiplied meanwhile. Links are idle before it, so rows go back while others are made, and few are left when the
    last are. The last run has a task of each operation for every matrix worker: none waits for what is computed between."""
    grids = list(grids_of(flow))
    least = math.ceil(num_aic / min(grids[i][2][2] for i in matrix))
    _finish_in_runs(flow, matrix, later, order, lambda slots: half_by_half(slots, least))


def half_by_half(slots: LikelySlots, least: int) -> np.ndarray:
    """Half of the likely slots are of the first run, half of the rest of the second, and so on while `least` are left."""
    likely = max(1, slots.num_likely)
    runs = 1 + int(math.log2(max(1.0, likely / least)))
    left = 1 - np.minimum(np.arange(len(slots.place)), likely - 1) / likely
    return np.minimum(-np.log2(left), runs - 1).astype(np.int64)


def _finish_in_runs(flow: tf.Taskflow, matrix: Sequence[int], later: Sequence[int], order: np.ndarray,
                    finish: Finish) -> None:
    """Has the matrix operations of a run's slots come before those of the next run's, and `later` ones after all."""
    grids, total = list(grids_of(flow)), int(order.max(initial=0)) + 1
    for i in (*matrix, *later):
        op, tasks, shape = grids[i]
        run = np.full(shape[0], shape[0] + flow.num_slots if i in later else 0)
        if op.domain.is_slots:
            run = finish(LikelySlots(flow, op.domain.route))
        order[tasks].reshape(shape)[:] += run[:, None, None] * total


def _weight_bytes(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Of the weights that an operation multiplies by, of all experts."""
    weight = flow.buffers[op.operands[2].buffer]
    return known(weight.num_rows) * weight.row_bytes if op.primitive.operand(2).is_weight else 0


@rule("copies_in_turn", otherwise=lambda flow, grids, order: None)
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


@rule("parts_of_columns", otherwise=lambda flow, op: 0)
def _returned_cols(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Has rows that go back in parts of some columns be made part after part, so that the first can be summed while the last
    are made. The columns of a part, in whole tiles; 0 where rows go back whole."""
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
    expert, held = slots.expert - slots.is_spare, max(machine.l2.bytes * L2_SHARE, of_slot)
    experts, parts = int(held / of_expert), math.ceil(of_expert / held)
    if experts:
        return (expert + -slots.num_experts % experts) // experts
    part = np.minimum(slots.place * parts // math.ceil(slots.per_expert), parts - 1)
    return expert * parts + np.where(slots.is_spare, parts - 1, part)


@rule("round_the_ranks", otherwise=lambda num_slots, ep_size: np.arange(num_slots))
def _round_the_ranks(num_slots: int, ep_size: int) -> np.ndarray:
    """Has slots of rows that are sent once, or of sums that come back, alternate between ranks. Else only the links to one
    would be busy at a time, and with unequal links the ranks get out of step. The turn of each slot."""
    slot, of_rank = np.arange(num_slots), max(1, -(-num_slots // ep_size))
    return np.argsort(np.argsort(slot % of_rank * ep_size + slot // of_rank))
