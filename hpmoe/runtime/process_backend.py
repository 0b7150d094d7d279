"""Calls where each rank is a process: it brings its own arrays, without a rank axis, and gets its own results.

The ranks tell each other once a step how many rows go where; from that all choose the same plan, for forward and backward.
A kernel is launched by every process for its own rank. Below that level each computes, from the arrays of all, what all
ranks do, and keeps its part: bitwise the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.padding import check_num_tokens, own_length
from hpmoe.ir.program import Atom, Program
from hpmoe.ir.stages import Part
from hpmoe.ranks.link import Link
from hpmoe.ranks.world import World
from hpmoe.runtime.array_backend import NOWHERE, ArrayBackend, Into, Saved, put_into, with_int32_ids
from hpmoe.runtime.exchanged import ALL_TOKENS, Exchanged, agreed, as_told, exchanged_avals, routes_by_ids
from hpmoe.runtime.one_call import Call
from hpmoe.runtime.planned_rows import checked_ids, planned_rows
from hpmoe.runtime.plans import Plans
from hpmoe.runtime.rank_arrays import Arrays
from hpmoe.support.array_bytes import from_bytes, to_bytes
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import wait_for_calls
from hpmoe.support.remembered import remembered
from hpmoe.support.trees import PyTree


class ProcessBackend(ArrayBackend):
    """One rank of a World; see ArrayBackend.

    Attributes:
        link: to the ranks that share experts; None if there are no others.
        first: the number of the first of these ranks.
        name: name of the called function.
    """

    def __init__(self, plans: Plans, world: World):
        super().__init__(plans)
        self.link, self.first = world.link, world.rank - (world.link.rank if world.link else 0)
        self.name = getattr(plans.staged.function, "__name__", "a function")

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """Returns the number of this rank's tokens, as a tuple of one."""
        return own_length(num_tokens)

    def calling(self) -> contextlib.AbstractContextManager[None]:
        """See Backend; it waits for compiled graphs, which run on when their call has returned, so that all ranks agree."""
        wait_for_calls()
        return self.in_step()

    def in_step(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.link is None else self.link.calling(f"a call of {self.name}")

    def agreed(self, call: Call) -> Call:
        """Returns the call; for a rank without tokens the call of the other ranks' shapes, as with num_tokens=0."""
        if self.link is None or call.given is None:
            return call
        own = as_told(call.given)
        told = self.link.meet(f"a call of {self.name}", own)
        if all(data == own for data in told):
            return call
        given = agreed(self.plans.staged.function, call.given, told, self.link.rank, self.first)
        if given is call.given:
            return call
        traced = self.plans.trace(given)
        check_num_tokens("spmd", traced.program, (0,), traced.padding_fault)
        return dataclasses.replace(call, traced=traced, lengths=(0,), own=call.traced)

    def forward(self, call: Call, tensors: Sequence[Tensor], saves: bool) -> tuple[list[Tensor], Saved]:
        outputs, saved = super().forward(call, _of_all(call.traced.program.inputs, tensors), saves)
        return _of_own(call, outputs), saved

    def backward(self, call: Call, saved: Saved, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        lin, outputs = call.traced.linearized, call.traced.program.outputs
        with self.in_step():
            grads = super().backward(call, saved, _of_all([outputs[i] for i in lin.cotangents], cotangents))
        if call.own is None:
            return grads
        own = call.own.program.inputs[:call.own.num_args]
        return [grad if i >= len(own) else _like(own[i].aval, grad)
                for i, grad in zip(lin.differentiable, grads, strict=True)]

    def told_avals(self, program: Program) -> list[ShapeDtypeStruct]:
        return [] if self.link is None else exchanged_avals(routes_by_ids(program))

    def run(self, call: Call, program: Program, arrays: Sequence[np.ndarray]) -> Arrays:
        exchanged = Exchanged()
        (outputs,) = super().run(dataclasses.replace(call, exchanged=exchanged), program, arrays)
        return [[*outputs, *(exchanged.as_array(program) for _ in self.told_avals(program))]]

    def gradients(self, call: Call, kept: Sequence[np.ndarray], saved: Arrays,
                  cotangents: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        (values,), forward, exchanged = saved, call.traced.linearized.forward, Exchanged()
        if self.told_avals(forward):
            *values, told = values
            exchanged.add(routes_by_ids(forward), told)
        return super().gradients(dataclasses.replace(call, exchanged=exchanged), kept, [values], cotangents)

    def launch(self, call: Call, part: Part, inputs: Arrays, into: Into = NOWHERE) -> Arrays:
        program = part.program
        if self.link is None or program.ep_size == 1:  # no rows go to other ranks
            return super().launch(call, part, inputs, into)
        exchanged = known(call.exchanged)
        self._exchange(self.link, exchanged, call, part, inputs[0])
        ir = self.plans.plan(program, planned_rows(program, exchanged.received(program)))
        if ir.level == "kernel" and ir.reaches(self.link) and call.seed is None:
            (own,), counts = with_int32_ids(program, inputs), exchanged.of_program(program)
            outputs = [ir.run_rank(self.link, own, counts, exchanged.lengths, into={j: mine for j, (mine,) in into.items()})]
        else:
            of_ranks = with_int32_ids(program, self._gathered(self.link, part, inputs))
            everywhere = {j: [np.zeros_like(mine) for _ in of_ranks] for j, (mine,) in into.items()}
            computed = ir.run(of_ranks, exchanged.lengths, seed=call.seed, into=everywhere)
            put_into(everywhere, computed)
            outputs = [computed[self.link.rank]]
        put_into(into, outputs)
        return outputs

    def _exchange(self, link: Link, exchanged: Exchanged, call: Call, part: Part, inputs: Sequence[np.ndarray]) -> None:
        """Tells all ranks what is not known yet of a program's routes."""
        own = None if call.lengths is None else call.lengths[0]
        counts = [np.array([ALL_TOKENS if own is None else own])]
        missing = exchanged.missing(part.program)
        for route in missing:
            ids = checked_ids(route, inputs, own, link.rank, part.makers)
            counts.append(route.aval.kind.by_ids.counts(link.rank, ids))
        if missing:
            what, key = _described(part.program)
            exchanged.add(missing, link.exchange(what, np.concatenate(counts), key))

    def _gathered(self, link: Link, part: Part, inputs: Arrays) -> Arrays:
        """Returns the arrays of all ranks."""
        what, key = _described(part.program)
        return [from_bytes(data) for data in link.meet(what, to_bytes(inputs[0]), key)]


def _of_all(atoms: Sequence[Atom], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns tensors of the shapes that all ranks compute with: zeros replace missing rows."""
    return [known(_like(atom.aval, x)) for atom, x in zip(atoms, tensors, strict=True)]


def _of_own(call: Call, outputs: list[Tensor]) -> list[Tensor]:
    """Returns outputs in the shapes of this rank: no rows if it has no tokens."""
    if call.own is None:
        return outputs
    return [known(_like(atom.aval, x)) for atom, x in zip(call.own.program.outputs, outputs, strict=True)]


def _like(aval: ShapeDtypeStruct | RouteAval, x: Tensor | None) -> Tensor | None:
    """Returns a tensor, or zeros if a rank without tokens has another shape of it."""
    if x is None or tuple(x.shape) == aval.shape or not all(isinstance(d, int) for d in aval.shape):
        return x
    return Tensor.from_numpy(np.zeros(fixed(aval.shape), numpy_dtype(aval.dtype)))


@remembered
def _described(program: Program) -> tuple[str, bytes]:
    """Returns a program in words, and as bytes that no other program has."""
    shapes = ", ".join(f"{name}:{v.aval}" for name, v in zip(program.input_names, program.inputs, strict=True))
    return f"{program.name}({shapes})", str(program).encode()
