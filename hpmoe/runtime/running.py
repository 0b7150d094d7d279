"""Runner: a function at any stage of the chain on the ranks of a mesh, called with what a user gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import optree
from mindspore import Tensor

from hpmoe import tracing
from hpmoe.ir.avals import Aval
from hpmoe.ir.padding import check_num_tokens
from hpmoe.ir.program import DIRECTIONS, Program
from hpmoe.ir.stages import AnyIR
from hpmoe.machines.machine import Mesh
from hpmoe.ranks.world import World
from hpmoe.runtime import autograd
from hpmoe.runtime.arguments import Arguments
from hpmoe.runtime.array_backend import ArrayBackend
from hpmoe.runtime.backend import Backend
from hpmoe.runtime.device_backend import DeviceBackend
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.process_backend import ProcessBackend
from hpmoe.runtime.rank_arrays import Arrays, to_arrays
from hpmoe.runtime.staged import Staged
from hpmoe.support.errors import ProgramError, check_argument, is_name
from hpmoe.support.mindspore_private import end_recording, records_calls
from hpmoe.support.trees import PyTree


class Runner:
    """Checks and traces what a function is called with, and has a backend run it.

    Attributes:
        plans: the function, the ranks, and what was made for them.
        backend: the device that its kernel is bound for, arrays of all ranks, or those of this process's rank.
    """

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
        """What the function computes: by the kernel or interpreter of its stage, or under `seed` by the interpreter."""
        if records_calls():
            end_recording()
            raise ProgramError(f"{tracing.function_name(self.plans.staged.function)}: ms.jit(capture_mode=\"trace\") does "
                               "not see what a kernel computes, and would keep it as a constant; use capture_mode=\"ast\"")
        with self.backend.calling():
            return self._call(args, kwargs, num_tokens, seed)

    def _call(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], num_tokens: Sequence[int] | None,
              seed: int | None) -> PyTree:
        call, tensors = self.prepare(args, kwargs, num_tokens, seed)
        call = self.backend.agreed(call)
        traced = call.traced
        for name, x in zip(traced.program.input_names, tensors, strict=False):
            if isinstance(x, Aval):  # the text of a tensor would be of its values
                check_argument(False, traced.program.name, name, f"{x!r}, an hpmoe.Aval",
                               "a tensor: a call computes with its values", "lower() takes Avals.")
        tensors = [*tensors, *traced.program.captures]
        _check_main_grads_apart(traced.program, tensors)
        outputs = autograd.run(self.backend, call, tensors)
        results = traced.program.num_results
        traced.report(to_arrays(outputs[results:]), self.plans.batched)
        return optree.tree_unflatten(traced.out_tree, outputs[:results])

    def prepare(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], num_tokens: Sequence[int] | None = None,
                seed: int | None = None) -> tuple[Call, list[Tensor | Aval]]:
        """The call of these arguments, checked and traced, and the arrays (tensors or Avals) among them."""
        given = self.plans.flatten(args, kwargs)
        tensors = given.arrays
        self._check_rank_axis(given)
        lengths = None if num_tokens is None else self.backend.lengths_of(num_tokens)
        traced = self.plans.trace(given)
        if lengths is not None:
            check_num_tokens("spmd", traced.program, lengths, traced.padding_fault)
        call = Call(traced, lengths, seed, given=given)
        self.backend.check(call)
        return call, tensors

    def _check_rank_axis(self, given: Arguments) -> None:
        ep_size = self.plans.mesh.num_ranks
        for i, (x, is_split) in enumerate(zip(given.arrays, given.split_arrays, strict=True)):
            if is_split and (not x.shape or x.shape[0] != ep_size):
                check_argument(False, "spmd", given.array_names(self.plans.staged.function)[i],
                               f"of shape {tuple(x.shape)}", f"[{ep_size}, ...], one part for each rank of the mesh",
                               "An argument that all ranks share has None in in_axes.")

    def lower(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], direction: str) -> AnyIR:
        """What the last step of the chain makes, for the routing where `args` has all ids, and for any routing otherwise."""
        check_argument(is_name(direction, DIRECTIONS), "lower", "direction", repr(direction),
                       "\"forward\" or \"backward\"")
        traced, _, buckets = self.planned(args, kwargs)
        return self.plans.plan_all(traced.program if direction == "forward" else traced.linearized.backward, buckets)

    def planned(self, args: Sequence[PyTree],
                kwargs: Mapping[str, PyTree]) -> tuple[Traced, Arrays | None, dict[RouteKey, PlannedRows]]:
        """What is traced for `args`, the arrays of each rank where all are given, and the planned rows of each route."""
        given = self.plans.flatten(args, kwargs)
        self._check_rank_axis(given)
        traced = self.plans.trace(given)
        return traced, *self.backend.planned(traced, given.arrays)


def _check_main_grads_apart(program: Program, tensors: Sequence[Tensor]) -> None:
    """A backward writes main gradients, and must change nothing that the function reads."""
    for var, main in program.main_grads.items():
        into = f"into[{program.input_names[program.inputs.index(var)]!r}]"
        for name, x in zip(program.input_names, tensors, strict=True):
            is_apart = x.data_ptr() + x.nbytes <= main.data_ptr() or main.data_ptr() + main.nbytes <= x.data_ptr()
            check_argument(is_apart, "accumulate_grads", into, f"in the memory of the argument {name!r}",
                           "memory of its own")
