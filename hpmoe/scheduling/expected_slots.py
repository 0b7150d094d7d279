"""Likely contents of row slots before there is a routing: whose rows each holds, and what its tasks then cost.

Slots of an expert begin with the rank's own rows, then come those of the ranks after it, one after the other. So a plan
knows which slots of a peer a rank is likely to have rows for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpmoe.costs.task_costs import task_costs
from hpmoe.costs.work import put_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords


class ExpectedSlots:
    """The slots of a route if every expert gets the same number of rows, and the same number from every rank.

    Attributes:
        per_expert: slots of an expert, the last of which has any number of rows: half of them in the mean.
        expert, place: expert of each slot, and its index among the slots of the expert, [num_slots].
        is_expected: True for each slot that is expected to have rows, [num_slots]; others are of experts past the last.
    """

    def __init__(self, flow: tf.Taskflow, route: int):
        plan = flow.routes[route]
        self.num_experts, self.expected_rows = plan.num_local_experts, plan.expected_rows
        slot = np.arange(plan.num_slots)
        self.ep_size, self.tile_rows = flow.ep_size, flow.tile_rows
        filled = plan.expected_rows / (plan.num_local_experts * flow.tile_rows)
        self.per_expert = max(1.0, min(math.ceil(filled), filled + 0.5))
        self.expert = (slot / self.per_expert).astype(int)
        self.place = slot - np.ceil(self.expert * self.per_expert).astype(int)
        self.is_expected = self.expert < self.num_experts

    def shares(self) -> np.ndarray:
        """Returns the fraction of each slot's rows from the rank `offset` places after its own, [num_slots, ep_size]."""
        first = self.place[:, None] / self.per_expert * self.ep_size
        last = first + self.ep_size / self.per_expert
        ahead = np.arange(self.ep_size)
        inside = np.minimum(last, ahead + 1) - np.maximum(first, ahead)
        return np.maximum(inside, 0.0) / (last - first)

    @property
    def rows_of_slots(self) -> np.ndarray:
        """Expected rows of each slot, [num_slots] float64: all slots of an expert are full but the last."""
        is_last = self.is_expected & (np.diff(np.where(self.is_expected, self.expert, -1), append=-1) != 0)
        rows = np.where(self.is_expected, float(self.tile_rows), 0.0)
        left = self.expected_rows - rows[~is_last].sum()
        rows[is_last] = min(max(left / max(1, is_last.sum()), 0.0), self.tile_rows)
        return rows


@suggests_keywords
def expected_rows(flow: tf.Taskflow) -> tuple[np.ndarray, ...]:
    """Returns the rows that the scheduler expects in each slot: one array for each route, float64 [num_slots].

    Every expert gets the same share of the `expected_rows` of its RoutePlan. All slots of an expert are full except the
    last. The last slots share the remaining rows equally. Slots that no expert is expected to need have 0 rows. If
    `op.domain.is_slots`, the operation has tasks for the slots of route `op.domain.route`, and `tasks["row"]` is the slot.
    If also `op.primitive.sends_rows`, the slot belongs to the peer that receives the rows.

    Raises:
        ArgumentError: flow is no Taskflow.

    Example:
        >>> import hpmoe, numpy as np
        >>> from hpmoe.rewriting import expected_rows
        >>> def fullest_first(flow):
        ...     rows, priority = expected_rows(flow), np.zeros(flow.num_tasks)
        ...     for i, op in enumerate(flow.ops):
        ...         if op.domain.is_slots:
        ...             mine = flow.tasks["op"] == i
        ...             priority[mine] = rows[op.domain.route][flow.tasks["row"][mine]]
        ...     return priority
        >>> tiles = hpmoe.tile_partition(hpmoe.moe_ffn, rows=64)
        >>> layer = hpmoe.assign_queues(tiles, priority=fullest_first)
        >>> x, weights = (hpmoe.ShapeDtypeStruct((256, n), "float32") for n in (8, 1))
        >>> ids = hpmoe.ShapeDtypeStruct((256, 1), "int32")
        >>> up, down = hpmoe.ShapeDtypeStruct((2, 8, 16), "float32"), hpmoe.ShapeDtypeStruct((2, 8, 8), "float32")
        >>> [rows.tolist() for rows in expected_rows(layer.lower(x, ids, weights, up, down))]
        [[64.0, 64.0, 64.0, 64.0, 0.0]]
    """
    _check_flow("expected_rows", flow)
    return tuple(ExpectedSlots(flow, route).rows_of_slots for route in range(len(flow.routes)))


