"""The events of what tasks read: for each unit of a region how many rows are awaited, and which tasks signal them."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.intervals import Interval, joined
from hpmoe.tile_ops import col_modes
from hpmoe.tiling.event_tables import Counted, Tables, Tasks
from hpmoe.tiling.lifetimes import Release

Columns = tuple[Interval, ...]
Writers = list[tuple[int, Tasks]]  # operations that write a region, and which of their tasks do


@dataclasses.dataclass(frozen=True)
class Region:
    """Region of one event block: all units of one kind (see `read_unit`) of a storage, over some columns."""

    storage: int
    unit: str
    columns: Columns


class RegionEvents:
    """Event blocks, made when the first reader of a region asks, with the signals of all tasks that write there.

    Attributes:
        writers: the operations that write each storage, in program order.
    """

    def __init__(self, buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                 tile_rows: int, tables: Tables) -> None:
        self.buffers, self.ops, self.routes, self.tile_rows, self.tables = buffers, ops, routes, tile_rows, tables
        self.writers: dict[int, list[int]] = {}
        for i, op in enumerate(ops):
            for storage in dict.fromkeys(buffers[a.buffer].storage for a in op.outputs):
                self.writers.setdefault(storage, []).append(i)

    def units_of(self, region: Region) -> int:
        """Returns the number of consecutive units that share an event."""
        writer = self.ops[self.writers[region.storage][0]]
        is_back = region.unit == "tile" and writer.primitive.returns_rows
        return self.routes[writer.domain.route].return_tokens // self.tile_rows if is_back else 1

    def of(self, region: Region) -> tf.EventBlock:
        """Returns the event block of a region, an event for each unit."""
        return self.tables.blocks.get(region) or self._make(region)

    def _make(self, region: Region) -> tf.EventBlock:
        chosen = [(w, self._overlapping(w, region)) for w in self.writers[region.storage]]
        first_op = self.ops[chosen[0][0]]
        extent, index, route = self._extent(region, first_op)
        times = sum(self._times(w, tasks) for w, tasks in chosen)
        mult = self._multiplicity(region, chosen, times, extent, index)
        columns = () if region.columns == ((0, self.buffers[region.storage].cols),) else region.columns
        is_put = first_op.num_peers and first_op.signal == "expert"
        dynamic = (region.unit == "copies" or (region.unit == "expert" and not is_put)
                   or _is_by_entry(region, first_op))
        block = self.tables.add_block(region, self.buffers[region.storage].name, region.unit, columns,
                                      Counted(extent, index, mult, route), dynamic)
        for w, tasks in chosen:
            self._signal(block, region, w, tasks)
        return block

    def _overlapping(self, writer: int, region: Region) -> Tasks:
        """Returns the tasks of a writer whose columns meet the region's; whole-row writers always do."""
        op, tasks, num_tiles = self.ops[writer], self.tables.tasks_of[writer], self.tables.num_tiles[writer]
        hits: list[Interval] = []
        for access in op.outputs:
            buffer = self.buffers[access.buffer]
            if buffer.storage != region.storage:
                continue
            if (op.cols == 0 or access.cols is not col_modes.OWN or region.unit == "count"
                    or buffer.cols != self.buffers[region.storage].cols):
                return tasks
            for start, stop in region.columns:
                first = max(0, (start - access.offset) // op.tile_cols)
                last = min(num_tiles, -((access.offset - stop) // op.tile_cols))
                hits += [(first, last)] if first < last else []
        return Tasks(writer, tuple(joined(hits)))

    def _extent(self, region: Region, writer: tf.TileOp) -> tuple[int, np.ndarray, int]:
        """Returns the extent kind, unit indices and route of a region's events."""
        route, one = writer.domain.route, np.zeros(1, int)
        if writer.fans_out and self.buffers[writer.operands[0].buffer].storage == region.storage:
            route = self.routes[route].of
        back = writer.primitive.returns_rows
        if region.unit == "count":
            return tf.ONE, one, -1
        if region.unit == "block":
            return tf.ONE, np.arange(writer.domain.size), -1
        if region.unit == "copies":
            extent = tf.REPLICAS if writer.primitive.is_back else tf.REPLICA
            return extent, np.arange(self.routes[route].num_local_experts), route
        if region.unit == "expert":
            return tf.EXPERT, np.arange(self.routes[route].num_local_experts), route
        if region.unit == "slot":
            return tf.SLOT, np.arange(self.routes[route].num_slots), route
        if region.unit == "tile" and back:
            return tf.TILE_ENTRIES, np.arange(self.routes[route].num_returns), route
        if region.unit == "tile":
            return (tf.TILE if writer.domain.clipped else tf.STATIC_TILE), np.arange(writer.domain.size), -1
        if back:
            return (tf.RELAYED if writer.is_relayed else tf.ENTRIES), one, route
        if writer.domain.is_tiles:
            return (tf.TOKENS if writer.domain.clipped else tf.ONE), one, -1
        return tf.RECEIVED, one, route

    def _multiplicity(self, region: Region, chosen: Writers, times: int, extent: int,
                      index: np.ndarray) -> np.ndarray | int:
        """Returns the multiple of its extent that a region's event waits for, if each row is signalled `times` times."""
        if region.unit == "count":
            return sum(self.tables.count(tasks) for _, tasks in chosen)
        if region.unit == "copies":
            return self.buffers[region.storage].rows_per_expert or 1
        if extent == tf.STATIC_TILE:
            rows = self.ops[chosen[0][0]].domain.num_rows
            return times * np.minimum(self.tile_rows, rows - index * self.tile_rows)
        if extent == tf.ONE and region.unit != "block":
            return times * self.ops[chosen[0][0]].domain.num_rows
        return times

    def _times(self, writer: int, tasks: Tasks) -> int:
        """Returns how often the tasks signal each row: once per column tile; a NOTIFY signals all of a put."""
        return 1 if self.ops[writer].num_peers and self.ops[writer].signal != "tile" else self._times_each(tasks)

    def _times_each(self, tasks: Tasks) -> int:
        """Returns how many of the tasks of a unit touch each of its rows."""
        return 1 if self.ops[tasks.op].parts > 1 else tasks.num_tiles

    def _signal(self, block: tf.EventBlock, region: Region, writer: int, tasks: Tasks) -> None:
        """Makes the tasks of a writer signal the events of the units that they have rows of."""
        op = self.ops[writer]
        if op.num_peers and op.signal != "tile":
            self.tables.signal(self._notify_tasks(writer), block.first, by_unit=int(region.unit == "expert"), remote=tf.PEER)
        elif region.unit == "count":
            self.tables.signal(tasks, block.first, amount=tf.COUNT)
        elif region.unit == "block":
            self.tables.signal(tasks, block.first - op.domain.first, by_unit=1, amount=tf.COUNT)
        elif region.unit == "copies":
            self.tables.signal(tasks, block.first, tf.SLOT_EXPERT, remote=tf.PEER)
        elif op.primitive.is_blocking:
            self.tables.signal(tasks, block.first, remote=tf.EVERY_RANK)
        else:
            remote = tf.PEER if op.num_peers else tf.LOCAL
            if region.unit == "expert":
                self.tables.signal(tasks, block.first, tf.SLOT_EXPERT, remote=remote)
            elif _is_by_entry(region, op):
                self.tables.signal(tasks, block.first, tf.ENTRY_TILE, remote=remote)
            else:
                self.tables.signal(tasks, block.first, by_unit=int(region.unit != "all"), remote=remote)

    def _notify_tasks(self, put: int) -> Tasks:
        """Returns the tasks that signal for the puts of an operation, one for each peer or each (peer, expert)."""
        written = self.ops[put].operands[0].buffer
        (notify,) = [i for i, op in enumerate(self.ops) if op.primitive.is_completion_flag and op.params.buffer == written]
        return self.tables.tasks_of[notify]

    def of_release(self, release: Release) -> tf.EventBlock:
        """Returns the events of memory that is taken over: the old storage's readers are done with a unit, or with all."""
        return self.tables.blocks.get((release.old, release.unit)) or self._make_release(release)

    def _make_release(self, release: Release) -> tf.EventBlock:
        old, readers = release.old, [(r, self.tables.tasks_of[r]) for r in release.readers]
        region = Region(old, release.unit, ())
        extent, index, route = self._extent(region, self.ops[release.readers[0]])
        mult = self._multiplicity(region, readers, sum(self._times_each(tasks) for _, tasks in readers), extent, index)
        block = self.tables.add_block((old, release.unit), f"{self.buffers[old].name}.free", release.unit, (),
                                      Counted(extent, index, mult, route))
        for _, tasks in readers:
            if release.unit == "count":
                self.tables.signal(tasks, block.first, amount=tf.COUNT)
            else:
                self.tables.signal(tasks, block.first, by_unit=1)
        return block


def _is_by_entry(region: Region, writer: tf.TileOp) -> bool:
    """Returns True if routing decides which event counts a row: rows that return to tokens, or go to several experts."""
    goes_back = region.unit == "tile" and writer.primitive.puts_back
    return goes_back or (region.unit == "slot" and writer.fans_out)
