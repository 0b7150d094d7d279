"""Runs of programs on arrays: all ranks are in this process, and one run computes what each of them does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpmoe.interpreters.evaluate import evaluate
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.avals import Aval
from hpmoe.ir.program import Equation, Program, Var
from hpmoe.ir.stages import AnyIR, Part, cut_at_routes, run_parts
from hpmoe.ir.taskflow import Taskflow
from hpmoe.routing.capacity import check_topk_weights
from hpmoe.routing.routing import check_topk_ids, rows_of_ranks
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRoute, PlannedRows, RouteKey, routes_of, rows_of_any, rows_of_received
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.rank_arrays import Arrays, stacked, summed, to_array
from hpmoe.support.dtypes import rounded
from hpmoe.support.known import known

NO_MAKERS: Mapping[Var, Equation] = {}


class ArrayRuns:
    """Runs the programs of calls by their plans: each is for the rows that the ids of the call make a rank receive.

    Attributes:
        plans: what it runs.
        ep_size: number of ranks.
        batched: whether arrays carry a leading rank axis; else they are of one rank.
        num_here: ranks whose arrays are here.
    """

    def __init__(self, plans: Plans):
        self.plans, self.ep_size, self.batched = plans, plans.mesh.num_ranks, plans.batched
        self.num_here = self.ep_size if self.batched else 1

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """See Backend."""
        return contextlib.nullcontext()

    def agreed(self, call: Call) -> Call:
        """See Backend."""
        return call

    def told_avals(self, program: Program) -> list[Aval]:
        """What `run` returns of a program's step beyond its outputs, for the backward."""
        return []

    def run(self, call: Call, program: Program, arrays: Sequence[np.ndarray]) -> Arrays:
        """What every rank computes of the traced program or of its linearized forward."""
        inputs = self.per_rank(call.traced, arrays, range(len(arrays)))
        return run_parts(program, inputs, lambda part, mine: self._launch(call, part, mine))

    def gradients(self, call: Call, kept: Sequence[np.ndarray], saved: Arrays,
                  cotangents: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """The gradients of the differentiable inputs, from the inputs that the backward reads and what the forward saved.

        None for one that is added to a main gradient instead.
        """
        traced, lin, outputs = call.traced, call.traced.linearized, call.traced.program.outputs
        inputs = self.per_rank(traced, kept, lin.kept_inputs)
        cotangents = [rounded(g, outputs[i].aval.dtype) for i, g in zip(lin.cotangents, cotangents, strict=True)]
        mains = self._main_grads(traced)
        arrays = [[*mine, *saved[r], *(g[r] if self.batched else g for g in cotangents),
                   *(parts[r] for parts in mains.values())] for r, mine in enumerate(inputs)]
        (backward,) = cut_at_routes(lin.backward)
        grads: list[np.ndarray | None] = []
        columns = zip(*self._launch(call, backward, arrays, mains), strict=True)
        for j, (i, parts) in enumerate(zip(lin.differentiable, columns, strict=True)):
            is_summed = self.batched and i in traced.replicated
            if is_summed and j in mains:
                mains[j][0][...] = summed(parts)
            grads.append(None if j in mains else summed(parts) if is_summed else self._joined(parts))
        return grads

    def results(self, traced: Traced, outputs: Arrays) -> list[np.ndarray]:
        """The program's own outputs, without saved values, as arrays of their declared dtypes."""
        dtypes = [a.aval.dtype for a in traced.program.outputs]
        return [self._joined([rounded(r[i], dtype) for r in outputs]) for i, dtype in enumerate(dtypes)]

    def _launch(self, call: Call, part: Part, inputs: Arrays,
                into: Mapping[int, list[np.ndarray]] | None = None) -> Arrays:
        ir = self.plans.plan(part.program, received_rows(part.program, inputs, call.lengths, part.makers))
        return run_ir(ir, with_int32_ids(part.program, inputs), call.lengths, call.seed, into)

    def _main_grads(self, traced: Traced) -> dict[int, list[np.ndarray]]:
        """For each result of the backward that has a main gradient, that of each rank, sharing memory with the tensor."""
        program, mains = traced.program, {}
        for j, i in enumerate(traced.linearized.differentiable):
            if program.inputs[i] in program.main_grads:
                array = to_array(program.main_grads[program.inputs[i]])  # asnumpy copies where it is a view
                others = (np.zeros_like(array) for _ in range(self.num_here - 1))
                mains[j] = [array, *others] if i in traced.replicated else list(array)
        return mains

    def per_rank(self, traced: Traced, arrays: Sequence[np.ndarray], positions: Iterable[int]) -> Arrays:
        """For each rank its part of the arrays, program inputs; replicated ones go to all whole."""
        if not self.batched:
            return [list(arrays)]
        is_split = [i not in traced.replicated for i in positions]
        return [[a[r] if split else a for a, split in zip(arrays, is_split, strict=True)] for r in range(self.ep_size)]

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """One array from the ranks' arrays."""
        array = stacked(parts) if self.batched else parts[0]
        return array if array.flags.c_contiguous else array.copy()


def received_rows(program: Program, inputs: Arrays, lengths: tuple[int, ...] | None,
                  makers: Mapping[Var, Equation] = NO_MAKERS) -> dict[RouteKey, PlannedRows]:
    """Checks the ids of every route and returns the planned rows of each: for any routing where ids are not computed yet.

    `makers` are the equations that made ids and weights among the inputs.
    """
    buckets = {}
    for route in routes_of(program):
        key, aval = route.key, route.aval
        if route.ids is None:
            buckets[key] = rows_of_any(aval)
            continue
        real = [checked_ids(route, arrays, None if lengths is None else lengths[rank], rank, makers)
                for rank, arrays in enumerate(inputs)]
        received = rows_of_ranks(real, aval.num_experts, aval.capacity, aval.placement, aval.alignment, aval.tp_size)
        aval.check_received(received)
        buckets[key] = rows_of_received(max(received), aval)
    return buckets


def checked_ids(route: PlannedRoute, inputs: Sequence[np.ndarray], num_tokens: int | None, rank: int,
                makers: Mapping[Var, Equation]) -> np.ndarray:
    """The ids of a rank's tokens, once they and the weights that decide are checked."""
    aval, who = route.aval, "hpmoe.dispatch" + (f" on rank {rank}" if route.aval.ep_size > 1 else "")
    ids = inputs[known(route.ids)].reshape(-1, aval.num_choices)[:num_tokens]
    check_topk_ids(ids, aval.num_model_experts, who, _origin(makers.get(route.key[0]), route.source))
    if route.weights is not None:
        check_topk_weights(ids, inputs[route.weights].reshape(-1, aval.num_choices)[:num_tokens], rank, aval.ep_size)
    return ids


def with_int32_ids(program: Program, inputs: Arrays) -> Arrays:
    """The inputs with ids, which are checked, as kernels read them."""
    wide = {i for i in (route.ids for route in routes_of(program)) if program.inputs[known(i)].aval.dtype == "int64"}
    return [[a.astype(np.int32) if i in wide else a for i, a in enumerate(mine)] for mine in inputs] if wide else inputs


def _origin(maker: Equation | None, source: str) -> str:
    """Returns a sentence for errors: the equation that computed the ids, or the line that dispatches given ids."""
    if maker is None:
        return f" The dispatch is written at {source}." if source else ""
    return f" They are computed by {maker.primitive.name}" + (f", written at {maker.source}." if maker.source else ".")


def run_ir(ir: AnyIR, inputs: Arrays, num_tokens: Sequence[int] | None, seed: int | None,
            into: Mapping[int, Sequence[np.ndarray]] | None = None) -> Arrays:
    """Computes the outputs of all ranks: a Program and a Taskflow in NumPy, a kernel natively unless a seed is given.

    Where `into` has arrays of an output, one a rank, its values end up there.
    """
    outputs = _outputs(ir, inputs, num_tokens, seed, into or {})
    put_into(into or {}, outputs)
    return outputs


def put_into(into: Mapping[int, Sequence[np.ndarray]], outputs: Arrays) -> None:
    """Copies outputs to where they are wanted, unless they lie there."""
    for j, arrays in into.items():
        for rank, array in enumerate(arrays):
            if not np.may_share_memory(outputs[rank][j], array):
                array[...] = outputs[rank][j]


def _outputs(ir: AnyIR, inputs: Arrays, num_tokens: Sequence[int] | None, seed: int | None,
             into: Mapping[int, Sequence[np.ndarray]]) -> Arrays:
    if isinstance(ir, Program):
        return evaluate(ir, inputs, num_tokens)
    if isinstance(ir, Taskflow):
        return interpret(ir, inputs, num_tokens, seed)
    if seed is not None:
        return interpret(ir.flow, inputs, num_tokens, seed)
    return ir.run(inputs, num_tokens, into=into)
