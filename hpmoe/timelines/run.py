"""A run of a taskflow: when each worker waited and worked, and the numbers that follow from it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from hpmoe.ir.taskflow import Taskflow, TileOp
from hpmoe.machines.machine import Machine
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.known import known

RATES = ("l2", "memory", "egress", "ingress", "node_egress", "node_ingress")


@dataclasses.dataclass(frozen=True, eq=False)
class Simulated:
    """Simulated quantities of a run besides its times."""

    machine: Machine  # what the run was simulated on
    traffic: np.ndarray  # [ep, len(RATES), 2] float: bytes over each shared rate of a rank, and microseconds of its use
    released_by: np.ndarray  # [ep * num_tasks] int: the row whose signal ended the row's wait; -1 if its events had counted
    missed: np.ndarray  # [ep * num_tasks] float: bytes of each row's task that L2 did not hold
    bin_us: float  # microseconds of a bin of `served`
    served: np.ndarray  # [ep, len(RATES), bins] float, bytes that went over each rate in each bin


class LinkBytes(NamedTuple):
    """Bytes that stayed in their rank, took a link inside a node, or one between nodes."""

    in_rank: int
    in_node: int
    across_nodes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """One run of a Taskflow's queues on all ranks: a row for each task of each rank, in queue order.

    Times are microseconds from the moment at which the first worker came to its first task; the exchange of routes that
    starts a kernel lies before it. A measured body that lost its core to another thread takes as much longer.

    Attributes:
        flow: the Taskflow that ran; it has queues.
        rank, queue, task: [ep * num_tasks] int32, rank and queue in which the row ran, and its task of `flow`.
        wait_begin, begin, end: [ep * num_tasks] float, when its worker began to wait, began the body and had signalled.
        origin: microseconds of that first moment on the clock of the run.
        simulated: other results of a simulation; None if the run was measured.
        moved: [ep, ep], how many bytes the transfers of each rank copied to arrays of each, its own too, counted as they
            were copied; of a measured rank that is a process, at least its own row. None if they were not counted.
    """

    flow: Taskflow
    rank: np.ndarray
    queue: np.ndarray
    task: np.ndarray
    wait_begin: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    origin: float = 0.0
    simulated: Simulated | None = None
    moved: np.ndarray | None = None

    @property
    def is_simulated(self) -> bool:
        return self.simulated is not None

    @property
    def traffic(self) -> np.ndarray | None:
        """Bytes and microseconds of each shared rate of each rank, see Simulated; None where the run was measured."""
        return self.simulated.traffic if self.simulated else None

    @property
    def machine(self) -> Machine:
        """Machine that the run was simulated on, or that its queues were assigned for."""
        return self.simulated.machine if self.simulated else known(self.flow.machine)

    def link_bytes(self, node_size: int | None = None) -> LinkBytes:
        """Returns the bytes that transfers moved, by the links that they took.

        Args:
            node_size: ranks r with the same r // node_size are one node; by default that of the machine.

        Raises:
            ArgumentError: node_size is no positive int, or the bytes of this run were not counted.

        Example:
            >>> import hpmoe
            >>> def array(*shape, dtype="float32"): return hpmoe.ShapeDtypeStruct((4, *shape), dtype)
            >>> args = [array(64, 16), array(64, 2, dtype="int32"), array(64, 2), array(2, 16, 32), array(2, 16, 16)]
            >>> f = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn)),
            ...                         machine=hpmoe.machines.ascend_a3)
            >>> hpmoe.simulate(hpmoe.spmd(f, hpmoe.Mesh(4)).lower(*args)).link_bytes(node_size=2)
            LinkBytes(in_rank=16384, in_node=16384, across_nodes=32768)
        """
        size = self.machine.link.node_size if node_size is None else node_size
        check_argument(is_int(size, 1), "Timeline.link_bytes", "node_size", repr(node_size), "a positive int")
        check_argument(self.moved is not None, "Timeline.link_bytes", "timeline", "of a trace without bytes",
                       "of hpmoe.measure or hpmoe.simulate")
        moved, rank = known(self.moved), np.arange(self.flow.ep_size)
        is_own, is_near = rank[:, None] == rank, rank[:, None] // size == rank // size
        return LinkBytes(*(int(moved[links].sum()) for links in (is_own, is_near & ~is_own, ~is_near)))

    @property
    def span(self) -> float:
        """Microseconds from the first task to the end of the last."""
        return float(self.end.max(initial=0.0))

    @property
    def waiting(self) -> float:
        """Microseconds all workers together spent waiting for events."""
        return float((self.begin - self.wait_begin).sum())

    def utilisation(self) -> np.ndarray:
        """Returns the share of `span` that each worker spent in task bodies, [ep, num_queues]."""
        shape = (self.flow.ep_size, len(self.flow.queues))
        busy = np.bincount(self.rank * shape[1] + self.queue, self.end - self.begin, shape[0] * shape[1])
        return busy.reshape(shape) / max(self.span, 1e-12)

    def unit_utilisation(self) -> dict[str, np.ndarray]:
        """Returns the share of `span` that the workers of each unit, "aic" and "aiv" or "worker", spent in bodies, [ep]."""
        share = self.utilisation()
        return {unit: share[:, queues].mean(axis=1) for unit, queues in units(known(self.flow.machine)).items()}

    def exposed_communication(self) -> np.ndarray:
        """Returns the microseconds in which transfers of a rank run while none of its matrix workers is busy, [ep].

        A transfer is under way while the task that makes it is in its body; a signal without rows is none, nor is what a
        rank copies to itself. A matrix worker is busy in the body of a task of the matrix unit.
        """
        op, other = self.flow.tasks["op"][self.task], other_ranks(self)
        moves = np.array([o.primitive.is_remote for o in self.flow.ops], bool)[op] & (other != self.rank)
        is_matrix = self.flow.units()[self.task]
        out = np.empty(self.flow.ep_size)
        for r in range(len(out)):
            busy = is_matrix & (self.rank == r)
            either = busy | (moves & ((self.rank == r) | (other == r)))
            out[r] = union_length(self.begin[either], self.end[either]) - union_length(self.begin[busy], self.end[busy])
        return out

    def summary(self) -> str:
        """Returns span, share of time in task bodies and time waited, on one line."""
        busy = float(self.utilisation().mean()) if self.flow.queues else 0.0
        kind = "simulated " if self.is_simulated else ""
        return (f"{kind}{format_us(self.span)}, {busy:.0%} busy, ".replace("%", " %")
                + f"{format_us(self.waiting)} waiting summed over {workers_text(self.flow)}")


def rows_of(flow: Taskflow) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rank, queue and task of each row of a run of a taskflow with queues, [ep * num_tasks] int32.

    Example:
        >>> import hpmoe
        >>> tiles = hpmoe.tile_partition(hpmoe.swiglu, rows=4)
        >>> flow = hpmoe.assign_queues(tiles, machine=hpmoe.cpu(2)).lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))
        >>> [rows.tolist() for rows in rows_of(flow)]
        [[0, 0], [0, 1], [0, 1]]
    """
    lengths = [len(q) for q in flow.queues]
    of_rank = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths), np.concatenate(flow.queues).astype(np.int32)
    rank = np.repeat(np.arange(flow.ep_size, dtype=np.int32), flow.num_tasks)
    return rank, np.tile(of_rank[0], flow.ep_size), np.tile(of_rank[1], flow.ep_size)


