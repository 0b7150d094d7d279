"""Least time before and after the tasks of each operation, whichever workers run them in whichever order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe.costs.work import core_us
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.machines.machine import Machine
from hpmoe.support.intervals import covers, joined
from hpmoe.tile_ops import row_modes

KNOWN = (row_modes.OWN, row_modes.PEER, row_modes.ENTRIES)


class LeastPaths:
    """Computes for each operation the time before its first task can begin and the time after its last task has ended.

    A task begins when all that it reads is written, so its writers and the tasks before them have run one after the other. A
    worker of another rank or unit sees the writes when a signal was sent, arrived and was looked at. The least task of an
    operation counts, of those that have rows. An operation comes before or after another only if it is certain that each
    task with rows of one reads rows of the other.

    Args:
        sent: most signals of a task of each operation that are part of its work already, [num_ops].
    """

    def __init__(self, flow: tf.Taskflow, machine: Machine, work: np.ndarray, layout: Layout, sent: Sequence[float]):
        self.flow, self.machine, self.work, self.layout, self.sent = flow, machine, work, layout, sent
        self.look = machine.sync.poll_us + machine.sync.wait_us
        self.links = list(_links(flow))
        self.least = [self._least_us(i) for i in range(len(flow.ops))]
        self.after, self._put_us = functools.cache(self._after), functools.cache(self._put_alone_us)
        self._least_of_full = functools.cache(self._of_full)

    def before(self, rank: int) -> np.ndarray:
        """Returns the microseconds before the first task of each operation on a rank can begin, [num_ops]."""
        out = np.zeros(len(self.flow.ops))
        for reader, op in enumerate(self.flow.ops):
            if op.num_peers or (op.domain.sums_rows and not rows_of_tasks(self.layout, op, rank).all()):
                continue  # sent rows may be of any rank; a sum over no rows waits for no task
            writers: dict[int, list[float]] = {}
            for writer, _, storage, is_needed, _ in (link for link in self.links if link[1] == reader):
                us = out[writer] + self._to_reader(writer, reader, rank) if is_needed else 0.0
                writers.setdefault(storage, []).append(us)
            out[reader] = max((min(us) for us in writers.values()), default=0.0)
        return out

    def _after(self, rank: int, full: int = -1) -> np.ndarray:
        """Returns the microseconds after the last task of each operation on a rank has ended, [num_ops].

        Rows that an operation puts were seen by their reader before. With a route `full`, the last task is of a full slot of
        that route.
        """
        out, least = np.zeros(len(self.flow.ops)), self.least if full < 0 else self._least_of_full(full)
        for writer in reversed(range(len(self.flow.ops))):
            for _, reader, _, _, is_read in (link for link in self.links if link[0] == writer):
                if is_read:
                    out[writer] = max(out[writer], self._after_writer(writer, reader, rank, least) + out[reader])
        return out

    def last_full(self, rank: int) -> float:
        """Returns the microseconds until all full slots of a rank arrived and the tasks after the last ended; 0 for no slot.

        A link cannot bring the last row of full slots before it has moved all of them. Only then is that row's slot whole,
        and the tasks that read the slot have as many rows as a slot holds. Slots that are not full do not count: the last
        slot to arrive may have few rows, after which little follows.
        """
        return max((self._last_full_us(i, op, rank) for i, op in enumerate(self.flow.ops)
                    if op.num_peers and op.primitive.sends_rows and op.domain.is_slots and self.is_read(i)), default=0.0)

    def _last_full_us(self, index: int, op: tf.TileOp, rank: int) -> float:
        machine, ranks, row = self.machine, np.arange(self.flow.ep_size), self.work["link_row"][index]
        is_full = self.layout.slots[op.domain.route][rank].rows == self.flow.tile_rows
        rows = self._rows_by_source(op, rank)[is_full].sum(axis=0) * ((op.num_col_tiles - 1) * row[0] + row[1])
        leaves_node, out = ranks // machine.link.node_size != rank // machine.link.node_size, 0.0
        is_near = ~leaves_node & (ranks != rank)
        for which, rate, latency in ((is_near, machine.link.rate(self.flow.ep_size), machine.sync.remote_us),
                                 (leaves_node, machine.link.node_bytes_per_us, machine.sync.node_remote_us)):
            if (come := rows[which].sum()) > 0:
                after = float(self._after(rank, op.domain.route)[index])
                out = max(out, come / rate + machine.sync.signal_us + latency + self.look + after)
        return out

    def _of_full(self, route: int) -> list[float]:
        """Returns the least microseconds of a task of each operation, [num_ops]; on slots, of a task of a full slot."""
        tile_rows = self.flow.tile_rows
        return [self.machine.sync.task_us + float(min(core_us(w, _of_parts(op, np.array([tile_rows]), tile_rows)).min()
                                                      for w in self.work[i]))
                if us and op.domain.is_slots and op.domain.route == route else us
                for i, (op, us) in enumerate(zip(self.flow.ops, self.least, strict=True))]

    def landing(self, op: int, stays_in_node: bool) -> float:
        """Returns the microseconds after the last row arrived that an operation moves to a rank of the same or another node.
        """
        latency = self.machine.sync.remote_us if stays_in_node else self.machine.sync.node_remote_us
        seen = self.machine.sync.signal_us + latency + self.look if self.is_read(op) else 0.0
        return seen + min(float(self.after(rank)[op]) for rank in range(self.flow.ep_size))

    def is_read(self, op: int) -> bool:
        """Returns whether all that an operation writes is certain to be read."""
        return any(writer == op and is_read for writer, *_, is_read in self.links)

    def _to_reader(self, writer: int, reader: int, rank: int) -> float:
        """Returns the microseconds from the beginning of a task to the beginning of a task that reads its output."""
        crossing = self._crossing(writer, reader)
        if self.flow.ops[writer].num_peers:
            return self._put_us(writer, rank, crossing, True)
        return self.least[writer] + crossing

    def _after_writer(self, writer: int, reader: int, rank: int, least: Sequence[float]) -> float:
        """Returns the microseconds from the end of a task to the end of a task that reads its output."""
        is_put = self.flow.ops[writer].num_peers > 0
        crossing = 0.0 if is_put else self._crossing(writer, reader) - self.machine.sync.signal_us * self.sent[writer]
        if self.flow.ops[reader].num_peers:
            return crossing + self._put_us(reader, rank, 0.0, self.is_read(reader))
        return crossing + least[reader]

    def _crossing(self, writer: int, reader: int) -> float:
        """Returns the microseconds until another unit of the rank sees what an operation has written."""
        is_apart = not self.machine.unified and self.flow.ops[writer].unit != self.flow.ops[reader].unit
        return self.machine.sync.signal_us + self.look if is_apart else 0.0

    def _least_us(self, index: int) -> float:
        """Returns the least microseconds of a task with rows of a local operation, on any rank."""
        op = self.flow.ops[index]
        if op.num_peers or op.primitive.moves_copies:
            return 0.0
        rows = np.unique(np.concatenate([rows_of_tasks(self.layout, op, rank) for rank in range(self.flow.ep_size)]))
        rows = rows[rows > 0]
        return self.machine.sync.task_us + float(min((core_us(w, rows).min() for w in self.work[index]), default=0.0)) \
            if len(rows) else 0.0

    def _put_alone_us(self, index: int, rank: int, crossing: float, is_seen: bool) -> float:
        """Returns the microseconds until all rows of a slot moved between a rank and their sources, and were seen there.

        On the rank itself rows are seen after `crossing`.
        A task puts rows from one source only, so each source needs one; all sources share the links of the rank.
        """
        machine, op = self.machine, self.flow.ops[index]
        rows = self._rows_by_source(op, rank)
        ranks = np.arange(self.flow.ep_size)
        is_other, leaves_node = ranks != rank, ranks // machine.link.node_size != rank // machine.link.node_size
        latency = np.where(leaves_node, machine.sync.node_remote_us, machine.sync.remote_us)
        seen = np.where(is_other, machine.sync.signal_us + latency + self.look, crossing) if is_seen else 0.0
        link = np.where(leaves_node, machine.link.node_bytes_per_us, machine.link.rate(self.flow.ep_size))
        alone = np.where(is_other, np.minimum(link, machine.link.worker_bytes_per_us), np.inf)
        us = [np.maximum(machine.sync.task_us + core_us(w, rows), np.maximum(
            rows / alone, _shared(rows, is_other, leaves_node) / link) * w["link_row"]) + seen for w in self.work[index]]
        of_slots = np.where(rows > 0, np.minimum.reduce(us), 0.0).max(axis=1, initial=0.0)
        return float(of_slots[rows.any(axis=1)].min(initial=np.inf)) if rows.any() else 0.0

    def _rows_by_source(self, op: tf.TileOp, rank: int) -> np.ndarray:
        """Returns rows of each slot of a rank that each rank sends, [num_slots, ep_size]."""
        slots, sources = self.layout.slots[op.domain.route][rank], self.layout.sent_by(op).source_of_row[rank]
        out = np.zeros((len(slots.rows), self.flow.ep_size))
        some = np.flatnonzero(slots.rows)
        slot = np.repeat(some, slots.rows[some])
        row = np.concatenate([np.arange(slots.start[s], slots.start[s] + slots.rows[s]) for s in some] or [np.zeros(0, int)])
        np.add.at(out, (slot, sources[row]), 1.0)
        return out


def rows_of_tasks(layout: Layout, op: tf.TileOp, rank: int) -> np.ndarray:
    """Returns rows of each task with rows in one column range of a local operation; a sum over rows may have none."""
    rows, _ = op.domain.rows_of_units(layout, rank)
    return rows if op.domain.sums_rows else _of_parts(op, rows, layout.flow.tile_rows)


def _of_parts(op: tf.TileOp, rows: np.ndarray, tile_rows: int) -> np.ndarray:
    """Returns the rows of the tasks that have any, of units with `rows` rows."""
    of_parts = op.rows_of_parts(rows, tile_rows).reshape(-1)
    return of_parts[of_parts > 0]


def _shared(rows: np.ndarray, is_other: np.ndarray, leaves_node: np.ndarray) -> np.ndarray:
    """Returns rows of each slot that take the same link as those of each source, [num_slots, ep_size]; 0 for the rank."""
    of_links = [is_other & (leaves_node == leaves) for leaves in (False, True)]
    return sum((np.outer(rows[:, link].sum(axis=1), link) for link in of_links), np.zeros_like(rows))


def _links(flow: tf.Taskflow) -> Iterator[tuple[int, int, int, bool, bool]]:
    """Yields (writer, reader, storage, whether each reader's task with rows waits for a writer's task that has rows, whether
    each of the writer's tasks has a reader)."""
    storage = [b.storage for b in flow.buffers]
    writers: dict[int, dict[int, tf.Access]] = {}
    for reader, op in enumerate(flow.ops):
        for read in dict.fromkeys(storage[access.buffer] for access in op.inputs):
            accesses = [access for access in op.inputs if storage[access.buffer] == read]
            for writer, written in writers.get(read, {}).items():
                yield writer, reader, read, *_needs(flow, flow.ops[writer], written, op, accesses)
        for access in op.outputs:
            writers.setdefault(storage[access.buffer], {})[reader] = access


def _needs(flow: tf.Taskflow, writer: tf.TileOp, written: tf.Access, reader: tf.TileOp,
           accesses: Sequence[tf.Access]) -> tuple[bool, bool]:
    """Returns whether a reading task needs a writing task, and whether all that is written is read."""
    cols = flow.buffers[written.buffer].cols
    is_odd = writer.primitive.moves_copies or reader.primitive.moves_copies or written.rows not in KNOWN
    if is_odd or any(flow.buffers[access.buffer].cols != cols for access in accesses):
        return False, False
    if writer.primitive.puts_back:
        is_needed, rows = False, row_modes.ENTRIES
        is_same = reader.domain.is_tiles and reader.domain.num_rows == flow.routes[writer.domain.route].num_tokens
    else:
        is_same = writer.domain.is_slots and reader.domain.is_slots and writer.domain.route == reader.domain.route
        is_same |= writer.domain.is_tiles and writer.domain == reader.domain
        rows = row_modes.OWN
        is_needed = is_same or (reader.domain.sums_rows and writer.domain.is_slots)
        is_needed &= all(access.rows in (row_modes.OWN, row_modes.EXPERT) for access in accesses)
    read = [reader.columns(access, cols) for access in accesses if access.rows is rows] if is_same else []
    return is_needed, covers(joined(read), [writer.columns(written, cols)])
