"""Backend: the protocol of what runs calls. There are three: arrays of all ranks, ranks that are processes, and a device."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.runtime.graph_operators import GraphCall
from hpmoe.runtime.one_call import Call, Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey
from hpmoe.runtime.rank_arrays import Arrays
from hpmoe.support.trees import PyTree

NOTHING = contextlib.nullcontext()
S = TypeVar("S")  # what the forward pass saves for the backward pass


class Backend(Protocol[S]):
    """Runs the programs of a call on tensors. Each backend saves for the backward pass in a form of its own."""

    def calling(self) -> AbstractContextManager[None]:
        """Returns the context of a whole call; if ranks are processes, an error in it ends the call of the other ranks."""
        return NOTHING

    def lengths_of(self, num_tokens: PyTree) -> tuple[int, ...]:
        """Returns the checked numbers of tokens of a user."""
        ...

    def check(self, call: Call) -> None:
        """Raises ArgumentError for a call that the backend cannot run."""

    def agreed(self, call: Call) -> Call:
        """Returns the call that this rank takes part in; ranks that are processes agree on shapes here."""
        return call

    def planned(self, traced: Traced, tensors: Sequence[Tensor | ShapeDtypeStruct]) -> tuple[Arrays | None,
                                                                                             dict[RouteKey, PlannedRows]]:
        """Returns the arrays of each rank, if the backend reads them, and the rows that each route of a call is planned for.
        """
        ...

    def forward(self, call: Call, tensors: Sequence[Tensor], saves: bool) -> tuple[list[Tensor], S]:
        """Returns the outputs, and the values that the backward pass reads: nothing unless `saves`."""
        ...

    def backward(self, call: Call, saved: S, cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the gradients of the differentiable inputs; None for a gradient that is added to a main gradient instead.
        """
        ...

    def in_graph(self, call: Call, num_args: int) -> GraphCall:
        """Returns the operators of a call of `num_args` array arguments in a compiled graph."""
        ...
