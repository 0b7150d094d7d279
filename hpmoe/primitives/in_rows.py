"""Tile rules of what works along an axis inside the rows of memory, and of what works on each group of a row's columns."""

from __future__ import annotations

import functools
import math
from typing import cast

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Equation, Var
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.tiler import Tiler, TileRule
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.axes import GROUP_REDUCE, PICK, PLACE
from hpmoe.tile_ops.domains import Domain
from hpmoe.tile_ops.elementwise import MAP
from hpmoe.tile_ops.functions import ADD
from hpmoe.tile_ops.params import AlongAxis, ByGroups, Elementwise, Reduction
from hpmoe.tile_ops.tile_primitive import TilePrimitive


def is_last_of_rows(tiler: Tiler, x: Atom, axis: int) -> bool:
    """Returns True if an axis is a whole row in memory."""
    shape = x.aval.shape
    return len(shape) > 1 and axis == len(shape) - 1 and (not isinstance(x, Var) or tiler.buffer(x).cols == shape[-1])


def mixes_rows(tiler: Tiler, x: Atom, axis: int) -> None:
    """Raises TransformError for the current equation, which works along an axis whose elements are in different rows."""
    name = tiler.program.equations[tiler.index].primitive.name
    softmax = "write x.exp() / x.exp().sum(0) for a softmax over rows, or " if name == "reduce_max" else ""
    tiler.refuse(f"works along axis {axis} of {x.aval} and mixes rows: a tile task computes {name} inside its own rows, of "
                 f"tokens or received rows; {softmax}compute it before the call and pass the result")


def move_along(tiler: Tiler, eqn: Equation, primitive: TilePrimitive, axis: int, start: int, step: int) -> None:
    """Emits the tasks of `eqn` that pick every `step`-th element along an axis from `start` on, or place elements there."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    size, (inner, given, domain) = fixed(out.aval.shape)[axis], _seen(tiler, x, axis)
    made = _made(tiler, x, axis, out, size, given)
    tiler.emit(primitive, domain, Access(made), given, params=AlongAxis(size, inner, start, step))


def join_along(tiler: Tiler, eqn: Equation, axis: int) -> None:
    """Emits the tasks of a concatenation along `axis`: each operand is placed among zeros, and the results are added."""
    out, start, parts = eqn.outputs[0], 0, []
    size = fixed(out.aval.shape)[axis]
    for x in eqn.inputs:
        inner, given, domain = _seen(tiler, x, axis)
        parts.append(_made(tiler, x, axis, Var(out.aval), size, given, is_token=out in tiler.tokens))
        tiler.emit(PLACE, domain, Access(parts[-1]), given, params=AlongAxis(size, inner, start, 1))
        start += fixed(x.aval.shape)[axis]
    for i, part in enumerate(parts[1:], 2):
        last = _made(tiler, x, axis, out if i == len(parts) else Var(out.aval), size, given, is_token=out in tiler.tokens)
        tiler.emit(MAP, domain, Access(last), Access(parts[0]), Access(part), params=Elementwise(ADD))
        parts[0] = last


def reduce_along(tiler: Tiler, eqn: Equation, axis: int, reduction: Reduction) -> None:
    """Emits the tasks of `eqn` that reduce its operand by a sum or maximum along `axis`, at least 1: inside the rows."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    inner, given, domain = _seen(tiler, x, axis)
    made = _made(tiler, x, axis, out, 1, given, dtype=out.aval.dtype)
    tiler.emit(GROUP_REDUCE, domain, Access(made, cols=col_modes.ALL), given, cols=0,
               params=ByGroups(reduction, fixed(x.aval.shape)[axis], inner))


