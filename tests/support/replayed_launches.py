"""A script for `hpmoe launch`: the launches of virtual ranks, forward and backward, again by one process for each rank.

Arguments: how many times each; how the last rank ends: "well", "killed" or "failed"; what carries messages to other hosts.
"""

import os
import signal
import sys
import time

import mindspore as ms
import numpy as np
from noted_launches import counts_of, noted_launches

import hpmoe
from hpmoe.kernels.link import Link
from hpmoe.ranks.hosts import meet_all
from hpmoe.ranks.launchers import find_launched
from hpmoe.support.errors import LaunchError

TOKENS, HIDDEN, INNER, TOP_K = 37, 32, 24, 2
LAYERS = {
    "plain": [],
    "once to a rank": [hpmoe.send_rows(scheme="deduplicated")],
    "quantised": [hpmoe.quantize_rows(dtype="mxfp8", combine=True, backward="quantized"),
                  hpmoe.quantize_weights(dtype="mxfp8")],
    "int8 weights": [hpmoe.quantize_rows, hpmoe.quantize_weights(row_dtype="int8", backward="quantized")],
    "bounded": [],
}


def recorded(ep_size):
    """Kernels, and what virtual ranks launch them with: inputs, lengths and outputs."""
    rng = np.random.default_rng(0)

    def tensor(*shape):
        return ms.Tensor(rng.standard_normal(shape), ms.float32)

    num_experts = 4 * ep_size
    ids = rng.random((ep_size, TOKENS, num_experts)).argsort(-1)[..., :TOP_K]
    args = (tensor(ep_size, TOKENS, HIDDEN), ms.Tensor(ids, ms.int32), tensor(ep_size, TOKENS, TOP_K),
            tensor(ep_size, 4, HIDDEN, 2 * INNER), tensor(ep_size, 4, INNER, HIDDEN))
    with noted_launches() as launches:
        run_layers(args, ep_size)
    return launches


def run_layers(args, ep_size):
    for name, first in LAYERS.items():
        to_kernel = hpmoe.chain(*first, hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues,
                                hpmoe.fuse_persistent)
        options = {"capacity_factor": 0.7, "drop_policy": "position"} if name == "bounded" else {}
        layer = hpmoe.spmd(to_kernel(lambda *a, options=options: hpmoe.moe_ffn(*a, **options)), hpmoe.Mesh(ep=ep_size))
        for lengths in (None, [TOKENS if r % 2 else 0 for r in range(ep_size)]):
            call = {} if lengths is None else {"num_tokens": lengths}
            ms.grad(lambda *a, layer=layer, call=call: (layer(*a, **call) ** 2).sum(), (0, 2, 3, 4))(*args)


def main():
    times, end, engine = int(sys.argv[1]), sys.argv[2], (sys.argv[3:] or ["tcp"])[0]
    launched = find_launched()
    rank, size = launched.rank, launched.size
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    launches = recorded(size)
    link = Link(meet_all(launched, [f"rank {r}" for r in range(size)], 60.0)[1], engine=engine)
    for executable, inputs, lengths, outputs in launches:
        counts = counts_of(executable, inputs, lengths)
        for _ in range(times):
            found = executable.run_rank(link, inputs[rank], counts, lengths)
            assert all(np.array_equal(a, b) for a, b in zip(found, outputs[rank], strict=True)), executable
    parts = [np.random.default_rng(r).standard_normal(1001).astype(np.float32) for r in range(size)]
    (total,) = link.sum([parts[rank]])
    assert np.array_equal(total, sum(parts)), "sums are in the order of ranks"
    print(f"rank {rank}: {len(launches)} kernels are equal; {link.traffic}", flush=True)
    executable, inputs, lengths, _ = launches[0]
    counts = counts_of(executable, inputs, lengths)
    if end == "well":
        return
    if end == "killed" and rank == size - 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        with link.calling("a step"):
            if rank == size - 1:
                raise ValueError("no tokens")
            executable.run_rank(link, inputs[rank], counts, lengths)
    except (LaunchError, ValueError) as error:
        print(f"rank {rank} after {time.monotonic() - began:.1f} s: {error}", flush=True)
    if end == "failed":
        found = executable.run_rank(link, inputs[rank], counts, lengths)
        assert all(np.array_equal(a, b) for a, b in zip(found, launches[0][3][rank], strict=True)), executable
        print(f"rank {rank} goes on", flush=True)


main()
