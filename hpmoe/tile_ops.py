"""Tile operations: what the tasks of a taskflow do, at which units, and which parts of which buffers they touch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpmoe.dtypes import numpy_dtype, storage_dtype


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array of one rank, seen as rows and columns.

    Attributes:
        name: printed.
        shape: as the user sees it; a symbolic dimension where rows are received.
        dtype: of its elements.
        role: "input", "output", "saved" or "temporary".
        cols: columns, the leading dimension of the storage.
        num_rows: rows, or None for the received rows of `route`.
        route: index of the route that gives the rows, or -1.
        rows_per_expert: middle dimension of a [E, K, N] array, else 0.
        storage: the buffer that this one is a view of; its own index unless it is a view.
        memory: the earlier storage whose memory this one takes over once that is dead, or -1; see tiling/shared_memory.py.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: str
    role: str
    cols: int
    num_rows: int | None
    route: int
    rows_per_expert: int
    storage: int
    memory: int = -1

    @property
    def stored_dtype(self) -> np.dtype:
        """What its elements are in memory."""
        return numpy_dtype(storage_dtype(self.dtype))

    @property
    def row_bytes(self) -> int:
        return self.cols * self.stored_dtype.itemsize

    def user_view(self, array: np.ndarray) -> np.ndarray:
        """The buffer's array, of rows and columns, in the shape that the user sees."""
        return array.reshape(tuple(d if isinstance(d, int) else len(array) for d in self.shape))


def memory_of(buffers: Sequence[Buffer], b: int) -> int:
    """The storage in whose memory a buffer lies."""
    storage = buffers[b].storage
    return buffers[storage].memory if buffers[storage].memory >= 0 else storage


@dataclasses.dataclass(frozen=True)
class Access:
    """What one task of a tile operation touches of a buffer.

    Attributes:
        buffer: index of the buffer; -1 for the immediate `value`.
        rows: "own" (the unit of the task), "all", "one" (a single row, broadcast), "slot_expert" (of the expert of the
            slot), "expert" (received rows of the task's expert), "peer" (a slot on another rank), "entries" (rows by
            token * top_k + k), "tokens" (rows by token), "replica" (of the copy that the slot's expert is), "returned" (of
            all copies of the task's expert, as they came back), "fan" (all rows that the rank's experts have of the tokens
            of the unit, whose route is one to ranks).
        cols: "own" (the columns of the task, shifted by `offset`), "all", "one" (broadcast), or "block" (the rows of the
            weight block that a weight gradient computes, as columns).
    """

    buffer: int
    rows: str = "own"
    cols: str = "own"
    offset: int = 0
    value: float = 0.0


@dataclasses.dataclass(frozen=True)
class Domain:
    """What the row coordinate of a task counts.

    Attributes:
        kind: "once", "tiles" (static row tiles), "slots" (of a route), "experts" (blocks of weight rows) or "copies" (blocks
            of weight rows that go to copies or come back).
        size: number of units.
        num_rows: rows tiled ("tiles"), or number of experts ("experts") or copies ("copies").
        clipped: rows past a rank's number of tokens do not exist.
        route: index of the route, or -1.
        blocks: units per expert ("experts") or copy ("copies").
    """

    kind: str
    size: int
    num_rows: int = 0
    clipped: bool = False
    route: int = -1
    blocks: int = 1


MAX_OPERANDS = 6
WITH_ONE_PARAM = ("GMM", "MAP", "ROW_REDUCE", "NOTIFY", "LAUNCH")


