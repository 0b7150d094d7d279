"""Bodies: the capability table of a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hpmoe.ir.taskflow import Taskflow, TileOp
from hpmoe.support.dtypes import BYTES, FLOATS, INTEGERS, storage_dtype
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import Operand, TilePrimitive


@dataclasses.dataclass(frozen=True)
class Bodies:
    """The tile operations, elementwise functions and dtypes that a target's kernel has code for.

    Attributes:
        operations: names of tile operations; by default all.
        functions: names of elementwise functions; by default all.
        dtypes: dtypes of elements; by default all.
        at_most: limits of sizes by what they limit, in words; `compile` refuses sizes beyond them.

    Example:
        >>> bodies = Bodies(functions=frozenset({"add", "mul"}))
        >>> "exp" in bodies.functions, "SWIGLU" in bodies.operations
        (False, True)
    """

    operations: frozenset[str] = dataclasses.field(default_factory=lambda: frozenset(TilePrimitive.members))
    functions: frozenset[str] = dataclasses.field(default_factory=lambda: frozenset(Function.members))
    dtypes: tuple[str, ...] = (*FLOATS, *INTEGERS, BYTES)
    at_most: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def takes(self, operand: Operand, dtype: str) -> bool:
        """Returns whether the operand of a tile operation may be stored in a dtype."""
        return dtype in self.dtypes and operand.takes(dtype)

    def check(self, flow: Taskflow, who: str) -> None:
        """Raises ArgumentError, naming the operation, if an operation, function or dtype of a taskflow has no body."""
        for op in flow.ops:
            self._check_op(flow, op, f"{who}: {op.label}")

    def _check_op(self, flow: Taskflow, op: TileOp, who: str) -> None:
        _check_name(who, "its tile body", str(getattr(op.primitive, "name", op.primitive)), self.operations)
        if op.params.function is not None:
            _check_name(who, "its function", op.params.function.name, self.functions)
        for i, access in enumerate(op.operands):
            if access.buffer < 0 or op.primitive.is_remote:
                continue
            dtype, operand = storage_dtype(flow.buffers[access.buffer].dtype), op.primitive.operand(i)
            taken = [name for name in self.dtypes if operand.takes(name)]
            check_argument(dtype in taken, who, f"the dtype of operand {i}", dtype, f"one of {', '.join(taken)}")


def _check_name(who: str, what: str, name: str, known: frozenset[str]) -> None:
    check_argument(name in known, who, what, name, f"one of {', '.join(sorted(known))}")
