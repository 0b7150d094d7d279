"""GUARD: the values of a row that stand where another row is in a range, something else where it is not, and how many."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import Fill, Filled
from hpmoe.tile_ops.tile_primitive import Operand, TilePrimitive

ROW = Operand(cols=(col_modes.ALL,))
LIMIT = Operand(cols=(col_modes.ALL,), may_be_number=True)
GUARD = TilePrimitive("GUARD", 31, targets=("cpu",), params=Filled, measured_as="MAP copy", rounds=True, outputs=(ROW, ROW),
                      inputs=(ROW, ROW, LIMIT, LIMIT))


def guarded(values: np.ndarray, tested: np.ndarray, low: float, high: float,
            fill: Fill) -> tuple[np.ndarray, np.ndarray]:
    """Rows [..., N] with another value where `tested` is NaN or outside [low, high], and [..., 1] how many of a row are.

    MEAN is that of the others in the row, 0 where there are none. SPREAD is its transpose: what stands where values are
    replaced is dealt out to the others.
    """
    fine = (tested >= low) & (tested <= high)
    counts = np.sum(~fine, axis=-1, keepdims=True)
    others = np.maximum(tested.shape[-1] - counts, 1).astype(values.dtype)
    if fill is Fill.SPREAD:
        share = np.sum(np.where(fine, 0, values), axis=-1, keepdims=True, dtype=values.dtype) / others
        return np.where(fine, values + share, values.dtype.type(0)), counts.astype(values.dtype)
    mean = np.sum(np.where(fine, values, 0), axis=-1, keepdims=True, dtype=values.dtype) / others
    return np.where(fine, values, mean if fill is Fill.MEAN else values.dtype.type(0)), counts.astype(values.dtype)


@GUARD.reference
def _(frame: Frame[Filled]) -> int:
    out, counts, values, tested, low, high = frame.operands()
    out[...], counts[...] = guarded(values, tested, low, high, frame.params.fill)
    return len(out)


@GUARD.fits
def _(op: Operation[Filled], buffers: Buffers, plan: RoutePlan | None) -> str:
    out, counts, values, tested = (op.width(i, buffers) for i in range(4))
    return "" if out == values == tested and counts == 1 else f"guards {values} columns by {tested} into {out} and {counts}"
