"""rebuild: the taskflow of other tile operations over the same arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

from hpmoe.ir.limits import check_limits
from hpmoe.ir.taskflow import Made, Taskflow, TileOp, make_tasks
from hpmoe.support.errors import TransformError, VerifyError
from hpmoe.tiling.dependencies import derive_dependencies
from hpmoe.tiling.shared_memory import share_memory


def rebuild(flow: Taskflow, ops: tuple[TileOp, ...], **changes: Any) -> Taskflow:
    """The taskflow of other tile operations over the same arrays: tasks, dependencies and shared memory are found anew.

    Raises:
        VerifyError: a put without signals of its own has no notice, or a notice no put.
        TransformError: it is too large, or operations, buffers and routes do not fit together so far that there are tasks.
            All else that may be wrong with them `hpmoe.verify` says, which runs after each transform.
    """
    flow = flow.replace(ops=ops, queues=(), **changes)
    try:
        check_limits(flow.name, flow.ep_size, flow.buffers, ops, flow.routes)
        flow = flow.replace(tasks=make_tasks(ops), buffers=share_memory(flow.buffers, ops, flow.routes))
        events, waits, signals, blocks = derive_dependencies(flow.buffers, ops, flow.routes, flow.tile_rows)
    except (TransformError, VerifyError):
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise TransformError(f"rebuild: operations, buffers and routes of {flow.name} do not fit together: "
                             f"{type(error).__name__}: {error}") from error
    return _with_note(flow.replace(events=events, waits=waits, signals=signals, blocks=blocks))


def _with_note(flow: Taskflow) -> Taskflow:
    """The taskflow with a note of what its tables were made for."""
    return flow.replace(made=Made(*(getattr(flow, field.name) for field in dataclasses.fields(Made))))
