"""Taskflow: the tile-level IR. Few tile operations, many tasks, and the events that order them; one for all ranks.

A task is a tile operation at a unit of its domain (a row slot, a row tile, an expert) and a range of columns. Tasks wait
for events and signal them; an event counts rows, and is reached when it has counted `mult` times the rows of its unit.
The tables are NumPy arrays. A task on an empty unit adds nothing, and no task waits for it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

from hpmoe.ir.level import Level
from hpmoe.ir.tile_op import Access as Access, Buffer as Buffer, TileOp as TileOp, memory_of as memory_of
from hpmoe.machines.machine import Machine
from hpmoe.routing.route_plan import RoutePlan as RoutePlan
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops.domains import Domain as Domain
from hpmoe.tile_ops.params import Leg

TASK = np.dtype([("op", "i4"), ("peer", "i4"), ("row", "i4"), ("col", "i4"), ("cols", "i4")])
WAIT = np.dtype([("task", "i4"), ("event", "i4"), ("kind", "i4")])
SIGNAL = np.dtype([("task", "i4"), ("event", "i4"), ("kind", "i2"), ("amount", "i2"), ("remote", "i4")])
EVENT = np.dtype([("extent", "i4"), ("index", "i4"), ("mult", "i4"), ("route", "i4"), ("block", "i4")])

# How the index of a waited or signalled event is found, what a signal adds, and where its counter lives. ENTRY_TILE: of each
# row by where it arrives, the tiles of tokens that are counted together, or after a fan_out its slot.
STATIC, SLOT_EXPERT, ENTRY_TILE = range(3)
ROWS, COUNT = range(2)
LOCAL, PEER, EVERY_RANK = range(3)
# What an event's threshold is a multiple of.
(ONE, SLOT, EXPERT, RECEIVED, TILE, STATIC_TILE, TOKENS, ENTRIES, TILE_ENTRIES, SENT_TO, SENT_TO_EXPERT, RETURNED_TO,
 RETURNED_TO_FROM_EXPERT, REPLICA, REPLICAS, RELAYED) = range(16)


def by_task(table: np.ndarray, num_tasks: int) -> Callable[[int], np.ndarray]:
    """Returns a function from a task to its rows of a WAIT or SIGNAL array, in their order."""
    ordered = table[np.argsort(table["task"], kind="stable")]
    starts = np.searchsorted(ordered["task"], np.arange(num_tasks + 1))
    return lambda t: ordered[starts[t]:starts[t + 1]]


@dataclasses.dataclass(frozen=True)
class EventBlock:
    """Consecutive events of one buffer region kind: event `first + i` is about unit i.

    Attributes:
        name: name of the buffer.
        unit: unit whose rows an event counts: a "slot", a "tile", an "expert", the "copies" of an expert, or a "block" of
            its weights, "all" rows, those "sent" to a peer, or ("count") tasks.
        columns: the column ranges read, or () for all.
        dynamic: signals find the unit at run time, so every producer may feed every event of the block.
    """

    name: str
    unit: str
    columns: tuple[tuple[int, int], ...]
    first: int
    size: int
    dynamic: bool

    def replace(self, **changes: object) -> EventBlock:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The parts of a Taskflow that its dependencies were derived from; see the attributes of Taskflow."""

    ep_size: int
    tile_rows: int
    buffers: tuple[Buffer, ...]
    ops: tuple[TileOp, ...]
    routes: tuple[RoutePlan, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Dependencies:
    """Events, and the tasks that wait for them and signal them: a function of a Taskflow's operations and queues.

    Attributes:
        events, waits, signals: EVENT, WAIT and SIGNAL arrays.
        blocks: EventBlocks, the regions that events count, for text and queries.
        origin: operations and buffers that tables were derived from; `verify` refuses a Taskflow with others.
    """

    events: np.ndarray = dataclasses.field(default_factory=functools.partial(np.zeros, 0, EVENT))
    waits: np.ndarray = dataclasses.field(default_factory=functools.partial(np.zeros, 0, WAIT))
    signals: np.ndarray = dataclasses.field(default_factory=functools.partial(np.zeros, 0, SIGNAL))
    blocks: tuple[EventBlock, ...] = ()
    origin: Origin | None = None

    def sizes(self) -> dict[str, int]:
        """Returns the numbers of events, waits and signals, by these names."""
        return {"events": len(self.events), "waits": len(self.waits), "signals": len(self.signals)}

    def replace(self, **changes: object) -> Dependencies:
        return dataclasses.replace(self, **changes)


@suggests_keywords
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Taskflow(Level):
    """Tile tasks of one program, equal on every rank, with the events, waits and queues that order them.

    Attributes:
        name, ep_size, provenance, direction: as in the Program.
        tile_rows: number of rows of a slot (a block of received rows of one expert) or of a tile of tokens.
        buffers, ops, routes: the Buffers, TileOps and RoutePlans, each a tuple.
        inputs, outputs: index of the buffer of each program input and output.
        peer_orders: [2, ep, ep], by Leg; a task of peer j on rank r sends to rank peer_orders[leg, r, j].
        deps: the events that tasks wait for and signal, as `rebuild` and `requeue` derive them.
        machine: the machine given to tile_partition, or None; after assign_queues, the machine of the queues.
        queues: after assign_queues, the task indices of each queue, in order.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(lambda x: x * x, rows=4).lower(hpmoe.ShapeDtypeStruct((8, 3), "float32"))
        >>> flow.num_tasks, flow.tasks["row"].tolist(), [op.opcode for op in flow.ops]
        (2, [0, 1], ['MAP'])
    """

    tile_rows: int
    buffers: tuple[Buffer, ...]
    ops: tuple[TileOp, ...]
    routes: tuple[RoutePlan, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    peer_orders: np.ndarray
    deps: Dependencies = Dependencies()
    machine: Machine | None = None
    queues: tuple[np.ndarray, ...] = ()

    @property
    def level(self) -> str:
        return "queues" if self.queues else "tiles"

    @functools.cached_property
    def tasks(self) -> np.ndarray:
        """All tasks, a read-only TASK array: operation by operation, then by unit, peer and columns."""
        return make_tasks(self.ops)

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def num_slots(self) -> int:
        return sum(r.num_slots for r in self.routes)

    def order_of(self, leg: Leg | None) -> np.ndarray:
        """Returns the order of peers of tasks of a direction, or of tasks that send no rows, [ep, ep]."""
        return self.peer_orders[leg or Leg.DISPATCH]

    def units(self) -> np.ndarray:
        """Returns True for each task of the matrix unit, [num_tasks] bool."""
        return np.repeat([op.unit == "aic" for op in self.ops], [math.prod(op.grid) for op in self.ops]).astype(bool)


def origin_of(flow: Taskflow) -> Origin:
    """Returns the parts of a Taskflow that its dependencies are derived from."""
    return Origin(*(getattr(flow, field.name) for field in dataclasses.fields(Origin)))


@functools.lru_cache(maxsize=8)
def make_tasks(ops: tuple[TileOp, ...]) -> np.ndarray:
    """Returns all tasks of `ops`, read-only: operation by operation, then by unit, peer and columns."""
    shapes = [op.grid for op in ops]
    tasks, first = np.empty(sum(map(math.prod, shapes)), TASK), 0
    for index, (op, shape) in enumerate(zip(ops, shapes, strict=True)):
        grid = tasks[first:first + math.prod(shape)].reshape(shape)
        first += grid.size
        grid["op"] = index
        grid["row"] = (np.arange(shape[0]) + op.domain.first)[:, None, None]
        grid["peer"] = np.arange(shape[1])[:, None] if op.num_peers else -1
        grid["col"] = np.arange(shape[2]) * (op.tile_cols if op.cols else 1)
        grid["cols"] = np.minimum(op.cols - grid["col"], op.tile_cols) if op.cols else 0
    tasks.setflags(write=False)
    return tasks
