"""Shapes: the questions that a size rule asks about an operation.

A size rule is registered next to its operation. A rule yields conditions, each with the text of the error if the condition
fails. `verify` calls a rule with the Shapes of a taskflow's operation. `hpmoe.kernels.schema` calls the rule with symbolic
terms and prints the same check in C++, for images:

    @CUMSUM.fits
    def _(op: Shapes) -> Rules:
        yield op.width(0) == op.width(1), "makes rows of {} columns of {}", op.width(0), op.width(1)

Conditions are checked in order; the first failure ends the check. A rule uses `implies`, `where`, `not_`, `&`, `|` instead
of `if`, `not`, `and`, `or`. Answers about an operand or route that the operation does not have are 0 or False.
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

Rules = Iterator[tuple[Number, ...]]  # (condition, error text, numbers in the text)
Rule = Callable[..., Rules]  # of Shapes


class Shapes:
    """Sizes of one operation of a taskflow; kernels/core/shapes.h answers the same questions about an image."""

    def __init__(self, op: Operation[Params], buffers: Sequence[Stored], routes: Sequence[RoutePlan]):
        self._op, self._buffers, self._routes = op, buffers, routes
        self._route = routes[op.domain.route] if 0 <= op.domain.route < len(routes) else None
        self.params: Any = op.params

    def has(self, i: int) -> Number:
        """Returns whether the operation has an operand i."""
        return i < len(self._op.operands)

    def _buffer(self, i: int) -> Stored | None:
        return self._buffers[self._op.operands[i].buffer] if self.has(i) and not self.is_number(i) else None

    def name(self, i: int) -> str:
        """Returns the name of operand i for error texts."""
        buffer = self._buffer(i)
        return buffer.name if buffer else "a number"

    def is_number(self, i: int) -> Number:
        """Returns whether operand i is a number instead of a buffer."""
        return self.has(i) and self._op.operands[i].buffer < 0

    def cols(self, i: int) -> Number:
        """Returns the columns of the buffer of operand i."""
        buffer = self._buffer(i)
        return buffer.cols if buffer else 0

    def offset(self, i: int) -> Number:
        """Returns the first column that tasks touch of operand i."""
        return self._op.operands[i].offset if self.has(i) else 0

    def width(self, i: int) -> Number:
        """Returns the columns of operand i from its offset on."""
        return self.cols(i) - self.offset(i)

    def rows(self, i: int) -> Number:
        """Returns the rows of the buffer of operand i; 0 for received rows."""
        buffer = self._buffer(i)
        return buffer.num_rows or 0 if buffer else 0

    def height(self, i: int) -> Number:
        """Returns the rows of each expert's matrix in operand i; 0 if operand i holds no matrices of experts."""
        buffer = self._buffer(i)
        return buffer.rows_per_expert if buffer else 0

    def has_capacity(self, i: int, rows: Number) -> Number:
        """Returns whether operand i has at least `rows` rows; True for received rows."""
        buffer = self._buffer(i)
        return buffer is None or buffer.num_rows is None or buffer.num_rows >= rows

    def has_rows(self, i: int, rows: Number) -> Number:
        """Returns whether operand i has exactly `rows` rows."""
        buffer = self._buffer(i)
        return buffer is not None and buffer.num_rows == rows

    def _dtype(self, i: int) -> str:
        buffer = self._buffer(i)
        return storage_dtype(buffer.dtype) if buffer else ""

    def is_integer(self, i: int) -> Number:
        """Returns whether operand i is int32 or int64."""
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
        """Returns whether tasks touch operand i in a row mode."""
        return self.has(i) and self._op.operands[i].rows is mode

    def cols_are(self, i: int, mode: ColMode) -> Number:
        """Returns whether tasks touch operand i in a column mode; unknown in an image if the tile body cuts the operand."""
        return self.has(i) and self._op.operands[i].cols is mode

    def same_cols(self, i: int, j: int) -> Number:
        """Returns whether operands i and j have the same column mode."""
        return self.has(i) and self.has(j) and self._op.operands[i].cols is self._op.operands[j].cols

    def own_cols(self) -> Number:
        """Returns the columns that all tasks cover together; 0 if a task takes whole rows."""
        return self._op.cols

    def num_rows(self) -> Number:
        """Returns the number of tiled rows, of experts, or of replicas."""
        return self._op.domain.num_rows

    def blocks(self) -> Number:
        """Returns the units of one expert, or of one replica."""
        return self._op.domain.blocks

    def is_clipped(self) -> Number:
        """Returns True (1) if tasks skip the padding rows, those after the last token of a rank."""
        return self._op.domain.clipped

    def summed_rows(self) -> Number:
        """Returns the rows of a sum over a static array."""
        return self._op.domain.summed_words[0]

    def first_expert(self) -> Number:
        """Returns the first expert of sums over received rows."""
        return self._op.domain.first_expert

    def takes_integers(self) -> Number:
        """Returns whether the elementwise function supports integers."""
        return self._op.params.function in OF_INTEGERS

    def has_route(self) -> Number:
        return self._route is not None

    def is_of_tokens(self) -> Number:
        """Returns whether the route sends each token once instead of once for each expert."""
        return self._route is not None and self._route.of >= 0

    def has_relays(self, route: Number) -> Number:
        """Returns whether a route sends rows through relays."""
        return 0 <= route < len(self._routes) and self._routes[route].over >= 0

    def relays_are_own(self, route: Number) -> Number:
        """Returns whether the operation's route brings rows to the relays of another route."""
        return self.has_relays(route) and self._routes[route].over == self._op.domain.route

    def own_route(self) -> Number:
        """Returns the index of the operation's route, or -1."""
        return self._op.domain.route

    def top_k_of(self, route: Number) -> Number:
        return self._routes[route].top_k if 0 <= route < len(self._routes) else 0

    def top_k(self) -> Number:
        return self._route.top_k if self._route else 0

    def num_tokens(self) -> Number:
        """Returns the token capacity of a rank."""
        return self._route.num_tokens if self._route else 0

    def max_rows(self) -> Number:
        """Returns the received-row capacity of a rank."""
        return self._route.max_rows if self._route else 0

    def alignment(self) -> Number:
        return self._route.alignment if self._route else 1

    def num_model_experts(self) -> Number:
        return self._route.num_model_experts if self._route else 0

    def num_local_experts(self) -> Number:
        """Returns the experts that a rank owns plus its replica capacity."""
        return self._route.num_local_experts if self._route else 0

    def num_own_experts(self) -> Number:
        return self._route.num_own_experts if self._route else 0

    def has_copies(self) -> Number:
        return self._route is not None and self._route.placement is not None

    def most_copies(self) -> Number:
        """Returns the largest number of replicas of one rank's experts."""
        return self._route.placement.most_copies if self._route and self._route.placement else 0


def fault_of(rule: Rule, shapes: Shapes) -> str:
    """Returns the error text of the first condition that fails, or ""."""
    return next((text.format(*numbers) for holds, text, *numbers in rule(shapes) if not holds), "")
