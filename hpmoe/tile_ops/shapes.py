"""Shapes: what a rule asks about the sizes of an operation's operands, of its tasks and of its route.

A rule is registered beside its operation and yields what must hold and what is said otherwise. `verify` runs it on the
operations of a taskflow; `hpmoe.kernels.schema` runs it on terms and writes the same check in C++, for images:

    @CUMSUM.fits
    def _(op: Shapes) -> Rules:
        yield op.width(0) == op.width(1), "makes rows of {} columns of {}", op.width(0), op.width(1)

Rules run in order, the first that does not hold ends. What an operation does not have (an operand, a route) is 0 or False.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import BYTES, INTEGERS, storage_dtype
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.frame import Operation, Stored
from hpmoe.tile_ops.functions import OF_INTEGERS
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.terms import Number

Rules = Iterator[tuple[Number, ...]]  # (what must hold, what is said otherwise, numbers of this text)
Rule = Callable[..., Rules]  # of Shapes


class Shapes:
    """The sizes of one operation of a taskflow; kernels/core/shapes.h answers the same questions about an image.

    Attributes:
        params: of the operation, by name.
    """

    def __init__(self, op: Operation[Params], buffers: Sequence[Stored], routes: Sequence[RoutePlan]):
        self._op, self._buffers, self._routes = op, buffers, routes
        self._route = routes[op.domain.route] if 0 <= op.domain.route < len(routes) else None
        self.params: Any = op.params

    def has(self, i: int) -> Number:
        """Whether there is an operand i."""
        return i < len(self._op.operands)

    def _buffer(self, i: int) -> Stored | None:
        return self._buffers[self._op.operands[i].buffer] if self.has(i) and not self.is_number(i) else None

    def name(self, i: int) -> str:
        """The name of an operand, for texts."""
        buffer = self._buffer(i)
        return buffer.name if buffer else "a number"

    def is_number(self, i: int) -> Number:
        """Whether a number stands in the place of operand i."""
        return self.has(i) and self._op.operands[i].buffer < 0

    def cols(self, i: int) -> Number:
        """Columns of the buffer of operand i."""
        buffer = self._buffer(i)
        return buffer.cols if buffer else 0

    def offset(self, i: int) -> Number:
        """The first column that operand i is about."""
        return self._op.operands[i].offset if self.has(i) else 0

    def width(self, i: int) -> Number:
        """Columns from the offset on."""
        return self.cols(i) - self.offset(i)

    def rows(self, i: int) -> Number:
        """Rows of the buffer of operand i; 0 of received rows."""
        buffer = self._buffer(i)
        return buffer.num_rows or 0 if buffer else 0

    def height(self, i: int) -> Number:
        """Rows of an expert's matrix in the buffer of operand i; 0 where it holds no such."""
        buffer = self._buffer(i)
        return buffer.rows_per_expert if buffer else 0

    def has_room(self, i: int, rows: Number) -> Number:
        """Whether the buffer of operand i has at least so many rows, as far as they are known."""
        buffer = self._buffer(i)
        return buffer is None or buffer.num_rows is None or buffer.num_rows >= rows

    def has_rows(self, i: int, rows: Number) -> Number:
        """Whether it has exactly so many."""
        buffer = self._buffer(i)
        return buffer is not None and buffer.num_rows == rows

    def _dtype(self, i: int) -> str:
        buffer = self._buffer(i)
        return storage_dtype(buffer.dtype) if buffer else ""

    def is_integer(self, i: int) -> Number:
        """Whether operand i is of int32 or int64."""
        return self._dtype(i) in INTEGERS

    def is_int32(self, i: int) -> Number:
        return self._dtype(i) == "int32"

    def is_float32(self, i: int) -> Number:
        return self._dtype(i) == "float32"

    def is_bytes(self, i: int) -> Number:
        return self._dtype(i) == BYTES

    def same_dtype(self, i: int, j: int) -> Number:
        return self._dtype(i) == self._dtype(j)

    def rows_are(self, i: int, mode: RowMode) -> Number:
        """Whether tasks touch these rows of operand i."""
        return self.has(i) and self._op.operands[i].rows is mode

    def cols_are(self, i: int, mode: ColMode) -> Number:
        """Whether tasks touch these columns of operand i. An image does not say it of what a body cuts by itself."""
        return self.has(i) and self._op.operands[i].cols is mode

    def same_cols(self, i: int, j: int) -> Number:
        """Whether tasks touch the columns of two operands alike."""
        return self.has(i) and self.has(j) and self._op.operands[i].cols is self._op.operands[j].cols

    def own_cols(self) -> Number:
        """Columns that all tasks cover together; 0 where a task takes whole rows."""
        return self._op.cols

    def num_rows(self) -> Number:
        """Rows that are tiled, or the number of experts or copies."""
        return self._op.domain.num_rows

    def blocks(self) -> Number:
        """Units that are about one expert, or one copy."""
        return self._op.domain.blocks

    def is_clipped(self) -> Number:
        """Whether rows past the tokens of a rank do not exist."""
        return self._op.domain.clipped

    def summed_rows(self) -> Number:
        """Rows that are summed where no route brings them."""
        return self._op.domain.summed_words[0]

    def first_expert(self) -> Number:
        """The first expert that sums are about."""
        return self._op.domain.first_expert

    def takes_integers(self) -> Number:
        """Whether the elementwise function is one of integers, too."""
        return self._op.params.function in OF_INTEGERS

    def has_route(self) -> Number:
        return self._route is not None

    def is_of_tokens(self) -> Number:
        """Whether a row of the route stands for a token."""
        return self._route is not None and self._route.of >= 0

    def has_relays(self, route: Number) -> Number:
        """Whether rows of a route come over the stops of another."""
        return 0 <= route < len(self._routes) and self._routes[route].over >= 0

    def relays_are_own(self, route: Number) -> Number:
        """Whether rows of a route come over the stops of this operation's."""
        return self.has_relays(route) and self._routes[route].over == self._op.domain.route

    def own_route(self) -> Number:
        """The index of the route, or -1."""
        return self._op.domain.route

    def top_k_of(self, route: Number) -> Number:
        return self._routes[route].top_k if 0 <= route < len(self._routes) else 0

    def top_k(self) -> Number:
        return self._route.top_k if self._route else 0

    def num_tokens(self) -> Number:
        """The most tokens of a rank."""
        return self._route.num_tokens if self._route else 0

    def max_rows(self) -> Number:
        """The most received rows of a rank."""
        return self._route.max_rows if self._route else 0

    def alignment(self) -> Number:
        return self._route.alignment if self._route else 1

    def num_model_experts(self) -> Number:
        return self._route.num_model_experts if self._route else 0

    def num_local_experts(self) -> Number:
        """Experts that a rank owns, and the copies that it has room for."""
        return self._route.num_local_experts if self._route else 0

    def num_own_experts(self) -> Number:
        return self._route.num_own_experts if self._route else 0

    def has_copies(self) -> Number:
        return self._route is not None and self._route.placement is not None

    def most_copies(self) -> Number:
        """The most copies that there are of the experts of one rank."""
        return self._route.placement.most_copies if self._route and self._route.placement else 0


def fault_of(rule: Rule, shapes: Shapes) -> str:
    """Returns what does not hold of an operation, or ""."""
    return next((text.format(*numbers) for holds, text, *numbers in rule(shapes) if not holds), "")
