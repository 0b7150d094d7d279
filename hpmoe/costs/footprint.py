"""The footprint of a task in each of its operands: a part of an array, and how many bytes of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.tile_op import FANS
from hpmoe.support.known import known
from hpmoe.tile_ops import row_modes

FOOTPRINT = np.dtype([("first", "i8"), ("part", "i8"), ("fixed", "f8"), ("row", "f8"), ("whole", "f8"),
                      ("cost", "f8")])
# Which part of an array a footprint is in, as in simulate.h: what several tasks read of one part may still be in L2.
UNIT, WEIGHT, DENSE, OF_EXPERT, TOGETHER, STREAM, FAN = range(7)


class Footprint(NamedTuple):
    """Region of one operand that a task touches; the fields of FOOTPRINT.

    Attributes:
        first: number of the first part of the array, among those of all arrays.
        part: UNIT, WEIGHT, DENSE, OF_EXPERT, TOGETHER, STREAM or FAN.
        fixed: bytes for any number of rows.
        row: bytes for each of its rows.
        whole: for UNIT and OF_EXPERT, bytes of the array for each row; for WEIGHT, DENSE and TOGETHER, bytes of the part; 0
            if they are not needed.
        cost: bytes that memory reads in the time of one byte of this footprint: 1, or more for writes.
    """

    first: int
    part: int
    fixed: float
    row: float
    whole: float = 0.0
    cost: float = 1.0


class Footprints:
    """Footprints of the tasks of a Taskflow.

    Attributes:
        num_parts: number of parts of all arrays of a rank for which a footprint was returned so far.
    """

    def __init__(self, flow: tf.Taskflow):
        self.flow, self.num_parts = flow, 0
        self._first: dict[tuple[int, str, int], int] = {}

    def of(self, op: tf.TileOp, i: int, cols: int, height: float) -> Footprint | None:
        """Returns the footprint in operand i of a task with `cols` columns and `height` rows; None for a few bytes."""
        access = op.operands[i]
        if access.buffer < 0 or (is_transfer(op) and i < op.num_outputs):
            return None  # a transferred row comes in at the other end of a link
        buffer = self.flow.buffers[access.buffer]
        size = float(buffer.stored_dtype.itemsize)
        width, primitive = access.cols.width(cols, buffer.cols, height), op.primitive
        operand = primitive.operand(i)
        if operand.takes_few_bytes:
            return None
        if primitive.moves_copies:
            return Footprint(self._part(buffer.storage, "copies", op.domain.size), UNIT, 0.0, width * size)
        if access.rows in FANS:
            return Footprint(0, FAN, 0.0, width * size)
        if primitive.sums_rows and not operand.is_summed:
            if not primitive.is_matmul:
                return Footprint(0, STREAM, width * size, 0.0)
            times = returned_matrices(self.flow, op) if access.rows is row_modes.RETURNED else 1.0
            return Footprint(0, STREAM, times * height * cols * size, 0.0)
        if operand.is_weight:
            tiles, by_expert = op.grid[2], access.rows is row_modes.SLOT_EXPERT
            experts = self.flow.routes[op.domain.route].num_local_experts if by_expert else 1
            first = self._part(buffer.storage, f"weight in {tiles}", experts * tiles)
            fixed = self.flow.buffers[op.operands[1].buffer].cols * cols * size
            return Footprint(first, WEIGHT if by_expert else DENSE, fixed, 0.0, fixed)
        if access.rows in (row_modes.OWN, row_modes.EXPERT):
            part = UNIT if access.rows is row_modes.OWN else OF_EXPERT
            return self._of_units(buffer, part, width * size)
        if access.rows in (row_modes.ENTRIES, row_modes.TOKENS, row_modes.ALL, row_modes.RELAY_ROWS):
            rows = self.flow.routes[op.domain.route].top_k if primitive.needs_route and op.domain.is_tiles else 1
            return self._together(buffer, rows * width * size)
        return None

    def landing(self, op: tf.TileOp, cols: int) -> Footprint:
        """Returns the footprint of moved rows on the receiving rank; zero bytes if the task moves no rows."""
        access = op.operands[0] if op.num_outputs else None
        if access is None or access.buffer < 0 or not is_transfer(op) or op.primitive.moves_copies:
            return Footprint(0, UNIT, 0.0, 0.0)
        buffer = self.flow.buffers[access.buffer]
        size = access.cols.width(cols, buffer.cols, 0) * float(buffer.stored_dtype.itemsize)
        if access.rows in (row_modes.ENTRIES, row_modes.RELAY_ENTRIES):
            return self._together(buffer, size)
        return self._of_units(buffer, UNIT, size)

    def _of_units(self, buffer: tf.Buffer, part: int, row: float) -> Footprint:
        route, rows = buffer.route, buffer.num_rows or 1
        units = self.flow.routes[route].num_slots if route >= 0 else -(-rows // self.flow.tile_rows)
        return Footprint(self._part(buffer.storage, "unit", units), part, 0.0, row, float(buffer.row_bytes))

    def _together(self, buffer: tf.Buffer, row: float) -> Footprint:
        rows = self.flow.routes[buffer.route].expected_rows if buffer.route >= 0 else known(buffer.num_rows)
        whole = float(rows * buffer.row_bytes)
        return Footprint(self._part(buffer.storage, "together", 1), TOGETHER, 0.0, row, whole)

    def _part(self, storage: int, kind: str, count: int) -> int:
        """Returns the number of the first of `count` parts of a storage; each (storage, kind, count) has parts of its own.
        """
        key = (storage, kind, count)
        if key not in self._first:
            self._first[key] = self.num_parts
            self.num_parts += count
        return self._first[key]


def block_heights(flow: tf.Taskflow, op: tf.TileOp) -> tuple[int, int]:
    """Returns the rows of the blocks of a weight's gradient: of all but an expert's last block, and of the last; else 0."""
    if not op.primitive.makes_blocks:
        return 0, 0
    height = flow.buffers[op.operands[1].buffer].cols - op.operands[1].offset
    return op.params.block, height - (op.domain.blocks - 1) * op.params.block


def returned_matrices(flow: tf.Taskflow, op: tf.TileOp) -> float:
    """Returns the mean number of matrices that replicas of an expert return and a task adds, on the rank with the most."""
    if not any(access.rows is row_modes.RETURNED for access in op.operands):
        return 0.0
    plan = flow.routes[op.domain.route]
    return known(plan.placement).most_copies / plan.num_own_experts


def is_transfer(op: tf.TileOp) -> bool:
    """Returns True if an operation moves rows, or weights, from one rank to another."""
    return bool(op.num_peers) or op.primitive.is_remote
