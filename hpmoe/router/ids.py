"""Checks of ids: each is in range, and a token names each expert once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hpmoe.ir.program import Var
from hpmoe.routing.routing import check_topk_ids
from hpmoe.support.errors import ArgumentError
from hpmoe.support.mindspore_private import records_calls
from hpmoe.support.trees import is_traced
from hpmoe.tracing.errors import user_source
from hpmoe.tracing.pynative import current_recorder
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Tracer

Check = Callable[[np.ndarray, str], None]  # of values, and of who was given them; raises ArgumentError


def checked_ids(who: str, topk_ids: Tensor, num_experts: int) -> Tensor:
    """Returns a mask of the ids that are experts, bool [T, K], and checks that a token's ids are distinct experts or -1.

    Called with values on a CPU, it raises ArgumentError at once. In a traced function the staged call raises the error when
    it has computed its results; until then ids that are no experts count as masked. On other devices the ids are not
    checked, as reading them would wait for the device.

    Args:
        who: name of the public function, for the error.
        topk_ids: integers [T, K]; see `check_ids`.
    """
    if not _is_made_by(topk_ids, "top_k"):  # whose ids are distinct experts
        # Padding is 0 in what a program returns: 0 stands for -1 there.
        check_values(who, topk_ids, lambda ids, by: check_topk_ids(ids, num_experts, by), offset=1)
    return mint.logical_and(topk_ids >= 0, topk_ids < num_experts)


def check_values(who: str, x: Tensor, check: Check, offset: int = 0) -> None:
    """Checks the values of an integer Tensor now, or those of a traced one at the end of each call of the program."""
    if is_traced(x):
        recorder = cast(Recorder, current_recorder())
        tracer = recorder.lift(x)
        report = _Checked(who, check, offset, user_source())
        recorder.reports.append((recorder.atom(tracer + offset if offset else tracer), report))
    elif ms.get_context("device_target") == "CPU" and not records_calls():
        check(x.asnumpy(), who)


def _is_made_by(x: Tensor, name: str) -> bool:
    """Returns True if a tensor is, in a trace, an output of the primitive of this name, or a cast of such an output."""
    if not isinstance(x, Tracer):
        return False
    recorder = cast(Recorder, x.hpmoe_recorder)
    made_by = recorder.maker(x.hpmoe_atom)
    if made_by is not None and made_by.primitive.name == "cast" and isinstance(made_by.inputs[0], Var):
        made_by = recorder.maker(made_by.inputs[0])
    return made_by is not None and made_by.primitive.name == name


@dataclasses.dataclass(frozen=True)
class _Checked:
    """Report of a program, see `Program.reports`, that returns the error of the first rank whose values do not fit."""

    who: str
    check: Check
    offset: int
    source: str

    def __call__(self, found: np.ndarray, has_ranks: bool) -> ArgumentError | None:
        for rank, values in enumerate(found if has_ranks else [found]):
            try:
                self.check(values - self.offset, f"{self.who} on rank {rank}" if has_ranks else self.who)
            except ArgumentError as error:
                error.args = (f"{error}" + (f"\n  written at {self.source}" if self.source else ""),)
                return error
        return None
