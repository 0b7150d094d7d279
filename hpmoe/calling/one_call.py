"""One call on MindSpore tensors: one run for all ranks, forward and backward, under MindSpore's autograd."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Tensor
from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor

from hpmoe.calling.planned_rows import routes_of
from hpmoe.calling.rank_arrays import Arrays, stacked, summed, to_arrays
from hpmoe.dtypes import rounded
from hpmoe.errors import ProgramError
from hpmoe.evaluate import evaluate
from hpmoe.interpret import interpret
from hpmoe.padding import padding_fault
from hpmoe.program import Program
from hpmoe.taskflow import Taskflow
from hpmoe.tracing.pynative import gradient_depth
from hpmoe.vjp import Linearized, linearize

if TYPE_CHECKING:
    from hpmoe.calling.running import Runner


class Traced:
    """What is known once the shapes of a call are: its Program, both directions, and the output tree."""

    def __init__(self, program: Program, out_tree: Any):
        self.program, self.out_tree = program, out_tree

    @functools.cached_property
    def linearized(self) -> Linearized:
        return linearize(self.program)

    @functools.cached_property
    def deciding(self) -> frozenset[int | None]:
        """The inputs that say where rows go: ids, and weights that decide what is dropped."""
        return frozenset(i for route in routes_of(self.program) for i in (route.ids, route.weights))

    def arrays_of(self, tensors: Iterable[Tensor]) -> list[np.ndarray]:
        """The inputs as arrays. Those that say where rows go are copies, as several steps of a call read them, up to its
        backward, and must read the same."""
        return [a.copy() if i in self.deciding else a for i, a in enumerate(to_arrays(tensors))]

    @functools.cached_property
    def padding_fault(self) -> tuple[int, str] | None:
        return padding_fault(self.program)


def run_ir(ir: Any, inputs: Arrays, num_tokens: Sequence[int] | None, seed: int | None,
           into: Mapping[int, Sequence[np.ndarray]] | None = None) -> Arrays:
    """Computes the outputs of all ranks: a Program and a Taskflow in NumPy, a kernel natively unless a seed is given.

    Where `into` has arrays of an output, one a rank, its values end up there.
    """
    outputs = _outputs(ir, inputs, num_tokens, seed, into or {})
    for j, arrays in (into or {}).items():
        for rank, array in enumerate(arrays):
            if not np.may_share_memory(outputs[rank][j], array):
                array[...] = outputs[rank][j]
    return outputs


def _outputs(ir: Any, inputs: Arrays, num_tokens: Sequence[int] | None, seed: int | None,
             into: Mapping[int, Sequence[np.ndarray]]) -> Arrays:
    if isinstance(ir, Program):
        return evaluate(ir, inputs, num_tokens)
    if isinstance(ir, Taskflow):
        return interpret(ir, inputs, num_tokens, seed)
    if seed is not None:
        return interpret(ir.flow, inputs, num_tokens, seed)
    return ir.run(inputs, num_tokens, into=into)


class Call:
    """One call: its arguments checked, the plans for its routing, forward and perhaps backward."""

    def __init__(self, runner: Runner, traced: Traced, lengths: tuple[int, ...] | None, seed: int | None):
        self.runner, self.traced, self.lengths, self.seed = runner, traced, lengths, seed
        self.num_args = len(traced.program.inputs) - len(traced.program.captures)

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        if not _pynative_executor.grad_flag():
            outputs = self.forward(self.traced.arrays_of(tensors), self.traced.program)
            return [Tensor.from_numpy(a) for a in self.results(outputs)]
        outputs = _Differentiable.apply(self, *tensors)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def forward(self, arrays: Sequence[np.ndarray], program: Program) -> Arrays:
        """What every rank computes of the program or of its linearized forward."""
        return self._launch(program, self.runner.per_rank(arrays, range(len(arrays)), self.num_args))

    def backward(self, kept: Sequence[np.ndarray], saved: Arrays,
                 cotangents: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """The gradients of the differentiable inputs, from the inputs that the backward reads and what the forward saved.

        None for one that is added to a main gradient instead.
        """
        lin = self.traced.linearized
        inputs = self.runner.per_rank(kept, lin.kept_inputs, self.num_args)
        outputs = self.traced.program.outputs
        cotangents = [rounded(g, outputs[i].aval.dtype) for i, g in zip(lin.cotangents, cotangents, strict=True)]
        mains = self._main_grads()
        arrays = [[*mine, *saved[r], *(g[r] if self.runner.batched else g for g in cotangents),
                   *(parts[r] for parts in mains.values())] for r, mine in enumerate(inputs)]
        columns = zip(*self._launch(lin.backward, arrays, mains), strict=True)
        return [None if j in mains else self._joined(parts) if i < self.num_args else summed(parts)
                for j, (i, parts) in enumerate(zip(lin.differentiable, columns, strict=True))]

    def _main_grads(self) -> dict[int, list[np.ndarray]]:
        """For each result of the backward that has a main gradient, that of each rank, sharing memory with the tensor."""
        program, mains = self.traced.program, {}
        for j, i in enumerate(self.traced.linearized.differentiable):
            if program.inputs[i] in program.main_grads:
                array = program.main_grads[program.inputs[i]].asnumpy()
                mains[j] = list(array) if self.runner.batched else [array]
        return mains

    def results(self, outputs: Arrays) -> list[np.ndarray]:
        """The program's own outputs, without saved values, as arrays of their declared dtypes."""
        dtypes = [a.aval.dtype for a in self.traced.program.outputs]
        return [self._joined([rounded(r[i], dtype) for r in outputs]) for i, dtype in enumerate(dtypes)]

    def second_derivative(self) -> ProgramError:
        """The error of a gradient of the gradient."""
        return ProgramError(f"{self.traced.program.name}: a gradient is taken of its gradient; backward kernels are "
                            "not differentiable, take second derivatives of the plain function")

    def _launch(self, program: Program, inputs: Arrays, into: Mapping[int, list[np.ndarray]] | None = None) -> Arrays:
        plan = self.runner.plan(program, self.runner.row_buckets(program, inputs, self.lengths))
        return run_ir(plan, inputs, self.lengths, self.seed, into)

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """One array from the ranks' arrays."""
        array = stacked(parts) if self.runner.batched else parts[0]
        return array if array.flags.c_contiguous else array.copy()


class _Differentiable(_Function):
    """Binds a call to MindSpore's autograd: its forward saves what its backward reads."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Any:
        lin = call.traced.linearized
        arrays = call.traced.arrays_of(tensors)
        outputs = call.forward(arrays, lin.forward)
        count = len(call.traced.program.outputs)
        ctx.call, ctx.num_tensors, ctx.saved = call, len(tensors), [r[count:] for r in outputs]
        ctx.kept = [arrays[i] for i in lin.kept_inputs]
        ctx.is_nested = gradient_depth() > 1
        results = tuple(Tensor.from_numpy(a) for a in call.results(outputs))
        return results if count != 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.is_nested:
            raise ctx.call.second_derivative()
        lin = ctx.call.traced.linearized
        out = ctx.call.backward(ctx.kept, ctx.saved, to_arrays(grads[i] for i in lin.cotangents))
        result: list[Tensor | None] = [None] * ctx.num_tensors
        for i, grad in zip(lin.differentiable, out, strict=True):
            result[i] = None if grad is None else Tensor.from_numpy(grad)
        return (None, *result)
