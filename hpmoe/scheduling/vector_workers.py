"""Divides work among vector workers: some compute while others move rows, and a few of them share puts to a rank.

Where a routing is not as likely, tasks are still dealt out evenly, and no rank is sent everything at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.costs.work import put_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.planner.planner import DEALT, deal
from hpmoe.scheduling.likely_slots import LikelySlots, grids_of, link_stretch, sources_ahead
from hpmoe.scheduling.put_turns import put_turns, spread_turns
from hpmoe.scheduling.rules import rule
from hpmoe.scheduling.spread_slots import is_spread, is_uneven, rows_over_sent
from hpmoe.support.known import known

QUEUE_US = 150.0  # of what the workers of a group send to one rank at a time, on its link
UNEVEN = 1.03  # peers of a worker, the most over the mean, not reached
OF_MANY, MANY_RANKS = 1.06, 16  # the same of groups of so many ranks, of which what goes to each is less by chance
COMPUTING = 2  # workers for what is computed, over their share of the work
STRAINED = 1.05  # the most time of workers that compute or move, over that of all workers doing both, or of the matmuls
LEFT_OVER = 0.25  # of the workers, the most that compute as links have no use for them
LONG = 0.36  # of the time of matmuls, the least of moving for which they do
WORTH_US = 160.0  # of moving, the least for which some workers only compute: with few rows each, whose turn it is is chance
OUT, LEAST_OUT = 1.5, 4  # times the workers that fill the share of the fullest rank's link that one rank has; the least


class VectorWorkers(NamedTuple):
    """How many vector workers only compute, put rows out and put rows back, in this order.

    Where none only computes, those who put back compute; where none only puts back, those who put out do that, too.
    """

    computing: int
    out: int
    back: int

    @property
    def moving(self) -> int:
        return self.out + self.back

    def kind(self, op: tf.TileOp) -> int:
        """Which of these does an operation's tasks, where they are for vector workers."""
        if self.computing and is_computed(op):
            return 0
        return 1 if not self.back or (op.primitive.is_put and not op.primitive.is_back) else 2

    def dealt(self, op: tf.TileOp) -> tuple[int, int]:
        """The first one of those among whom tasks that are no puts are dealt out, and how many these are."""
        kind = self.kind(op)
        return (0, sum(self)) if kind == 1 else (sum(self[:kind]), self[kind])

    def shares(self, ops: Sequence[tf.TileOp]) -> np.ndarray:
        """Of the time that puts take while all send, what they take while these do, who have the link to themselves,
        [num_ops]; 1 of all else."""
        return np.array([self[self.kind(op)] / self.moving if op.primitive.is_put else 1.0 for op in ops])


def is_computed(op: tf.TileOp) -> bool:
    """Whether tasks of an operation on vector workers compute rows, which others wait for on the same rank."""
    primitive = op.primitive
    return op.unit == "aiv" and not (op.num_peers or primitive.moves_copies or primitive.sums_choices)


