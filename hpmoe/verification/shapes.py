"""Refuses operands of a tile operation that do not fit together: routes, dtypes, and sizes as its definition asks."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.dtypes import storage_dtype
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.row_modes import Ready
from hpmoe.tile_ops.tile_primitive import Result


def shapes_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """What of an operation does not fit together, or ""; its label begins the sentence."""
    return _route_fault(op, plan) or _dtype_fault(op, buffers) or op.primitive.fault(op, buffers, plan)


def _route_fault(op: tf.TileOp, plan: tf.RoutePlan | None) -> str:
    rows, primitive = {a.rows for a in op.operands}, op.primitive
    if plan is None:
        needs_one = primitive.needs_route or op.domain.is_slots or row_modes.EXPERT in rows
        return "needs a route and has none" if needs_one else ""
    if any(mode.of_slots_expert for mode in rows) and not (op.domain.is_slots or primitive.moves_copies):
        return f"takes what is of a slot's expert, over {type(op.domain).__name__}"
    if plan.placement is None and (primitive.moves_copies or any(mode.ready is Ready.COPIES for mode in rows)):
        return "is about copies, of which its route has none"
    if op.is_relayed and plan.alignment > 1:
        return "has relays pass on rows of its route, which is filled up"
    return "fans rows out or in, and its route is not one to ranks" if op.has_fan and not plan.kind.is_of_tokens else ""


def _dtype_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> str:
    dtypes = [storage_dtype(buffers[a.buffer].dtype) if a.buffer >= 0 else "float32" for a in op.operands]
    if op.primitive.result is Result.MOVED:
        return "" if dtypes[0] == dtypes[1] else f"moves {dtypes[1]} to {dtypes[0]}"
    for i, (access, dtype) in enumerate(zip(op.operands, dtypes, strict=True)):
        if not op.primitive.operand(i).takes(dtype):
            return f"takes {buffers[access.buffer].name}, which is of {dtype}"
    return ""
