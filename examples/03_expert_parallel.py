"""Expert parallel: four ranks, ranks with fewer tokens and with none, and routing that changes from call to call.

    python examples/03_expert_parallel.py

`hpmoe.spmd` runs a per-rank function on the virtual ranks of a mesh, in this process: every array has a leading rank
axis. Rank r holds experts r * E_local .. (r + 1) * E_local - 1 and its own tokens; rows travel inside the one launch.
A plan depends on shapes and on how many rows the fullest rank may receive, not on the routing: `cache_info()` shows
that new routings find their plan ready.
"""

import argparse

import mindspore as ms
import numpy as np

import hpmoe

EP_SIZE, NUM_LOCAL_EXPERTS, TOP_K = 4, 2, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 64, 64, 32
TOKENS_OF_RANK = (64, 40, 0, 7)  # rows beyond are padding

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def make_tensors(rng):
    def normal(*shape):
        return ms.Tensor(rng.standard_normal((EP_SIZE, *shape)).astype(np.float32) / 8)
    return (normal(NUM_TOKENS, HIDDEN_SIZE), normal(NUM_LOCAL_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
            normal(NUM_LOCAL_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE))


def make_routing(rng, favourite=None):
    """Random distinct experts for each token; a `favourite` expert is the first choice of every token."""
    num_experts = EP_SIZE * NUM_LOCAL_EXPERTS
    scores = rng.random((EP_SIZE, NUM_TOKENS, num_experts))
    if favourite is not None:
        scores[..., favourite] = 2.0
    topk_ids = np.argsort(-scores, axis=-1)[..., :TOP_K].astype(np.int32)
    return ms.Tensor(topk_ids), ms.Tensor(rng.dirichlet(np.ones(TOP_K), (EP_SIZE, NUM_TOKENS)).astype(np.float32))


def dense_moe(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    """Computes the layer in NumPy without ranks: every token through every expert, then the weighted sum."""
    x, ids, weights = hidden_states.asnumpy(), topk_ids.asnumpy(), topk_weights.asnumpy()
    up, down = gate_up_weight.asnumpy(), down_weight.asnumpy()
    gate, linear = np.split(np.einsum("rth,eho->rteo", x, up.reshape(-1, *up.shape[2:])), 2, axis=-1)
    every = np.einsum("rtei,eih->rteh", gate / (1 + np.exp(-gate)) * linear, down.reshape(-1, *down.shape[2:]))
    chosen = np.take_along_axis(every, ids[..., None], axis=2)
    out = (chosen * weights[..., None]).sum(axis=2)
    for rank, n in enumerate(TOKENS_OF_RANK):
        out[rank, n:] = 0.0
    return out


def received_rows(topk_ids):
    """Returns the number of rows that each rank receives."""
    chosen = [ids[:n].reshape(-1) for ids, n in zip(topk_ids.asnumpy(), TOKENS_OF_RANK, strict=True)]
    return np.bincount(np.concatenate(chosen) // NUM_LOCAL_EXPERTS, minlength=EP_SIZE).tolist()


def relative_difference(expected, tensor):
    """The largest difference, measured by the largest value."""
    return np.abs(tensor.asnumpy() - expected).max() / np.abs(expected).max()


def main():
    ms.runtime.launch_blocking()
    rng = np.random.default_rng(0)
    hidden_states, gate_up_weight, down_weight = make_tensors(rng)
    layer = hpmoe.spmd(to_kernel(hpmoe.moe_ffn), hpmoe.Mesh(EP_SIZE))

    print(f"{EP_SIZE} ranks with {', '.join(map(str, TOKENS_OF_RANK))} tokens\n")
    print("call  routing     rows received by each rank  relative to NumPy  plans made  plans reused")
    routings = [("random", None)] * 4 + [("all like 5", 5), ("all like 0", 0)]
    for call, (name, favourite) in enumerate(routings):
        topk_ids, topk_weights = make_routing(rng, favourite)
        args = (hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight)
        out = layer(*args, num_tokens=TOKENS_OF_RANK)
        plans = layer.cache_info()
        difference = relative_difference(dense_moe(*args), out)
        print(f"{call:<5} {name:<11} {str(received_rows(topk_ids)):<27} {difference:<18.1e} {plans.misses:<11} "
              f"{plans.hits}")

    grads = ms.grad(lambda *a: (layer(*a, num_tokens=TOKENS_OF_RANK) ** 2).sum(), grad_position=(0, 3, 4))(*args)
    names = ("hidden_states", "gate_up_weight", "down_weight")
    print("\nlargest gradient on each rank; no token of rank 2 took part, its experts did")
    for name, grad in zip(names, grads, strict=True):
        print(f"  {name:<15}" + "".join(f"{np.abs(part).max():10.4f}" for part in grad.asnumpy()))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
