"""Level: the base of Program and Taskflow. Later modules give each its text and its interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import numpy as np

from hpmoe.support.notebook import NotebookText
from hpmoe.support.trees import PyTree

L = TypeVar("L", bound="Level")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Level(NotebookText):
    """A level of IR: an immutable object that prints itself and runs by an interpreter.

    Attributes:
        name: of the function it came from; the first word of the text.
        ep_size: number of expert-parallel ranks that run it together.
        provenance: transforms applied so far, as printed.
        direction: "forward", or "backward" for the IR of gradients.
        text: function (ir) -> str; `program_text` and `taskflow_text` set it.
        interpreter: function (ir, inputs, num_tokens, **options) -> outputs of every rank; `interpreters` sets it.
    """

    name: str
    _: dataclasses.KW_ONLY
    ep_size: int = 1
    provenance: tuple[str, ...] = ()
    direction: str = "forward"

    text: ClassVar[Callable[..., str]]
    interpreter: ClassVar[Callable[..., list[list[np.ndarray]]]]

    def replace(self: L, **changes: object) -> L:
        return dataclasses.replace(self, **changes)

    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            **options: PyTree) -> list[list[np.ndarray]]:
        """Computes the outputs of every rank; see `hpmoe.ir.stages.IR`."""
        return type(self).interpreter(self, inputs, num_tokens, **options)

    def __str__(self) -> str:
        return type(self).text(self)

    __repr__ = __str__
