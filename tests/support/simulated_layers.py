"""A small NPU, plans of MoE layers to simulate on it, and layers of real sizes on an Ascend A3."""

from types import SimpleNamespace

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.autodiff.vjp import linearize
from hpmoe.commands.layer import Layer, ids_of
from hpmoe.runtime.planned_rows import PlannedRows, with_planned_rows

NPU = hpmoe.machines.ascend_a3.replace(num_aic=3, num_aiv=5)


def plan(ep=2, T=256, H=256, I=128, E=8, K=2, direction="forward", machine=NPU, dtype="bfloat16",  # noqa: E741
         max_rows=None, make=None, **comm):
    args = [ShapeDtypeStruct((T, H), dtype), ShapeDtypeStruct((T, K), "int32"), ShapeDtypeStruct((T, K), "float32"),
            ShapeDtypeStruct((E // ep, H, 2 * I), dtype),
            ShapeDtypeStruct((E // ep, I, H), dtype)]
    lin = linearize(hpmoe.trace(hpmoe.moe_ffn, *args, mesh=Mesh(ep)))
    program = lin.forward if direction == "forward" else lin.backward
    tiled = hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256)
    staged = make(tiled) if make else hpmoe.assign_queues(hpmoe.overlap_comm(tiled, **comm), machine=machine)
    return staged.apply(program if max_rows is None else with_planned_rows(program, [PlannedRows(max_rows, max_rows)]))


def layer(direction="forward", ep=4, tokens=4096, imbalance=1.0, tuned=True, replicas=0, machine=hpmoe.machines.ascend_a3,
          **sizes):
    o = SimpleNamespace(**{"hidden": 7168, "intermediate": 2048, "top_k": 8, "experts": 8 * ep, **sizes}, ep=ep,
                        tokens=tokens, dtype="bfloat16")
    return Layer(o, direction, machine, ids_of(o, imbalance), replicas, tuned)
