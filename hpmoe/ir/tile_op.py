"""TileOp: what tasks of a taskflow do, at which units, and which parts of which buffers they touch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpmoe.ir.avals import Rows
from hpmoe.support.dtypes import numpy_dtype, storage_dtype
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import Domain
from hpmoe.tile_ops.frame import Buffers
from hpmoe.tile_ops.params import NO_PARAMS, Leg, Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.tile_primitive import TilePrimitive


@dataclasses.dataclass(frozen=True)
class Buffer:
    """An array of one rank, seen as rows and columns.

    Attributes:
        name: printed name.
        shape: shape of the array; the number of received rows is a symbolic dimension.
        dtype: dtype of the elements.
        role: "input", "output", "saved" or "temporary".
        cols: number of columns, the leading dimension of the storage.
        num_rows: number of rows; None for the received rows of `route`.
        route: index of the route whose received rows the buffer holds, or -1.
        rows_per_expert: K of an array [E, K, N], else 0.
        storage: index of the buffer that this buffer is a view of; its own index if it is not a view.
        memory: index of an earlier buffer whose memory this buffer reuses after its last use, or -1.
    """

    name: str
    shape: tuple[int | Rows, ...]
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
        """Dtype of its elements in memory."""
        return numpy_dtype(storage_dtype(self.dtype))

    @property
    def row_bytes(self) -> int:
        return self.cols * self.stored_dtype.itemsize

    def user_view(self, array: np.ndarray) -> np.ndarray:
        """Returns a buffer's array [rows, columns] in the shape that the user sees."""
        return array.reshape(tuple(d if isinstance(d, int) else len(array) for d in self.shape))


def memory_of(buffers: Sequence[Buffer], b: int) -> int:
    """Returns the storage whose memory a buffer uses."""
    storage = buffers[b].storage
    return buffers[storage].memory if buffers[storage].memory >= 0 else storage


@dataclasses.dataclass(frozen=True)
class Access:
    """Region of a buffer that one task of a tile operation touches.

    Attributes:
        buffer: index of the buffer; -1 for the immediate `value`.
        rows: the RowMode that selects the rows, see tile_ops/row_modes.py.
        cols: the ColMode that selects the columns, see tile_ops/col_modes.py; `offset` is added to the task's columns.
    """

    buffer: int
    rows: RowMode = row_modes.OWN
    cols: ColMode = col_modes.OWN
    offset: int = 0
    value: float = 0.0


