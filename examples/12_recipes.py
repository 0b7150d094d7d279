"""Recipes: layers that other models write, each a plain function, as a kernel beside the same function op by op.

    python examples/12_recipes.py

For each the largest difference of the output and of all gradients is printed, relative to the largest value, on two ranks.
Mixed precision is compared in float32, so that it differs by what bfloat16 rounds.
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import mint

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 2, 4, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_HEADS, SHARED_SIZE = 24, 16, 12, 4, 8
LOCAL_EXPERTS = NUM_EXPERTS // EP_SIZE

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def expert_choice(x, all_experts, scores, gate_up_weight, down_weight):
    """Experts choose tokens: each token offers itself to all experts, [T, E] ids and scores, and each expert keeps those of
    the largest scores, twice the mean number of tokens here."""
    rows, route = hpmoe.dispatch(x, all_experts, num_local_experts=gate_up_weight.shape[0], topk_weights=scores,
                                 capacity_factor=TOP_K / NUM_EXPERTS, drop_policy="probs")
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up_weight, route))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down_weight, route), route, scores)


def interleaved_gate_up(x, topk_ids, topk_weights, gate_up_weight, gate_up_bias, down_weight, down_bias):
    """gpt-oss: columns alternate between gate and up, both are clamped, and biases are added."""
    rows, route = hpmoe.dispatch(x, topk_ids, num_local_experts=gate_up_weight.shape[0])
    both = hpmoe.grouped_matmul(rows, gate_up_weight, route, bias=gate_up_bias)
    gate, up = both[:, ::2].clamp(max=7.0), both[:, 1::2].clamp(-7.0, 7.0)
    act = (up + 1) * (gate * mint.sigmoid(1.702 * gate))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down_weight, route, bias=down_bias), route, topk_weights)


def multi_head(x, topk_ids, topk_weights, in_weight, gate_up_weight, down_weight, out_weight):
    """Multi-head MoE: a token is cut into heads, each of which goes to experts of its own, [T * heads, K] ids."""
    heads = mint.matmul(x, in_weight).reshape(-1, HIDDEN_SIZE // NUM_HEADS)
    out = hpmoe.moe_ffn(heads, topk_ids, topk_weights, gate_up_weight, down_weight)
    return mint.matmul(out.reshape(-1, HIDDEN_SIZE), out_weight)


def mixed_precision(x, topk_ids, topk_weights, gate_up_weight, down_weight):
    """Master weights are float32, and so are their gradients; rows are sent, multiplied and kept in bfloat16."""
    half = (a.astype(ms.bfloat16) for a in (x, gate_up_weight, down_weight))
    rows, *weights = half
    return hpmoe.moe_ffn(rows, topk_ids, topk_weights, *weights).astype(ms.float32)


def replicated_weights(x, topk_ids, topk_weights, gate_up_weight, down_weight, shared_in, shared_out):
    """Every rank has the same weights of a shared expert: they are given once, and `spmd(in_axes=)` sums their gradients."""
    shared = mint.matmul(mint.nn.functional.silu(mint.matmul(x, shared_in)), shared_out)
    return hpmoe.moe_ffn(x, topk_ids, topk_weights, gate_up_weight, down_weight) + shared


rng = np.random.default_rng(0)


def normal(*shape):
    return ms.Tensor(rng.standard_normal(shape).astype(np.float32) / 2)


def routing(num_tokens):
    """Ids and weights of every rank's tokens."""
    ids = rng.random((EP_SIZE, num_tokens, NUM_EXPERTS)).argsort(-1)[..., :TOP_K].astype(np.int32)
    return ms.Tensor(ids), ms.Tensor(rng.dirichlet(np.ones(TOP_K), (EP_SIZE, num_tokens)).astype(np.float32))


def expert_weights(hidden, intermediate):
    return normal(EP_SIZE, LOCAL_EXPERTS, hidden, 2 * intermediate), normal(EP_SIZE, LOCAL_EXPERTS, intermediate, hidden)


def recipes():
    """Name, function and arguments of each, and the positions of what all ranks have together."""
    x, (gate_up, down) = normal(EP_SIZE, NUM_TOKENS, HIDDEN_SIZE), expert_weights(HIDDEN_SIZE, INTERMEDIATE_SIZE)
    ids, weights = routing(NUM_TOKENS)
    all_experts = ms.Tensor(np.tile(np.arange(NUM_EXPERTS, dtype=np.int32), (EP_SIZE, NUM_TOKENS, 1)))
    scores = mint.softmax(normal(EP_SIZE, NUM_TOKENS, NUM_EXPERTS), -1)
    biases = normal(EP_SIZE, LOCAL_EXPERTS, 2 * INTERMEDIATE_SIZE), normal(EP_SIZE, LOCAL_EXPERTS, HIDDEN_SIZE)
    square, shared = (HIDDEN_SIZE, HIDDEN_SIZE), (normal(HIDDEN_SIZE, SHARED_SIZE), normal(SHARED_SIZE, HIDDEN_SIZE))
    of_heads = expert_weights(HIDDEN_SIZE // NUM_HEADS, INTERMEDIATE_SIZE)
    return [("expert choice", expert_choice, (x, all_experts, scores, gate_up, down), ()),
            ("interleaved gate and up", interleaved_gate_up, (x, ids, weights, 4 * gate_up, biases[0], down, biases[1]), ()),
            ("multi-head", multi_head, (x, *routing(NUM_TOKENS * NUM_HEADS), normal(*square), *of_heads, normal(*square)),
             (3, 6)),
            ("mixed precision", mixed_precision, (x, ids, weights, gate_up, down), ()),
            ("replicated weights", replicated_weights, (x, ids, weights, gate_up, down, *shared), (5, 6))]


def value_and_grads(f, args, everywhere, cotangent):
    """The output of a layer on all ranks, and the gradient of every argument but the ids."""
    positions = tuple(i for i in range(len(args)) if i != 1)
    layer = hpmoe.spmd(f, hpmoe.Mesh(EP_SIZE), in_axes=tuple(None if i in everywhere else 0 for i in range(len(args))))

    def loss(*args):
        out = layer(*args)
        return (out * cotangent).sum(), out
    (_, out), grads = ms.value_and_grad(loss, positions, has_aux=True)(*args)
    return [out, *grads]


def difference(got, want):
    return max(np.abs((a - b).asnumpy()).max() / np.abs(b.asnumpy()).max() for a, b in zip(got, want, strict=True))


def main():
    for name, f, args, everywhere in recipes():
        plain = hpmoe.moe_ffn if f is mixed_precision else f
        cotangent = normal(*args[0].shape)
        got = value_and_grads(to_kernel(f), args, everywhere, cotangent)
        want = value_and_grads(plain, args, everywhere, cotangent)
        apart = difference(got, want)
        assert apart < (3e-2 if f is mixed_precision else 1e-5), f"{name}: {apart}"
        print(f"{name:<24} output and {len(got) - 1} gradients: {apart:.1e} apart")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
