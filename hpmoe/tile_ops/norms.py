"""Tile operations of RMS norm: each row is divided by the root of its mean square.

    RMS_NORM       y[r] = x[r] * s[r], s[r] = 1 / sqrt(mean(x[r]^2) + eps), in float32, rounded once
    RMS_NORM_GRAD  dx[r] = s[r] * (g[r] - x[r] * s[r]^2 * mean(g[r] * x[r]))

Formula: Zhang and Sennrich, Root Mean Square Layer Normalization (arXiv 1910.07467).
"""

from __future__ import annotations

import numpy as np

from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work

ROW = Operand(cols=(col_modes.ALL,))
EPSILON = Operand(cols=(col_modes.ALL,), may_be_number=True)


def scale_of(x: np.ndarray, eps: float) -> np.ndarray:
    """Returns 1 / sqrt(mean(x^2) + eps) of each row, [..., 1]."""
    return 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def rms_norm_grad(g: np.ndarray, x: np.ndarray, eps: float) -> np.ndarray:
    """Returns the gradient by x of x * scale_of(x, eps), given the gradient `g` of the result."""
    scale = scale_of(x, eps)
    return scale * (g - x * scale ** 2 * np.mean(g * x, axis=-1, keepdims=True))


RMS_NORM = TilePrimitive(
    "RMS_NORM", 45, result=Result.ROUNDED, work=Work("ROW_REDUCE sum", npu_passes=10), outputs=(ROW,), inputs=(ROW, EPSILON),
    numpy=lambda x, eps: x * scale_of(x, eps))
RMS_NORM_GRAD = TilePrimitive(
    "RMS_NORM_GRAD", 46, result=Result.ROUNDED, work=Work("ROW_REDUCE sum", npu_passes=16), outputs=(ROW,),
    inputs=(ROW, ROW, EPSILON), numpy=rms_norm_grad)


@RMS_NORM.fits
def _(op: Shapes) -> Rules:
    yield op.width(0) == op.width(1), "makes rows of {} columns of {}", op.width(0), op.width(1)
    yield op.is_number(2), "takes an epsilon that is no number"


@RMS_NORM_GRAD.fits
def _(op: Shapes) -> Rules:
    for i in (1, 2):
        yield op.width(0) == op.width(i), "makes rows of {} columns of {}", op.width(0), op.width(i)
    yield op.is_number(3), "takes an epsilon that is no number"
