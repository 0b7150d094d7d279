"""Calls on arrays in compiled graphs: each operator is `ops.Custom` with a Python kernel that runs a plan.

MindSpore calls the kernel on a thread of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
from mindspore import ops
from numpy.typing import ArrayLike

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Program
from hpmoe.runtime.graph_operators import NOTHING, GraphCall, inferred
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.rank_arrays import Arrays, to_arrays
from hpmoe.support.dtypes import numpy_dtype, storage_dtype
from hpmoe.support.errors import ProgramError
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import WithGradient, set_num_inputs
from hpmoe.support.trees import Function


class RunsArrays(Protocol):
    """Runs programs on NumPy arrays; see `hpmoe.runtime.array_backend.ArrayBackend`."""

    batched: bool
    ep_size: int
    num_here: int

    def in_step(self) -> AbstractContextManager[None]: ...
    def agreed(self, call: Call) -> Call: ...
    def told_avals(self, program: Program) -> list[ShapeDtypeStruct]: ...
    def run(self, call: Call, program: Program, arrays: Sequence[np.ndarray]) -> Arrays: ...
    def gradients(self, call: Call, kept: Sequence[np.ndarray], saved: Arrays,
                  cotangents: Sequence[np.ndarray]) -> list[np.ndarray | None]: ...
    def results(self, traced: Traced, outputs: Arrays) -> list[np.ndarray]: ...


class ArrayGraphCall(GraphCall):
    """A GraphCall whose programs a backend runs on arrays."""

    def __init__(self, call: Call, num_args: int, backend: RunsArrays):
        super().__init__(call, num_args)
        self.backend, self.captures = backend, to_arrays(self.program.captures)

    def operator(self, direction: str, num_inputs: int, avals: Callable[[], list[ShapeDtypeStruct]],
                 rule: Callable[[], Function]) -> ops.Primitive:
        compute = self.forward if direction == "forward" else self.backward

        def kernel(*arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
            try:
                with self.backend.in_step():
                    results = tuple(map(_handed_over, compute(*arrays), avals()))
            except BaseException:  # also Ctrl-C
                self.forget_graph()
                raise
            return results if len(results) > 1 else next(iter(results))
        return _Operator(kernel, num_inputs, avals, rule)

    def forward(self, *given: np.ndarray) -> list[np.ndarray]:
        arrays = [self._as_array(x, i) for i, x in enumerate(given)]
        self.backend.agreed(self.call)  # of at least one row, as a graph has no empty arrays
        outputs = self.backend.run(self.call, self.forward_program(), [*arrays, *self.captures])
        count, results = len(self.program.outputs), self.backend.results(self.call.traced, outputs)
        self.call.traced.report(results[self.program.num_results:], self.backend.batched)
        return results + self._packed([r[count:] for r in outputs])

    def backward(self, *arrays: np.ndarray) -> list[np.ndarray]:
        lin = self.call.traced.linearized
        given, kept = iter(arrays), []
        for i in lin.kept_inputs:
            is_given = i < self.num_args
            kept.append(self._as_array(next(given), i) if is_given else self.captures[i - self.num_args])
        rest = list(given)
        split = len(rest) - len(lin.cotangents)
        cotangents = [x.reshape(fixed(self._whole(self.program.outputs[i].aval).shape))
                      for i, x in zip(lin.cotangents, rest[split:], strict=True)]
        grads = self.backend.gradients(self.call, kept, self._unpacked(rest[:split]), cotangents)
        return [known(g) for i, g in zip(lin.differentiable, grads, strict=True) if i < self.num_args]

    def output_avals(self) -> list[ShapeDtypeStruct]:
        saved = self.saved_avals
        return [_carrier(self._whole(a.aval)) for a in self.program.outputs] + (
            saved if self.saves else [NOTHING for _ in saved])

    def gradient_avals(self) -> list[ShapeDtypeStruct]:
        wanted = self.call.traced.linearized.differentiable
        replicated = self.call.traced.replicated
        return [_carrier(self._whole(self.program.inputs[i].aval, i in replicated)) for i in wanted if i < self.num_args]

    def _whole(self, aval: ShapeDtypeStruct | RouteAval, is_replicated: bool = False) -> ShapeDtypeStruct:
        """Returns an array of one rank as the caller has it."""
        has_axis = self.backend.batched and not is_replicated
        return ShapeDtypeStruct((self.backend.ep_size, *aval.shape) if has_axis else aval.shape, aval.dtype)

    def _as_array(self, given: ArrayLike, i: int) -> np.ndarray:
        """Returns the array of input i; MindSpore passes a Python number if it has no dimensions."""
        make = np.array if i in self.call.traced.deciding else np.asarray  # see Traced.arrays_of
        return make(given, numpy_dtype(self.program.inputs[i].aval.dtype))

    # An array carries one saved value of all ranks, row after row: its size does not depend on the routing, since every
    # (token, choice) is received once. Before them comes the number of rows of each value on each rank.

    @functools.cached_property
    def saved_avals(self) -> list[ShapeDtypeStruct]:
        try:
            lin = self.call.traced.linearized
        except ProgramError:  # not differentiable: an error only when a gradient is taken
            return []
        routes = {e.outputs[0].aval.rows: e.outputs[0].aval for e in lin.forward.equations
                  if isinstance(e.outputs[0].aval, RouteAval)}
        num_here, avals = self.backend.num_here, []
        for atom in lin.forward.outputs[len(self.program.outputs):]:
            first, *rest = atom.aval.shape or (1,)
            if isinstance(first, int):
                rows = num_here * first
            else:
                route = routes[first]
                padding = num_here * route.num_local_experts * (route.alignment - 1)
                rows = min(num_here * route.max_rows, route.ep_size * route.num_tokens * route.top_k + padding)
            avals.append(ShapeDtypeStruct((rows, *rest), storage_dtype(atom.aval.dtype)))
        avals += self.backend.told_avals(lin.forward)
        return [ShapeDtypeStruct((len(avals), num_here), "int32"), *avals] if avals else []

    def _packed(self, saved: Arrays) -> list[np.ndarray]:
        avals = self.saved_avals
        if not self.saves:
            return [np.zeros(fixed(NOTHING.shape), NOTHING.dtype) for _ in avals]
        parts = [[np.atleast_1d(x) for x in column] for column in zip(*saved, strict=True)]
        counts = [np.array([[len(x) for x in column] for column in parts], np.int32)] if parts else []
        return counts + [_end_to_end(column, aval) for column, aval in zip(parts, avals[1:], strict=True)]

    def _unpacked(self, arrays: Sequence[np.ndarray]) -> Arrays:
        if not arrays:
            return [[] for _ in range(self.backend.num_here)]
        forward = self.call.traced.linearized.forward
        avals = [*(a.aval for a in forward.outputs[len(self.program.outputs):]), *self.backend.told_avals(forward)]
        ends = np.cumsum(arrays[0], axis=1)
        return [[x[end - n:end].reshape([d if isinstance(d, int) else n for d in aval.shape])
                 for x, aval, n, end in zip(arrays[1:], avals, arrays[0][:, rank], ends[:, rank], strict=True)]
                for rank in range(arrays[0].shape[1])]


def _carrier(aval: ShapeDtypeStruct) -> ShapeDtypeStruct:
    """Returns the shape and dtype of an operator's output; [1] for one without dimensions, which would become a number."""
    return ShapeDtypeStruct(aval.shape or (1,), aval.dtype)


