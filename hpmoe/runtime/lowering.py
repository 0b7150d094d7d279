"""Lowering: the steps of a chain applied to a Program that is planned for some numbers of received rows."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.runtime.kept_plans import kept_or_made
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, rows_at_start, with_planned_rows
from hpmoe.runtime.staged import Staged


def lowered(staged: Staged, program: Program, rows: Sequence[PlannedRows]) -> AnyIR:
    """The result of a chain for a Program and the planned rows of its routes.

    A kernel on a device, where no host reads the ids before a launch, is made of plans for several likely numbers of rows;
    it takes one of the plans when it starts.
    """
    first = _made(staged, with_planned_rows(program, rows))
    target = staged.target
    if target is None or not target.on_device or len(first.flow.routes) != 1:
        return first
    if program.ep_size == 1:  # the one rank receives all rows that it sends
        return first
    plans = rows_at_start(rows[0], routes_of(program)[0].aval.even_rows)
    kernels = [first if plan == rows[0] else _made(staged, with_planned_rows(program, [plan])) for plan in plans]
    return target.compile([kernel.flow for kernel in kernels], first.timeout) if len(plans) > 1 else first


def _made(staged: Staged, program: Program) -> AnyIR:
    """The result of a chain for a planned Program, from a kept Taskflow if there is one and the chain keeps plans."""
    if not (staged.steps and staged.steps[-1].keeps_plans):
        return staged.apply(program)
    program, (*to_queues, to_kernel) = staged.apply_to_program(program)
    return to_kernel.apply_to(kept_or_made(program, to_queues))
