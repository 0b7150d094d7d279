"""Waits and signals one by one, as rows that are quick to ask and to keep, and how many events each may be about."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpmoe.ir import taskflow as tf


class Task(NamedTuple):
    """A row of a TASK array."""

    op: int
    peer: int
    row: int
    col: int
    cols: int


class Wait(NamedTuple):
    """A row of a WAIT array."""

    task: int
    event: int
    kind: int


class Signal(NamedTuple):
    """A row of a SIGNAL array."""

    task: int
    event: int
    kind: int
    amount: int
    remote: int


def op_spans(flow: tf.Taskflow) -> np.ndarray:
    """Returns the most consecutive events of a wait or signal of each operation and kind, [num_ops, 3]."""
    sizes = np.ones((len(flow.ops), 3), np.int64)
    for i, op in enumerate(flow.ops):
        if op.domain.route >= 0:
            plan = flow.routes[op.domain.route]
            places = flow.routes[plan.of].num_slots if op.fans_out else plan.num_returns
            sizes[i] = 1, plan.num_local_experts, max(1, places)
    return sizes
