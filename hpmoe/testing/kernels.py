"""Kernels of a transform under test: chains that begin with it or lead to it are completed by the default transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from hpmoe.ir.program import Program
from hpmoe.machines.machine import Mesh
from hpmoe.machines.presets import cpu
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.running import Runner
from hpmoe.runtime.staged import Staged
from hpmoe.runtime.staged_function import StagedFunction, staged_of
from hpmoe.runtime.transform import Chain, chain
from hpmoe.support.errors import TransformError, check_argument
from hpmoe.transforms.assign_queues import assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import overlap_comm
from hpmoe.transforms.tile_partition import tile_partition

TIMEOUT = 10.0  # seconds without progress, after which a launch is given up


def applied(transform: Callable[..., Any], f: Callable[..., Any], tiles: Chain) -> Any:
    """The function under a transform of any level, after the default transforms of the levels below it.

    Raises TransformError where it applies at no level.
    """
    error = None
    for start in (chain(), tiles, chain(tiles, overlap_comm, assign_queues(machine=cpu(2)))):
        try:
            staged = transform(start(f))
        except TransformError as other:
            error = error or other
            continue
        check_argument(isinstance(staged, StagedFunction) or staged is f, "hpmoe.testing", "what the transform returns",
                       f"a {type(staged).__name__}", "the staged function of a transform made by hpmoe.transform, or a chain")
        check_argument(not staged_of(staged).is_on_device, "hpmoe.testing", "the target of the transform",
                       "a device of its own", "\"cpu\" or \"ascend-twin\"")
        return staged
    raise error


def completed(staged: Any, tiles: Chain) -> StagedFunction:
    """The kernel of a function that is staged so far."""
    known = staged_of(staged)
    names = {stage.rewrite.__name__ for stage in known.stages}
    rest = {"program": [tiles], "tiles": [], "queues": None, "kernel": None}[known.level]
    if rest is not None:
        rest += [] if names & {"overlap_comm", "launch_kernels"} else [overlap_comm]
        rest.append(assign_queues(machine=cpu(2)))
    fuse = [] if known.level == "kernel" else [fuse_persistent(timeout=TIMEOUT)]
    return chain(*(rest or []), *fuse)(staged)


def small_tiles(program: Program) -> Chain:
    """tile_partition with tiles of a third of the rows and half of the columns that there are, so that there are several."""
    shapes = [v.aval.shape for v in program.inputs if len(getattr(v.aval, "shape", ())) > 1]
    rows = max((-(-s[0] // 3) for s in shapes if len(s) == 2), default=1)
    cols = max((-(-s[-1] // 2) for s in shapes), default=1)
    return chain(tile_partition(rows=max(1, rows), cols=max(1, cols)))


class Runs:
    """Runs a function at any stage, and its gradients, without MindSpore's autograd, whose errors would hide its own."""

    def __init__(self, staged: Staged, mesh: Mesh | None):
        self._runner, self._is_batched = Runner(staged, mesh or Mesh(), batched=mesh is not None), mesh is not None

    def forward(self, args: Sequence[Any], num_tokens: Sequence[int] | None, seed: int | None) -> list[list[np.ndarray]]:
        """Each result, of each rank, of a call of which no gradient is taken."""
        call, tensors = self._runner.prepare(args, {}, num_tokens, seed)
        return [self._of_ranks(x) for x in self._runner.backend.compute(call, [*tensors, *call.traced.program.captures])]

    def both(self, args: Sequence[Any], cotangents: Sequence[Tensor], num_tokens: Sequence[int] | None,
             seed: int | None) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
        """Each result and each gradient, of each rank; that of an argument with a main gradient is what it grows by."""
        call, tensors = self._runner.prepare(args, {}, num_tokens, seed)
        program, lin, num_args = call.traced.program, call.traced.linearized, call.traced.num_args
        outs, saved = self._runner.backend.forward(call, [*tensors, *program.captures])
        mains = [program.main_grads.get(program.inputs[i]) for i in lin.differentiable]
        before = [None if main is None else main.asnumpy().copy() for main in mains]
        grads = self._runner.backend.backward(call, saved, cotangents)
        arrays = [main.asnumpy() - old if grad is None else to_array(grad)
                  for grad, main, old in zip(grads, mains, before, strict=True)]
        return [self._of_ranks(x) for x in outs], list(self._parts(arrays, [i < num_args for i in lin.differentiable]))

    def _of_ranks(self, tensor: Tensor) -> list[np.ndarray]:
        return list(to_array(tensor)) if self._is_batched else [to_array(tensor)]

    def _parts(self, arrays: Sequence[np.ndarray], is_split: Sequence[bool]) -> Iterator[list[np.ndarray]]:
        """Of each array that of each rank; all have the same of what is not split."""
        ranks = self._runner.plans.mesh.ep_size
        for array, split in zip(arrays, is_split, strict=True):
            yield list(array) if split and self._is_batched else [array] * ranks
