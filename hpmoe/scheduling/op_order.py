"""Orders operations: whose tasks come first, where a free worker finds ready ones of several."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.tiling.next_ops import next_ops


def op_order(flow: tf.Taskflow, costs: Sequence[float]) -> list[int]:
    """The operations of a taskflow, those first that most comes after.

    First those before an exchange whose rows are multiplied, by how many such exchanges follow; then those before any other
    exchange, which has to end before its sums can; last what stays on its rank, such as the gradients of weights: it fills
    the time in which rows are under way. Among these the longest chain of costs to the end goes first.

    Args:
        costs: microseconds of one task of each operation, [num_ops].
    """
    num_ops, after = len(flow.ops), next_ops(flow)
    is_multiplied, exchanges, is_sent, us = [False] * num_ops, [0] * num_ops, [False] * num_ops, [0.0] * num_ops
    for i in reversed(range(num_ops)):
        moves = bool(flow.ops[i].num_peers or flow.ops[i].primitive.moves_copies)
        is_multiplied[i] = any(is_multiplied[j] or flow.ops[j].unit == "aic" for j in after[i])
        exchanges[i] = max((exchanges[j] for j in after[i]), default=0) + (moves and is_multiplied[i])
        is_sent[i] = moves or any(is_sent[j] for j in after[i])
        us[i] = costs[i] + max((us[j] for j in after[i]), default=0.0)
    return sorted(range(num_ops), key=lambda i: (-exchanges[i], not is_sent[i], -us[i]))
