"""Running functions on a device of this process: tensors stay where they are, and nobody waits for what is launched.

The ranks of a mesh are processes then, and each brings its own tensors, without a rank axis. As no host looks at the ids,
every plan is one for as many received rows as there can be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import Tensor
from mindspore.common._grad_function import _Function
from mindspore.graph.api import _pynative_executor

from hpmoe.avals import Aval
from hpmoe.calling.one_call import Call, Traced
from hpmoe.calling.planned_rows import PlannedRows
from hpmoe.calling.running import Runner
from hpmoe.errors import check_argument, is_int
from hpmoe.machine import Mesh
from hpmoe.program import Program
from hpmoe.targets import find_target
from hpmoe.tracing.pynative import gradient_depth


def make_runner(function: Callable[..., Any], mesh: Mesh, batched: bool) -> Runner:
    """The runner of a function, plain or staged: on the device that its kernel is bound for, or on arrays of all ranks."""
    return (DeviceRunner if is_on_device(function) else functools.partial(Runner, batched=batched))(function, mesh)


def is_on_device(function: Callable[..., Any]) -> bool:
    """Whether a callable ends in a kernel for a device of its own."""
    target = getattr(function, "options", {}).get("target")
    return getattr(function, "level", None) == "kernel" and target is not None and find_target(target).on_device


def in_dtype(tensor: Tensor, name: str) -> Tensor:
    """The tensor, converted where it is of another dtype."""
    dtype = getattr(mindspore, "bool_" if name == "bool" else name)
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)


class DeviceRunner(Runner):
    """Calls a function as one rank of a mesh whose ranks are processes."""

    def __init__(self, function: Callable[..., Any], mesh: Mesh):
        super().__init__(function, mesh, batched=False)

    def make_call(self, traced: Traced, lengths: tuple[int, ...] | None, seed: int | None) -> Call:
        name = traced.program.name
        check_argument(seed is None, f"{name}.interpret", "target", "a device, which is one rank of several", "\"cpu\"")
        for i, atom in enumerate(traced.program.outputs):
            check_argument(all(isinstance(d, int) for d in atom.aval.shape), name, f"output {i}", atom.aval,
                           "of a shape that is known before the launch", "Return received rows through hpmoe.combine.")
        return DeviceCall(self, traced, lengths, seed)

    def planned(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Traced, None, dict[Any, PlannedRows]]:
        traced = self._trace(self._parameters.flatten(args, kwargs))
        return traced, None, self.any_rows(traced.program)

    def _lengths(self, tensors: Sequence[Tensor | Aval], num_tokens: Any) -> tuple[int, ...] | None:
        """This rank's own number, as a tuple of one."""
        if num_tokens is None:
            return None
        check_argument(is_int(num_tokens, least=0), "spmd", "num_tokens", num_tokens,
                       "an int that is not negative, this rank's own")
        return (int(num_tokens),)


class DeviceCall(Call):
    """One call of this rank."""

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        if not _pynative_executor.grad_flag():
            return self.launch(self.traced.program, tensors)
        outputs = _Differentiable.apply(self, *tensors)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def launch(self, program: Program, tensors: Sequence[Tensor], into: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        """The outputs of a program, once the stream has come to them; those in `into` end up there."""
        kernel = self.runner.plan(program, self.runner.any_rows(program))
        outputs = kernel.launch_here(tensors, self.lengths and self.lengths[0], into or {})
        return [in_dtype(x, atom.aval.dtype) for x, atom in zip(outputs, program.outputs, strict=True)]

    def main_grads(self) -> dict[int, Tensor]:
        """For each result of the backward that has one, its main gradient."""
        program = self.traced.program
        wanted = enumerate(self.traced.linearized.differentiable)
        return {j: program.main_grads[program.inputs[i]] for j, i in wanted if program.inputs[i] in program.main_grads}


class _Differentiable(_Function):
    """Binds a call to MindSpore's autograd: what its backward reads stays on the device."""

    @staticmethod
    def forward(ctx: Any, call: DeviceCall, *tensors: Tensor) -> Any:
        lin = call.traced.linearized
        outputs = call.launch(lin.forward, tensors)
        count = len(call.traced.program.outputs)
        ctx.call, ctx.num_tensors, ctx.saved = call, len(tensors), outputs[count:]
        ctx.kept = [tensors[i] for i in lin.kept_inputs]
        ctx.is_nested = gradient_depth() > 1
        return tuple(outputs[:count]) if count != 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.is_nested:
            raise ctx.call.second_derivative()
        lin, outputs, mains = ctx.call.traced.linearized, ctx.call.traced.program.outputs, ctx.call.main_grads()
        cotangents = [in_dtype(grads[i], outputs[i].aval.dtype) for i in lin.cotangents]
        results = ctx.call.launch(lin.backward, [*ctx.kept, *ctx.saved, *cotangents, *mains.values()], mains)
        out: list[Tensor | None] = [None] * ctx.num_tensors
        for j, (i, grad) in enumerate(zip(lin.differentiable, results, strict=True)):
            out[i] = None if j in mains else grad
        return (None, *out)
