"""Quickstart: a plain MoE-FFN, one persistent kernel made of it, and proof that both compute the same.

    python examples/01_quickstart.py

Shows the whole path of a newcomer: write the layer as a plain function of tensors, put the four transforms around it,
call the result like the function it came from, differentiate it with MindSpore's own `ms.value_and_grad`, and
compare.
"""

import argparse
import time

import mindspore as ms
import numpy as np

import hpmoe

NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, TOP_K = 512, 256, 128, 8, 2

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    """The layer, written as one would on paper; `hpmoe.moe_ffn` is the same function."""
    rows, route = hpmoe.dispatch(hidden_states, topk_ids, num_local_experts=gate_up_weight.shape[0])
    gate_up = hpmoe.grouped_matmul(rows, gate_up_weight, route)
    expert_out = hpmoe.grouped_matmul(hpmoe.swiglu(gate_up), down_weight, route)
    return hpmoe.combine(expert_out, route, topk_weights)


def make_arguments(seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape, scale=1.0):
        return ms.Tensor((scale * rng.standard_normal(shape)).astype(np.float32))

    topk_ids = np.stack([rng.permutation(NUM_EXPERTS)[:TOP_K] for _ in range(NUM_TOKENS)]).astype(np.int32)
    topk_weights = rng.dirichlet(np.ones(TOP_K), NUM_TOKENS).astype(np.float32)
    return (normal(NUM_TOKENS, HIDDEN_SIZE), ms.Tensor(topk_ids), ms.Tensor(topk_weights),
            normal(NUM_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE, scale=HIDDEN_SIZE ** -0.5),
            normal(NUM_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE, scale=INTERMEDIATE_SIZE ** -0.5))


def loss_and_grad(f):
    """Loss and the gradients of every argument but the ids, by MindSpore's autograd."""
    return ms.value_and_grad(lambda *args: (f(*args) ** 2).mean(), grad_position=(0, 2, 3, 4))


def milliseconds(f, *args, repeat=5):
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        f(*args)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)


def relative_difference(a, b):
    """The largest difference, measured by the largest value."""
    a, b = a.asnumpy(), b.asnumpy()
    return float(np.abs(a - b).max() / np.abs(a).max())


def main():
    ms.runtime.launch_blocking()  # asynchronous dispatch costs milliseconds an operator on a machine of few cores
    args = make_arguments()
    fused = to_kernel(moe_ffn)
    print(fused.lower(*args))

    print("\nplain function and kernel, largest relative difference in float32")
    print(f"  output                   {relative_difference(moe_ffn(*args), fused(*args)):.1e}")
    (loss, grads), (fused_loss, fused_grads) = (loss_and_grad(f)(*args) for f in (moe_ffn, fused))
    print(f"  loss                     {relative_difference(loss, fused_loss):.1e}")
    for name, a, b in zip(("hidden_states", "topk_weights", "gate_up_weight", "down_weight"), grads, fused_grads,
                          strict=True):
        print(f"  gradient {name:<15} {relative_difference(a, b):.1e}")

    print("\nbest of 5 calls, ms         plain   fused")
    print(f"  forward                {milliseconds(moe_ffn, *args):>8.1f} {milliseconds(fused, *args):>7.1f}")
    print(f"  forward and backward   {milliseconds(loss_and_grad(moe_ffn), *args):>8.1f} "
          f"{milliseconds(loss_and_grad(fused), *args):>7.1f}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
