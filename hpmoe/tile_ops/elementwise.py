"""Tile operations whose every element needs the same element of each input: MAP, SWIGLU and its gradient."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import INTEGERS
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.functions import COPY, OF_INTEGERS, SILU, TARGETS
from hpmoe.tile_ops.params import Elementwise, Params
from hpmoe.tile_ops.tile_primitive import SCALAR_PASSES, Operand, TilePrimitive

OUT = Operand()
SPREAD = Operand((row_modes.OWN, row_modes.ONE, row_modes.SLOT_EXPERT), (col_modes.OWN, col_modes.ONE),
                 may_be_number=True, may_be_integer=True)

MAP = TilePrimitive("MAP", 6, targets=TARGETS, outputs=(Operand(may_be_integer=True),),
                    inputs=(SPREAD,) * 3, required=2, params=Elementwise, rounds=True, integer_passes=SCALAR_PASSES,
                    npu_operand=0)
SWIGLU = TilePrimitive("SWIGLU", 7, targets=TARGETS, outputs=(OUT,), inputs=(OUT,) * 2, rounds=True)
SWIGLU_GRAD = TilePrimitive("SWIGLU_GRAD", 8, targets=TARGETS, outputs=(OUT,) * 2, inputs=(OUT,) * 3, rounds=True)


@MAP.reference
def _(frame: Frame[Elementwise]) -> int:
    out, *inputs = frame.operands()
    function = frame.params.function
    if any(isinstance(x, np.ndarray) and x.dtype.kind == "i" for x in inputs):
        inputs = [x if isinstance(x, np.ndarray) else int(x) for x in inputs]
    with np.errstate(invalid="ignore"):  # a number that no integer is near
        out[...] = inputs[0] if function is COPY else function.numpy(*inputs)
    return len(out)


@MAP.fits
def _(op: Operation[Elementwise], buffers: Buffers, plan: RoutePlan | None) -> str:
    for access in op.operands:
        if access.buffer >= 0 and access.rows is row_modes.SLOT_EXPERT and buffers[access.buffer].rows_per_expert:
            buffer = buffers[access.buffer]
            return f"takes one row of an expert of {buffer.name}, which has {buffer.rows_per_expert}"
        if access.buffer >= 0 and buffers[access.buffer].dtype in INTEGERS and op.params.function not in OF_INTEGERS:
            return f"applies {op.params.function} to {buffers[access.buffer].dtype}"
    return ""


@SWIGLU.reference
def _(frame: Frame[Params]) -> int:
    out, gate, up = frame.operands()
    out[...] = SILU.numpy(gate) * up
    return len(out)


@SWIGLU_GRAD.reference
def _(frame: Frame[Params]) -> int:
    d_gate, d_up, g, gate, up = frame.operands()
    d_gate[...], d_up[...] = swiglu_grad(g, gate, up)
    return len(d_gate)


def swiglu_grad(g: np.ndarray, gate: np.ndarray, up: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of silu(gate) * up by gate and by up."""
    sigmoid = 1 / (1 + np.exp(-gate.astype(np.float64)))
    slope = (sigmoid * (1 + gate * (1 - sigmoid))).astype(gate.dtype)
    return g * up * slope, g * SILU.numpy(gate)
