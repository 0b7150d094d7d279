"""Public functions of primitives run call by call, reading values, which a graph that MindSpore compiles cannot contain.

What such a graph can contain is the call of a staged function, see hpmoe.runtime.graph_mode.
"""

from __future__ import annotations

from typing import NoReturn, TypeVar, cast

import numpy as np
from mindspore import Tensor, ops

from hpmoe.support.errors import ProgramError
from hpmoe.support.mindspore_private import AskedByCompiler, end_recording, records_calls
from hpmoe.support.trees import Function

F = TypeVar("F", bound=Function)


def _refuse(who: str) -> NoReturn:
    raise ProgramError(f"{who}: MindSpore cannot compile it into a graph, as it is run call by call; call a staged function "
                       "there, such as hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(f))), which becomes "
                       "one operator")


class _OutsideGraphs(AskedByCompiler):
    """Operator that does nothing when Python calls it, and raises when a graph compiler asks for its result."""

    def __init__(self):
        super().__init__("hpmoe_outside_graphs")

    def __infer__(self, who: dict[str, str]) -> NoReturn:
        _refuse(who["value"])

    def __call__(self, who: str) -> None:
        pass


# What a public function asks first, by its name.
outside_graphs = _OutsideGraphs()


def values_of(who: str, tensor: Tensor) -> np.ndarray:
    """Returns a tensor's values; raises ProgramError while ms.jit(capture_mode="trace") records, which would keep constants.
    """
    if records_calls():
        end_recording()
        _refuse(who)
    return tensor.asnumpy()


def constexpr(f: F) -> F:
    """Returns a function whose result a graph knows when it is compiled, without looking into it."""
    return cast(F, ops.constexpr(f))
