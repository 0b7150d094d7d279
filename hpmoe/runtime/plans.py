"""The programs and plans of a function: traced once for each set of shapes, lowered once for each size of routing."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mindspore import Tensor

from hpmoe import tracing
from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR, Stages, cut_at_routes
from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Mesh
from hpmoe.runtime.arguments import Arguments, Parameters, RankAxes
from hpmoe.runtime.cached_plans import kept_or_made
from hpmoe.runtime.one_call import Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, routes_of, rows_at_start, with_planned_rows
from hpmoe.runtime.staged import Staged
from hpmoe.support.errors import check_argument
from hpmoe.support.locks import new_lock
from hpmoe.support.mindspore_private import is_computed, takes_gradient
from hpmoe.support.sized_cache import SizedCache
from hpmoe.support.trees import PyTree, unflatten


class CacheInfo(NamedTuple):
    """Statistics of the cache of a function's plans."""

    hits: int  # plans that were found
    misses: int  # plans that were made
    currsize: int  # plans that are kept
    num_bytes: int  # size of the plans that are kept
    max_bytes: int  # the most bytes that are kept


class Plans:
    """Traces and plans of a function on the ranks of a mesh.

    Arrays carry a leading rank axis if `batched` (spmd); otherwise they belong to the one rank that this process is.
    """

    def __init__(self, staged: Staged, mesh: Mesh, batched: bool, in_axes: PyTree = 0):
        self.staged, self.mesh, self.batched = staged, mesh, batched
        self.parameters = Parameters(staged.function, RankAxes(in_axes, is_alone=not batched))
        name = tracing.function_name(staged.function)
        self._traced: SizedCache[Traced] = SizedCache(f"{name}: traces of the shapes of its calls")
        self._plans: SizedCache[tuple[Program, AnyIR]] = SizedCache(f"{name}: plans of its calls")
        self._hits = self._misses = 0
        # Calls may come from several threads. Tracing waits for graphs that run on, whose kernels plan.
        self._tracing, self._planning = new_lock(), new_lock()

    def cache_info(self) -> CacheInfo:
        return CacheInfo(self._hits, self._misses, len(self._plans), self._plans.num_bytes, self._plans.most_bytes)

    def trace(self, given: Arguments) -> Traced:
        """Returns the Program for the shapes of arrays and the values of other arguments; it is cached."""
        # 1, 1.0 and True are equal and may trace differently; a closed-over scalar is no constant under a gradient.
        key = (given.tree, takes_gradient(), *[(x.shape, _lowercase(x.dtype)) if is_array else (type(x), x)
                                               for x, is_array in zip(given.leaves, given.is_array, strict=True)])
        with self._tracing:
            try:
                traced = self._traced.get(key)
            except TypeError:
                self.parameters.check_hashable(given)
                raise
            if traced is None or any(map(is_computed, traced.program.captures)):
                traced = self._trace_anew(given)
                self._traced.put(key, traced)
            return traced

    def _trace_anew(self, given: Arguments) -> Traced:
        self._check_rank_axes(given)
        avals = [ShapeDtypeStruct(*_shape_and_dtype(x, split)) if is_array else x
                 for x, is_array, split in zip(given.leaves, given.is_array, given.is_split, strict=True)]
        args, kwargs = unflatten(given.tree, avals)
        program, out_tree = tracing.trace_with_tree(self.staged.function, args, self.mesh, kwargs)
        program = self.staged.apply_before_gradient(program)
        self._check_outputs(program)
        split = given.split_arrays
        replicated = frozenset(i for i in range(len(program.inputs)) if i >= len(split) or not split[i])
        self._check_main_grads(program, replicated)
        return Traced(program, out_tree, replicated)

    def _check_rank_axes(self, given: Arguments) -> None:
        ep_size = self.mesh.num_ranks
        for i, (x, is_split) in enumerate(zip(given.arrays, given.split_arrays, strict=True)):
            if is_split and (not x.shape or x.shape[0] != ep_size):
                check_argument(False, "spmd", given.array_names(self.staged.function)[i], f"of shape {tuple(x.shape)}",
                               f"[{ep_size}, ...]: on an hpmoe.Mesh arrays have a leading rank axis",
                               "Pass None in in_axes for an argument that all ranks share. On hpmoe.world() arrays have no "
                               "rank axis.")

    def _check_outputs(self, program: Program) -> None:
        """Raises ArgumentError if, with a rank axis, an output is of received rows, whose number differs among ranks."""
        for i, atom in enumerate(program.outputs if self.batched else ()):
            check_argument(all(isinstance(d, int) for d in atom.aval.shape), "spmd", f"output {i} of {program.name}",
                           atom.aval, "of equal shape on every rank", "Return received rows through hpmoe.combine.")

    def _check_main_grads(self, program: Program, replicated: frozenset[int]) -> None:
        for i, (var, name) in enumerate(zip(program.inputs, program.input_names, strict=True)):
            shape = var.aval.shape if i in replicated else (self.mesh.num_ranks, *var.aval.shape)
            main = program.main_grads.get(var)
            check_argument(main is None or main.shape == shape, "accumulate_grads", f"into[{name!r}]",
                           f"of shape {getattr(main, 'shape', None)}", f"of shape {shape}, as the argument")

    def plan_all(self, program: Program, buckets: Mapping[RouteKey, PlannedRows]) -> AnyIR:
        """Returns the IR after all transforms of the staged function; Stages if computed ids cut the Program."""
        parts = cut_at_routes(program)
        irs = tuple(self.plan(part.program, buckets) for part in parts)
        return irs[0] if len(parts) == 1 else Stages(program, irs)

    def plan(self, program: Program, buckets: Mapping[RouteKey, PlannedRows]) -> AnyIR:
        """Returns the IR after all transforms of the staged function, for the planned rows of routes; it is cached."""
        rows = tuple(buckets[route.key] for route in routes_of(program))
        key = (id(program), rows)
        with self._planning:
            if (kept := self._plans.get(key)) is not None:
                self._hits += 1
                return kept[1]
            self._misses += 1
            ir = lowered(self.staged, program, rows)
            self._plans.put(key, (program, ir))  # the program is kept so that its id stays its own
            return ir


