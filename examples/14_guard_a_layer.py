"""Guards: a layer counts NaN, infinities and values out of a range, replaces them, and pays little for the look.

    python examples/14_guard_a_layer.py --tokens=2048 --repeats=15

The layer meets a token with a NaN first. Then it is timed beside the same layer without a guard, in turn. How much longer it
takes is the median over pairs of calls; on a machine that does other things, that is less exact than the share of the time
inside tasks that the guard's own tasks take, each at its fastest.
"""

import argparse
import collections
import statistics
import time

import mindspore as ms
import numpy as np

import hpmoe

HIDDEN_SIZE, INTERMEDIATE_SIZE, NUM_EXPERTS, TOP_K = 1024, 512, 16, 4

to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.assign_queues, hpmoe.fuse_persistent)


def make_args(num_tokens, dtype):
    rng = np.random.default_rng(0)

    def normal(*shape, scale=1.0):
        return ms.Tensor(scale * rng.standard_normal(shape), ms.float32).astype(dtype)
    return (normal(num_tokens, HIDDEN_SIZE),
            ms.Tensor(np.argsort(rng.random((num_tokens, NUM_EXPERTS)))[:, :TOP_K].astype(np.int32)),
            ms.Tensor(rng.dirichlet(np.ones(TOP_K), num_tokens).astype(np.float32)),
            normal(NUM_EXPERTS, HIDDEN_SIZE, 2 * INTERMEDIATE_SIZE, scale=HIDDEN_SIZE ** -0.5),
            normal(NUM_EXPERTS, INTERMEDIATE_SIZE, HIDDEN_SIZE, scale=INTERMEDIATE_SIZE ** -0.5))


def show_counts(args):
    """A NaN in one token, replaced by zero: every other token has what it had."""
    counts = {}
    guarded = to_kernel(hpmoe.guard_values(hpmoe.moe_ffn, fill="zero", counts=counts))
    hidden_states = args[0].asnumpy().copy()
    hidden_states[1, 7] = np.nan
    found, clean = guarded(ms.Tensor(hidden_states), *args[1:]).asnumpy(), to_kernel(hpmoe.moe_ffn)(*args).asnumpy()
    differ = np.flatnonzero((found != clean).any(axis=-1)).tolist()
    print(f"found {counts}; finite everywhere: {np.isfinite(found).all()}; tokens that differ: {differ}")


def passes(layer):
    """Forward, and forward with all gradients."""
    grads = ms.grad(lambda *args: layer(*args).astype(ms.float32).sum(), (0, 2, 3, 4))
    return {"forward": layer, "forward + backward": grads}


def seconds(call, args):
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin


def ratio(guarded, plain, args, repeats):
    """The median over pairs of calls; either goes first in half of them."""
    ratios = []
    for i in range(repeats):
        order = (guarded, plain) if i % 2 else (plain, guarded)
        took = {call: seconds(call, args) for call in order}
        ratios.append(took[guarded] / took[plain])
    return statistics.median(ratios)


def time_by_opcode(call, args, repeats):
    """Time inside tasks, each at its fastest."""
    runs = [hpmoe.measure(call, *args)[1] for _ in range(repeats)]
    total = collections.Counter()
    for launches in zip(*runs, strict=True):
        took = np.min([line.end - line.begin for line in launches], axis=0)
        flow = launches[0].flow
        for op, us in zip(flow.tasks["op"][launches[0].task], took, strict=True):
            total[flow.ops[op].opcode] += us
    return total


def share(guarded, plain, args, repeats):
    """Returns the share of guards in the time inside tasks; a task that also sums rows counts with its extra time."""
    took, without = (time_by_opcode(call, args, repeats) for call in (guarded, plain))
    added = sum(us for opcode, us in took.items() if opcode not in without)
    sums = without["REDUCE"] - took["REDUCE"] if "REDUCE_AND_FILL" in took else 0.0
    return (added - sums) / took.total()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3, help="pairs of timed calls")
    options = parser.parse_args()
    show_counts(make_args(options.tokens, ms.float32))
    plain = passes(to_kernel(hpmoe.moe_ffn))
    for dtype in (ms.float32, ms.bfloat16):
        args = make_args(options.tokens, dtype)
        for fill in ("raise", "zero", "mean"):
            for name, call in passes(to_kernel(hpmoe.guard_values(hpmoe.moe_ffn, fill=fill))).items():
                for warm_up in (call, plain[name]):
                    warm_up(*args)
                slower, part = (f(call, plain[name], args, options.repeats) for f in (ratio, share))
                print(f"{str(dtype).lower():<9} {fill:<6} {name:<19} {slower:6.3f} of the time, "
                      f"guards {part:6.2%} of that in tasks")


if __name__ == "__main__":
    main()
