"""Kernels of a transform under test: chains that begin with it or lead to it are completed by the default transforms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import fixed
from hpmoe.ir.program import Program
from hpmoe.machines.machine import Mesh
from hpmoe.machines.this_cpu import cpu
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.running import Runner
from hpmoe.runtime.staged import Staged
from hpmoe.runtime.staged_function import StagedFunction, staged_of
from hpmoe.runtime.transform import Chain, chain
from hpmoe.support.errors import TransformError, check_argument
from hpmoe.support.known import known
from hpmoe.support.trees import Function, PyTree
from hpmoe.testing.reference import gradient_name
from hpmoe.transforms.assign_queues import assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import overlap_comm
from hpmoe.transforms.tile_partition import tile_partition

TIMEOUT = 10.0  # seconds without progress, after which a launch is given up


def applied(transform: Function, f: Function, tiles: Chain) -> Function:
    """Returns the function under a transform of any level, after the default transforms of the levels below it.

    Raises TransformError where it applies at no level.
    """
    error: TransformError | None = None
    for start in (chain(), tiles, chain(tiles, overlap_comm, assign_queues(machine=cpu(2)))):
        try:
            staged = transform(start(f))
        except TransformError as other:
            error = error or other
            continue
        check_argument(isinstance(staged, StagedFunction) or staged is f, "hpmoe.testing", "what the transform returns",
                       f"a {type(staged).__name__}", "a staged function, as what hpmoe.transform makes does")
        check_argument(not staged_of(staged).is_on_device, "hpmoe.testing", "the target of the transform",
                       "a device of its own", "\"cpu\" or \"ascend-emulator\"")
        return staged
    raise known(error)


def completed(staged: Function, tiles: Chain) -> StagedFunction:
    """Returns the kernel of a function that is staged so far."""
    known = staged_of(staged)
    names = {step.rewrite.__name__ for step in known.steps}
    rest: list[Function] | None = {"program": [tiles], "tiles": [], "queues": None, "kernel": None}[known.level]
    if rest is not None:
        rest += [] if names & {"overlap_comm", "launch_kernels"} else [overlap_comm]
        rest.append(assign_queues(machine=cpu(2)))
    fuse = [] if known.level == "kernel" else [fuse_persistent(timeout=TIMEOUT)]
    return chain(*(rest or []), *fuse)(staged)


def small_tiles(program: Program) -> Chain:
    """Returns tile_partition with a third of the rows and half of the columns, so that there are several tiles."""
    shapes = [fixed(v.aval.shape) for v in program.inputs if len(getattr(v.aval, "shape", ())) > 1]
    rows = max((-(-s[0] // 3) for s in shapes if len(s) == 2), default=1)
    cols = max((-(-s[-1] // 2) for s in shapes), default=1)
    return chain(tile_partition(rows=max(1, rows), cols=max(1, cols)))


class Runs:
    """Runs a function at any stage, and its gradients, without MindSpore's autograd, whose errors would hide its own."""

    def __init__(self, staged: Staged, mesh: Mesh | None):
        self.is_batched = mesh is not None  # whether arrays have a leading rank axis
        self._runner = Runner(staged, mesh or Mesh(), batched=self.is_batched)

    def forward(self, args: Sequence[PyTree], num_tokens: Sequence[int] | None, seed: int | None) -> list[list[np.ndarray]]:
        """Returns each result of each rank, of a call without gradients; with a seed by the interpreter."""
        call, tensors = self._runner.prepare(args, {}, num_tokens, seed)
        program = call.traced.program
        outs, _ = self._runner.backend.forward(call, [*tensors, *program.captures], saves=False)
        return self._of_ranks(outs[:program.num_results])

    def both(self, args: Sequence[PyTree], cotangents: Sequence[Tensor], num_tokens: Sequence[int] | None,
             seed: int | None) -> tuple[list[str], list[list[np.ndarray]]]:
        """Returns the names of gradients, and the results and gradients of each rank.

        The gradient of an argument with a main gradient is what that grows by; frozen arguments have none.
        """
        call, tensors = self._runner.prepare(args, {}, num_tokens, seed)
        program, lin = call.traced.program, call.traced.linearized
        outs, saved = self._runner.backend.forward(call, [*tensors, *program.captures], saves=True)
        mains = [program.main_grads.get(program.inputs[i]) for i in lin.differentiable]
        before = [None if main is None else main.asnumpy().copy() for main in mains]
        found = self._runner.backend.backward(call, saved, cotangents)
        grads = [known(main).asnumpy() - old if grad is None else to_array(grad)
                 for grad, main, old in zip(found, mains, before, strict=True)]
        is_split = [self.is_batched and i < call.traced.num_args for i in lin.differentiable]
        parts = [list(a) if split else [a] * program.ep_size for a, split in zip(grads, is_split, strict=True)]
        return [gradient_name(program, i) for i in lin.differentiable], [*self._of_ranks(outs[:program.num_results]), *parts]

    def _of_ranks(self, tensors: Sequence[Tensor]) -> list[list[np.ndarray]]:
        return [list(to_array(x)) if self.is_batched else [to_array(x)] for x in tensors]
