"""Column modes: which columns of an operand a task touches."""

from __future__ import annotations

from hpmoe.tile_ops.named import Named


class ColMode(Named):
    """Rule for the columns of an operand that a task touches; the members are the constants of this module."""

    def width(self, cols: int, total: int, height: float) -> float:
        """Returns the columns of `total` that a task touches; `cols` are its own (0: whole rows), `height` its block's."""
        if self is OWN:
            return cols or total
        return {ONE: 1, BLOCK: height}.get(self, total)


OWN = ColMode("own", 0)  # of the task, shifted by the offset
ALL = ColMode("all", 1)
ONE = ColMode("one", 2)  # a single column, broadcast
BLOCK = ColMode("block", 1)  # the rows of the weight block that the task computes; kernels are told of all, bodies find it
