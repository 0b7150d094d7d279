"""What a plain function computes in double precision, forward and backward, and how far from it others may be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import optree

from hpmoe.autodiff.vjp import Linearized, linearize
from hpmoe.interpreters.evaluate import evaluate
from hpmoe.ir.program import Program, Var
from hpmoe.machines.machine import Mesh
from hpmoe.support.trees import Function, PyTree
from hpmoe.tracing.entry import trace_with_tree

# Of results, relative to the largest: one rounding of half precision; in float32 also sums in another order.
UNITS = {"bfloat16": 2.0 ** -8, "float16": 2.0 ** -11, "float32": 2.0 ** -19}
Values = dict[str, list[np.ndarray]]  # by what it is, of each rank


class Reference:
    """A plain function, traced and differentiated before any transform, which NumPy computes in float64.

    Attributes:
        program: of one rank.
        linearized: its two directions; only asked for where gradients are.
    """

    def __init__(self, f: Function, avals: Sequence[PyTree], mesh: Mesh):
        self.program, self._out_tree = trace_with_tree(f, tuple(avals), mesh)
        self._linearized: Linearized | None = None

    @property
    def linearized(self) -> Linearized:
        if self._linearized is None:
            self._linearized = linearize(self.program)
        return self._linearized

    @property
    def outputs(self) -> list[str]:
        """How results are called: `output`, or `output[0]['scores']` where there are several."""
        return [accessor.codify("output") for accessor in optree.treespec_accessors(self._out_tree)]

    @property
    def gradients(self) -> list[str]:
        """How gradients are called, `gradient of x`, in order."""
        return [gradient_name(self.program, i) for i in self.linearized.differentiable]

    def forward(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None) -> Values:
        """The results of each rank, of the program's inputs on each."""
        return _by_name(self.outputs, evaluate(self.program, inputs, num_tokens, dtype="float64"))

    def backward(self, inputs: Sequence[Sequence[np.ndarray]], cotangents: Sequence[Sequence[np.ndarray]],
                 num_tokens: Sequence[int] | None) -> Values:
        """The gradients on each rank; what the function closes over belongs to all ranks, which add theirs up."""
        lin, count = self.linearized, len(self.program.outputs)
        outs = evaluate(lin.forward, inputs, num_tokens, dtype="float64")
        given = [[*(mine[i] for i in lin.kept_inputs), *outs[rank][count:], *cotangents[rank]]
                 for rank, mine in enumerate(inputs)]
        values = _by_name(self.gradients, evaluate(lin.backward, given, num_tokens, dtype="float64"))
        num_args = len(self.program.inputs) - len(self.program.captures)
        for name, i in zip(values, lin.differentiable, strict=True):
            if i >= num_args:
                values[name] = [np.asarray(sum(values[name]))] * len(inputs)
        return values

    def tolerance(self, grads: bool) -> float:
        """How far a value may be off, relative to the largest of its array: a rounding for each step on the way to it."""
        programs = [self.linearized.forward, self.linearized.backward] if grads else [self.program]
        values = [v for p in programs for v in (*p.inputs, *(v for e in p.equations for v in e.outputs))]
        unit = max((UNITS.get(getattr(v.aval, "dtype", ""), 0.0) for v in values), default=0.0)
        return unit * (2 + num_roundings(programs))


def gradient_name(program: Program, i: int) -> str:
    """How the gradient of an input is called."""
    return f"gradient of {program.input_names[i]}"


def _by_name(names: Sequence[str], of_ranks: Sequence[Sequence[np.ndarray]]) -> Values:
    return {name: [arrays[i] for arrays in of_ranks] for i, name in enumerate(names)}


def num_roundings(programs: Sequence[Program]) -> int:
    """Equations on the longest path from an input through programs, each of which may read what those before computed."""
    depth: dict[Var, int] = {}
    for program in programs:
        start = max(depth.values(), default=0)
        for eqn in program.equations:
            before = [depth.get(a, start) for a in eqn.inputs if isinstance(a, Var)]
            depth.update(dict.fromkeys(eqn.outputs, 1 + max(before, default=start)))
    return max(depth.values(), default=0)
