"""Which task of an operation comes first, and on which vector worker: by slots, in the order in which their rows arrive.

Slots of an expert begin with the rank's own rows, then come those of the ranks after it, one after the other. So a plan
knows which slots of a peer a rank is likely to have rows for. Where a routing is otherwise, its tasks are still dealt out
evenly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.machine import Machine


class LikelySlots:
    """The slots of a route where every expert gets as many rows as any other, and as many from every rank.

    Attributes:
        expert, place: of each slot, its expert and its number among those of the expert, [num_slots]. Slots that are left
            over, for experts that do not fill their last one, are of an expert after the last.
        per_expert: slots of an expert, not rounded.
    """

    def __init__(self, flow: tf.Taskflow, route: int):
        plan = flow.routes[route]
        slot = np.arange(plan.num_slots)
        self.ep_size = flow.ep_size
        self.per_expert = max(1.0, plan.max_rows / (plan.num_local_experts * flow.tile_rows))
        self.expert = np.minimum(slot / self.per_expert, plan.num_local_experts).astype(int)
        self.place = slot - np.ceil(self.expert * self.per_expert).astype(int)

    def shares(self) -> np.ndarray:
        """Of each slot, the share of its rows that are from the rank so many ranks after its own, [num_slots, ep_size]."""
        first = self.place[:, None] / self.per_expert * self.ep_size
        last = first + self.ep_size / self.per_expert
        ahead = np.arange(self.ep_size)
        inside = np.minimum(last, ahead + 1) - np.maximum(first, ahead)
        return np.maximum(inside, 0.0) / (last - first)


def queue_order(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """For each task a number by which the tasks of its operation are ordered, [num_tasks] int64.

    Slot after slot; of the first few slots of an expert column after column, so that the matrix workers ask memory for a few
    columns of its weight at a time, and find the rest of what they need in L2.
    """
    order = np.arange(flow.num_tasks, dtype=np.int64)
    few = round(machine.num_aic ** 0.5)
    for op, tasks, (units, peers, cols) in _grids(flow):
        if op.domain.kind == "slots" and op.unit == "aic":
            slots = LikelySlots(flow, op.domain.route)
            expert, place = (x.astype(np.int64)[:, None] for x in (slots.expert, slots.place))
            run = (expert * units + np.where(place < few, 0, place)) * cols + np.arange(cols)
            order[tasks].reshape(units, peers, cols)[:] = (run * units + place)[:, None, :]
    return order


def likely_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Microseconds of each task, of a put to a peer those of the rows that are likely to go there, [num_tasks]."""
    costs, shares = flow.costs(machine), {}
    for op, tasks, shape in _grids(flow):
        if _is_put(op):
            key = op.domain.route, op.opcode
            if key not in shares:
                shares[key] = LikelySlots(flow, op.domain.route).shares()[:, _ahead(flow, op)] * op.num_peers
            grid = costs[tasks].reshape(shape)  # a view
            grid -= machine.task_us
            grid *= shares[key][:, :, None]
            grid += machine.task_us
    return costs


def dealt(flow: tf.Taskflow, machine: Machine, sequence: np.ndarray) -> list[np.ndarray]:
    """The vector tasks of each vector worker, in the order of `sequence`.

    Neighbours of an operation are on neighbouring workers. So are the parts of a put and, because they are likely to have
    rows, a put to one peer and that of the next slot to the same peer or to the one after it.
    """
    worker, num_aiv = np.zeros(flow.num_tasks, np.uint16), machine.num_aiv
    for op, tasks, (units, peers, cols) in _grids(flow):
        if _is_put(op):
            turn = (np.arange(units)[:, None] + _ahead(flow, op)) * cols
            worker[tasks].reshape(units, peers, cols)[:] = (turn[:, :, None] + np.arange(cols)) % num_aiv
        elif op.unit == "aiv":
            worker[tasks][np.argsort(sequence[tasks])] = np.arange(units * peers * cols) % num_aiv
    in_order = np.argsort(sequence) if (sequence < 0).any() else _inverse(sequence)
    aiv = in_order[~flow.units()[in_order]]
    ranked = aiv[np.argsort(worker[aiv], kind="stable")]
    return np.split(ranked, np.cumsum(np.bincount(worker[aiv], minlength=num_aiv))[:-1])


def _inverse(permutation: np.ndarray) -> np.ndarray:
    out = np.empty(len(permutation), np.int64)
    out[permutation] = np.arange(len(permutation))
    return out


def _is_put(op: tf.TileOp) -> bool:
    return op.opcode in ("PUT", "PUT_BACK")


def _ahead(flow: tf.Taskflow, op: tf.TileOp) -> np.ndarray:
    """For each peer of a put how many ranks the source of its rows is after their receiver; as rank 0 has it."""
    peers = flow.peer_order[0]
    return peers if op.opcode == "PUT_BACK" else -peers % flow.ep_size


def _grids(flow: tf.Taskflow) -> Iterator[tuple[tf.TileOp, slice, tuple[int, int, int]]]:
    """The tasks of each operation and their shape, (units, peers, column tiles); see make_tasks."""
    first = 0
    for op in flow.ops:
        shape = op.domain.size, max(1, op.num_peers), len(op.col_ranges())
        last = first + shape[0] * shape[1] * shape[2]
        yield op, slice(first, last), shape
        first = last
