"""Shared memory: temporaries of a taskflow that live in the memory of earlier ones, and the waits of their writers.

A storage may take over the memory of older ones whose last use comes before its first write in the order of operations.
Its writers wait until all readers of the older ones are done (write after read), row unit by row unit where both sides
have the same units and rows of the same bytes, and altogether otherwise. Writers of the older one need no waits of their
own (write after write): its readers have waited for all of them. Nor does an order that the flow of data makes anyway.

What other ranks write takes over nothing: their puts would have to wait until the readers here are done, and no event of
a launch leads from those to them, as what a rank sends depends on the rows it was sent and not on what their sender does
meanwhile. It would take a signal from every rank to every sender before the first row may leave: a barrier in front of the
exchange, where rows shall leave slot by slot. Between launches there is that barrier, as each begins with an exchange of
counts among all ranks: the temporaries of one launch are free when the next begins, for what other ranks write, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.known import known
from hpmoe.tiling.lifetimes import ALL, UNIT, Lifetimes, lifetimes_of

UNWANTED = ALL + 1
SMALL = 16  # buffers of less than 1 / SMALL of the largest are not worth a wait


def share_memory(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...],
                 routes: tuple[tf.RoutePlan, ...]) -> tuple[tf.Buffer, ...]:
    """Returns the buffers of operations, with temporaries in the memory of buffers that are no longer read.

    Each temporary, by first write, goes where the flow of data orders it anyway, or else where waiting unit by unit does.
    Only what a lone rank sends to itself may wait for all of an operation: elsewhere that would keep stages from
    overlapping.
    """
    buffers = tuple(dataclasses.replace(b, memory=-1) if b.memory >= 0 else b for b in buffers)
    life = Lifetimes(buffers, ops, routes)
    sizes = {s: b.row_bytes * (known(b.num_rows) if b.route < 0 else routes[b.route].max_rows)
             for s, b in enumerate(buffers) if b.storage == s and not life.refusal(s)}
    memories: list[list[int]] = []
    for new in sorted(sizes, key=lambda s: life.writers[s][0]):
        if sizes[new] * SMALL < max(sizes.values()):
            continue
        options = [(max(life.cost(new, old) for old in olds), abs(sizes[new] - max(sizes[old] for old in olds)), i)
                   for i, olds in enumerate(memories) if olds[0] < new and all(life.fault(new, old) == "" for old in olds)]
        cost, _, chosen = min(options, default=(UNWANTED, 0, 0))
        if cost <= (ALL if life.is_sent(new) else UNIT):
            memories[chosen].append(new)
        else:
            memories.append([new])
    home = {new: olds[0] for olds in memories for new in olds[1:]}
    return tuple(dataclasses.replace(b, memory=home[s]) if s in home else b for s, b in enumerate(buffers))


@functools.lru_cache(maxsize=8)  # verify asks it of every stage, most of which leave the operations alone
def memory_fault(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...]) -> str:
    """Returns a fault of the memory that buffers share which no waits can repair, or ""."""
    moved = [b for b, buffer in enumerate(buffers) if buffer.memory != -1]
    for b in moved:
        buffer, home = buffers[b], buffers[b].memory
        if not 0 <= home < b or buffer.storage != b or buffers[home].storage != home or buffers[home].memory >= 0:
            return f"{buffer.name} lives in the memory of buffer {home}, which has none of its own before it"
    life = lifetimes_of(buffers, ops, routes)
    for b in moved:
        if why := life.refusal(buffers[b].memory):
            return f"{buffers[b].name} lives where {buffers[buffers[b].memory].name} does, and {why}"
    for storages in life.occupants().values():
        for n, new in enumerate(storages):
            for old in storages[:n]:
                if fault := life.fault(new, old):
                    return f"{buffers[new].name} lives where {buffers[old].name} did, and {fault}"
    return ""


def remote_memories(flow: tf.Taskflow) -> set[int]:
    """Returns the memories that other ranks write to, by their first storage, which an NPU has in the symmetric heap."""
    return {tf.memory_of(flow.buffers, op.operands[0].buffer) for op in flow.ops if op.primitive.is_remote}


def memory_bytes(flow: tf.Taskflow, received: Sequence[int]) -> dict[int, int]:
    """Returns the bytes of each memory, by its first storage, on a rank that receives `received` rows through each route."""
    out: dict[int, int] = {}
    for b, buffer in enumerate(flow.buffers):
        rows = known(buffer.num_rows) if buffer.route < 0 else received[buffer.route]
        home = tf.memory_of(flow.buffers, b)
        out[home] = max(out.get(home, 0), rows * buffer.row_bytes)
    return out
