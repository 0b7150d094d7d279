"""Products of quantised rows and weights of float8_e4m3fn: GMM_FP8.

    GMM_FP8  sums[r, n] = sum_k q[r, k] * w[e, k, n], float32, of the elements of rows and weights
             out[r, n] = sum_k (q[r, k] * s[r, k // 32]) * (w[e, k, n] * c[e, n, k // 32]), of mxfp8, rounded once
The names are those of `hpmoe.tile_ops.quantized_matmuls`. Each product is exact in float32, in which they are summed in
whatever order a kernel has: a sum of K of them is within K * 2^-24 of the sum of their magnitudes.
"""

from __future__ import annotations

import dataclasses

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.domains import Slots
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.functions import TARGETS
from hpmoe.tile_ops.matmuls import weight_fault
from hpmoe.tile_ops.params import EarlyMatmul
from hpmoe.tile_ops.quantized_matmuls import (
    BYTES,
    COPIED_SCALES,
    COPIES,
    SCALES,
    WEIGHT,
    block_scale_fault,
    copies_fault,
    numbers_of_weight,
)
from hpmoe.tile_ops.row_formats import BlockScale, Element, RowFormat, dequantized, values_of
from hpmoe.tile_ops.tile_primitive import Cost, Operand, TilePrimitive


@dataclasses.dataclass(frozen=True)
class Fp8Matmul(EarlyMatmul):
    """And the columns of a block that has an e8m0 scale; 0 where there is a float32 one for each row."""

    block: int = 0

    @property
    def form(self) -> RowFormat:
        """What rows, and those of the matrix, are."""
        return RowFormat(Element.E4M3, BlockScale.E8M0 if self.block else BlockScale.FLOAT32, self.block)


GMM_FP8 = TilePrimitive(
    "GMM_FP8", 44, targets=TARGETS, unit="aic", cost=Cost.MATMUL, params=Fp8Matmul, rounds=True, measured_as="GMM",
    domains=(Slots,), required=3, outputs=(Operand(),), inputs=(BYTES, WEIGHT, SCALES, COPIES, COPIED_SCALES))


@GMM_FP8.reference
def _(frame: Frame[Fp8Matmul]) -> int:
    (out, packed, *_), params, form = frame.operands(), frame.params, frame.params.form
    w, cols = numbers_of_weight(frame, form), form.cols_of(packed.shape[1])
    x = dequantized(packed, cols, form) if form.block else values_of(form.element, packed[:, :cols])
    out[...] = x @ w[frame.own(2)].T if params.is_transposed else x @ w
    return len(out)


@GMM_FP8.fits
def _(op: Operation[Fp8Matmul], buffers: Buffers, plan: RoutePlan | None) -> str:
    access, params = op.operands[2], op.params
    inner = params.form.cols_of(op.width(1, buffers))
    if inner < 1:
        return f"multiplies rows of {op.width(1, buffers)} bytes"
    if not params.block and any(a.cols is col_modes.OWN and a.rows is access.rows for a in op.operands[3:]):
        return "takes scales of columns, which RESCALE multiplies with sums"
    bad = copies_fault(op, buffers) or (block_scale_fault(op, params.form, buffers) if params.block else "")
    return bad or weight_fault(op, access, buffers[access.buffer], inner)
