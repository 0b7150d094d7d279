"""QUANTIZE: rows of floats as rows of bytes, elements and scales. DEQUANTIZE: such rows as floats again."""

from __future__ import annotations

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.row_formats import RowFormat, dequantized, quantized
from hpmoe.tile_ops.tile_primitive import Operand, TilePrimitive

FLOATS = Operand(cols=(col_modes.ALL,))
BYTES = Operand(cols=(col_modes.ALL,), is_bytes=True)

QUANTIZE = TilePrimitive("QUANTIZE", 33, targets=("cpu",), params=RowFormat, measured_as="MAP copy", outputs=(BYTES,),
                         inputs=(FLOATS,))
DEQUANTIZE = TilePrimitive("DEQUANTIZE", 34, targets=("cpu",), params=RowFormat, measured_as="MAP copy", rounds=True,
                           outputs=(FLOATS,), inputs=(BYTES,))


@QUANTIZE.reference
def _(frame: Frame[RowFormat]) -> int:
    out, rows = frame.operands()
    out[...] = quantized(rows, frame.params)
    return len(out)


@DEQUANTIZE.reference
def _(frame: Frame[RowFormat]) -> int:
    out, packed = frame.operands()
    out[...] = dequantized(packed, out.shape[1], frame.params)
    return len(out)


@QUANTIZE.fits
def _(op: Operation[RowFormat], buffers: Buffers, plan: RoutePlan | None) -> str:
    return _fault(op.params, op.width(0, buffers), op.width(1, buffers))


@DEQUANTIZE.fits
def _(op: Operation[RowFormat], buffers: Buffers, plan: RoutePlan | None) -> str:
    return _fault(op.params, op.width(1, buffers), op.width(0, buffers))


def _fault(form: RowFormat, packed: int, cols: int) -> str:
    return "" if packed == form.packed_cols(cols) else f"has rows of {packed} bytes for {cols} columns"
