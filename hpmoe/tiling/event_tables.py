"""The tables of events, waits and signals under construction: rules for runs of tasks, expanded task by task at the end."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.native.planner import GRID, RULE, expand_rules


@dataclasses.dataclass(frozen=True)
class Tasks:
    """Tasks of an operation: those of some runs of its column tiles and, of each expert, of all blocks (-1) or of one."""

    op: int
    tiles: tuple[tuple[int, int], ...]
    block: int = -1


class Tables:
    """Event blocks, and what tasks wait for and signal, under construction."""

    def __init__(self, ops: tuple[tf.TileOp, ...], num_tiles: list[int]) -> None:
        self.ops, self.num_tiles = ops, num_tiles
        self.blocks: dict[object, tf.EventBlock] = {}
        self.events: list[tuple[int, np.ndarray, np.ndarray | int, int]] = []
        self.waits: list[tuple[int, ...]] = []
        self.signals: list[tuple[int, ...]] = []
        self.num_events = self.num_waits = self.num_signals = 0

    def add_block(self, key: object, name: str, unit: str, columns: tuple[tuple[int, int], ...], extent: int,
                  index: np.ndarray, mult: np.ndarray | int, route: int, dynamic: bool) -> tf.EventBlock:
        block = tf.EventBlock(name, unit, columns, self.num_events, len(index), dynamic)
        self.blocks[key] = block
        self.events.append((extent, index, mult, route))
        self.num_events += len(index)
        return block

    def count(self, tasks: Tasks) -> int:
        """How many tasks, of all blocks."""
        op = self.ops[tasks.op]
        return op.domain.size * max(1, op.num_peers) * sum(stop - start for start, stop in tasks.tiles)

    def wait(self, tasks: Tasks, event: int, kind: int = tf.STATIC, *, by_unit: int = 0, by_expert: int = 0,
             by_peer: int = 0) -> None:
        """Task of unit u (block u // blocks of its expert) and peer j waits for event + u by_unit + ... + j by_peer."""
        self.num_waits += self.count(tasks)
        self.waits += [(tasks.op, *run, tasks.block, event, by_unit, by_expert, by_peer, kind, 0, 0) for run in tasks.tiles]

    def signal(self, tasks: Tasks, event: int, kind: int = tf.STATIC, *, by_unit: int = 0, by_peer: int = 0,
               amount: int = tf.ROWS, remote: int = tf.LOCAL) -> None:
        self.num_signals += self.count(tasks)
        self.signals += [(tasks.op, *run, tasks.block, event, by_unit, 0, by_peer, kind, amount, remote)
                         for run in tasks.tiles]

    def finish(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[tf.EventBlock, ...]]:
        grids = np.array([(op.first_row, op.domain.size, op.num_peers, tiles, op.domain.blocks)
                          for op, tiles in zip(self.ops, self.num_tiles, strict=True)], GRID)
        waits, signals = (expand_rules(grids, np.array(sorted(rules, key=lambda r: r[0]), RULE), count, dtype)
                          for rules, count, dtype in ((self.waits, self.num_waits, tf.WAIT),
                                                      (self.signals, self.num_signals, tf.SIGNAL)))
        return self._events(), waits, signals, tuple(self.blocks.values())

    def _events(self) -> np.ndarray:
        events, sizes = np.zeros(self.num_events, tf.EVENT), [len(index) for _, index, _, _ in self.events]
        for column, values in (("extent", [e[0] for e in self.events]), ("route", [e[3] for e in self.events]),
                               ("block", range(len(self.events)))):
            events[column] = np.repeat(np.array(values, "i4"), sizes)
        first = 0
        for _, index, mult, _ in self.events:
            events["index"][first:first + len(index)] = index
            events["mult"][first:first + len(index)] = mult
            first += len(index)
        return events
