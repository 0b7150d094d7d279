"""Operators of a call and its gradient in a compiled graph; one binding for all backends.

What the backward reads leaves the forward operator as further outputs, because anything kept aside in Python would leak
wherever a graph drops the backward operator; in a graph that takes no gradient these outputs hold nothing.
"""

from __future__ import annotations

import abc
import linecache
from collections.abc import Callable, Sequence
from typing import NoReturn

import mindspore
from mindspore import ops

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Program
from hpmoe.runtime.one_call import Call
from hpmoe.support.errors import check_argument
from hpmoe.support.mindspore_private import forgetting_graph, graph_takes_gradient
from hpmoe.support.trees import Function, PyTree

NOTHING = ShapeDtypeStruct((1,), "float32")  # stands for a saved value


class GraphCall(abc.ABC):
    """One call of a staged function in one compiled graph.

    Attributes:
        call: the call, traced for the shapes of the graph.
        num_args: array arguments; the program's inputs after them are captures, constants of the graph.
        saves: True once a gradient is taken, so that the forward saves the values that the backward reads.
        forget_graph: makes MindSpore compile the graph again: a failed one stays failed.
    """

    def __init__(self, call: Call, num_args: int):
        self.call, self.num_args, self.program = call, num_args, call.traced.program
        self.saves = graph_takes_gradient()
        self.forget_graph = forgetting_graph()

    def forward_program(self) -> Program:
        return self.call.traced.linearized.forward if self.saves else self.program

    def forward_operator(self) -> ops.Primitive:
        """Makes the forward operator; the compiler requests its gradient and then infers shapes again."""
        return self.operator("forward", self.num_args, self.output_avals, lambda: _gradient_rule(self))

    def backward_operator(self, num_inputs: int) -> Function:
        return self.operator("backward", num_inputs, self.gradient_avals, self._refuse_gradient)

    def _refuse_gradient(self) -> NoReturn:
        raise self.call.second_derivative()

    @abc.abstractmethod
    def output_avals(self) -> list[ShapeDtypeStruct]:
        """Returns the avals of the forward operator's results: the outputs, and saved values."""

    @abc.abstractmethod
    def gradient_avals(self) -> list[ShapeDtypeStruct]:
        """Returns the avals of the backward operator's results: a gradient of each differentiable argument."""

    @abc.abstractmethod
    def operator(self, direction: str, num_inputs: int, avals: Callable[[], list[ShapeDtypeStruct]],
                 rule: Callable[[], Function]) -> ops.Primitive:
        """Returns the MindSpore primitive that runs the programs of a direction, "forward" or "backward".

        `avals` is called when the compiler infers shapes, again after it has taken a gradient; `rule` returns the function
        of its gradient.
        """


def inferred(avals: Sequence[ShapeDtypeStruct]) -> dict[str, object]:
    """Returns the shapes and dtypes of an operator's outputs for the compiler."""
    shapes = [list(a.shape) for a in avals]
    dtypes = [getattr(mindspore, "bool_" if a.dtype == "bool" else a.dtype) for a in avals]
    is_single = len(shapes) == 1
    return {"shape": shapes[0] if is_single else tuple(shapes), "dtype": dtypes[0] if is_single else tuple(dtypes),
            "value": None}


def picked(values, positions):
    """Returns the values at some positions, a tuple; the compiler parses it."""
    result = ()
    for i in positions:
        result = result + (values[i],)
    return result


def _gradient_rule(site: GraphCall) -> Function:
    """Returns the function that the compiler parses as the gradient of the forward operator, which saves values from now on.
    """
    check_argument(not site.program.main_grads, site.program.name, "a gradient in a graph", "added to a main gradient",
                   "one that the graph returns, which may drop what is done in place")
    site.saves = True
    lin = site.call.traced.linearized
    num_args, count, is_single = site.num_args, len(site.program.outputs), len(site.output_avals()) == 1
    kept, cotangents = tuple(i for i in lin.kept_inputs if i < num_args), lin.cotangents
    wanted = [i for i in lin.differentiable if i < num_args]
    places = tuple(wanted.index(i) if i in wanted else -1 for i in range(num_args))
    backward = site.backward_operator(len(kept) + len(site.output_avals()) - count + len(cotangents))
    num_grads = len(wanted)

    def rule(args, out, dout):
        outputs = (out,) if is_single else out
        douts = (dout,) if is_single else dout
        grads = ()
        if num_grads > 0:
            grads = backward(*picked(args, kept), *outputs[count:], *picked(douts, cotangents))
        if num_grads == 1:
            grads = (grads,)
        result = ()
        for i in range(num_args):
            grad = ops.zeros_like(args[i]) if places[i] < 0 else ops.reshape(grads[places[i]], args[i].shape)
            result = result + (grad,)
        return result

    return _with_parameters(num_args, rule)


def _with_parameters(num_args: int, rule: Function) -> Function:
    """Returns the rule with `num_args` parameters and (out, dout): the compiler reads source and takes no *args here."""
    names = "".join(f"x{i}, " for i in range(num_args))
    source = (f"def bound(rule):\n    def bprop({names}out, dout):\n        return rule(({names}), out, dout)\n"
              "    return bprop\n")
    name = f"<gradient of {num_args} inputs>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, PyTree] = {"__name__": __name__}
    exec(compile(source, name, "exec"), namespace)
    return namespace["bound"](rule)
