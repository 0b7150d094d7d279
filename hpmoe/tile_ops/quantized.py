"""QUANTIZE: rows of floats as rows of bytes, elements and scales. DEQUANTIZE: such rows as floats again.
REDUCE_QUANTIZED: such rows, sent back, summed to tokens."""

from __future__ import annotations

from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Tiles
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.row_formats import RowFormat, dequantized, quantized
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import choices_rules, entries_of, sum_choices

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

@REDUCE_QUANTIZED.reference
def _(frame: Frame[RowFormat]) -> int:
    return sum_choices(frame, dequantized(frame.array(1)[entries_of(frame)], frame.params), frame.kept())


@QUANTIZE.fits
def _(op: Shapes) -> Rules:
    return _format_rules(op, op.width(0), op.width(1))


@DEQUANTIZE.fits
def _(op: Shapes) -> Rules:
    return _format_rules(op, op.width(1), op.width(0))


@REDUCE_QUANTIZED.fits
def _(op: Shapes) -> Rules:
    yield from _format_rules(op, op.width(1), op.width(0))
    yield from choices_rules(op)


def _format_rules(op: Shapes, packed: Number, cols: Number) -> Rules:
    yield op.params.is_known(), "has quantised rows of an unknown format"
    yield packed == op.params.packed_cols(cols), "has rows of {} bytes for {} columns", packed, cols
