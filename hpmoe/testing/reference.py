"""Reference: the two passes of a function in double precision; and how far from them others may be."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import optree

from hpmoe.autodiff.vjp import Linearized, linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.avals import fixed
from hpmoe.ir.program import Program, Var
from hpmoe.ir.stages import Stages, cut_at_routes
from hpmoe.machines.machine import Mesh
from hpmoe.runtime.rank_arrays import to_array
from hpmoe.runtime.staged import Staged, Step
from hpmoe.support.trees import PyTree
from hpmoe.tracing.entry import trace_with_tree

# Of results, relative to the largest: one rounding of half precision; in float32 also sums in another order.
UNITS = {"bfloat16": 2.0 ** -8, "float16": 2.0 ** -11, "float32": 2.0 ** -19}
Values = dict[str, list[np.ndarray]]  # by what it is, of each rank
Arrays = Sequence[Sequence[np.ndarray]]  # of each rank


class Reference:
    """The two passes of a function, plain or under Program transforms, which NumPy computes in float64.

    Attributes:
        program: Program of one rank, whose gradient is taken.
        steps: rewrites of each pass after differentiation.
        linearized: the two passes before these steps; made only for gradients.
    """

    def __init__(self, program: Program, out_tree: optree.PyTreeSpec, steps: Sequence[Step] = ()):
        self.program, self.out_tree, self.steps = program, out_tree, tuple(steps)

    @classmethod
    def of(cls, staged: Staged, avals: Sequence[PyTree], mesh: Mesh) -> Reference:
        """Returns the reference of a function under its Program transforms, without its other transforms."""
        program, out_tree = trace_with_tree(staged.function, tuple(avals), mesh)
        return cls(staged.apply_before_gradient(program), out_tree, staged.of_programs)

    def under(self, steps: Sequence[Step]) -> Reference:
        """Returns the reference with other rewrites of each pass."""
        return Reference(self.program, self.out_tree, steps)

    @functools.cached_property
    def linearized(self) -> Linearized:
        return linearize(self.program)

    def _rewritten(self, program: Program) -> Program | Stages:
        parts = [part.program for part in cut_at_routes(program)]
        for step in self.steps:
            parts = [step.apply_to(part) for part in parts]
        return parts[0] if len(parts) == 1 else Stages(program, tuple(parts))

    @functools.cached_property
    def _passes(self) -> tuple[Program | Stages, Program | Stages]:
        return self._rewritten(self.linearized.forward), self._rewritten(self.linearized.backward)

    @property
    def outputs(self) -> list[str]:
        """Names of the results: `output`, or `output[0]['scores']` if there are several."""
        return [accessor.codify("output") for accessor in optree.treespec_accessors(self.out_tree)]

    @property
    def gradients(self) -> list[str]:
        """Names of the gradients, `gradient of x`, in order."""
        return [gradient_name(self.program, i) for i in self.linearized.differentiable]

    def forward(self, args: Arrays, num_tokens: Sequence[int] | None) -> Values:
        """Returns the results of each rank from its arguments."""
        program = self._rewritten(self.program)
        return _by_name(self.outputs, interpret(program, self.inputs(args), num_tokens, dtype="float64"))

    def backward(self, args: Arrays, cotangents: Arrays, num_tokens: Sequence[int] | None) -> Values:
        """Returns the gradients on each rank; ranks add up those of tensors that the function closes over."""
        values = self.gradients_of(self.inputs(args), cotangents, num_tokens)
        num_args = len(self.program.inputs) - len(self.program.captures)
        for name, i in zip(values, self.linearized.differentiable, strict=True):
            if i >= num_args:
                values[name] = [np.asarray(sum(values[name]))] * len(args)
        return values

    def inputs(self, args: Arrays) -> list[list[np.ndarray]]:
        """Returns the inputs of the program on each rank: arguments, and tensors that the function closes over."""
        return [[*mine, *map(to_array, self.program.captures)] for mine in args]

    def results_of(self, inputs: Arrays, num_tokens: Sequence[int] | None) -> list[list[np.ndarray]]:
        """Returns the outputs of the forward pass on each rank: results, then saved values."""
        return interpret(self._passes[0], inputs, num_tokens, dtype="float64")

    def gradients_of(self, inputs: Arrays, cotangents: Arrays, num_tokens: Sequence[int] | None) -> Values:
        """Returns the outputs of the backward pass on each rank, with main gradients that begin at 0."""
        lin, count = self.linearized, len(self.program.outputs)
        mains = [np.zeros(fixed(self.program.inputs[i].aval.shape)) for i in lin.differentiable
                 if self.program.inputs[i] in self.program.main_grads]
        outs = self.results_of(inputs, num_tokens)
        given = [[*(mine[i] for i in lin.kept_inputs), *outs[rank][count:], *cotangents[rank], *mains]
                 for rank, mine in enumerate(inputs)]
        return _by_name(self.gradients, interpret(self._passes[1], given, num_tokens, dtype="float64"))

    def tolerance(self, grads: bool, coarsest: str | None = None) -> float:
        """Returns the tolerance of a value, relative to the largest of its array: a rounding for each step that leads to it,
        in the coarsest dtype of the program by default."""
        programs = [self.linearized.forward, self.linearized.backward] if grads else [self.program]
        values = [v for p in programs for v in (*p.inputs, *(v for e in p.equations for v in e.outputs))]
        unit = max((UNITS.get(getattr(v.aval, "dtype", ""), 0.0) for v in values), default=0.0)
        return (unit if coarsest is None else UNITS[coarsest]) * (2 + num_roundings(programs))


def gradient_name(program: Program, i: int) -> str:
    """Returns the name of an input's gradient."""
    return f"gradient of {program.input_names[i]}"


def _by_name(names: Sequence[str], of_ranks: Sequence[Sequence[np.ndarray]]) -> Values:
    return {name: [arrays[i] for arrays in of_ranks] for i, name in enumerate(names)}


def num_roundings(programs: Sequence[Program]) -> int:
    """Returns the number of equations on the longest path through programs, each of which may read earlier ones."""
    depth: dict[Var, int] = {}
    for program in programs:
        start = max(depth.values(), default=0)
        for eqn in program.equations:
            before = [depth.get(a, start) for a in eqn.inputs if isinstance(a, Var)]
            depth.update(dict.fromkeys(eqn.outputs, 1 + max(before, default=start)))
    return max(depth.values(), default=0)
