"""Calls on a device in compiled graphs: each operator is a launch of a kernel.

MindSpore finds what runs it under the operator's name, in kernels/ascendc/host/graph_op.cc, and which kernel by its number
among the attributes. Tensors stay on the device, as outside of graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mindspore import ops

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Program
from hpmoe.ir.stages import cut_at_routes
from hpmoe.runtime.graph_operators import NOTHING, GraphCall, inferred
from hpmoe.runtime.one_call import Call
from hpmoe.support.errors import check_argument
from hpmoe.support.mindspore_private import WithGradient
from hpmoe.support.trees import Function

NAME = "Custom_HpmoeLaunch"


class DeviceKernel(Protocol):
    """A kernel on a device as a compiled graph uses it: the state of an Executable."""

    on_failure: list[Callable[[], None]]

    @property
    def made(self) -> Sequence[tuple[tuple[int, ...], str]]: ...
    def graph_attributes(self) -> Mapping[str, int]: ...


class DeviceGraphCall(GraphCall):
    """A GraphCall that launches kernels, which `kernel_of` returns for programs."""

    def __init__(self, call: Call, num_args: int, kernel_of: Callable[[Program], DeviceKernel]):
        name = call.traced.program.name
        check_argument(not call.traced.program.captures, name, "a closed-over tensor", "not among its arguments",
                       "an argument of the function in graph mode")
        check_argument(call.lengths is None, name, "num_tokens in a graph", call.lengths, "left out on a device")
        num_launches = len(cut_at_routes(call.traced.program))
        check_argument(num_launches == 1, name, "the number of its launches in a graph", num_launches,
                       "1 on a device: topk_ids given as an argument", "Outside of graphs ids may be computed.")
        super().__init__(call, num_args)
        self.kernel_of = kernel_of

    def operator(self, direction: str, num_inputs: int, avals: Callable[[], list[ShapeDtypeStruct]],
                 rule: Callable[[], Function]) -> ops.Primitive:
        backward = self.call.traced.linearized.backward if direction == "backward" else None
        return _Launch(lambda: self._kernel(backward or self.forward_program()), avals, rule)

    def output_avals(self) -> list[ShapeDtypeStruct]:
        made = _made(self._kernel(self.forward_program()))
        saved = len(self.call.traced.linearized.forward.outputs) - len(self.program.outputs)
        return made if self.saves else made + [NOTHING] * saved

    def gradient_avals(self) -> list[ShapeDtypeStruct]:
        return _made(self._kernel(self.call.traced.linearized.backward))

    def _kernel(self, program: Program) -> DeviceKernel:
        """Returns the kernel; a graph in which a launch failed is compiled again before its next run."""
        kernel = self.kernel_of(program)
        if self.forget_graph not in kernel.on_failure:
            kernel.on_failure.append(self.forget_graph)
        return kernel


class _Launch(WithGradient, ops.PrimitiveWithInfer):
    """A launch of a kernel, which is asked for when the compiler infers shapes."""

    def __init__(self, find_kernel: Callable[[], DeviceKernel], avals: Callable[[], list[ShapeDtypeStruct]],
                 rule: Callable[[], Function]):
        super().__init__(NAME)
        self.find_kernel, self.avals, self.find_rule = find_kernel, avals, rule

    def __infer__(self, *args):
        for name, value in self.find_kernel().graph_attributes().items():
            self.add_prim_attr(name, value)
        return inferred(self.avals())


def _made(kernel: DeviceKernel) -> list[ShapeDtypeStruct]:
    """Returns the tensors that a kernel writes its outputs to."""
    return [ShapeDtypeStruct(shape or (1,), dtype) for shape, dtype in kernel.made]
