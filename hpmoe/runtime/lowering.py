"""Lowering: the steps of a chain applied to a Program that is planned for some numbers of received rows."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.runtime.cached_plans import kept_or_made
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, rows_at_start, with_planned_rows
from hpmoe.runtime.staged import Staged


def lowered(staged: Staged, program: Program, rows: Sequence[PlannedRows]) -> AnyIR:
    """The result of a chain for a Program and the planned rows of its routes.

    A kernel on a device, where no host reads the ids before a launch, is made of plans for several expected numbers of rows;
    it takes one of the plans when it starts.
    """
    if staged.target is None:
        return staged.apply(with_planned_rows(program, rows))
    flow = _queued(staged, with_planned_rows(program, rows))
    kernel = staged.steps[-1].apply_to(flow)
    if not staged.is_on_device or len(flow.routes) != 1 or program.ep_size == 1:  # one rank receives all rows that it sends
        return kernel
    plans = rows_at_start(rows[0], routes_of(program)[0].aval.balanced_rows)
    flows = [flow if plan == rows[0] else _queued(staged, with_planned_rows(program, [plan])) for plan in plans]
    return staged.target.compile(flows, kernel.timeout) if len(flows) > 1 else kernel


def _queued(staged: Staged, program: Program) -> Taskflow:
    """The Taskflow that the kernel of a planned Program is compiled from, a kept one if the chain keeps plans."""
    ir: AnyIR
    ir, (*to_queues, to_kernel) = staged.apply_to_program(program)
    if to_kernel.keeps_plans:
        return kept_or_made(ir, to_queues)
    for step in to_queues:
        ir = step.apply_to(ir)
    return ir
