"""Schemes of sending rows on ranks of declared hosts: outputs and gradients of virtual ranks, bit for bit, and at the links
the bytes of the formulas. Argument: the ranks of a host."""

import sys

import mindspore as ms
import numpy as np
from crossings import across_nodes, bytes_between
from whole_lines import say

import hpmoe

NODE = int(sys.argv[1])
mesh = hpmoe.world(node_size=NODE)
virtual = hpmoe.Mesh(mesh.size, node_size=NODE)
T, H, W, K, LOCAL = 40, 16, 8, 6, 4
rng = np.random.default_rng(0)


def tensor(*shape):
    return ms.Tensor(rng.standard_normal((mesh.size, *shape)).astype(np.float32))


ids = rng.random((mesh.size, T, LOCAL * mesh.size)).argsort(-1)[..., :K].astype(np.int32)
ids[rng.random(ids.shape) < 0.1] = -1
args = (tensor(T, H), ms.Tensor(ids), tensor(T, K), tensor(LOCAL, H, 2 * W), tensor(LOCAL, W, H))


def passes(f, mesh, args):
    """(output, gradients), each after the other, as arrays, and after each what was sent."""
    layer = hpmoe.spmd(f, mesh)
    out, back = ms.vjp(lambda *floats: layer(floats[0], args[1], *floats[1:]), args[0], *args[2:])
    yield [out.asnumpy()]
    yield [gradient.asnumpy() for gradient in back(out)]


for scheme in ("direct", "rank", "node", "rank and node"):
    f = hpmoe.chain(hpmoe.send_rows(scheme=scheme), hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues,
                    hpmoe.fuse_persistent)(hpmoe.moe_ffn)
    own, sent = passes(f, mesh, tuple(a[mesh.rank] for a in args)), []
    for whole in passes(f, virtual, args):
        before = mesh.link.traffic.row_bytes
        for a, b in zip(next(own), whole, strict=True):
            assert a.tobytes() == b[mesh.rank].tobytes(), scheme
        sent.append(mesh.link.traffic.row_bytes - before)
    if scheme != "rank and node":
        wanted = bytes_between(scheme, ids, LOCAL, NODE, 4 * H)
        assert sent == [across_nodes(b, NODE)[mesh.rank] for b in wanted], (scheme, sent)
    say(f"rank {mesh.rank} {scheme}: {sent}")
report = mesh.report().splitlines()
assert len(report) == 2 * mesh.size + 4 and report[mesh.size + 2] == "sent to other hosts"
say(f"rank {mesh.rank}: {report[-1].split()[-1]} bytes of the last rank's rows")
