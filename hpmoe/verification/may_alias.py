"""Tells two tasks that may touch the same bytes from those that cannot."""

from __future__ import annotations

from hpmoe.ir import taskflow as tf
from hpmoe.support.intervals import Interval, meet
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes


def may_alias(flow: tf.Taskflow, later: int, earlier: int) -> bool:
    """Whether a task may touch what an earlier one does: not where it reads, or writes over, other bytes than those."""
    one, two = (flow.ops[flow.tasks["op"][t]] for t in (later, earlier))
    storage = [b.storage for b in flow.buffers]
    homes = [tf.memory_of(flow.buffers, b) for b in range(len(storage))]
    pairs = [(a, b) for a in one.outputs for b in two.inputs if homes[a.buffer] == homes[b.buffer]]
    pairs += [(a, b) for a in one.inputs for b in two.outputs if storage[a.buffer] == storage[b.buffer]]
    if not pairs:
        return True
    for a, b in pairs:
        (rows, columns), (other_rows, other_columns) = _bytes(flow, later, a), _bytes(flow, earlier, b)
        as_wide = flow.buffers[a.buffer].row_bytes == flow.buffers[b.buffer].row_bytes
        if meet([rows], [other_rows]) and (not as_wide or meet([columns], [other_columns])):
            return True
    return False


def _bytes(flow: tf.Taskflow, task: int, access: tf.Access) -> tuple[Interval, Interval]:
    """Bytes from the first to the last row that a task may touch of a buffer, whatever the routing, and those of a row."""
    place = flow.tasks[task]
    row, op, buffer = int(place["row"]), flow.ops[place["op"]], flow.buffers[access.buffer]
    rows, size, columns = (0, buffer.num_rows or 0), buffer.row_bytes, (0, buffer.cols)
    if buffer.route >= 0:
        plan = flow.routes[buffer.route]
        rows = 0, plan.max_rows
        if op.domain.is_slots and access.rows in (row_modes.OWN, row_modes.PEER):
            others = min(row, plan.num_local_experts - 1)  # slots that are not full: one for each expert before
            rows = others + (row - others) * plan.tile_rows, min(plan.max_rows, (row + 1) * plan.tile_rows)
    elif op.domain.is_tiles and access.rows is row_modes.OWN:
        rows = row * flow.tile_rows, min(known(buffer.num_rows), (row + 1) * flow.tile_rows)
    if access.cols is col_modes.OWN and op.cols:
        columns = int(place["col"]) + access.offset, int(place["col"] + place["cols"]) + access.offset
    first, last = (c * size // buffer.cols for c in columns)
    return (rows[0] * size, rows[1] * size), (first, last)
