"""A router inside the function: hidden states and the router's weight in, the layer's output out.

    python examples/09_router_inside.py

A kernel reads its ids when it starts, so a function that computes them is cut there. The first stage holds just what leads
to ids; everything else, a shared expert too, is in the second one, where it overlaps the exchange of tokens. A call is still
one call, and the backward pass one launch, as the ids are saved for it: the router's weight has a gradient like any other.
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import ops

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 2, 8, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 96, 32, 16
NAMES = ("hidden_states", "router", "gate_up_weight", "down_weight", "shared_up", "shared_down")

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def layer(hidden_states, router, gate_up_weight, down_weight, shared_up, shared_down):
    """A whole MoE layer: softmax router, top-k with weights that sum to 1, experts, shared expert."""
    probs = ops.softmax(hidden_states @ router, -1)
    topk_weights, topk_ids = ops.topk(probs, TOP_K)
    topk_weights = topk_weights / topk_weights.sum(-1, keepdims=True)
    return hpmoe.moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight,
                         shared_gate_up_weight=shared_up, shared_down_weight=shared_down)


def make_arguments(rng):
    """Arguments of all ranks: tokens and experts are each rank's own, the other weights the same on all."""
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32) / 4

    local = NUM_EXPERTS // EP_SIZE
    same = [normal(HIDDEN_SIZE, NUM_EXPERTS), normal(HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
            normal(INTERMEDIATE_SIZE, HIDDEN_SIZE)]
    router, shared_up, shared_down = (np.stack([w] * EP_SIZE) for w in same)
    return [ms.Tensor(a) for a in (
        normal(EP_SIZE, NUM_TOKENS, HIDDEN_SIZE), router, normal(EP_SIZE, local, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
        normal(EP_SIZE, local, INTERMEDIATE_SIZE, HIDDEN_SIZE), shared_up, shared_down)]


def plain(hidden_states, router, gate_up_weight, down_weight, shared_up, shared_down):
    """Computes the layer on one rank with all experts, run by MindSpore op by op."""
    return layer(hidden_states.reshape(-1, HIDDEN_SIZE), router[0], gate_up_weight.reshape(NUM_EXPERTS, HIDDEN_SIZE, -1),
                 down_weight.reshape(NUM_EXPERTS, -1, HIDDEN_SIZE), shared_up[0], shared_down[0])


def gradients(f, args):
    """The loss and its gradients by all arguments; of weights that ranks share, their sum."""
    value, grads = ms.value_and_grad(lambda *args: (f(*args) ** 2).mean(), tuple(range(len(args))))(*args)
    return [value.asnumpy(), *(g.asnumpy() if n in (0, 2, 3) else g.asnumpy().sum(0) for n, g in enumerate(grads))]


def main():
    ms.runtime.launch_blocking()
    args, mesh = make_arguments(np.random.default_rng(0)), hpmoe.Mesh(EP_SIZE)
    avals = [hpmoe.ShapeDtypeStruct(a.shape, "float32") for a in args]
    print(hpmoe.spmd(layer, mesh).lower(*avals), "\n")
    fused = hpmoe.spmd(to_kernel(layer), mesh)
    got, timelines = hpmoe.measure(gradients, fused, args)
    print("launches:", ", ".join(line.flow.name for line in timelines))
    print("largest difference from MindSpore op by op, relative")
    for name, a, b in zip(("loss", *(f"d {n}" for n in NAMES)), got, gradients(plain, args), strict=True):
        print(f"  {name:<18} {np.abs(a - b).max() / np.abs(b).max():.1e}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
