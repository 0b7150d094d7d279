"""Weights of experts as elements of one byte with scales: a column of each expert's weight is rounded as a row is, see
`hpmoe.tile_ops.row_formats`, and stored transposed, so that what is multiplied lies side by side."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Equation
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.placement import Placement
from hpmoe.support.dtypes import BYTES, FLOATS
from hpmoe.support.errors import check_argument, is_name
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.quantized_matmuls import QUANTIZE_WEIGHT, WeightFormat
from hpmoe.tile_ops.row_formats import WEIGHT_FORMATS, quantized, scales_in

quantize_weight = Primitive("quantize_weight")

ELEMENT_OF = {"int8": "int8", BYTES: "float8_e4m3fn"}  # what elements of a given weight are, by its dtype
STORED_AS = {"int8": "int8", "float8_e4m3fn": BYTES, "mxfp8": BYTES}


def scales_aval(codes: ShapeDtypeStruct, element: str) -> ShapeDtypeStruct:
    """Returns shape and dtype of the scales of a quantised weight that is stored as [E, N, K]."""
    experts, outer, inner = fixed(codes.shape)
    form = WEIGHT_FORMATS[element]
    return ShapeDtypeStruct((experts, outer, form.blocks(inner)),
                            BYTES) if form.block else ShapeDtypeStruct((experts, outer), "float32")


T = TypeVar("T", ShapeDtypeStruct, Atom, np.ndarray)
Some = tuple[T, ...]


def split_copies(placement: Placement | None, more: Some[T]) -> tuple[Some[T], Some[T], Some[T]]:
    """Splits the inputs of a product after the route into the scale, replicas of the weight and replicas of the scale."""
    num = len(more) if placement is None else len(more) // 2
    return more[:num], more[num:num + 1], more[num + 1:]


@quantize_weight.infer
def _(w: ShapeDtypeStruct, *, dtype: str, transposed: bool = False) -> tuple[ShapeDtypeStruct, ShapeDtypeStruct]:
    """Returns the quantised weight [E, N, K] and its scales: [E, N], one a column, or [E, N, blocks], one a block of it.

    The input is [E, K, N], or [E, N, K] if `transposed`.
    """
    check_argument(is_name(dtype, WEIGHT_FORMATS), "quantize_weight", "dtype", repr(dtype),
                   f"one of {', '.join(WEIGHT_FORMATS)}")
    check_argument(len(w.shape) == 3 and w.dtype in FLOATS, "quantize_weight", "weight", w, "[E, K, N] of floats")
    experts, rows, cols = fixed(w.shape)
    outer, inner = (rows, cols) if transposed else (cols, rows)
    codes = ShapeDtypeStruct((experts, outer, inner), STORED_AS[dtype])
    return codes, scales_aval(codes, dtype)


@quantize_weight.reference
def _(w: np.ndarray, *, dtype: str, transposed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    w, form = w if transposed else w.swapaxes(1, 2), WEIGHT_FORMATS[dtype]
    depth = w.shape[2]
    packed = quantized(w.reshape(-1, depth), form)
    codes = np.ascontiguousarray(packed[:, :depth]).view(STORED_AS[dtype])
    return codes.reshape(w.shape), scales_in(packed, depth, form).reshape(*w.shape[:2], *[-1] * bool(form.block))


@quantize_weight.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    """Emits a task for each tile of rows of the transposed weights, which are columns of the given weights."""
    (w,), (codes, scales) = eqn.inputs, eqn.outputs
    experts, outer, inner = fixed(codes.aval.shape)
    form = WEIGHT_FORMATS[eqn.params["dtype"]]
    tiler.new(scales, rows_and_cols=None if form.block else (experts * outer, 1))
    tiler.new(codes)
    cols = 1 if eqn.params.get("transposed") else outer
    given = tiler.view(tiler.at(w).buffer, w, (experts * outer, inner), inner, experts * outer)
    tiler.emit(QUANTIZE_WEIGHT, tiler.rows_of(codes), tiler.at(scales, cols=col_modes.ALL, dtypes=(*FLOATS, BYTES)),
               tiler.at(codes, cols=col_modes.ALL, dtypes=tuple(ELEMENT_OF)),
               Access(given, row_modes.ALL, col_modes.ALL), cols=0,
               params=WeightFormat(form.element, form.scale, form.block, cols))
