"""Calls on arrays: tensors share their memory with NumPy arrays, and one launch computes for all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.padding import rank_lengths
from hpmoe.ir.program import Program
from hpmoe.ir.stages import Part, PartValues, cut_at_routes
from hpmoe.runtime.array_graph import ArrayGraphCall
from hpmoe.runtime.backend import Backend
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, any_rows, planned_rows, received_by_ids, routes_of
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.rank_arrays import Arrays, stacked, summed, to_array, to_arrays
from hpmoe.support.dtypes import rounded
from hpmoe.support.known import known
from hpmoe.support.remembered import remembered
from hpmoe.support.trees import PyTree

Into = Mapping[int, Sequence[np.ndarray]]  # for some outputs, by position, the array of each rank to write them to
Saved = tuple[list[np.ndarray], Arrays]  # inputs that the backward pass reads, of all ranks, and saved values of each rank
NOWHERE: Into = {}


class ArrayBackend(Backend[Saved]):
    """Stages the data of a call, finds the plan for the rows that the ids make a rank receive, and runs it. See Backend.

    Attributes:
        plans: the plans of the function.
        ep_size: number of ranks.
        batched: True if arrays carry a leading rank axis; else they belong to one rank.
        num_here: ranks whose arrays are in this process.
    """

    def __init__(self, plans: Plans):
        self.plans, self.ep_size, self.batched = plans, plans.mesh.num_ranks, plans.batched
        self.num_here = self.ep_size if self.batched else 1

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """Returns the number of tokens of each rank."""
        return rank_lengths("spmd", num_tokens, self.ep_size)

    def planned(self, traced: Traced, tensors: Sequence[Tensor | ShapeDtypeStruct]) -> tuple[Arrays | None,
                                                                                             dict[RouteKey, PlannedRows]]:
        program = traced.program
        if (self.batched or self.ep_size == 1) and all(isinstance(x, Tensor) for x in tensors):
            arrays = traced.arrays_of([*tensors, *program.captures])
            inputs = self.per_rank(traced, arrays, range(len(arrays)))
            return inputs, planned_rows(program, received_by_ids(program, inputs, None))
        return None, any_rows(program)

    def forward(self, call: Call, tensors: Sequence[Tensor], saves: bool) -> tuple[list[Tensor], Saved]:
        traced, arrays, call.counted = call.traced, call.traced.arrays_of(tensors), {}
        outputs = self.run(call, traced.linearized.forward if saves else traced.program, arrays)
        count = len(traced.program.outputs)
        kept = [arrays[i] for i in traced.linearized.kept_inputs] if saves else []
        return [Tensor.from_numpy(a) for a in self.results(traced, outputs)], (kept, [rank[count:] for rank in outputs])

    def backward(self, call: Call, saved: Saved, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        grads = self.gradients(call, *saved, to_arrays(cotangents))
        return [None if grad is None else Tensor.from_numpy(grad) for grad in grads]

    def in_graph(self, call: Call, num_args: int) -> ArrayGraphCall:
        return ArrayGraphCall(call, num_args, self)

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        """Returns the context of one pass of a call, forward or backward, that MindSpore runs; see Backend.calling."""
        return contextlib.nullcontext()

    def told_avals(self, program: Program) -> list[ShapeDtypeStruct]:
        """Returns the avals that `run` returns beyond a program's outputs, for the backward pass."""
        return []

    def run(self, call: Call, program: Program, arrays: Sequence[np.ndarray]) -> Arrays:
        """Returns the outputs of every rank, of the traced program or of its linearized forward pass."""
        inputs, parts = self.per_rank(call.traced, arrays, range(len(arrays))), cut_at_routes(program)
        if len(parts) == 1:
            return self.launch(call, parts[0], inputs)
        values = PartValues(program, inputs)
        for part in parts:
            values.add(part, self.launch(call, part, values.inputs_of(part)))
        return values.outputs()

    def gradients(self, call: Call, kept: Sequence[np.ndarray], saved: Arrays,
                  cotangents: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Returns the gradients of the differentiable inputs; None for a gradient that is added to a main gradient instead.

        `kept` are the inputs that the backward pass reads, `saved` the values that the forward pass saved on each rank.
        """
        traced, lin, outputs = call.traced, call.traced.linearized, call.traced.program.outputs
        inputs = self.per_rank(traced, kept, lin.kept_inputs)
        cotangents = [rounded(g, outputs[i].aval.dtype) for i, g in zip(lin.cotangents, cotangents, strict=True)]
        mains = self._main_grads(traced)
        arrays = [[*mine, *saved[r], *(g[r] if self.batched else g for g in cotangents),
                   *(parts[r] for parts in mains.values())] for r, mine in enumerate(inputs)]
        (backward,) = cut_at_routes(lin.backward)
        grads: list[np.ndarray | None] = []
        columns = zip(*self.launch(call, backward, arrays, mains), strict=True)
        for j, (i, parts) in enumerate(zip(lin.differentiable, columns, strict=True)):
            is_summed = self.batched and i in traced.replicated
            if is_summed and j in mains:
                mains[j][0][...] = summed(parts)
            grads.append(None if j in mains else summed(parts) if is_summed else self._joined(parts))
        return grads

    def launch(self, call: Call, part: Part, inputs: Arrays, into: Into = NOWHERE) -> Arrays:
        """Runs one part of a program: counts the rows that each rank receives, finds the plan for them, launches."""
        program = part.program
        received = received_by_ids(program, inputs, call.lengths, part.makers, call.counted)
        ir = self.plans.plan(program, planned_rows(program, received))
        outputs = ir.run(with_int32_ids(program, inputs), call.lengths, seed=call.seed, into=into,
                         received=[rows for rows in received if rows is not None])
        if into:
            put_into(into, outputs)
        return outputs

    def results(self, traced: Traced, outputs: Arrays) -> list[np.ndarray]:
        """Returns the program's own outputs, without saved values, as arrays of their declared dtypes."""
        dtypes = [a.aval.dtype for a in traced.program.outputs]
        return [self._joined([rounded(r[i], dtype) for r in outputs]) for i, dtype in enumerate(dtypes)]

    def _main_grads(self, traced: Traced) -> dict[int, list[np.ndarray]]:
        """Returns, by gradient, the main gradient of each rank to which it is added, in the tensor's memory."""
        program, mains = traced.program, {}
        for j, i in enumerate(traced.linearized.differentiable):
            if program.inputs[i] in program.main_grads:
                array = to_array(program.main_grads[program.inputs[i]])  # asnumpy copies a view
                others = (np.zeros_like(array) for _ in range(self.num_here - 1))
                mains[j] = [array, *others] if i in traced.replicated else list(array)
        return mains

    def per_rank(self, traced: Traced, arrays: Sequence[np.ndarray], positions: Iterable[int]) -> Arrays:
        """Returns each rank's part of the arrays, program inputs; every rank reads the whole of a replicated array."""
        if not self.batched:
            return [list(arrays)]
        is_split = [i not in traced.replicated for i in positions]
        return [[a[r] if split else a for a, split in zip(arrays, is_split, strict=True)] for r in range(self.ep_size)]

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns one array from the ranks' arrays."""
        array = stacked(parts) if self.batched else parts[0]
        return array if array.flags.c_contiguous else array.copy()


def with_int32_ids(program: Program, inputs: Arrays) -> Arrays:
    """Returns the inputs with checked ids as int32, as kernels read them."""
    wide = _wide_ids(program)
    return [[a.astype(np.int32) if i in wide else a for i, a in enumerate(mine)] for mine in inputs] if wide else inputs


@remembered
def _wide_ids(program: Program) -> frozenset[int]:
    """Returns the inputs of a program that are int64 ids."""
    ids = (known(route.ids) for route in routes_of(program))
    return frozenset(i for i in ids if program.inputs[i].aval.dtype == "int64")


def put_into(into: Into, outputs: Arrays) -> None:
    """Copies outputs to the arrays of `into`, unless they share memory."""
    for j, arrays in into.items():
        for rank, array in enumerate(arrays):
            if not np.may_share_memory(outputs[rank][j], array):
                array[...] = outputs[rank][j]
