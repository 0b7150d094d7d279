"""Tile operations of matrix units: products with a weight, and gradients of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import widen
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows, Experts
from hpmoe.tile_ops.frame import Buffers, Frame, Operation, Stored, Touched
from hpmoe.tile_ops.params import EarlyMatmul, Matmul, WeightBlock
from hpmoe.tile_ops.reductions import sum_fault
from hpmoe.tile_ops.tile_primitive import Operand, Product, Result

WEIGHT = Operand((row_modes.SLOT_EXPERT, row_modes.ONE, row_modes.ALL), (col_modes.OWN, col_modes.ALL), is_weight=True,
                 is_cut_by_body=True)
REPLICAS = Operand((row_modes.REPLICA,), (col_modes.OWN, col_modes.ALL), is_cut_by_body=True)
SUMMED = (row_modes.EXPERT, row_modes.ALL)
ADDED = Operand((row_modes.OWN, row_modes.RETURNED))  # gradients that copies return, and the main gradient


def weight_of(weights: Sequence[np.ndarray], params: Matmul) -> np.ndarray:
    """The matrix [K, N] that a task reads: one of the weights has rows, the rank's own experts' or the copies'."""
    w = next(w for w in weights if len(w))
    return w.T if params.is_transposed else w


def _product(params: Matmul, x: np.ndarray, *weights: np.ndarray) -> np.ndarray:
    return x @ weight_of(weights, params)


GMM = Product(
    "GMM", 4, params=EarlyMatmul, result=Result.ROUNDED, numpy=_product, outputs=(Operand(),),
    inputs=(Operand(cols=(col_modes.ALL,)), WEIGHT), optional=(REPLICAS,))
WGRAD = Product(
    "WGRAD", 5, params=WeightBlock, domains=(Experts, AllRows), outputs=(Operand(),),
    inputs=(Operand(SUMMED, (col_modes.BLOCK,), is_summed=True), Operand(SUMMED, is_summed=True)), optional=(ADDED, ADDED))

@WGRAD.reference
def _(frame: Frame[WeightBlock]) -> int:
    x, g = (widen(frame.array(i)[frame.rows, frame.columns(i)]) for i in (1, 2))
    op, k = frame.op, x.shape[1]
    expert, block = divmod(frame.unit - op.domain.first, op.domain.blocks)
    low, high = block * frame.params.block, min((block + 1) * frame.params.block, k)
    tile = slice(expert * k + low, expert * k + high), frame.own(0)
    total = x[:, low:high].T @ g
    added = [(i, a) for i, a in enumerate(op.operands) if i >= 3]
    more = [frame.array(i)[tile] for i, a in added if a.rows is row_modes.OWN]
    for i in (i for i, a in added if a.rows is row_modes.RETURNED):
        more += [widen(frame.array(i)[c * k + low:c * k + high, tile[1]])
                 for c, copy in enumerate(known(frame.routing.placement).copies[frame.rank]) if copy.expert == expert]
    frame.array(0)[tile] = sum(more, total)
    return 1


def weight_fault(op: Operation[Matmul], access: Touched, weight: Stored, inner: int) -> str:
    """What is wrong with a weight that rows of `inner` elements are multiplied by."""
    turned = op.params.is_transposed
    height = weight.rows_per_expert if access.rows.of_experts else weight.rows_per_expert or weight.num_rows
    shape = f"matrices of {height} rows of {weight.cols}" + (", turned" if turned else "")
    if not access.rows.of_experts and weight.rows_per_expert not in (0, weight.num_rows):
        return f"takes the experts' {shape} as one"
    if access.cols is not (col_modes.ALL if turned else col_modes.OWN):
        return f"takes columns {access.cols} of {shape}"
    if (weight.cols if turned else height) != inner:
        return f"multiplies rows of {inner} elements by {shape}"
    if turned and not 0 <= access.offset <= known(height) - op.cols:
        return f"takes rows {access.offset}:{access.offset + op.cols} of {shape}"
    return ""


@GMM.fits
def _(op: Operation[Matmul], buffers: Buffers, plan: RoutePlan | None) -> str:
    inner = op.width(1, buffers)
    weights = [(a, buffers[a.buffer]) for a in op.operands[2:]]
    for access, weight in weights:
        if bad := weight_fault(op, access, weight, inner):
            return bad
    alike = {(a.offset, b.cols, b.rows_per_expert, b.dtype) for a, b in weights}
    if len(weights) == 2 and (op.operands[2].rows is not row_modes.SLOT_EXPERT or len(alike) > 1):
        return "takes copies that are not like its weights"
    return ""


@WGRAD.fits
def _(op: Operation[WeightBlock], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, height, modes = buffers[op.operands[0].buffer], op.width(1, buffers), [a.rows for a in op.operands[3:]]
    if out.rows_per_expert not in (0, height):
        return f"makes matrices of {height} rows in {out.name}, which has those of {out.rows_per_expert}"
    if len(set(modes)) < len(modes):
        return "adds two arrays of a kind"
    if row_modes.RETURNED in modes and op.domain.first != 0:
        return "adds what copies returned to experts that are not the rank's own"
    for access in op.operands[3:]:
        buffer = buffers[access.buffer]
        is_main = (buffer.num_rows, buffer.dtype, out.dtype) == (out.num_rows, "float32", "float32")
        fits = buffer.rows_per_expert == height if access.rows is row_modes.RETURNED else is_main
        if not fits or buffer.cols != out.cols or access.offset != op.operands[0].offset:
            return f"adds {buffer.name}, which is not like {out.name}"
    return sum_fault(op, buffers, plan)
