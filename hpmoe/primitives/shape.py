"""Primitives that move elements: reshape, slice, pad, concat, transpose, cast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from hpmoe.ir.avals import Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation, Literal, Var, is_differentiable
from hpmoe.primitives.in_rows import is_last_of_rows, join_along, move_along, turn_in_rows
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.dtypes import FLOATS, HALVES
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.axes import PICK, PLACE
from hpmoe.tile_ops.functions import COPY, NOT_EQUAL

reshape = Primitive("reshape")
slice_axis = Primitive("slice")
pad_axis = Primitive("pad")
concat = Primitive("concat")
transpose = Primitive("transpose")
cast = Primitive("cast")
reshape.reference(lambda x, *, shape: x.reshape(shape))
reshape.vjp(lambda b, eqn, cotangents: [b.add(reshape, cotangents[0], shape=eqn.inputs[0].aval.shape)])
slice_axis.reference(lambda x, *, axis, start, stop, step=1: x[(slice(None),) * axis + (slice(start, stop, step),)].copy())
concat.reference(lambda *xs, axis: np.concatenate(xs, axis=axis))
transpose.reference(lambda x, *, axes: np.ascontiguousarray(x.transpose(axes)))
transpose.vjp(
    lambda b, eqn, cotangents: [b.add(transpose, cotangents[0], axes=tuple(int(i) for i in np.argsort(eqn.params["axes"])))])


def _size(shape: tuple[int | Rows, ...]) -> tuple[int, frozenset[Rows]]:
    return (math.prod(d for d in shape if isinstance(d, int)), frozenset(d for d in shape if isinstance(d, Rows)))


@reshape.infer
def _(x: ShapeDtypeStruct, *, shape: tuple[int | Rows, ...]) -> ShapeDtypeStruct:
    check_argument(_size(x.shape) == _size(shape), "reshape", "shape", shape, f"of as many elements as {x}")
    return ShapeDtypeStruct(tuple(shape), x.dtype)


@reshape.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    """Adds another view of the same memory."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    if isinstance(x, Literal):
        tiler.map(COPY, out, tiler.read(x, out))
        return
    source, shape = tiler.buffer(x), out.aval.shape
    if any(isinstance(d, Rows) for d in shape):
        cols, num_rows = math.prod(d for d in shape if isinstance(d, int)), None
    else:
        is_column = source.cols == 1 and len(shape) == 1 and source.num_rows == math.prod(fixed(shape))
        num_rows, cols = (fixed(shape)[0], 1) if is_column else tiler.laid_out(out)
    tiler.buffer_of[out] = tiler.view(tiler.buffer_of[x], out, shape, cols, num_rows)


@slice_axis.infer
def _(x: ShapeDtypeStruct, *, axis: int, start: int, stop: int, step: int = 1) -> ShapeDtypeStruct:
    size = x.shape[axis]
    check_argument(isinstance(size, int) and 0 <= start <= stop <= size and step >= 1, "slice", "start, stop and step",
                   (start, stop, step), f"within axis {axis} of {x}, and a step forward")
    return ShapeDtypeStruct(x.shape[:axis] + (len(range(start, stop, step)),) + x.shape[axis + 1:], x.dtype)


@slice_axis.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    p, size, taken = eqn.params, eqn.inputs[0].aval.shape[eqn.params["axis"]], eqn.outputs[0].aval.shape[eqn.params["axis"]]
    step, axis = p.get("step", 1), p["axis"]
    if not taken:
        return [None]
    after = size - p["start"] - (taken - 1) * step - 1
    return [b.add(pad_axis, cotangents[0], axis=axis, before=p["start"], after=after, **step_param(step))]


class Step(TypedDict, total=False):
    """Elements that are not side by side are so far apart."""

    step: int


def step_param(step: int) -> Step:
    """Returns the parameter `step`, the distance of elements, if they are not side by side."""
    return {} if step == 1 else {"step": step}


@slice_axis.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), out, axis = eqn.inputs, eqn.outputs[0], eqn.params["axis"]
    start, step = eqn.params["start"], eqn.params.get("step", 1)
    if step == 1 and is_last_of_rows(tiler, x, axis):
        tiler.new(out)
        tiler.copy_columns(out, tiler.at(x, offset=start, dtypes=tiler.HELD), 0, fixed(out.aval.shape)[-1])
    else:
        move_along(tiler, eqn, PICK, axis, start, step)


@pad_axis.infer
def _(x: ShapeDtypeStruct, *, axis: int, before: int, after: int, step: int = 1) -> ShapeDtypeStruct:
    """Pads with zeros before, after and, with a step, between the elements."""
    size = max(0, (fixed(x.shape)[axis] - 1) * step + 1)
    return ShapeDtypeStruct(x.shape[:axis] + (before + size + after,) + x.shape[axis + 1:], x.dtype)


@pad_axis.reference
def _(x: np.ndarray, *, axis: int, before: int, after: int, step: int = 1) -> np.ndarray:
    size = before + max(0, (x.shape[axis] - 1) * step + 1) + after
    out = np.zeros(x.shape[:axis] + (size,) + x.shape[axis + 1:], x.dtype)
    out[(slice(None),) * axis + (slice(before, size - after, step),)] = x
    return out


@pad_axis.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    axis, start, step = eqn.params["axis"], eqn.params["before"], eqn.params.get("step", 1)
    stop = cotangents[0].aval.shape[axis] - eqn.params["after"]
    return [b.add(slice_axis, cotangents[0], axis=axis, start=start, stop=stop, **step_param(step))]


