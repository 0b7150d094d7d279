"""Runner: a function at any stage of the chain on the ranks of a mesh, called with a user's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import optree
from mindspore import Tensor

from hpmoe import tracing
from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.padding import check_num_tokens
from hpmoe.ir.program import DIRECTIONS, Program, Var
from hpmoe.ir.stages import AnyIR, cut_at_routes
from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Mesh
from hpmoe.ranks.world import World
from hpmoe.runtime.array_backend import ArrayBackend
from hpmoe.runtime.backend import Backend
from hpmoe.runtime.device_backend import DeviceBackend
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, routes_of, rows_between
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.process_backend import ProcessBackend
from hpmoe.runtime.rank_arrays import Arrays, to_arrays
from hpmoe.runtime.staged import Staged
from hpmoe.support.errors import ProgramError, check_argument, is_name, is_number
from hpmoe.support.mindspore_private import (
    Differentiable,
    end_gradients_at_exceptions,
    end_recording,
    gradient_depth,
    records_calls,
    takes_gradient,
    taking_gradient,
)
from hpmoe.support.trees import PyTree
from hpmoe.tiling.memory_use import MemoryReport, MemoryUse, memory_use

IMBALANCE = 1.5  # rows of the rank that receives most, over the mean, up to which `warm_up` makes plans

end_gradients_at_exceptions()


class Runner:
    """Checks and traces the arguments of a call, and has a backend run it."""

    def __init__(self, staged: Staged, mesh: Mesh, batched: bool, in_axes: PyTree = 0):
        check_argument(in_axes == 0 or not staged.is_on_device, "spmd", "in_axes", repr(in_axes),
                       "0 where ranks are processes, each with its own arrays")
        has_axis = batched and not staged.is_on_device and not isinstance(mesh, World)
        self.plans = Plans(staged, mesh, has_axis, in_axes)
        self.backend: Backend = self._make_backend(mesh)

    def _make_backend(self, mesh: Mesh) -> Backend:
        if self.plans.staged.is_on_device:
            return DeviceBackend(self.plans)
        return ProcessBackend(self.plans, mesh) if isinstance(mesh, World) else ArrayBackend(self.plans)

    def call(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], num_tokens: Sequence[int] | None = None,
             seed: int | None = None) -> PyTree:
        """Returns the function's results, by the kernel or interpreter of its stage; with a seed by the interpreter."""
        if records_calls():
            end_recording()
            raise ProgramError(f"{tracing.function_name(self.plans.staged.function)}: ms.jit(capture_mode=\"trace\") does "
                               "not see what a kernel computes, and would keep it as a constant; use capture_mode=\"ast\"")
        with self.backend.calling():
            call, arrays = self.prepare(args, kwargs, num_tokens, seed)
            call = self.backend.agreed(call)
            traced = call.traced
            tensors = _checked_tensors(traced.program, arrays)
            if takes_gradient():
                found = _DifferentiableCall.apply(self.backend, call, *tensors)
                outputs = list(found) if isinstance(found, tuple) else [found]
            else:
                outputs, _ = self.backend.forward(call, tensors, saves=False)
            results = traced.program.num_results
            if len(outputs) > results:
                traced.report(to_arrays(outputs[results:]), self.plans.batched)
            return optree.tree_unflatten(traced.out_tree, outputs[:results])

    def prepare(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], num_tokens: Sequence[int] | None = None,
                seed: int | None = None) -> tuple[Call, list[Tensor | ShapeDtypeStruct]]:
        """Returns the call of these arguments, checked and traced, and the arrays (tensors or ShapeDtypeStructs) among them.
        """
        given = self.plans.parameters.flatten(args, kwargs)
        lengths = None if num_tokens is None else self.backend.lengths_of(num_tokens)
        traced = self.plans.trace(given)
        if lengths is not None:
            check_num_tokens("spmd", traced.program, lengths, traced.padding_fault)
        call = Call(traced, lengths, seed, given=given)
        self.backend.check(call)
        return call, given.arrays

    def lower(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], direction: str) -> AnyIR:
        """Returns the IR of the chain's last step, for the routing if `args` has all ids, and otherwise for any routing."""
        check_argument(is_name(direction, DIRECTIONS), "lower", "direction", repr(direction),
                       "\"forward\" or \"backward\"")
        traced, _, planned = self.planned(args, kwargs)
        return self.plans.plan_all(traced.program if direction == "forward" else traced.linearized.backward, planned)

    def planned(self, args: Sequence[PyTree],
                kwargs: Mapping[str, PyTree]) -> tuple[Traced, Arrays | None, dict[RouteKey, PlannedRows]]:
        """Returns the trace for `args`, the arrays of each rank if all are given, and the planned rows of each route."""
        given = self.plans.parameters.flatten(args, kwargs)
        traced = self.plans.trace(given)
        return traced, *self.backend.planned(traced, given.arrays)

    def memory(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> MemoryReport:
        """Returns the bytes that the plans for arguments like `args` take; see StagedFunction.memory."""
        traced, arrays, planned = self.planned(args, kwargs)
        lin = traced.linearized
        if len(cut_at_routes(traced.program)) > 1:  # values that the function computes decide the rows
            arrays = None
        kept = None if arrays is None else [[mine[i] for i in lin.kept_inputs] for mine in arrays]
        first, count = len(lin.kept_inputs), len(traced.program.outputs)
        saved = lin.forward.outputs[count:]

        def use(program: Program, arrays: Arrays | None, saved: Iterable[Var | int] = ()) -> MemoryUse:
            flows = [_flow_of(self.plans.plan(part.program, planned)) for part in cut_at_routes(program)]
            return memory_use(program, flows, arrays, dict.fromkeys(saved, "saved"))

        head = " | ".join([f"# {traced.program.name}", *self.plans.plan_all(lin.forward, planned).provenance])
        return MemoryReport(head, self.plans.mesh.num_ranks, use(traced.program, arrays),
                            use(lin.forward, arrays, range(count, count + len(saved))),
                            use(lin.backward, kept, lin.backward.inputs[first:first + len(saved)]))

    def warm_up(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], imbalance: float) -> None:
        """Makes the plans for arguments like `args`; see StagedFunction.warm_up."""
        check_argument(is_number(imbalance) and imbalance >= 1, "warm_up", "imbalance", repr(imbalance),
                       "a number from 1 on")
        traced, arrays, rows = self.planned(args, kwargs)
        for planned in self._likely(traced, arrays is not None, rows, imbalance):
            self.plans.plan_all(traced.program, planned)
        with taking_gradient():
            traced, arrays, rows = self.planned(args, kwargs)
        if not traced.linearized.differentiable:
            return
        for planned in self._likely(traced, arrays is not None, rows, imbalance):
            self.plans.plan_all(traced.linearized.forward, planned)
            self.plans.plan_all(traced.linearized.backward, planned)

    def _likely(self, traced: Traced, is_given: bool, rows: Mapping[RouteKey, PlannedRows],
                imbalance: float) -> Iterator[dict[RouteKey, PlannedRows]]:
        """Yields the planned rows of all routes: for given ids, and for other ids from balanced to imbalanced ones."""
        choices = {route.key: [rows[route.key]] if is_given and route.ids is not None or self.plans.staged.is_on_device
                   else rows_between(route.aval, imbalance) for route in routes_of(traced.program)}
        for i in range(max(map(len, choices.values()), default=1)):
            yield {key: found[min(i, len(found) - 1)] for key, found in choices.items()}


