"""Capacity bounds the entries that an expert takes from a rank, and drops and counts the rest. Also a shared expert.

    python examples/07_capacity_and_shared_expert.py

With a `capacity_factor` an expert takes at most ceil(num_tokens * top_k / num_experts * capacity_factor) entries of each
rank, so that memory is bounded for any routing. `drop_policy` says what becomes of the rest: "error" raises,
"position" keeps the first tokens, "probs" those of the largest weights. A shared expert takes every token; on an NPU its
matmuls are what the matrix units compute while the first rows are still under way.
"""

import argparse

import mindspore as ms
import numpy as np

import hpmoe

EP_SIZE, NUM_EXPERTS, TOP_K = 2, 8, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, SHARED_SIZE = 96, 32, 16, 24

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)


def make_arguments(rng):
    """Arguments of moe_ffn for both ranks; low experts are chosen far more often, as natural text does it."""
    def normal(*shape):
        return ms.Tensor(rng.standard_normal((EP_SIZE, *shape)).astype(np.float32) / 4)
    scores = rng.gumbel(size=(EP_SIZE, NUM_TOKENS, NUM_EXPERTS)) - 1.2 * np.log(np.arange(1, NUM_EXPERTS + 1))
    topk_ids = np.argsort(-scores, axis=-1)[..., :TOP_K].astype(np.int32)
    topk_weights = rng.dirichlet(np.ones(TOP_K), (EP_SIZE, NUM_TOKENS)).astype(np.float32)
    local = NUM_EXPERTS // EP_SIZE
    return (normal(NUM_TOKENS, HIDDEN_SIZE), ms.Tensor(topk_ids), ms.Tensor(topk_weights),
            normal(local, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE), normal(local, INTERMEDIATE_SIZE, HIDDEN_SIZE),
            normal(HIDDEN_SIZE, 2 * SHARED_SIZE), normal(SHARED_SIZE, HIDDEN_SIZE))


def moe_with(**options):
    """moe_ffn with these options, as a layer of all ranks."""
    def moe(*args):
        return hpmoe.moe_ffn(*args, **options, return_drop_counts=True)
    return hpmoe.spmd(to_kernel(moe), hpmoe.Mesh(EP_SIZE))


def most_rows(args, **options):
    """The most received rows of a rank under any routing; a plan has buffers for this number of rows."""
    avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in args]
    flow = hpmoe.tile_partition(lambda *a: hpmoe.moe_ffn(*a, **options)).lower(*avals, mesh=hpmoe.Mesh(EP_SIZE))
    return flow.routes[0].max_rows


def show_policies(args):
    entries = EP_SIZE * NUM_TOKENS * TOP_K
    everything, _ = moe_with()(*args)
    print("capacity_factor  drop_policy  room for rows  dropped of each expert, rank 0       dropped  change of the output")
    for factor, policy in ((None, "error"), (2.0, "position"), (1.25, "position"), (1.25, "probs"), (0.5, "probs")):
        options = {"capacity_factor": factor, "drop_policy": policy}
        out, counts = moe_with(**options)(*args)
        change = np.linalg.norm((out - everything).asnumpy()) / np.linalg.norm(everything.asnumpy())
        counts = counts.asnumpy()
        print(f"{factor!s:<16} {policy:<12} {most_rows(args, **options):<14} {counts[0].tolist()!s:<36} "
              f"{counts.sum() / entries:7.1%}  {change:.3f}")
    try:
        moe_with(capacity_factor=1.25)(*args)
    except hpmoe.ArgumentError as error:
        print(f"\nthe default policy:\n  {error}\n")


def show_gradients(args):
    layer = moe_with(capacity_factor=1.25, drop_policy="position")

    def loss(topk_weights):
        out, counts = layer(*args[:2], topk_weights, *args[3:])
        return (out ** 2).sum(), counts

    (_, counts), grad = ms.value_and_grad(loss, has_aux=True)(args[2])
    print(f"entries dropped: {counts.asnumpy().sum()}; weights without a gradient: {(grad.asnumpy() == 0).sum()}")


def show_queues():
    """Plans one rank of a larger layer for an Ascend A3; planning needs shapes only."""
    sizes = [((2048, 1024), "float32"), ((2048, 4), "int32"), ((2048, 4), "float32"), ((8, 1024, 1024), "float32"),
             ((8, 512, 1024), "float32"), ((1024, 2048), "float32"), ((1024, 1024), "float32")]
    npu = hpmoe.machines.ascend_a3
    plan = hpmoe.chain(hpmoe.tile_partition(rows=npu.tile_rows, cols=npu.tile_cols), hpmoe.overlap_comm,
                       hpmoe.assign_queues(machine=npu))
    flow = plan(hpmoe.moe_ffn).lower(*(hpmoe.ShapeDtypeStruct(*s) for s in sizes), mesh=hpmoe.Mesh(4))
    labels = np.array([op.label for op in flow.ops])[flow.tasks["op"]]
    queues = [labels[flow.queues[q]] == "matmul" for q in flow.machine.queues_of("aic")]
    ahead = [int(np.argmin(is_shared)) for is_shared in queues]
    print(f"AIC queues that begin with the shared expert: {sum(n > 0 for n in ahead)} of {len(queues)}, "
          f"with {min(ahead)} to {max(ahead)} of its tiles before the first row from another rank is needed")


def main():
    ms.runtime.launch_blocking()
    args = make_arguments(np.random.default_rng(0))
    show_policies(args)
    show_gradients(args)
    show_queues()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
