"""What a plan knows of row slots before there is a routing: whose rows each is likely to have, and what its tasks then cost.

Slots of an expert begin with the rank's own rows, then come those of the ranks after it, one after the other. So a plan
knows which slots of a peer a rank is likely to have rows for.
"""

from __future__ import annotations

import math
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
        self.num_experts = plan.num_local_experts
        slot = np.arange(plan.num_slots)
        self.ep_size, self.tile_rows = flow.ep_size, flow.tile_rows
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

    @property
    def is_spare(self) -> np.ndarray:
        """Whether a slot is left over, [num_slots]."""
        return self.expert == self.num_experts

    @property
    def rows(self) -> float:
        """Of a slot, from one rank."""
        return self.tile_rows * min(1.0, self.per_expert / self.ep_size)

    def round_the_nodes(self, node_size: int) -> np.ndarray:
        """The turn of each slot where those of an expert with rows of one place in every node come one after the other,
        [num_slots]: then every rank sends as much to other nodes as any other, at any time."""
        turn, source = np.empty(len(self.place), np.int64), self._source
        turn[np.lexsort((source // node_size, source % node_size, self.expert))] = np.arange(len(source))
        return turn

    @property
    def _source(self) -> np.ndarray:
        """How many ranks ahead the first likely source of each slot is, [num_slots]."""
        return np.minimum(self.place / self.per_expert * self.ep_size, self.ep_size - 1).astype(np.int64)

    def turns(self, sequence: np.ndarray, ahead: np.ndarray, groups: int, node_size: int) -> np.ndarray:
        """Numbers by which puts, [num_slots, peers, columns], are dealt out among those of a group of peers.

        A number is that of a cell of peers, ascending by `sequence` among cells whose likely peers are of one group. One
        peer of a cell is likely to have rows: of neighbouring ranks, so many as a slot is of, whichever is the first. A put
        for several peers is of the group of its first. Cells for ranks of one place in every node have one number: all
        workers then send as much to other nodes.
        """
        num_peers, slot = sequence.shape[1], np.arange(len(sequence))[:, None]
        first = (self.place / self.per_expert * self.ep_size).astype(int)[:, None] % self.ep_size
        sources = min(self.ep_size, math.ceil(self.ep_size / self.per_expert))
        likely = np.argsort(ahead)[(first + np.arange(sources)) % self.ep_size] % num_peers
        group = ahead[likely] % node_size % groups
        numbers = self._numbers(sequence[slot, likely], group, groups, node_size)
        half, apart = num_peers // 2, np.arange(num_peers)
        nearest = ((apart + half) % num_peers - half) % sources  # for peers so many ranks after the first likely one
        out = numbers[slot, nearest[(ahead[:num_peers] - first) % num_peers]]
        if groups > 1 < sources:
            self._number_as_before(out, likely)
        return out

    def _numbers(self, sequence: np.ndarray, group: np.ndarray, groups: int, node_size: int) -> np.ndarray:
        """Of each cell, [num_slots, sources, columns] as `sequence`, how many of its group come before it, where those for
        ranks of one place in every node count once; `group` [num_slots, sources]."""
        nodes, node = -(-self.ep_size // node_size), self._source // node_size
        in_first_node = np.arange(len(node)) - node * round(self.per_expert * node_size / self.ep_size)
        began = sequence.astype(np.int64)[np.maximum(in_first_node, 0)] * nodes + node[:, None, None]
        of_group = np.broadcast_to(group[:, :, None], began.shape).reshape(-1)
        order = np.argsort(of_group * (began.max(initial=0) + 1) + began.reshape(-1))
        sizes = np.bincount(of_group, minlength=groups)
        out = np.empty(began.shape, np.int32)
        out.reshape(-1)[order] = (np.arange(began.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)) // nodes
        return out

    def _number_as_before(self, numbers: np.ndarray, likely: np.ndarray) -> None:
        """Gives peers that are likely in the slot before and not in this one the number they have there: on other ranks a
        slot may begin with their rows. `numbers` [num_slots, peers, columns], `likely` peers of each slot."""
        slot = np.arange(len(numbers))
        is_likely = np.zeros(numbers.shape[:2], bool)
        is_likely[slot[:, None], likely] = True
        last = np.ceil((self.expert + 1) * self.per_expert).astype(int) - 1
        before = np.where(self.place == 0, np.minimum(last, len(last) - 1), slot - 1)
        is_later = is_likely[before] & ~is_likely
        numbers[is_later] = numbers[before][is_later]


def likely_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Microseconds of each task, of a put to a peer those of the rows that are likely to go there while all workers send,
    [num_tasks]; slots that are left over are likely to be empty."""
    costs, shares, stretch = flow.costs(machine), {}, link_stretch(flow, machine)
    for op, tasks, shape in grids_of(flow):
        if op.domain.kind == "slots" and op.unit == "aic":
            costs[tasks].reshape(shape)[LikelySlots(flow, op.domain.route).is_spare] = machine.task_us
        if is_put(op):
            key = op.domain.route, op.opcode, op.num_peers
            if key not in shares:
                of_peers = LikelySlots(flow, op.domain.route).shares()[:, sources_ahead(flow, op)]
                shares[key] = _sum_of_tasks(of_peers, op.num_peers) * op.num_peers
            grid = costs[tasks].reshape(shape)  # a view
            grid -= machine.task_us
            grid *= shares[key][:, :, None] * stretch
            grid += machine.task_us
    return costs


def _sum_of_tasks(of_peers: np.ndarray, num_peers: int) -> np.ndarray:
    """For each slot and task of a put the sum over the peers that the task is for, [num_slots, num_peers]."""
    out = of_peers[:, :num_peers].copy()
    for first in range(num_peers, of_peers.shape[1], num_peers):
        more = of_peers[:, first:first + num_peers]
        out[:, :more.shape[1]] += more
    return out


def link_stretch(flow: tf.Taskflow, machine: Machine) -> float:
    """How much longer puts take when all workers send than when one does, as links are shared."""
    of_node = min(flow.ep_size, machine.node_size)
    us = max((of_node - 1) / machine.link_bytes_per_us, (flow.ep_size - of_node) / machine.node_link_bytes_per_us)
    return max(1.0, machine.num_aiv * machine.worker_link_bytes_per_us * us / flow.ep_size)


def is_put(op: tf.TileOp) -> bool:
    return op.opcode in ("PUT", "PUT_BACK")


def sources_ahead(flow: tf.Taskflow, op: tf.TileOp) -> np.ndarray:
    """For each peer of a put how many ranks the source of its rows is after their receiver; as rank 0 has it."""
    peers = flow.peer_order[0]
    return peers if op.opcode == "PUT_BACK" else -peers % flow.ep_size


def grids_of(flow: tf.Taskflow) -> Iterator[tuple[tf.TileOp, slice, tuple[int, int, int]]]:
    """The tasks of each operation and their shape, (units, peers, column tiles); see make_tasks."""
    first = 0
    for op in flow.ops:
        shape = op.domain.size, max(1, op.num_peers), len(op.col_ranges())
        last = first + shape[0] * shape[1] * shape[2]
        yield op, slice(first, last), shape
        first = last
