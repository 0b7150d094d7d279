"""The operators that calls in compiled graphs become: `ops.Custom` with a Python kernel that runs a plan, and its gradient.

MindSpore calls the kernel on a thread of its own. What the backward reads leaves the forward operator as further outputs,
because anything kept aside in Python would leak wherever a graph drops the backward operator; in a graph that takes no
gradient these outputs hold nothing.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import ops
from mindspore.graph import api
from mindspore.graph.api import _pynative_executor

from hpmoe.avals import Aval, RouteAval
from hpmoe.calling.graph_mode import picked
from hpmoe.calling.one_call import Call
from hpmoe.calling.rank_arrays import Arrays, to_arrays
from hpmoe.dtypes import numpy_dtype, storage_dtype
from hpmoe.errors import ProgramError, check_argument

NOTHING = Aval((1,), "float32")  # in place of a saved value


class _Site:
    """One call in one graph, computed on NumPy arrays.

    Attributes:
        call: the call, traced for the shapes of the graph.
        num_args: array arguments; the program's inputs after them are captures, constants of the graph.
        saves: whether the forward saves what the backward reads, as it does once a gradient is taken.
    """

    def __init__(self, call: Call, num_args: int):
        self.call, self.num_args = call, num_args
        self.program = call.traced.program
        self.captures = to_arrays(self.program.captures)
        self.saves = _pynative_executor.requires_grad()
        self._forget_graph = forgetting_graph()

    def guarded(self, compute: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Any:
        """A failed graph stays failed in MindSpore, so the one that this call is in is compiled anew before its next run."""
        try:
            return compute(*arrays)
        except BaseException:  # also Ctrl-C
            self._forget_graph()
            raise

    def forward(self, *given: np.ndarray) -> list[np.ndarray]:
        arrays = [self._as_array(x, i) for i, x in enumerate(given)]
        program = self.call.traced.linearized.forward if self.saves else self.program
        outputs = self.call.forward([*arrays, *self.captures], program)
        count = len(self.program.outputs)
        return self.call.results(outputs) + self._packed([r[count:] for r in outputs])

    def backward(self, *arrays: np.ndarray) -> list[np.ndarray]:
        lin = self.call.traced.linearized
        given, kept = iter(arrays), []
        for i in lin.kept_inputs:
            is_given = i < self.num_args
            kept.append(self._as_array(next(given), i) if is_given else self.captures[i - self.num_args])
        rest = list(given)
        split = len(rest) - len(lin.cotangents)
        cotangents = [x.reshape(self._whole(self.program.outputs[i].aval).shape)
                      for i, x in zip(lin.cotangents, rest[split:], strict=True)]
        grads = self.call.backward(kept, self._unpacked(rest[:split]), cotangents)
        return [g for i, g in zip(lin.differentiable, grads, strict=True) if i < self.num_args]

    def backward_operator(self, num_inputs: int) -> _Backward:
        return _Backward(self, num_inputs)

    def output_avals(self) -> list[Aval]:
        """What the forward operator returns: the outputs, and what carries saved values."""
        saved = self.saved_avals
        return [_carrier(self._whole(a.aval)) for a in self.program.outputs] + (
            saved if self.saves else [NOTHING for _ in saved])

    def gradient_avals(self) -> list[Aval]:
        wanted = self.call.traced.linearized.differentiable
        return [_carrier(self._whole(self.program.inputs[i].aval)) for i in wanted if i < self.num_args]

    def _whole(self, aval: Aval) -> Aval:
        """An array of one rank as the caller has it."""
        runner = self.call.runner
        return Aval((runner.mesh.ep_size, *aval.shape), aval.dtype) if runner.batched else aval

    def _as_array(self, given: Any, i: int) -> np.ndarray:
        """What MindSpore hands over for input i of the program: a Python number where it has no dimensions."""
        make = np.array if i in self.call.traced.deciding else np.asarray  # see Traced.arrays_of
        return make(given, numpy_dtype(self.program.inputs[i].aval.dtype))

    # An array carries one saved value of all ranks, row after row: its size does not depend on the routing, since every
    # (token, choice) is received once. Before them comes the number of rows of each value on each rank.

    @functools.cached_property
    def saved_avals(self) -> list[Aval]:
        try:
            lin = self.call.traced.linearized
        except ProgramError:  # not differentiable: an error only when a gradient is taken
            return []
        routes = {e.outputs[0].aval.rows: e.outputs[0].aval for e in lin.forward.equations
                  if isinstance(e.outputs[0].aval, RouteAval)}
        ep_size, avals = self.call.runner.mesh.ep_size, []
        for atom in lin.forward.outputs[len(self.program.outputs):]:
            first, *rest = atom.aval.shape or (1,)
            if isinstance(first, int):
                rows = ep_size * first
            else:
                route = routes[first]
                rows = min(ep_size * route.max_rows, route.ep_size * route.num_tokens * route.top_k)
            avals.append(Aval((rows, *rest), storage_dtype(atom.aval.dtype)))
        return [Aval((len(avals), ep_size), "int32"), *avals] if avals else []

    def _packed(self, saved: Arrays) -> list[np.ndarray]:
        avals = self.saved_avals
        if not self.saves:
            return [np.zeros(NOTHING.shape, NOTHING.dtype) for _ in avals]
        parts = [[np.atleast_1d(x) for x in column] for column in zip(*saved, strict=True)]
        counts = [np.array([[len(x) for x in column] for column in parts], np.int32)] if parts else []
        return counts + [_end_to_end(column, aval) for column, aval in zip(parts, avals[1:], strict=True)]

    def _unpacked(self, arrays: Sequence[np.ndarray]) -> Arrays:
        if not arrays:
            return [[] for _ in range(self.call.runner.mesh.ep_size)]
        avals = [a.aval for a in self.call.traced.linearized.forward.outputs[len(self.program.outputs):]]
        ends = np.cumsum(arrays[0], axis=1)
        return [[x[end - n:end].reshape([d if isinstance(d, int) else n for d in aval.shape])
                 for x, aval, n, end in zip(arrays[1:], avals, arrays[0][:, rank], ends[:, rank], strict=True)]
                for rank in range(arrays[0].shape[1])]


def _carrier(aval: Aval) -> Aval:
    """The array that an output of an operator is: one of no dimensions would become a Python number."""
    return Aval(aval.shape or (1,), aval.dtype)


def _handed_over(array: np.ndarray, aval: Aval) -> np.ndarray:
    """The array as MindSpore takes it from a kernel: bfloat16 by its bits, which NumPy's buffers have no letter for."""
    out = np.ascontiguousarray(array, numpy_dtype(aval.dtype)).reshape(aval.shape)
    return out.view(np.uint16) if aval.dtype == "bfloat16" else out


