"""Backend: what runs calls. There is one on arrays of all ranks, one of ranks that are processes, and one on a device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from mindspore import Tensor

from hpmoe.ir.avals import Aval
from hpmoe.runtime.graph_operators import GraphCall
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey
from hpmoe.runtime.rank_arrays import Arrays
from hpmoe.support.trees import PyTree

S = TypeVar("S")  # what the forward keeps for the backward


class Backend(Protocol[S]):
    """Runs the programs of a call: tensors in, tensors out. What a forward saves for its backward is its own affair."""

    def calling(self) -> AbstractContextManager[None]:
        """Around all of a call: tells the other ranks of an error, where they are processes."""
        ...

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """The numbers of tokens that a user gave, checked."""
        ...

    def check(self, call: Call) -> None:
        """Raises ArgumentError for a call that it cannot run."""

    def agreed(self, call: Call) -> Call:
        """The call that this rank takes part in, where ranks are processes; they agree on shapes first."""
        ...

    def planned(self, traced: Traced, tensors: Sequence[Tensor | Aval]) -> tuple[Arrays | None, dict[RouteKey, PlannedRows]]:
        """The rows of each route that a call of these tensors would be planned for; the arrays of each rank, if it looks."""
        ...

    def compute(self, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, of which no gradient is taken."""
        ...

    def forward(self, call: Call, tensors: Sequence[Tensor]) -> tuple[list[Tensor], S]:
        """The outputs, and what the backward reads."""
        ...

    def backward(self, call: Call, saved: S, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients of the differentiable inputs; None for one that is added to a main gradient instead."""
        ...

    def in_graph(self, call: Call, num_args: int) -> GraphCall:
        """The operators that the call, of so many array arguments, becomes in a compiled graph."""
        ...
