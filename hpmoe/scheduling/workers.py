"""Divides vector workers by what they do, and deals tasks out to them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hpmoe.costs.work import Work, put_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.planner.planner import DEALT, deal
from hpmoe.scheduling.expected_slots import ExpectedSlots, grids_of, link_stretch, sources_ahead
from hpmoe.scheduling.score import rows_over_sent, spread_parts
from hpmoe.scheduling.terms import term
from hpmoe.tile_ops.params import Paced
from hpmoe.tiling.rebuild import with_params

COMPUTING = 2  # workers that compute, over their share of the work
WORTH_US = 160.0  # of moving, the least for which some workers only compute
STRAINED = 1.05  # the most time of those who compute or move, over that of all doing both, or of the products
OUT, LEAST_OUT = 1.5, 4  # times the workers of all sources that fill the link of the fullest rank; the least of a rank
PS = 1e6  # in a microsecond


class VectorWorkers(NamedTuple):
    """Sizes of three groups of vector workers: workers that only compute, send rows to experts, and send rows back.

    Workers that send rows back also compute if no worker only computes. Workers that send rows to experts also send rows
    back if no worker only sends rows back.
    """

    computing: int
    out: int
    back: int

    def kind(self, op: tf.TileOp) -> int:
        """Returns the group of workers that runs an operation's vector tasks."""
        if self.computing and is_computed(op):
            return 0
        return 1 if not self.back or (op.primitive.is_put and not op.primitive.is_back) else 2

    def share(self, op: tf.TileOp) -> float:
        """Returns the time of a put divided by its time while all vector workers share the links."""
        return self[self.kind(op)] / (self.out + self.back) if op.primitive.is_put else 1.0

    def among(self, op: tf.TileOp) -> tuple[int, int]:
        """Returns (first worker, number of workers) among whom tasks other than puts are dealt out."""
        kind = self.kind(op)
        return (0, sum(self)) if kind == 1 else (sum(self[:kind]), self[kind])


def is_computed(op: tf.TileOp) -> bool:
    """Returns whether an operation's vector tasks compute rows that other tasks of the rank wait for."""
    primitive = op.primitive
    return op.unit == "aiv" and not (op.num_peers or primitive.moves_copies or primitive.sums_choices)


