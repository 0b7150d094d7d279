"""Divides vector workers by what they do, and deals tasks out to them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hpmoe.costs.work import put_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.planner.planner import DEALT, deal
from hpmoe.scheduling.expected_slots import ExpectedSlots, grids_of, link_stretch, shares_of_puts
from hpmoe.scheduling.score import is_uneven, rows_over_sent, spread_slots
from hpmoe.scheduling.terms import term

COMPUTING = 2  # workers that compute, over their share of the work
WORTH_US = 160.0  # of moving, the least for which some workers only compute
STRAINED = 1.05  # the most time of those who compute or move, over that of all doing both, or of the products
LOPSIDED = 4.0  # rows that the fullest worker sends, over those if they are dealt out evenly
OUT, LEAST_OUT = 1.5, 4  # times the workers of all sources that fill the link of the fullest rank; the least of a rank


class VectorWorkers(NamedTuple):
    """Sizes of three groups of vector workers: workers that only compute, send rows to experts, and send rows back.

    Workers that send rows back also compute if no worker only computes. Workers that send rows to experts also send rows
    back if no worker only sends rows back, and otherwise after the last row is sent to experts.
    """

    computing: int
    out: int
    back: int

    def kind(self, op: tf.TileOp) -> int:
        """Returns the index in this tuple of the group of workers that runs an operation's vector tasks."""
        if self.computing and is_computed(op):
            return 0
        return 1 if not self.back or (op.primitive.is_put and not op.primitive.is_back) else 2

    def share(self, op: tf.TileOp) -> float:
        """Returns the time of a put divided by its time while all vector workers share the links."""
        return self[self.kind(op)] / (self.out + self.back) if op.primitive.is_put else 1.0

    def among(self, op: tf.TileOp, first: int) -> tuple[int, int]:
        """Returns (first worker, number of workers) among whom an operation's tasks are dealt out."""
        kind = self.kind(op)
        return (first, sum(self)) if kind == 1 and not op.primitive.is_put else (first + sum(self[:kind]), self[kind])


def is_computed(op: tf.TileOp) -> bool:
    """Returns whether an operation's vector tasks compute rows that other tasks of the rank wait for."""
    primitive = op.primitive
    return op.unit == "aiv" and not (op.num_peers or primitive.moves_copies or primitive.sums_choices)


@term("divided_workers", otherwise=lambda flow, machine, costs: VectorWorkers(0, machine.num_aiv, 0))
def vector_workers(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> VectorWorkers:
    """Sizes groups of vector workers: some only compute; if loads are uneven, some only send rows to experts.

    Args:
        costs: expected microseconds of each task, [num_tasks].
    """
    is_skewed, is_spread = is_uneven(flow), spread_slots(flow, machine) > 0
    computing = _num_computing(flow, machine, costs) if is_spread or not is_skewed else 0
    movers = machine.num_aiv - computing
    out = min(_num_out(flow, machine), movers // 2) if is_skewed and is_spread and movers > 1 else movers
    return VectorWorkers(computing, out, movers - out)


def _num_computing(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> int:
    """Returns twice the computing share of the work, if the other workers can move all rows in that time."""
    computed, moved, matrix = (sum(costs[tasks].sum() for op, tasks, _ in grids_of(flow) if is_one(op))
                               for is_one in (is_computed, lambda op: op.primitive.is_put, lambda op: op.unit == "aic"))
    if not computed or moved < WORTH_US * machine.num_aiv:
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
    all others dealt out one by one, since no plan knows how long they take."""
    worker, num_aic = np.full(flow.num_tasks, -1, np.int32), machine.num_aic
    for q, tasks in enumerate(queues[:num_aic]):
        worker[tasks] = q
    for op, tasks, shape in grids_of(flow):
        if op.unit == "aic" and op.domain.is_slots:
            worker[tasks].reshape(shape)[~ExpectedSlots(flow, op.domain.route).is_expected] = -1
    _deal_late_puts(flow, sequence, vector, worker, num_aic)
    among = np.array([(0, num_aic) if op.unit == "aic" else vector.among(op, num_aic) for op in flow.ops], DEALT)
    out = deal(flow, sequence, worker, among, machine.num_queues)
    rows = rows_of_puts(flow)
    if not _is_lopsided(rows, out[num_aic + vector.computing:]):
        return out
    for op, tasks, _ in grids_of(flow):
        if op.primitive.is_put:
            _deal_in_turn(tasks.start + np.flatnonzero(rows[tasks]), sequence, worker, *vector.among(op, num_aic))
    return deal(flow, sequence, worker, among, machine.num_queues)


def rows_of_puts(flow: tf.Taskflow) -> np.ndarray:
    """Returns the rows that each put is expected to move, [num_tasks]; 0 for other tasks."""
    rows = np.zeros(flow.num_tasks)
    for op, tasks, shape in grids_of(flow):
        if op.primitive.is_put and op.domain.size:
            of_slots = ExpectedSlots(flow, op.domain.route).rows_of_slots
            rows[tasks].reshape(shape)[:] = (of_slots[:, None] * shares_of_puts(flow, op))[:, :, None]
    return rows


def _is_lopsided(rows: np.ndarray, queues: list[np.ndarray]) -> bool:
    """Returns whether a few workers would send most of the rows, as happens if only every second put of a slot has rows."""
    of_workers = np.array([rows[tasks].sum() for tasks in queues])
    return bool(len(of_workers) and of_workers.max() > LOPSIDED * max(of_workers.mean(), rows.max(initial=0.0)))


def _deal_in_turn(tasks: np.ndarray, sequence: np.ndarray, worker: np.ndarray, first: int, count: int) -> None:
    worker[tasks[np.argsort(sequence[tasks])]] = first + np.arange(len(tasks)) % max(1, count)


def _deal_late_puts(flow: tf.Taskflow, sequence: np.ndarray, vector: VectorWorkers, worker: np.ndarray, first: int) -> None:
    """Deals rows that are sent back after the last row is sent to experts out to the workers of both groups.

    Args:
        worker: the worker of each task, which this function changes, [num_tasks].
        first: the first vector worker.
    """
    puts = [(vector.kind(op), tasks) for op, tasks, _ in grids_of(flow) if op.primitive.is_put and op.domain.size]
    end = max((sequence[tasks].max() for kind, tasks in puts if kind == 1), default=-1)
    back = np.concatenate([np.zeros(0, int), *(np.arange(tasks.start, tasks.stop) for kind, tasks in puts if kind == 2)])
    _deal_in_turn(back[sequence[back] > end], sequence, worker, first + vector.computing, vector.out + vector.back)
