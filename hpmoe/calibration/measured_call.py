"""A MoE-FFN layer of given sizes and routing as a call on this CPU, for its runs to be measured."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import mindspore as ms
import numpy as np
from absl import flags

import hpmoe
from hpmoe.routing.workload import layer_inputs
from hpmoe.runtime.array_backend import ArrayBackend
from hpmoe.runtime.rank_arrays import to_arrays
from hpmoe.runtime.running import Runner
from hpmoe.support.trees import Function, PyTree


def measured_call(o: SimpleNamespace | flags.FlagValues, machine: hpmoe.Machine, ids: np.ndarray,
                  policy: str = "critical_path", f: Function = hpmoe.moe_ffn, **comm: str) -> Callable[[], PyTree]:
    """Returns a call of the layer on this CPU with tiles and sizes of the flags: forward, or both passes, a launch each.

    Nothing of MindSpore runs in it, whose threads keep cores busy for a while after they had something to do.
    """
    rows, cols = (getattr(o, n, None) or getattr(machine, n) for n in ("tile_rows", "tile_cols"))
    staged = hpmoe.overlap_comm(hpmoe.tile_partition(f, rows=rows, cols=cols), **comm)
    staged = hpmoe.fuse_persistent(hpmoe.assign_queues(staged, machine=machine, policy=policy))
    args, cotangent = layer_inputs(o)
    args = (args[0], ms.Tensor(ids), *args[2:])
    runner = Runner(staged.staged, hpmoe.Mesh(o.ep), batched=True)
    (call, tensors), backend = runner.prepare(args, {}), ArrayBackend(runner.plans)
    arrays, d_out = to_arrays(tensors), to_arrays([cotangent])
    if o.direction == "forward":
        return lambda: backend.run(call, call.traced.program, arrays)
    lin = call.traced.linearized
    kept = [arrays[i] for i in lin.kept_inputs]

    def both() -> PyTree:
        outputs = backend.run(call, lin.forward, arrays)
        return backend.gradients(call, kept, [rank[len(call.traced.program.outputs):] for rank in outputs], d_out)
    return both
