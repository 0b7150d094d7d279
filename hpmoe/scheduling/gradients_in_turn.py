"""Orders gradients of weights that wait for all rows of a rank, so that memory brings these rows few times."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.scheduling.rules import rule
from hpmoe.scheduling.spread_slots import is_spread
from hpmoe.tiling.next_ops import next_ops


@rule("gradients_in_turn", otherwise=lambda flow, machine, queues, sequence: (queues, sequence))
def gradients_in_turn(flow: tf.Taskflow, machine: Machine, queues: list[np.ndarray],
                      sequence: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Has gradients of weights that wait for all rows of a rank, as it has one expert or slots are spread, come after all
    else and one operation after the other, where L2 does not hold these rows. Tasks of one between those of another would
    make both read them from memory again. Every worker has as many as before. The tasks of each queue, and the sequence.
    """
    gradients = _waiting_for_all(flow, machine)
    of_task, worker = flow.tasks["op"], np.zeros(flow.num_tasks, np.int64)
    for q, tasks in enumerate(queues):
        worker[tasks] = q
    begun = np.argsort(sequence)
    is_one = np.isin(of_task[begun], gradients)
    places, others = begun[is_one], begun[~is_one]
    in_turn = places[np.argsort(of_task[places], kind="stable")]
    worker[in_turn] = worker[places]
    out = np.empty_like(sequence)
    out[np.concatenate([others, in_turn])] = np.sort(sequence)
    return [np.flatnonzero(worker == q) for q in range(len(queues))], out


def _waiting_for_all(flow: tf.Taskflow, machine: Machine) -> list[int]:
    """The operations, none where L2 holds what they read."""
    spread, after = is_spread(flow, machine), next_ops(flow)
    found = [i for i, op in enumerate(flow.ops) if op.primitive.makes_blocks and op.domain.route >= 0 and not after[i]
             and (spread or flow.routes[op.domain.route].num_local_experts == 1)]
    read = sum(flow.routes[op.domain.route].likely_rows * flow.buffers[access.buffer].row_bytes
               for op in (flow.ops[i] for i in found) for access in op.inputs[:2])
    return found if read > machine.l2.bytes else []
