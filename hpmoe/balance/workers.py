"""Workers of an expert: slots of rows are dealt to all workers of a rank, so an expert has as many as its rows need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir.layout import Layout
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.timelines.run import Run


@suggests_keywords
def workers_per_expert(line: Run, topk_ids: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Returns the workers of all ranks, averaged over a run, that compute on rows of each expert and of its replicas.

    Only tasks on received rows count: matmuls and activations. Tasks that move rows or sum weight gradients do not count.

    Args:
        line: a Timeline, measured or simulated, of a taskflow with one routing.
        topk_ids: for each rank, [T, K], the ids that the kernel received: places of experts if a Balancer moves them.

    Returns:
        [E] float64, the mean number of workers of the expert at each place.

    Raises:
        ArgumentError: line is no Timeline, or its function dispatches nothing.

    Example:
        >>> import hpmoe
        >>> shapes = (8, 4), (8, 1), (8, 1), (2, 4, 6), (2, 3, 4)
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "int32" if i == 1 else "float32") for i, shape in enumerate(shapes)]
        >>> tiles = hpmoe.tile_partition(hpmoe.moe_ffn, rows=2, cols=4)
        >>> flow = hpmoe.assign_queues(tiles, machine=hpmoe.cpu(num_workers=4)).lower(*avals)
        >>> ids = [np.array([[0]] * 6 + [[1]] * 2)]
        >>> hot, cold = workers_per_expert(hpmoe.simulate(flow, routing=ids), ids)
        >>> bool(2.5 < hot / cold < 3.5)
        True
    """
    who = "hpmoe.balance.workers_per_expert"
    check_argument(isinstance(line, Run), who, "line", f"a {type(line).__name__}", "an hpmoe.Timeline")
    flow = line.flow
    check_argument(bool(flow.routes), who, "line", f"of {flow.name}, which dispatches nothing", "of a layer with experts")
    layout = Layout(flow, [topk_ids] * len(flow.routes), None)
    busy = np.zeros(flow.routes[0].num_experts)
    op_of_row = flow.tasks["op"][line.task]
    for i, op in enumerate(flow.ops):
        if not op.domain.is_slots or op.primitive.is_remote:
            continue
        plan = flow.routes[op.domain.route]
        for rank, slots in enumerate(layout.slots[op.domain.route]):
            mine = (line.rank == rank) & (op_of_row == i)
            slot = flow.tasks["row"][line.task[mine]]
            part = flow.tasks["col"][line.task[mine]] if op.parts > 1 else 0
            has_rows = op.rows_of_parts(slots.rows, flow.tile_rows)[slot, part] > 0
            took = np.where(has_rows, (line.end - line.begin)[mine], 0.0)
            physical = rank * plan.num_local_experts + slots.expert[slot]
            expert = physical if plan.placement is None else plan.placement.parts[physical, 0]
            np.add.at(busy, np.maximum(expert, 0), np.where(expert < 0, 0.0, took))
    return busy / max(line.span, 1e-300)
