"""rebuild: the taskflow of other tile operations over the same arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpmoe.limits import check_limits
from hpmoe.taskflow import Made, Taskflow, TileOp, make_tasks
from hpmoe.tiling.dependencies import derive_dependencies
from hpmoe.tiling.shared_memory import share_memory


def rebuild(flow: Taskflow, ops: tuple[TileOp, ...], **changes: Any) -> Taskflow:
    """The taskflow of other tile operations over the same arrays: tasks, dependencies and shared memory are found anew."""
    check_limits(flow.name, flow.ep_size, flow.buffers, ops, flow.routes)
    buffers = share_memory(flow.buffers, ops, flow.routes)
    events, waits, signals, blocks = derive_dependencies(buffers, ops, flow.routes, flow.tile_rows)
    return _with_note(flow.replace(buffers=buffers, ops=ops, tasks=make_tasks(ops), events=events, waits=waits,
                                   signals=signals, blocks=blocks, queues=(), **changes))


def _with_note(flow: Taskflow) -> Taskflow:
    """The taskflow with a note of what its tables were made for."""
    return flow.replace(made=Made(*(getattr(flow, field.name) for field in dataclasses.fields(Made))))
