"""Your own FFN: three layers in MindSpore calls that hpmoe has never seen, each one kernel forward and backward.

    python examples/04_your_own_ffn.py

Between `hpmoe.dispatch` and `hpmoe.combine`, and around them, a layer may use `hpmoe.grouped_matmul` and ordinary
MindSpore: matmul, elementwise functions, broadcasting, sums over a row. Nothing is registered; the chain traces what
the function does. Something it cannot trace is refused with the line it is written on. The last part shows such a
refusal.
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import mint, ops

import hpmoe

NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, TOP_K = 200, 64, 48, 6, 2

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def gelu_experts(hidden_states, topk_ids, topk_weights, up_weight, up_bias, down_weight, down_bias, layer_scale):
    """Experts with GELU and biases, and a residual scaled by a learned vector."""
    rows, route = hpmoe.dispatch(hidden_states, topk_ids, num_local_experts=up_weight.shape[0])
    up = hpmoe.grouped_matmul(rows, up_weight, route, bias=up_bias)
    down = hpmoe.grouped_matmul(ops.gelu(up), down_weight, route, bias=down_bias)
    return hidden_states + layer_scale * hpmoe.combine(down, route, topk_weights)


def shared_expert(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight, shared_gate_up, shared_down,
                  gate):
    """Routed experts beside one expert that every token visits, let in by a learned gate."""
    routed = hpmoe.moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight)
    shared = mint.matmul(hpmoe.swiglu(mint.matmul(hidden_states, shared_gate_up)), shared_down)
    return routed + mint.sigmoid(mint.matmul(hidden_states, gate)) * shared


def dense_swiglu(hidden_states, gate_up_weight, down_weight):
    """No experts at all: the chain takes any function it can cut into tiles of rows."""
    return mint.matmul(hpmoe.swiglu(mint.matmul(hidden_states, gate_up_weight)), down_weight)


def make_arguments():
    """For each layer its arguments, random but of reasonable size."""
    rng = np.random.default_rng(0)
    t, h, i, e, k = NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, TOP_K

    def normal(*shape):
        return ms.Tensor((rng.standard_normal(shape) * shape[-2] ** -0.5).astype(np.float32))

    x = ms.Tensor(rng.standard_normal((t, h)).astype(np.float32))
    topk_ids = ms.Tensor(np.argsort(rng.random((t, e)), axis=1)[:, :k].astype(np.int32))
    topk_weights = ms.Tensor(rng.dirichlet(np.ones(k), t).astype(np.float32))
    return {
        gelu_experts: (x, topk_ids, topk_weights, normal(e, h, i), normal(e, i), normal(e, i, h), normal(e, h),
                       ms.Tensor(np.full(h, 0.1, np.float32))),
        shared_expert: (x, topk_ids, topk_weights, normal(e, h, 2 * i), normal(e, i, h), normal(h, 2 * i), normal(i, h),
                        normal(h, 1)),
        dense_swiglu: (x, normal(h, 2 * i), normal(i, h)),
    }


def output_and_grads(f, args):
    """Returns the output of f and the gradient of every float argument."""
    floats = tuple(i for i, x in enumerate(args) if x.dtype == ms.float32)
    grads = ms.grad(lambda *a: (f(*a) ** 2).sum(), grad_position=floats)(*args)
    return (f(*args), *grads)


def relative_difference(a, b):
    """The largest difference, measured by the largest value."""
    a, b = a.asnumpy(), b.asnumpy()
    return np.abs(a - b).max() / np.abs(a).max()


def show(f, args):
    print(f"\n{hpmoe.trace(f, *args)}")
    plain, fused = output_and_grads(f, args), output_and_grads(to_kernel(f), args)
    differences = [relative_difference(a, b) for a, b in zip(plain, fused, strict=True)]
    print(f"relative to MindSpore: output {differences[0]:.1e}, worst of {len(differences) - 1} gradients "
          f"{max(differences[1:]):.1e}")


def softmax_over_tokens(hidden_states, gate_up_weight, down_weight):
    """Not a layer of rows: each result needs all tokens, so tiles of rows cannot be computed one by one."""
    return dense_swiglu(ops.softmax(hidden_states, axis=0), gate_up_weight, down_weight)


def main():
    ms.runtime.launch_blocking()
    arguments = make_arguments()
    for f, args in arguments.items():
        show(f, args)
    print("\nand a function that is no layer of rows is refused:")
    try:
        to_kernel(softmax_over_tokens)(*arguments[dense_swiglu])
    except (hpmoe.TraceError, hpmoe.TransformError) as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