@pad_axis.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), out, axis = eqn.inputs, eqn.outputs[0], eqn.params["axis"]
    before, step = eqn.params["before"], eqn.params.get("step", 1)
    if step > 1 or not is_last_of_rows(tiler, x, axis):
        move_along(tiler, eqn, PLACE, axis, before, step)
        return
    cols, zero = fixed(x.aval.shape[-1:])[0], tiler.read(Literal(0.0), out)
    tiler.new(out)
    tiler.copy_columns(out, zero, 0, before)
    tiler.copy_columns(out, tiler.at(x, dtypes=tiler.HELD), before, cols)
    tiler.copy_columns(out, zero, before + cols, eqn.params["after"])


@concat.infer
def _(*xs: ShapeDtypeStruct, axis: int) -> ShapeDtypeStruct:
    first = xs[0]
    for x in xs[1:]:
        same = x.dtype == first.dtype and x.shape[:axis] + x.shape[axis + 1:] == first.shape[:axis] + first.shape[axis + 1:]
        check_argument(same, "concat", "operands", f"{first} and {x}", f"equal but for axis {axis}")
    return ShapeDtypeStruct(first.shape[:axis] + (sum(fixed(x.shape)[axis] for x in xs),) + first.shape[axis + 1:],
                            first.dtype)


@concat.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    axis, start, out = eqn.params["axis"], 0, []
    for x in eqn.inputs:
        stop = start + x.aval.shape[axis]
        out.append(b.add(slice_axis, cotangents[0], axis=axis, start=start, stop=stop) if isinstance(x, Var) else None)
        start = stop
    return out


@concat.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    out, axis, offset = eqn.outputs[0], eqn.params["axis"], 0
    if all(is_last_of_rows(tiler, x, axis) for x in eqn.inputs):
        tiler.new(out)
        for x in eqn.inputs:
            tiler.copy_columns(out, tiler.at(x, dtypes=tiler.HELD), offset, fixed(x.aval.shape)[-1])
            offset += fixed(x.aval.shape)[-1]
    else:
        join_along(tiler, eqn, axis)


@transpose.infer
def _(x: ShapeDtypeStruct, *, axes: tuple[int, ...]) -> ShapeDtypeStruct:
    check_argument(sorted(axes) == list(range(len(x.shape))), "transpose", "axes", axes, f"an order of the axes of {x}")
    return ShapeDtypeStruct(tuple(x.shape[i] for i in axes), x.dtype)


@transpose.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), out, axes = eqn.inputs, eqn.outputs[0], eqn.params["axes"]
    if list(axes) == sorted(axes):
        tiler.map(COPY, out, tiler.at(x, dtypes=tiler.HELD))
        return
    has_rows = x in tiler.tokens and out in tiler.tokens or tiler.buffer(x).route >= 0
    if has_rows and axes[0] == 0 and tiler.axis_in_row(x, 1):
        turn_in_rows(tiler, x, out, axes)
        return
    tiler.refuse(f"transposes {x.aval} and mixes rows; tiles keep the order of axes, but for those inside the rows of "
                 "tokens, and for a weight that a product reads transposed, x @ w.T; compute it before the call and pass "
                 "the "
                 "result")


@cast.infer
def _(x: ShapeDtypeStruct, *, dtype: str) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(x.shape, dtype)


@cast.reference
def _(x: np.ndarray, *, dtype: str) -> np.ndarray:
    """Casts values; storing rounds them to another float. A value out of an integer dtype's range becomes its minimum."""
    with np.errstate(invalid="ignore"):
        return x if dtype in FLOATS and x.dtype.kind == "f" else x.astype(dtype)


@cast.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x = eqn.inputs[0]
    return [b.add(cast, cotangents[0], dtype=x.aval.dtype) if is_differentiable(x) else None]


def dtype_param(dtype: str, usual: str) -> dict[str, str]:
    """Returns the parameter that gives an output another dtype than its primitive usually does, or no parameter."""
    return {} if dtype == usual else {"dtype": dtype}


def in_dtype(b: Builder, atom: Atom, dtype: str) -> Atom:
    """Returns the atom, cast if it is a variable of another dtype."""
    return atom if isinstance(atom, Literal) or atom.aval.dtype == dtype else b.add(cast, atom, dtype=dtype)


def cast_back(b: Builder, eqn: Equation, producers: Mapping[Atom, Equation]) -> Atom | None:
    """Rewrites cast[bfloat16] (cast[float32] x:bf16) to x, and so for an integer by way of a wider one."""
    source = producers.get(eqn.inputs[0]) if eqn.primitive is cast else None
    if source is None or source.primitive is not cast:
        return None
    x, between = source.inputs[0], source.outputs[0].aval.dtype
    is_wider = (x.aval.dtype in HALVES and between == "float32") or (x.aval.dtype, between) == ("int32", "int64")
    return x if is_wider and x.aval.dtype == eqn.params["dtype"] else None


def is_widening(eqn: Equation) -> bool:
    """Returns True if `eqn` casts half precision to float32, which is no work: every reader widens."""
    return eqn.primitive is cast and eqn.inputs[0].aval.dtype in HALVES and eqn.outputs[0].aval.dtype == "float32"


@cast.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (x,), out = eqn.inputs, eqn.outputs[0]
    if out.aval.dtype == "bool":
        tiler.map(NOT_EQUAL, out, tiler.read(x, out), tiler.read(Literal(0), out))
        return
    if out.aval.dtype not in tiler.HELD:
        tiler.refuse(f"casts {x.aval.dtype} to {out.aval.dtype}; tile tasks compute float32, bfloat16 and float16")
    if is_widening(eqn) or (out.aval.dtype in FLOATS and tiler.stored_as(x, out.aval.dtype)):
        tiler.buffer_of[out] = tiler.buffer_of[x]
    else:
        tiler.map(COPY, out, tiler.read(x, out))
