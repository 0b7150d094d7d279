"""Taskflow: the tile-level IR. Few tile operations, many tasks, and the events that order them; one for all ranks.

A task is a tile operation at a unit of its domain (a row slot, a row tile, an expert) and a range of columns. Tasks wait
for events and signal them; an event counts rows, and is reached when it has counted `mult` times the rows of its unit.
The tables are NumPy arrays; a task on a unit that turns out empty adds nothing and nobody waits for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpmoe.capacity import Capacity
from hpmoe.placement import Placement
from hpmoe.routing import max_slots

TASK = np.dtype([("op", "i4"), ("peer", "i4"), ("row", "i4"), ("col", "i4"), ("cols", "i4")])
WAIT = np.dtype([("task", "i4"), ("event", "i4"), ("kind", "i4")])
SIGNAL = np.dtype([("task", "i4"), ("event", "i4"), ("kind", "i2"), ("amount", "i2"), ("remote", "i4")])
EVENT = np.dtype([("extent", "i4"), ("index", "i4"), ("mult", "i4"), ("route", "i4"), ("block", "i4")])

# How the index of a waited or signalled event is found, what a signal adds, and where its counter lives. ENTRY_TILE: of each
# row by where it arrives, the tile of its token, or after a fan_out its slot.
STATIC, SLOT_EXPERT, ENTRY_TILE = range(3)
ROWS, COUNT = range(2)
LOCAL, PEER, EVERY_RANK = range(3)
# What an event's threshold is a multiple of.
(ONE, SLOT, EXPERT, RECEIVED, TILE, STATIC_TILE, TOKENS, ENTRIES, TILE_ENTRIES, SENT_TO, SENT_TO_EXPERT, RETURNED_TO,
 RETURNED_TO_FROM_EXPERT, REPLICA, REPLICAS) = range(15)


def row_keys(table: np.ndarray) -> np.ndarray:
    """One int64 for each row of a WAIT or SIGNAL array; equal rows have equal keys, and keys sort by task, then event."""
    keys = (table["task"].astype(np.int64) << 28 | table["event"]) << 3 | table["kind"]
    if "amount" in table.dtype.names:
        keys = keys << 4 | table["amount"] << 2 | table["remote"]
    return keys


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
        memory: the earlier storage whose memory this one takes over once that is dead, or -1; see lifetimes.py.
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
        num_peers: 0 for local work, else the number of ranks it has a task for.
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

    def col_ranges(self) -> list[tuple[int, int]]:
        """(first column, number of columns) of each column tile."""
        if self.cols == 0:
            return [(0, 0)]
        return [(c, min(self.tile_cols, self.cols - c)) for c in range(0, self.cols, self.tile_cols)]


@dataclasses.dataclass(frozen=True)
class RoutePlan:
    """A route as the kernel sees it: where the ids are, how many slots the plan has for them, and what is dropped.

    `num_experts` are the model's; `num_local_experts` of each rank, with the copies it holds under `placement`. `weights` is
    the buffer of the topk_weights that decide what is dropped, or -1. `once_of` is -1, or of a route to ranks, which takes a
    token to a rank once, the index of the route whose experts' ranks these are.
    """

    ids: int
    num_experts: int
    num_local_experts: int
    top_k: int
    num_tokens: int
    max_rows: int
    tile_rows: int
    ep_size: int
    capacity: Capacity | None = None
    weights: int = -1
    placement: Placement | None = None
    once_of: int = -1

    @property
    def num_own_experts(self) -> int:
        """Experts that each rank owns."""
        return self.num_experts // self.ep_size

    @property
    def num_replicas(self) -> int:
        """Copies of other ranks' experts that each rank has room for."""
        return self.num_local_experts - self.num_own_experts

    @property
    def num_slots(self) -> int:
        return self.slots_of(self.num_local_experts)

    def slots_of(self, num_experts: int, sources: int | None = None) -> int:
        """The most slots that the first `num_experts` local experts can need; each takes a token of a rank at most once.

        Of the last one only the rows from `sources` ranks count, the receiving one and those after it, which come first; all
        where None. They may begin inside a slot.
        """
        whole, part = (-(-n * self.num_tokens // self.tile_rows) for n in (self.ep_size, sources or self.ep_size))
        return min(max_slots(self.max_rows, num_experts, self.tile_rows), (num_experts - 1) * whole + min(whole, part + 1))


@dataclasses.dataclass(frozen=True)
class EventBlock:
    """Consecutive events of one buffer region kind: event `first + i` is about unit i.

    Attributes:
        name: of the buffer.
        unit: "slot", "tile", "expert", "all", "sent" or "count".
        columns: the column ranges read, or () for all.
        dynamic: signals find the unit at run time, so every producer may feed every event of the block.
    """

    name: str
    unit: str
    columns: tuple[tuple[int, int], ...]
    first: int
    size: int
    dynamic: bool

    def replace(self, **changes: Any) -> EventBlock:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Made:
    """What tile_partition or `rebuild` made a taskflow's tasks and dependencies for; see the attributes of Taskflow."""

    ep_size: int
    tile_rows: int
    buffers: tuple[Buffer, ...]
    ops: tuple[TileOp, ...]
    routes: tuple[RoutePlan, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Taskflow:
    """Tile tasks of one program, the same on every rank, and what orders them.

    Attributes:
        name, ep_size, provenance: as of the Program.
        tile_rows: rows of a slot or row tile.
        buffers, ops, routes: small tables of the objects above.
        inputs, outputs: buffer of each program input and output.
        tasks: TASK array.
        events, waits, signals: EVENT, WAIT and SIGNAL arrays.
        blocks: what the events are about, for text and queries.
        peer_order: [ep, ep]; a task of peer j on rank r talks to rank peer_order[r, j].
        machine: what it was tiled for, where tile_partition was told; after assign_queues, what it was assigned for.
        queues: after assign_queues, the task indices of each queue, in order.
        made: what its tables were made for; `verify` refuses operations or buffers changed since.
    """

    name: str
    ep_size: int
    provenance: tuple[str, ...]
    tile_rows: int
    buffers: tuple[Buffer, ...]
    ops: tuple[TileOp, ...]
    routes: tuple[RoutePlan, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    tasks: np.ndarray
    events: np.ndarray
    waits: np.ndarray
    signals: np.ndarray
    blocks: tuple[EventBlock, ...]
    peer_order: np.ndarray
    machine: Any = None
    queues: tuple[np.ndarray, ...] = ()
    made: Made | None = None

    @property
    def level(self) -> str:
        return "queues" if self.queues else "tiles"

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def num_slots(self) -> int:
        return sum(r.num_slots for r in self.routes)

    def replace(self, **changes: Any) -> Taskflow:
        return dataclasses.replace(self, **changes)

    def units(self) -> np.ndarray:
        """True for each task of the matrix unit, [num_tasks] bool."""
        is_aic = np.array([op.unit == "aic" for op in self.ops], bool)
        if self.tasks is not make_tasks(self.ops):
            return is_aic[self.tasks["op"]]
        return np.repeat(is_aic, [math.prod(op.grid) for op in self.ops])

    def costs(self, machine: Any) -> np.ndarray:
        """Estimated microseconds of each task alone on `machine`, every slot taken as full, [num_tasks]."""
        from hpmoe.costs import task_costs
        return task_costs(self, machine)

    def __str__(self) -> str:
        from hpmoe.taskflow_text import taskflow_text
        return taskflow_text(self)

    __repr__ = __str__


@functools.lru_cache(maxsize=8)
def make_tasks(ops: tuple[TileOp, ...]) -> np.ndarray:
    """All tasks of `ops`, read-only: operation by operation, then by unit, peer and columns."""
    ranges = [op.col_ranges() for op in ops]
    shapes = [op.grid for op in ops]
    tasks, first = np.empty(sum(map(math.prod, shapes)), TASK), 0
    for index, (op, shape, cols) in enumerate(zip(ops, shapes, ranges, strict=True)):
        grid = tasks[first:first + math.prod(shape)].reshape(shape)
        first += grid.size
        grid["op"] = index
        grid["row"] = (np.arange(shape[0]) + op.first_row)[:, None, None]
        grid["peer"] = np.arange(shape[1])[:, None] if op.num_peers else -1
        grid["col"], grid["cols"] = np.array(cols, "i4").T
    tasks.setflags(write=False)
    return tasks


def as_made(flow: Taskflow) -> Taskflow:
    """The taskflow with a note of what its tables were made for."""
    return flow.replace(made=Made(*(getattr(flow, field.name) for field in dataclasses.fields(Made))))


def rebuild(flow: Taskflow, ops: tuple[TileOp, ...], **changes: Any) -> Taskflow:
    """The taskflow of other tile operations over the same arrays: tasks, dependencies and shared memory are found anew."""
    from hpmoe.dependencies import derive_dependencies
    from hpmoe.lifetimes import share_memory
    from hpmoe.limits import check_limits
    check_limits(flow.name, flow.ep_size, flow.buffers, ops, flow.routes)
    buffers = share_memory(flow.buffers, ops, flow.routes)
    events, waits, signals, blocks = derive_dependencies(buffers, ops, flow.routes, flow.tile_rows)
    return as_made(flow.replace(buffers=buffers, ops=ops, tasks=make_tasks(ops), events=events, waits=waits,
                                signals=signals, blocks=blocks, queues=(), **changes))
