"""Random numbers that a row, a column and a seed decide, whoever draws them and however often: see `uniform`."""

from __future__ import annotations

import numpy as np

from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import Tiles
from hpmoe.tile_ops.frame import Frame
from hpmoe.tile_ops.params import Stream
from hpmoe.tile_ops.tile_primitive import Operand, Result, TilePrimitive, Work

ROUNDS = 10
MULTIPLIER, WEYL = 0xD256D193, 0x9E3779B9  # of philox2x32
STREAMS = 0x85EBCA6B  # odd, so that a few streams of a seed have keys far apart

DRAW = TilePrimitive("DRAW", 27, domains=(Tiles,), params=Stream, result=Result.ROUNDED,
                     work=Work("MAP sigmoid", passes=40, npu_passes=238, npu_operand=0), outputs=(Operand(),),
                     inputs=(Operand((row_modes.ONE,), (col_modes.ONE,), is_integer=True),))


def philox(row: np.ndarray, col: np.ndarray, key: int) -> np.ndarray:
    """Returns the first word that philox2x32-10 makes of the counters (row, col), uint32.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).

    Example:
        >>> [hex(philox(*(np.uint64([w]) for w in words), key)[0]) for *words, key in (
        ...     (0, 0, 0), (0x243F6A88, 0x85A308D3, 0x13198A2E))]
        ['0xff1dae59', '0xdd7ce038']
    """
    left, right = np.broadcast_arrays(row.astype(np.uint64), col.astype(np.uint64))
    for i in range(ROUNDS):
        product = left * np.uint64(MULTIPLIER)
        left = (product >> np.uint64(32)) ^ right ^ np.uint64((key + i * WEYL) % 2**32)
        right = product & np.uint64(0xFFFFFFFF)
    return left.astype(np.uint32)


def uniform(seed: int, rows: range, cols: range, stream: int) -> np.ndarray:
    """Returns float32 [rows, cols] above 0 and below 1, which depend only on seed, stream, row and column."""
    key = (int(seed) ^ (stream * STREAMS)) % 2**32
    words = philox(np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop), key)
    return ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0 ** -23)


@DRAW.reference
def _(frame: Frame[Stream]) -> int:
    out, seed = frame.operands()
    rows, cols = frame.rows, frame.own(0)
    out[...] = uniform(seed[0, 0], range(rows.start, rows.stop), range(cols.start, cols.stop), frame.params.stream)
    return len(out)