def _shape_and_dtype(x: Tensor | ShapeDtypeStruct, is_split: bool) -> tuple[tuple[int, ...], str]:
    """Returns the shape and dtype of one rank's part of an array."""
    return fixed(x.shape[1:] if is_split else x.shape), _lowercase(x.dtype)


@functools.lru_cache
def _lowercase(dtype: object) -> str:
    """Returns the name of a dtype of MindSpore, or of a ShapeDtypeStruct, such as "float32"."""
    return str(dtype).lower()


def lowered(staged: Staged, program: Program, rows: Sequence[PlannedRows]) -> AnyIR:
    """Returns the result of a chain for a Program and the planned rows of its routes.

    A kernel on a device, where no host reads the ids before a launch, is made of plans for several expected numbers of rows;
    it takes one of the plans when it starts.
    """
    if staged.target is None:
        return staged.apply(with_planned_rows(program, rows))
    flow = _queued(staged, with_planned_rows(program, rows))
    kernel = staged.steps[-1].apply_to(flow)
    if not staged.is_on_device or len(flow.routes) != 1 or program.ep_size == 1:  # one rank receives all rows that it sends
        return kernel
    plans = rows_at_start(rows[0], routes_of(program)[0].aval.balanced_rows)
    flows = [flow if plan == rows[0] else _queued(staged, with_planned_rows(program, [plan])) for plan in plans]
    return staged.target.compile(flows, kernel.timeout) if len(flows) > 1 else kernel


def _queued(staged: Staged, program: Program) -> Taskflow:
    """Returns the Taskflow from which the kernel of a planned Program is compiled, a kept one if the chain keeps plans."""
    ir: AnyIR
    ir, (*to_queues, to_kernel) = staged.apply_to_program(program)
    if to_kernel.keeps_plans:
        return kept_or_made(ir, to_queues)
    for step in to_queues:
        ir = step.apply_to(ir)
    return ir
