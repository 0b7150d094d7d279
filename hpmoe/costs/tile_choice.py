"""Chooses the tile shape for a program on a machine: the one with which a rank ends first by its cost rules."""

from __future__ import annotations

import functools

from hpmoe.costs.rank_estimate import estimated_us
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.tiling.tile_program import tile_operations

ROW_STEPS, COL_STEPS = (1.0, 0.5, 2.0), (1.0, 0.5, 2.0, 4.0)  # of a machine's default tile, itself first
NEAR = 1.03  # times that say nothing; then those of the matrix tasks count
SPLIT = 1.08  # times that the default tile takes by these rules, less than which none is taken that splits an expert's rows
SLACK = 0.9  # of the time, less than which matrix tasks take where links or vector workers are what takes long


def tiles_of(machine: Machine) -> list[tuple[int, int]]:
    """Rows and columns of the tiles that there are to choose from, the machine's default first.

    Example:
        >>> import hpmoe
        >>> tiles_of(hpmoe.ascend_a3)[:5]
        [(128, 256), (128, 128), (128, 512), (128, 1024), (64, 256)]
    """
    return [(max(1, int(machine.tile_rows * r)), max(1, int(machine.tile_cols * c))) for r in ROW_STEPS for c in COL_STEPS]


def choose_tile(program: Program, machine: Machine, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Rows and columns of a tile, those that are given kept; the same for the same program, machine and sizes.

    Where matrix tasks have time to spare, the machine's default tile, if it ends about as soon: with wider ones rows go back
    later, and in larger parts. Instead of one of fewer rows than an expert is likely to get, too: of its slots all but the
    first would wait for a weight that is on its way.

    Example:
        >>> import hpmoe
        >>> avals = hpmoe.Aval((4096, 7168), "bfloat16"), hpmoe.Aval((7168, 4096), "bfloat16")
        >>> choose_tile(hpmoe.trace(lambda x, w: x @ w, *avals), hpmoe.ascend_a3, None, None)
        (128, 256)
    """
    times = _estimates(program, machine, rows, cols)
    shapes, least = list(times), min(us for us, _ in times.values())
    near = [shape for shape in shapes if times[shape][0] <= NEAR * least]
    chosen = min(near, key=lambda shape: times[shape][1])
    default, (us, of_matrix) = shapes[0], times[chosen]
    if default in near and of_matrix < SLACK * us:
        return default
    splits = chosen[0] < default[0] and chosen[0] < _rows_of_expert(program, machine)
    return default if splits and times[default][0] <= SPLIT * us else chosen


def _rows_of_expert(program: Program, machine: Machine) -> float:
    """That an expert is likely to get, by the route with the most; 0 without a route."""
    flow = tile_operations(program, machine.tile_rows, machine.tile_cols, machine.unified)
    return max((plan.likely_rows / plan.num_local_experts for plan in flow.routes), default=0.0)


def likely_tiles(program: Program, machine: Machine, count: int | None) -> list[tuple[int, int]]:
    """So many of the tiles that there are to choose from, or all, that with which a rank ends first by the rules first."""
    times = _estimates(program, machine, None, None)
    return sorted(times, key=times.__getitem__)[:count]


@functools.lru_cache(maxsize=64)
def _estimates(program: Program, machine: Machine, rows: int | None, cols: int | None
               ) -> dict[tuple[int, int], tuple[float, float]]:
    """Of each tile the microseconds of a rank, and of its matrix tasks; the machine's default first."""
    shapes = dict.fromkeys((rows or r, cols or c) for r, c in tiles_of(machine))
    return {shape: estimated_us(tile_operations(program, *shape, machine.unified), machine) for shape in shapes}
