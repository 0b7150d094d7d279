"""Ranks are processes: one script, started as one process or as several, trains a layer and prints the same losses.

    python examples/11_ranks_are_processes.py
    hpmoe launch -n 4 examples/11_ranks_are_processes.py

`hpmoe.world()` is a mesh of which each process is one rank. Here every rank takes its share of the experts and of the
tokens of a step; under `hpmoe.spmd` arrays have no rank axis. Rows travel through memory that the processes share. The
gradient of an expert is whole where it lives; that of the router, which all have, is summed by one call. msrun, mpirun
and srun start it, too.
"""

import argparse

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn

import hpmoe

NUM_EXPERTS, TOP_K, NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 8, 2, 256, 32, 64
NUM_STEPS, LEARNING_RATE = 20, 0.01

mesh = hpmoe.world()
to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def routed(x, router, gate_up_weight, down_weight):
    """The function of one rank: it chooses experts, of which it holds a few."""
    ids, weights = hpmoe.route(x @ router, TOP_K)
    return hpmoe.moe_ffn(x, ids, weights, gate_up_weight, down_weight)


layer = hpmoe.spmd(to_kernel(routed), mesh, in_axes=(0, None, 0, 0))


def share(array):
    """This rank's part of what all have together."""
    return ms.Tensor(np.split(array, mesh.ep)[mesh.ep_rank])


def make_parameters(rng):
    """Makes Parameters that do not depend on the number of ranks: each rank samples all and keeps its own."""
    def normal(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)
    router = Parameter(ms.Tensor(normal(HIDDEN_SIZE, NUM_EXPERTS)), name="router")
    experts = [Parameter(share(normal(NUM_EXPERTS, *shape)), name=name) for name, shape in
               (("gate_up_weight", (HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE)), ("down_weight", (INTERMEDIATE_SIZE, HIDDEN_SIZE)))]
    return [router, *experts], normal(HIDDEN_SIZE, HIDDEN_SIZE)


def main():
    rng = np.random.default_rng(0)
    parameters, teacher = make_parameters(rng)
    optimizer = nn.Adam(parameters, LEARNING_RATE)

    def loss_of(x, target):
        return ((layer(x, *parameters) - target) ** 2).sum() / (NUM_TOKENS * HIDDEN_SIZE)

    step = ms.value_and_grad(loss_of, None, parameters)
    for i in range(NUM_STEPS):
        batch = rng.standard_normal((NUM_TOKENS, HIDDEN_SIZE)).astype(np.float32)
        loss, (router_grad, *expert_grads) = step(share(batch), share(np.tanh(batch @ teacher)))
        loss, router_grad = hpmoe.all_reduce_gradients((loss, router_grad), mesh)
        optimizer((router_grad, *expert_grads))
        if mesh.rank == 0 and i % 5 == 4:
            print(f"step {i:2}: loss {float(loss):.5f} ")
    report = mesh.report()  # all ask together
    if mesh.rank == 0:
        print(report)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
