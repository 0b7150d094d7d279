"""Script of test_world.py on ranks that call a layer in compiled graphs and beside them, and wait for nothing: each graph
still runs when the next call begins, or when another one is compiled."""

import mindspore as ms
import numpy as np
from whole_lines import say

import hpmoe

mesh = hpmoe.world()
chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
layer = hpmoe.spmd(chain(hpmoe.moe_ffn), mesh)
rng = np.random.default_rng(mesh.rank)
E, LOCAL, W = 2 * mesh.ep, 2, 4


def loss(x, ids, scales, up, down):
    return (layer(x, ids, scales, up, down) ** 2).sum()


def tensor(*shape):
    return ms.Tensor(rng.standard_normal(shape).astype(np.float32))


in_graph, gradients = ms.jit(loss), ms.jit(ms.grad(loss, (0, 3)))
for step in range(8):
    T, H = 4 + 3 * (step % 3), 8 + 4 * (step % 2)
    ids = ms.Tensor(rng.random((T, E)).argsort(-1)[:, :2].astype(np.int32))
    args = (tensor(T, H), ids, tensor(T, 2), tensor(LOCAL, H, 2 * W), tensor(LOCAL, W, H))
    launched, eager = in_graph(*args), loss(*args)
    found = gradients(*args)
    total = hpmoe.all_reduce_gradients((args[0],), mesh)
    if step % 4 == 3:
        assert launched.asnumpy() == eager.asnumpy()
        for a, b in zip(found, ms.grad(loss, (0, 3))(*args), strict=True):
            assert a.asnumpy().tobytes() == b.asnumpy().tobytes()
say(f"rank {mesh.rank} ends")
