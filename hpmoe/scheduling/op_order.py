"""Orders operations: whose tasks come first, where a free worker finds ready ones of several."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.scheduling.rules import rule
from hpmoe.tiling.next_ops import next_ops


def op_order(flow: tf.Taskflow, costs: Sequence[float]) -> list[int]:
    """The operations of a taskflow, those first with the longest chain of costs to the end.

    So what goes to other ranks comes before what stays, such as the gradients of weights, which fills the time in which rows
    are under way.

    Args:
        costs: microseconds of one task of each operation, [num_ops].
    """
    num_ops, after = len(flow.ops), next_ops(flow)
    us = [0.0] * num_ops
    for i in reversed(range(num_ops)):
        us[i] = costs[i] + max((us[j] for j in after[i]), default=0.0)
    return sorted(range(num_ops), key=lambda i: -us[i])


@rule("gradients_last", otherwise=lambda flow, ranked: list(ranked))
def gradients_last(flow: tf.Taskflow, ranked: Sequence[int]) -> list[int]:
    """Has gradients of weights that nothing follows come after all other operations. A task of one sums over all rows of an
    expert, so by the longest chain it would come before rows that others wait for. The operations in their order."""
    after = next_ops(flow)
    return sorted(ranked, key=lambda i: flow.ops[i].primitive.makes_blocks and not after[i])