@rule("some_compute", otherwise=lambda flow, machine, costs: 0)
def num_computing(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> int:
    """Has some vector workers take what is computed, the first ones, while the others take what is moved. How many; 0 where
    all take both. What waits for matmuls then keeps no rows from going out, nor do these keep it from being computed. It is
    0 too where no share of the workers would do."""
    computed, moved, matrix = (sum(costs[tasks].sum() for op, tasks, _ in grids_of(flow) if is_one(op))
                               for is_one in (is_computed, lambda op: op.primitive.is_put, lambda op: op.unit == "aic"))
    if not computed or moved < WORTH_US * machine.num_aiv:
        return 0
    wanted = math.ceil(COMPUTING * machine.num_aiv * computed / (computed + moved))
    if moved / machine.num_aiv > LONG * matrix / machine.num_aic:
        wanted = max(wanted, _left_by_links(flow, machine))
    moved /= link_stretch(flow, machine)
    us = STRAINED * max(matrix / machine.num_aic, (computed + moved) / machine.num_aiv)
    computing = min(wanted, machine.num_aiv // 2, machine.num_aiv - math.ceil(moved / us))
    return computing if computing > 0 and computed / computing <= us else 0


@rule("left_by_links", otherwise=lambda flow, machine: 0)
def _left_by_links(flow: tf.Taskflow, machine: Machine) -> int:
    """Has vector workers that links have no use for compute, in one node, where there are gradients of weights and no rank
    gets many more rows than others. There rows pass several of their operations between two matmuls, each of which would
    wait for a put to end. How many."""
    has_gradients = any(op.primitive.makes_blocks for op in flow.ops)
    if not has_gradients or flow.ep_size > machine.link.node_size or any(map(is_uneven, flow.routes)):
        return 0
    return int(min(LEFT_OVER, 1 - 1 / link_stretch(flow, machine)) * machine.num_aiv)


def vector_workers(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> VectorWorkers:
    """How many do what, where tasks take so many microseconds, [num_tasks]."""
    computing = num_computing(flow, machine, costs)
    out = _num_out(flow, machine, machine.num_aiv - computing)
    return VectorWorkers(computing, out, machine.num_aiv - computing - out)


@rule("few_out", otherwise=lambda flow, machine, movers: movers)
def _num_out(flow: tf.Taskflow, machine: Machine, movers: int) -> int:
    """Has a few vector workers put rows out and the others put them back, where slots are spread. A rank that gets many more
    rows than others is sent them by all at a time: few workers of each fill its link, fewer puts share it, so that the first
    rows come sooner, and what goes back does not wait for what goes out. How many put rows out, of those that move some."""
    goes_back = any(op.primitive.is_put and op.primitive.is_back for op in flow.ops)
    if movers < 2 or not goes_back or not is_spread(flow, machine):
        return movers
    fill = machine.link.rate(flow.ep_size) / put_rate(machine, flow.ep_size)
    share = OUT / max(map(rows_over_sent, flow.routes))
    return max(1, min(int(movers * share / (1 + share)), max(LEAST_OUT, round(fill * share))))


def dealt(flow: tf.Taskflow, machine: Machine, queues: list[np.ndarray], sequence: np.ndarray,
          vector: VectorWorkers, early: int) -> list[np.ndarray]:
    """The tasks of each worker in the order of `sequence`: matrix tasks where they are, others and spare ones dealt out.

    Neighbours of an operation are on neighbouring workers; of a put those that are likely to have rows. The last `early`
    matrix workers take no slots.
    """
    worker, num_aic = np.full(flow.num_tasks, -1, np.int32), machine.num_aic
    taking_slots = num_aic - early
    for q, tasks in enumerate(queues[:num_aic]):
        worker[tasks] = q
    for op, tasks, shape in grids_of(flow):
        slots = LikelySlots(flow, op.domain.route) if op.domain.is_slots else None
        if op.primitive.is_put:
            worker[tasks].reshape(shape)[:] = _putters(
                flow, op, machine, known(slots), sequence[tasks].reshape(shape), vector)
        elif slots and op.unit == "aic":
            of_task = worker[tasks].reshape(shape)  # a view
            of_task[slots.is_spare] = -1
            of_task[slots.round > 0] = (np.arange(of_task.size) % taking_slots).reshape(shape)[slots.round > 0]
    among = np.array([(0, taking_slots) if op.unit == "aic" else (num_aic + first, count) for op in flow.ops
                      for first, count in [vector.dealt(op)]], DEALT)
    return deal(flow, sequence, worker, among, machine.num_queues)


def _putters(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, slots: LikelySlots,
             sequence: np.ndarray, vector: VectorWorkers) -> np.ndarray:
    """Which vector worker does each put, [num_slots, peers, columns] as `sequence`.

    Peers are in groups, and every group has workers of its own.
    """
    kind, ahead = vector.kind(op), sources_ahead(flow, op)
    workers = vector[kind]
    wanted = _num_groups(flow, op, machine, slots, workers)
    node_size = machine.link.node_size if machine.link.node_size > 1 else flow.ep_size
    places = min(op.num_peers, node_size)  # ranks of one place in every node are in one group
    groups = next(g for g in range(min(max(wanted, 1), places, workers), 0, -1) if -(-places // g) * workers
                  < (OF_MANY if g * MANY_RANKS <= flow.ep_size else UNEVEN) * (workers // g) * places)
    starts = (np.arange(groups + 1) * workers // groups).astype(np.int32)
    group = (ahead[:op.num_peers] % node_size % groups)[:, None]
    of_group = np.diff(starts)
    out = spread_turns(sequence, of_group[group]) if is_spread(flow, machine) else put_turns(
        slots, sequence, ahead, groups, node_size)
    out %= of_group[group]
    out += machine.num_aic + sum(vector[:kind]) + starts[group]
    return out


@rule("put_groups", otherwise=lambda flow, op, machine, slots, workers: 1)
def _num_groups(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, slots: LikelySlots, workers: int) -> int:
    """Has so few workers put rows to a rank that what they send to it at a time, where those of every rank do, is on its
    link for QUEUE_US. Else the first rows of a hot rank would come with its last. How many groups of peers that makes; not
    one more of few ranks, of which what goes to each is chance."""
    buffer = flow.buffers[op.operands[1].buffer]
    sent = slots.rows * (op.tile_cols or buffer.cols) * buffer.stored_dtype.itemsize
    groups = workers * flow.ep_size * sent / (machine.link.rate(flow.ep_size) * QUEUE_US)
    return int(groups) if flow.ep_size < MANY_RANKS else round(groups)
