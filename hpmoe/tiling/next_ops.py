"""The operations of a taskflow that come after each."""

from __future__ import annotations

from hpmoe.ir import taskflow as tf
from hpmoe.tiling.lifetimes import lifetimes_of


def next_ops(flow: tf.Taskflow) -> list[set[int]]:
    """Returns, for each operation, the later operations that read its results or overwrite its inputs."""
    storage = [b.storage for b in flow.buffers]
    readers: dict[int, set[int]] = {}
    for i, op in enumerate(flow.ops):
        for access in op.inputs:
            readers.setdefault(storage[access.buffer], set()).add(i)
    after = [{r for a in op.outputs for r in readers.get(storage[a.buffer], ()) if r > i} for i, op in enumerate(flow.ops)]
    if any(b.memory >= 0 for b in flow.buffers):
        for release in lifetimes_of(flow.buffers, flow.ops, flow.routes).releases:
            for reader in release.readers:
                after[reader] |= {release.op} if release.op > reader else set()
    return after
