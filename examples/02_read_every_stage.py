"""Read every stage: the text that each step of the chain makes, and the order of tasks, which must not matter.

    python examples/02_read_every_stage.py

`f.lower(*args)` returns the IR of a function at any stage, and `print` shows the IR. Lowering needs only shapes: arguments
are `hpmoe.ShapeDtypeStruct`s here, and no tensor is allocated. The last part runs the tile tasks in many random orders that
their events allow. Events must order every read after its write, so each order returns the same numbers, bit for bit.
"""

import argparse

import numpy as np

import hpmoe

EP_SIZE, NUM_TOKENS, HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_LOCAL_EXPERTS, TOP_K = 2, 12, 8, 6, 2, 2
SHAPES = {  # with the leading rank axis of hpmoe.spmd
    "hidden_states": hpmoe.ShapeDtypeStruct((EP_SIZE, NUM_TOKENS, HIDDEN_SIZE), "float32"),
    "topk_ids": hpmoe.ShapeDtypeStruct((EP_SIZE, NUM_TOKENS, TOP_K), "int32"),
    "topk_weights": hpmoe.ShapeDtypeStruct((EP_SIZE, NUM_TOKENS, TOP_K), "float32"),
    "gate_up_weight": hpmoe.ShapeDtypeStruct((EP_SIZE, NUM_LOCAL_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE), "float32"),
    "down_weight": hpmoe.ShapeDtypeStruct((EP_SIZE, NUM_LOCAL_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE), "float32"),
}


def make_stages(f):
    """The function after each transform, in the order of the chain."""
    tiled = hpmoe.tile_partition(f, rows=8, cols=8)
    overlapped = hpmoe.overlap_comm(tiled)
    queued = hpmoe.assign_queues(overlapped, machine=hpmoe.cpu(num_workers=2))
    return {
        "moe_ffn, traced": f,
        "tile_partition: operators are tile tasks now, ordered by events": tiled,
        "overlap_comm: the collectives are puts now; a consumer waits for its own rows only": overlapped,
        "assign_queues: every task has its place in a worker's queue; implied waits are gone": queued,
        "fuse_persistent: one image, one launch": hpmoe.fuse_persistent(queued),
    }


def lower(f, direction="forward"):
    """The IR of one rank, which all ranks share."""
    return hpmoe.spmd(f, hpmoe.Mesh(EP_SIZE)).lower(*SHAPES.values(), direction=direction)


def print_stages():
    for title, f in make_stages(hpmoe.moe_ffn).items():
        print(f"\n----- {title}\n{first_lines(str(lower(f)))}")
    print(f"\n----- the backward pass of moe_ffn is a program like any other\n{lower(hpmoe.moe_ffn, 'backward')}")


def first_lines(text, most=22):
    lines = text.splitlines()
    return "\n".join(lines if len(lines) <= most else [*lines[:most], f"    ... {len(lines) - most} more lines"])


def make_inputs(rng):
    """For each rank one array for each argument, as `hpmoe.interpret` and `hpmoe.interpret` take them."""
    arrays = {name: rng.standard_normal(a.shape).astype(np.float32) for name, a in SHAPES.items()}
    scores = rng.random((EP_SIZE, NUM_TOKENS, EP_SIZE * NUM_LOCAL_EXPERTS))
    arrays["topk_ids"] = np.argsort(scores, axis=-1)[..., :TOP_K].astype(np.int32)
    return [[a[rank] for a in arrays.values()] for rank in range(EP_SIZE)]


def outputs(run, ir, inputs, **options):
    """The output of every rank, in one array."""
    return np.stack([rank_outputs[0] for rank_outputs in run(ir, inputs, **options)])


def check_orders(num_orders=20):
    overlapped = hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn, rows=8, cols=8))
    program, flow = lower(hpmoe.moe_ffn), lower(overlapped)
    inputs = make_inputs(np.random.default_rng(0))
    expected, in_order = outputs(hpmoe.interpret, program, inputs), outputs(hpmoe.interpret, flow, inputs)
    equal = [np.array_equal(in_order, outputs(hpmoe.interpret, flow, inputs, seed=s)) for s in range(num_orders)]
    print(f"\n----- {flow.num_tasks} tasks on each of {flow.ep_size} ranks, in random legal orders\n"
          f"{sum(equal)} of {num_orders} orders gave the same result, bit for bit\n"
          f"largest difference from the program's value: {np.abs(in_order - expected).max():.1e}")


def main():
    print_stages()
    check_orders()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