MAX_OPERANDS = 6
RELAYED = (row_modes.RELAY_ROWS, row_modes.RELAY_ENTRIES)
FANS = (row_modes.FAN, row_modes.RELAY_ENTRIES)


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class TileOp:
    """A tile operation: tasks that differ only in their coordinates, which are a row unit, a range of columns and a peer.

    Attributes:
        primitive: the TilePrimitive, one of tile_ops.
        label: printed name, that of the primitive of the equation.
        equation: index of the equation in the Program.
        unit: "aic" (matrix workers) or "aiv" (vector workers).
        domain: the row units of the tasks, such as slots or tiles of rows.
        operands: the Access of each operand, outputs first.
        num_outputs: number of operands that are written.
        cols: number of columns that the tasks cover together; 0 if a task takes whole rows.
        tile_cols: number of columns of one task.
        parts: number of tasks among which the rows of a unit are divided; above 1 only if a task takes whole rows.
        params: parameters of the kernel body besides operands.
        num_peers: number of tasks of a row unit that send to peers; 0 for local work. The task of peer j sends to the ranks
            at places j, j + num_peers, j + 2 num_peers, ... of the rank's peer order.
        signal: the rows that one event counts: those of a "tile", of an "expert" or, in a put, also of a "peer".
    """

    primitive: TilePrimitive
    label: str
    equation: int
    unit: str
    domain: Domain
    operands: tuple[Access, ...]
    num_outputs: int = 1
    cols: int = 0
    tile_cols: int = 0
    params: Params = NO_PARAMS
    num_peers: int = 0
    signal: str = "tile"
    parts: int = 1

    @property
    def opcode(self) -> str:
        """Name of the tile operation as printed."""
        return self.primitive.name

    @property
    def fans_out(self) -> bool:
        """True if it copies rows of tokens to all rows of the rank's experts."""
        return any(a.rows is row_modes.FAN for a in self.outputs)

    @property
    def has_fan(self) -> bool:
        """True if it touches all rows of a token at the experts of the rank, or of its node."""
        return any(a.rows in FANS for a in self.operands) and not self.primitive.moves_rows

    @property
    def is_relayed(self) -> bool:
        """True if relays pass on its rows, or receive them back."""
        return self.primitive.moves_rows and any(a.rows in RELAYED for a in self.operands)

    @property
    def index_text(self) -> str:
        """Text of a row that it writes, if the row finds its event itself."""
        return self.operands[0].rows.index if self.operands else "token"

    @property
    def leg(self) -> Leg | None:
        """Direction of the token rows that it moves or signals; None for other operations."""
        if self.primitive.is_completion_flag:
            return self.params.leg
        return self.primitive.leg if self.primitive.moves_rows else None

    @property
    def outputs(self) -> tuple[Access, ...]:
        return self.operands[:self.num_outputs]

    @property
    def inputs(self) -> tuple[Access, ...]:
        return tuple(a for a in self.operands[self.num_outputs:] if a.buffer >= 0)

    @property
    def kind(self) -> str:
        """Name of the tasks with the same time per row; see machine.Body.

        Example:
            >>> import hpmoe
            >>> x, w = hpmoe.ShapeDtypeStruct((8, 4), "float32"), hpmoe.ShapeDtypeStruct((4, 6), "float32")
            >>> flow = hpmoe.tile_partition(lambda x, w: (x @ w) + 1.0).lower(x, w, direction="backward")
            >>> [op.kind for op in flow.ops]
            ['GMM T', 'WGRAD']
        """
        return f"{self.primitive.work.like or self.primitive.name} {self.params.kind}".rstrip()

    @property
    def words(self) -> tuple[int, int, int, int]:
        """Words for its body beside the operands, as in a kernel's image."""
        first, *more = (*self.params.words(), 0, 0, 0, 0)[:4]
        return (first, *self.domain.summed_words) if self.primitive.sums_rows else (first, more[0], more[1], more[2])

    def replace(self, **changes: object) -> TileOp:
        return dataclasses.replace(self, **changes)

    @property
    def num_col_tiles(self) -> int:
        """Number of column tiles; 1 if a task takes whole rows."""
        return -(-self.cols // self.tile_cols) if self.cols else 1

    @property
    def grid(self) -> tuple[int, int, int]:
        """Numbers of units, peers (1 without peers), and column tiles or parts; it has a task for each combination."""
        return self.domain.size, max(1, self.num_peers), self.num_col_tiles if self.cols else max(1, self.parts)

    @property
    def can_divide_rows(self) -> bool:
        """True if its tasks take whole rows, and no others than those of their unit."""
        return not self.cols and not self.num_peers and (self.domain.is_slots or self.domain.is_tiles) and all(
            a.rows is row_modes.OWN for a in self.operands if a.buffer >= 0)

    def part_rows(self, tile_rows: int) -> int:
        """Returns the rows of a task's part of a full slot or tile of `tile_rows` rows; the last part may have fewer."""
        return -(-tile_rows // max(1, self.parts))

    def rows_of_parts(self, rows: np.ndarray, tile_rows: int) -> np.ndarray:
        """Returns the rows of each part of units with `rows` rows, [n] -> [n, parts]."""
        if self.parts == 1:
            return rows[:, None]
        height = self.part_rows(tile_rows)
        return np.clip(rows[:, None] - height * np.arange(self.parts), 0, height)

    def rows_of_task(self, rows: slice, part: int, tile_rows: int) -> slice:
        """Returns the rows of a task, among the rows of its unit; `part` is the column coordinate of the task."""
        if self.parts == 1:
            return rows
        height = self.part_rows(tile_rows)
        start = min(rows.start + part * height, rows.stop)
        return slice(start, min(start + height, rows.stop))

    def peers_of(self, peer: int, ep_size: int) -> range:
        """Returns the positions of the ranks that a task of `peer` sends to; -1 stays -1."""
        return range(peer, ep_size if peer >= 0 else 0, self.num_peers or ep_size)

    def columns(self, access: Access, total: int) -> tuple[int, int]:
        """Returns the range (start, stop) of an operand's `total` columns that the operation's tasks touch."""
        if access.cols is col_modes.OWN and self.cols:
            return access.offset, access.offset + self.cols
        return access.offset, 1 if access.cols is col_modes.ONE else total

    def width(self, i: int, buffers: Buffers) -> int:
        """Returns the columns of operand i from its offset on."""
        return buffers[self.operands[i].buffer].cols - self.operands[i].offset

    def col_range(self, first: int, last: int) -> tuple[int, int]:
        """Returns (first column, number of columns) of the column tiles first..last-1."""
        start = first * self.tile_cols
        return start, min(last * self.tile_cols, self.cols) - start
