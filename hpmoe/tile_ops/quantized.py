"""QUANTIZE: rows of floats as rows of bytes, elements and scales. DEQUANTIZE: such rows as floats again.
REDUCE_QUANTIZED: such rows, sent back, summed to tokens."""

from __future__ import annotations

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Tiles
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.row_formats import RowFormat, dequantized, quantized
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import choices_fault, entries_of, sum_choices

FLOATS = Operand(cols=(col_modes.ALL,))
BYTES = Operand(cols=(col_modes.ALL,), is_bytes=True)

QUANTIZE = TilePrimitive("QUANTIZE", 33, params=RowFormat, work=Work("MAP copy"), outputs=(BYTES,),
                         inputs=(FLOATS,), numpy=lambda form, rows: quantized(rows, form))
DEQUANTIZE = TilePrimitive("DEQUANTIZE", 34, params=RowFormat, result=Result.ROUNDED, work=Work("MAP copy"),
                           outputs=(FLOATS,), inputs=(BYTES,), numpy=lambda form, packed: dequantized(packed, form))
REDUCE_QUANTIZED = TilePrimitive(
    "REDUCE_QUANTIZED", 35, params=RowFormat, verb="reduce", needs_route=True, result=Result.ROUNDED,
    domains=(Tiles,), work=Work("REDUCE"), outputs=(FLOATS,),
    inputs=(Operand((row_modes.ENTRIES,), (col_modes.ALL,), is_bytes=True),), optional=(FLOATS,))
QUANTIZE.fits(lambda op, buffers, plan: _fault(op.params, op.width(0, buffers), op.width(1, buffers)))
DEQUANTIZE.fits(lambda op, buffers, plan: _fault(op.params, op.width(1, buffers), op.width(0, buffers)))


@REDUCE_QUANTIZED.reference
def _(frame: Frame[RowFormat]) -> int:
    return sum_choices(frame, dequantized(frame.array(1)[entries_of(frame)], frame.params), frame.kept())


@REDUCE_QUANTIZED.fits
def _(op: Operation[RowFormat], buffers: Buffers, plan: RoutePlan | None) -> str:
    packed, cols = op.width(1, buffers), op.width(0, buffers)
    return _fault(op.params, packed, cols) or choices_fault(op, buffers, plan)


def _fault(form: RowFormat, packed: int, cols: int) -> str:
    return "" if packed == form.packed_cols(cols) else f"has rows of {packed} bytes for {cols} columns"