def format_us(us: float) -> str:
    """Returns a time as text, with three digits and its unit."""
    if us < 1e3:
        return f"{us:.1f} us"
    value, unit = (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


def num_workers(flow: Taskflow) -> int:
    """Returns the number of workers of all ranks together."""
    return len(flow.queues) * flow.ep_size


def workers_text(flow: Taskflow) -> str:
    """Returns the number of workers with its noun: "1 worker", "16 workers"."""
    count = num_workers(flow)
    return f"{count} worker{'' if count == 1 else 's'}"


def units(machine: Machine) -> dict[str, range]:
    """Returns the queues of each unit: "aic" and "aiv", or "worker" if every worker takes both kinds of tasks."""
    if machine.unified:
        return {"worker": machine.queues_of("aic")}
    return {unit: queues for unit in ("aic", "aiv") if (queues := machine.queues_of(unit))}


def unit_label(unit: str, count: int) -> str:
    """Returns the workers of a unit as a chart names them."""
    return f"{unit if unit == 'worker' else unit.upper()} 0{f'..{count - 1}' if count > 1 else ''}"


def op_name(flow: Taskflow, op: TileOp) -> str:
    """Returns the primitive of an operation and the buffer it writes, `swiglu -> c`; `notify dispatch` without a buffer."""
    if not op.operands:
        return f"{op.opcode.lower()} {op.label}"
    return f"{op.label} -> {flow.buffers[op.operands[0].buffer].name}"


def other_ranks(line: Run) -> np.ndarray:
    """Returns the rank that each row's task sends to: its own if it sends nothing, -1 if it sends to no or several ranks."""
    flow, op = line.flow, line.flow.tasks["op"][line.task]
    peer = flow.tasks["peer"][line.task]
    next_peer = peer + np.array([tile_op.num_peers for tile_op in flow.ops], int)[op]
    orders = np.array([flow.order_of(o.leg) for o in flow.ops], int).reshape(-1, flow.ep_size, flow.ep_size)
    out = np.where((peer >= 0) & (next_peer >= flow.ep_size), orders[op, line.rank, np.maximum(peer, 0)], -1)
    for i, tile_op in enumerate(flow.ops):
        if not (tile_op.primitive.moves_copies and tile_op.domain.is_copies):
            continue
        placement, mine = known(flow.routes[tile_op.domain.route].placement), op == i
        to = np.tile(np.arange(flow.ep_size)[:, None], tile_op.domain.size // tile_op.domain.blocks)
        for rank in range(flow.ep_size):
            targets = [e // placement.num_own if e >= 0 else rank for e in placement.experts[rank]] \
                if tile_op.primitive.is_back else [copy.host for copy in placement.copies[rank]]
            to[rank, :len(targets)] = targets
        out[mine] = to[line.rank[mine], flow.tasks["row"][line.task[mine]] // tile_op.domain.blocks]
    return out


def union_length(begin: np.ndarray, end: np.ndarray) -> float:
    """Returns the total length of the union of intervals.

    Example:
        >>> union_length(np.array([0.0, 1.0, 5.0]), np.array([3.0, 2.0, 6.0]))
        4.0
    """
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.concatenate([[0.0], np.maximum.accumulate(end)])[:-1]
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())
