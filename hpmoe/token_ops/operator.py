"""A function of tensors that runs call by call, and in a compiled graph as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpmoe.runtime.staged import Staged
from hpmoe.runtime.staged_function import StagedFunction


class Operator(StagedFunction):
    """Calls its function: on tensors natively, on those of a trace as equations. A graph traces it and runs its Program."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def operator(f: Callable[..., Any]) -> Operator:
    """The function as an operator; a decorator."""
    return Operator(f, Staged(f))