def turn_in_rows(tiler: Tiler, x: Atom, out: Var, axes: tuple[int, ...]) -> None:
    """Emits the tasks that transpose the axes inside a row: each axis in turn is brought to the front."""
    given, order, width, first = x, list(range(1, len(axes))), tiler.buffer(x).cols, 1
    while sorted(axes[first:]) != list(axes[first:]):
        first += 1
    for axis in reversed(axes[1:first]):
        made = out if axis == axes[1] else tiler.like(x, width)
        if made is out:
            tiler.new(out, rows_and_cols=(tiler.buffer(x).num_rows, width))
        place = order.index(axis)
        size, inner = fixed(x.aval.shape)[axis], math.prod(fixed(tuple(x.aval.shape[a] for a in order[place + 1:])))
        for i in range(size):
            part = tiler.like(x, width // size)
            whole = tiler.at(given, cols=col_modes.ALL, dtypes=tiler.HELD)
            tiler.emit(PICK, tiler.rows_of(x), tiler.at(part, dtypes=tiler.HELD), whole, params=AlongAxis(1, inner, i, 1))
            tiler.copy_columns(made, tiler.at(part, dtypes=tiler.HELD), i * (width // size), width // size)
        given = made
        order.insert(0, order.pop(place))


def _seen(tiler: Tiler, x: Atom, axis: int) -> tuple[int, Access, Domain]:
    """Returns the stride of an axis of `x` in columns, the access to `x`, and the domain. An array without rows of tokens
    counts as a single row."""
    given, inside = tiler.at(x, cols=col_modes.ALL, dtypes=tiler.HELD), tiler.axis_in_row(x, axis)
    if inside is not None:
        return inside[1], given, tiler.rows_of(x)
    if x in tiler.tokens or tiler.buffer(x).route >= 0:
        mixes_rows(tiler, x, axis)
    given = Access(tiler.as_one_row(x), cols=col_modes.ALL)
    return math.prod(fixed(x.aval.shape[axis + 1:])), given, tiler.domain_of(given.buffer)


def _made(tiler: Tiler, x: Atom, axis: int, out: Var, size: int, given: Access, dtype: str = "",
          is_token: bool = False) -> int:
    """Adds a buffer for `out`, with the rows of `given` and `size` elements along the axis of `x`; returns its number."""
    read = tiler.buffers[given.buffer]
    dtype = dtype or read.dtype
    if given.buffer != tiler.buffer_of[x]:
        return tiler.new_as_one_row(out, dtype)
    if is_token:
        tiler.tokens.add(out)
    return tiler.new(out, rows_and_cols=(read.num_rows, read.cols // fixed(x.aval.shape)[axis] * size), dtype=dtype)


# What works on rows of the last axis, of which a row in memory holds several.

def has_groups(tiler: Tiler, x: Atom) -> bool:
    """Returns True if a row in memory holds several rows of the last axis."""
    return len(x.aval.shape) > 1 and tiler.buffer(x).cols != x.aval.shape[-1]


def by_group(tiler: Tiler, eqn: Equation, rule: TileRule) -> list[tuple[Var, ...]]:
    """Applies a tile rule to each group of columns that is a row of the last axis; returns what each made, of which the rows
    are those of the first operand that has groups or, for what is no row, none."""
    of_groups = [isinstance(a, Var) and has_groups(tiler, a) for a in eqn.inputs]
    i = of_groups.index(True)
    first = eqn.inputs[i]
    made = []
    for g in range(tiler.buffer(first).cols // fixed(first.aval.shape)[-1]):
        inputs = tuple(_group(tiler, cast("Var", a), g) if is_grouped else a
                       for a, is_grouped in zip(eqn.inputs, of_groups, strict=True))
        parts = tuple(_part(tiler, out, first, inputs[i]) for out in eqn.outputs)
        rule(tiler, eqn.replace(inputs=inputs, outputs=parts))
        made.append(parts)
    return made


def _part(tiler: Tiler, out: Var, whole: Atom, group: Atom) -> Var:
    """Returns the variable that a rule writes for a group of the columns of `whole` instead of `out`."""
    if len(out.aval.shape) != len(whole.aval.shape) or out.aval.shape[:-1] != whole.aval.shape[:-1]:
        return Var(out.aval)
    part = Var(ShapeDtypeStruct((group.aval.shape[0], out.aval.shape[-1]), out.aval.dtype))
    if group in tiler.tokens:
        tiler.tokens.add(part)
    return part


def _group(tiler: Tiler, x: Var, g: int) -> Var:
    width = fixed(x.aval.shape)[-1]
    part = tiler.like(x, width)
    tiler.copy_columns(part, tiler.at(x, offset=g * width, dtypes=tiler.HELD), 0, width)
    return part


def rows_by_group(tiler: Tiler, eqn: Equation, rule: TileRule) -> None:
    """Applies a tile rule of rows to each group of columns; what they make stands side by side."""
    for out, parts in zip(eqn.outputs, zip(*by_group(tiler, eqn, rule), strict=True), strict=True):
        rows, width = tiler.buffer(parts[0]).num_rows, fixed(out.aval.shape)[-1]
        tiler.new(out, rows_and_cols=(rows, width * len(parts)))
        for g, part in enumerate(parts):
            tiler.copy_columns(out, tiler.at(part, dtypes=tiler.HELD), g * width, width)


def in_each_row(rule: TileRule) -> TileRule:
    """Returns a tile rule that works on each row of the last axis separately; a row in memory may hold several of them."""
    @functools.wraps(rule)
    def tiled(tiler: Tiler, eqn: Equation) -> None:
        if any(isinstance(a, Var) and has_groups(tiler, a) for a in eqn.inputs):
            rows_by_group(tiler, eqn, rule)
        else:
            rule(tiler, eqn)
    return tiled


def sum_by_group(tiler: Tiler, eqn: Equation, rule: TileRule) -> None:
    """Applies a tile rule of sums over rows to each group of columns, and adds up what they make."""
    (total,), *others = by_group(tiler, eqn.replace(inputs=eqn.inputs[:2]), rule)
    out, parts = eqn.outputs[0], [*(made for made, in others), *eqn.inputs[2:]]
    for i, part in enumerate(parts, 1):
        last = out if i == len(parts) else Var(total.aval)
        tiler.map(ADD, last, tiler.at(total), tiler.at(part))
        total = last
