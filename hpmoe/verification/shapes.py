"""Refuses operands of a tile operation that do not fit together: routes, dtypes, and sizes as its definition asks."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.dtypes import storage_dtype
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.row_modes import Ready
from hpmoe.tile_ops.tile_primitive import Result


def shapes_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> str:
    """Returns the fault of an operation whose sizes do not fit together, or ""; its label begins the sentence."""
    plan = routes[op.domain.route] if op.domain.route >= 0 else None
    return _route_fault(op, plan) or _dtype_fault(op, buffers) or op.primitive.fault(op, buffers, routes)


def _route_fault(op: tf.TileOp, plan: tf.RoutePlan | None) -> str:
    rows, primitive = {a.rows for a in op.operands}, op.primitive
    if plan is None:
        needs_one = primitive.needs_route or op.domain.is_slots or row_modes.EXPERT in rows
        if primitive.sums_rows and not isinstance(op.domain, AllRows):
            return "sums rows of experts that no route brings"
        return "needs a route and has none" if needs_one else ""
    if isinstance(op.domain, AllRows):
        return "sums all rows where a route brings those of experts"
    if any(mode.of_slots_expert for mode in rows) and not (op.domain.is_slots or primitive.moves_copies):
        return f"takes what is of a slot's expert, over {type(op.domain).__name__}"
    if plan.placement is None and (primitive.moves_copies or any(mode.ready is Ready.COPIES for mode in rows)):
        return "is about copies, of which its route has none"
    return ""


def _dtype_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> str:
    dtypes = [storage_dtype(buffers[a.buffer].dtype) if a.buffer >= 0 else "float32" for a in op.operands]
    if op.primitive.result is Result.MOVED:
        return "" if dtypes[0] == dtypes[1] else f"moves {dtypes[1]} to {dtypes[0]}"
    for i, (access, dtype) in enumerate(zip(op.operands, dtypes, strict=True)):
        if not op.primitive.operand(i).takes(dtype):
            return f"takes {buffers[access.buffer].name}, which is of {dtype}"
    return ""
