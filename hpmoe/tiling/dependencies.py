"""Dependencies of tile tasks, derived from what each touches: row-counting events.

All tasks that read the same region share one event; every task that writes part of the region signals it with the rows it
made ready. The region is a unit (a slot, a row tile, an expert's rows, or everything) and a set of column ranges, so the
order is that of tiles and not of operators. A storage is written by one equation; where its memory is taken over, the
tasks that read it signal another event, which the next writers wait for.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.intervals import Interval, joined
from hpmoe.tiling.event_tables import Tables, Tasks
from hpmoe.tiling.lifetimes import Release, lifetimes_of
from hpmoe.tiling.wait_units import part_cols, read_unit

Columns = tuple[Interval, ...]


@dataclasses.dataclass(frozen=True)
class _Region:
    """What one event block is about: all units of one kind of a storage, over some columns."""

    storage: int
    unit: str
    columns: Columns


class _Derivation:
    def __init__(self, buffers, ops, routes, tile_rows):
        self.buffers, self.ops, self.routes, self.tile_rows = buffers, ops, routes, tile_rows
        self.num_tiles = [op.grid[2] for op in ops]
        self.tasks_of = [Tasks(i, ((0, n),)) for i, n in enumerate(self.num_tiles)]
        self.tables = Tables(ops, self.num_tiles)
        self.launch, self.launched = 0, None
        self.writers: dict[int, list[int]] = {}
        for i, op in enumerate(ops):
            for storage in dict.fromkeys(buffers[a.buffer].storage for a in op.outputs):
                self.writers.setdefault(storage, []).append(i)

    def run(self):
        releases: dict[int, list[Release]] = {}
        shares = any(b.memory >= 0 for b in self.buffers)
        for release in lifetimes_of(self.buffers, self.ops, self.routes).releases if shares else ():
            releases.setdefault(release.op, []).append(release)
        for i, op in enumerate(self.ops):
            if op.opcode == "LAUNCH":
                self._launch(i)
                continue
            if self.launched is not None:
                self.tables.wait(self.tasks_of[i], self.launched.first)
            if op.opcode == "NOTIFY":
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
        """A launch waits for all tasks since the one before, and for what collectives among them bring from other ranks."""
        mine, before = self.tasks_of[index], range(self.launch, index)
        num_tasks = sum(self.tables.count(self.tasks_of[i]) for i in before)
        if num_tasks:
            ended = self._counter(("before", index), f"before {index}", num_tasks)
            self.tables.wait(mine, ended.first)
            for i in before:
                self.tables.signal(self.tasks_of[i], ended.first, amount=tf.COUNT)
        for op in (self.ops[i] for i in before if self.ops[i].is_collective):
            storage = self.buffers[op.operands[0].buffer].storage
            whole = self._block(_Region(storage, "all", ((0, self.buffers[storage].cols),)))
            self.tables.wait(mine, whole.first)
        self.launch, self.launched = index, self._counter(("launched", index), f"launch {index}", 1)
        self.tables.signal(mine, self.launched.first, amount=tf.COUNT)

    def _counter(self, key: object, name: str, times: int) -> tf.EventBlock:
        return self.tables.add_block(key, name, "count", (), tf.ONE, np.zeros(1, int), times, -1, False)

    # What a reader waits for.

    def _wait_for(self, index: int, op: tf.TileOp, storage: int) -> None:
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
            block = self._block(_Region(storage, "expert" if by_expert else unit, columns))
            if unit == "copies" and op.domain.kind not in ("slots", "experts"):
                for event in range(block.size):
                    self.tables.wait(tasks, block.first + event)
            elif by_expert or (unit == "copies" and op.domain.kind == "slots"):
                self.tables.wait(tasks, block.first, tf.SLOT_EXPERT)
            else:
                self.tables.wait(tasks, block.first, by_unit=int(unit in ("slot", "tile", "block")),
                                 by_expert=int(unit in ("expert", "copies")))

    def _column_sets(self, index: int, accesses: list[tf.Access], total: int,
                     parts: int | None) -> Iterator[tuple[Tasks, Columns]]:
        """Groups a reader's tasks by the column ranges that they wait for, of those that come in these parts."""
        op, tasks = self.ops[index], self.tasks_of[index]
        modes = {a.cols for a in accesses}
        if parts is not None and modes == {"own"} and op.cols:
            step = max(1, parts // op.tile_cols)
            for first in range(0, self.num_tiles[index], step):
                last = min(first + step, self.num_tiles[index])
                col, cols = op.col_range(first, last)
                columns = joined((col + a.offset, col + a.offset + cols) for a in accesses)
                yield Tasks(index, ((first, last),)), tuple(columns)
        elif parts is not None and modes == {"block"}:
            for block in range(op.domain.blocks):
                start = block * op.params[0]
                yield Tasks(index, tasks.tiles, block), ((start, min(start + op.params[0], total)),)
        else:
            yield tasks, ((0, total),)

    # Who signals the events of a region.

    def _block(self, region: _Region) -> tf.EventBlock:
        if region not in self.tables.blocks:
            self._make_block(region)
        return self.tables.blocks[region]

    def _make_block(self, region: _Region) -> None:
        chosen = [(w, self._overlapping(w, region)) for w in self.writers[region.storage]]
        first_op = self.ops[chosen[0][0]]
        extent, index, route = self._extent(region, first_op)
        mult = self._multiplicity(region, chosen, extent, index)
        columns = () if region.columns == ((0, self.buffers[region.storage].cols),) else region.columns
        is_put = first_op.num_peers and first_op.signal == "expert"
        dynamic = region.unit == "copies" or (region.unit == "expert" and not is_put) or (
            region.unit, first_op.opcode) in (("tile", "PUT_BACK"), ("slot", "FAN_OUT"))
        block = self.tables.add_block(region, self.buffers[region.storage].name, region.unit, columns, extent, index, mult,
                                      route, dynamic)
        for w, tasks in chosen:
            self._signal(block, region, self.ops[w], w, tasks)

    def _overlapping(self, writer: int, region: _Region) -> Tasks:
        """Tasks of a writer whose columns meet the region's; whole-row writers always do."""
        op, tasks, num_tiles = self.ops[writer], self.tasks_of[writer], self.num_tiles[writer]
        hits: list[Interval] = []
        for access in op.outputs:
            buffer = self.buffers[access.buffer]
            if buffer.storage != region.storage:
                continue
            if (op.cols == 0 or access.cols != "own" or region.unit == "count"
                    or buffer.cols != self.buffers[region.storage].cols):
                return tasks
            for start, stop in region.columns:
                first = max(0, (start - access.offset) // op.tile_cols)
                last = min(num_tiles, -((access.offset - stop) // op.tile_cols))
                hits += [(first, last)] if first < last else []
        return Tasks(writer, tuple(joined(hits)))

    def _extent(self, region: _Region, writer: tf.TileOp) -> tuple[int, np.ndarray, int]:
        """Extent kind, unit indices and route of a region's events."""
        route, one = writer.domain.route, np.zeros(1, int)
        if writer.opcode == "FAN_OUT" and self.buffers[writer.operands[0].buffer].storage == region.storage:
            route = self.routes[route].once_of
        back = writer.opcode in ("PUT_BACK", "ALL_TO_ALL_BACK")
        if region.unit == "count":
            return tf.ONE, one, -1
        if region.unit == "block":
            return tf.ONE, np.arange(writer.domain.size), -1
        if region.unit == "copies":
            extent = tf.REPLICA if writer.opcode == "REPLICATE" else tf.REPLICAS
            return extent, np.arange(self.routes[route].num_local_experts), route
        if region.unit == "expert":
            return tf.EXPERT, np.arange(self.routes[route].num_local_experts), route
        if region.unit == "slot":
            return tf.SLOT, np.arange(self.routes[route].num_slots), route
        if region.unit == "tile" and back:
            return tf.TILE_ENTRIES, np.arange(-(-self.routes[route].num_tokens // self.tile_rows)), route
        if region.unit == "tile":
            return (tf.TILE if writer.domain.clipped else tf.STATIC_TILE), np.arange(writer.domain.size), -1
        if back:
            return tf.ENTRIES, one, route
        if writer.domain.kind == "tiles":
            return (tf.TOKENS if writer.domain.clipped else tf.ONE), one, -1
        return tf.RECEIVED, one, route

    def _multiplicity(self, region: _Region, chosen, extent: int, index: np.ndarray) -> np.ndarray | int:
        """How often each of the unit's rows is signalled: once for every overlapping column tile."""
        if region.unit == "count":
            return sum(self.tables.count(tasks) for _, tasks in chosen)
        if region.unit == "copies":
            return self.buffers[region.storage].rows_per_expert
        tiles = sum(self._times(w, tasks) for w, tasks in chosen)
        if extent == tf.STATIC_TILE:
            rows = self.ops[chosen[0][0]].domain.num_rows
            return tiles * np.minimum(self.tile_rows, rows - index * self.tile_rows)
        if extent == tf.ONE and region.unit != "block":
            return tiles * self.ops[chosen[0][0]].domain.num_rows
        return tiles

    def _times(self, writer: int, tasks: Tasks) -> int:
        """How many of these tasks of an operation signal each row; a NOTIFY does so once for all parts of a put."""
        if self.ops[writer].num_peers and self.ops[writer].signal != "tile":
            return 1
        return sum(stop - start for start, stop in tasks.tiles)

    def _signal(self, block: tf.EventBlock, region: _Region, op: tf.TileOp, writer: int, tasks: Tasks) -> None:
        if op.num_peers and op.signal != "tile":
            self.tables.signal(self._notify_tasks(writer), block.first, by_unit=int(region.unit == "expert"), remote=tf.PEER)
        elif region.unit == "count":
            self.tables.signal(tasks, block.first, amount=tf.COUNT)
        elif region.unit == "block":
            self.tables.signal(tasks, block.first - op.first_row, by_unit=1, amount=tf.COUNT)
        elif region.unit == "copies":
            self.tables.signal(tasks, block.first, tf.SLOT_EXPERT, remote=tf.PEER)
        elif op.is_collective:
            self.tables.signal(tasks, block.first, remote=tf.EVERY_RANK)
        else:
            remote = tf.PEER if op.num_peers else tf.LOCAL
            if region.unit == "expert":
                self.tables.signal(tasks, block.first, tf.SLOT_EXPERT, remote=remote)
            elif (region.unit, op.opcode) in (("tile", "PUT_BACK"), ("slot", "FAN_OUT")):
                self.tables.signal(tasks, block.first, tf.ENTRY_TILE, remote=remote)
            else:
                self.tables.signal(tasks, block.first, by_unit=int(region.unit != "all"), remote=remote)

    # Memory that is taken over.

    def _wait_for_release(self, release: Release) -> None:
        """The tasks of `release.op` wait until the older storage's readers are done with their unit of it, or with all."""
        block = self.tables.blocks.get((release.old, release.unit)) or self._release_block(release)
        self.tables.wait(self.tasks_of[release.op], block.first, by_unit=int(release.unit != "count"))

    def _release_block(self, release: Release) -> tf.EventBlock:
        old, readers = release.old, [(r, self.tasks_of[r]) for r in release.readers]
        region = _Region(old, release.unit, ())
        extent, index, route = self._extent(region, self.ops[release.readers[0]])
        mult = self._multiplicity(region, readers, extent, index)
        block = self.tables.add_block((old, release.unit), f"{self.buffers[old].name}.free", release.unit, (), extent, index,
                                      mult, route, False)
        for _, tasks in readers:
            if release.unit == "count":
                self.tables.signal(tasks, block.first, amount=tf.COUNT)
            else:
                self.tables.signal(tasks, block.first, by_unit=1)
        return block

    # Puts whose signals are batched by a NOTIFY task for each peer, or each (peer, expert).

    def _signal_of(self, storage: int) -> str:
        """What an event of its rows stands for; rows that are fanned out arrive slot by slot alone."""
        op = self.ops[self.writers[storage][0]]
        return "tile" if op.opcode == "FAN_OUT" else op.signal

    def _returns(self, storage: int) -> bool:
        return self.ops[self.writers[storage][0]].opcode == "PUT_BACK"

    def _notify_tasks(self, put: int) -> Tasks:
        (notify,) = [i for i, op in enumerate(self.ops) if op.opcode == "NOTIFY" and op.params[1] == put]
        return self.tasks_of[notify]

    def _wait_for_puts(self, index: int, op: tf.TileOp) -> None:
        """A notify task of peer j (and expert e) waits until its rank's puts to that peer (and expert) are done."""
        put, tasks = op.params[1], self.tasks_of[index]
        put_op, puts = self.ops[put], self.tasks_of[put]
        local = self.routes[op.domain.route].num_local_experts
        back, by_expert = put_op.opcode == "PUT_BACK", op.signal == "expert"
        extent = {(False, False): tf.SENT_TO, (False, True): tf.SENT_TO_EXPERT, (True, False): tf.RETURNED_TO,
                  (True, True): tf.RETURNED_TO_FROM_EXPERT}[back, by_expert]
        size = op.num_peers * (local if by_expert else 1)
        name = self.buffers[put_op.operands[0].buffer].name
        block = self.tables.add_block(("sent", put), name, "sent", (), extent, np.arange(size), put_op.grid[2],
                                      op.domain.route, by_expert)
        if by_expert:
            self.tables.wait(tasks, block.first, by_unit=1, by_peer=local)
            self.tables.signal(puts, block.first, tf.SLOT_EXPERT, by_peer=local)
        else:
            self.tables.wait(tasks, block.first, by_peer=1)
            self.tables.signal(puts, block.first, by_peer=1)


@functools.lru_cache(maxsize=8)  # a flow is derived when it is made and again by every verify of it
def derive_dependencies(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                        tile_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[tf.EventBlock, ...]]:
    """Events, waits and signals (read-only EVENT, WAIT, SIGNAL arrays) and event blocks that the accesses of `ops` imply."""
    events, waits, signals, blocks = _Derivation(buffers, ops, routes, tile_rows).run()
    for table in (events, waits, signals):
        table.setflags(write=False)
    return events, waits, signals, blocks
