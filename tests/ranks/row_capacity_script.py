"""Script of three ranks for test_world.py: rank 2 is sent more rows than its capacity; all ranks print the error."""

import mindspore as ms
import numpy as np
from whole_lines import say

import hpmoe

mesh = hpmoe.world()
to_kernel = hpmoe.chain(hpmoe.limit_rows(rank_capacity_factor=1.5), hpmoe.tile_partition, hpmoe.overlap_comm,
                        hpmoe.assign_queues, hpmoe.fuse_persistent)
layer = hpmoe.spmd(to_kernel(hpmoe.moe_ffn), mesh)
x, weights = ms.Tensor(np.ones((4, 8), np.float32)), ms.Tensor(np.ones((4, 1), np.float32))
up, down = ms.Tensor(np.ones((1, 8, 4), np.float32)), ms.Tensor(np.ones((1, 2, 8), np.float32))
even, hot = (ms.Tensor(np.full((4, 1), expert, np.int32)) for expert in (mesh.rank, 2))
want = layer(x, even, weights, up, down).asnumpy()
for _ in range(3):
    try:
        layer(x, hot, weights, up, down)
    except hpmoe.ArgumentError as error:
        say(f"rank {mesh.rank} told {error}")
    assert (layer(x, even, weights, up, down).asnumpy() == want).all()
