"""The tables of events, waits and signals under construction: rules for runs of tasks, expanded task by task at the end."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.planner.planner import GRID, RULE, expand_rules


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Tasks of an operation: those of some runs of its column tiles and, of each expert, of all blocks (-1) or of one."""

    op: int
    tiles: tuple[tuple[int, int], ...]
    block: int = -1

    @property
    def num_tiles(self) -> int:
        """Number of column tiles in the runs."""
        return sum(stop - start for start, stop in self.tiles)


@dataclasses.dataclass(frozen=True)
class Counted:
    """Thresholds of a block's events: `mult` times the `extent` of unit `index`."""

    extent: int
    index: np.ndarray
    mult: np.ndarray | int
    route: int = -1


class Tables:
    """Event blocks, waits and signals under construction.

    Attributes:
        num_tiles: column tiles of each operation.
        tasks_of: all tasks of each operation.
        blocks: the event blocks, by what their makers find them by.
    """

    def __init__(self, ops: tuple[tf.TileOp, ...]) -> None:
        self.ops, self.num_tiles = ops, [op.grid[2] for op in ops]
        self.tasks_of = [Tasks(i, ((0, n),)) for i, n in enumerate(self.num_tiles)]
        self.blocks: dict[object, tf.EventBlock] = {}
        self.events: list[Counted] = []
        self.waits: list[tuple[int, ...]] = []
        self.signals: list[tuple[int, ...]] = []
        self.num_events = self.num_waits = self.num_signals = 0

    def add_block(self, key: object, name: str, unit: str, columns: tuple[tuple[int, int], ...], counted: Counted,
                  dynamic: bool = False) -> tf.EventBlock:
        """Adds an event for each counted unit; the arguments except `key` are those of EventBlock."""
        size = len(counted.index)
        block = tf.EventBlock(name, unit, columns, self.num_events, size, dynamic)
        self.blocks[key] = block
        self.events.append(counted)
        self.num_events += size
        return block

    def count(self, tasks: Tasks) -> int:
        """Returns the number of tasks of all blocks."""
        op = self.ops[tasks.op]
        return op.domain.size * max(1, op.num_peers) * tasks.num_tiles

    def wait(self, tasks: Tasks, event: int, kind: int = tf.STATIC, *, by_unit: int = 0, by_expert: int = 0,
             by_peer: int = 0, units: int = 1) -> None:
        """Makes the task of unit u (block u // blocks of its expert) and peer j wait for event + u // units by_unit + ..."""
        self.num_waits += self.count(tasks)
        self.waits += [(tasks.op, *run, tasks.block, event, units, by_unit, by_expert, by_peer, kind, 0, 0)
                       for run in tasks.tiles]

    def signal(self, tasks: Tasks, event: int, kind: int = tf.STATIC, *, by_unit: int = 0, by_peer: int = 0,
               amount: int = tf.ROWS, remote: int = tf.LOCAL) -> None:
        self.num_signals += self.count(tasks)
        self.signals += [(tasks.op, *run, tasks.block, event, 1, by_unit, 0, by_peer, kind, amount, remote)
                         for run in tasks.tiles]

    def finish(self) -> tf.Dependencies:
        """Returns the tables, read-only."""
        grids = np.array([(op.domain.first, op.domain.size, op.num_peers, tiles, op.domain.blocks)
                          for op, tiles in zip(self.ops, self.num_tiles, strict=True)], GRID)
        waits, signals = (expand_rules(grids, np.array(sorted(rules, key=lambda r: r[0]), RULE), count, dtype)
                          for rules, count, dtype in ((self.waits, self.num_waits, tf.WAIT),
                                                      (self.signals, self.num_signals, tf.SIGNAL)))
        events = self._events()
        for table in (events, waits, signals):
            table.setflags(write=False)
        return tf.Dependencies(events, waits, signals, tuple(self.blocks.values()))

    def _events(self) -> np.ndarray:
        events, sizes = np.zeros(self.num_events, tf.EVENT), [len(c.index) for c in self.events]
        for column, values in (("extent", [c.extent for c in self.events]), ("route", [c.route for c in self.events]),
                               ("block", range(len(self.events)))):
            events[column] = np.repeat(np.array(values, "i4"), sizes)
        first = 0
        for counted, size in zip(self.events, sizes, strict=True):
            events["index"][first:first + size] = counted.index
            events["mult"][first:first + size] = counted.mult
            first += size
        return events
