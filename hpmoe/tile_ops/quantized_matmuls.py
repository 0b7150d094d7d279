"""Tile operations of products with quantised weights.

    GMM_INT8     sums[r, n] = sum_k q[r, k] * w[e, k, n], int32, of the int8 elements of quantised rows and weights
    GMM_FP8      sums[r, n] = sum_k q[r, k] * w[e, k, n], float32, of the elements of rows and weights
                 out[r, n] = sum_k (q[r, k] * s[r, k // 32]) * (w[e, k, n] * c[e, n, k // 32]), of mxfp8, rounded once
    RESCALE      out[r, n] = float32(sums[r, n]) * s[r] * c[e, n], in this order, in float32, rounded once; also of the
                 float32 sums of GMM_FP8
    GMM_WIDENED  out[r, n] = (sum_k x[r, k] * float32(w[e, k, n])) * c[e, n], in float32, rounded once
                 out[r, n] = sum_k x[r, k] * (float32(w[e, k, n]) * c[e, n, k // 32]), of mxfp8
    WIDEN_WEIGHT out[e, k, n] = float32(w[e, k, n]), of mxfp8 times c[e, n, k // 32], rounded once
e is the expert of row r, s[r] the scale of the quantised row, c the scale of a column of a weight, 1 where there is none, or
of 32 elements that lie side by side. Where weights are turned, w[e, n, k] stands for w[e, k, n]. Products of elements of
GMM_FP8 are exact in float32. A kernel sums K of them in any order, within K * 2^-24 of the sum of their magnitudes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Slots, Tiles
from hpmoe.tile_ops.frame import Buffers, Frame, Operation, Touched
from hpmoe.tile_ops.matmuls import weight_fault, weight_of
from hpmoe.tile_ops.params import EarlyMatmul, Matmul, NoParams, Params
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
from hpmoe.tile_ops.tile_primitive import EndOfProduct, Operand, Product, Result, TilePrimitive, Work

ROWS = RowFormat(Element.INT8, BlockScale.FLOAT32, 0)  # of quantised rows that are multiplied
SCALE_BYTES = 4
MOST_TERMS = 1 << 17  # of a sum, each of at most 127 * 128, that an int32 surely holds


@dataclasses.dataclass(frozen=True)
class WidenedMatmul(Matmul):
    """Whether the matrix is multiplied turned, and what its rows are."""

    element: Element = Element.INT8
    scale: BlockScale = BlockScale.FLOAT32
    block: int = 0

    @property
    def form(self) -> RowFormat:
        """What the rows of the matrix are."""
        return RowFormat(self.element, self.scale, self.block)


@dataclasses.dataclass(frozen=True)
class Fp8Matmul(EarlyMatmul):
    """And the columns of a block that has an e8m0 scale; 0 where there is a float32 one for each row."""

    block: int = 0

    @property
    def form(self) -> RowFormat:
        """What rows, and those of the matrix, are."""
        return RowFormat(Element.E4M3, BlockScale.E8M0 if self.block else BlockScale.FLOAT32, self.block)


@dataclasses.dataclass(frozen=True)
class WeightFormat(RowFormat):
    """Of a row of a quantised weight and its scales, and the columns of a matrix that it is made of."""

    cols: int = 1

    @property
    def npu_passes(self) -> int:
        """Of a matrix that is read twice, and turned: conversion, magnitude, maximum, zeros, sum of these; conversion,
        quotient, choice, turning, rounding, two conversions."""
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
    """codes [n, K] @ weight [K, N] of int8 elements, as bytes, in int32; exact, as float64 holds all such sums."""
    q, w = (values_of(Element.INT8, a).astype(np.float64) for a in (codes, weight))
    return (q @ w).astype(np.int32)


def block_scales(codes: np.ndarray, block: int, first: int, cols: int) -> np.ndarray:
    """The scale of each of `cols` columns from the first on, of rows of e8m0 scales for so many side by side."""
    return np.repeat(e8m0_values(codes), block, axis=-1)[..., first:first + cols]


def rescaled(sums: np.ndarray, packed: np.ndarray) -> np.ndarray:
    """Sums of quantised rows as float32 numbers, before the scales of columns."""
    with np.errstate(all="ignore"):
        return sums.astype(np.float32) * np.ascontiguousarray(packed[:, -SCALE_BYTES:]).view(np.float32)


def _exact_sums(params: Matmul, packed: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    return sums_of(packed[:, :-SCALE_BYTES], weight_of(weights, params))


def _rescaled_columns(sums: np.ndarray, packed: np.ndarray, *scale: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return rescaled(sums, packed) * scale[0] if scale else rescaled(sums, packed)


def _widened(form: RowFormat, codes: np.ndarray, *scales: np.ndarray) -> np.ndarray:
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
GMM_WIDENED = Product(
    "GMM_WIDENED", 41, params=WidenedMatmul, result=Result.ROUNDED, work=Work("GMM"), domains=(Slots,),
    outputs=(Operand(),), inputs=(Operand(cols=(col_modes.ALL,)), WEIGHT), optional=(SCALES, COPIES, COPIED_SCALES))
QUANTIZE_WEIGHT = TilePrimitive(
    "QUANTIZE_WEIGHT", 42, params=WeightFormat, work=Work("MAP copy"), domains=(Tiles,),
    outputs=(Operand(cols=(col_modes.ALL,), may_be_bytes=True), BYTES),
    inputs=(Operand((row_modes.ALL,), (col_modes.ALL,)),))
WIDEN_WEIGHT = TilePrimitive(
    "WIDEN_WEIGHT", 43, params=RowFormat, result=Result.ROUNDED, work=Work("MAP copy"), domains=(Tiles,),
    outputs=(Operand(cols=(col_modes.ALL,)),), inputs=(BYTES,), optional=(BYTES,), numpy=_widened)


@GMM_FP8.reference
def _(frame: Frame[Fp8Matmul]) -> int:
    (out, packed, *_), form = frame.operands(), frame.params.form
    x = dequantized(packed, form) if form.block else values_of(form.element, packed[:, :form.cols_of(packed.shape[1])])
    out[...] = x @ _numbers_of_weight(frame, form)
    return len(out)


@GMM_WIDENED.reference
def _(frame: Frame[WidenedMatmul]) -> int:
    out, x, *given = frame.operands()
    product, scales = x @ _numbers_of_weight(frame, frame.params.form), []
    if not frame.params.block:  # of columns, beside the rank's own weight
        modes = (a.rows for a in frame.op.operands[3:])
        scales = [a for a, rows in zip(given[1:], modes, strict=True) if rows is row_modes.SLOT_EXPERT]
    out[...] = product * scales[0] if scales else product
    return len(out)


def _numbers_of_weight(frame: Frame[Matmul], form: RowFormat) -> np.ndarray:
    """The elements [K, N] that a task reads of the weight of a slot's expert as numbers, times the scales of their blocks
    where they have such.

    A copy's matrices are in operands of their own; those of the rank's own have no rows then.
    """
    given, modes, is_turned = frame.operands()[2:], [a.rows for a in frame.op.operands[2:]], frame.params.is_transposed
    own, copies = ([a for a, m in zip(given, modes, strict=True) if m is mode]
                   for mode in (row_modes.SLOT_EXPERT, row_modes.REPLICA))
    codes, *of_blocks = copies if copies and len(copies[0]) else own
    w = values_of(form.element, codes)
    if form.block:
        w = w * block_scales(of_blocks[0], form.block, 0 if is_turned else frame.own(2).start, w.shape[1])
    return w.T if is_turned else w


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
@GMM_WIDENED.fits
def _(op: Operation[Matmul], buffers: Buffers, plan: RoutePlan | None) -> str:
    access, inner = op.operands[2], op.width(1, buffers)
    if bad := _copies_fault(op, buffers):
        return bad
    if isinstance(op.params, WidenedMatmul):
        bad = _block_scale_fault(op, op.params.form, buffers) if op.params.block else _scale_fault(op, 3, buffers)
    else:
        inner -= SCALE_BYTES
        bad = "" if 0 < inner <= MOST_TERMS else f"sums {inner} products, more than {MOST_TERMS} or none"
    return weight_fault(op, access, buffers[access.buffer], inner) or bad


@GMM_FP8.fits
def _(op: Operation[Fp8Matmul], buffers: Buffers, plan: RoutePlan | None) -> str:
    access, params = op.operands[2], op.params
    inner = params.form.cols_of(op.width(1, buffers))
    if inner < 1:
        return f"multiplies rows of {op.width(1, buffers)} bytes"
    if not params.block and any(a.cols is col_modes.OWN and a.rows is access.rows for a in op.operands[3:]):
        return "takes scales of columns, which RESCALE multiplies with sums"
    bad = _copies_fault(op, buffers) or (_block_scale_fault(op, params.form, buffers) if params.block else "")
    return bad or weight_fault(op, access, buffers[access.buffer], inner)


@RESCALE.fits
def _(op: Operation[NoParams], buffers: Buffers, plan: RoutePlan | None) -> str:
    if op.width(2, buffers) <= SCALE_BYTES:
        return f"takes the scale of rows of {op.width(2, buffers)} bytes"
    return _scale_fault(op, 3, buffers)


def _copies_fault(op: Operation[Matmul], buffers: Buffers) -> str:
    """What is wrong with the operands of copies, where there are any: the last ones, like those of own experts."""
    num = sum(a.rows is row_modes.REPLICA for a in op.operands)
    own, copies = op.operands[2:len(op.operands) - num], op.operands[len(op.operands) - num:]

    def form(a: Touched) -> tuple[object, ...]:
        b = buffers[a.buffer]
        return a.offset, a.cols, b.cols, b.rows_per_expert, b.dtype
    fits = num in (0, 1 + (op.params.block > 0)) and len(own) <= 2 and all(a.rows is row_modes.REPLICA for a in copies) and (
        [form(a) for a in own[:num]] == [form(a) for a in copies])
    return "" if fits else "takes copies that are not like its weights"


def _scale_fault(op: Operation[Params], i: int, buffers: Buffers) -> str:
    """What is wrong with the scales of columns, where there are any."""
    scales = [buffers[a.buffer] for a in op.operands[i:i + 1] if a.rows is row_modes.SLOT_EXPERT]
    if not scales or not scales[0].rows_per_expert:
        return ""
    buffer = scales[0]
    return f"takes one row of an expert of {buffer.name}, which has {buffer.rows_per_expert}"


def _block_scale_fault(op: Operation[Params], form: RowFormat, buffers: Buffers) -> str:
    """What is wrong with the scales of elements side by side."""
    weight = buffers[op.operands[2].buffer]
    if len(op.operands) < 4:
        return f"multiplies elements of {weight.name} without the scales of blocks"
    access, scales = op.operands[3], buffers[op.operands[3].buffer]
    fits = scales.cols == form.blocks(weight.cols) and scales.rows_per_expert == weight.rows_per_expert
    return "" if fits and access.cols is col_modes.ALL and not access.offset else (
        f"takes {scales.name} for the scales of blocks of {weight.name}, which do not fit")


@QUANTIZE_WEIGHT.fits
def _(op: Operation[WeightFormat], buffers: Buffers, plan: RoutePlan | None) -> str:
    scales, codes, given = (buffers[a.buffer] for a in op.operands)
    alike = codes.num_rows == given.num_rows == scales.num_rows and codes.cols == given.cols and (
        scales.cols == op.params.blocks(codes.cols))
    whole = op.params.cols > 0 and known(given.num_rows) % op.params.cols == 0 and not any(a.offset for a in op.operands)
    return "" if alike and whole else f"makes {codes.name} and {scales.name} of {given.name}, which do not fit"


@WIDEN_WEIGHT.fits
def _(op: Operation[RowFormat], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, codes, *scales = (buffers[a.buffer] for a in op.operands)
    alike = out.cols == codes.cols and out.num_rows == codes.num_rows and not any(a.offset for a in op.operands)
    fits = [(s.cols, s.num_rows) for s in scales] == [(op.params.blocks(codes.cols), codes.num_rows)] * bool(op.params.block)
    return "" if alike and fits else f"makes {out.name} of {codes.name}, whose sizes or scales do not fit"
