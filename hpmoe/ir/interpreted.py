"""Interpreted: IR that runs by an interpreter, which a later layer gives to the class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from hpmoe.support.trees import PyTree


class Interpreted:
    """The base of IR that an interpreter runs.

    Attributes:
        interpreter: function (ir, inputs, num_tokens, **options) -> outputs of every rank.
    """

    interpreter: ClassVar[Callable[..., list[list[np.ndarray]]]]

    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            **options: PyTree) -> list[list[np.ndarray]]:
        """Computes the outputs of every rank; see `hpmoe.ir.stages.IR`."""
        return type(self).interpreter(self, inputs, num_tokens, **options)
