"""Scores tasks for list scheduling: a free worker takes the ready task with the least score."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.expected_slots import ExpectedSlots, grids_of
from hpmoe.scheduling.terms import term
from hpmoe.support.known import known
from hpmoe.tiling.lifetimes import next_ops

UNEVEN = 1.25  # rows of the fullest rank over those that a rank sends, from which loads are uneven
FILLED = 1.25  # slots that each source fills, from which rows are many
LINK_US = 16.0  # that a link takes for the rows of the fullest rank, from which an order of tasks matters
MOST_PARTS = 2  # of the slots, each spread by itself
GOLDEN = (5**0.5 - 1) / 2


def is_scored(flow: tf.Taskflow, machine: Machine) -> bool:
    """Returns whether each row is sent straight to its rank, rows occupy a link for some time and, over nodes, are many."""
    if any(plan.kind.is_of_tokens or plan.placement for plan in flow.routes) or any(op.is_relayed for op in flow.ops):
        return False
    received = [flow.routes[op.domain.route].expected_rows * flow.buffers[op.operands[0].buffer].row_bytes
                for op in flow.ops if op.primitive.sends_rows and op.domain.size]
    if received and flow.ep_size > 1 and sum(received) < LINK_US * machine.link.rate(flow.ep_size):
        return False
    return flow.ep_size <= machine.link.node_size or has_many_rows(flow, machine)


def has_many_rows(flow: tf.Taskflow, machine: Machine) -> bool:
    """Returns whether each source fills slots of its own, and slots occupy all matrix workers."""
    return all(plan.expected_rows >= max(FILLED * plan.ep_size, machine.num_aic) * plan.tile_rows for plan in flow.routes)


def score(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Returns the score of each task, [num_tasks] int64, a tuple packed into one number.

    The tuple of a matrix task is: the turn of its slot if `spread_slots` acts, the rank of its operation, the group of its
    slot (`groups_of_few`), its column, and the turn of its slot. The tuple of another task is: the rank of its operation
    (`puts_together`), the turn of its slot, the peer and the column.
    """
    grids, rank = list(grids_of(flow)), _ranks(flow)
    parts, last = spread_slots(flow, machine), _last_sent_back(flow)
    turns = [spread_out(plan.num_slots, parts) if parts else np.arange(plan.num_slots) for plan in flow.routes]
    size = max((units * max(units, peers) * cols for _, _, (units, peers, cols) in grids), default=1)
    out = np.empty(flow.num_tasks, np.int64)
    for i, (op, tasks, (units, peers, cols)) in enumerate(grids):
        turn = turns[op.domain.route] if op.domain.is_slots else np.arange(units)
        inside = turn[:, None] * (peers * cols) + np.arange(peers * cols)
        run = np.zeros(units, np.int64)
        if op.unit == "aic":
            if op.domain.is_slots:
                inside = (_groups(flow, machine, op, turn)[:, None] * cols + np.arange(cols)) * units + turn[:, None]
            if parts and rank[i] > last:
                run += flow.num_slots
            elif parts and op.domain.is_slots:
                run = turn
        out[tasks].reshape(units, peers * cols)[:] = (run[:, None] * rank.max() + rank[i]) * size + inside
    _puts_together(flow, rank * size, turns, out)
    return out


def _ranks(flow: tf.Taskflow) -> np.ndarray:
    """Returns the rank of each operation, [num_ops]: its place. Weight gradients that nothing reads are last."""
    after = next_ops(flow)
    waits = [op.primitive.makes_blocks and not after[i] for i, op in enumerate(flow.ops)]
    return np.arange(len(flow.ops)) + len(flow.ops) * np.array(waits, np.int64)


def _last_sent_back(flow: tf.Taskflow) -> int:
    """Returns the index of the last matrix operation whose rows are sent back, or -1."""
    storage = [b.storage for b in flow.buffers]
    sent_back = {storage[op.operands[1].buffer] for op in flow.ops if op.primitive.puts_back}
    made = [i for i, op in enumerate(flow.ops) if op.unit == "aic" and storage[op.operands[0].buffer] in sent_back]
    return max(made, default=-1)


