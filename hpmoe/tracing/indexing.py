"""x[...] on a tracer: basic indices become slices and reshapes, an integer tensor a gather."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import Rows
from hpmoe.primitives.columns import take_columns
from hpmoe.primitives.gather import gather_rows
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.shape import reshape
from hpmoe.tracing.calls import call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_shape import (
    MOST_COPIES as MOST_KNOWN,
    axis_of,
    concat,
    cut,
    expand_dims,
    select_index,
    static_size,
    swap_axes,
)
from hpmoe.tracing.tracer import RowCount, Tracer

MOST_NUMBERS = 1024  # of a vector that is laid beside each row of indices


@call("__getitem__")
def getitem(r: Recorder, x: Tracer, index: Tracer) -> Tracer:
    parts = _expanded(x, index if isinstance(index, tuple) else (index,))
    arrays = [p for p in parts if isinstance(p, (Tracer, list, np.ndarray))]
    if len(arrays) > 1:
        raise not_traceable("indexing with several tensors", "a gather takes whole rows",
                            "x[rows][:, [0, 2]], columns by numbers, or mint.where with a mask")
    axis, gathered = 0, None
    for part in parts:
        if part is None:
            x, axis = expand_dims(r, x, axis), axis + 1
        elif isinstance(part, slice):
            x, axis = _slice(r, x, axis, part), axis + 1
        elif isinstance(part, (Tracer, list, np.ndarray)):
            gathered, axis = (part, axis), axis + 1
        elif isinstance(part, (int, np.integer)) and not isinstance(part, bool):
            x = select_index(r, x, axis, int(part))
        else:
            raise not_traceable(f"indexing with {part!r}", "an index is an int, a slice, None, ... or an int tensor",
                                "x[:, a:b], x[i] or x[int_tensor]")
    return x if gathered is None else gather(r, x, gathered[0], gathered[1])


def _expanded(x: Tracer, parts: tuple[object, ...]) -> list[object]:
    """Returns the index with its ellipsis written out."""
    used = sum(p is not None and p is not Ellipsis for p in parts)
    rank = len(x.hpmoe_aval.shape)
    if used > rank:
        raise IndexError(f"too many indices: {used} for {x.hpmoe_aval}.")
    fill = [slice(None)] * (rank - used)
    place = next((i for i, p in enumerate(parts) if p is Ellipsis), len(parts))
    return [*parts[:place], *fill, *(p for p in parts[place + 1:] if p is not Ellipsis)]


def _slice(r: Recorder, x: Tracer, axis: int, part: slice) -> Tracer:
    size = x.hpmoe_aval.shape[axis]
    if any(isinstance(v, Tensor) for v in (part.start, part.stop, part.step)):
        raise not_traceable("a slice with a bound that is computed", "shapes are static", "Python ints as bounds")
    to_end = part.stop is None or (isinstance(part.stop, RowCount) and part.stop.rows is size)
    if to_end and part.start in (None, 0) and part.step in (None, 1):
        return x
    if isinstance(size, Rows):
        raise not_traceable("a slice of the received rows", "their number is known only when the kernel runs",
                            "a slice of the columns; rows stay together")
    if any(isinstance(v, RowCount) for v in (part.start, part.stop)):
        raise not_traceable("a slice bounded by the number of received rows", "shapes are static", "Python ints as bounds")
    start, stop, step = part.indices(size)
    if step < 0:
        raise not_traceable(f"a slice of step {step}", "a step goes forward",
                            f"the elements one by one, x[:, list(range(*slice({part.start}, {part.stop}, {step})"
                            f".indices(x.shape[{axis}]))))]")
    return cut(r, x, axis, start, max(start, stop), step)


def gather(r: Recorder, x: Tracer, index: Tracer, axis: int) -> Tracer:
    """Returns x[..., index, ...] with `index` at `axis`; known numbers, at another axis than the first, are slices joined.
    """
    if not isinstance(index, Tracer) and axis > 0:
        known = np.asarray(index)
        if known.ndim == 1 and known.dtype.kind in "iu" and 0 < len(known) <= MOST_KNOWN:
            return _picked(r, x, axis, known)
    if not isinstance(index, Tracer):
        index = r.lift(Tensor(np.asarray(index)))
    if index.hpmoe_aval.dtype not in ("int32", "int64"):
        raise not_traceable(f"indexing with {index.hpmoe_aval}", "the shape of the result would depend on values",
                            "mint.where(mask, x, 0), which keeps the shape")
    if isinstance(x.hpmoe_aval.shape[axis], Rows):
        raise not_traceable("a gather from the received rows", "only hpmoe.combine reads them by token",
                            "hpmoe.combine(rows, route) first")
    index = r.materialize(index)
    mine, its = x.hpmoe_aval.shape, index.hpmoe_aval.shape
    count = mine[0]
    if len(mine) == 1 and len(its) == 2 and isinstance(count, int) and count <= MOST_NUMBERS:
        # Each row chooses, as weights of experts by their ids.
        return r(take_columns, r(broadcast_to, x, shape=(its[0], *mine)), index)
    if axis == 0:
        return r(gather_rows, x, index)
    if len(index.hpmoe_aval.shape) != 1:
        raise not_traceable(f"a gather at dimension {axis} with {index.hpmoe_aval}", "only rows take such an index",
                            "a one-dimensional index, or the dimension moved to the front")
    return swap_axes(r, r(gather_rows, swap_axes(r, x, 0, axis), index), 0, axis)


def _picked(r: Recorder, x: Tracer, axis: int, index: np.ndarray) -> Tracer:
    size = static_size(x, axis, "a gather")
    if (index < -size).any() or (index >= size).any():
        raise IndexError(f"index {index.tolist()} is out of bounds for dimension {axis} of {x.hpmoe_aval}.")
    return concat(r, [cut(r, x, axis, *run) for run in _runs((index % size).tolist())], axis)


def _runs(index: list[int]) -> list[tuple[int, int, int]]:
    """Returns (start, stop, step) of slices that, one after another, are an index."""
    runs: list[list[int]] = []
    for i in index:
        last = runs[-1] if runs else []
        if len(last) > 1 and i - last[-1] == last[1] - last[0] or len(last) == 1 and i > last[0]:
            last.append(i)
        else:
            runs.append([i])
    return [(run[0], run[-1] + 1, run[1] - run[0] if len(run) > 1 else 1) for run in runs]


@call("ReverseV2")
def flip(r: Recorder, input: Tracer, axis: int | Sequence[int]) -> Tracer:
    for dim in (axis_of(input, a) for a in ([axis] if isinstance(axis, int) else axis)):
        back = np.arange(static_size(input, dim, "a flip"), dtype=np.int32)[::-1]
        if len(back) > 1:
            input = _picked(r, input, dim, back) if dim else gather(r, input, r.lift(Tensor(back.copy())), dim)
    return input


@call("Gather")
def gather_old(r: Recorder, input: Tracer, indices: Tracer, dim: int = 0, batch_dims: int = 0) -> Tracer:
    if batch_dims:
        raise not_traceable("gather with batch_dims", "it has no primitive", "x[index]")
    return gather(r, input, indices, axis_of(input, dim))


@call("Embedding")
def embedding(r: Recorder, input: Tracer, weight: Tracer, padding_idx: int | None = None, max_norm: float | None = None,
              norm_type: float = 2.0, scale_grad_by_freq: bool = False) -> Tracer:
    if max_norm is not None:
        raise not_traceable("embedding with max_norm", "it writes to the weight", "max_norm=None")
    if padding_idx is not None:
        raise not_traceable("embedding with padding_idx", "that row of the weight has no gradient", "padding_idx=None")
    if scale_grad_by_freq:
        raise not_traceable("embedding with scale_grad_by_freq", "its gradients depend on how often an id occurs",
                            "scale_grad_by_freq=False")
    return gather(r, weight, input, 0)


calls({
    "IndexSelect": lambda r, input, dim, index: gather(r, input, index, axis_of(input, dim)),
    "Take": lambda r, input, index: gather(r, r(reshape, input, shape=(input.size,)), index, 0),
})
