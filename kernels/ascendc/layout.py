"""Places the buffers of a launch on a rank's device: in tensors of the caller, in scratch, or in the symmetric heap."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from hpmoe.ir.taskflow import Buffer, Taskflow, memory_of
from hpmoe.kernels.plan_images import in_words
from hpmoe.support.dtypes import storage_dtype
from hpmoe.support.known import known
from hpmoe.tiling.shared_memory import memory_bytes, remote_memories

ALIGNMENT = 512  # bytes: what a fast copy begins at
HEAP = -1  # instead of a tensor's index
NOWHERE = HEAP, 0, 0  # a place for what is no buffer


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of a launch: tensor `tensor` of the launch, seen in `shape`."""

    tensor: int
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The memory of a launch, for as many received rows as there can be.

    The tensors of a launch are the inputs, those of `made`, and scratch of `scratch_bytes` where that is not 0.

    Attributes:
        places: for each buffer the index of its tensor, or HEAP, where in it, and how many bytes; of several plans those of
            each in turn, as in_words has them.
        made: shape and dtype of the tensors that outputs are written to.
        outputs: the Output of each program output.
        copies: (offset in the heap, tensor, bytes) of each copy from the heap to a tensor after the launch.
        heap_bytes: bytes of the buffers in the symmetric heap.
    """

    places: tuple[tuple[int, int, int], ...]
    made: tuple[tuple[tuple[int, ...], str], ...]
    outputs: tuple[Output, ...]
    copies: tuple[tuple[int, int, int], ...]
    heap_bytes: int
    scratch_bytes: int


def lay_out(flow: Taskflow) -> Layout:
    """Finds a place for every buffer of a taskflow; what is neither given, nor returned, nor sent is scratch."""
    most = [route.max_rows for route in flow.routes]
    sizes, remote = memory_bytes(flow, most), remote_memories(flow)
    given = {memory_of(flow.buffers, b): i for i, b in enumerate(flow.inputs)}
    made: dict[int, int] = {}
    for b in flow.outputs:
        memory = memory_of(flow.buffers, b)
        if memory not in given:
            made.setdefault(memory, len(flow.inputs) + len(made))
    scratch = len(flow.inputs) + len(made)
    ends, home = {HEAP: 0, scratch: 0}, {}
    for memory in [*made, *(m for m in sizes if m not in made)]:  # returned buffers have one place in all plans
        size = sizes[memory]
        area = HEAP if memory in remote else given.get(memory, made.get(memory, scratch))
        home[memory] = (area, ends.get(area, 0))
        if area in ends:
            ends[area] += -(-size // ALIGNMENT) * ALIGNMENT
    shown = [flow.buffers[next(b for b in flow.outputs if memory_of(flow.buffers, b) == memory)] for memory in made]
    return Layout(
        places=tuple((*home[memory_of(flow.buffers, b)], _rows(buffer, most) * buffer.row_bytes)
                     for b, buffer in enumerate(flow.buffers)),
        made=tuple((_shape(buffer, most), storage_dtype(buffer.dtype)) for buffer in shown),
        outputs=tuple(Output({**given, **made}[memory_of(flow.buffers, b)], _shape(flow.buffers[b], most))
                      for b in flow.outputs),
        copies=tuple((home[memory][1], tensor, sizes[memory]) for memory, tensor in made.items() if memory in remote),
        heap_bytes=ends[HEAP], scratch_bytes=ends[scratch])


def lay_out_plans(flows: Sequence[Taskflow]) -> Layout | None:
    """Returns the memory of a launch that takes one of several plans, that of the largest; None if the layouts of inputs
    and outputs differ."""
    first, *others = layouts = [lay_out(flow) for flow in flows]
    if any((other.made, other.outputs, other.copies) != (first.made, first.outputs, first.copies) for other in others):
        return None
    places = in_words(flows, [layout.places for layout in layouts], NOWHERE)
    return dataclasses.replace(
        first, places=tuple(places), heap_bytes=max(layout.heap_bytes for layout in layouts),
        scratch_bytes=max(layout.scratch_bytes for layout in layouts))


def _rows(buffer: Buffer, most: Sequence[int]) -> int:
    return known(buffer.num_rows) if buffer.route < 0 else most[buffer.route]


def _shape(buffer: Buffer, most: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape that the user sees, received rows in full."""
    shape = tuple(d if isinstance(d, int) else _rows(buffer, most) for d in buffer.shape)
    assert math.prod(shape) == _rows(buffer, most) * buffer.cols, buffer
    return shape
