"""TaskBodies: runs single tasks in NumPy, the bodies of their tile operations on the buffers of all ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import Routing
from hpmoe.support.dtypes import widen
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.frame import Move, Moved
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.tokens import fanned, fanned_padding


class TaskFrame:
    """Argument of a task's body: its operands as views of the buffers of all ranks, and the places of its rows.

    Attributes:
        op, task, rank: the operation, its task, and the rank that runs the task.
        unit: the task's row coordinate: the number of its slot, tile of tokens or expert.
        rows: slice of the rows of the task: those of the unit, or of one part of it.
        ranks: the numbers of all ranks.
    """

    def __init__(self, flow: tf.Taskflow, layout: Layout, memory: Sequence[list[np.ndarray]], rank: int, task: np.void):
        self.flow, self.layout, self.memory, self.rank, self.task = flow, layout, memory, rank, task
        self.op: tf.TileOp = flow.ops[task["op"]]
        self.unit, self.ranks = int(task["row"]), range(flow.ep_size)
        self.rows = self.op.rows_of_task(self.op.domain.rows(layout, rank, self.unit), int(task["col"]), flow.tile_rows)

    @property
    def params(self) -> Params:
        return self.op.params

    @property
    def routing(self) -> Routing:
        """Routing of the operation's route."""
        return self.layout.routings[self.op.domain.route]

    @property
    def peers(self) -> list[int]:
        """Ranks that the task sends rows to."""
        return self.layout.peers(self.rank, self.op, self.task)

    def operands(self) -> list[np.ndarray | float]:
        """Returns the parts of the operands that the task touches: views of the outputs, then inputs in float32, or numbers.
        """
        views = [self._part(i) for i in range(len(self.op.operands))]
        given = (widen(v) if isinstance(v, np.ndarray) else v for v in views[self.op.num_outputs:])
        return [*views[:self.op.num_outputs], *given]

    def array(self, i: int, rank: int | None = None) -> np.ndarray:
        """Returns all of the buffer of operand i, on this rank or another."""
        return self.memory[self.rank if rank is None else rank][self.op.operands[i].buffer]

    def whole(self, i: int, rank: int | None = None) -> np.ndarray:
        """Returns all rows of operand i in the columns of the task."""
        return self.array(i, rank)[:, self.columns(i)]

    def kept(self) -> np.ndarray:
        """Returns the mask of the entries of the task's tokens that have a row, [tokens, top_k]."""
        return self.routing.kept[self.rank].reshape(-1, self.routing.top_k)[self.rows]

    @property
    def sent(self) -> Routing | RelayedRows:
        """Table of senders of received rows: their tokens' ranks (Routing), or relays for operations on relayed rows."""
        return self.layout.sent_by(self.op)

    def relayed(self, route: int) -> RelayedRows:
        """Returns the rows of a route as its relays see them."""
        return self.layout.relayed[route]

    def rows_sent(self, source: int, owner: int) -> np.ndarray:
        """Returns the rows of the task's slot on rank `owner` that rank `source` sends."""
        return self.layout.put_rows(source, self.op, owner, self.unit)

    def moves(self) -> list[Move]:
        """Moves of matrices by the task."""
        return self.layout.moves(self.rank, self.op, self.unit)

    def columns(self, i: int) -> slice:
        """Returns the columns of operand i that the task touches."""
        access = self.op.operands[i]
        if access.cols is col_modes.OWN and self.op.cols:
            return self.own(i)
        if self.params.is_transposed and i > 1:  # the offset of a transposed matrix is of rows
            return slice(None)
        return slice(access.offset, access.offset + 1 if access.cols is col_modes.ONE else None)

    def own(self, i: int) -> slice:
        """Returns the task's own columns, shifted by the offset of operand i."""
        first = int(self.task["col"]) + self.op.operands[i].offset
        return slice(first, first + int(self.task["cols"]))

    def _part(self, i: int) -> np.ndarray | float:
        access = self.op.operands[i]
        if access.buffer < 0:
            return access.value
        data, cols = self.memory[self.rank][access.buffer], self.columns(i)
        if i > 1 and self.params.is_transposed and access.cols is col_modes.ALL:  # of a transposed matrix the task has rows
            return data[self._matrix(access) if access.rows.of_experts else slice(None), cols][self.own(2)]
        if access.rows.of_experts:
            return data[self._matrix(access), cols]
        if access.rows is row_modes.ONE and not self.op.primitive.is_matmul:
            return data[:1, cols]
        return data[self.rows, cols] if access.rows is row_modes.OWN else data[:, cols]

    def _matrix(self, access: tf.Access) -> slice:
        """Returns the rows of the matrix of the slot's expert, or of its replica; no rows of a replica for an own expert."""
        expert = int(self.layout.slots[self.op.domain.route][self.rank].expert[self.unit])
        height = self.flow.buffers[access.buffer].rows_per_expert or 1
        if access.rows is row_modes.REPLICA:
            expert = max(-1, expert - self.flow.routes[self.op.domain.route].num_own_experts)
        return slice(max(expert, 0) * height, (expert + 1) * height)


@dataclasses.dataclass(frozen=True)
class TaskBodies:
    """Runs single tasks of a taskflow on the buffers of all ranks, `memory[rank][buffer]`, in a layout of a routing."""

    flow: tf.Taskflow
    layout: Layout
    memory: Sequence[list[np.ndarray]]

    def run(self, rank: int, t: int) -> Moved:
        """Runs task t of a rank; see Moved. A task of rows, on a unit without any, does nothing."""
        frame = TaskFrame(self.flow, self.layout, self.memory, rank, self.flow.tasks[t])
        primitive = frame.op.primitive
        if not primitive.needs_route and not primitive.sums_rows and frame.rows.stop <= frame.rows.start:
            return frame.rows.stop - frame.rows.start
        with np.errstate(over="ignore"):  # a stored value out of the range of its dtype is an infinity
            return known(primitive.body)(frame)

    def fanned_slots(self, rank: int, task: np.void) -> np.ndarray:
        """Returns the slot of each row that a task has copied to experts."""
        frame = TaskFrame(self.flow, self.layout, self.memory, rank, task)
        slots = self.layout.slots[self.flow.routes[frame.op.domain.route].of][rank]
        used = np.flatnonzero(slots.rows)
        order = used[np.argsort(slots.start[used])]
        rows = np.concatenate([fanned(frame)[0], fanned_padding(frame)])
        return order[np.searchsorted(slots.start[order], rows, side="right") - 1]
