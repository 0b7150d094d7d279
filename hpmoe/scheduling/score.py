"""Scores tasks for list scheduling: a free worker takes the ready task with the least score."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.expected_slots import ExpectedSlots, grids_of
from hpmoe.scheduling.terms import term
from hpmoe.support.known import known
from hpmoe.tiling.next_ops import next_ops

UNEVEN = 1.25  # rows of the fullest rank over those that a rank sends, from which slots are spread
RUN, FEWEST = 1.25, 32  # slots that each source fills, and slots of a rank, from which they are spread
MOST_PARTS = 2  # of the slots, each spread by itself


def score(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> np.ndarray:
    """Returns the score of each task, [num_tasks] int64, a tuple packed into one number.

    The tuple of a matrix task is: the run of its slot (`spread_slots`, `halves`), the rank of its operation, the group of
    its slot (`groups_of_few`), its column, and the turn of its slot (`spread_slots`, `round_the_ranks`). The tuple of
    another task is: the rank of its operation (`puts_together`), the turn of its slot, the peer and the column.

    Args:
        costs: expected microseconds of each task, [num_tasks].
    """
    grids, rank = list(grids_of(flow)), _ranks(flow)
    parts = spread_parts(flow, machine)
    turns = [_turns(flow, machine, route, parts) for route in range(len(flow.routes))]
    last = _last_sent_back(flow, rank)
    runs = (turns if parts else _halves(flow, machine, costs, rank, last)) if last >= 0 else []
    size = max((units * max(units, peers) * cols for _, _, (units, peers, cols) in grids), default=1)
    out = np.empty(flow.num_tasks, np.int64)
    for i, (op, tasks, (units, peers, cols)) in enumerate(grids):
        turn = turns[op.domain.route] if op.domain.is_slots else np.arange(units)
        inside = turn[:, None] * (peers * cols) + np.arange(peers * cols)
        run = np.zeros(units, np.int64)
        if op.unit == "aic":
            if op.domain.is_slots:
                inside = (_groups(flow, machine, op, turn)[:, None] * cols + np.arange(cols)) * units + turn[:, None]
            if runs and rank[i] > last:
                run += flow.num_slots
            elif runs and op.domain.is_slots:
                run = runs[op.domain.route]
        out[tasks].reshape(units, peers * cols)[:] = (run[:, None] * rank.max() + rank[i]) * size + inside
    _puts_together(flow, rank * size, turns, out)
    return out


def _ranks(flow: tf.Taskflow) -> np.ndarray:
    """Returns the rank of each operation, [num_ops]: its place. Weight gradients that nothing reads are last."""
    after = next_ops(flow)
    waits = [op.primitive.makes_blocks and not after[i] for i, op in enumerate(flow.ops)]
    return np.arange(len(flow.ops)) + len(flow.ops) * np.array(waits, np.int64)


def _last_sent_back(flow: tf.Taskflow, rank: np.ndarray) -> int:
    """Returns the rank of the last matrix operation whose rows are sent back, or -1."""
    storage = [b.storage for b in flow.buffers]
    sent_back = {storage[op.operands[1].buffer] for op in flow.ops if op.primitive.puts_back}
    made = [rank[i] for i, op in enumerate(flow.ops) if op.unit == "aic" and storage[op.operands[0].buffer] in sent_back]
    return int(max(made, default=-1))


def _turns(flow: tf.Taskflow, machine: Machine, route: int, parts: int) -> np.ndarray:
    """Returns the turn of each slot of a route, [num_slots]."""
    slots, num_slots = ExpectedSlots(flow, route), flow.routes[route].num_slots
    if parts:
        return spread_out(num_slots, max(parts, round(num_slots * parts / max(1, slots.num_expected))) if parts > 1 else 1)
    if flow.routes[route].kind.is_of_tokens:
        slot, of_rank = np.arange(num_slots), max(1, -(-num_slots // flow.ep_size))
        return _round_the_ranks(np.zeros(num_slots), slot % of_rank, slot // of_rank)
    node_size = machine.link.node_size
    return _round_the_ranks(slots.expert, slots.source % node_size, slots.source // node_size)


@term("round_the_ranks", otherwise=lambda expert, place, rank: np.arange(len(rank)))
def _round_the_ranks(expert: np.ndarray, place: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Slots of deduplicated rows alternate between ranks, and slots of an expert between nodes, so that no link is idle
    while another link has all rows. Returns the turn of each slot, [num_slots]."""
    turn = np.empty(len(rank), np.int64)
    turn[np.lexsort((rank, place, expert))] = np.arange(len(rank))
    return turn