@term("spread_slots", otherwise=lambda flow, machine: 0)
def spread_slots(flow: tf.Taskflow, machine: Machine) -> int:
    """Decides if slots are interleaved over source ranks, for uneven loads or rows across nodes, to keep links busy.

    Returns:
        The number of parts in which slots are interleaved, so that L2 holds the weights of a part. 0 if the term does not
        act: sources share slots, most slots are expected to be empty, or more than MOST_PARTS parts are needed.
    """
    read = {op.operands[2].buffer: _weight_bytes(flow, op)
            for op in flow.ops if op.domain.is_slots and op.primitive.is_matmul}
    parts = max(1, math.ceil(sum(read.values()) / max(1.0, machine.l2.bytes)))
    most = min(MOST_PARTS, min((plan.num_local_experts for plan in flow.routes), default=0))
    if parts > most or not has_many_rows(flow, machine) or any(plan.is_mostly_empty for plan in flow.routes):
        return 0
    return parts if flow.ep_size > machine.link.node_size or is_uneven(flow) else 0


def is_uneven(flow: tf.Taskflow) -> bool:
    """Returns whether some rank expects many more rows than it sends."""
    return any(plan.ep_size > 2 and rows_over_sent(plan) > UNEVEN for plan in flow.routes)


def rows_over_sent(plan: tf.RoutePlan) -> float:
    """Returns the expected rows of the fullest rank, divided by the rows that one rank sends."""
    return plan.expected_rows / max(1, plan.num_tokens * plan.top_k)


def spread_out(num_slots: int, parts: int = 1) -> np.ndarray:
    """Returns the turn of each slot, [num_slots]: part after part, and in each by the golden ratio, so that each stretch of
    slots has its share of any beginning.

    Example:
        >>> spread_out(8).tolist()
        [0, 5, 2, 7, 4, 1, 6, 3]
        >>> spread_out(8, parts=2).tolist()
        [0, 2, 1, 3, 6, 4, 7, 5]
    """
    slot = np.arange(num_slots)
    return np.argsort(np.lexsort((slot * GOLDEN % 1, slot * parts // max(1, num_slots))))


@term("groups_of_few", otherwise=lambda flow, machine, op, turn: turn)
def _groups(flow: tf.Taskflow, machine: Machine, op: tf.TileOp, turn: np.ndarray) -> np.ndarray:
    """Returns each slot's group, [num_slots], whose slots share column tiles of a weight larger than L2."""
    slots = ExpectedSlots(flow, op.domain.route)
    if _weight_bytes(flow, op) <= slots.num_experts * machine.l2.bytes:
        return turn
    of_expert, few = math.ceil(slots.per_expert), round(machine.num_aic ** 0.5)
    place = turn - np.ceil(slots.expert * slots.per_expert).astype(int)
    return slots.expert * of_expert + place * math.ceil(of_expert / few) // of_expert


def _weight_bytes(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Returns the bytes of an operation's weights, of all experts."""
    weight = flow.buffers[op.operands[2].buffer]
    return known(weight.num_rows) * weight.row_bytes if op.primitive.operand(2).is_weight else 0


@term("puts_together", otherwise=lambda flow, first, turns, out: None)
def _puts_together(flow: tf.Taskflow, first: np.ndarray, turns: list[np.ndarray], out: np.ndarray) -> None:
    """Orders the puts that a slot needs, of rows and of gradients, after each other, since it waits for the last one.

    Args:
        first: the least score of each operation, [num_ops].
        out: the scores, which this function changes.
    """
    for (op, tasks, _), least in zip(grids_of(flow), first, strict=True):
        if op.primitive.sends_rows and op.domain.size:
            least = min(first[i] for i, other in enumerate(flow.ops)
                        if other.primitive.sends_rows and other.domain.route == op.domain.route and other.domain.size)
            turn = turns[op.domain.route]
            out[tasks].reshape(len(turn), -1)[:] = least + turn[:, None]
