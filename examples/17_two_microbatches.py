"""Two microbatches in one function: the shared expert of one is computed while the rows of the other are under way.

    python examples/17_two_microbatches.py

DualPipe's idea inside a layer. The function calls the layer twice, on the halves of a rank's tokens; tiles of both are tasks
of one schedule and one launch, so nothing has to be split into streams by hand. It serves where microbatches are there
anyway: tiles of a single call overlap already, and one of all tokens reads each weight once. The first part runs a small
layer on this CPU, forward and backward, and compares it with the plain function. The second one only simulates.
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import mint

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 2, 8, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 48, 32, 16


def layer(x, topk_ids, topk_weights, gate_up, down, shared_up, shared_down):
    """Routed experts, and one that all tokens go to."""
    gate, up = mint.split(x @ shared_up, shared_up.shape[1] // 2, dim=-1)
    shared = (mint.nn.functional.silu(gate) * up) @ shared_down
    return shared + hpmoe.moe_ffn(x, topk_ids, topk_weights, gate_up, down)


def two_microbatches(x, ids, weights, other_x, other_ids, other_weights, *experts):
    return layer(x, ids, weights, *experts), layer(other_x, other_ids, other_weights, *experts)


def to_kernel(f, machine=None):
    return hpmoe.chain(hpmoe.tile_partition(rows="auto", cols="auto", machine=machine),
                       hpmoe.overlap_comm(put_cols="auto", returns=2), hpmoe.assign_queues)(f)


def make_arguments(rng):
    """Arguments of two_microbatches for all ranks."""
    def normal(*shape):
        return ms.Tensor(rng.standard_normal((EP_SIZE, *shape)).astype(np.float32) / 4)
    def microbatch():
        ids = rng.random((EP_SIZE, NUM_TOKENS, NUM_EXPERTS)).argsort(-1)[..., :TOP_K]
        return normal(NUM_TOKENS, HIDDEN_SIZE), ms.Tensor(ids.astype(np.int32)), normal(NUM_TOKENS, TOP_K)
    local, h, i = NUM_EXPERTS // EP_SIZE, HIDDEN_SIZE, INTERMEDIATE_SIZE
    return (*microbatch(), *microbatch(), normal(local, h, 2 * i), normal(local, i, h), normal(h, 2 * i), normal(i, h))


def show_numbers(args):
    """Outputs and gradients of one launch each way, against the plain function."""
    def run(f):
        def loss(*args):
            first, second = f(*args)
            return (first ** 2).mean() + (second ** 2).mean(), first, second
        (_, *outs), grads = ms.value_and_grad(loss, (0, 2, 3, 5, 6, 7, 8, 9), has_aux=True)(*args)
        return [a.asnumpy() for a in (*outs, *grads)]
    mesh = hpmoe.Mesh(EP_SIZE)
    plain = run(hpmoe.spmd(two_microbatches, mesh))
    fused = run(hpmoe.spmd(hpmoe.fuse_persistent(to_kernel(two_microbatches)), mesh))
    apart = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(plain, fused, strict=True))
    print(f"on this CPU, {EP_SIZE} ranks: 2 outputs and 8 gradients differ from the plain function by at most {apart:.1e}\n")
    assert apart < 1e-4


def simulated_us(f, num_microbatches, tokens, ep_size=16, experts=128, top_k=8, hidden=7168, intermediate=2048):
    """Returns simulated microseconds of one forward launch on an Ascend A3 with balanced routing."""
    local, machine = experts // ep_size, hpmoe.machines.ascend_a3
    shapes = [((tokens, hidden), "bfloat16"), ((tokens, top_k), "int32"), ((tokens, top_k), "float32")] * num_microbatches
    shapes += [((local, hidden, 2 * intermediate), "bfloat16"), ((local, intermediate, hidden), "bfloat16"),
               ((hidden, 2 * intermediate), "bfloat16"), ((intermediate, hidden), "bfloat16")]
    staged = hpmoe.spmd(to_kernel(f, machine), hpmoe.Mesh(ep_size))
    flow = staged.lower(*(hpmoe.ShapeDtypeStruct((ep_size, *shape), dtype) for shape, dtype in shapes))
    return machine.host.launch_us + hpmoe.simulate(flow).span


def show_simulated():
    tokens = 384
    one, both = simulated_us(layer, 1, tokens), simulated_us(two_microbatches, 2, tokens)
    undivided = simulated_us(layer, 1, 2 * tokens)
    print(f"simulated, 16 ranks, {tokens} tokens in a microbatch, forward")
    print(f"  two launches, one after the other   {2 * one:7.0f} us")
    print(f"  both microbatches in one launch     {both:7.0f} us, {2 * one / both:.2f} times as fast")
    print(f"  all tokens in one call of the layer {undivided:7.0f} us, {2 * one / undivided:.2f} times as fast")


def main():
    ms.runtime.launch_blocking()
    show_numbers(make_arguments(np.random.default_rng(0)))
    show_simulated()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
