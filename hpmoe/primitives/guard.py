"""Values that are NaN, infinite or out of a range are counted, and others put in their place."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.in_rows import in_each_row
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.guards import (
    COUNT_AND_FILL,
    COUNT_OUTSIDE,
    FILL_OUTSIDE,
    REDUCE_AND_FILL,
    as_found,
    filled,
    is_inside,
    where_found,
    width_found,
)
from hpmoe.tile_ops.params import Fill, Filled
from hpmoe.tile_ops.tokens import REDUCE

LARGEST = float(np.finfo(np.float32).max)  # of the dtypes that tile tasks compute in; what exceeds it is infinite there
count_outside = Primitive("count_outside", differentiable=False)
fill_outside = Primitive("fill_outside")
count_and_fill = Primitive("count_and_fill")
count_outside.reference(
    lambda tested, low, high: np.sum(~is_inside(tested, low, high), axis=-1, keepdims=True).astype(np.float32))
fill_outside.reference(
    lambda values, found, *, fill: filled(values, where_found(found, values.shape[-1]), Fill[fill.upper()]))
count_outside.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(COUNT_OUTSIDE, eqn)))
fill_outside.tile(in_each_row(lambda tiler, eqn: tiler.emit_rows(FILL_OUTSIDE, eqn, _filled(eqn))))


@count_outside.infer
def _(tested: ShapeDtypeStruct, low: ShapeDtypeStruct, high: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_argument(len(tested.shape) > 0, "count_outside", "tested", tested, "rows [..., N]")
    return ShapeDtypeStruct((*tested.shape[:-1], 1), "float32")


def _filled(eqn: Equation) -> Filled:
    return Filled(Fill[eqn.params["fill"].upper()])


def _found_in(tested: ShapeDtypeStruct) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((*tested.shape[:-1], width_found(fixed(tested.shape[-1:])[0])), "int32")


@count_and_fill.infer
def _(tested: ShapeDtypeStruct, low: ShapeDtypeStruct, high: ShapeDtypeStruct, *, fill: str) -> tuple[ShapeDtypeStruct,
                                                                                                      ShapeDtypeStruct]:
    """Returns the avals of the rows and of the findings in each row: a number of values, and a bit for each value."""
    check_argument(len(tested.shape) > 0, "count_and_fill", "tested", tested, "rows [..., N]")
    return tested, _found_in(tested)


@fill_outside.infer
def _(values: ShapeDtypeStruct, found: ShapeDtypeStruct, *, fill: str) -> ShapeDtypeStruct:
    fits = len(values.shape) > 0 and found == _found_in(values)
    check_argument(fits, "fill_outside", "values and found", f"{values} and {found}",
                   "rows, and what count_and_fill found in rows like them")
    return values


@count_and_fill.reference
def _(tested: np.ndarray, low: float, high: float, *, fill: str) -> tuple[np.ndarray, np.ndarray]:
    is_outside = ~is_inside(tested, low, high)
    return filled(tested, is_outside, Fill[fill.upper()]), as_found(is_outside)


@count_and_fill.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    """Gives a value in range its own gradient and, if it is in a mean, its share of the gradients of replaced values."""
    fill = "spread" if eqn.params["fill"] == "mean" else "zero"
    return [b.add(fill_outside, cotangents[0], eqn.outputs[1], fill=fill), None, None]


@count_and_fill.tile
@in_each_row
def _(tiler: Tiler, eqn: Equation) -> None:
    """Emits a pass over the rows; the sum of rows that experts sent back is checked by the task that computes it."""
    params, (tested, *limits), (out, found) = _filled(eqn), eqn.inputs, eqn.outputs
    summing = tiler.take_back(tested, REDUCE)
    if summing is None:
        tiler.emit_rows(COUNT_AND_FILL, eqn, params)
        return
    tiler.buffer_of[out] = tiler.buffer_of[tested]
    tiler.new(found)
    entries, *weights = (dataclasses.replace(a, cols=col_modes.ALL) for a in summing.inputs)
    operands = [tiler.at(v, cols=col_modes.ALL, dtypes=tiler.HELD) for v in (out, found)]
    tiler.emit(REDUCE_AND_FILL, summing.domain, *operands, entries, *(tiler.read(limit, out) for limit in limits), *weights,
               cols=0, params=params)
