"""Chooses the tile shape for a program on a machine: the one with the least expected time of a rank."""

from __future__ import annotations

import functools

from hpmoe.costs.task_costs import expected_us
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.tiling.tile_program import tile_operations

ROW_STEPS, COL_STEPS = (1.0, 0.5, 2.0), (1.0, 0.5, 2.0, 4.0)  # of a machine's default tile, itself first


def tiles_of(machine: Machine) -> list[tuple[int, int]]:
    """Returns (rows, columns) of the tiles to choose from, the machine's default first.

    Example:
        >>> import hpmoe
        >>> tiles_of(hpmoe.machines.ascend_a3)[:5]
        [(128, 256), (128, 128), (128, 512), (128, 1024), (64, 256)]
    """
    return [(max(1, int(machine.tile_rows * r)), max(1, int(machine.tile_cols * c))) for r in ROW_STEPS for c in COL_STEPS]


@functools.lru_cache(maxsize=64)
def tile_times(program: Program, machine: Machine, rows: int | None = None, cols: int | None = None
               ) -> dict[tuple[int, int], float]:
    """Returns `expected_us` of a program by the tile (rows, columns), the least first; given rows or columns are kept.

    Tiles of equal time are in the order of `tiles_of`: the machine's default tile is the first if the link takes longest.

    Example:
        >>> import hpmoe
        >>> avals = hpmoe.ShapeDtypeStruct((4096, 7168), "bfloat16"), hpmoe.ShapeDtypeStruct((7168, 4096), "bfloat16")
        >>> next(iter(tile_times(hpmoe.trace(lambda x, w: x @ w, *avals), hpmoe.machines.ascend_a3)))
        (128, 256)
    """
    shapes = dict.fromkeys((rows or r, cols or c) for r, c in tiles_of(machine))
    times = {shape: expected_us(tile_operations(program, *shape, machine), machine) for shape in shapes}
    return dict(sorted(times.items(), key=lambda item: item[1]))
