"""Orders operations: whose tasks come first, where a free worker finds ready ones of several."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
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


@rule("gradients_in_turn", otherwise=lambda flow, machine, us, ranked: list(ranked))
def gradients_in_turn(flow: tf.Taskflow, machine: Machine, us: Sequence[float], ranked: Sequence[int]) -> list[int]:
    """Has gradients of weights that wait for all rows of a rank, as it has one expert, come one operation after the other,
    where L2 does not hold these rows. Tasks of one between those of another would make both read them from memory again. The
    longest comes first, which is ready first where they are alike. The operations in their order.

    Args:
        us: microseconds of all tasks of each operation, [num_ops].
        ranked: operations in the order of `op_order`.
    """
    received = [i for i in ranked if flow.ops[i].primitive.makes_blocks and flow.ops[i].domain.route >= 0]
    gradients = [i for i in received if flow.routes[flow.ops[i].domain.route].num_local_experts == 1]
    read = sum(flow.routes[op.domain.route].likely_rows * flow.buffers[access.buffer].row_bytes
               for op in (flow.ops[i] for i in gradients) for access in op.inputs[:2])
    if read <= machine.l2_bytes:
        return list(ranked)
    in_turn = iter(sorted(gradients, key=lambda i: -us[i]))
    return [next(in_turn) if i in gradients else i for i in ranked]
