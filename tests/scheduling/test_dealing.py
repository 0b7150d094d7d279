"""Puts with rows are dealt out evenly, also where every second put of a slot has rows and the workers' number is even."""

import numpy as np

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.scheduling.workers import rows_of_puts

MACHINE = hpmoe.machines.ascend_a3


def layer(policy):
    avals = [ShapeDtypeStruct(shape, dtype) for shape, dtype in (
        ((512, 7168), "bfloat16"), ((512, 4), "int32"), ((512, 4), "float32"), ((1, 7168, 4096), "bfloat16"),
        ((1, 2048, 7168), "bfloat16"))]
    f = hpmoe.quantize_rows(hpmoe.moe_ffn, combine=True)
    tiles = hpmoe.overlap_comm(hpmoe.tile_partition(f, machine=MACHINE))
    return hpmoe.assign_queues(tiles, policy=policy).lower(*avals, mesh=hpmoe.Mesh(32))


def test_no_worker_has_most_of_the_rows():
    flow = layer("critical_path")
    rows = rows_of_puts(flow)
    of_workers = np.array([rows[tasks].sum() for tasks in flow.queues[MACHINE.num_aic:]])
    assert np.isclose(of_workers.sum(), rows.sum()) and of_workers.max() <= rows.sum() / 16
    assert hpmoe.simulate(flow).span <= 1.1 * hpmoe.simulate(layer("round_robin")).span