@term("divided_workers", otherwise=lambda flow, machine, costs: VectorWorkers(0, machine.num_aiv, 0))
def vector_workers(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> VectorWorkers:
    """Some vector workers only compute, and if `spread_slots` acts others only send rows to experts, so that rows for matrix
    workers do not wait behind rows that are sent back.

    Args:
        costs: expected microseconds of each task, [num_tasks].
    """
    computing = _num_computing(flow, machine, costs)
    movers = machine.num_aiv - computing
    out = min(_num_out(flow, machine), movers // 2) if spread_parts(flow, machine) and movers > 1 else movers
    return VectorWorkers(computing, out, movers - out)


def _num_computing(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> int:
    """Returns twice the computing share of the work, if the other workers can move all rows in that time; 0 if deduplicated
    rows cross nodes, which occupies all workers."""
    computed, moved, matrix = (sum(costs[tasks].sum() for op, tasks, _ in grids_of(flow) if is_one(op))
                               for is_one in (is_computed, lambda op: op.primitive.is_put, lambda op: op.unit == "aic"))
    crosses = flow.ep_size > machine.link.node_size and any(plan.kind.is_of_tokens for plan in flow.routes)
    if not computed or moved < WORTH_US * machine.num_aiv or crosses:
        return 0
    wanted = math.ceil(COMPUTING * machine.num_aiv * computed / (computed + moved))
    moved /= link_stretch(flow, machine)
    us = STRAINED * max(matrix / machine.num_aic, (computed + moved) / machine.num_aiv)
    computing = min(wanted, machine.num_aiv // 2, machine.num_aiv - math.ceil(moved / us))
    return computing if computing > 0 and computed / computing <= us else 0


def _num_out(flow: tf.Taskflow, machine: Machine) -> int:
    """Returns how many workers of a source fill the link of the fullest rank, to which all sources send."""
    fill = machine.link.rate(flow.ep_size) / put_rate(machine, flow.ep_size)
    return max(LEAST_OUT, round(OUT * fill / max(map(rows_over_sent, flow.routes))))


def dealt(flow: tf.Taskflow, machine: Machine, queues: list[np.ndarray], sequence: np.ndarray,
          vector: VectorWorkers) -> list[np.ndarray]:
    """Returns the tasks of each worker in the order of `sequence`: matrix tasks of expected slots as they are in `queues`,
    puts by their turns, and all others dealt out one by one, since no plan knows how long they take."""
    worker, num_aic = np.full(flow.num_tasks, -1, np.int32), machine.num_aic
    for q, tasks in enumerate(queues[:num_aic]):
        worker[tasks] = q
    for op, tasks, shape in grids_of(flow):
        of_task = worker[tasks].reshape(shape)  # a view
        if op.primitive.is_put:
            kind = vector.kind(op)
            of_task[:] = num_aic + sum(vector[:kind]) + _put_turns(flow, op, machine, sequence[tasks]) % vector[kind]
        elif op.unit == "aic" and op.domain.is_slots:
            of_task[~ExpectedSlots(flow, op.domain.route).is_expected] = -1
    among = [(0, num_aic) if op.unit == "aic" else vector.among(op) for op in flow.ops]
    first = [0 if op.unit == "aic" else num_aic for op in flow.ops]
    return deal(flow, sequence, worker, np.array([(f + q, n) for f, (q, n) in zip(first, among, strict=True)], DEALT),
                machine.num_queues)


@term("put_turns", otherwise=lambda flow, op, machine, sequence: np.argsort(np.argsort(sequence)).reshape(op.grid))
def _put_turns(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, sequence: np.ndarray) -> np.ndarray:
    """Puts with expected rows are dealt out one by one to workers, since most puts of a slot have no rows.

    A rank sends each expert of each peer one run of slots. Runs are numbered expert after expert, in each by peer, and the
    slots of a run one after another; ranks of one place in every node have one number, so that every worker sends to all
    nodes. Returns the turn of each put, [num_slots, peers, columns].
    """
    (num_slots, num_peers, num_cols), slots = op.grid, ExpectedSlots(flow, op.domain.route)
    node_size = machine.link.node_size if machine.link.node_size > 1 else flow.ep_size
    ahead, of_source = sources_ahead(flow, op), slots.per_expert / flow.ep_size
    run = max(1, round(of_source))
    off = np.arange(num_slots)[:, None] - ahead * of_source - (run - 1) / 2  # from the middle of each source's run
    expert = np.rint(off / slots.per_expert)
    off = np.rint(off - expert * slots.per_expert + (run - 1) / 2)
    turn = ((expert * min(flow.ep_size, node_size) + ahead % node_size) * run + off % run) * num_cols
    of_put = np.take_along_axis(turn, _nearest(np.abs(off), num_peers), 1).astype(np.int64)
    return of_put[:, :, None] + np.arange(num_cols)


def _nearest(away: np.ndarray, num_peers: int) -> np.ndarray:
    """Returns the nearest rank of each put's ranks, [num_slots, peers]."""
    num_slots, ep_size = away.shape
    most = -(-ep_size // num_peers)
    every = np.full((num_slots, most * num_peers), np.inf)
    every[:, :ep_size] = away
    return every.reshape(num_slots, most, num_peers).argmin(1) * num_peers + np.arange(num_peers)


@term("paced_puts", otherwise=lambda flow, machine: flow)
def paced_puts(flow: tf.Taskflow, machine: Machine) -> tf.Taskflow:
    """A put waits until the link of its peer could have moved the rows of earlier slots, so that the first slot, with rows
    of many ranks, does not arrive with the last slot. A kernel finds the earlier slots in the counts.

    Puts are not paced if slots are spread, which are multiplied in another order, if one other rank fills a slot, nor over
    nodes.
    """
    puts = [op for op in flow.ops if isinstance(op.params, Paced)]
    if len({op.domain.route for op in puts}) != 1 or not any(op.unit == "aic" for op in flow.ops):
        return flow
    plan = flow.routes[puts[0].domain.route]
    of_expert = max(1.0, plan.expected_rows / (plan.num_local_experts * plan.tile_rows))  # slots
    if machine.unified or flow.ep_size > machine.link.node_size or plan.kind.is_of_tokens or of_expert >= flow.ep_size - 1 \
            or spread_parts(flow, machine):
        return flow
    rows = Work(flow, machine).by_routing["link_row"]
    row_bytes = sum((op.grid[2] - 1) * row[0] + row[1] for op, row in zip(flow.ops, rows, strict=True) if op in puts)
    paced = Paced(round(PS * row_bytes / machine.link.rate(flow.ep_size)))
    return with_params(flow, tuple(op.replace(params=paced) if op in puts else op for op in flow.ops))
