"""One call: what it computes, traced for its shapes, and of how many tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import optree
from mindspore import Tensor

from hpmoe.autodiff.vjp import Linearized, linearize
from hpmoe.ir.padding import padding_fault
from hpmoe.ir.program import Program, Var, is_differentiable
from hpmoe.runtime.arguments import Arguments
from hpmoe.runtime.exchanged import Exchanged
from hpmoe.runtime.planned_rows import Counted, routes_of
from hpmoe.runtime.rank_arrays import to_arrays
from hpmoe.support.errors import ProgramError


class Traced:
    """A Program in both directions, traced for the shapes of a call, and the tree of what the function returns.

    `replicated` are the inputs that all ranks are given whole, captures too; their gradients are summed over ranks.
    """

    def __init__(self, program: Program, out_tree: optree.PyTreeSpec, replicated: frozenset[int]):
        self.program, self.out_tree, self.replicated = program, out_tree, replicated
        self._asked: dict[frozenset[Var], Traced] = {}

    @functools.cached_property
    def num_args(self) -> int:
        """Number of inputs that are array arguments; the inputs after them are captures."""
        return len(self.program.inputs) - len(self.program.captures)

    @functools.cached_property
    def deciding(self) -> frozenset[int | None]:
        """Indices of the inputs that decide where rows go: ids, and weights that decide which entries are dropped."""
        return frozenset(i for route in routes_of(self.program) for i in (route.ids, route.weights))

    def arrays_of(self, tensors: Iterable[Tensor]) -> list[np.ndarray]:
        """Returns the inputs as arrays, with copies of those that decide where rows go, which the backward reads again."""
        return [a.copy() if i in self.deciding else a for i, a in enumerate(to_arrays(tensors))]

    @functools.cached_property
    def linearized(self) -> Linearized:
        return linearize(self.program)

    def asked(self, needed: Sequence[bool]) -> Traced:
        """Returns the backward Program without gradients that are not needed, made once. A main gradient is needed."""
        denied = frozenset(v for v, is_needed in zip(self.program.inputs, needed, strict=True)
                           if is_differentiable(v) and not is_needed and v not in self.program.main_grads)
        if denied <= self.program.frozen:
            return self
        if denied not in self._asked:
            program = self.program.replace(frozen=self.program.frozen | denied)
            self._asked[denied] = Traced(program, self.out_tree, self.replicated)
        return self._asked[denied]

    def report(self, found: Sequence[np.ndarray], has_ranks: bool) -> None:
        """Hands the outputs that are no results to what reports them; raises the first error, once all are told."""
        errors = [report(array, has_ranks) for report, array in zip(self.program.reports, found, strict=True)]
        for error in filter(None, errors):
            raise error

    @functools.cached_property
    def padding_fault(self) -> tuple[int, str] | None:
        return padding_fault(self.program)


@dataclasses.dataclass(slots=True)
class Call:
    """One call of a staged function, whose arguments passed all checks; a Backend runs its forward and backward pass."""

    traced: Traced
    lengths: tuple[int, ...] | None = None  # real tokens of each rank; on a device of this rank alone; all if None
    seed: int | None = None  # of the order of tasks in the reference interpreter, which computes if not None
    exchanged: Exchanged | None = None  # if ranks are processes, what they have told each other in this step
    given: Arguments | None = None  # the arguments, by which ranks that are processes agree on shapes
    own: Traced | None = None  # traced for this rank's shapes, if it has no tokens and `traced` is for other ranks'
    counted: Counted | None = None  # received rows that the forward pass counted; None if each launch counts

    def second_derivative(self) -> ProgramError:
        """Returns the error of a gradient of the gradient."""
        return ProgramError(f"{self.traced.program.name}: a gradient is taken of its gradient; backward kernels are "
                            "not differentiable, take second derivatives of the plain function")
