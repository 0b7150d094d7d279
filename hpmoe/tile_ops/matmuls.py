"""Tile operations of matrix units: products with a weight, and gradients of weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.support.dtypes import widen
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows, Experts
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import EarlyMatmul, Matmul, WeightBlock
from hpmoe.tile_ops.reductions import sum_rules
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import Number, implies, where
from hpmoe.tile_ops.tile_primitive import Operand, Product, Result

WEIGHT = Operand((row_modes.SLOT_EXPERT, row_modes.ONE, row_modes.ALL), (col_modes.OWN, col_modes.ALL), is_weight=True,
                 is_cut_by_body=True)
REPLICAS = Operand((row_modes.REPLICA,), (col_modes.OWN, col_modes.ALL), is_cut_by_body=True)
SUMMED = (row_modes.EXPERT, row_modes.ALL)
ADDED = Operand((row_modes.OWN, row_modes.RETURNED))  # gradients that copies return, and the main gradient


def weight_of(weights: Sequence[np.ndarray], params: Matmul) -> np.ndarray:
    """Returns the matrix [K, N] that a task reads of the weights that have rows, the rank's own experts' or the replicas'.
    """
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


def weight_rules(op: Shapes, inner: Number) -> Rules:
    """Yields the rules of operand 2 as a weight for rows of `inner` elements."""
    params = op.params
    is_of_experts = op.rows_are(2, row_modes.SLOT_EXPERT)
    height = where(is_of_experts | (op.height(2) > 0), op.height(2), op.rows(2))
    yield (is_of_experts | (op.height(2) == 0) | (op.height(2) == op.rows(2)),
           "takes the matrices of experts of {} as one", op.name(2))
    yield (implies(params.is_transposed, op.cols_are(2, col_modes.ALL)) &
           (params.is_transposed | op.cols_are(2, col_modes.OWN)),
           "takes other columns of {} than it multiplies", op.name(2))
    depth = where(params.is_transposed, op.cols(2), height)
    yield depth == inner, "multiplies rows of {} elements by matrices of depth {}", inner, depth
    yield (implies(params.is_transposed, (op.offset(2) >= 0) & (op.offset(2) + op.own_cols() <= height)),
           "takes rows {} to {} of matrices of {}", op.offset(2), op.offset(2) + op.own_cols(), height)


def is_like(op: Shapes, i: int, j: int) -> Number:
    """Returns whether operands i and j differ only in their experts."""
    return ((op.offset(i) == op.offset(j)) & (op.cols(i) == op.cols(j)) & (op.height(i) == op.height(j)) &
            op.same_dtype(i, j) & op.same_cols(i, j))


@GMM.fits
def _(op: Shapes) -> Rules:
    yield from weight_rules(op, op.width(1))
    yield (implies(op.has(3), op.rows_are(2, row_modes.SLOT_EXPERT) & op.has_copies() & is_like(op, 2, 3)),
           "takes copies that are not like its weights")


@WGRAD.fits
def _(op: Shapes) -> Rules:
    height, block = op.width(1), op.params.block
    yield from sum_rules(op)
    yield ((op.height(0) == 0) | (op.height(0) == height),
           "makes matrices of {} rows in {}, which has those of {}", height, op.name(0), op.height(0))
    yield ((block >= 1) & ((op.blocks() - 1) * block < height),
           "cuts matrices of {} rows into {} blocks of {}", height, op.blocks(), block)
    yield (op.has_capacity(0, op.num_rows() * height),
           "makes {} matrices in {}, which has too few rows", op.num_rows(), op.name(0))
    for i in (3, 4):
        is_main = (op.rows(i) == op.rows(0)) & op.is_float32(i) & op.is_float32(0)
        is_returned = (op.height(i) == height) & op.has_copies() & op.has_capacity(i, op.most_copies() * height)
        yield (implies(op.rows_are(i, row_modes.RETURNED), op.first_expert() == 0),
               "adds what copies returned to experts that are not the rank's own")
        fits = where(op.rows_are(i, row_modes.RETURNED), is_returned, is_main)
        yield (implies(op.has(i), fits & (op.cols(i) == op.cols(0)) & (op.offset(i) == op.offset(0))),
               "adds {}, which is not like {}", op.name(i), op.name(0))
    yield implies(op.has(4), op.rows_are(3, row_modes.OWN) != op.rows_are(4, row_modes.OWN)), "adds two arrays of a kind"
