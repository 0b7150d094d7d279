"""Which rows of a buffer all tasks of an operation touch together, and whether what is written covers what is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe import taskflow as tf
from hpmoe.proofs.units import matrix_height


@dataclasses.dataclass(frozen=True)
class RowSet:
    """Rows of a buffer of `cols` columns.

    Attributes:
        kind: the "first" ones; of a route all "received" rows, the rows of its "entries" that are not dropped, or the
            matrices of its copies ("replica") or those that came back of them ("returned").
        rows: how many at most; "first": how many.
        clipped: those of them that are of tokens alone.
    """

    kind: str
    rows: int
    cols: int
    route: int = -1
    clipped: bool = False

    def covers(self, read: RowSet, routes: Sequence[tf.RoutePlan]) -> bool:
        """Whether whoever reads these rows of the same storage finds them written."""
        room = self.rows * self.cols >= read.rows * read.cols
        if self.kind == "first":
            if read.kind == "received":
                return False
            return room and (not self.clipped or read.clipped or read.kind == "entries")
        if self.kind == "entries" and read.kind == "first":
            capacity = routes[self.route].capacity
            return room and read.clipped and not (capacity and capacity.drops)
        return (self.kind, self.route) == (read.kind, read.route) and room

    def __str__(self) -> str:
        if self.kind == "first":
            return f"rows 0:{self.rows}" + (", those of tokens alone" if self.clipped else "")
        return {"received": "received rows", "entries": "rows of entries", "replica": "matrices of copies",
                "returned": "matrices that come back"}[self.kind] + f" of route {self.route}"


def rows_of(op: tf.TileOp, i: int, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> RowSet:
    """The rows that all tasks of an operation touch of its operand i."""
    access, route = op.operands[i], op.domain.route
    buffer = buffers[access.buffer]
    plan = routes[route] if route >= 0 else None

    def rows(kind: str, count: int, of: int = -1, clipped: bool = False) -> RowSet:
        return RowSet(kind, count, buffer.cols, of, clipped)

    if op.moves_copies and access.rows == "all":
        return rows("first", plan.num_own_experts * op.params[1])
    if op.opcode == "ALL_TO_ALL_BACK" and i:
        return rows("received", plan.max_rows, route)
    if op.opcode in ("WGRAD", "COL_SUM") and access.rows != "returned" and i not in (1, 2):
        height = matrix_height(op, buffers) if op.opcode == "WGRAD" else 1
        return rows("first", op.domain.num_rows * height)
    if access.rows == "fan":
        return rows("received", routes[plan.once_of].max_rows, plan.once_of)
    if access.rows in ("expert", "peer") or (access.rows == "own" and op.domain.kind == "slots"):
        return rows("received", plan.max_rows, route)
    if access.rows == "entries":
        return rows("entries", plan.num_tokens * plan.top_k, route)
    if access.rows == "tokens":
        return rows("entries" if plan.top_k == 1 else "first", plan.num_tokens, route, True)
    if access.rows in ("replica", "returned"):
        count = plan.num_replicas if access.rows == "replica" else plan.placement.most_copies
        return rows(access.rows, count * (buffer.rows_per_expert or 1), route)
    return rows("first", _first_rows(op, access, buffer, plan), -1, _is_clipped(op, access))


def _first_rows(op: tf.TileOp, access: tf.Access, buffer: tf.Buffer, plan: tf.RoutePlan | None) -> int:
    if access.rows == "slot_expert":
        has_copies = any(a.rows == "replica" for a in op.operands)
        experts = plan.num_own_experts if has_copies else plan.num_local_experts
        return experts * (buffer.rows_per_expert or 1)
    if access.rows == "own":
        return op.domain.num_rows if op.domain.kind == "tiles" else 1
    if op.opcode in ("WGRAD", "COL_SUM"):
        return op.params[1]
    return 1 if access.rows == "one" and op.opcode != "GMM" else buffer.num_rows or 0


def _is_clipped(op: tf.TileOp, access: tf.Access) -> bool:
    """Whether only rows of tokens are touched; of a single row, whether only where there is a token."""
    if access.rows == "own" or (access.rows == "one" and op.opcode != "GMM"):
        return op.domain.kind == "tiles" and op.domain.clipped
    return access.rows == "all" and op.opcode in ("WGRAD", "COL_SUM") and bool(op.params[2])