@term("spread_slots", otherwise=lambda flow, machine: 0)
def spread_parts(flow: tf.Taskflow, machine: Machine) -> int:
    """Returns the number of parts into which a rank's slots are cut, or 0 if the slots are not interleaved.

    Slots of a rank that expects many more rows than others are interleaved over all source ranks, since all sources send at
    the same time. Each part is interleaved by itself.

    Each source fills slots of its own on such a rank, and L2 holds the weights of a part.
    """
    for plan in flow.routes:
        if plan.kind.is_of_tokens or plan.placement or plan.expected_rows < max(RUN * plan.ep_size, FEWEST) * plan.tile_rows:
            return 0
    if not any(plan.ep_size > 2 and rows_over_sent(plan) > UNEVEN for plan in flow.routes):
        return 0
    read = {op.operands[2].buffer: _weight_bytes(flow, op)
            for op in flow.ops if op.domain.is_slots and op.primitive.is_matmul}
    parts = max(1, math.ceil(sum(read.values()) / max(1.0, machine.l2.bytes)))
    return parts if parts <= min(MOST_PARTS, min(plan.num_local_experts for plan in flow.routes)) else 0


def rows_over_sent(plan: tf.RoutePlan) -> float:
    """Returns the expected rows of the fullest rank, divided by the rows that one rank sends."""
    return plan.expected_rows / max(1, plan.num_tokens * plan.top_k)


def spread_out(num_slots: int, parts: int = 1) -> np.ndarray:
    """Returns the turn of each slot, [num_slots]: part after part, and in each by its number with the bits in reverse (van
    der Corput's sequence), so that each stretch of slots has its share of any beginning.

    Example:
        >>> spread_out(8).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
        >>> spread_out(8, parts=2).tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    slot, bits = np.arange(num_slots), max(1, (num_slots - 1).bit_length())
    part = slot * parts // max(1, num_slots)
    place, backwards = slot - np.searchsorted(part, part), np.zeros(num_slots, np.int64)
    for bit in range(bits):
        backwards |= (place >> bit & 1) << (bits - 1 - bit)
    return np.argsort(np.lexsort((backwards, part)))


@term("halves", otherwise=lambda flow, machine, costs, rank, last: [])
def _halves(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, rank: np.ndarray, last: int) -> list[np.ndarray]:
    """Matrix workers finish half of the slots, then half of the rest, and so on, if sending rows back takes longer than the
    last products, so that rows go back while others are made. Returns the run of each slot, for each route; relays wait for
    all rows anyway.
    """
    if any(op.is_relayed for op in flow.ops if op.primitive.puts_back):
        return []
    grids = list(grids_of(flow))
    back = sum(costs[tasks].sum() for op, tasks, _ in grids if op.primitive.puts_back) / machine.num_aiv
    products = sum(costs[tasks].sum() for i, (op, tasks, _) in enumerate(grids) if op.unit == "aic" and rank[i] >= last)
    if products / machine.num_aic >= back:
        return []
    cols = min(shape[2] for i, (op, _, shape) in enumerate(grids) if op.unit == "aic" and rank[i] <= last)
    return [half_by_half(ExpectedSlots(flow, route), machine.num_aic / cols) for route in range(len(flow.routes))]


def half_by_half(slots: ExpectedSlots, least: float) -> np.ndarray:
    """Returns the run of each slot, [num_slots]: half of the expected slots, then half of the rest, down to `least`."""
    expected = max(1, slots.num_expected)
    left = 1 - np.minimum(np.arange(len(slots.place)), expected - 1) / expected
    return np.minimum(-np.log2(left), math.log2(max(1.0, expected / least))).astype(np.int64)


@term("groups_of_few", otherwise=lambda flow, machine, op, turn: turn)
def _groups(flow: tf.Taskflow, machine: Machine, op: tf.TileOp, turn: np.ndarray) -> np.ndarray:
    """Few slots of an expert are multiplied column after column if L2 does not hold the expert's weight, since every slot
    would read all of the weight again. Returns the group of each slot, [num_slots]."""
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
    """Puts of everything that a slot needs (rows, rows of gradients, weights of replicas) follow each other, since the slot
    waits for the last one.

    Args:
        first: the least score of each operation, [num_ops].
        out: the scores, which this function changes.
    """
    storage, grids = [b.storage for b in flow.buffers], list(grids_of(flow))
    read = [{storage[a.buffer] for a in op.inputs} for op in flow.ops]
    for route, plan in enumerate(flow.routes):
        puts = [i for i, op in enumerate(flow.ops)
                if op.primitive.sends_rows and op.domain.route == route and op.domain.size]
        for i in puts if len(puts) > 1 and not plan.kind.is_of_tokens else ():
            out[grids[i][1]].reshape(plan.num_slots, -1)[:] = first[puts].min() + turns[route][:, None]
    for op, copies, _ in (grid for grid in grids if grid[0].primitive.moves_copies and not grid[0].primitive.is_back):
        for put, rows, (num_slots, _, _) in (grid for grid in grids if grid[0].primitive.sends_rows and grid[0].domain.size):
            if any({storage[a.buffer] for a in (*op.outputs, *put.outputs)} <= r for r in read):
                plan = flow.routes[op.domain.route]
                slot = min(int(known(plan.placement).own_share * plan.max_rows / flow.tile_rows), num_slots - 1)
                out[copies] = out[rows].reshape(num_slots, -1)[slot].min()
