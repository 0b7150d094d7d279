"""Calls on arrays: tensors share their memory with NumPy arrays, on which one run computes what all ranks do."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import Aval
from hpmoe.ir.padding import rank_lengths
from hpmoe.runtime.array_graph import ArrayGraphCall
from hpmoe.runtime.array_runs import ArrayRuns, received_rows
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, any_rows
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.rank_arrays import Arrays, to_arrays
from hpmoe.support.trees import PyTree

Saved = tuple[list[np.ndarray], Arrays]  # of all ranks: inputs that are read again, and values of each rank


class ArrayBackend:
    """See Backend."""

    def __init__(self, plans: Plans):
        self.runs = ArrayRuns(plans)

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return self.runs.calling()

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """One number for each rank."""
        return rank_lengths("spmd", num_tokens, self.runs.ep_size)

    def check(self, call: Call) -> None:
        """It runs every call."""

    def agreed(self, call: Call) -> Call:
        return self.runs.agreed(call)

    def planned(self, traced: Traced, tensors: Sequence[Tensor | Aval]) -> tuple[Arrays | None, dict[RouteKey, PlannedRows]]:
        program, runs = traced.program, self.runs
        if (runs.batched or runs.ep_size == 1) and all(isinstance(x, Tensor) for x in tensors):
            arrays = traced.arrays_of([*tensors, *program.captures])
            inputs = runs.per_rank(traced, arrays, range(len(arrays)))
            return inputs, received_rows(program, inputs, None)
        return None, any_rows(program)

    def compute(self, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
        outputs = self.runs.run(call, call.traced.program, call.traced.arrays_of(tensors))
        return [Tensor.from_numpy(a) for a in self.runs.results(call.traced, outputs)]

    def forward(self, call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Saved]:
        lin, arrays = call.traced.linearized, call.traced.arrays_of(tensors)
        outputs = self.runs.run(call, lin.forward, arrays)
        count = len(call.traced.program.outputs)
        saved = [arrays[i] for i in lin.kept_inputs], [rank[count:] for rank in outputs]
        return [Tensor.from_numpy(a) for a in self.runs.results(call.traced, outputs)], saved

    def backward(self, call: Call, saved: Saved, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        kept, residuals = saved
        grads = self.runs.gradients(call, kept, residuals, to_arrays(cotangents))
        return [None if grad is None else Tensor.from_numpy(grad) for grad in grads]

    def in_graph(self, call: Call, num_args: int) -> ArrayGraphCall:
        return ArrayGraphCall(call, num_args, self.runs)
