"""Script of test_world.py on ranks that train for long: uneven and empty ranks, the same numbers whenever a step comes
again, and memory, threads and open files that do not grow. By hand: hpmoe launch -n 4 tests/ranks/soak_script.py 3000"""

import hashlib
import os
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from whole_lines import say

import hpmoe

STEPS, KINDS, MOST, H, INNER = int(sys.argv[1]), 10, 24, 16, 8
mesh = hpmoe.world()
E, LOCAL = 2 * mesh.ep, 2
chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
layer = hpmoe.spmd(chain(hpmoe.moe_ffn), mesh)


def tensor(rng, *shape):
    return ms.Tensor(rng.standard_normal(shape).astype(np.float32))


def loss(x, ids, scales, up, down, num_tokens):
    return (layer(x, ids, scales, up, down, num_tokens=num_tokens) ** 2).sum()


step_of = ms.value_and_grad(loss, (0, 2, 3, 4))


def run(kind):
    """A step of a kind: how many tokens each rank has, and to which experts they go; what all results are, as a digest."""
    rng = np.random.default_rng([kind, mesh.rank])
    num_tokens = 0 if (mesh.rank + kind) % 4 == 0 else int(rng.integers(MOST + 1))
    hot = 1 if kind % 3 == 0 else E  # of every third kind all tokens go to one rank
    ids = rng.random((MOST, E)).argsort(-1)[:, :2] if hot == E else np.tile([0, 1], (MOST, 1))
    args = (tensor(rng, MOST, H), ms.Tensor(ids.astype(np.int32)), tensor(rng, MOST, 2), tensor(rng, LOCAL, H, 2 * INNER),
            tensor(rng, LOCAL, INNER, H))
    value, grads = step_of(*args, num_tokens)
    value = hpmoe.all_reduce_gradients(value, mesh)
    return hashlib.sha256(b"".join(np.ascontiguousarray(t.asnumpy()).tobytes() for t in (value, *grads))).hexdigest()


def held():
    """MiB of this process and of the largest heap that it maps, threads, and open files."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    files = [path for path in Path("/proc/self/fd").iterdir() if path.exists()]
    heap = max((path.stat().st_blocks for path in files if "memfd:hpmoe" in os.readlink(path)), default=0) / 2048
    return int(status["VmRSS"].split()[0]) / 1024, heap, int(status["Threads"]), len(files)


began, digests, before = time.monotonic(), {}, None
for step in range(STEPS):
    kind = step % KINDS
    found = run(kind)
    assert digests.setdefault(kind, found) == found, (step, kind)
    if step == max(STEPS // 4, 2 * KINDS):
        before = held()
after = held()
say(f"rank {mesh.rank}: {STEPS} steps, {1e3 * (time.monotonic() - began) / STEPS:.1f} ms each; MiB, heap, threads, files: "
    f"{', '.join(f'{x:.0f}' for x in before)} -> {', '.join(f'{x:.0f}' for x in after)}")
grown = [b - a for a, b in zip(before, after, strict=True)]
assert grown[0] < 16 and grown[1] < 4 and grown[2] <= 2 and grown[3] <= 0, (before, after)
say(f"rank {mesh.rank} holds no more than before")
