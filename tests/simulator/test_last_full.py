"""The bound by the last full slot that a link brings: no order is below it, and it is what a count by hand says."""

import numpy as np
import pytest

import hpmoe
from hpmoe import ShapeDtypeStruct, assign_queues, overlap_comm, tile_partition
from hpmoe.costs.bound import rank_bounds
from hpmoe.routing.skewed import skewed_ids

EP, T, K, HIDDEN, INTER = 4, 31, 2, 512, 256
MACHINE = hpmoe.machines.ascend_a3.replace({"link.bytes_per_us": 1e3}, num_aic=4, num_aiv=8)
SHAPES = (T, HIDDEN), (T, K), (T, K), (1, HIDDEN, 2 * INTER), (1, INTER, HIDDEN)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("routing", ["uniform", "hot"])
def test_no_order_is_below_it(routing, direction):
    ids = skewed_ids(routing, EP, T, K, EP)
    tiles = overlap_comm(tile_partition(hpmoe.moe_ffn, rows=16, cols=128), put_cols=256)
    avals = [ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(SHAPES)]
    spans, rng = [], np.random.default_rng(0)

    def anyhow(flow):
        return rng.random(flow.num_tasks)

    for i in range(12):
        queues = assign_queues(tiles, machine=MACHINE, priority=anyhow if i else None)
        flow = queues.lower(*avals, mesh=hpmoe.Mesh(EP), direction=direction)
        spans.append(hpmoe.simulate(flow, routing=ids).span)
    least = max(b.last for b in rank_bounds(flow, MACHINE, ids))
    assert min(spans) >= least - 0.002
    assert least > 50  # of a link that takes 100 us and more, half of it for what goes back
