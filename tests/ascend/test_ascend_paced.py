"""Puts of the Ascend kernel that wait for their turn on another rank's link, on its emulator."""

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import from_seed, npu
from helpers import Layer

import hpmoe
from hpmoe import assign_queues, fuse_persistent, overlap_comm, tile_partition
from hpmoe.tile_ops.params import Paced
from hpmoe.tiling.rebuild import rebuild

LAYER = Layer(ep=4, T=6, H=64, I=48, E=4, K=1)
ALWAYS = 2**31 - 1  # picoseconds for a row: those of the second slot wait for 9 ms


@hpmoe.transform(requires="tiles")
def at_pace(flow, *, row_ps):
    """A taskflow whose rows are put at a pace."""
    return rebuild(flow, tuple(op.replace(params=Paced(row_ps)) if isinstance(op.params, Paced) else op for op in flow.ops))


def run(row_ps, timeout, monkeypatch):
    """The layer's output, in float32, all of whose rows go to one expert."""
    from_seed(monkeypatch, 0)
    puts = at_pace(overlap_comm(tile_partition(hpmoe.moe_ffn, rows=4, cols=32)), row_ps=row_ps)
    queues = assign_queues(puts, machine=npu(1), policy="round_robin")
    fused = hpmoe.spmd(fuse_persistent(queues, target="ascend-emulator", timeout=timeout), LAYER.mesh)
    x, ids, *rest = LAYER.arguments()
    given = [ms.Tensor(a) for a in (x, np.zeros_like(ids), *rest)]
    found = fused(*(a if a.dtype == ms.int32 else a.astype(ms.bfloat16) for a in given), num_tokens=LAYER.num_tokens)
    return found.astype(ms.float32).asnumpy()


@pytest.mark.parametrize("row_ps", [1000, ALWAYS])
def test_results_are_the_same_bits(row_ps, monkeypatch):
    assert np.array_equal(run(row_ps, 100.0, monkeypatch), run(0, 100.0, monkeypatch))


def test_rows_that_are_held_back_are_waited_for(monkeypatch):
    """Waits last up to the timeout, and no put is held back for longer."""
    run(0, 0.004, monkeypatch)
    with pytest.raises(hpmoe.LaunchError, match="waited"):
        run(ALWAYS, 0.004, monkeypatch)
