"""tile_partition: operators -> tile tasks with exact dependencies."""

from __future__ import annotations

from typing import Literal

from hpmoe.costs.tile_choice import tile_times
from hpmoe.ir.program import Program
from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Machine
from hpmoe.machines.this_cpu import cpu
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument, is_int, is_name
from hpmoe.tiling.tile_program import tile_program

Size = int | Literal["auto"] | None


def _check(rows: Size = None, cols: Size = None, machine: Machine | None = None) -> None:
    for name, value in (("rows", rows), ("cols", cols)):
        check_argument(value is None or is_name(value, ("auto",)) or is_int(value), "tile_partition", name, repr(value),
                       "an int in 1..2**30, \"auto\" or None")
    check_argument(machine is None or isinstance(machine, Machine), "tile_partition", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3 or hpmoe.load_machine(name), or None")


@transform(requires="program", makes="tiles", once=True, check=_check)
def tile_partition(program: Program, *, rows: Size = None, cols: Size = None,
                   machine: Machine | None = None) -> Taskflow:
    """Cuts the operators of a pure function into tile tasks, whose dependencies are those of the regions that they touch.

    Rewrite:
        b:f32[R,256] = grouped_matmul a w r
        ->
        gmm[slot 0, cols 0:128]  a w -> b   wait !a.0 >= rows   signal !b.0 += rows
        gmm[slot 0, cols 128:256] ...       one task for each row slot and column range

    Requires: a plain function, or one under Program transforms.
    Ensures: a Taskflow with blocking collectives and no queues. Received rows are in slots, blocks of up to `rows` rows of
        one expert; the number of slots is the same for every routing. Tasks that quantize or dequantize divide the rows of a
        slot or tile if an NPU has more vector workers. Temporaries share memory if that delays no task.

    Args:
        f: the function.
        rows: number of rows of a slot and of a tile of tokens. None is the machine's default. "auto" takes half, once or
            twice the default: the one with the least expected time for the shapes and received rows of a plan.
        cols: number of columns of a tile, None or "auto" likewise; "auto" tries up to four times the default.
        machine: the machine to plan for, also the default of later transforms; None for the CPU of this process.

    Raises:
        ArgumentError: rows or cols is not a positive int, None or "auto", or machine is no Machine.
        TransformError: an equation mixes rows, so that its tiles cannot be computed separately; or f is staged already.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=4).lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))
        >>> print(flow)
        # swiglu | tile_partition(rows=4, cols=1024)
        taskflow swiglu  ranks=1 tasks=2 events=0 waits=0 signals=0 slots=0
          swiglu (swiglu, aiv)  2 tasks
            t0 swiglu[rows 0:4, cols 0:3] x -> a wait -  signal -
            t1 swiglu[rows 4:8, cols 0:3] x -> a wait -  signal -
    """
    on = machine or cpu()
    tile_rows, tile_cols = (None if size == "auto" else int(size or default)
                            for size, default in ((rows, on.tile_rows), (cols, on.tile_cols)))
    if tile_rows is None or tile_cols is None:
        tile_rows, tile_cols = next(iter(tile_times(program, on, tile_rows, tile_cols)))
    flow = tile_program(program, tile_rows, tile_cols, on)
    return flow.replace(machine=machine,
                        provenance=(*program.provenance, f"tile_partition(rows={tile_rows}, cols={tile_cols})"))
