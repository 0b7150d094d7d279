"""What a target's kernel has bodies for, by the definitions of tile operations; whatever else is asked for is refused."""

from __future__ import annotations

from hpmoe.ir.taskflow import Taskflow, TileOp
from hpmoe.support.dtypes import INTEGERS, storage_dtype
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import INTEGER_TARGETS, Operand, TilePrimitive


def with_body(family: type[TilePrimitive] | type[Function], target: str) -> set[str]:
    """The names of the operations, or functions of elements, that a target's kernel has a body for.

    Example:
        >>> "GATHER" in with_body(TilePrimitive, "ascend"), "LAUNCH" in with_body(TilePrimitive, "ascend")
        (True, False)
    """
    return {member.name for member in family.members.values() if target in member.targets}


def takes(operand: Operand, dtype: str, target: str) -> bool:
    """Whether a target's bodies take an operand whose elements are stored in a dtype."""
    return operand.takes(dtype) and (dtype not in INTEGERS or operand.is_integer or target in INTEGER_TARGETS)


def check_bodies(flow: Taskflow, target: str, who: str) -> None:
    """Raises ArgumentError, naming the operation, for an operation, function or dtype that a target has no body for."""
    for op in flow.ops:
        _check_op(flow, op, target, f"{who}: {op.label}")


def _check_op(flow: Taskflow, op: TileOp, target: str, who: str) -> None:
    _check_name(who, "its tile body", str(getattr(op.primitive, "name", op.primitive)), with_body(TilePrimitive, target))
    if op.params.function is not None:
        _check_name(who, "its function", op.params.function.name, with_body(Function, target))
    for i, access in enumerate(op.operands):
        if access.buffer < 0 or op.primitive.is_remote:
            continue
        dtype, operand = storage_dtype(flow.buffers[access.buffer].dtype), op.primitive.operand(i)
        check_argument(takes(operand, dtype, target), who, f"the dtype of operand {i}", dtype,
                       "int32" if operand.is_integer else "float32, bfloat16 or float16")


def _check_name(who: str, what: str, name: str, known: set[str]) -> None:
    check_argument(name in known, who, what, name, f"one of {', '.join(sorted(known))}")
