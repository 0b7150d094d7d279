"""The rows of a buffer that all tasks of an operation touch together; those written must cover those read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.ir.tile_op import RELAYED
from hpmoe.support.known import known
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.params import Relayed
from hpmoe.tile_ops.row_modes import Ready
from hpmoe.verification.op_rules import block_and_height


@dataclasses.dataclass(frozen=True)
class RowSet:
    """Set of rows of a buffer.

    Attributes:
        kind: "first" for the first rows; for a route all "received" rows, the rows of its "entries" that have one, the
            matrices of its replicas ("replica") or those that came back from them ("returned"); for a route to relays the
            rows that came back to them ("relayed").
        rows: most rows; for "first" the number of rows.
        clipped: True if only rows of tokens count.
    """

    kind: str
    rows: int
    cols: int
    route: int = -1
    clipped: bool = False

    def covers(self, read: RowSet) -> bool:
        """Returns True if all rows of `read`, of the same storage, are written."""
        capacity = self.rows * self.cols >= read.rows * read.cols
        if self.kind == "first":
            if read.kind == "received":
                return False
            is_laid_out_anew = self.cols != read.cols  # no call leaves out tokens of a program that mixes their rows
            return capacity and (not self.clipped or read.clipped or read.kind == "entries" or is_laid_out_anew)
        if (self.kind, read.kind) == ("replica", "first"):  # of all copies; what an empty one holds is of no row
            return capacity
        return (self.kind, self.route) == (read.kind, read.route) and capacity

    def __str__(self) -> str:
        if self.kind == "first":
            return f"rows 0:{self.rows}" + (", those of tokens alone" if self.clipped else "")
        return {"received": "received rows", "entries": "rows of entries", "replica": "matrices of copies",
                "returned": "matrices that come back",
                "relayed": "rows that come back to relays"}[self.kind] + f" of route {self.route}"


def rows_of(op: tf.TileOp, i: int, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> RowSet:
    """Returns the rows that all tasks of an operation touch of its operand i."""
    access, route = op.operands[i], op.domain.route
    buffer = buffers[access.buffer]
    plan = routes[route] if route >= 0 else None

    def rows(kind: str, count: int, of: int = -1, clipped: bool = False) -> RowSet:
        return RowSet(kind, count, buffer.cols, of, clipped)

    primitive, mode, is_output = op.primitive, access.rows, i < op.num_outputs
    if primitive.moves_copies and mode is row_modes.ALL:
        return rows("first", known(plan).num_own_experts * op.params.height)
    if primitive.is_blocking and primitive.is_back and not is_output:
        return rows("received", known(plan).max_rows, route)
    if primitive.sums_rows and mode is not row_modes.RETURNED and not primitive.operand(i).is_summed:
        return rows("first", op.domain.num_rows * block_and_height(op, buffers)[1])
    if mode is row_modes.FAN:
        return rows("received", routes[known(plan).of].max_rows, known(plan).of)
    if mode in RELAYED:
        of = op.params.route if isinstance(op.params, Relayed) else route
        relays = routes[of].over
        most = routes[relays].max_rows
        return rows("received", most, relays) if mode is row_modes.RELAY_ROWS else \
            rows("relayed", most * routes[of].top_k, of)
    if mode in (row_modes.EXPERT, row_modes.PEER) or (mode is row_modes.OWN and op.domain.is_slots):
        return rows("received", known(plan).max_rows, route)
    if mode is row_modes.ENTRIES:
        return rows("entries", known(plan).num_tokens * known(plan).top_k, route)
    if mode is row_modes.TOKENS:
        return rows("entries" if known(plan).top_k == 1 else "first", known(plan).num_tokens, route, True)
    if mode.ready is Ready.COPIES:
        count = known(plan).num_replicas if mode is row_modes.REPLICA else known(known(plan).placement).most_copies
        return rows(mode.name, count * (buffer.rows_per_expert or 1), route)
    return rows("first", _first_rows(op, access, buffer, plan), -1, _is_clipped(op, access))


def _first_rows(op: tf.TileOp, access: tf.Access, buffer: tf.Buffer, plan: tf.RoutePlan | None) -> int:
    if access.rows is row_modes.SLOT_EXPERT:
        has_copies = buffer.rows_per_expert > 0 and any(a.rows is row_modes.REPLICA for a in op.operands)
        experts = known(plan).num_own_experts if has_copies else known(plan).num_local_experts
        return experts * (buffer.rows_per_expert or 1)
    if access.rows is row_modes.OWN:
        return op.domain.num_rows if op.domain.is_tiles else 1
    if op.primitive.sums_rows:
        return op.domain.height
    return 1 if access.rows is row_modes.ONE and not op.primitive.is_matmul else buffer.num_rows or 0


def _is_clipped(op: tf.TileOp, access: tf.Access) -> bool:
    """Returns True if only rows of tokens are touched; for a single row, only if there is a token."""
    if access.rows is row_modes.OWN or (access.rows is row_modes.ONE and not op.primitive.is_matmul):
        return op.domain.clipped
    return access.rows is row_modes.ALL and op.primitive.sums_rows and op.domain.of_tokens