@dataclasses.dataclass(frozen=True)
class TileOp:
    """One tile operation; its tasks differ only in their coordinates.

    Attributes:
        opcode: the tile body, see hpmoe.kernels.protocol.
        label: printed, the name of the primitive it came from.
        equation: index of that equation in the Program.
        unit: "aic" or "aiv".
        domain: what its tasks' row coordinate counts.
        operands: accesses, outputs first.
        num_outputs: how many of them are written.
        cols: columns that its tasks cover together; 0 where a task takes whole rows.
        tile_cols: columns of one task.
        params: what its body is told beside its operands; `read_params` says which of them.
        num_peers: 0 for local work, else for how many peers a unit has a task each; of ep_size ranks, that of peer j is for
            those at j, j + num_peers, j + 2 num_peers, ...
        signal: what one event of its rows stands for: a "tile"; all rows of an "expert"; of a put also all of a "peer".
    """

    opcode: str
    label: str
    equation: int
    unit: str
    domain: Domain
    operands: tuple[Access, ...]
    num_outputs: int = 1
    cols: int = 0
    tile_cols: int = 0
    params: tuple[int, ...] = ()
    num_peers: int = 0
    signal: str = "tile"

    @property
    def is_collective(self) -> bool:
        """Whether it exchanges the rows of all ranks at once, and blocks meanwhile."""
        return self.opcode in ("ALL_TO_ALL", "ALL_TO_ALL_BACK")

    @property
    def moves_rows(self) -> bool:
        """Whether it moves rows of tokens to other ranks, by a collective or by puts."""
        return self.is_collective or self.opcode in ("PUT", "PUT_BACK")

    @property
    def moves_copies(self) -> bool:
        """Whether it moves weights to copies of experts, or their gradients back."""
        return self.opcode in ("REPLICATE", "RETURN_GRADS")

    @property
    def outputs(self) -> tuple[Access, ...]:
        return self.operands[:self.num_outputs]

    @property
    def inputs(self) -> tuple[Access, ...]:
        return tuple(a for a in self.operands[self.num_outputs:] if a.buffer >= 0)

    @property
    def read_params(self) -> tuple[Any, ...]:
        """The params as a body reads them, and all that a kernel is given: what none asks about is 0, a flag is 0 or 1.

        Of a NOTIFY whether it tells of rows that come back, not which put it stands for; of sums over the rows of an expert
        not how many rows there are, nor whether padding is left out.
        """
        sums_all = self.domain.route < 0
        read = {"COL_SUM": (1, 2) if sums_all else (), "WGRAD": (0, 1, 2, 3) if sums_all else (0, 3), "REPLICATE": (0, 1),
                "RETURN_GRADS": (0, 1)}.get(self.opcode, (0,) if self.opcode in WITH_ONE_PARAM else ())
        flag = {"NOTIFY": 0, "GMM": 0, "COL_SUM": 2, "WGRAD": 2}.get(self.opcode)
        return tuple(0 if i not in read else int(bool(p)) if i == flag else p
                     for i, p in enumerate(self.params[:max(read, default=-1) + 1]))

    @property
    def first_row(self) -> int:
        """The row of its first unit: -1 for the only one of a NOTIFY that speaks for all experts of a peer, and past
        the rank's own experts for the weight gradients of copies."""
        if self.opcode == "WGRAD":
            return sum(self.params[3:4]) * self.domain.blocks
        return -1 if self.opcode == "NOTIFY" and self.signal == "peer" else 0

    @property
    def clipped_rows(self) -> int:
        """The rows, as many as a rank can have tokens, of which its tasks touch those of tokens; 0 where all are touched."""
        if self.domain.kind == "tiles" and self.domain.clipped:
            return self.domain.num_rows
        sums_rows = self.opcode in ("COL_SUM", "WGRAD") and self.domain.route < 0
        return self.params[1] if sums_rows and self.params[2] else 0

    def replace(self, **changes: Any) -> TileOp:
        return dataclasses.replace(self, **changes)

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many units, peers (one where there are none) and column tiles it has a task for each of."""
        return self.domain.size, max(1, self.num_peers), -(-self.cols // self.tile_cols) if self.cols else 1

    def peers_of(self, peer: int, ep_size: int) -> range:
        """The positions of the ranks that a task of `peer` is for; -1 stays alone."""
        return range(peer, ep_size if peer >= 0 else 0, self.num_peers or ep_size)

    def col_range(self, first: int, last: int) -> tuple[int, int]:
        """First column and number of columns of the column tiles first..last-1."""
        start = first * self.tile_cols
        return start, min(last * self.tile_cols, self.cols) - start

    def col_ranges(self) -> list[tuple[int, int]]:
        """(first column, number of columns) of each column tile."""
        return [self.col_range(i, i + 1) for i in range(self.grid[2])]
