"""A function of tensors that runs call by call, and in a compiled graph as one operator."""

from __future__ import annotations

from hpmoe.runtime.staged import Staged
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree


class Operator(StagedFunction):
    """Callable that runs a function natively on tensors, adds equations to a trace, and is one operator in a graph."""

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        return self.function(*args, **kwargs)


def operator(f: Function) -> Operator:
    """Returns the function as an Operator; a decorator."""
    return Operator(suggests_keywords(f), Staged(f))
