"""Buffers of the variables of a Program: in which rows and columns each is stored."""

from __future__ import annotations

import math
from typing import NoReturn, cast

from hpmoe.ir import taskflow as tf
from hpmoe.ir.avals import RouteAval, Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Program, Var, program_window
from hpmoe.ir.program_text import Names
from hpmoe.ir.token_rows import num_rows, token_vars
from hpmoe.support.errors import TransformError


class Buffers:
    """The buffers of a Program's variables. A received row, or a token, is one row of memory with any number of axes."""

    def __init__(self, program: Program):
        self.program, self.index = program, 0
        self.names = Names(program)
        rows_of_token = token_vars(program)
        self.tokens = {v for v, rows in rows_of_token.items() if rows == 1}
        self.num_tokens = max((num_rows(v) or 0 for v in self.tokens), default=0)
        # A vector of tokens has a row for each in memory, and so has what has several rows a token: padding is rows there.
        self.vectors = {v: rows for v, rows in rows_of_token.items() if len(v.aval.shape) == 1}
        self.groups = {v: rows for v, rows in rows_of_token.items() if rows > 1 and v not in self.vectors
                       and num_rows(v) == rows * self.num_tokens}
        self.tokens.update(self.vectors)
        self.tokens.update(self.groups)
        self.buffers: list[tf.Buffer] = []
        self.route_of: dict[Rows, int] = {}
        self.buffer_of: dict[Atom, int] = {}

    def refuse(self, why: str) -> NoReturn:
        """Raises TransformError naming the current equation and showing the program around it."""
        where = "a program without equations"
        if self.program.equations:
            where = f"equation {self.index} ({self.program.equations[self.index].primitive.name})"
        raise TransformError(f"tile_partition: {where} of {self.program.name} {why}\n"
                             + program_window(self.program, self.index))

    def buffer(self, var: Atom) -> tf.Buffer:
        """Returns the buffer of a variable."""
        return self.buffers[self.buffer_of[var]]

    def _add(self, buffer: tf.Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def new(self, var: Var, *, rows_and_cols: tuple[int | None, int] | None = None, role: str = "temporary",
            dtype: str | None = None) -> int:
        """Adds a buffer for a variable; all dimensions but the last are its rows unless `rows_and_cols` says otherwise.

        Rows that are only moved keep the `dtype` they are stored in; it may be narrower than that of the variable.
        """
        shape, route, num_rows = var.aval.shape, -1, None
        if is_received(shape):
            self._check_received("makes", var.aval)
            route, cols = self.route_of[cast(Rows, shape[0])], math.prod(fixed(shape[1:]))
        else:
            num_rows, cols = rows_and_cols or self.laid_out(var)
        if cols < 1:
            self.refuse(f"has {var.aval}, rows of no columns; tiles need at least one")
        self.buffer_of[var] = self._add(tf.Buffer(self.names(var), shape, dtype or var.aval.dtype, role, cols, num_rows,
                                                  route, _per_expert(shape, num_rows), len(self.buffers)))
        return self.buffer_of[var]

    def check_made(self, var: Var) -> None:
        """Raises TransformError if the tile rule of the current equation gave a variable a buffer of other rows or columns.
        """
        shape = var.aval.shape if var in self.buffer_of else ()
        if var not in self.buffer_of or is_received(shape[1:]):  # of which a rule that reads them says more
            return
        b = self.buffer(var)
        is_whole = b.route >= 0 and b.cols == math.prod(fixed(shape[1:])) if is_received(shape) else \
            b.route < 0 and (b.num_rows or 0) * b.cols == math.prod(fixed(shape))
        if not is_whole:
            rows = "received rows" if b.route >= 0 else f"{b.num_rows} rows"
            self.refuse(f"has a tile rule that makes {rows} of {b.cols} columns; it must make {var.aval}")

    def laid_out(self, var: Var) -> tuple[int, int]:
        """Returns (rows, columns) in which a static variable is stored: one row for each token, or for each last dimension.
        """
        shape = fixed(var.aval.shape)
        if var in self.vectors:
            return self.num_tokens, self.vectors[var]
        if var in self.groups:
            return self.num_tokens, self.groups[var] * shape[-1]
        return math.prod(shape[:-1]), shape[-1] if shape else 1

    def _check_received(self, verb: str, aval: ShapeDtypeStruct | RouteAval) -> None:
        if is_received(aval.shape) and (not isinstance(aval.shape[0], Rows) or is_received(aval.shape[1:])):
            self.refuse(f"{verb} {aval}; received rows are the first dimension, [R] or [R, ...]")

    def view(self, source: int, var: Atom, shape: tuple, cols: int, num_rows: int | None) -> int:
        """Returns a buffer named after `var` in the memory of `source`, with other rows and columns."""
        old = self.buffers[source]
        return self._add(tf.Buffer(self.names(var), shape, old.dtype, old.role, cols, num_rows, old.route,
                                   _per_expert(shape, num_rows), old.storage))

    def regular(self, var: Atom) -> int:
        """Returns the buffer of a variable, or a view of it with the last dimension as columns, also of a vector in rows."""
        shape, b = var.aval.shape, self.buffer_of[var]
        if is_received(shape) or var in self.groups or not shape or self.buffers[b].cols == shape[-1]:
            return b
        return self.view(b, var, shape, fixed(shape)[-1], math.prod(fixed(shape[:-1])))

    def hidden(self, name: str, num_rows: int, cols: int, dtype: str = "float32") -> int:
        """Adds a buffer that no variable stands for; float32 for partial sums, which are not rounded."""
        return self._add(tf.Buffer(name, (num_rows, cols), dtype, "temporary", cols, num_rows, -1, 0, len(self.buffers)))

    def as_one_row(self, var: Atom) -> int:
        """Adds a view of a static variable as a single row of all its elements."""
        total = math.prod(fixed(var.aval.shape))
        return self.view(self.buffer_of[var], var, (1, total), total, 1)

    def new_as_one_row(self, var: Var, dtype: str) -> int:
        """Adds a buffer that is a single row of all elements of a static variable, seen in the variable's layout."""
        total, (rows, cols) = math.prod(fixed(var.aval.shape)), self.laid_out(var)
        row = self.hidden(f"{self.names(var)}.row", 1, total, dtype)
        self.buffer_of[var] = self.view(row, var, var.aval.shape, cols, rows)
        return row

    def like(self, var: Atom, *inner: int, dtype: str | None = None) -> Var:
        """Returns a new variable with the rows of `var`, each of shape `inner`, and a buffer; no equation makes it."""
        rows = self.buffer(var).num_rows
        made = Var(ShapeDtypeStruct((var.aval.shape[0] if rows is None else rows, *inner), dtype or var.aval.dtype))
        if var in self.tokens:
            self.tokens.add(made)
        self.new(made, rows_and_cols=(rows or 0, math.prod(inner)), dtype=dtype or self.buffer(var).dtype)
        return made

    def axis_in_row(self, var: Atom, axis: int) -> tuple[int, int] | None:
        """Returns (size of an axis inside the rows in memory, columns from one element to the next); None for other axes."""
        tail = fixed(var.aval.shape[axis:])
        part = 0 if is_received(tail) else math.prod(tail)
        return (tail[0], part // tail[0]) if part and self.buffer(var).cols % part == 0 else None


def is_received(shape: tuple) -> bool:
    return any(isinstance(d, Rows) for d in shape)


def _per_expert(shape: tuple, num_rows: int | None) -> int:
    return shape[1] if len(shape) == 3 and not is_received(shape) and num_rows == shape[0] * shape[1] else 0
