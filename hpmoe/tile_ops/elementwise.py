"""Tile operations whose every element needs the same element of each input: MAP, SWIGLU and its gradient."""

from __future__ import annotations

import numpy as np

from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.functions import COPY, SILU
from hpmoe.tile_ops.params import Elementwise
from hpmoe.tile_ops.shapes import Rules, Shapes
from hpmoe.tile_ops.terms import implies
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, Result, TilePrimitive, Work

OUT = Operand()
SPREAD = Operand((row_modes.OWN, row_modes.ONE, row_modes.SLOT_EXPERT), (col_modes.OWN, col_modes.ONE),
                 may_be_number=True, may_be_integer=True)


def _mapped(params: Elementwise, *inputs: np.ndarray | float) -> np.ndarray | float:
    """Returns a function of numbers applied to elements, in integers if an operand is of integers."""
    if any(isinstance(x, np.ndarray) and x.dtype.kind == "i" for x in inputs):
        inputs = tuple(x if isinstance(x, np.ndarray) else int(x) for x in inputs)
    with np.errstate(invalid="ignore"):  # a number that no integer is near
        return inputs[0] if params.function is COPY else params.function.numpy(*inputs)


def swiglu_grad(g: np.ndarray, gate: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradients of silu(gate) * up by gate and by up."""
    sigmoid = 1 / (1 + np.exp(-gate.astype(np.float64)))
    slope = (sigmoid * (1 + gate * (1 - sigmoid))).astype(gate.dtype)
    return g * up * slope, g * SILU.numpy(gate)


MAP = TilePrimitive("MAP", 6, outputs=(Operand(may_be_integer=True),), inputs=(SPREAD,),
                    optional=(SPREAD,) * 2, params=Elementwise, result=Result.ROUNDED, numpy=_mapped,
                    work=Work(integer_passes=SCALAR_PASSES, npu_operand=0))
SWIGLU = TilePrimitive("SWIGLU", 7, outputs=(OUT,), inputs=(OUT,) * 2, result=Result.ROUNDED,
                       numpy=lambda gate, up: SILU.numpy(gate) * up)
SWIGLU_GRAD = TilePrimitive("SWIGLU_GRAD", 8, outputs=(OUT,) * 2, inputs=(OUT,) * 3,
                            result=Result.ROUNDED, numpy=swiglu_grad)


@MAP.fits
def _(op: Shapes) -> Rules:
    for i in range(4):
        yield (implies(op.rows_are(i, row_modes.SLOT_EXPERT), op.height(i) == 0),
               "takes one row of an expert of {}, which has {}", op.name(i), op.height(i))
        yield (implies(op.is_integer(i), op.takes_integers()),
               "applies a function of floats to the integers of {}", op.name(i))
