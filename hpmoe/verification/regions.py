"""Checks what tile operations touch: all is inside its buffer, every element is written once, nothing read is unwritten."""

from __future__ import annotations

import functools
from typing import NamedTuple

from hpmoe.ir import taskflow as tf
from hpmoe.support.intervals import Interval, joined
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.params import Params
from hpmoe.verification.op_rules import op_fault
from hpmoe.verification.row_sets import RowSet, rows_of


def region_fault(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                 inputs: tuple[int, ...], outputs: tuple[int, ...], tile_rows: int) -> tuple[str, int | None] | None:
    """Returns the fault and its operation, or None."""
    is_typed = all(isinstance(op.params, Params) and op.params.are_of_their_types() for op in ops)
    find = found_before if is_typed else _find_fault  # 0 equals False, and what is known of that is not of it
    return find(buffers, ops, routes, inputs, outputs, tile_rows)


def _find_fault(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...],
                inputs: tuple[int, ...], outputs: tuple[int, ...], tile_rows: int) -> tuple[str, int | None] | None:
    try:
        _Regions(buffers, ops, routes, inputs, outputs, tile_rows).check()
    except _Fault as fault:
        return fault.args
    return None


found_before = functools.lru_cache(maxsize=8)(_find_fault)  # of operations, which most transforms leave alone


class _Fault(Exception):
    """Raised with (text of the fault, index of the operation or None)."""


class _Written(NamedTuple):
    """Region that an operation writes, `rows` x `columns` of a buffer that has `width` columns."""

    columns: Interval
    width: int
    rows: RowSet


