"""Your own transform: one for programs, one for tile tasks, an order of destinations and a queue policy, all short.

    python examples/05_your_own_transform.py

A transform is a function IR -> IR under `@hpmoe.transform`; the result is checked and verified after it like after
any other. `fold_scale` rewrites a program, `retile` a taskflow. An order and a policy are plain functions that a
built-in transform takes. The example puts all four into one chain on four ranks and shows what each changed, and that
the numbers did not.
"""

import argparse
import collections

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.rewriting import map_equations, rebuild
from hpmoe.rewriting.primitives import combine, mul

EP_SIZE, NUM_LOCAL_EXPERTS, TOP_K = 4, 2, 2
NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE = 96, 64, 48
WORKERS = hpmoe.cpu(num_workers=2)


@hpmoe.transform(requires="program")
def fold_scale(program):
    """mul (combine rows route weights) scale -> combine rows route (mul weights scale): [T, K] products, not [T, H]."""
    readers = collections.Counter(a for e in program.equations for a in e.inputs) + collections.Counter(program.outputs)

    def rule(builder, eqn):
        made_by = {v: e for e in builder.equations for v in e.outputs}
        for x, scale in (eqn.inputs, eqn.inputs[::-1]) if eqn.primitive is mul else ():
            source = made_by.get(x)
            if source and source.primitive is combine and len(source.inputs) == 3 and readers[x] == 1 \
                    and scale.aval.shape in ((), (x.aval.shape[0], 1)):
                rows, route, weights = source.inputs
                out = builder.add(combine, rows, route, builder.add(mul, weights, scale))
                readers[out] = readers[eqn.outputs[0]]
                return [out]
        return None
    return map_equations(program, rule)


@hpmoe.transform(requires="tiles")
def retile(flow, *, opcode, cols):
    """Column tiles of another width for the operations of one kind; their events follow from the new tiles."""
    return rebuild(flow, tuple(op.replace(tile_cols=cols) if op.opcode == opcode else op for op in flow.ops))


def farthest_first(rank, ep_size):
    """Start with the rank half a ring away, and end with this one."""
    return sorted(range(ep_size), key=lambda peer: -min((peer - rank) % ep_size, (rank - peer) % ep_size))


def keep_slots_together(flow, machine):
    """A worker takes all tasks of its slots, in program order: their rows stay in its cache, and few waits are left."""
    return [np.flatnonzero(flow.tasks["row"] % machine.num_queues == q) for q in range(machine.num_queues)]


def scaled_moe(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight):
    """A layer whose result is scaled by a constant, as in DeepSeek-V3's routed_scaling_factor."""
    return 2.5 * hpmoe.moe_ffn(hidden_states, topk_ids, topk_weights, gate_up_weight, down_weight)


def make_arguments():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return ms.Tensor((rng.standard_normal((EP_SIZE, *shape)) / 8).astype(np.float32))

    scores = rng.random((EP_SIZE, NUM_TOKENS, EP_SIZE * NUM_LOCAL_EXPERTS))
    topk_ids = ms.Tensor(np.argsort(scores, axis=-1)[..., :TOP_K].astype(np.int32))
    return (normal(NUM_TOKENS, HIDDEN_SIZE), topk_ids, normal(NUM_TOKENS, TOP_K),
            normal(NUM_LOCAL_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE),
            normal(NUM_LOCAL_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE))


def on_ranks(f):
    return hpmoe.spmd(f, hpmoe.Mesh(EP_SIZE))


# The four transforms of the chain with everything of this file in its place.
my_chain = hpmoe.chain(
    fold_scale, hpmoe.tile_partition(rows=32, cols=64), retile(opcode="GMM", cols=32),
    hpmoe.overlap_comm(order=farthest_first), hpmoe.assign_queues(machine=WORKERS, policy=keep_slots_together),
    hpmoe.fuse_persistent)


def output_and_grads(f, args):
    grads = ms.grad(lambda *a: (on_ranks(f)(*a) ** 2).sum(), grad_position=(0, 2, 3, 4))(*args)
    return [x.asnumpy() for x in (on_ranks(f)(*args), *grads)]


def show_transforms(args):
    print(f"{on_ranks(scaled_moe).lower(*args)}\n\n{on_ranks(fold_scale(scaled_moe)).lower(*args)}")

    tiled = hpmoe.tile_partition(scaled_moe, rows=32, cols=64)
    for f in (tiled, retile(tiled, opcode="GMM", cols=32)):
        flow = on_ranks(f).lower(*args)
        print(f"\n{flow.provenance[-1]}: {flow.num_tasks} tasks, {len(flow.deps.events)} events")


def show_functions(args):
    print("\norder of destinations, one row for each rank")
    for order in ("ratr", farthest_first):
        flow = on_ranks(hpmoe.overlap_comm(hpmoe.tile_partition(scaled_moe), order=order)).lower(*args)
        print(f"  {getattr(order, '__name__', order):<20} {flow.peer_orders[0].tolist()}")

    print("\nqueue policies: waits that their order leaves to make")
    overlapped = hpmoe.overlap_comm(hpmoe.tile_partition(scaled_moe, rows=32, cols=32))
    before = len(on_ranks(overlapped).lower(*args).deps.waits)
    for policy in ("critical_path", "round_robin", keep_slots_together):
        flow = on_ranks(hpmoe.assign_queues(overlapped, machine=WORKERS, policy=policy)).lower(*args)
        print(f"  {getattr(policy, '__name__', policy):<20} {len(flow.deps.waits):>4} of {before}")


def main():
    ms.runtime.launch_blocking()
    args = make_arguments()
    show_transforms(args)
    show_functions(args)
    plain, mine = output_and_grads(scaled_moe, args), output_and_grads(my_chain(scaled_moe), args)
    difference = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(plain, mine, strict=True))
    print("\n" + " | ".join(on_ranks(my_chain(scaled_moe)).lower(*args).provenance))
    print(f"output and four gradients, largest relative difference from the reference: {difference:.1e}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
