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
    return passes_of(hpmoe.Mesh(problem.ep), stacked("topk_ids"), (x, weights, gate_up, down), cotangent)


def passes_of(mesh, ids, args, cotangent, scheme="direct"):
    """Returns the passes for tensors on a mesh, with a scheme of hpmoe.send_rows."""
    staged = hpmoe.chain(hpmoe.send_rows(scheme=scheme), hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues,
                         hpmoe.fuse_persistent)
    f = hpmoe.spmd(staged(hpmoe.moe_ffn), mesh)

    def layer(x, weights, gate_up, down):
        return f(x, ids, weights, gate_up, down)

    def forward_backward():
        out, back = cast(Function, ms.vjp)(layer, *args)
        return [out, *back(cotangent)]

    return ({"forward": lambda: [layer(*args)], "forward + backward": forward_backward},
            lambda t: t.astype(ms.float32).asnumpy())