def _end_to_end(parts: Sequence[np.ndarray], aval: Aval) -> np.ndarray:
    """The parts one after the other in an array of the whole size; the first one itself where it is all there is."""
    dtype = numpy_dtype(aval.dtype)
    if parts[0].shape == aval.shape:
        return np.ascontiguousarray(parts[0], dtype)
    out = np.zeros(aval.shape, dtype)
    np.concatenate(parts, out=out[:sum(map(len, parts))], casting="unsafe")
    return out


class _Operator(ops.Custom):
    """An operator whose kernel is `compute`, in Python.

    Attributes:
        avals: called when the compiler infers shapes, once more after it has taken a gradient.
    """

    def __init__(self, site: _Site, compute: Callable[..., list[np.ndarray]], avals: Callable[[], list[Aval]],
                 num_inputs: int):
        def kernel(*arrays):
            results = tuple(map(_handed_over, site.guarded(compute, arrays), avals()))
            return results if len(results) > 1 else results[0]

        super().__init__(kernel, lambda *shapes: shapes, lambda *dtypes: dtypes, "pyfunc")
        self.add_prim_attr("inputs_num", num_inputs)
        self.site, self.avals = site, avals

    def __infer__(self, *args):
        return inferred(self.avals())


def inferred(avals: Sequence[Aval]) -> dict[str, Any]:
    """What the compiler takes for the shapes and dtypes of an operator's outputs."""
    shapes = [list(a.shape) for a in avals]
    dtypes = [getattr(mindspore, "bool_" if a.dtype == "bool" else a.dtype) for a in avals]
    is_single = len(shapes) == 1
    return {"shape": shapes[0] if is_single else tuple(shapes), "dtype": dtypes[0] if is_single else tuple(dtypes),
            "value": None}


class Forward(_Operator):
    """The operator of a call with `num_args` array arguments; further inputs of its program are captures."""

    def __init__(self, call: Call, num_args: int):
        site = _Site(call, num_args)
        super().__init__(site, site.forward, site.output_avals, site.num_args)
        self.num_outputs = len(site.output_avals())

    def get_bprop(self):
        """Asked for by the compiler when it takes a gradient; it infers shapes anew afterwards."""
        return gradient_rule(self.site)


class _Backward(_Operator):

    def __init__(self, site: _Site, num_inputs: int):
        super().__init__(site, site.backward, site.gradient_avals, num_inputs)

    def get_bprop(self):
        raise self.site.call.second_derivative()


def gradient_rule(site: Any) -> Callable[..., Any]:
    """The function that the compiler parses as the gradient of the forward operator, which saves values from now on."""
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


def _with_parameters(num_args: int, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule as a function of so many parameters and (out, dout): the compiler takes no *args here, and reads source."""
    names = "".join(f"x{i}, " for i in range(num_args))
    source = (f"def bound(rule):\n    def bprop({names}out, dout):\n        return rule(({names}), out, dout)\n"
              "    return bprop\n")
    name = f"<gradient of {num_args} inputs>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, name, "exec"), namespace)
    return namespace["bound"](rule)


def forgetting_graph() -> Callable[[], None]:
    """A function that makes MindSpore compile the graph being compiled now once more."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "compile" and frame.f_globals.get("__name__") == api.__name__:
            names = frame.f_locals
            graphs = names["obj"].compile_cache if "obj" in names else api.ms_compile_cache
            return functools.partial(graphs.discard, names["phase"])
        frame = frame.f_back
    return lambda: None