@suggests_keywords
def expected_shares(flow: tf.Taskflow) -> tuple[np.ndarray, ...]:
    """Returns the ranks whose rows each slot is expected to hold: for each route, shares float64 [num_slots, ep_size].

    Column k is the share of a slot's rows that come from the rank k places after the slot's own, modulo ep_size, so column 0
    is of the rank itself. A row of the array adds up to 1, or to 0 where no expert is likely to need the slot. Every rank
    sends an expert as many rows as any other, and they lie in the order of these ranks.

    Raises:
        ArgumentError: flow is no Taskflow.

    Example:
        >>> import hpmoe
        >>> from hpmoe.rewriting import expected_shares
        >>> x, weights = (hpmoe.ShapeDtypeStruct((64, n), "float32") for n in (8, 1))
        >>> ids = hpmoe.ShapeDtypeStruct((64, 1), "int32")
        >>> up, down = hpmoe.ShapeDtypeStruct((1, 8, 16), "float32"), hpmoe.ShapeDtypeStruct((1, 8, 8), "float32")
        >>> layer = hpmoe.spmd(hpmoe.tile_partition(hpmoe.moe_ffn, rows=32), hpmoe.Mesh(ep=2))
        >>> flow = layer.lower(*(hpmoe.ShapeDtypeStruct((2, *a.shape), a.dtype) for a in (x, ids, weights, up, down)))
        >>> expected_shares(flow)[0].tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    _check_flow("expected_shares", flow)
    return tuple(_normal(ExpectedSlots(flow, route)) for route in range(len(flow.routes)))


def _normal(slots: ExpectedSlots) -> np.ndarray:
    """Returns shares that add up to 1 for slots that are expected to have rows, and are 0 for others."""
    shares = np.where(slots.rows_of_slots[:, None] > 0, slots.shares(), 0.0)
    return shares / np.where(shares.any(axis=1), shares.sum(axis=1), 1.0)[:, None]


def _check_flow(who: str, flow: object) -> None:
    check_argument(isinstance(flow, tf.Taskflow), f"hpmoe.rewriting.{who}", "flow", f"a {type(flow).__name__}", "a Taskflow")


def expected_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Returns expected microseconds of each task, [num_tasks]; a put counts the rows for its peer while all workers send.

    Slots that are left over are passed by. In a plan that is mostly empty, further slots may have rows: they take as long as
    other slots, and their rows arrive at any time.
    """
    costs, stretch = task_costs(flow, machine), link_stretch(flow, machine)
    for op, tasks, shape in grids_of(flow):
        if not op.domain.is_slots or not (op.primitive.is_put or op.unit == "aic"):
            continue
        grid, slots = costs[tasks].reshape(shape), ExpectedSlots(flow, op.domain.route)  # a view
        if op.primitive.is_put:
            grid -= machine.sync.task_us
            grid *= shares_of_puts(flow, op)[:, :, None] * op.num_peers * stretch
            grid += machine.sync.task_us
        if op.primitive.sends_rows or not flow.routes[op.domain.route].is_mostly_empty:
            grid[~slots.is_expected] = machine.sync.pass_us or machine.sync.task_us
    return costs


def shares_of_puts(flow: tf.Taskflow, op: tf.TileOp) -> np.ndarray:
    """Returns the expected share of a slot's rows that each task of a put moves, [num_slots, num_peers]."""
    return _sum_of_tasks(ExpectedSlots(flow, op.domain.route).shares()[:, sources_ahead(flow, op)], op.num_peers)


def costs_of_expected_slots(flow: tf.Taskflow, costs: np.ndarray) -> np.ndarray:
    """Returns the costs of tasks, [num_tasks], with 0 for tasks of slots that are not expected to have rows."""
    costs = costs.copy()
    for op, tasks, shape in grids_of(flow):
        if op.domain.is_slots:
            costs[tasks].reshape(shape)[~ExpectedSlots(flow, op.domain.route).is_expected] = 0.0
    return costs


def _sum_of_tasks(of_peers: np.ndarray, num_peers: int) -> np.ndarray:
    """Returns, for each slot and task of a put, the sum over the peers of the task, [num_slots, num_peers]."""
    out = of_peers[:, :num_peers].copy()
    for first in range(num_peers, of_peers.shape[1], num_peers):
        more = of_peers[:, first:first + num_peers]
        out[:, :more.shape[1]] += more
    return out


def link_stretch(flow: tf.Taskflow, machine: Machine) -> float:
    """Returns how many times longer puts take when all workers send than when one does, as links are shared."""
    of_node = min(flow.ep_size, machine.link.node_size)
    us = max((of_node - 1) / machine.link.rate(flow.ep_size), (flow.ep_size - of_node) / machine.link.node_bytes_per_us)
    return max(1.0, machine.num_aiv * put_rate(machine, flow.ep_size) * us / flow.ep_size)


def sources_ahead(flow: tf.Taskflow, op: tf.TileOp) -> np.ndarray:
    """Returns, for each peer of a put, how many ranks the source of its rows is after their receiver, as rank 0 has it."""
    peers = flow.order_of(op.leg)[0]
    return peers if op.primitive.is_back else -peers % flow.ep_size


def grids_of(flow: tf.Taskflow) -> Iterator[tuple[tf.TileOp, slice, tuple[int, int, int]]]:
    """Yields each operation, its tasks and their shape (units, peers, column tiles); see make_tasks."""
    first = 0
    for op in flow.ops:
        shape = op.grid
        last = first + shape[0] * shape[1] * shape[2]
        yield op, slice(first, last), shape
        first = last
