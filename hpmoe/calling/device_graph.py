"""The operators that calls in compiled graphs become on a device: launches of its kernel, and of that of the gradient.

MindSpore finds what runs them under the operator's name, in kernels/ascendc/host/graph_op.cc, and which kernel by its number
among the attributes. Tensors stay on the device, as outside of graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import ops
from mindspore.graph.api import _pynative_executor

from hpmoe.avals import Aval
from hpmoe.calling import graph_operators
from hpmoe.calling.device_running import DeviceCall
from hpmoe.calling.graph_operators import NOTHING, forgetting_graph, gradient_rule, inferred
from hpmoe.calling.one_call import Call
from hpmoe.errors import check_argument
from hpmoe.program import Program

NAME = "Custom_HpmoeLaunch"


def forward_operator(call: Call, num_args: int) -> Any:
    """The operator of a call with `num_args` array arguments."""
    return _Forward(_Site(call, num_args)) if isinstance(call, DeviceCall) else graph_operators.Forward(call, num_args)


class _Site:
    """One call in one graph.

    Attributes:
        call: the call, traced for the shapes of the graph.
        num_args: array arguments.
        saves: whether the forward saves what the backward reads, as it does once a gradient is taken.
    """

    def __init__(self, call: DeviceCall, num_args: int):
        self.call, self.num_args, self.program = call, num_args, call.traced.program
        name = self.program.name
        check_argument(not self.program.captures, name, "a closed-over tensor", "not among its arguments",
                       "an argument of the function in graph mode")
        check_argument(call.lengths is None, name, "num_tokens in a graph", call.lengths, "left out on a device")
        self.saves = _pynative_executor.requires_grad()
        self._forget_graph = forgetting_graph()

    def forward_program(self) -> Program:
        return self.call.traced.linearized.forward if self.saves else self.program

    def kernel(self, program: Program) -> Any:
        """A graph in which a launch failed stays failed in MindSpore, so it is compiled anew before its next run."""
        runner = self.call.runner
        kernel = runner.plan(program, runner.any_rows(program))
        if self._forget_graph not in kernel.on_failure:
            kernel.on_failure.append(self._forget_graph)
        return kernel

    def output_avals(self) -> list[Aval]:
        """What the forward operator returns: the outputs, and saved values, which hold nothing where none is saved."""
        made = _made(self.kernel(self.forward_program()))
        saved = len(self.call.traced.linearized.forward.outputs) - len(self.program.outputs)
        return made if self.saves else made + [NOTHING] * saved

    def backward_operator(self, num_inputs: int) -> _Backward:
        return _Backward(self)


class _Launch(ops.PrimitiveWithInfer):
    """A launch of the kernel of a program, which is asked for when the compiler infers shapes."""

    def __init__(self, site: _Site, find_program: Callable[[], Program], avals: Callable[[], list[Aval]]):
        super().__init__(NAME)
        self.site, self.find_program, self.avals = site, find_program, avals

    def __infer__(self, *args):
        for name, value in self.site.kernel(self.find_program()).graph_attributes().items():
            self.add_prim_attr(name, value)
        return inferred(self.avals())


class _Forward(_Launch):

    def __init__(self, site: _Site):
        super().__init__(site, site.forward_program, site.output_avals)
        self.num_outputs = len(site.output_avals())

    def get_bprop(self):
        """Asked for by the compiler when it takes a gradient; it infers shapes anew afterwards."""
        return gradient_rule(self.site)


class _Backward(_Launch):

    def __init__(self, site: _Site):
        backward = site.call.traced.linearized.backward
        super().__init__(site, lambda: backward, lambda: _made(site.kernel(backward)))

    def get_bprop(self):
        raise self.site.call.second_derivative()


def _made(kernel: Any) -> list[Aval]:
    """The tensors that a kernel writes its outputs to."""
    return [Aval(shape or (1,), dtype) for shape, dtype in kernel.layout.made]
