"""MindSpore's choices by order: the largest, sorts, elements by an index of columns, running sums, one-hot rows.

All are of the last dimension; another is transposed to be the last one, which tiles refuse, as it mixes rows. Of equal
values the one with the smaller index comes first, and NaN counts as the largest.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import Rows
from hpmoe.primitives import columns, elementwise as e
from hpmoe.primitives.columns import top_k
from hpmoe.support.known import known
from hpmoe.tracing.calls import Rule, call, calls
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, to_dtype
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_choices import choose
from hpmoe.tracing.rules_shape import axis_of, expand_dims, reshape, select_index, static_size, swap_axes
from hpmoe.tracing.tracer import Operand, Tracer

Chosen = tuple[Tracer, Tracer]  # values and their indices


def _along_last(r: Recorder, x: Tracer, axis: int, act: Rule, *others: Tracer) -> Tracer:
    """Applies `act` to arrays whose last dimension is `axis` of x; returns its results, transposed back."""
    rank = len(x.hpmoe_aval.shape)
    if rank == 1:
        turn, back = (lambda v: reshape(r, v, (1, -1))), (lambda v: reshape(r, v, (-1,)))
    else:
        turn = back = lambda v: v if axis == rank - 1 else swap_axes(r, v, axis, rank - 1)
    out = act(*map(turn, (x, *others)))
    return tuple(map(back, out)) if isinstance(out, tuple) else back(out)


def _chosen(r: Recorder, x: Tracer, k: int | None, dim: int, largest: bool, ids_dtype: str = "int64") -> Chosen:
    """Returns the k first in order, or all if k is None, and their indices."""
    axis = axis_of(x, dim)
    size = static_size(x, axis, "a choice by order")
    k = size if k is None else k
    if isinstance(k, (Tracer, Tensor)) or not 1 <= k <= size:
        raise not_traceable(f"the {'largest' if largest else 'smallest'} {k} along dimension {dim} of {x.hpmoe_aval}",
                            f"there are {size}", f"a number in 1..{size}")
    values, ids = _along_last(r, x, axis, lambda v: r(top_k, v, k=k, largest=largest))
    return values, to_dtype(r, ids, ids_dtype)


def _extreme(r: Recorder, x: Tracer, dim: int, keepdim: bool, largest: bool, ids_dtype: str = "int64") -> Chosen:
    axis = axis_of(x, dim)
    found = _chosen(r, x, 1, dim, largest, ids_dtype)
    return found if keepdim else (select_index(r, found[0], axis, 0), select_index(r, found[1], axis, 0))


def _place(r: Recorder, x: Tracer, dim: int | None, keepdim: bool, largest: bool) -> Tracer:
    return _extreme(r, *(reshape(r, x, (x.size,)), 0, False) if dim is None else (x, dim, keepdim), largest)[1]


calls({
    "TopkExt": lambda r, input, k, dim=-1, largest=True, sorted=True: _chosen(r, input, k, dim, largest),
    "TopK": lambda r, input, k, sorted=True: _chosen(r, input, k, -1, True, "int32"),
    "SortExt": lambda r, input, dim=-1, descending=False, stable=False: _chosen(r, input, None, dim, descending),
    "Sort": lambda r, input, dim=-1, descending=False: _chosen(r, input, None, dim, descending, "int32"),
    "ArgSort": lambda r, input, dim=-1, descending=False, stable=False: _chosen(r, input, None, dim, descending)[1],
    "MaxDim": lambda r, input, dim, keepdim=False: _extreme(r, input, dim, keepdim, True),
    "MinDim": lambda r, input, dim, keepdim=False: _extreme(r, input, dim, keepdim, False),
    "ArgMaxWithValue": lambda r, input, dim=0, keepdim=False: _extreme(r, input, dim, keepdim, True, "int32"),
    "ArgMinWithValue": lambda r, input, dim=0, keepdim=False: _extreme(r, input, dim, keepdim, False, "int32"),
    "ArgMaxExt DeprecatedArgmax": lambda r, input, dim=None, keepdim=False: _place(r, input, dim, keepdim, True),
    "ArgMinExt DeprecatedArgmin": lambda r, input, dim=None, keepdim=False: _place(r, input, dim, keepdim, False),
    "Argmax": lambda r, input, dim=-1, output_type="int32": to_dtype(
        r, _place(r, input, dim, False, True), known(r.dtype_name(output_type))),
})


# Elements by an index.

@call("GatherD")
def gather_elements(r: Recorder, input: Tracer, dim: int, index: Tracer) -> Tracer:
    x, axis = r.materialize(input), axis_of(input, dim)
    mine, its = x.hpmoe_aval.shape, index.hpmoe_aval.shape
    beside = len(mine) == len(its) and mine[:axis] + mine[axis + 1:] == its[:axis] + its[axis + 1:]
    if not beside or any(isinstance(shape[axis], Rows) for shape in (mine, its)):
        raise not_traceable(f"a gather at dimension {dim} of {x.hpmoe_aval} by {index.hpmoe_aval}",
                            "they differ in another dimension, or it is that of received rows",
                            "an index of as many dimensions, equal but for the one that is gathered from")
    return _along_last(r, x, axis, lambda v, i: r(columns.take_columns, v, i), r.materialize(index))


def _sums_by_index(r: Recorder, x: Tracer, dim: int, index: Tracer, src: Operand, dtype: str | None = None) -> Tracer:
    """Returns zeros of x's shape, plus at each place the elements of `src`, or the number, whose index along `dim` names it.
    """
    axis = axis_of(x, dim)
    num_cols = static_size(x, axis, "a scatter")
    if not isinstance(src, Tracer):
        return _along_last(r, index, axis, lambda i: r(columns.add_columns, src, i, num_cols=num_cols, dtype=dtype))
    if src.hpmoe_aval.shape != index.hpmoe_aval.shape:
        raise not_traceable(f"a scatter of {src.hpmoe_aval} by {index.hpmoe_aval}", "each element has an index",
                            "a source of the index's shape")
    return _along_last(r, src, axis, lambda v, i: r(columns.add_columns, v, i, num_cols=num_cols), index)


@call("ScatterAddExt")
def scatter_add(r: Recorder, input: Tracer, dim: int, index: Tracer, src: Tracer) -> Tracer:
    x = r.materialize(input)
    return emit(r, e.add, x, _sums_by_index(r, x, dim, index, src))


@call("Scatter", "ScatterValue")
def scatter(r: Recorder, input: Tracer, dim: int, index: Tracer, src: Operand, reduce: object = 0) -> Tracer:
    """Writes the sum if an index is repeated, which MindSpore leaves undefined."""
    x = r.materialize(input)
    if reduce not in (0, "none"):
        raise not_traceable(f"a scatter with reduce={reduce!r}", "it replaces what is there",
                            "mint.scatter_add, or a product")
    is_number = not isinstance(src, Tracer) or not src.hpmoe_aval.shape
    is_hit = emit(r, e.greater, _sums_by_index(r, x, dim, index, 1, "int32"), 0)
    return choose(r, is_hit, src if is_number else _sums_by_index(r, x, dim, index, src), x, x.hpmoe_aval.dtype)


@call("OneHotExt", "OneHot")
def one_hot(r: Recorder, indices: Tracer, depth: int, on_value: Operand = 1, off_value: Operand = 0,
            dim: int = -1) -> Tracer:
    """Traces one_hot; an index that names no class has a row of only `off_value`."""
    if not isinstance(depth, int) or depth < 1:
        raise not_traceable(f"one_hot of {depth} classes", "their number would depend on values",
                            "num_classes=num_experts, an int")
    if dim not in (-1, len(indices.hpmoe_aval.shape)):
        raise not_traceable(f"one_hot with its classes in dimension {dim}", "rows stay together", "axis=-1")
    classes = r.lift(Tensor(np.arange(depth, dtype=np.float32)))  # tiles spread floats alone along the axes of a row
    hits = emit(r, e.equal, expand_dims(r, to_dtype(r, indices, "float32"), -1), classes)
    dtype = on_value.hpmoe_aval.dtype if isinstance(on_value, Tracer) else known(r.dtype_name(indices.dtype))
    values = [getattr(getattr(v, "hpmoe_atom", None), "value", v) for v in (on_value, off_value)]
    return to_dtype(r, hits, dtype) if values == [1, 0] else emit(r, e.select, hits, on_value, off_value, dtype=dtype)


# Running sums.

def _running(r: Recorder, x: Tracer, dim: int, reverse: bool = False) -> Tracer:
    axis = axis_of(x, dim)
    static_size(x, axis, "a running sum")
    return _along_last(r, x, axis, lambda v: r(columns.cumsum, v, reverse=reverse))


@call("CumsumExt")
def cumsum(r: Recorder, input: Tracer, dim: int, dtype: object = None) -> Tracer:
    own = input.hpmoe_aval.dtype
    return _running(r, to_dtype(r, input, r.dtype_name(dtype) or ("int64" if own in ("bool", "int32") else own)), dim)


@call("CumSum")
def cumsum_old(r: Recorder, input: Tracer, dim: int, exclusive: bool = False, reverse: bool = False) -> Tracer:
    total = _running(r, input, dim, reverse)
    return emit(r, e.sub, total, input) if exclusive else total