class _Regions:
    def __init__(self, buffers, ops, routes, inputs, outputs, tile_rows):
        self.buffers, self.ops, self.routes, self.tile_rows = buffers, ops, routes, tile_rows
        self.inputs, self.outputs = inputs, outputs
        self.written: dict[int, list[_Written]] = {}  # by storage

    def check(self) -> None:
        for b, buffer in enumerate(self.buffers):
            self._check_buffer(b, buffer)
        for b in (*self.inputs, *self.outputs):
            self._require(0 <= b < len(self.buffers), f"an input or output is buffer {b}; there are {len(self.buffers)}")
        self._check_roles()
        for i, op in enumerate(self.ops):
            self._check_op(i, op)
        for i, op in enumerate(self.ops):
            if op.num_peers:
                self._check_notified(i, op)
            for k, access in enumerate(op.operands[op.num_outputs:], op.num_outputs):
                if access.buffer >= 0:
                    self._check_read(i, op, k)
        for b in self.outputs:
            self._check_output(b)

    @staticmethod
    def _require(holds: bool, text: str, op: int | None = None) -> None:
        if not holds:
            raise _Fault(text, op)

    # Buffers.

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
            (buffer.num_rows or 0) * buffer.cols == (root.num_rows or 0) * root.cols
        self._require(same and buffer.route == root.route, f"{name} is a view of {root.name} and of another size")
        self._require(buffer.dtype == root.dtype, f"{name} of {buffer.dtype} is a view of {root.name} of {root.dtype}")
        self._require(buffer.rows_per_expert >= 0 and not (buffer.num_rows or 0) % (buffer.rows_per_expert or 1),
                      f"{name} has {buffer.num_rows} rows in matrices of {buffer.rows_per_expert}")

    def _check_roles(self) -> None:
        """Checks that only the program's inputs and outputs have these roles; other memory exists only during a launch."""
        given, taken = ({self.buffers[b].storage for b in those} for those in (self.inputs, self.outputs))
        for b in self.buffers:
            expected = ("input",) if b.storage in given else ("output",) if b.storage in taken else ("saved", "temporary")
            self._require(b.role in expected, f"buffer {b.name} has the role {b.role}, not {' or '.join(expected)}")
        of_caller = [*self.inputs, *self.outputs]
        self._require(len(given) + len(taken) == len(of_caller) == len({self.buffers[b].storage for b in of_caller}),
                      "two inputs or outputs are one array")
        for b in self.inputs:
            self._require(self.buffers[b].storage == b, f"the input {self.buffers[b].name} is a view")

    # Operations.

    def _check_op(self, i: int, op: tf.TileOp) -> None:
        """Raises _Fault unless the regions of the tasks of `op`, operation number i, are correct.

        The regions must exist, cover each slot, tile or block once, and be written by no other operation.
        """
        self._require(-1 <= op.domain.route < len(self.routes), f"{op.label} is of route {op.domain.route}; there are "
                      f"{len(self.routes)}", i)
        for k, access in enumerate(op.operands):
            if access.buffer != -1 or k < op.num_outputs:
                self._require(0 <= access.buffer < len(self.buffers),
                              f"{op.label} touches buffer {access.buffer}; there are {len(self.buffers)}", i)
        fault = op_fault(op, self.buffers, self.routes, self.tile_rows)
        self._require(not fault, f"{op.label} {fault}", i)
        for k, access in enumerate(op.operands):
            if access.buffer >= 0:
                self._check_access(i, op, k)
        if op.num_peers:
            self._check_peers(i, op)
        if op.primitive.moves_rows:
            self._check_transfer(i, op)

    def _columns(self, op: tf.TileOp, k: int) -> Interval:
        """Returns the columns of an operand that all tasks of an operation touch together."""
        access = op.operands[k]
        if access.cols is col_modes.OWN:
            return access.offset, access.offset + op.cols
        first = 0 if op.params.is_transposed and k > 1 else access.offset  # that of a transposed matrix shifts its rows
        return first, first + 1 if access.cols is col_modes.ONE else self.buffers[access.buffer].cols

    def _check_access(self, i: int, op: tf.TileOp, k: int) -> None:
        access = op.operands[k]
        buffer, (first, last) = self.buffers[access.buffer], self._columns(op, k)
        self._require(0 <= first < last <= buffer.cols,
                      f"{op.label} touches columns {first}:{last} of {buffer.name}, which has {buffer.cols}", i)
        rows = rows_of(op, k, self.buffers, self.routes)
        there = buffer.num_rows if buffer.route < 0 else self.routes[buffer.route].max_rows
        self._require(rows.rows <= there, f"{op.label} touches {rows.rows} rows of {buffer.name}, which has {there}", i)
        of = rows.route if rows.kind == "received" else -1
        self._require(of == buffer.route, f"{op.label} touches {rows} of {buffer.name}, whose rows are "
                      + (f"those of route {buffer.route}" if buffer.route >= 0 else "its own"), i)
        if k < op.num_outputs:
            self._write(i, op, access.buffer, _Written((first, last), buffer.cols, rows))

    def _write(self, i: int, op: tf.TileOp, b: int, new: _Written) -> None:
        buffer, (first, last) = self.buffers[b], new.columns
        root, columns = self.buffers[buffer.storage], f"columns {first}:{last} of {buffer.name}"
        self._require(root.role != "input", f"{op.label} writes the input {root.name}", i)
        for old in self.written.get(buffer.storage, ()):
            is_apart = old.columns[1] <= first or last <= old.columns[0]
            self._require(old.width == new.width == root.cols and is_apart,
                          f"{op.label} writes {columns}, which are written already", i)
        self._require(new.width == root.cols or (first, last) == (0, new.width),
                      f"{op.label} writes {columns}, a view of {root.name} that has other columns", i)
        self.written.setdefault(buffer.storage, []).append(new)

    def _check_peers(self, i: int, op: tf.TileOp) -> None:
        """Checks that each peer belongs to one task of a unit, and to a separate task if an event counts its rows."""
        most = self.routes[op.domain.route].ep_size
        least = 1 if op.primitive.is_put and op.signal == "tile" else most
        self._require(least <= op.num_peers <= most,
                      f"{op.label} has tasks for {op.num_peers} peers, not {least}..{most}", i)

    def _check_notified(self, i: int, op: tf.TileOp) -> None:
        """Checks that puts without signals of their own have one completion flag, and that the flag is about no other put.
        """
        if op.primitive.is_completion_flag:
            told, target = (op.params.leg, op.signal, op.domain.route), op.params.buffer
            puts = [(p.leg, p.signal, p.domain.route) for p in self.ops
                    if p.primitive.is_put and p.operands[0].buffer == target]
            self._require(puts == [told] and op.signal == ("expert" if op.domain.by_expert else "peer"),
                          f"{op.label} tells of puts into buffer {target}, and no put of its route and signal is that", i)
            return
        count = sum(p.primitive.is_completion_flag and p.params.buffer == op.operands[0].buffer for p in self.ops)
        self._require(count == (op.signal != "tile"),
                      f"{op.label} signals by {op.signal}, and {count} operations tell of it", i)

    def _check_transfer(self, i: int, op: tf.TileOp) -> None:
        """Checks that a transfer writes the same columns, of equally wide arrays, that it reads."""
        moved = []
        for k in (1, 0):
            buffer, (first, last) = self.buffers[op.operands[k].buffer], self._columns(op, k)
            moved.append((op.operands[k].cols, f"columns {first}:{last} of {buffer.cols}", buffer.name))
        source, to = moved
        self._require(source[:2] == to[:2], f"{op.label} moves {source[1]} of {source[2]} to {to[1]} of {to[2]}", i)

    # What is read has been written.

    def _check_read(self, i: int, op: tf.TileOp, k: int) -> None:
        b = op.operands[k].buffer
        if self.buffers[self.buffers[b].storage].role != "input":
            self._check_written(b, self._columns(op, k), rows_of(op, k, self.buffers, self.routes), f"{op.label} reads", i)

    def _check_output(self, b: int) -> None:
        """Checks that all of an output is written, except rows of tokens that a rank lacks, which are 0 from the start."""
        buffer = self.buffers[b]
        whole = (0, buffer.cols)
        if any(w.rows.kind in ("replica", "returned") for w in self.written.get(buffer.storage, ())):
            self._check_columns(b, whole, "an output is", None)
            return
        is_received = buffer.route >= 0
        rows = RowSet("received", self.routes[buffer.route].max_rows, buffer.cols, buffer.route) if is_received else \
            RowSet("first", buffer.num_rows, buffer.cols, clipped=True)
        self._check_written(b, whole, rows, "an output is", None)

    def _check_written(self, b: int, columns: Interval, rows: RowSet, verb: str, i: int | None) -> None:
        name, storage = self.buffers[b].name, self.buffers[b].storage
        self._check_columns(b, columns, verb, i)
        for w in self.written.get(storage, ()):
            self._require(w.rows.covers(rows), f"{verb} {rows} of {name}, of which {w.rows} are written", i)

    def _check_columns(self, b: int, columns: Interval, verb: str, i: int | None) -> None:
        buffer, writers = self.buffers[b], self.written.get(self.buffers[b].storage, ())
        if writers and any(w.width != buffer.cols for w in writers):
            columns = 0, writers[0].width
        column = columns[0]
        for first, last in joined(w.columns for w in writers):
            if first <= column:
                column = max(column, last)
        self._require(column >= columns[1], f"{verb} column {column} of {buffer.name}, which nobody writes", i)
