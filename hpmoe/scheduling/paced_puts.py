"""Has rows reach a rank slot by slot where many ranks put them: puts wait for their turn on its link."""

from __future__ import annotations

from hpmoe.costs.work import Work
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.rules import rule
from hpmoe.scheduling.spread_slots import is_spread
from hpmoe.tile_ops.params import Paced
from hpmoe.tiling.rebuild import with_params

PS = 1e6  # in a microsecond


@rule("paced_puts", otherwise=lambda flow, machine: flow)
def paced_puts(flow: tf.Taskflow, machine: Machine) -> tf.Taskflow:
    """Has a put wait until the link of the rank that gets its rows could have moved those of the slots before. Ranks that
    have rows for late slots alone would else share the link with those whose rows are multiplied first, and the first slot
    would come with the last. Which slots there are the counts tell that every rank has when it starts. Not where slots are
    spread, which are multiplied in another order, nor where one other rank fills a slot, nor over nodes, nor
    where nothing is multiplied.
    """
    puts = [op for op in flow.ops if isinstance(op.params, Paced)]
    multiplies = any(op.unit == "aic" for op in flow.ops)
    if len({op.domain.route for op in puts}) != 1 or not multiplies:
        return flow
    if machine.unified or flow.ep_size > machine.link.node_size:
        return flow
    plan = flow.routes[puts[0].domain.route]
    slots = max(1.0, plan.likely_rows / (plan.num_local_experts * plan.tile_rows))  # of an expert
    if plan.kind.is_of_tokens or slots >= flow.ep_size - 1 or is_spread(flow, machine):
        return flow
    rows = Work(flow, machine).by_routing["link_row"]
    row_bytes = sum((op.grid[2] - 1) * row[0] + row[1] for op, row in zip(flow.ops, rows, strict=True) if op in puts)
    paced = Paced(round(PS * row_bytes / machine.link.rate(flow.ep_size)))
    return with_params(flow, tuple(op.replace(params=paced) if op in puts else op for op in flow.ops))
