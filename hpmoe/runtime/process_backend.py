"""Calls where each rank is a process: it brings its own arrays, without a rank axis, and gets its own results.

Each process computes what all ranks do that share experts with it, from all their arrays, and keeps its own part: bitwise
what virtual ranks give.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping

import numpy as np

from hpmoe.ir.padding import own_length
from hpmoe.ir.stages import Part
from hpmoe.ranks.link import Link
from hpmoe.ranks.world import World
from hpmoe.runtime.array_backend import ArrayBackend
from hpmoe.runtime.array_runs import ArrayRuns, received_rows, run_ir, with_int32_ids
from hpmoe.runtime.one_call import Call
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.rank_arrays import Arrays
from hpmoe.support.known import known
from hpmoe.support.trees import PyTree


class ProcessBackend(ArrayBackend):
    """See Backend: one rank of a World."""

    def __init__(self, plans: Plans, world: World):
        self.runs = ProcessRuns(plans, world.link)
        self.name = getattr(plans.staged.function, "__name__", "a function")

    def calling(self) -> contextlib.AbstractContextManager[None]:
        link = self.runs.link
        return contextlib.nullcontext() if link is None else link.calling(f"a call of {self.name}")

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """This rank's own number, as a tuple of one."""
        return own_length(num_tokens)


class ProcessRuns(ArrayRuns):
    """Runs programs of one rank; see ArrayRuns.

    Attributes:
        link: to the ranks that share experts, or None where there are no others.
    """

    def __init__(self, plans: Plans, link: Link | None):
        super().__init__(plans)
        self.link = link

    def _launch(self, call: Call, part: Part, inputs: Arrays,
                into: Mapping[int, list[np.ndarray]] | None = None) -> Arrays:
        program, rank = part.program, known(self.link).rank if self.link else 0
        if self.link is None or program.ep_size == 1:  # nothing goes to other ranks
            return super()._launch(call, part, inputs, into)
        of_ranks, lengths = self._gathered(self.link, call, part, inputs)
        of_ranks[rank] = inputs[0]
        everywhere = {j: [mine if r == rank else np.zeros_like(mine) for r in range(self.ep_size)]
                      for j, (mine,) in (into or {}).items()}
        ir = self.plans.plan(program, received_rows(program, of_ranks, lengths, part.makers))
        return [run_ir(ir, with_int32_ids(program, of_ranks), lengths, call.seed, everywhere)[rank]]

    def _gathered(self, link: Link, call: Call, part: Part, inputs: Arrays) -> tuple[Arrays, tuple[int, ...] | None]:
        """The arrays of all ranks, and their numbers of tokens; None where no rank has padding."""
        program = part.program
        own = None if call.lengths is None else call.lengths[0]
        shapes = ", ".join(f"{name}:{v.aval}" for name, v in zip(program.input_names, program.inputs, strict=True))
        given = link.meet(f"{program.name}({shapes})", pickle.dumps((inputs[0], own), protocol=5), str(program))
        of_ranks, lengths = zip(*map(pickle.loads, given), strict=True)
        if all(length is None for length in lengths):
            return list(of_ranks), None
        whole = routes_of(program)[0].aval.num_tokens
        return list(of_ranks), tuple(whole if length is None else length for length in lengths)
