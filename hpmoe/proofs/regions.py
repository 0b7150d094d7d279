"""What tile operations touch: all is inside its buffer, every element is written once, nothing read is unwritten."""

from __future__ import annotations

import functools
import math

from hpmoe import taskflow as tf

Columns = tuple[int, int]


@functools.lru_cache(maxsize=8)  # of a flow's operations, which most transforms leave alone
def region_fault(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                 inputs: tuple[int, ...], outputs: tuple[int, ...]) -> tuple[str, int | None] | None:
    """What is wrong and the operation it is wrong with, or None."""
    try:
        _Regions(buffers, ops, routes, inputs, outputs).check()
    except _Fault as fault:
        return fault.args
    return None


class _Fault(Exception):
    """(text, operation)"""


class _Regions:
    def __init__(self, buffers, ops, routes, inputs, outputs):
        self.buffers, self.ops, self.routes, self.inputs, self.outputs = buffers, ops, routes, inputs, outputs
        self.heights: dict[int, float] = {}  # rows of a buffer that all its writers write
        self.written: dict[int, list[tuple[Columns, bool]]] = {}  # by storage: columns, and whether of its own width

    def check(self) -> None:
        for b, buffer in enumerate(self.buffers):
            self._check_buffer(b, buffer)
        for b in (*self.inputs, *self.outputs):
            self._require(0 <= b < len(self.buffers), f"an input or output is buffer {b}; there are {len(self.buffers)}")
        for i, op in enumerate(self.ops):
            for k, access in enumerate(op.operands):
                self._check_access(i, op, k, access)
            if op.num_peers:
                self._check_peers(i, op)
            if op.moves_rows:
                self._check_transfer(i, op)
        for i, op in enumerate(self.ops):
            for access in op.inputs:
                rows, there = self._rows(i, op, access), self.heights.get(access.buffer, math.inf)
                self._require(rows <= there, f"{op.label} reads {rows} rows of {self.buffers[access.buffer].name}, of which "
                              f"{there} are written", i)
                self._check_written(access.buffer, self._columns(op, access), f"{op.label} reads", i)
        for b in self.outputs:
            self._check_written(b, (0, self.buffers[b].cols), "an output is", None)

    @staticmethod
    def _require(holds: bool, text: str, op: int | None = None) -> None:
        if not holds:
            raise _Fault(text, op)

    def _check_buffer(self, index: int, buffer: tf.Buffer) -> None:
        name = f"buffer {buffer.name}"
        self._require(0 <= buffer.storage < len(self.buffers), f"{name} is a view of buffer {buffer.storage}; there are "
                      f"{len(self.buffers)}")
        root = self.buffers[buffer.storage]
        self._require(root.storage == buffer.storage, f"{name} is a view of {root.name}, itself a view")
        self._require(-1 <= buffer.route < len(self.routes), f"{name} has rows of route {buffer.route}; there are "
                      f"{len(self.routes)}")
        self._require(buffer.cols >= 1 and (buffer.num_rows or 0) >= 0,
                      f"{name} has {buffer.num_rows} rows of {buffer.cols} columns")
        same = (buffer.num_rows, buffer.cols) == (root.num_rows, root.cols) if root.route >= 0 or buffer.route >= 0 else \
            buffer.num_rows * buffer.cols == root.num_rows * root.cols
        self._require(same and buffer.route == root.route, f"{name} is a view of {root.name} and of another size")

    def _columns(self, op: tf.TileOp, access: tf.Access) -> Columns:
        """The columns that all tasks of an operation touch together."""
        if access.cols == "own" and op.cols:
            return access.offset, access.offset + op.cols
        return access.offset, 1 if access.cols == "one" else self.buffers[access.buffer].cols

    def _check_access(self, index: int, op: tf.TileOp, position: int, access: tf.Access) -> None:
        is_output = position < op.num_outputs
        if access.buffer == -1 and not is_output:
            return
        self._require(0 <= access.buffer < len(self.buffers),
                      f"{op.label} touches buffer {access.buffer}; there are {len(self.buffers)}", index)
        buffer = self.buffers[access.buffer]
        first, last = self._columns(op, access)
        self._require(0 <= first < last <= buffer.cols,
                      f"{op.label} touches columns {first}:{last} of {buffer.name}, which has {buffer.cols}", index)
        rows, there = self._rows(index, op, access), self._height(op, access)
        is_whole = rows == there or buffer.storage not in {self.buffers[b].storage for b in self.outputs}
        self._require(rows <= there and (is_whole or not is_output),
                      f"{op.label} touches {rows} rows of {buffer.name}, which has {there}", index)
        if is_output:
            self._write(index, op, access, (first, last))
            self.heights[access.buffer] = min(rows, self.heights.get(access.buffer, rows))

    def _check_peers(self, index: int, op: tf.TileOp) -> None:
        """Every rank is for one task of a unit; for a task of its own where somebody counts what went to it."""
        routed = 0 <= op.domain.route < len(self.routes)
        most = self.routes[op.domain.route].ep_size if routed else 0
        least = 1 if op.opcode in ("PUT", "PUT_BACK") and op.signal == "tile" else most
        self._require(least <= op.num_peers <= most, f"{op.label} has tasks for {op.num_peers} peers, not {least}..{most}",
                      index)

    def _check_transfer(self, index: int, op: tf.TileOp) -> None:
        """Rows arrive as they are sent."""
        moved = []
        for access in reversed(op.operands[:2]):
            buffer, (first, last) = self.buffers[access.buffer], self._columns(op, access)
            moved.append((access.cols, f"columns {first}:{last} of {buffer.cols}", buffer.name))
        source, to = moved
        self._require(source[:2] == to[:2], f"{op.label} moves {source[1]} of {source[2]} to {to[1]} of {to[2]}", index)

    def _height(self, op: tf.TileOp, access: tf.Access) -> float:
        """Rows of a buffer; those of a route that the access is not about are none."""
        buffer, route = self.buffers[access.buffer], op.domain.route
        if buffer.route < 0:
            return buffer.num_rows if access.rows != "fan" else -1
        route = self.routes[route].once_of if access.rows == "fan" else route
        return self.routes[route].max_rows if buffer.route == route else -1

    def _rows(self, index: int, op: tf.TileOp, access: tf.Access) -> float:
        """Rows of a buffer that all tasks of an operation touch together, from its first one."""
        domain, buffer = op.domain, self.buffers[access.buffer]
        plan = self.routes[domain.route] if 0 <= domain.route < len(self.routes) else None
        needs_route = access.rows not in ("own", "all", "one") or domain.kind in ("slots", "copies") or op.moves_copies
        self._require(plan is not None or not needs_route, f"{op.label} needs a route and has none", index)
        if access.rows == "own":
            return self._own_rows(op, buffer)
        if access.rows in ("slot_expert", "replica", "returned") or op.moves_copies:
            return self._num_matrices(op, access, plan) * (buffer.rows_per_expert or 1)
        if access.rows in ("expert", "peer"):
            return plan.max_rows
        if access.rows == "fan":
            return self.routes[plan.once_of].max_rows
        if access.rows in ("entries", "tokens"):
            return plan.num_tokens * (plan.top_k if access.rows == "entries" else 1)
        if op.opcode == "GMM" and access.cols == "all":  # of a turned matrix, whose rows are the result's columns
            return op.cols + access.offset
        return op.params[1] if op.opcode in ("COL_SUM", "WGRAD") else min(1, buffer.num_rows or 0)

    @staticmethod
    def _num_matrices(op: tf.TileOp, access: tf.Access, plan: tf.RoutePlan) -> int:
        """Experts, or copies of experts, that all tasks of an operation touch the rows of."""
        if access.rows == "replica":
            return plan.num_replicas
        if access.rows == "returned":
            return plan.placement.most_copies if plan.placement else 0
        is_own = op.moves_copies or any(a.rows == "replica" for a in op.operands)
        return plan.num_own_experts if is_own else plan.num_local_experts

    def _own_rows(self, op: tf.TileOp, buffer: tf.Buffer) -> float:
        domain = op.domain
        if domain.kind == "slots":
            return self.routes[domain.route].max_rows
        if op.opcode == "WGRAD":
            return domain.num_rows * self.buffers[op.operands[1].buffer].cols
        if op.opcode == "COL_SUM":
            return domain.num_rows * op.cols / buffer.cols
        return domain.num_rows if domain.kind == "tiles" else buffer.num_rows or 0

    def _write(self, index: int, op: tf.TileOp, access: tf.Access, columns: Columns) -> None:
        buffer = self.buffers[access.buffer]
        root = self.buffers[buffer.storage]
        given = {self.buffers[b].storage for b in self.inputs}
        self._require(buffer.storage not in given and root.role != "input",
                      f"{op.label} writes the input {root.name}", index)
        whole = buffer.cols == root.cols
        for (first, last), other in self.written.get(buffer.storage, ()):
            self._require(whole and other and (last <= columns[0] or columns[1] <= first),
                          f"{op.label} writes columns {columns[0]}:{columns[1]} of {buffer.name}, which are written already",
                          index)
        self.written.setdefault(buffer.storage, []).append((columns, whole))

    def _check_written(self, b: int, columns: Columns, verb: str, index: int | None) -> None:
        buffer = self.buffers[b]
        if buffer.storage in {self.buffers[i].storage for i in self.inputs} and index is not None:
            return
        column = columns[0]
        for (first, last), whole in sorted(self.written.get(buffer.storage, ())):
            if not whole or buffer.cols != self.buffers[buffer.storage].cols:
                return
            if first <= column:
                column = max(column, last)
        self._require(column >= columns[1], f"{verb} column {column} of {buffer.name}, which nobody writes", index)