class _DifferentiableCall(Differentiable):
    """A call as an operation of MindSpore's autograd: its forward saves what its backward reads."""

    @staticmethod
    def forward(ctx: Any, backend: Backend, call: Call, *tensors: Tensor) -> Any:
        call = dataclasses.replace(call, traced=call.traced.asked(ctx.needs_input_grad[-len(tensors):]))
        results, ctx.saved = backend.forward(call, tensors, saves=True)
        ctx.backend, ctx.call, ctx.num_tensors = backend, call, len(tensors)
        ctx.is_nested = gradient_depth() > 1
        return tuple(results) if len(results) != 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if ctx.is_nested:
            raise ctx.call.second_derivative()
        lin = ctx.call.traced.linearized
        found = ctx.backend.backward(ctx.call, ctx.saved, [grads[i] for i in lin.cotangents])
        result: list[Tensor | None] = [None] * ctx.num_tensors
        for i, grad in zip(lin.differentiable, found, strict=True):
            result[i] = grad
        return (None, None, *result)


def _flow_of(ir: AnyIR) -> Taskflow:
    flow = getattr(ir, "flow", ir)
    check_argument(isinstance(flow, Taskflow), "memory", "f", "at the level of programs", "staged by tile_partition")
    return flow


def _checked_tensors(program: Program, arrays: Sequence[Tensor | ShapeDtypeStruct]) -> list[Tensor]:
    """Returns the values of the program's inputs: arguments, then captures."""
    for name, x in zip(program.input_names, arrays, strict=False):
        if isinstance(x, ShapeDtypeStruct):  # the text of a tensor would be of its values
            check_argument(False, program.name, name, f"{x!r}, an hpmoe.ShapeDtypeStruct",
                           "a tensor: a call computes with its values",
                           "lower() takes an hpmoe.ShapeDtypeStruct.")
    tensors = [*arrays, *program.captures]
    for var, main in program.main_grads.items():
        into = f"into[{program.input_names[program.inputs.index(var)]!r}]"
        for name, x in zip(program.input_names, tensors, strict=True):
            is_apart = x.data_ptr() + x.nbytes <= main.data_ptr() or main.data_ptr() + main.nbytes <= x.data_ptr()
            check_argument(is_apart, "accumulate_grads", into, f"in the memory of the argument {name!r}",
                           "memory of its own")
    return tensors
