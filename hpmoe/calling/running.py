"""From the arguments of a call to its plan: traced once for each set of shapes, lowered once for each size of routing."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree
from mindspore import Tensor
from mindspore.graph.api import _pynative_executor
from mindspore.graph.jit_context import jit_context

from hpmoe import tracing
from hpmoe.avals import Aval
from hpmoe.calling.arguments import Arguments, Parameters
from hpmoe.calling.one_call import Call, Traced
from hpmoe.calling.planned_rows import PlannedRows, routes_of, rows_of_any, rows_of_received, with_planned_rows
from hpmoe.calling.rank_arrays import Arrays
from hpmoe.calling.staging import Staged, innermost
from hpmoe.capacity import check_topk_weights
from hpmoe.errors import ProgramError, check_argument, is_name
from hpmoe.launchers import check_alone
from hpmoe.locks import new_lock
from hpmoe.machine import Mesh
from hpmoe.padding import check_num_tokens, rank_lengths
from hpmoe.program import Program
from hpmoe.routing import check_topk_ids, rows_of_ranks
from hpmoe.tracing.pynative import is_computed

CACHE_SIZE = 64


class CacheInfo(NamedTuple):
    """Plan cache statistics, with the fields of functools.lru_cache."""

    hits: int
    misses: int
    maxsize: int
    currsize: int


class Runner:
    """Calls a function, at any stage of the chain, on the ranks of a mesh.

    Attributes:
        function: plain or staged.
        mesh: the ranks.
        batched: whether arrays carry a leading rank axis (spmd) or belong to the one rank there is.
    """

    def __init__(self, function: Callable[..., Any], mesh: Mesh, batched: bool):
        self.function, self.mesh, self.batched = function, mesh, batched
        self._parameters = Parameters(innermost(function))
        self._traced: collections.OrderedDict[Any, Traced] = collections.OrderedDict()
        self._plans: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._hits = self._misses = 0
        self._lock = new_lock()  # calls may come from several threads

    def cache_info(self) -> CacheInfo:
        return CacheInfo(self._hits, self._misses, CACHE_SIZE, len(self._plans))

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any], num_tokens: Sequence[int] | None = None,
             seed: int | None = None) -> Any:
        """What the function computes: by the kernel or interpreter of its stage, or under `seed` by the interpreter."""
        if jit_context() is not None:
            raise ProgramError(f"{tracing.function_name(innermost(self.function))}: ms.jit(capture_mode=\"trace\") does not "
                               "see what a kernel computes, and would keep it as a constant; use capture_mode=\"ast\"")
        call, tensors = self.prepare(args, kwargs, num_tokens, seed)
        for x in [x for x in tensors if isinstance(x, Aval)]:  # the text of a tensor would be of its values
            check_argument(False, call.traced.program.name, "an array argument", f"{x!r}, an hpmoe.Aval",
                           "a tensor: a call computes with its values", "lower() takes Avals.")
        outputs = call.run([*tensors, *call.traced.program.captures])
        return optree.tree_unflatten(call.traced.out_tree, outputs)

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any], num_tokens: Sequence[int] | None = None,
                seed: int | None = None) -> tuple[Call, list[Any]]:
        """The call of these arguments, checked and traced, and the arrays (tensors or Avals) among them."""
        if self.batched:
            check_alone(self.mesh.ep_size)
        given = self._parameters.flatten(args, kwargs)
        tensors = given.arrays
        lengths = self._lengths(tensors, num_tokens)
        traced = self._trace(given)
        if lengths is not None:
            check_num_tokens("spmd", traced.program, lengths, traced.padding_fault)
        return self.make_call(traced, lengths, seed), tensors

    def make_call(self, traced: Traced, lengths: tuple[int, ...] | None, seed: int | None) -> Call:
        return Call(self, traced, lengths, seed)

    # Arguments.

    def _lengths(self, tensors: Sequence[Tensor | Aval], num_tokens: Sequence[int] | None) -> tuple[int, ...] | None:
        ep_size = self.mesh.ep_size
        if self.batched:
            for i, shape in enumerate(x.shape for x in tensors):
                if not shape or shape[0] != ep_size:
                    check_argument(False, "spmd", f"array argument {i}", f"of shape {tuple(shape)}",
                                   f"[{ep_size}, ...], one part for each rank of the mesh")
        return None if num_tokens is None else rank_lengths("spmd", num_tokens, ep_size)

    def _trace(self, given: Arguments) -> Traced:
        """The Program for these shapes, traced once."""
        # 1, 1.0 and True are equal and may trace differently; a closed-over scalar is no constant under a gradient.
        key = (given.tree, _pynative_executor.grad_flag(), *[
            (Aval, *self._shape_and_dtype(x)) if is_array else (type(x), x)
            for x, is_array in zip(given.leaves, given.is_array, strict=True)])
        with self._lock:
            try:
                traced = self._traced.get(key)
            except TypeError:
                self._parameters.check_hashable(given)
                raise
            if traced is None or any(map(is_computed, traced.program.captures)):
                traced = self._traced[key] = self._trace_anew(given)
                if len(self._traced) > CACHE_SIZE:
                    self._traced.popitem(last=False)
            self._traced.move_to_end(key)
            return traced

    def _trace_anew(self, given: Arguments) -> Traced:
        avals = [Aval(*self._shape_and_dtype(x)) if is_array else x
                 for x, is_array in zip(given.leaves, given.is_array, strict=True)]
        args, kwargs = optree.tree_unflatten(given.tree, avals)
        program, out_tree = tracing.trace_with_tree(innermost(self.function), args, self.mesh, kwargs)
        if isinstance(self.function, Staged):
            program = self.function.apply_before_vjp(program)
        self._check_outputs(program)
        self._check_main_grads(program)
        return Traced(program, out_tree)

    def _check_outputs(self, program: Program) -> None:
        """Received rows differ in number from rank to rank, so they have no place in an array with a rank axis."""
        for i, atom in enumerate(program.outputs if self.batched else ()):
            check_argument(all(isinstance(d, int) for d in atom.aval.shape), "spmd", f"output {i} of {program.name}",
                           atom.aval, "of equal shape on every rank", "Return received rows through hpmoe.combine.")

    def _check_main_grads(self, program: Program) -> None:
        names = dict(zip(program.inputs, program.input_names, strict=True))
        for var, main in program.main_grads.items():
            shape = (self.mesh.ep_size, *var.aval.shape) if self.batched else var.aval.shape
            check_argument(main.shape == shape, "accumulate_grads", f"into[{names[var]!r}]", f"of shape {main.shape}",
                           f"of shape {shape}, as the argument")

    def _shape_and_dtype(self, x: Tensor | Aval) -> tuple[tuple[int, ...], str]:
        """Those of one rank's part of an array."""
        return x.shape[1:] if self.batched else x.shape, _lowercase(x.dtype)

    def per_rank(self, arrays: Sequence[np.ndarray], positions: Iterable[int], num_args: int) -> Arrays:
        """For each rank its part of the arrays, program inputs; past `num_args` they are captures, which go to all whole."""
        if not self.batched:
            return [list(arrays)]
        is_split = [i < num_args for i in positions]
        return [[a[r] if split else a for a, split in zip(arrays, is_split, strict=True)] for r in range(self.mesh.ep_size)]

    # Plans.

    def lower(self, args: Sequence[Any], kwargs: Mapping[str, Any], direction: str) -> Any:
        """The IR of this stage, for the routing where `args` has all ids, and for any routing otherwise."""
        check_argument(is_name(direction, ("forward", "backward")), "lower", "direction", repr(direction),
                       "\"forward\" or \"backward\"")
        traced, _, buckets = self.planned(args, kwargs)
        return self.plan(traced.program if direction == "forward" else traced.linearized.backward, buckets)

    def planned(self, args: Sequence[Any],
                kwargs: Mapping[str, Any]) -> tuple[Traced, Arrays | None, dict[Any, PlannedRows]]:
        """What is traced for `args`, the arrays of each rank where all are given, and the planned rows of each route."""
        given = self._parameters.flatten(args, kwargs)
        traced, tensors = self._trace(given), given.arrays
        if (self.batched or self.mesh.ep_size == 1) and all(isinstance(x, Tensor) for x in tensors):
            captures = traced.program.captures
            arrays = traced.arrays_of([*tensors, *captures])
            inputs = self.per_rank(arrays, range(len(arrays)), len(tensors))
            return traced, inputs, self.row_buckets(traced.program, inputs, None)
        return traced, None, self.any_rows(traced.program)

    def any_rows(self, program: Program) -> dict[Any, PlannedRows]:
        """The planned rows of each route, for any routing."""
        return {route.key: rows_of_any(route.aval) for route in routes_of(program)}

    def row_buckets(self, program: Program, inputs: Arrays,
                    lengths: tuple[int, ...] | None) -> dict[Any, PlannedRows]:
        """Checks the ids of every route and returns the planned rows of each."""
        buckets = {}
        for key, aval, at_ids, at_weights in routes_of(program):
            if at_ids is None:
                raise ProgramError(f"{program.name}: a route is by {key[0].aval} ids that the program computes; the kernel "
                                   "needs topk_ids as an argument")
            real = []
            for rank, arrays in enumerate(inputs):
                stop = None if lengths is None else lengths[rank]
                ids = arrays[at_ids][:stop]
                check_topk_ids(ids, aval.num_experts, "hpmoe.dispatch" + (f" on rank {rank}" if aval.ep_size > 1 else ""))
                if at_weights is not None:
                    check_topk_weights(arrays[at_weights][:stop], rank, aval.ep_size)
                real.append(ids)
            received = rows_of_ranks(real, aval.num_experts, aval.capacity, aval.placement)
            buckets[key] = rows_of_received(max(received), aval)
        return buckets

    def plan(self, program: Program, buckets: dict[Any, PlannedRows]) -> Any:
        """The IR of this stage for a Program and the planned rows of its routes, lowered once."""
        rows = tuple(buckets[route.key] for route in routes_of(program))
        key = (id(program), rows)
        with self._lock:
            if key in self._plans:
                self._hits += 1
                self._plans.move_to_end(key)
                return self._plans[key][1]
            self._misses += 1
            sized = with_planned_rows(program, rows)
            ir = self.function.apply(sized) if isinstance(self.function, Staged) else sized
            self._plans[key] = (program, ir)  # the program is kept so that its id stays its own
            if len(self._plans) > CACHE_SIZE:
                self._plans.popitem(last=False)
            return ir


@functools.lru_cache
def _lowercase(dtype: Any) -> str:
    """The name of a dtype of MindSpore, or of an Aval."""
    return str(dtype).lower()
