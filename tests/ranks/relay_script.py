"""Schemes of sending rows on ranks of declared hosts: outputs and gradients of virtual ranks, bit for bit, and at the links
the bytes of the formulas. Argument: the ranks of a host."""

import sys

import mindspore as ms
import numpy as np
from crossings import across_nodes, bytes_between
from whole_lines import say

import hpmoe

NODE = int(sys.argv[1])
mesh = hpmoe.world()
mesh = hpmoe.world(nodes=mesh.size // NODE)
virtual = hpmoe.Mesh(mesh.size, nodes=mesh.nodes)
T, H, W, K, LOCAL = 40, 16, 8, 6, 4
rng = np.random.default_rng(0)


def tensor(*shape):
    return ms.Tensor(rng.standard_normal((mesh.size, *shape)).astype(np.float32))


ids = rng.random((mesh.size, T, LOCAL * mesh.size)).argsort(-1)[..., :K].astype(np.int32)
ids[rng.random(ids.shape) < 0.1] = -1
args = (tensor(T, H), ms.Tensor(ids), tensor(T, K), tensor(LOCAL, H, 2 * W), tensor(LOCAL, W, H))


def results(f, mesh, args):
    """The output, then gradients, one after the other."""
    layer = hpmoe.spmd(f, mesh)
    yield [layer(*args)]
    yield ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2, 3, 4))(*args)


for scheme in ("direct", "deduplicated", "hierarchical", "hierarchical+deduplicated"):
    f = hpmoe.chain(hpmoe.send_rows(scheme=scheme), hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues,
                    hpmoe.fuse_persistent)(hpmoe.moe_ffn)
    own, sent = results(f, mesh, tuple(a[mesh.rank] for a in args)), []
    for whole in results(f, virtual, args):
        before = mesh.link.traffic.row_bytes
        for a, b in zip(next(own), whole, strict=True):
            assert a.asnumpy().tobytes() == b.asnumpy()[mesh.rank].tobytes(), scheme
        sent.append(mesh.link.traffic.row_bytes - before)
    forward, backward = (across_nodes(b, NODE)[mesh.rank] for b in bytes_between(scheme, ids, LOCAL, NODE, 4 * H))
    assert sent == [forward, forward + backward], (scheme, sent)
    say(f"rank {mesh.rank} {scheme}: {sent}")
report = mesh.report().splitlines()
assert len(report) == 2 * mesh.size + 4 and report[mesh.size + 2] == "sent to other hosts"
say(f"rank {mesh.rank}: {report[-1].split()[-1]} bytes of the last rank's rows")