def _handed_over(array: np.ndarray, aval: ShapeDtypeStruct) -> np.ndarray:
    """Returns the array as MindSpore takes it from a kernel: bfloat16 by its bits, as NumPy's buffers have no letter for it.
    """
    out = np.ascontiguousarray(array, numpy_dtype(aval.dtype)).reshape(fixed(aval.shape))
    return out.view(np.uint16) if aval.dtype == "bfloat16" else out


def _end_to_end(parts: Sequence[np.ndarray], aval: ShapeDtypeStruct) -> np.ndarray:
    """Returns the parts one after the other in an array of the whole size; a single part itself."""
    dtype = numpy_dtype(aval.dtype)
    if parts[0].shape == aval.shape:
        return np.ascontiguousarray(parts[0], dtype)
    out = np.zeros(fixed(aval.shape), dtype)
    np.concatenate(parts, out=out[:sum(map(len, parts))], casting="unsafe")
    return out


class _Operator(WithGradient, ops.Custom):
    """An operator whose kernel is a function in Python."""

    def __init__(self, kernel: Function, num_inputs: int, avals: Callable[[], list[ShapeDtypeStruct]],
                 rule: Callable[[], Function]):
        super().__init__(kernel, lambda *shapes: shapes, lambda *dtypes: dtypes, "pyfunc")
        set_num_inputs(self, num_inputs)
        self.avals, self.find_rule = avals, rule

    def __infer__(self, *args):
        return inferred(self.avals())
