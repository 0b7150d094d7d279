"""MindSpore's operations that move, repeat, join, cut and convert."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mindspore import TensorType

from hpmoe.ir.avals import Rows, fixed
from hpmoe.primitives import reduction, shape as s
from hpmoe.support.trees import PyTree
from hpmoe.tracing.calls import call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import full, promote_dtypes, to_dtype
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Operand, RowCount, Sizes, Tracer

MOST_COPIES = 1 << 12  # in one dimension of mint.tile


def dims_of(shape: Sequence[Sizes]) -> tuple[int | Rows, ...]:
    """Returns a shape written as numbers or as one sequence; `rows.shape[0]` stands for the rows dimension."""
    listed: Sequence[PyTree] = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    return tuple(d.rows if isinstance(d, RowCount) else d if isinstance(d, Rows) else int(d) for d in listed)


def axis_of(x: Tracer, dim: int, new: int = 0) -> int:
    """Returns the axis of a dimension in an array with `new` more dimensions."""
    rank = len(x.hpmoe_aval.shape) + new
    if not -rank <= dim < rank:
        has = f"{'the result' if new else 'it'} has {rank} dimensions"
        raise not_traceable(f"dimension {dim} of {x.hpmoe_aval}", has, f"one in {-rank}..{rank - 1}")
    return dim % rank


def static_size(x: Tracer, axis: int, what: str) -> int:
    size = x.hpmoe_aval.shape[axis]
    if not isinstance(size, int):
        raise not_traceable(f"{what} along the received rows", "their number is known only when the kernel runs",
                            "the same along another dimension; rows stay together")
    return size


def resolved(x: Tracer, shape: tuple[int | Rows, ...]) -> tuple[int | Rows, ...]:
    """Returns `shape` with its -1 computed, or with the received rows there if the shape has them nowhere else."""
    if -1 not in shape:
        return shape
    rows = [d for d in x.hpmoe_aval.shape if isinstance(d, Rows) and d not in shape]
    total = math.prod(d for d in x.hpmoe_aval.shape if isinstance(d, int))
    known = math.prod(d for d in shape if isinstance(d, int) and d != -1)
    rest = total // known if known else 0
    if len(rows) > 1 or (rows and rest != 1):
        raise not_traceable(f"reshape of {x.hpmoe_aval} to {shape}", "received rows stay one dimension of their own",
                            "a reshape that keeps the rows dimension, e.g. rows.reshape(-1, n)")
    return tuple((rows[0] if rows else rest) if d == -1 else d for d in shape)


@call("Reshape", "View")
def reshape(r: Recorder, input: Tracer, *shape: Sizes) -> Tracer:
    target = resolved(input, dims_of(shape))
    return input if target == input.hpmoe_aval.shape else r(s.reshape, input, shape=target)


@call("FlattenExt")
def flatten(r: Recorder, input: Tracer, start_dim: int = 0, end_dim: int = -1) -> Tracer:
    dims = input.hpmoe_aval.shape
    if not dims:
        return r(s.reshape, input, shape=(1,))
    start, end = axis_of(input, start_dim), axis_of(input, end_dim)
    return reshape(r, input, (*dims[:start], -1, *dims[end + 1:])) if start < end else input


@call("ExpandDims", "ExpandDimsView", "Unsqueeze")
def expand_dims(r: Recorder, input: Tracer, dim: int) -> Tracer:
    dims, axis = input.hpmoe_aval.shape, axis_of(input, dim, new=1)
    return r(s.reshape, input, shape=(*dims[:axis], 1, *dims[axis:]))


@call("Squeeze")
def squeeze(r: Recorder, input: Tracer, dim: int | list[int] | tuple[int, ...] = ()) -> Tracer:
    dims = input.hpmoe_aval.shape
    axes = [axis_of(input, d) for d in (dim if isinstance(dim, (list, tuple)) else (dim,))] or range(len(dims))
    target = tuple(d for i, d in enumerate(dims) if not (i in axes and isinstance(d, int) and d == 1))
    return r(s.reshape, input, shape=target) if target != dims else input


@call("Transpose", "TransposeView", "DeprecatedTranspose", "DeprecatedPermute")
def transpose(r: Recorder, input: Tracer, *axes: Sizes) -> Tracer:
    order = fixed(dims_of(axes)) or tuple(reversed(range(len(input.hpmoe_aval.shape))))
    order, dims = tuple(axis_of(input, a) for a in order), input.hpmoe_aval.shape
    if order == tuple(range(len(order))):
        return input
    moved = [a for a in order if dims[a] != 1]
    is_reshape = sorted(order) == list(range(len(dims))) and moved == sorted(moved)
    return r(s.reshape, input, shape=tuple(dims[a] for a in order)) if is_reshape else r(s.transpose, input, axes=order)


@call("TransposeExtView", "TransposeExt", "SwapAxes")
def swap_axes(r: Recorder, input: Tracer, dim0: int, dim1: int) -> Tracer:
    order = list(range(len(input.hpmoe_aval.shape)))
    a, b = axis_of(input, dim0), axis_of(input, dim1)
    order[a], order[b] = order[b], order[a]
    return transpose(r, input, tuple(order))


@call("TExt")
def matrix_transpose(r: Recorder, input: Tracer) -> Tracer:
    if len(input.hpmoe_aval.shape) > 2:
        raise not_traceable(f"t of {input.hpmoe_aval}", "mint.t and Tensor.t differ in what they make of it",
                            "mint.transpose(x, 0, 1)")
    return swap_axes(r, input, 0, 1) if len(input.hpmoe_aval.shape) == 2 else input


@call("BroadcastTo", "BroadcastToView")
def broadcast_to(r: Recorder, input: Tracer, *shape: Sizes) -> Tracer:
    dims = input.hpmoe_aval.shape
    target = dims_of(shape)
    lead = len(target) - len(dims)
    target = tuple(dims[i - lead] if d == -1 and i >= lead else d for i, d in enumerate(target))
    return input if target == dims else r(reduction.broadcast_to, input, shape=target)


# Cuts.

def cut(r: Recorder, x: Tracer, axis: int, start: int, stop: int | Rows, step: int = 1) -> Tracer:
    whole = (start, stop, step) == (0, x.hpmoe_aval.shape[axis], 1)
    return x if whole else r(s.slice_axis, x, axis=axis, start=start, stop=stop, **s.step_param(step))


def _cut_into(r: Recorder, x: Tracer, axis: int, sizes: Sequence[int]) -> tuple[Tracer, ...]:
    total = x.hpmoe_aval.shape[axis]
    if sum(sizes) != total or min(sizes, default=0) < 0:
        raise not_traceable(f"cutting {total} of {x.hpmoe_aval} into {list(sizes)}", "the parts are not the whole",
                            f"sizes that add up to {total}")
    stops = [sum(sizes[:i + 1]) for i in range(len(sizes))]
    return tuple(cut(r, x, axis, stop - size, stop) for size, stop in zip(sizes, stops, strict=True))


def _pieces(total: int, size: int) -> list[int]:
    if size < 1:
        raise not_traceable(f"parts of {size}", "a part has an element at least", "a positive number")
    return [min(size, total - start) for start in range(0, total, size)]


@call("SplitTensor", "SplitTensorView", "SplitWithSize", "SplitWithSizeView", "DeprecatedSplit")
def split(r: Recorder, tensor: Tracer, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tracer, ...]:
    axis = axis_of(tensor, dim)
    total = static_size(tensor, axis, "a split")
    sizes = split_size_or_sections
    return _cut_into(r, tensor, axis, _pieces(total, sizes) if isinstance(sizes, int) else list(sizes))


@call("Split")
def split_evenly(r: Recorder, input: Tracer, dim: int = 0, output_num: int = 1) -> tuple[Tracer, ...]:
    axis = axis_of(input, dim)
    return _cut_into(r, input, axis, [static_size(input, axis, "a split") // output_num] * output_num)


@call("Chunk", "ChunkView")
def chunk(r: Recorder, input: Tracer, chunks: int, dim: int = 0) -> tuple[Tracer, ...]:
    axis = axis_of(input, dim)
    total = static_size(input, axis, "a chunk")
    if chunks < 1:
        raise not_traceable(f"{chunks} chunks", "there is one at least", "a positive number")
    return _cut_into(r, input, axis, _pieces(total, max(1, -(-total // chunks))) or [0])


@call("Unstack", "UnstackExt", "UnstackExtView")
def unbind(r: Recorder, input: Tracer, dim: int = 0) -> tuple[Tracer, ...]:
    axis = axis_of(input, dim)
    return tuple(select_index(r, input, axis, i) for i in range(static_size(input, axis, "unbind")))


@call("SelectExt", "SelectExtView")
def select_index(r: Recorder, input: Tracer, dim: int, index: int) -> Tracer:
    axis = axis_of(input, dim)
    dims, size = input.hpmoe_aval.shape, static_size(input, axis, "an index")
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} of {input.hpmoe_aval}.")
    row = cut(r, input, axis, index % size, index % size + 1)
    return r(s.reshape, row, shape=(*dims[:axis], *dims[axis + 1:]))


@call("Narrow", "NarrowView")
def narrow(r: Recorder, input: Tracer, dim: int, start: int, length: int) -> Tracer:
    axis = axis_of(input, dim)
    start += static_size(input, axis, "a narrow") if start < 0 else 0
    return cut(r, input, axis, start, start + length)


@call("Slice")
def slice_all(r: Recorder, input: Tracer, begin: Sequence[int], size: Sequence[int]) -> Tracer:
    for axis, (start, length) in enumerate(zip(begin, size, strict=True)):
        stop = input.hpmoe_aval.shape[axis] if length == -1 else start + length
        input = cut(r, input, axis, start, stop)
    return input


@call("StridedSlice")
def strided_slice(r: Recorder, input: Tracer, begin: Sequence[int], end: Sequence[int], strides: Sequence[int],
                  *masks: int) -> Tracer:
    if any(masks) or any(step < 1 for step in strides):
        raise not_traceable("strided_slice with masks or a step back", "it has no primitive", "x[:, a:b:step]")
    for axis, (start, stop, step) in enumerate(zip(begin, end, strides, strict=True)):
        size = input.hpmoe_aval.shape[axis]
        if isinstance(size, Rows) or (start, stop, step) == (0, size, 1):
            continue
        input = cut(r, input, axis, start, min(stop, size), step)
    return input


# Joins.

@call("Concat", "Cat")
def concat(r: Recorder, tensors: Sequence[Tracer], dim: int = 0) -> Tracer:
    axis = axis_of(tensors[0], dim)
    for x in tensors:
        static_size(x, axis, "a concat")
    dtype = promote_dtypes([x.hpmoe_aval.dtype for x in tensors], [])
    parts = [to_dtype(r, x, dtype) for x in tensors]
    beside = {x.hpmoe_aval.shape[:axis] + x.hpmoe_aval.shape[axis + 1:] for x in parts}
    if len(beside) == 1:  # what is empty must fit, too
        parts = [x for x in parts if x.hpmoe_aval.shape[axis]] or parts[:1]
    return r(s.concat, *parts, axis=axis) if len(parts) > 1 else parts[0]


@call("Stack", "StackExt")
def stack(r: Recorder, tensors: Sequence[Tracer], dim: int = 0) -> Tracer:
    tensors = [tensors] if isinstance(tensors, Tracer) else tensors  # ops.stack takes one tensor, too
    axis = axis_of(tensors[0], dim, new=1)
    return concat(r, [expand_dims(r, x, axis) for x in tensors], axis)


@call("Tile", "Repeat")
def tile(r: Recorder, input: Tracer, *dims: Sizes) -> Tracer:
    counts, shape = fixed(dims_of(dims)), input.hpmoe_aval.shape
    out = r(s.reshape, input, shape=(*(1,) * (len(counts) - len(shape)), *shape)) if len(counts) > len(shape) else input
    counts = (1,) * (len(out.hpmoe_aval.shape) - len(counts)) + counts
    if min(counts, default=1) < 1:
        raise not_traceable(f"{min(counts)} copies of {input.hpmoe_aval}", "there is one at least", "positive counts")
    if max(counts, default=1) > MOST_COPIES:
        raise not_traceable(f"{max(counts)} copies of {input.hpmoe_aval}", "each is an operand of an equation",
                            "mint.broadcast_to along a dimension of size 1")
    for axis, count in enumerate(counts):
        out = concat(r, [out] * count, axis) if count > 1 else out
    return out


@call("RepeatInterleaveInt", "RepeatInterleaveTensor", "DeprecatedRepeatInterleave")
def repeat_interleave(r: Recorder, input: Tracer, repeats: Operand, dim: int | None = None,
                      output_size: int | None = None) -> Tracer:
    """Repeats each element `repeats` times, one after another."""
    if not isinstance(repeats, int) or repeats < 1:
        raise not_traceable(f"repeat_interleave by {repeats if isinstance(repeats, int) else 'a tensor'}",
                            "the shape of its result is known beforehand", "a positive int, or x[:, [0, 0, 1]] with a list")
    if dim is None:
        input, dim = reshape(r, input, (-1,)), 0
    axis, shape = axis_of(input, dim), input.hpmoe_aval.shape
    size = static_size(input, axis, "repeating")
    each = r(s.reshape, input, shape=(*shape[:axis + 1], 1, *shape[axis + 1:]))
    copies = r(reduction.broadcast_to, each, shape=(*shape[:axis + 1], repeats, *shape[axis + 1:]))
    return r(s.reshape, copies, shape=(*shape[:axis], size * repeats, *shape[axis + 1:]))


@call("Roll")
def roll(r: Recorder, input: Tracer, shifts: int | Sequence[int], dim: int | Sequence[int] | None = None) -> Tracer:
    if dim is None:
        return reshape(r, roll(r, reshape(r, input, (-1,)), shifts, 0), input.hpmoe_aval.shape)
    for shift, axis in zip(*([x] if isinstance(x, int) else x for x in (shifts, dim)), strict=True):
        axis = axis_of(input, axis)
        size = static_size(input, axis, "a roll")
        first = -shift % max(1, size)
        input = concat(r, [cut(r, input, axis, first, size), cut(r, input, axis, 0, first)], axis) if first else input
    return input


@call("ConstantPadND")
def pad(r: Recorder, input: Tracer, padding: Sequence[int], value: Operand = 0) -> Tracer:
    if value != 0:
        raise not_traceable(f"padding with {value}", "padding is zeros", "value=0, or mint.cat with a full tensor")
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    for axis, (before, after) in enumerate(pairs):
        axis = len(input.hpmoe_aval.shape) - 1 - axis
        if min(before, after) < 0:
            raise not_traceable("negative padding", "padding adds elements", "x[:, a:b]")
        if before or after:
            static_size(input, axis, "padding")
            input = r(s.pad_axis, input, axis=axis, before=before, after=after)
    return input


# Conversions.

@call("Cast", "ToDtype", "ToDevice", "ToOther", "TypeAs")
def convert(r: Recorder, input: Tracer, dtype: object = None, *rest: object, **options: object) -> Tracer:
    if isinstance(dtype, Tracer):
        return to_dtype(r, input, dtype.hpmoe_aval.dtype)
    name = r.dtype_name(dtype)
    return to_dtype(r, input, name) if name else input


calls({
    "ViewAs": lambda r, input, other: reshape(r, input, other.hpmoe_aval.shape),
    "Flatten": lambda r, input: reshape(r, input, (input.hpmoe_aval.shape[0], -1)),
    "Clone Identity Contiguous Depend": lambda r, input, *rest: input,
    "typeof": lambda r, input: TensorType(input.dtype),
    "NewZeros": lambda r, input, *size, dtype=None: full(
        r, dims_of(size), 0.0, r.dtype_name(dtype) or input.hpmoe_aval.dtype),
    "NewOnes": lambda r, input, *size, dtype=None: full(
        r, dims_of(size), 1.0, r.dtype_name(dtype) or input.hpmoe_aval.dtype),
})
