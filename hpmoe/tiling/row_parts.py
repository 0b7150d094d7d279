"""Parts of slots and tiles: tasks that quantize or dequantize, cut to the size of other tasks while workers are free."""

from __future__ import annotations

import math

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine

LEAST_ROWS = 16  # of a part


def divide_rows(flow: tf.Taskflow, tile_cols: int, machine: Machine) -> tuple[tf.TileOp, ...]:
    """Returns the operations of a taskflow, with units divided if there are fewer of them than vector workers.

    A task that quantizes whole rows has many times the elements of a tile of `tile_cols` columns. With few tokens or slots,
    one worker would work on a unit while others wait for it. Other tasks on whole rows are short.
    """
    if machine.unified:
        return flow.ops
    return tuple(op.replace(parts=_num_parts(flow, op, tile_cols, machine)) if op.can_divide_rows and _quantizes(op) else op
                 for op in flow.ops)


def _quantizes(op: tf.TileOp) -> bool:
    return any(op.primitive.operand(i).is_bytes for i in range(len(op.operands)))


def _num_parts(flow: tf.Taskflow, op: tf.TileOp, tile_cols: int, machine: Machine) -> int:
    """Returns the most parts, a power of two, that workers are free for, and that are at least as large as a tile.

    Returns 1 if only two parts would have rows, which gains less than it delays others.
    """
    units, rows = _expected_units(flow, op)
    cols = max(flow.buffers[a.buffer].cols for a in op.operands if a.buffer >= 0)
    least, height = max(LEAST_ROWS, flow.tile_rows * tile_cols // cols), flow.tile_rows
    while height % 2 == 0 and height // 2 >= least and units * math.ceil(rows / (height // 2)) <= machine.num_aiv:
        height //= 2
    return flow.tile_rows // height if 2 * height < rows else 1


def _expected_units(flow: tf.Taskflow, op: tf.TileOp) -> tuple[int, float]:
    """Returns the number of units that are expected to have rows, and the rows of one."""
    if op.domain.is_tiles:
        return op.domain.size, min(op.domain.num_rows, flow.tile_rows)
    plan = flow.routes[op.domain.route]
    of_expert = plan.expected_rows / plan.num_local_experts
    return max(1, math.ceil(of_expert / flow.tile_rows)) * plan.num_local_experts, min(of_expert, flow.tile_rows)
