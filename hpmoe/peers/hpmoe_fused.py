"""The layer by hpmoe: one persistent kernel each way, on virtual ranks where there are several."""

from typing import cast

import mindspore as ms

import hpmoe
from hpmoe.support.trees import Function

ms.runtime.launch_blocking()


def fused(problem):
    """The passes of the layer, and how its results become NumPy arrays."""
    def stacked(name):
        array = problem.array(name)
        ranks = (problem.ep, len(array) // problem.ep)  # of the axis of tokens or of experts
        return ms.Tensor(array.reshape(*ranks, *array.shape[1:]))

    dtype = getattr(ms, problem.dtype)
    x, weights, gate_up, down, cotangent = (
        stacked(name).astype(dtype)
        for name in ("hidden_states", "topk_weights", "gate_up_weight", "down_weight", "cotangent"))
    ids = stacked("topk_ids")
    staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    f = hpmoe.spmd(staged(hpmoe.moe_ffn), hpmoe.Mesh(problem.ep))

    def layer(x, weights, gate_up, down):
        return f(x, ids, weights, gate_up, down)

    def forward_backward():
        out, back = cast(Function, ms.vjp)(layer, x, weights, gate_up, down)
        return [out, *back(cotangent)]

    return ({"forward": lambda: [layer(x, weights, gate_up, down)], "forward + backward": forward_backward},
            lambda t: t.astype(ms.float32).asnumpy())
