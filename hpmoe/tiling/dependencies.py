"""Dependencies of tile tasks, derived from what each touches: row-counting events.

All tasks that read the same region share one event; every task that writes part of the region signals it with the rows it
made ready. The region is a unit (a slot, a row tile, an expert's rows, or everything) and a set of column ranges, so the
order is that of tiles and not of operators. A storage is written by one equation; where its memory is taken over, the
tasks that read it signal another event, which the next writers wait for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.errors import VerifyError
from hpmoe.support.intervals import joined
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.params import CompletionFlag
from hpmoe.tiling.event_tables import Counted, Tables, Tasks
from hpmoe.tiling.lifetimes import Release, lifetimes_of
from hpmoe.tiling.region_events import Columns, Region, RegionEvents
from hpmoe.tiling.wait_units import part_cols, read_unit


class _Derivation:
    """Derives the waits of each operation's tasks, in program order."""

    def __init__(self, buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                 tile_rows: int) -> None:
        self.buffers, self.ops, self.routes = buffers, ops, routes
        self.tables = Tables(ops)
        self.events = RegionEvents(buffers, ops, routes, tile_rows, self.tables)
        self.writers, self.tasks_of = self.events.writers, self.tables.tasks_of
        self.launch = 0
        self.launched: tf.EventBlock | None = None

    def run(self) -> tf.Dependencies:
        check_completion_flags(self.ops)
        releases: dict[int, list[Release]] = {}
        shares = any(b.memory >= 0 for b in self.buffers)
        for release in lifetimes_of(self.buffers, self.ops, self.routes).releases if shares else ():
            releases.setdefault(release.op, []).append(release)
        for i, op in enumerate(self.ops):
            if op.primitive.is_launch:
                self._launch(i)
                continue
            if self.launched is not None:
                self.tables.wait(self.tasks_of[i], self.launched.first)
            if op.primitive.is_completion_flag:
                self._wait_for_puts(i, op)
                continue
            for storage in dict.fromkeys(self.buffers[a.buffer].storage for a in op.inputs):
                if storage in self.writers:
                    self._wait_for(i, op, storage)
            for release in releases.get(i, ()):
                self._wait_for_release(release)
        return self.tables.finish()

    # Kernels launched one after another.

    def _launch(self, index: int) -> None:
        """Makes a launch wait for all tasks since the last one, and for rows that their collectives bring from others."""
        mine, before = self.tasks_of[index], range(self.launch, index)
        num_tasks = sum(self.tables.count(self.tasks_of[i]) for i in before)
        if num_tasks:
            ended = self._counter(("before", index), f"before {index}", num_tasks)
            self.tables.wait(mine, ended.first)
            for i in before:
                self.tables.signal(self.tasks_of[i], ended.first, amount=tf.COUNT)
        for op in (self.ops[i] for i in before if self.ops[i].primitive.is_blocking):
            storage = self.buffers[op.operands[0].buffer].storage
            whole = self.events.of(Region(storage, "all", ((0, self.buffers[storage].cols),)))
            self.tables.wait(mine, whole.first)
        self.launch, self.launched = index, self._counter(("launched", index), f"launch {index}", 1)
        self.tables.signal(mine, self.launched.first, amount=tf.COUNT)

    def _counter(self, key: object, name: str, times: int) -> tf.EventBlock:
        return self.tables.add_block(key, name, "count", (), Counted(tf.ONE, np.zeros(1, int), times))

    # What a reader waits for.

    def _wait_for(self, index: int, op: tf.TileOp, storage: int) -> None:
        """Makes an operation that reads a storage wait for it in the finest units that it has in common with all writers."""
        accesses = [a for a in op.inputs if self.buffers[a.buffer].storage == storage]
        writers = [self.ops[w] for w in self.writers[storage]]
        unit = read_unit(op, accesses, writers)
        signal = self._signal_of(storage)
        if signal == "peer" or (signal == "expert" and self._returns(storage)):
            unit = "all"
        by_expert = unit == "slot" and signal == "expert"
        is_whole = all(self.buffers[a.buffer].cols == self.buffers[storage].cols for a in accesses)
        parts = part_cols(op, accesses, writers, self.buffers[storage].cols) if is_whole else None
        for tasks, columns in self._column_sets(index, accesses, self.buffers[storage].cols, parts):
            region = Region(storage, "expert" if by_expert else unit, columns)
            block = self.events.of(region)
            if unit == "copies" and not (op.domain.is_slots or op.domain.sums_rows):
                for event in range(block.size):
                    self.tables.wait(tasks, block.first + event)
            elif by_expert or (unit == "copies" and op.domain.is_slots):
                self.tables.wait(tasks, block.first, tf.SLOT_EXPERT)
            else:
                self.tables.wait(tasks, block.first, by_unit=int(unit in ("slot", "tile", "block")),
                                 by_expert=int(unit in ("expert", "copies")), units=self.events.units_of(region))

    def _column_sets(self, index: int, accesses: list[tf.Access], total: int,
                     parts: int | None) -> Iterator[tuple[Tasks, Columns]]:
        """Groups a reader's tasks by the column ranges that they wait for, of those that come in these parts."""
        op, tasks = self.ops[index], self.tasks_of[index]
        modes = {a.cols for a in accesses}
        if parts is not None and modes == {col_modes.OWN} and op.cols:
            step = max(1, parts // op.tile_cols)
            for first in range(0, self.tables.num_tiles[index], step):
                last = min(first + step, self.tables.num_tiles[index])
                col, cols = op.col_range(first, last)
                columns = joined((col + a.offset, col + a.offset + cols) for a in accesses)
                yield Tasks(index, ((first, last),)), tuple(columns)
        elif parts is not None and modes == {col_modes.BLOCK}:
            for block in range(op.domain.blocks):
                start = block * op.params.block
                yield Tasks(index, tasks.tiles, block), ((start, min(start + op.params.block, total)),)
        else:
            yield tasks, ((0, total),)

    # Memory that is taken over.

    def _wait_for_release(self, release: Release) -> None:
        """Makes the tasks of `release.op` wait until the older storage's readers are done with their unit, or with all."""
        block = self.events.of_release(release)
        self.tables.wait(self.tasks_of[release.op], block.first, by_unit=int(release.unit != "count"))

    # Puts whose signals are batched by a NOTIFY task for each peer, or each (peer, expert).

    def _signal_of(self, storage: int) -> str:
        """Returns the unit that signals an event of its rows; fanned-out rows arrive slot by slot."""
        op = self.ops[self.writers[storage][0]]
        return "tile" if op.fans_out else op.signal

    def _returns(self, storage: int) -> bool:
        return self.ops[self.writers[storage][0]].primitive.puts_back

    def _wait_for_puts(self, index: int, op: tf.TileOp) -> None:
        """Makes a notify task of peer j (and expert e) wait until its rank's puts to that peer (and expert) are done."""
        tasks, (put,) = self.tasks_of[index], puts_of(op, self.ops)
        put_op, puts = self.ops[put], self.tasks_of[put]
        local = self.routes[op.domain.route].num_local_experts
        back, by_expert = put_op.primitive.is_back, op.signal == "expert"
        extent = {(False, False): tf.SENT_TO, (False, True): tf.SENT_TO_EXPERT, (True, False): tf.RETURNED_TO,
                  (True, True): tf.RETURNED_TO_FROM_EXPERT}[back, by_expert]
        size = op.num_peers * (local if by_expert else 1)
        name = self.buffers[put_op.operands[0].buffer].name
        counted = Counted(extent, np.arange(size), put_op.grid[2], op.domain.route)
        block = self.tables.add_block(("sent", put), name, "sent", (), counted, dynamic=by_expert)
        if by_expert:
            self.tables.wait(tasks, block.first, by_unit=1, by_peer=local)
            self.tables.signal(puts, block.first, tf.SLOT_EXPERT, by_peer=local)
        else:
            self.tables.wait(tasks, block.first, by_peer=1)
            self.tables.signal(puts, block.first, by_peer=1)


def puts_of(flag: tf.TileOp, ops: Sequence[tf.TileOp]) -> list[int]:
    """Returns the indices in `ops` of the puts that precede a completion flag."""
    return [i for i, op in enumerate(ops) if op.primitive.is_put and op.operands[0].buffer == flag.params.buffer]


def check_completion_flags(ops: Sequence[tf.TileOp]) -> None:
    """Raises VerifyError unless each put without signals of its own has one completion flag, which names the buffer it
    writes."""
    told: list[int] = []
    for i, op in enumerate(ops):
        if not op.primitive.is_completion_flag:
            continue
        puts = puts_of(op, ops) if isinstance(op.params, CompletionFlag) else []
        if len(puts) != 1 or not _is_alike(op, ops[puts[0]]):
            raise VerifyError(f"verify: ops[{i}], {op.opcode} {op.label}, has params {op.params}; their leg and buffer must "
                              f"be those of one put with as many peers and a signal for each {op.signal}, not of "
                              f"{sum(_is_alike(op, ops[put]) for put in puts)} such puts")
        told += puts
    for i, op in enumerate(ops):
        if op.primitive.is_put and told.count(i) != (op.signal != "tile"):
            raise VerifyError(f"verify: ops[{i}], {op.opcode} {op.label} with a signal for each {op.signal}, has "
                              f"{told.count(i)} completion flags; it must have {int(op.signal != 'tile')}")


def _is_alike(flag: tf.TileOp, put: tf.TileOp) -> bool:
    """Returns True if the completion flag may follow the put."""
    return (put.leg, put.signal, put.num_peers, put.domain.route) == (flag.leg, flag.signal, flag.num_peers,
                                                                      flag.domain.route)


@functools.lru_cache(maxsize=8)  # a flow is derived when it is made and again by every verify of it
def derive_dependencies(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                        tile_rows: int) -> tf.Dependencies:
    """Returns the dependencies that the accesses of `ops` imply, with read-only tables and without an origin."""
    return _Derivation(buffers, ops, routes, tile_rows).run()
