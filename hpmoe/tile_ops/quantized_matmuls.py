"""Tile operations of products with quantised weights.

    GMM_INT8     sums[r, n] = sum_k q[r, k] * w[e, k, n], int32, of the int8 elements of quantised rows and weights
    GMM_FP8      sums[r, n] = sum_k q[r, k] * w[e, k, n], float32, of the elements of rows and weights
                 out[r, n] = sum_k (q[r, k] * s[r, k // 32]) * (w[e, k, n] * c[e, n, k // 32]), of mxfp8, rounded once
    RESCALE      out[r, n] = float32(sums[r, n]) * s[r] * c[e, n], in this order, in float32, rounded once; also of the
                 float32 sums of GMM_FP8
    GMM_DEQUANTIZED  out[r, n] = (sum_k x[r, k] * float32(w[e, k, n])) * c[e, n], in float32, rounded once
                 out[r, n] = sum_k x[r, k] * (float32(w[e, k, n]) * c[e, n, k // 32]), of mxfp8
    DEQUANTIZE_WEIGHT out[e, k, n] = float32(w[e, k, n]), of mxfp8 times c[e, n, k // 32], rounded once
e is the expert of row r, s[r] the scale of the quantised row, c the scale of a column of a weight, 1 where there is none, or
of 32 elements that lie side by side. Where weights are transposed, w[e, n, k] stands for w[e, k, n]. Products of elements of
GMM_FP8 are exact in float32. A kernel sums K of them in any order, within K * 2^-24 of the sum of their magnitudes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Slots, Tiles
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.matmuls import is_like, weight_of, weight_rules
from hpmoe.tile_ops.params import EarlyMatmul, Matmul
from hpmoe.tile_ops.row_formats import (
    BlockScale,
    Element,
    RowFormat,
    dequantized,
    e8m0_values,
    quantized,
    scales_in,
    values_of,
)
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, implies, not_, where
from hpmoe.tile_ops.tile_primitive import EndOfProduct, Operand, Product, Result, TilePrimitive, Work

ROWS = RowFormat(Element.INT8, BlockScale.FLOAT32, 0)  # of quantised rows that are multiplied
MOST_TERMS = 1 << 17  # of a sum, each of at most 127 * 128, that an int32 surely holds


@dataclasses.dataclass(frozen=True)
class DequantizedMatmul(Matmul):
    """Matrix product with a weight that is dequantized first, and the format of the weight."""

    element: Element = Element.INT8
    scale: BlockScale = BlockScale.FLOAT32
    block: int = 0

    @property
    def form(self) -> RowFormat:
        """Format of the weight."""
        return RowFormat(self.element, self.scale, self.block)


@dataclasses.dataclass(frozen=True)
class Fp8Matmul(EarlyMatmul):
    """Matrix product of fp8 elements; `block` columns share an e8m0 scale, or a row has a float32 scale if block is 0."""

    block: int = 0

    @property
    def form(self) -> RowFormat:
        """Format of the rows and of the weight."""
        return RowFormat(Element.E4M3, where(self.block > 0, BlockScale.E8M0, BlockScale.FLOAT32), self.block)


@dataclasses.dataclass(frozen=True)
class WeightFormat(RowFormat):
    """Format of a quantised weight and its scales, and the columns of the matrix that is quantised."""

    cols: int = 1

    @property
    def npu_passes(self) -> int:
        """Vector passes of an NPU over a matrix that is quantised and transposed.

        The first read takes five: conversion, magnitude, maximum, zeros and their sum. The second read takes seven:
        conversion, quotient, selection, transposition, rounding and two conversions.
        """
        return 12 if self.cols > 1 else 0


BYTES = Operand(cols=(col_modes.ALL,), is_bytes=True)
WEIGHT = Operand((row_modes.SLOT_EXPERT,), (col_modes.OWN, col_modes.ALL), is_weight=True, is_cut_by_body=True,
                 is_bytes=True)
SCALES = Operand((row_modes.SLOT_EXPERT, row_modes.REPLICA), (col_modes.OWN, col_modes.ALL),
                 may_be_bytes=True)
COPIES = Operand((row_modes.REPLICA,), (col_modes.OWN, col_modes.ALL), is_cut_by_body=True, is_bytes=True)
COPIED_SCALES = Operand((row_modes.REPLICA,), (col_modes.ALL,), is_bytes=True)
SCALED = Operand(cols=(col_modes.ALL,), is_bytes=True, takes_few_bytes=True)


def sums_of(codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Returns codes [n, K] @ weight [K, N] of int8 elements, as bytes, in int32; exact, as float64 holds all such sums."""
    q, w = (values_of(Element.INT8, a).astype(np.float64) for a in (codes, weight))
    return (q @ w).astype(np.int32)


