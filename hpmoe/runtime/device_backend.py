"""Calls on a device of this process: tensors stay on it, and no call waits for its launch.

The ranks of a mesh are processes then, and each brings its own tensors, without a rank axis. As no host looks at the ids,
every plan is one for as many received rows as there can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import mindspore
from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.padding import own_length
from hpmoe.ir.program import Program
from hpmoe.ir.stages import PartValues, cut_at_routes
from hpmoe.runtime.backend import Backend
from hpmoe.runtime.device_graph import DeviceGraphCall, DeviceKernel
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, any_rows
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.targets import Executable
from hpmoe.support.errors import check_argument
from hpmoe.support.trees import PyTree


def in_dtype(tensor: Tensor, name: str) -> Tensor:
    """Returns a tensor, converted if it has another dtype."""
    dtype = getattr(mindspore, "bool_" if name == "bool" else name)
    return tensor if tensor.dtype == dtype else tensor.astype(dtype)


class DeviceBackend(Backend[list[Tensor]]):
    """A Backend for one rank of a mesh whose ranks are processes."""

    def __init__(self, plans: Plans):
        self.plans = plans

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """Returns the number of this rank's tokens, as a tuple of one."""
        return own_length(num_tokens)

    def check(self, call: Call) -> None:
        program = call.traced.program
        check_argument(call.seed is None, f"{program.name}.interpret", "target", "a device, which is one rank of several",
                       "\"cpu\"")
        for i, atom in enumerate(program.outputs):
            check_argument(all(isinstance(d, int) for d in atom.aval.shape), program.name, f"output {i}", atom.aval,
                           "of a shape that is known before the launch", "Return received rows through hpmoe.combine.")

    def planned(self, traced: Traced, tensors: Sequence[Tensor | ShapeDtypeStruct]) -> tuple[None,
                                                                                             dict[RouteKey, PlannedRows]]:
        return None, any_rows(traced.program)

    def forward(self, call: Call, tensors: Sequence[Tensor], saves: bool) -> tuple[list[Tensor], list[Tensor]]:
        program, lin = call.traced.program, call.traced.linearized if saves else None
        outputs = self._launch(call, lin.forward if lin else program, tensors)
        count = len(program.outputs)
        return outputs[:count], [*(tensors[i] for i in lin.kept_inputs), *outputs[count:]] if lin else []

    def backward(self, call: Call, saved: list[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        program, lin, mains = call.traced.program, call.traced.linearized, _main_grads(call.traced)
        cotangents = [in_dtype(g, program.outputs[i].aval.dtype) for i, g in zip(lin.cotangents, cotangents, strict=True)]
        results = self._launch(call, lin.backward, [*saved, *cotangents, *mains.values()], mains)
        return [None if j in mains else grad for j, grad in enumerate(results)]

    def in_graph(self, call: Call, num_args: int) -> DeviceGraphCall:
        return DeviceGraphCall(call, num_args, lambda program: self.kernel(program).state)

    def kernel(self, program: Program) -> Executable[DeviceKernel]:
        """Returns the kernel of a program, for any routing."""
        return self.plans.plan(program, any_rows(program))

    def _launch(self, call: Call, program: Program, tensors: Sequence[Tensor],
                into: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        """Launches a program and returns its outputs, which the stream writes later; those in `into` are written there."""
        values, results = PartValues(program, [tensors]), {j: [x] for j, x in (into or {}).items()}
        for part in cut_at_routes(program):
            kernel = self.kernel(part.program)
            (outputs,) = cast("list[list[Tensor]]", kernel.run(values.inputs_of(part), call.lengths, results))
            avals = [atom.aval for atom in part.program.outputs]
            values.add(part, [[in_dtype(x, aval.dtype) for x, aval in zip(outputs, avals, strict=True)]])
        return values.outputs()[0]


def _main_grads(traced: Traced) -> dict[int, Tensor]:
    """Returns the main gradient of each result of the backward that has one."""
    program = traced.program
    wanted = enumerate(traced.linearized.differentiable)
    return {j: program.main_grads[program.inputs[i]] for j, i in wanted if program.inputs[i] in program.main_grads}
