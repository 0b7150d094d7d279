"""Which task of an operation comes first, and on which vector worker: by slots, in the order in which their rows arrive.

Slots of an expert begin with the rank's own rows, then come those of the ranks after it, one after the other. So a plan
knows which slots of a peer a rank is likely to have rows for. Where a routing is otherwise, its tasks are still dealt out
evenly, and no rank is sent everything at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dtypes import numpy_dtype, storage_dtype
from hpmoe.machine import Machine
from hpmoe.native.planner import DEALT, deal
from hpmoe.transforms.op_order import op_order

L2_SHARE = 0.5  # of what a rank's L2 holds, for rows that are read once for each part of columns
LATE = 2
QUEUE_US = 300.0
UNEVEN = 1.15  # peers of a worker, the most over the mean
COMPUTING = 2  # workers for what is computed, over their share of the work
WORTH_US = 160.0  # of moving, the least for which some workers only compute: with few rows each, whose turn it is is chance
STRAINED = 1.05  # the most time of workers that compute or move, over that of all workers doing both, or of the matmuls
SIGNALLED = 1.1  # time to put rows back with their signals, over that without
MOST_RUNS = 4


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

    def turns(self, sequence: np.ndarray, ahead: np.ndarray, groups: int) -> np.ndarray:
        """Numbers by which puts, [num_slots, peers, columns], are dealt out among those of a group of peers.

        A number is that of a cell of peers, ascending by `sequence` among cells whose likely peers are of one group. One
        peer of a cell is likely to have rows: of neighbouring ranks, so many as a slot is of, whichever is the first. A put
        for several peers is of the group of its first.
        """
        sources, slot = min(self.ep_size, math.ceil(self.ep_size / self.per_expert)), np.arange(len(sequence))[:, None]
        first = (self.place / self.per_expert * self.ep_size).astype(int)[:, None] % self.ep_size
        num_peers = sequence.shape[1]
        task = np.argsort(ahead)[(first + np.arange(sources)) % self.ep_size] % num_peers
        began = sequence[slot, task].astype(np.int64)
        group = np.broadcast_to((ahead[task] % groups)[:, :, None], began.shape).reshape(-1)
        order = np.argsort(group * (sequence.max(initial=0) + 1) + began.reshape(-1))
        sizes = np.bincount(group, minlength=groups)
        turns = np.empty(began.shape, np.int32)
        turns.reshape(-1)[order] = np.arange(began.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        half, apart = num_peers // 2, np.arange(num_peers)
        nearest = ((apart + half) % num_peers - half) % sources  # for peers so many ranks after the first likely one
        return turns[slot, nearest[(ahead[:num_peers] - first) % num_peers]]


def queue_order(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> np.ndarray:
    """For each task a number, the least of what is to be done first, [num_tasks] int64.

    Operation after operation as in `op_order`, and in each slot after slot; of the first few slots of an expert column after
    column, so that the matrix workers ask memory for a few columns of its weight at a time, and find the rest of what they
    need in L2. What goes back in parts of some columns is made part after part, so that the first can be summed while the
    last are made. Weights of copies go out just before the first rows that they multiply, and what else is sent with rows
    goes out with them, slot by slot.

    Args:
        costs: microseconds of each task, [num_tasks].
    """
    order = np.arange(flow.num_tasks, dtype=np.int64)
    few, grids = round(machine.num_aic ** 0.5), []
    for op, tasks, (units, peers, cols) in _grids(flow):
        grids.append(tasks)
        if op.domain.kind == "slots" and op.unit == "aic":
            slots, width = LikelySlots(flow, op.domain.route), _returned_cols(flow, op)
            expert, place = (x.astype(np.int64)[:, None] for x in (slots.expert, slots.place))
            if width:
                part = np.arange(cols) * op.tile_cols // width
                run = (_chunks(flow, op, machine, slots)[:, None] * cols + part) * units + expert
            else:
                own = max(1, int(slots.per_expert / flow.ep_size))  # slots of the first expert that wait for no other rank
                run = expert * units + np.where(place < np.where(expert == 0, min(few, own), few), 0, place)
            order[tasks].reshape(units, peers, cols)[:] = ((run * cols + np.arange(cols)) * units + place)[:, None, :]
        elif op.domain.kind == "slots" and flow.routes[op.domain.route].once_of >= 0:
            turn = _round_the_ranks(units, flow.ep_size)
            order[tasks].reshape(units, -1)[:] = turn[:, None] * peers * cols + np.arange(peers * cols)
    first, ranked = 0, op_order(flow, [costs[tasks].max(initial=0.0) for tasks in grids])
    for i in ranked:
        mine = order[grids[i]]  # a view
        if len(mine):
            mine += first - mine.min()
            first = int(mine.max()) + 1
    _puts_together(flow, grids, order)
    if not machine.unified:
        _halve(flow, machine, costs, ranked, order)
    _copies_in_turn(flow, grids, order)
    return order


def _puts_together(flow: tf.Taskflow, grids: Sequence[slice], order: np.ndarray) -> None:
    """Has all that is sent with the rows of a slot go out together; else weights of rows would come after the last rows."""
    for route, plan in enumerate(flow.routes):
        puts = [tasks for op, tasks in zip(flow.ops, grids, strict=True)
                if op.opcode == "PUT" and op.domain.route == route and op.domain.size]
        first = min([int(order[tasks].min()) for tasks in puts], default=0)
        for tasks in puts if len(puts) > 1 and plan.once_of < 0 else ():
            order[tasks].reshape(plan.num_slots, -1)[:] = first + np.arange(plan.num_slots)[:, None]


def _halve(flow: tf.Taskflow, machine: Machine, costs: np.ndarray, ranked: Sequence[int], order: np.ndarray) -> None:
    """Where the way back is longer than what is multiplied meanwhile, and links are idle before it, has matrix workers
    finish the rows of half of the experts, then those of half of the rest, and so on: rows go back while others are made,
    and few are left when the last are."""
    grids, moved = list(_grids(flow)), {"PUT": 0.0, "PUT_BACK": 0.0}
    movers = machine.num_aiv - num_computing(flow, machine, costs)
    for op, tasks, _ in grids:
        if _is_put(op):
            moved[op.opcode] += costs[tasks].sum() / movers
    sent_back = {flow.buffers[op.operands[1].buffer].storage for op in flow.ops if op.opcode == "PUT_BACK"}
    matrix = [i for i in ranked if flow.ops[i].unit == "aic"]
    made = [n for n, i in enumerate(matrix) if flow.buffers[flow.ops[i].operands[0].buffer].storage in sent_back]
    if not made:
        return
    us = [max(costs[grids[i][1]].sum() / machine.num_aic, _weights_us(flow, flow.ops[i], machine)) for i in matrix]
    if sum(us) <= moved["PUT"] or sum(us[made[-1]:]) >= SIGNALLED * moved["PUT_BACK"]:
        return
    total = int(order.max(initial=0)) + 1
    for i in matrix:
        op, tasks, (units, _, _) = grids[i]
        run = np.full(units, MOST_RUNS if i in matrix[made[-1] + 1:] else 0)
        if op.domain.kind == "slots":
            slots = LikelySlots(flow, op.domain.route)
            left = 1 - np.minimum(slots.expert, slots.num_experts - 1) / slots.num_experts
            run = np.minimum(-np.log2(left), MOST_RUNS - 1).astype(np.int64)
        order[tasks].reshape(units, -1)[:] += run[:, None] * total


def _weights_us(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> float:
    """Microseconds to read the weights that an operation multiplies by from memory."""
    if op.opcode != "GMM":
        return 0.0
    weight = flow.buffers[op.operands[2].buffer]
    size = numpy_dtype(storage_dtype(weight.dtype)).itemsize
    return weight.num_rows * weight.cols * size / machine.memory_bytes_per_us


def _copies_in_turn(flow: tf.Taskflow, grids: Sequence[slice], order: np.ndarray) -> None:
    """Has weights that copies multiply received rows by put just before the first of those rows."""
    storage = [b.storage for b in flow.buffers]
    read = [{storage[a.buffer] for a in op.inputs} for op in flow.ops]
    for op, copies in zip(flow.ops, grids, strict=True):
        for put, rows in zip(flow.ops, grids, strict=True) if op.opcode == "REPLICATE" else ():
            multiplied = {storage[op.outputs[0].buffer], storage[put.outputs[0].buffer]} if put.opcode == "PUT" else set()
            if multiplied and put.domain.size and any(multiplied <= r for r in read):
                plan = flow.routes[op.domain.route]
                slot = min(int(plan.placement.own_share * plan.max_rows / flow.tile_rows), put.domain.size - 1)
                order[copies] = order[rows].reshape(put.domain.size, -1)[slot].min()


def _returned_cols(flow: tf.Taskflow, op: tf.TileOp) -> int:
    """Columns of the parts in which rows that an operation makes are put back, in whole tiles; 0 where they are whole."""
    made = flow.buffers[op.operands[0].buffer].storage
    parts = [put.tile_cols for put in flow.ops if put.opcode == "PUT_BACK" and put.tile_cols < put.cols
             and flow.buffers[put.operands[1].buffer].storage == made]
    return max([*parts, op.tile_cols]) if parts else 0


def _chunks(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, slots: LikelySlots) -> np.ndarray:
    """A number for each slot, ascending: slots of one are of experts whose rows L2 holds while other things pass."""
    read = flow.buffers[op.operands[1].buffer]
    of_expert = slots.per_expert * flow.tile_rows * read.cols * numpy_dtype(storage_dtype(read.dtype)).itemsize
    experts = max(1, int(machine.l2_bytes * L2_SHARE / of_expert))
    return (np.minimum(slots.expert, slots.num_experts - 1) + -slots.num_experts % experts) // experts


def _round_the_ranks(num_slots: int, ep_size: int) -> np.ndarray:
    """The turn of each slot where those of one rank, that sends to them or gets their sums back, do not come one after the
    other: only the links to it would be busy at a time, and with unequal links the ranks get out of step."""
    slot, of_rank = np.arange(num_slots), max(1, -(-num_slots // ep_size))
    return np.argsort(np.argsort(slot % of_rank * ep_size + slot // of_rank))


def likely_costs(flow: tf.Taskflow, machine: Machine) -> np.ndarray:
    """Microseconds of each task, of a put to a peer those of the rows that are likely to go there while all workers send,
    [num_tasks]; slots that are left over are likely to be empty."""
    costs, shares, stretch = flow.costs(machine), {}, _link_stretch(flow, machine)
    for op, tasks, shape in _grids(flow):
        if op.domain.kind == "slots" and op.unit == "aic":
            costs[tasks].reshape(shape)[LikelySlots(flow, op.domain.route).is_spare] = machine.task_us
        if _is_put(op):
            key = op.domain.route, op.opcode, op.num_peers
            if key not in shares:
                of_peers = LikelySlots(flow, op.domain.route).shares()[:, _ahead(flow, op)]
                shares[key] = sum_of_tasks(of_peers, op.num_peers) * op.num_peers
            grid = costs[tasks].reshape(shape)  # a view
            grid -= machine.task_us
            grid *= shares[key][:, :, None] * stretch
            grid += machine.task_us
    return costs


def sum_of_tasks(of_peers: np.ndarray, num_peers: int) -> np.ndarray:
    """For each slot and task of a put the sum over the peers that the task is for, [num_slots, num_peers]."""
    out = of_peers[:, :num_peers].copy()
    for first in range(num_peers, of_peers.shape[1], num_peers):
        more = of_peers[:, first:first + num_peers]
        out[:, :more.shape[1]] += more
    return out


def _link_stretch(flow: tf.Taskflow, machine: Machine) -> float:
    """How much longer puts take when all workers send than when one does, as links are shared."""
    of_node = min(flow.ep_size, machine.node_size)
    us = max((of_node - 1) / machine.link_bytes_per_us, (flow.ep_size - of_node) / machine.node_link_bytes_per_us)
    return max(1.0, machine.num_aiv * machine.worker_link_bytes_per_us * us / flow.ep_size)


def is_computed(op: tf.TileOp) -> bool:
    """Whether tasks of an operation on vector workers compute rows, which others wait for on the same rank."""
    return op.unit == "aiv" and not op.num_peers and not op.moves_copies and op.opcode != "REDUCE"


def num_computing(flow: tf.Taskflow, machine: Machine, costs: np.ndarray) -> int:
    """How many vector workers take what is computed, the first ones, while the others take what is moved; 0 where all take
    both. What waits for matmuls then keeps no rows from going out, nor do these keep it from being computed. It is 0
    too where no share of the workers would do."""
    computed, moved, matrix = (sum(costs[tasks].sum() for op, tasks, _ in _grids(flow) if is_one(op))
                               for is_one in (is_computed, _is_put, lambda op: op.unit == "aic"))
    if not computed or moved < WORTH_US * machine.num_aiv:
        return 0
    wanted = math.ceil(COMPUTING * machine.num_aiv * computed / (computed + moved))
    moved /= _link_stretch(flow, machine)
    us = STRAINED * max(matrix / machine.num_aic, (computed + moved) / machine.num_aiv)
    computing = min(wanted, machine.num_aiv // 2, machine.num_aiv - math.ceil(moved / us))
    return computing if computing > 0 and computed / computing <= us else 0


def late_sums(flow: tf.Taskflow) -> tf.Taskflow:
    """The taskflow with waits of sums of entries for LATE parts that come back after theirs, to be planned with.

    What other ranks put is later than a plan knows. A worker that waits for it has its own puts behind it, for which others
    wait in turn.
    """
    blocks = [b for b in flow.blocks if b.unit == "tile" and b.columns and b.dynamic]
    if not blocks:
        return flow
    later = np.arange(len(flow.events))
    for name in dict.fromkeys(b.name for b in blocks):
        parts = [b for b in blocks if b.name == name]
        for part, other in zip(parts, parts[LATE:] + parts[-1:] * LATE, strict=False):
            later[part.first:part.first + part.size] = np.arange(other.first, other.first + part.size)
    more = flow.waits[later[flow.waits["event"]] != flow.waits["event"]]
    if not len(more):
        return flow
    more["event"] = later[more["event"]]
    waits = np.concatenate([flow.waits, more])
    return flow.replace(waits=waits[np.argsort(tf.row_keys(waits), kind="stable")])


def dealt(flow: tf.Taskflow, machine: Machine, queues: list[np.ndarray], sequence: np.ndarray,
          computing: int) -> list[np.ndarray]:
    """The tasks of each worker in the order of `sequence`: matrix tasks where they are, others and spare ones dealt out.

    Neighbours of an operation are on neighbouring workers; of a put those that are likely to have rows. The first so many
    of the vector workers compute, where these are not 0, and the others send.
    """
    worker, num_aic, num_aiv = np.full(flow.num_tasks, -1, np.int32), machine.num_aic, machine.num_aiv
    for q, tasks in enumerate(queues[:num_aic]):
        worker[tasks] = q
    for op, tasks, shape in _grids(flow):
        slots = LikelySlots(flow, op.domain.route) if op.domain.kind == "slots" else None
        if _is_put(op):
            worker[tasks].reshape(shape)[:] = _putters(flow, op, machine, slots, sequence[tasks].reshape(shape), computing)
        elif slots and op.unit == "aic":
            worker[tasks].reshape(shape)[slots.is_spare] = -1
    among = np.array([(0, num_aic) if op.unit == "aic" else (num_aic, computing if computing and is_computed(op)
                                                             else num_aiv) for op in flow.ops], DEALT)
    return deal(flow, sequence, worker, among, machine.num_queues)


def _putters(flow: tf.Taskflow, op: tf.TileOp, machine: Machine, slots: LikelySlots,
             sequence: np.ndarray, computing: int) -> np.ndarray:
    """Which vector worker does each put, [num_slots, peers, columns] as `sequence`.

    Peers are in groups, and every group has workers of its own: so many that what they send to one rank at a time, where
    those of every rank do, is on its link for QUEUE_US. Else the first rows of a hot rank would come with its last.
    """
    workers, ahead, sent = machine.num_aiv - computing, _ahead(flow, op), flow.buffers[op.operands[1].buffer]
    sent = slots.rows * (op.tile_cols or sent.cols) * numpy_dtype(storage_dtype(sent.dtype)).itemsize
    wanted = round(workers * flow.ep_size * sent / (machine.link_bytes_per_us * QUEUE_US))
    groups = next(g for g in range(min(max(wanted, 1), op.num_peers, workers), 0, -1)
                  if -(-op.num_peers // g) * workers <= UNEVEN * (workers // g) * op.num_peers)
    starts = (np.arange(groups + 1) * workers // groups).astype(np.int32)
    group = (ahead[:op.num_peers] % groups)[:, None]
    out = slots.turns(sequence, ahead, groups)
    out %= np.diff(starts)[group]
    out += machine.num_aic + computing + starts[group]
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
