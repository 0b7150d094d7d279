"""Rows of floats as quantised rows of bytes, and back; see hpmoe.tile_ops.row_formats for what is rounded and how."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Equation
from hpmoe.primitives.dispatch import combine_rows
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.sending import tile_return
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import Route
from hpmoe.support.dtypes import BYTES, FLOATS, rounded
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.quantized import DEQUANTIZE, QUANTIZE, REDUCE_QUANTIZED
from hpmoe.tile_ops.row_formats import RowFormat, dequantized, format_of, quantized

ROWS = (*FLOATS, BYTES)
quantize = Primitive("quantize")
dequantize = Primitive("dequantize")
combine_quantized = Primitive("combine_quantized", collective=True)
quantize.tile(lambda tiler, eqn: tiler.emit_rows(QUANTIZE, eqn, _form(eqn), ROWS))
dequantize.tile(lambda tiler, eqn: tiler.emit_rows(DEQUANTIZE, eqn, _form(eqn), ROWS))
quantize.reference(lambda x, *, dtype, block=0: quantized(x, format_of(dtype, block)))


@quantize.infer
def _(x: ShapeDtypeStruct, *, dtype: str, block: int = 0) -> ShapeDtypeStruct:
    check_argument(len(x.shape) == 2 and x.dtype in FLOATS, "quantize", "rows", x, "[rows, columns] of floats")
    return ShapeDtypeStruct((x.shape[0], format_of(dtype, block).packed_cols(_cols(x))), BYTES)


@dequantize.infer
def _(packed: ShapeDtypeStruct, *, dtype: str, to: str, block: int = 0) -> ShapeDtypeStruct:
    cols = format_of(dtype, block).cols_of(_cols(packed)) if len(packed.shape) == 2 else -1
    check_argument(packed.dtype == BYTES and cols > 0, "dequantize", "rows", packed, f"rows that quantize made, of {dtype}")
    check_argument(to in FLOATS, "dequantize", "to", repr(to), f"one of {', '.join(FLOATS)}")
    return ShapeDtypeStruct((packed.shape[0], cols), to)


@dequantize.reference
def _(packed: np.ndarray, *, dtype: str, to: str, block: int = 0) -> np.ndarray:
    form = format_of(dtype, block)
    return rounded(dequantized(packed, form), to)


@combine_quantized.infer
def _(packed: ShapeDtypeStruct, route: RouteAval, *weights: ShapeDtypeStruct, dtype: str, to: str,
      block: int = 0) -> ShapeDtypeStruct:
    rows = dequantize.rule("infer", "combine_quantized")(packed, dtype=dtype, to=to, block=block)
    return combine_rows.rule("infer", "combine_quantized")(rows, route, *weights)


@combine_quantized.reference
def _(packed: list[np.ndarray], routes: list[Route], *weights: list[np.ndarray], dtype: str, to: str,
      block: int = 0) -> list[np.ndarray]:
    form = format_of(dtype, block)
    rows = [dequantized(mine, form) for mine in packed]
    return combine_rows.rule("reference", "combine_quantized")(rows, routes, *weights)


@combine_quantized.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    """Sends rows of bytes back to their tokens' rank, where they are read as floats when they are summed."""
    (packed, route), out = eqn.inputs[:2], eqn.outputs[0]
    entries = tile_return(tiler, packed, route, out)
    tiler.new(out)
    domain = dataclasses.replace(tiler.rows_of(out), route=tiler.once(route).route)
    weights = (tiler.at(w, cols=col_modes.ALL) for w in eqn.inputs[2:])
    tiler.emit(REDUCE_QUANTIZED, domain, tiler.at(out, cols=col_modes.ALL), entries, *weights, cols=0,
               params=_form(eqn))


def _cols(aval: ShapeDtypeStruct) -> int:
    cols = aval.shape[1]
    return cols if isinstance(cols, int) else -1


def _form(eqn: Equation) -> RowFormat:
    return format_of(eqn.params["dtype"], eqn.params.get("block", 0))