def block_scales(codes: np.ndarray, block: int, first: int, cols: int) -> np.ndarray:
    """Returns the scale of each of `cols` columns from `first` on; `codes` has an e8m0 scale per `block` columns."""
    return np.repeat(e8m0_values(codes), block, axis=-1)[..., first:first + cols]


def rescaled(sums: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Returns sums of quantised rows as float32 numbers, before the scales of columns."""
    with np.errstate(all="ignore"):
        return sums.astype(np.float32) * np.ascontiguousarray(packed[:, -ROWS.scale_bytes:]).view(np.float32)


def _exact_sums(params: Matmul, packed: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    return sums_of(packed[:, :-ROWS.scale_bytes], weight_of(weights, params))


def _rescaled_columns(sums: np.ndarray, packed: np.ndarray, *scale: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return rescaled(sums, packed) * scale[0] if scale else rescaled(sums, packed)


def _dequantized(form: RowFormat, codes: np.ndarray, *scales: np.ndarray) -> np.ndarray:
    numbers = values_of(form.element, codes)
    return numbers * block_scales(scales[0], form.block, 0, codes.shape[1]) if form.block else numbers


GMM_INT8 = Product(
    "GMM_INT8", 39, params=EarlyMatmul, work=Work("GMM"), domains=(Slots,), numpy=_exact_sums,
    outputs=(Operand(is_integer=True),), inputs=(BYTES, WEIGHT), optional=(COPIES,))
GMM_FP8 = Product(
    "GMM_FP8", 44, params=Fp8Matmul, result=Result.ROUNDED, work=Work("GMM"), domains=(Slots,),
    outputs=(Operand(),), inputs=(BYTES, WEIGHT), optional=(SCALES, COPIES, COPIED_SCALES))
RESCALE = EndOfProduct(
    "RESCALE", 40, result=Result.ROUNDED, work=Work("MAP mul"), domains=(Slots,), numpy=_rescaled_columns,
    outputs=(Operand(),), inputs=(Operand(may_be_integer=True), SCALED), optional=(Operand((row_modes.SLOT_EXPERT,)),))
GMM_DEQUANTIZED = Product(
    "GMM_DEQUANTIZED", 41, params=DequantizedMatmul, result=Result.ROUNDED, work=Work("GMM"), domains=(Slots,),
    outputs=(Operand(),), inputs=(Operand(cols=(col_modes.ALL,)), WEIGHT), optional=(SCALES, COPIES, COPIED_SCALES))
QUANTIZE_WEIGHT = TilePrimitive(
    "QUANTIZE_WEIGHT", 42, params=WeightFormat, work=Work("MAP copy"), domains=(Tiles,),
    outputs=(Operand(cols=(col_modes.ALL,), may_be_bytes=True), BYTES),
    inputs=(Operand((row_modes.ALL,), (col_modes.ALL,)),))
DEQUANTIZE_WEIGHT = TilePrimitive(
    "DEQUANTIZE_WEIGHT", 43, params=RowFormat, result=Result.ROUNDED, work=Work("MAP copy"), domains=(Tiles,),
    outputs=(Operand(cols=(col_modes.ALL,)),), inputs=(BYTES,), optional=(BYTES,), numpy=_dequantized)


@GMM_FP8.reference
def _(frame: Frame[Fp8Matmul]) -> int:
    (out, packed, *_), form = frame.operands(), frame.params.form
    x = dequantized(packed, form) if form.block else values_of(form.element, packed[:, :form.cols_of(packed.shape[1])])
    out[...] = x @ _numbers_of_weight(frame, form)
    return len(out)


@GMM_DEQUANTIZED.reference
def _(frame: Frame[DequantizedMatmul]) -> int:
    out, x, *given = frame.operands()
    product, scales = x @ _numbers_of_weight(frame, frame.params.form), []
    if not frame.params.block:  # of columns, beside the rank's own weight
        modes = (a.rows for a in frame.op.operands[3:])
        scales = [a for a, rows in zip(given[1:], modes, strict=True) if rows is row_modes.SLOT_EXPERT]
    out[...] = product * scales[0] if scales else product
    return len(out)


def _numbers_of_weight(frame: Frame[Matmul], form: RowFormat) -> np.ndarray:
    """Returns the elements [K, N] that a task reads of its expert's weight as numbers, times the scales of any blocks.

    A copy's matrices are in operands of their own; those of the rank's own have no rows then.
    """
    given, modes, is_transposed = frame.operands()[2:], [a.rows for a in frame.op.operands[2:]], frame.params.is_transposed
    own, copies = ([a for a, m in zip(given, modes, strict=True) if m is mode]
                   for mode in (row_modes.SLOT_EXPERT, row_modes.REPLICA))
    codes, *of_blocks = copies if copies and len(copies[0]) else own
    w = values_of(form.element, codes)
    if form.block:
        w = w * block_scales(of_blocks[0], form.block, 0 if is_transposed else frame.own(2).start, w.shape[1])
    return w.T if is_transposed else w


@QUANTIZE_WEIGHT.reference
def _(frame: Frame[WeightFormat]) -> int:
    scales, codes, given = frame.operands()
    cols, depth = frame.params.cols, codes.shape[1]
    matrices = given.reshape(-1, depth, cols)
    rows = np.arange(frame.rows.start, frame.rows.stop)
    packed = quantized(matrices[rows // cols, :, rows % cols], frame.params)
    codes[...], scales[...] = packed[:, :depth], scales_in(packed, depth, frame.params)
    return len(codes)


@GMM_INT8.fits
def _(op: Shapes) -> Rules:
    inner = op.width(1) - ROWS.scale_bytes
    yield (inner > 0) & (inner <= MOST_TERMS), "sums {} products, more than an int32 holds or none", inner
    yield from _copies_rules(op, block=0)
    yield from weight_rules(op, inner)


@GMM_DEQUANTIZED.fits
def _(op: Shapes) -> Rules:
    yield op.params.form.is_known(), "multiplies elements of an unknown format"
    yield from _copies_rules(op, op.params.block)
    yield from _scale_rules(op, 3, op.params.block)
    yield from _block_scale_rules(op, op.params.form)
    yield from weight_rules(op, op.width(1))


@GMM_FP8.fits
def _(op: Shapes) -> Rules:
    form = op.params.form
    yield form.is_known(), "multiplies elements of an unknown format"
    inner = form.cols_of(op.width(1))
    yield inner >= 1, "multiplies rows of {} bytes", op.width(1)
    yield (implies(op.has(3) & (form.block == 0), op.rows_are(3, row_modes.REPLICA)),
           "takes scales of columns, which RESCALE multiplies with sums")
    yield from _copies_rules(op, form.block)
    yield from _block_scale_rules(op, form)
    yield from weight_rules(op, inner)


@RESCALE.fits
def _(op: Shapes) -> Rules:
    yield op.width(2) > ROWS.scale_bytes, "takes the scale of rows of {} bytes", op.width(2)
    yield op.is_int32(1) | op.is_float32(1), "takes sums that are neither int32 nor float32"
    yield from _scale_rules(op, 3, block=0)


def _copies_rules(op: Shapes, block: Number) -> Rules:
    """Yields the rules of replicas' operands, which come last and match those of own experts."""
    starts_at_3 = op.rows_are(3, row_modes.REPLICA)
    fits = where(block > 0, not_(starts_at_3) & (op.has(4) == op.has(5)), not_(op.has(5)) & not_(starts_at_3 & op.has(4)))
    yield fits, "takes other operands of copies than of its own experts"
    yield op.rows_are(2, row_modes.SLOT_EXPERT) & (op.height(2) > 0), "takes a weight that is of no experts"
    for own, copies, there in ((2, 3, starts_at_3), (2, 4, op.has(4)), (3, 5, op.has(5))):
        yield (implies(there, op.has_copies() & is_like(op, own, copies)),
               "takes copies in {} that are not like {}", op.name(copies), op.name(own))


def _scale_rules(op: Shapes, i: int, block: Number) -> Rules:
    """Yields the rule that scales of columns form one row for each expert."""
    is_row = (op.height(i) == 0) & not_(op.is_bytes(i))
    yield (implies((block == 0) & op.rows_are(i, row_modes.SLOT_EXPERT), is_row),
           "takes one row of an expert of {}, which has {}", op.name(i), op.height(i))


def _block_scale_rules(op: Shapes, form: RowFormat) -> Rules:
    """Yields the rule that scales of blocks have a row for each row of the weight."""
    fits = (op.is_bytes(3) & (form.scale == BlockScale.E8M0) & (op.cols(3) == form.blocks(op.cols(2))) &
            (op.height(3) == op.height(2)) & op.cols_are(3, col_modes.ALL) & (op.offset(3) == 0))
    yield implies(form.block > 0, fits), "takes {} for the scales of blocks of {}, which do not fit", op.name(3), op.name(2)


@QUANTIZE_WEIGHT.fits
def _(op: Shapes) -> Rules:
    form = op.params
    yield form.is_known(), "makes elements of an unknown format"
    yield ((form.cols > 0) & (op.num_rows() % where(form.cols > 0, form.cols, 1) == 0),
           "makes {} rows of matrices of {} columns", op.num_rows(), form.cols)
    fits = ((op.rows(2) >= op.num_rows()) & (op.rows(0) == op.rows(2)) & (op.rows(1) == op.rows(2)) &
            (op.cols(1) == op.cols(2)) & (op.cols(0) == form.blocks(op.cols(1))) &
            (op.is_bytes(0) == (form.scale == BlockScale.E8M0)))
    yield fits, "makes {} and {} of {}, which do not fit", op.name(1), op.name(0), op.name(2)
    yield from _whole_columns(op, 3)


@DEQUANTIZE_WEIGHT.fits
def _(op: Shapes) -> Rules:
    form = op.params
    yield form.is_known(), "takes elements of an unknown format"
    yield ((op.cols(0) == op.cols(1)) & (op.rows(0) == op.rows(1)) & (op.rows(1) >= op.num_rows()),
           "makes {} of {}, which has other sizes", op.name(0), op.name(1))
    scales = (op.rows(2) == op.rows(1)) & (op.cols(2) == form.blocks(op.cols(1))) & (form.scale == BlockScale.E8M0)
    yield (where(form.block > 0, op.has(2) & scales, not_(op.has(2))),
           "takes other scales of {} than its format has", op.name(1))
    yield from _whole_columns(op, 3)


def _whole_columns(op: Shapes, operands: int) -> Rules:
    for i in range(operands):
        yield op.offset(i) == 0, "takes {} from column {} on", op.name(i), op.offset(i)
