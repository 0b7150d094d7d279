"""measure: the kernel launches inside a call, as Timelines."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.ranks.link import Link
from hpmoe.support.errors import check_argument
from hpmoe.support.trees import Function, PyTree
from hpmoe.timelines.timeline import Timeline


@dataclasses.dataclass
class _Record:
    """Arrays that a measured launch fills, and the link to the processes of other ranks."""

    flow: Taskflow
    trace: np.ndarray
    moved: np.ndarray
    link: Link | None

    def complete(self) -> Timeline:
        """Returns the Timeline with the parts of all ranks, on the clock of the machine."""
        trace, moved = self.trace, self.moved
        if self.link is not None:
            mine = np.concatenate([trace, moved], None).tobytes()
            with self.link.calling("hpmoe.measure"):
                parts = self.link.meet(f"what is measured of {self.flow.name}", mine)
            whole = np.sum([np.frombuffer(part, np.int64) for part in parts], 0)
            trace, moved = whole[:trace.size].reshape(trace.shape), whole[trace.size:].reshape(moved.shape)
        return Timeline.from_trace(self.flow, trace, moved=moved)


# A launch may come from MindSpore's own backward thread, so the open calls of `measure` are not thread-local.
_open: list[list[_Record]] = []


def measure(f: Function, *args: PyTree, **kwargs: PyTree) -> tuple[PyTree, tuple[Timeline, ...]]:
    """Calls `f` and records every launch of a persistent kernel in it, forward or backward.

    If ranks are processes, all ranks call `measure` together, and each returns the timelines of all ranks.

    Args:
        f: any function; calls in it of functions that fuse_persistent returned are launches.
        *args, **kwargs: arguments of `f`.

    Returns:
        (result of `f`, list with one Timeline for each launch, in order).

    Example:
        >>> import mindspore as ms, hpmoe
        >>> staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.assign_queues, hpmoe.fuse_persistent)(hpmoe.swiglu)
        >>> grad, timelines = hpmoe.measure(ms.grad(lambda x: staged(x).sum()), ms.Tensor([[0.0, 5.0]], ms.float32))
        >>> [t.flow.name for t in timelines]
        ['swiglu', 'swiglu_vjp']
    """
    check_argument(callable(f), "hpmoe.measure", "f", f"a {type(f).__name__}", "a function")
    launches: list[_Record] = []
    _open.append(launches)
    try:
        result = f(*args, **kwargs)
    finally:
        _open[:] = [other for other in _open if other is not launches]
    return result, tuple(record.complete() for record in launches)


def new_record(flow: Taskflow, link: Link | None = None) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Returns the int64 arrays that a launch of `flow` fills: times [ep, num_tasks, 3] and bytes from rank to rank, [ep,
    ep]; None outside of a measurement. `link`: to the processes of the other ranks, where this one fills its own part."""
    if not _open:
        return None, None
    trace = np.zeros((flow.ep_size, flow.num_tasks, 3), np.int64)
    moved = np.zeros((flow.ep_size, flow.ep_size), np.int64)
    _open[-1].append(_Record(flow, trace, moved, link))
    return trace, moved
