"""Refuses a taskflow that asks for what a target's kernel has no body for, as the definitions of tile operations say."""

from __future__ import annotations

from hpmoe.ir.taskflow import Taskflow, TileOp
from hpmoe.support.dtypes import INTEGERS, storage_dtype
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import INTEGER_TARGETS, TilePrimitive


def check_bodies(flow: Taskflow, target: str, who: str) -> None:
    """Raises ArgumentError, naming the operation, for an operation, function or dtype that a target has no body for."""
    for op in flow.ops:
        _check_op(flow, op, target, f"{who}: {op.label}")


def _check_op(flow: Taskflow, op: TileOp, target: str, who: str) -> None:
    operations = {p.name for p in TilePrimitive.members.values() if target in p.targets}
    _check_name(who, "its tile body", str(getattr(op.primitive, "name", op.primitive)), operations)
    if op.params.function is not None:
        functions = {f.name for f in Function.members.values() if target in f.targets}
        _check_name(who, "its function", op.params.function.name, functions)
    for i, access in enumerate(op.operands):
        if access.buffer < 0 or op.primitive.is_remote:
            continue
        dtype, operand = storage_dtype(flow.buffers[access.buffer].dtype), op.primitive.operand(i)
        is_known = operand.takes(dtype) and (dtype not in INTEGERS or operand.is_integer or target in INTEGER_TARGETS)
        check_argument(is_known, who, f"the dtype of operand {i}", dtype,
                       "int32" if operand.is_integer else "float32, bfloat16 or float16")


def _check_name(who: str, what: str, name: str, known: set[str]) -> None:
    check_argument(name in known, who, what, name, f"one of {', '.join(sorted(known))}")
