"""A script for msrun: MindSpore's world is up, each rank declares itself to be on a host of its own, and they find each
other by AllGather; a layer has the numbers of virtual ranks."""

import os

import mindspore as ms
import numpy as np
from mindspore import communication
from whole_lines import say

if os.environ["MS_ROLE"] == "MS_WORKER":
    communication.init("mccl")
    os.environ["HPMOE_NODE"] = os.environ["RANK_ID"]

import hpmoe
from hpmoe.ranks.gathered import all_gather

mesh = hpmoe.world()
assert all_gather("words", bytes([mesh.rank]) * (5 + mesh.rank)) == [bytes([r]) * (5 + r) for r in range(mesh.size)]
rng = np.random.default_rng(0)


def tensor(*shape):
    return ms.Tensor(rng.standard_normal((mesh.size, *shape)).astype(np.float32))


ids = ms.Tensor(rng.random((mesh.size, 8, 2 * mesh.size)).argsort(-1)[..., :2].astype(np.int32))
args = (tensor(8, 4), ids, tensor(8, 2), tensor(2, 4, 6), tensor(2, 3, 4))
f = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)(hpmoe.moe_ffn)
whole, mine = hpmoe.spmd(f, hpmoe.Mesh(mesh.size))(*args), hpmoe.spmd(f, mesh)(*(a[mesh.rank] for a in args))
assert mine.asnumpy().tobytes() == whole.asnumpy()[mesh.rank].tobytes()
say(f"rank {mesh.rank} has sent {mesh.link.traffic.rows} rows")
