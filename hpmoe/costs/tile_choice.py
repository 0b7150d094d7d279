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
        >>> tiles_of(hpmoe.ascend_a3)[:5]
        [(128, 256), (128, 128), (128, 512), (128, 1024), (64, 256)]
    """
    return [(max(1, int(machine.tile_rows * r)), max(1, int(machine.tile_cols * c))) for r in ROW_STEPS for c in COL_STEPS]


def choose_tile(program: Program, machine: Machine, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Returns rows and columns of the tile with the least `expected_us`; given rows or columns are kept.

    The machine's default tile wins against tiles of equal time, as if the link takes longest.

    Example:
        >>> import hpmoe
        >>> avals = hpmoe.Aval((4096, 7168), "bfloat16"), hpmoe.Aval((7168, 4096), "bfloat16")
        >>> choose_tile(hpmoe.trace(lambda x, w: x @ w, *avals), hpmoe.ascend_a3, None, None)
        (128, 256)
    """
    return _by_time(program, machine, rows, cols)[0]


def likely_tiles(program: Program, machine: Machine, count: int | None) -> list[tuple[int, int]]:
    """Returns `count` of the tiles to choose from, or all if that is None, the least expected time first."""
    return list(_by_time(program, machine, None, None)[:count])


@functools.lru_cache(maxsize=64)
def _by_time(program: Program, machine: Machine, rows: int | None, cols: int | None) -> tuple[tuple[int, int], ...]:
    shapes = dict.fromkeys((rows or r, cols or c) for r, c in tiles_of(machine))
    times = {shape: expected_us(tile_operations(program, *shape, machine.unified), machine) for shape in shapes}
    return tuple(sorted(times, key=times.__getitem__))
