"""A Program becomes a Taskflow: each equation by the `tile` rule of its primitive."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Machine
from hpmoe.primitives.tiler import Tiler
from hpmoe.tile_ops.params import Leg
from hpmoe.tiling.rebuild import rebuild
from hpmoe.tiling.row_parts import divide_rows

NO_TILES = "has no tile rule. Compute it outside the function and pass the result"
# Why some have none, and what computes the same.
NO_RULE = {
    "sort_indices": "mixes rows: it orders all tokens' choices. Write hpmoe.dispatch, or hpmoe.token_ops.exchange of "
                    "permuted rows by the same topk_ids, and hpmoe.token_ops.unpermute of the result of exchange_back",
    "permute": "mixes rows: it sorts rows by expert. Write hpmoe.dispatch, which does and sends them",
    "unpermute": "mixes rows: it brings rows back to tokens. Write hpmoe.combine",
    "expert_places": "mixes rows: it gives entries places of their experts. Write hpmoe.dispatch with a capacity_factor",
    "expert_counts": "mixes rows: it counts all tokens' choices. Write hpmoe.router.tokens_per_expert",
    "scatter": "has no tile rule: scatter is the gradient of x[ids] by x. Index x outside the function and pass the result",
    "exchange": "moves rows that hpmoe.token_ops.permute did not sort by the same topk_ids. Write hpmoe.dispatch",
    "exchange_back": "moves rows that hpmoe.token_ops.unpermute does not bring back by the same ids. Write hpmoe.combine",
}


def tile_program(program: Program, tile_rows: int, tile_cols: int, machine: Machine | None = None) -> tf.Taskflow:
    """Returns the Taskflow of a Program, with blocking collectives and no queues; `machine` is None for a CPU."""
    flow = tile_operations(program, tile_rows, tile_cols, machine)
    return rebuild(flow, flow.ops)


def tile_operations(program: Program, tile_rows: int, tile_cols: int, machine: Machine | None = None) -> tf.Taskflow:
    """Returns the operations, buffers and routes of the Taskflow of a Program, without tasks and their order."""
    tiler = Tiler(program, tile_rows, tile_cols, machine is None or machine.unified)
    for index, eqn in enumerate(program.equations):
        tiler.index = index
        if "tile" not in eqn.primitive.rules:
            tiler.refuse(NO_RULE.get(eqn.primitive.name, NO_TILES))
        eqn.primitive.rules["tile"](tiler, eqn)
        for var in eqn.outputs:
            tiler.check_made(var)
    outputs = tuple(tiler.output(a) for a in program.outputs)
    order = np.broadcast_to(np.arange(program.ep_size, dtype="i4"), (len(Leg), program.ep_size, program.ep_size))
    flow = tf.Taskflow(program.name, tile_rows, tiler.with_roles(outputs), tuple(tiler.ops), tuple(tiler.routes),
                       tuple(tiler.buffer_of[v] for v in program.inputs), outputs, order,
                       ep_size=program.ep_size, provenance=program.provenance, direction=program.direction)
    return flow if machine is None else flow.replace(ops=divide_rows(flow, tile_cols, machine))
