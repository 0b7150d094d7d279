"""Chooses the tile shape for a program on a machine: the one with which a rank ends first by its cost rules."""

from __future__ import annotations

import functools

from hpmoe.costs.rank_estimate import estimated_us
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.tiling.tile_program import tile_operations

ROW_STEPS, COL_STEPS = (1.0, 0.5, 2.0), (1.0, 0.5, 2.0, 4.0)  # of a machine's default tile, itself first
NEAR = 1.03  # times that say nothing; then those of the matrix tasks count
SLACK = 0.9  # of the time, less than which matrix tasks take where links or vector workers are what takes long


@functools.lru_cache(maxsize=64)
def choose_tile(program: Program, machine: Machine, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Rows and columns of a tile, those that are given kept; the same for the same program, machine and sizes.

    Where matrix tasks have time to spare, the machine's default tile, if it ends about as soon: with wider ones rows go back
    later, and in larger parts.

    Example:
        >>> import hpmoe
        >>> avals = hpmoe.Aval((4096, 7168), "bfloat16"), hpmoe.Aval((7168, 4096), "bfloat16")
        >>> choose_tile(hpmoe.trace(lambda x, w: x @ w, *avals), hpmoe.ascend_a3, None, None)
        (128, 256)
    """
    all_rows = [rows] if rows else [max(1, int(machine.tile_rows * step)) for step in ROW_STEPS]
    all_cols = [cols] if cols else [max(1, int(machine.tile_cols * step)) for step in COL_STEPS]
    shapes = [(r, c) for r in all_rows for c in all_cols]
    times = [estimated_us(tile_operations(program, *shape, machine.unified), machine) for shape in shapes]
    near = [i for i, (us, _) in enumerate(times) if us <= NEAR * min(times)[0]]
    chosen = min(near, key=lambda i: times[i][1])
    us, of_matrix = times[chosen]
    return shapes[0 if 0 in near and of_matrix < SLACK * us else chosen]
