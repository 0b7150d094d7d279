"""The tile operation of a relay: sums of what the ranks of its node sent back."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.support.dtypes import widen
from hpmoe.support.known import known
from hpmoe.tile_ops import row_modes
from hpmoe.tile_ops.domains import Slots
from hpmoe.tile_ops.frame import Buffers, Frame, Operation
from hpmoe.tile_ops.params import Relayed
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work
from hpmoe.tile_ops.tokens import WHOLE

RELAY_SUM = TilePrimitive(
    "RELAY_SUM", 38, needs_route=True, result=Result.ROUNDED, domains=(Slots,), work=Work("REDUCE"),
    params=Relayed, outputs=(Operand(),), inputs=(Operand((row_modes.RELAY_ENTRIES,)),), optional=(Operand(cols=WHOLE),))


@RELAY_SUM.reference
def _(frame: Frame[Relayed]) -> int:
    rows, relayed = frame.rows, frame.relayed(frame.params.route)
    top_k = relayed.top_k
    kept = relayed.kept[frame.rank].reshape(-1, top_k)[rows]
    back = widen(frame.whole(1)[rows.start * top_k:rows.stop * top_k])
    parts = back.reshape(rows.stop - rows.start, top_k, back.shape[1])
    total = np.zeros_like(parts[:, 0])
    for k in range(top_k):
        weight = widen(frame.whole(2)[rows, k:k + 1]) if len(frame.op.operands) > 2 else 1.0
        total += np.where(kept[:, k:k + 1], parts[:, k] * weight, 0)
    frame.whole(0)[rows] = total
    return rows.stop - rows.start


@RELAY_SUM.fits
def _(op: Operation[Relayed], buffers: Buffers, plan: RoutePlan | None) -> str:
    return "" if known(plan).node_size else "sums what came back to relays, and its route is not one to relays"
