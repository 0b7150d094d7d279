"""A function of tensors that runs call by call, and in a compiled graph as one operator."""

from __future__ import annotations

from hpmoe.runtime.staged import Staged
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree


class Operator(StagedFunction):
    """Calls its function: on tensors natively, on those of a trace as equations. A graph traces it and runs its Program."""

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.function(*args, **kwargs)


def operator(f: Function) -> Operator:
    """The function as an operator; a decorator."""
    return Operator(suggests_keywords(f), Staged(f))
