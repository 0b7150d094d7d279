"""Checks of ids: each is in range, and a token names each expert once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hpmoe.routing.routing import check_topk_ids
from hpmoe.support.errors import ArgumentError
from hpmoe.support.mindspore_private import records_calls
from hpmoe.support.trees import is_traced
from hpmoe.tracing.errors import user_source
from hpmoe.tracing.reports import is_made_by, report_values

Check = Callable[[np.ndarray, str], None]  # of values, and of who was given them; raises ArgumentError


def checked_ids(who: str, topk_ids: Tensor, num_experts: int) -> Tensor:
    """Returns True for each id that is an expert, bool [T, K].

    Raises ArgumentError unless the ids of each token are distinct experts, or -1.

    `topk_ids` are integers of two dimensions: see `check_ids`.

    A program raises at the end of a call, so that it computes with ids that this function says are no experts. Values on
    another device than a CPU are not read: that would wait for the device.
    """
    if not is_made_by(topk_ids, "top_k"):  # whose ids are distinct experts
        # Padding is 0 in what a program returns: 0 stands for -1 there.
        check_values(who, topk_ids, lambda ids, by: check_topk_ids(ids, num_experts, by), offset=1)
    return mint.logical_and(topk_ids >= 0, topk_ids < num_experts)


def check_values(who: str, x: Tensor, check: Check, offset: int = 0) -> None:
    """Checks the values of an integer Tensor now, or those of a traced one at the end of each call of the program."""
    if is_traced(x):
        report_values(x, _Checked(who, check, offset, user_source()), offset)
    elif ms.get_context("device_target") == "CPU" and not records_calls():
        check(x.asnumpy(), who)


@dataclasses.dataclass(frozen=True)
class _Checked:
    """A report of a program, see `Program.reports`: the error of the first rank whose values do not fit."""

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
