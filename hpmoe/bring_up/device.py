"""Device: what checks run on, an NPU or its emulator, and what comes out beside NumPy in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.machines.machine import Machine, Mesh
from hpmoe.runtime.targets import find_target
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.trees import Function, PyTree

Arrays = Sequence[np.ndarray]
value_and_grad: Function = ms.value_and_grad  # whose annotations know no positions of arguments in a list
# Of the largest number of an array: half precision is rounded at every stored array, float32 at every addition.
TOLERANCE = {"bfloat16": 2e-2, "float16": 3e-3, "float32": 4e-6}
MARGIN = 1e-30  # below it a difference is none


class CheckFailed(Exception):
    """Raised if a check fails; the text says which value differs, where, and by how much."""


@dataclasses.dataclass(frozen=True)
class Device:
    """Device on which checks run."""

    target: str  # target of fuse_persistent
    machine: Machine  # what kernels are planned for
    num_ranks: int = 1  # ranks that there are
    rank: int | None = None  # this process's, where every rank is a process; None where all are of this one
    timeout: float = 60.0  # seconds without progress after which a launch fails
    is_small: bool = True  # whether sizes and repeat counts are small enough for an emulator to take only seconds

    def bind(self, f: Function, ranks: int = 1, tile: tuple[int, int] = (16, 32),
             before: Function | None = None, blocks: int = 1, nodes: int | None = None) -> Function:
        """Returns a function as one kernel of `blocks` blocks, after `before`: of a rank's tensors, or of all ranks' if they
        are of this process, in nodes of `nodes`."""
        machine = self.machine.replace(num_aic=blocks, num_aiv=2 * blocks)
        to_kernel = hpmoe.chain(before or hpmoe.chain(), hpmoe.tile_partition(rows=tile[0], cols=tile[1]),
                                hpmoe.overlap_comm, hpmoe.assign_queues(machine=machine),
                                hpmoe.fuse_persistent(target=self.target, timeout=self.timeout))
        kernel = to_kernel(f)
        return hpmoe.spmd(kernel, Mesh(ranks, nodes=nodes)) if ranks > 1 else kernel

    @property
    def most_ranks(self) -> int:
        """Ranks that a check can have: where several are of this process, more than there are."""
        return max(self.num_ranks, 4) if self.rank is None and self.num_ranks > 1 else self.num_ranks

    def mine(self, ranks: int) -> list[int]:
        """Returns the ranks of a mesh whose arrays belong to this process."""
        return list(range(ranks)) if self.rank is None or ranks == 1 else [self.rank]

    def tensors(self, inputs: Sequence[Arrays]) -> list[ms.Tensor]:
        """Returns the arguments of a call: of all ranks with a rank axis, or of this process's rank."""
        own = [inputs[r] for r in self.mine(len(inputs))]
        is_batched = len(inputs) > 1 and self.rank is None
        return [_tensor(np.stack(arrays) if is_batched else arrays[0]) for arrays in zip(*own, strict=True)]

    def split(self, tensor: ms.Tensor, ranks: int) -> list[np.ndarray]:
        """Returns the part of each rank of this process."""
        wide = tensor if tensor.dtype in (ms.int32, ms.int64) else tensor.astype(ms.float32)
        found = wide.asnumpy()
        return list(found) if ranks > 1 and self.rank is None else [found]

    def run(self, kernel: AnyIR, arrays: Arrays) -> list[np.ndarray]:
        """Launches an executable of one rank on its arrays; returns its outputs."""
        if not find_target(self.target).on_device:
            return [np.asarray(out).astype(np.float32) for out in kernel.run([arrays])[0]]
        (outputs,) = kernel.run([self.tensors([arrays])])
        hpmoe.ranks.synchronize()
        return [self.split(out, 1)[0] for out in outputs]

    def compare(self, f: Function, inputs: Sequence[Arrays], *, grads: bool = False, exact: bool = False,
                tolerance: float | None = None, **options: PyTree) -> float:
        """Runs a function of one rank's arrays, and its gradients, and returns the largest difference from NumPy in float64.

        With `grads` the gradients of a sum of the output with random weights are compared, too. Numbers must be equal if
        `exact`; otherwise `tolerance` is relative to the largest number of an array. `options` are those of `bind`. Raises
        CheckFailed if a number is farther off.
        """
        ranks = len(inputs)
        program = _program(f, inputs)
        kernel, tensors = self.bind(f, ranks, **options), self.tensors(inputs)
        allowed = 0.0 if exact else TOLERANCE[str(inputs[0][0].dtype)] if tolerance is None else tolerance
        if not grads:
            got = [self.split(kernel(*tensors), ranks)]
            want = [[outputs[0] for outputs in interpret(program, inputs, dtype="float64")]]
            return self._differs(["the output"], got, want, allowed)
        return self._compare_gradients(kernel, program, inputs, tensors, allowed)

    def _compare_gradients(self, kernel: Function, program: Program, inputs: Sequence[Arrays],
                           tensors: list[ms.Tensor], allowed: float) -> float:
        ranks, linearized = len(inputs), linearize(program)
        forward = interpret(linearized.forward, inputs, dtype="float64")
        rng, num_outputs = np.random.default_rng(7), len(program.outputs)
        dtype = inputs[0][0].dtype
        weights = [rng.standard_normal(outputs[0].shape).astype(dtype) for outputs in forward]
        cotangent = self.tensors([[w] for w in weights])[0]

        def loss(*given: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
            out = kernel(*given)
            return (out.astype(ms.float32) * cotangent.astype(ms.float32)).sum(), out

        (_, out), found = value_and_grad(loss, linearized.differentiable, has_aux=True)(*tensors)
        backward = [[*(mine[i] for i in linearized.kept_inputs), *outputs[num_outputs:], w]
                    for mine, outputs, w in zip(inputs, forward, weights, strict=True)]
        want = [[outputs[0] for outputs in forward],
                *map(list, zip(*interpret(linearized.backward, backward, dtype="float64"), strict=True))]
        names = ["the output", *(f"the gradient of {program.input_names[i]}" for i in linearized.differentiable)]
        grads = found if isinstance(found, tuple) else (found,)
        return self._differs(names, [self.split(x, ranks) for x in (out, *grads)], want, allowed)

    def _differs(self, names: Sequence[str], got: Sequence[Arrays], want: Sequence[Arrays], allowed: float) -> float:
        """Returns the largest difference relative to an array's largest number; `got` is of this process's ranks."""
        worst = 0.0
        for name, found, wanted in zip(names, got, want, strict=True):
            ranks = self.mine(len(wanted))
            for rank, a, b in zip(ranks, found, (wanted[r] for r in ranks), strict=True):
                off = np.abs(a - b)
                if not off.size:
                    continue
                at = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
                error = float(off[at]) / max(float(np.abs(b).max()), MARGIN)
                if not error <= allowed:
                    where = ", ".join(map(str, at))
                    raise CheckFailed(f"{name} of rank {rank} at [{where}] is {a[at]:g}, float64 has {b[at]:g}: off by "
                                      f"{error:.1e} of the largest, {allowed:.1e} is allowed")
                worst = max(worst, error)
        return worst


def _program(f: Function, inputs: Sequence[Arrays]) -> Program:
    return hpmoe.trace(f, *(hpmoe.ShapeDtypeStruct(a.shape, str(a.dtype)) for a in inputs[0]), mesh=Mesh(len(inputs)))


def _tensor(array: np.ndarray) -> ms.Tensor:
    if array.dtype in (np.int32, np.int8):
        return ms.Tensor(array)
    return ms.Tensor(array.astype(np.float32)).astype(getattr(ms, str(array.dtype)))


def random(rng: np.random.Generator, *shape: int, dtype: str = "bfloat16") -> np.ndarray:
    """Returns normal random numbers of a dtype that MindSpore has."""
    return rng.standard_normal(shape).astype(np.float32).astype(numpy_dtype(dtype))
