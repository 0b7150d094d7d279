"""Which tile shape suits a program on a machine: the one whose matrix tasks end first by the machine's own cost rules."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.costs import STREAM, WEIGHT, Work, core_us, rows_of_expert
from hpmoe.lifetimes import row_bytes
from hpmoe.machine import Machine
from hpmoe.program import Program
from hpmoe.tiling import tile_operations

ROW_STEPS, COL_STEPS = (1.0, 0.5, 2.0), (1.0, 0.5, 2.0, 4.0)  # of a machine's default tile, itself first
APART = 1.25  # longest tasks by which the last ones of static queues end apart


@functools.lru_cache(maxsize=64)
def choose_tile(program: Program, machine: Machine, rows: int | None, cols: int | None) -> tuple[int, int]:
    """Rows and columns of a tile, those that are given kept; the same for the same program, machine and sizes.

    Example:
        >>> import hpmoe
        >>> avals = hpmoe.Aval((4096, 7168), "bfloat16"), hpmoe.Aval((7168, 4096), "bfloat16")
        >>> choose_tile(hpmoe.trace(lambda x, w: x @ w, *avals), hpmoe.ascend_a3, None, None)
        (128, 256)
    """
    all_rows = [rows] if rows else [max(1, int(machine.tile_rows * step)) for step in ROW_STEPS]
    all_cols = [cols] if cols else [max(1, int(machine.tile_cols * step)) for step in COL_STEPS]
    shapes = [(r, c) for r in all_rows for c in all_cols]
    times = [estimated_us(tile_operations(program, *shape), machine) for shape in shapes]
    return shapes[int(np.argmin(times))]


def estimated_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds of the matrix tasks of a rank where experts share the rows evenly, or of reading what they alone read,
    and more than the longest of them, as the last ones do not end together; what copies return, block by block, comes after.
    Of a unified machine all tasks count."""
    work = Work(flow, machine)
    busy, longest, returned, memory = 0.0, 0.0, 0.0, 0.0
    for i, op in enumerate(flow.ops):
        if op.opcode.startswith("ALL_TO_ALL") or (op.unit != "aic" and not machine.unified):
            continue
        units, experts = _units(flow, op)
        if op.opcode == "WGRAD" and op.first_row > 0:
            block = op.params[0] * row_bytes(flow.buffers[op.operands[0].buffer])
            returned = max(returned, block / machine.worker_link_bytes_per_us)
        lower = 1 / op.domain.blocks  # the share of the last blocks of rows
        for (_, cols), (k, share) in itertools.product(op.col_ranges(), ((0, 1 - lower), (2, lower))):
            row = work.table[i, k + int(cols < op.tile_cols)]
            us = [_task_us(row, rows, machine) for rows, _ in units if share]
            busy += share * sum(t * count for t, (_, count) in zip(us, units, strict=False))
            longest = max([longest, *us])
            touches = row["touches"][:row["num_touches"]]
            memory += share * touches["fixed"][touches["part"] == WEIGHT][:1].sum() * experts
            memory += share * touches["fixed"][touches["part"] == STREAM].sum() * sum(count for _, count in units)
    return max(busy / len(machine.queues_of("aic")), memory / machine.memory_bytes_per_us) + APART * longest + returned


def _units(flow: tf.Taskflow, op: tf.TileOp) -> tuple[list[tuple[float, int]], int]:
    """(rows of a unit, how many units have as many), and how many experts they are of."""
    plan = flow.routes[op.domain.route] if op.domain.route >= 0 else None
    experts = plan.num_local_experts if plan else 1
    if op.domain.kind == "experts":
        return [(rows_of_expert(op, plan), op.domain.size)], experts
    rows = plan.max_rows / experts if op.domain.kind == "slots" else float(max(1, op.domain.num_rows))
    times = experts if op.domain.kind == "slots" else 1
    whole, rest = divmod(rows, flow.tile_rows)
    return [(n, count) for n, count in ((float(flow.tile_rows), int(whole) * times), (rest, times)) if n and count], times


def _task_us(work: np.void, rows: float, machine: Machine) -> float:
    """Of a task alone on the machine, with what waiting and signalling takes at least."""
    touches = work["touches"][:work["num_touches"]]
    core = core_us(work, rows)
    passed = (touches["fixed"].sum() + rows * touches["row"].sum()) / machine.worker_l2_bytes_per_us
    return float(max(machine.task_us + core, passed) + machine.wait_us + machine.signal_us)
