"""The least that the tasks of a rank ask of its workers, links and L2, whoever runs them in whatever order."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hpmoe.costs.rank_rows import RankRows
from hpmoe.costs.work import Work, core_us, with_fans
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine


class Needs(NamedTuple):
    """What the tasks of an operation on a rank take.

    Attributes:
        us: microseconds of the workers of its unit, each alone on the machine.
        l2: bytes that go through L2.
        links: bytes that leave and reach the rank, inside its node and between nodes, [4].
    """

    us: float
    l2: float
    links: np.ndarray


class LeastWork:
    """For each operation of a taskflow what its tasks on a rank take, for the routing that `rows` are of.

    Attributes:
        signals: how many signals a task of each operation sends surely, if it has rows, [units, column ranges].
    """

    def __init__(self, flow: tf.Taskflow, machine: Machine, work: Work, rows: RankRows):
        self.flow, self.machine, self.work, self.rows = flow, machine, work, rows
        self.signals = _signals(flow, machine)

    def of_ops(self, rank: int) -> list[Needs]:
        """Of each operation."""
        return [self._of_moved(i, op, rank) if op.num_peers or op.primitive.moves_copies else self._of_tiles(i, op, rank)
                for i, op in enumerate(self.flow.ops)]

    def _of_moved(self, index: int, op: tf.TileOp, rank: int) -> Needs:
        """Of an operation that moves rows, or weights, between ranks."""
        machine, work = self.machine, self.work.by_routing[index]
        moved, own = self.rows.moved(op, rank, machine.node_size)
        rows, links = moved[::2].sum() + own, moved * _of_row(op, work["link_row"])
        peers = -(-self.flow.ep_size // (op.num_peers or 1))  # of a task; to each goes as much as a worker may send
        takes_core = machine.host_cores == math.ceil(machine.host_cores)  # else more threads than cores, some on links
        on_link = links[::2].sum() / peers / machine.worker_link_bytes_per_us if takes_core else 0.0
        l2 = rows * _of_row(op, work["footprints"]["row"].sum(axis=1)) + own * _of_row(op, work["link_row"])
        return Needs(max(on_link, rows * _of_row(op, work["core_row"])), l2, links)

    def _of_tiles(self, index: int, op: tf.TileOp, rank: int) -> Needs:
        """Of an operation on the rank's own rows."""
        rows, works = self.rows.of_tasks(op, rank), with_fans(self.work.by_routing[index], self.rows.of_token(op, rank))
        of_blocks, us, l2 = rows.reshape(-1, op.domain.blocks), 0.0, 0.0
        for k, some in ((0, of_blocks[:, :-1].reshape(-1)), (2, of_blocks[:, -1])):
            for num_cols, work in zip((op.grid[2] - 1, 1), works[k:k + 2], strict=True):
                us += num_cols * self._task_us(work, some)
                l2 += num_cols * _touched(work, some).sum()
        has_rows = self.rows.of_units(op, rank)[0] > 0
        return Needs(us + self.machine.signal_us * self.signals[index][has_rows].sum(), l2, np.zeros(4))

    def _task_us(self, work: np.void, rows: np.ndarray) -> float:
        """Microseconds of tasks of these numbers of rows together, each alone on the machine."""
        machine = self.machine
        core = machine.task_us + core_us(work, rows)
        if machine.host_cores:  # a task that waits for L2 takes no core
            return float(core.sum())
        l2_bytes_per_us = min(machine.worker_l2_bytes_per_us, machine.l2_bytes_per_us)
        return float(np.maximum(core, _touched(work, rows) / l2_bytes_per_us).sum())


def _signals(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """See LeastWork: of a taskflow without queues none, as which will be needed depends on the order; threads of a host send
    them while others have its cores."""
    if not flow.queues or machine.host_cores:
        return [np.zeros((op.domain.size, 1)) for op in flow.ops]
    counts = np.bincount(flow.signals["task"][flow.signals["kind"] != tf.ENTRY_TILE], minlength=flow.num_tasks)
    firsts = np.cumsum([0] + [math.prod(op.grid) for op in flow.ops])
    return [counts[first:last].reshape(op.grid[0], op.grid[1] * op.grid[2]) * (not op.num_peers)
            for op, first, last in zip(flow.ops, firsts, firsts[1:], strict=False)]


def _of_row(op: tf.TileOp, of_tiles: np.ndarray) -> float:
    """Of a transferred row, all its parts together, what a part in a full tile of columns and one in the last take."""
    return float((op.grid[2] - 1) * of_tiles[0] + of_tiles[1])


def _touched(work: np.void, rows: np.ndarray) -> np.ndarray:
    """Bytes that tasks of these numbers of rows touch, each."""
    used = work["footprints"][:work["num_footprints"]]
    return used["fixed"].sum() + rows * used["row"].sum()
