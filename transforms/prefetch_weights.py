"""prefetch_weights: workers that wait for rows read what these are multiplied by meanwhile."""

from __future__ import annotations

import dataclasses

from hpmoe.ir.taskflow import Taskflow
from hpmoe.runtime.transform import transform
from hpmoe.tile_ops.params import EarlyMatmul
from hpmoe.tiling.rebuild import rebuild


@transform(requires="tiles", makes="tiles", once=True)
def prefetch_weights(flow: Taskflow) -> Taskflow:
    """Makes matrix workers of an NPU read a task's weight while they wait for its rows, so that L2 holds it in time.

    Use it if a rank receives few rows, so that reading weights bounds its matmuls. Early reads only fill L2: tasks, their
    order and all results do not change. A worker checks its waits after each piece of a weight. Only the first half of the
    workers read early, which uses the whole memory bandwidth. On CPUs the transform has no effect.

    Rewrite:
        gmm (grouped_matmul, aic)  ->  gmm (grouped_matmul, aic), early

    Requires: tile_partition, and no assign_queues yet.
    Ensures: bitwise the same function and gradients. Weights that the program computes, and weights of expert replicas, are
        not read early.

    Args:
        f: the staged function.

    Raises:
        TransformError: applied out of order or twice.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct((8, 4), "float32"), hpmoe.ShapeDtypeStruct((4, 6), "float32")]
        >>> f = hpmoe.prefetch_weights(hpmoe.tile_partition(lambda x, w: x @ w, rows=8))
        >>> print(f.lower(*avals))
        # <lambda> | tile_partition(rows=8, cols=1024) | prefetch_weights
        taskflow <lambda>  ranks=1 tasks=1 events=0 waits=0 signals=0 slots=0
          gmm (matmul, aic), early  1 task
            t0 matmul[rows 0:8, cols 0:6] x w -> a wait -  signal -
    """
    made = {flow.buffers[access.buffer].storage for op in flow.ops for access in op.outputs}
    return rebuild(flow, tuple(
        op.replace(params=dataclasses.replace(op.params, is_early=True))
        if isinstance(op.params, EarlyMatmul) and flow.buffers[op.operands[2].buffer].storage not in made else op
        for op in flow.ops))
