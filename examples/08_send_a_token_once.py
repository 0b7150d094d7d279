"""Several of a token's experts on one rank: its row goes there once, and comes back as one sum.

    python examples/08_send_a_token_once.py

`send_rows` is a transform of the function, innermost in the chain; both passes are rewritten by it. It pays where
links are slow against the matmuls, between nodes above all, and costs time where they are not: the way back begins when a
rank's last expert of a token is done. A model of the machine tells which, and `hpmoe.autotune` compares both. The first part
runs a small layer on this CPU and compares numbers; the second one only simulates.
"""

import argparse

import mindspore as ms
import numpy as np

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 4, 16, 4
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 96, 32, 16

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def random_ids(rng, ep_size, num_tokens, num_experts, top_k):
    """Experts drawn at random, distinct for each token, of all ranks."""
    return rng.random((ep_size, num_tokens, num_experts)).argsort(-1)[..., :top_k].astype(np.int32)


def make_arguments(rng):
    """Arguments of moe_ffn for all ranks."""
    def normal(*shape):
        return ms.Tensor(rng.standard_normal((EP_SIZE, *shape)).astype(np.float32) / 4)
    local = NUM_EXPERTS // EP_SIZE
    return (normal(NUM_TOKENS, HIDDEN_SIZE), ms.Tensor(random_ids(rng, EP_SIZE, NUM_TOKENS, NUM_EXPERTS, TOP_K)),
            normal(NUM_TOKENS, TOP_K), normal(local, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
            normal(local, INTERMEDIATE_SIZE, HIDDEN_SIZE))


def distinct_ranks(topk_ids, local):
    """Ranks that have experts of a token, in the mean."""
    ranks = np.sort(topk_ids // local, axis=-1)
    return float((1 + (np.diff(ranks, axis=-1) > 0).sum(-1)).mean())


def show_numbers(args):
    """Output and gradients of the fused layer, with and without, against the plain function."""
    def run(f):
        def loss(*args):
            out = f(*args)
            return (out ** 2).mean(), out
        (_, out), grads = ms.value_and_grad(loss, (0, 2, 3, 4), has_aux=True)(*args)
        return [a.asnumpy() for a in (out, *grads)]
    mesh = hpmoe.Mesh(EP_SIZE)
    plain = run(hpmoe.spmd(hpmoe.moe_ffn, mesh))
    each, once, again = (run(hpmoe.spmd(to_kernel(f), mesh)) for f in (
        hpmoe.moe_ffn, hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), hpmoe.send_rows(hpmoe.moe_ffn,
                                                                                              scheme="deduplicated")))
    reached = distinct_ranks(args[1].asnumpy(), NUM_EXPERTS // EP_SIZE)
    print(f"{TOP_K} experts a token are on {reached:.2f} ranks of {EP_SIZE}")
    print("largest difference from the plain function, relative   a row for each expert   for each rank")
    names = ("output", "d hidden_states", "d topk_weights", "d gate_up_weight", "d down_weight")
    for name, want, a, b in zip(names, plain, each, once, strict=True):
        print(f"  {name:<52} {np.abs(a - want).max() / np.abs(want).max():21.1e}"
              f" {np.abs(b - want).max() / np.abs(want).max():15.1e}")
    print(f"two runs are the same bit for bit: {all((a == b).all() for a, b in zip(once, again, strict=True))}\n")


def show_simulated(rng):
    """Simulates the layer with ranks on a node each, on two nodes, and on one node."""
    ep_size, num_tokens, num_experts, top_k, hidden_size, intermediate_size = 8, 1024, 64, 8, 7168, 1024
    ids = random_ids(rng, ep_size, num_tokens, num_experts, top_k)
    local = num_experts // ep_size
    shapes = ((num_tokens, hidden_size), (num_tokens, top_k), (num_tokens, top_k),
              (local, hidden_size, 2 * intermediate_size), (local, intermediate_size, hidden_size))
    avals = [hpmoe.ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    print(f"simulated, {ep_size} ranks, {num_tokens} tokens each, {top_k} experts a token on "
          f"{distinct_ranks(ids, local):.2f} ranks; forward, ms")
    print("  nodes   a row for each expert   for each rank   autotune takes")
    for node_size in (1, 4, 8):
        machine = hpmoe.machines.ascend_a3.replace({"link.node_size": node_size})
        to_queues = hpmoe.chain(hpmoe.tile_partition(rows="auto", cols="auto", machine=machine),
                                hpmoe.overlap_comm(put_cols="auto", returns=2), hpmoe.assign_queues)
        each, once, tuned = (f.lower(*avals, mesh=hpmoe.Mesh(ep_size)) for f in (
            to_queues(hpmoe.moe_ffn), to_queues(hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated")),
            hpmoe.autotune(hpmoe.moe_ffn, machine=machine, topk_ids=ids, budget=6)))
        each_us, once_us = (hpmoe.simulate(flow, routing=ids).span for flow in (each, once))
        chosen = "for each rank" if "send_rows(scheme=deduplicated)" in tuned.provenance else "for each expert"
        print(f"  {ep_size // node_size:<7} {each_us / 1e3:21.2f} {once_us / 1e3:15.2f}   {chosen}")


def main():
    ms.runtime.launch_blocking()
    rng = np.random.default_rng(0)
    show_numbers(make_arguments(rng))
    show_simulated(rng)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
