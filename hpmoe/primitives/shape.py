"""Primitives that move elements: reshape, slice, pad, concat, transpose, cast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpmoe.ir.avals import Aval, Rows
from hpmoe.ir.program import Atom, Builder, Equation, Literal, Var
from hpmoe.primitives.differentiable import is_differentiable
from hpmoe.primitives.primitive import Primitive
from hpmoe.support.dtypes import FLOATS, HALVES
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops.functions import COPY, NOT_EQUAL

reshape = Primitive("reshape")
slice_axis = Primitive("slice")
pad_axis = Primitive("pad")
concat = Primitive("concat")
transpose = Primitive("transpose")
cast = Primitive("cast")


def _size(shape: tuple[int | Rows, ...]) -> tuple[int, frozenset[Rows]]:
    return (math.prod(d for d in shape if isinstance(d, int)), frozenset(d for d in shape if isinstance(d, Rows)))


@reshape.infer
def _(x: Aval, *, shape: tuple[int | Rows, ...]) -> Aval:
    check_argument(_size(x.shape) == _size(shape), "reshape", "shape", shape, f"of as many elements as {x}")
    return Aval(tuple(shape), x.dtype)


@reshape.reference
def _(x: np.ndarray, *, shape: tuple[int, ...]) -> np.ndarray:
    return x.reshape(shape)


@reshape.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(reshape, cotangents[0], shape=eqn.inputs[0].aval.shape)]


@reshape.tile
def _(tiler: Any, eqn: Equation) -> None:
    """A reshape that keeps every row whole is another view of the same memory."""
    (x,), out = eqn.inputs, eqn.outputs[0]
    if isinstance(x, Literal):
        tiler.map(COPY, out, tiler.read(x, out.aval))
        return
    source, shape = tiler.buffer(x), out.aval.shape
    if any(isinstance(d, Rows) for d in shape):
        cols, num_rows = math.prod(d for d in shape if isinstance(d, int)), None
    else:
        is_column = source.cols == 1 and len(shape) == 1 and source.num_rows == math.prod(shape)
        num_rows, cols = (shape[0], 1) if is_column else tiler.laid_out(out)
    if cols != source.cols and (num_rows or 0) > 1 and (source.num_rows or 0) > 1:
        tiler.refuse(f"reshapes {x.aval} to {out.aval} across rows")
    tiler.buffer_of[out] = tiler.view(tiler.buffer_of[x], out, shape, cols, num_rows)


def _check_last_axis(tiler: Any, eqn: Equation) -> None:
    shape, axis = eqn.outputs[0].aval.shape, eqn.params["axis"]
    if axis != len(shape) - 1 or len(shape) < 2:
        tiler.refuse(f"works along axis {axis} of {len(shape)} and mixes rows; tiles cut and join along the last of several"
                     " axes")


@slice_axis.infer
def _(x: Aval, *, axis: int, start: int, stop: int) -> Aval:
    size = x.shape[axis]
    check_argument(isinstance(size, int) and 0 <= start <= stop <= size, "slice", "start and stop", (start, stop),
                   f"within axis {axis} of {x}")
    return Aval(x.shape[:axis] + (stop - start,) + x.shape[axis + 1:], x.dtype)


@slice_axis.reference
def _(x: np.ndarray, *, axis: int, start: int, stop: int) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(start, stop),)].copy()


@slice_axis.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    p, size = eqn.params, eqn.inputs[0].aval.shape[eqn.params["axis"]]
    return [b.add(pad_axis, cotangents[0], axis=p["axis"], before=p["start"], after=size - p["stop"])]


@slice_axis.tile
def _(tiler: Any, eqn: Equation) -> None:
    _check_last_axis(tiler, eqn)
    (x,), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    tiler.copy_columns(out, tiler.at(x, offset=eqn.params["start"], dtypes=tiler.HELD), 0, out.aval.shape[-1])


@pad_axis.infer
def _(x: Aval, *, axis: int, before: int, after: int) -> Aval:
    return Aval(x.shape[:axis] + (x.shape[axis] + before + after,) + x.shape[axis + 1:], x.dtype)


@pad_axis.reference
def _(x: np.ndarray, *, axis: int, before: int, after: int) -> np.ndarray:
    return np.pad(x, [(before, after) if i == axis else (0, 0) for i in range(x.ndim)])


@pad_axis.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    axis, start = eqn.params["axis"], eqn.params["before"]
    return [b.add(slice_axis, cotangents[0], axis=axis, start=start, stop=start + eqn.inputs[0].aval.shape[axis])]


@pad_axis.tile
def _(tiler: Any, eqn: Equation) -> None:
    _check_last_axis(tiler, eqn)
    (x,), out, before = eqn.inputs, eqn.outputs[0], eqn.params["before"]
    cols, zero = x.aval.shape[-1], tiler.read(Literal(0.0), out.aval)
    tiler.new(out)
    tiler.copy_columns(out, zero, 0, before)
    tiler.copy_columns(out, tiler.at(x, dtypes=tiler.HELD), before, cols)
    tiler.copy_columns(out, zero, before + cols, eqn.params["after"])


@concat.infer
def _(*xs: Aval, axis: int) -> Aval:
    first = xs[0]
    for x in xs[1:]:
        same = x.dtype == first.dtype and x.shape[:axis] + x.shape[axis + 1:] == first.shape[:axis] + first.shape[axis + 1:]
        check_argument(same, "concat", "operands", f"{first} and {x}", f"equal but for axis {axis}")
    return Aval(first.shape[:axis] + (sum(x.shape[axis] for x in xs),) + first.shape[axis + 1:], first.dtype)


@concat.reference
def _(*xs: np.ndarray, axis: int) -> np.ndarray:
    return np.concatenate(xs, axis=axis)


@concat.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    axis, start, out = eqn.params["axis"], 0, []
    for x in eqn.inputs:
        stop = start + x.aval.shape[axis]
        out.append(b.add(slice_axis, cotangents[0], axis=axis, start=start, stop=stop) if isinstance(x, Var) else None)
        start = stop
    return out


@concat.tile
def _(tiler: Any, eqn: Equation) -> None:
    _check_last_axis(tiler, eqn)
    out, offset = eqn.outputs[0], 0
    tiler.new(out)
    for x in eqn.inputs:
        tiler.copy_columns(out, tiler.at(x, dtypes=tiler.HELD), offset, x.aval.shape[-1])
        offset += x.aval.shape[-1]


@transpose.infer
def _(x: Aval, *, axes: tuple[int, ...]) -> Aval:
    check_argument(sorted(axes) == list(range(len(x.shape))), "transpose", "axes", axes, f"an order of the axes of {x}")
    return Aval(tuple(x.shape[i] for i in axes), x.dtype)


@transpose.reference
def _(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(axes))


@transpose.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(transpose, cotangents[0], axes=tuple(int(i) for i in np.argsort(eqn.params["axes"])))]


@cast.infer
def _(x: Aval, *, dtype: str) -> Aval:
    return Aval(x.shape, dtype)


@cast.reference
def _(x: np.ndarray, *, dtype: str) -> np.ndarray:
    """To another float the values stay: rounding them is what storing does. What no integer is near becomes the least."""
    with np.errstate(invalid="ignore"):
        return x if dtype in FLOATS and x.dtype.kind == "f" else x.astype(dtype)


@cast.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x = eqn.inputs[0]
    return [b.add(cast, cotangents[0], dtype=x.aval.dtype) if is_differentiable(x) else None]


def dtype_param(dtype: str, usual: str) -> dict[str, str]:
    """The parameter that gives an output another dtype than its primitive usually does, where it is another."""
    return {} if dtype == usual else {"dtype": dtype}


def in_dtype(b: Builder, atom: Atom, dtype: str) -> Atom:
    """The atom, cast where it is a variable of another dtype."""
    return atom if isinstance(atom, Literal) or atom.aval.dtype == dtype else b.add(cast, atom, dtype=dtype)


def cast_back(b: Builder, eqn: Equation, producers: Mapping[Var, Equation]) -> Atom | None:
    """cast[bfloat16] (cast[float32] x:bf16) -> x, and so of an integer by way of a wider one."""
    source = producers.get(eqn.inputs[0]) if eqn.primitive is cast else None
    if source is None or source.primitive is not cast:
        return None
    x, between = source.inputs[0], source.outputs[0].aval.dtype
    is_wider = (x.aval.dtype in HALVES and between == "float32") or (x.aval.dtype, between) == ("int32", "int64")
    return x if is_wider and x.aval.dtype == eqn.params["dtype"] else None


def is_widening(eqn: Equation) -> bool:
    """Whether `eqn` casts half precision to float32: no work, since everything widens what it reads."""
    return eqn.primitive is cast and eqn.inputs[0].aval.dtype in HALVES and eqn.outputs[0].aval.dtype == "float32"


@cast.tile
def _(tiler: Any, eqn: Equation) -> None:
    (x,), out = eqn.inputs, eqn.outputs[0]
    if out.aval.dtype == "bool":
        tiler.map(NOT_EQUAL, out, tiler.read(x, out.aval), tiler.read(Literal(0), x.aval))
        return
    if out.aval.dtype not in tiler.HELD:
        tiler.refuse(f"casts {x.aval.dtype} to {out.aval.dtype}; tile tasks compute float32, bfloat16 and float16")
    if is_widening(eqn) or (out.aval.dtype in FLOATS and tiler.stored_as(x, out.aval.dtype)):
        tiler.buffer_of[out] = tiler.buffer_of[x]
    else:
        tiler.map(COPY, out, tiler.read(x, out.aval))
