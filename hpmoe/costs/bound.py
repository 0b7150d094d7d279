"""The time below which no schedule of a Taskflow's tasks gets on a machine, for one routing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.costs.least_paths import LeastPaths
from hpmoe.costs.touches import OF_EXPERT, STREAM, UNIT, WEIGHT, Touch, block_heights
from hpmoe.costs.work import Work, core_us, with_fans
from hpmoe.dtypes import numpy_dtype
from hpmoe.layout import Layout
from hpmoe.machine import Machine


@dataclasses.dataclass(frozen=True)
class Bound:
    """Microseconds that a rank needs at least; where ranks are threads of one computer, all of them together.

    Attributes:
        aic: work of its matrix tasks, each alone on the machine, shared evenly among the workers that take them; of a
            taskflow with queues with the signals that these tasks send.
        aiv: the same of its vector tasks, or of all tasks where they take the same workers.
        egress, ingress: of its link, at full rate.
        weights: of its memory, at full rate, for what matrix tasks alone touch: each part of an array once.
        memory: the same for all tasks.
        l2: of its L2, at full rate, for all that any task touches.
        fill: before any of its matrix tasks can begin: all rows of one slot have come, see LeastPaths.
        drain: after the last one has ended, until the rows that it made are summed where they are wanted.
        landing: after the last row of a link has come, in the same way.
    """

    aic: float
    aiv: float
    egress: float
    ingress: float
    weights: float
    memory: float
    l2: float
    fill: float
    drain: float
    landing: float

    @property
    def total(self) -> float:
        matrix = max(self.aic, self.weights) + self.fill + self.drain
        link = max(self.egress, self.ingress)
        return max(matrix, self.memory, self.l2, self.aiv, link + self.landing if link else 0.0)


def rank_bounds(flow: tf.Taskflow, machine: Machine, ids: np.ndarray) -> list[Bound]:
    """The Bound of each rank of a taskflow under overlap_comm; that of a launch is the largest of all ranks.

    Args:
        flow: with or without queues.
        machine: what it runs on.
        ids: topk_ids of all ranks, [ep, T, K], the same for every route.

    Example:
        >>> import hpmoe
        >>> from hpmoe.workload import balanced_ids
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256).lower(hpmoe.Aval((8192, 4096), "bfloat16"))
        >>> [round(b.total) for b in rank_bounds(flow, hpmoe.ascend_a3, balanced_ids(1, 8, 1, 1))]
        [24]
    """
    work = Work(flow, machine)
    zeros = [[np.zeros(r.shape, numpy_dtype("float32")) for r in ids] if plan.weights >= 0 else None for plan in flow.routes]
    layout = Layout(flow, [list(ids)] * len(flow.routes), None, zeros)
    signals = _signals(flow, machine)
    paths = LeastPaths(flow, machine, work.by_routing, layout, lambda op, rank: _task_rows(op, layout, rank),
                       [of_op.max(initial=0.0) for of_op in signals])
    bounds = [_rank_bound(flow, machine, work, layout, signals, paths, rank) for rank in range(flow.ep_size)]
    return _on_one_computer(bounds, machine) if machine.host_cores else bounds


def _on_one_computer(bounds: list[Bound], machine: Machine) -> list[Bound]:
    """Those of ranks that share cores, memory and L2, from what each would need alone: every one has to do all."""
    totals = {n: sum(getattr(b, n) for b in bounds) for n in ("weights", "memory", "l2")}
    matrix, vector = (sum(getattr(b, unit) for b in bounds) * len(machine.queues_of(unit)) / machine.host_cores
                      for unit in ("aic", "aiv"))
    totals["aic"] = max(matrix, *(b.aic for b in bounds))
    totals["aiv"] = max(vector if machine.unified else matrix + vector, *(b.aiv for b in bounds))
    for name in ("fill", "drain"):  # matrix work of any rank may be the first, and the last
        totals[name] = min((getattr(b, name) for b in bounds if max(b.aic, b.weights) > 0), default=0.0)
    return [dataclasses.replace(b, **totals) for b in bounds]


def _signals(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """How many signals a task of each operation sends surely, if it has rows, [units, column ranges].

    Of a taskflow without queues none: which will be needed depends on the order. Threads of a host send them while others
    have its cores.
    """
    if not flow.queues or machine.host_cores:
        return [np.zeros((op.domain.size, 1)) for op in flow.ops]
    counts = np.bincount(flow.signals["task"][flow.signals["kind"] != tf.ENTRY_TILE], minlength=flow.num_tasks)
    firsts = np.cumsum([0] + [math.prod(op.grid) for op in flow.ops])
    return [counts[first:last].reshape(op.grid[0], op.grid[1] * op.grid[2]) * (not op.num_peers)
            for op, first, last in zip(flow.ops, firsts, firsts[1:], strict=False)]


def _rank_bound(flow: tf.Taskflow, machine: Machine, costs: Work, layout: Layout, signals: Sequence[np.ndarray],
                paths: LeastPaths, rank: int) -> Bound:
    work = costs.by_routing
    busy, l2 = {"aic": 0.0, "aiv": 0.0}, 0.0
    links, movers = np.zeros(4), []
    for i, op in enumerate(flow.ops):
        if op.num_peers or op.moves_copies:
            moved, own = _moved(flow, op, layout, machine, rank)
            sent = moved * _of_row(op, work[i]["link_row"])
            links += sent
            ways = zip((True, False), sent.reshape(2, 2), strict=True)
            movers += [(i, stays_in_node) for stays_in_node, out_and_in in ways if out_and_in.any()]
            rows = moved[::2].sum() + own
            peers = -(-flow.ep_size // (op.num_peers or 1))  # of a task; to each goes as much as a worker may send
            takes_core = machine.host_cores == math.ceil(machine.host_cores)  # else more threads than cores, some on links
            on_link = sent[::2].sum() / peers / machine.worker_link_bytes_per_us if takes_core else 0.0
            busy["aiv"] += max(on_link, rows * _of_row(op, work[i]["core_row"]))
            l2 += rows * _of_row(op, work[i]["touches"]["row"].sum(axis=1)) + own * _of_row(op, work[i]["link_row"])
        else:
            rows, works = _task_rows(op, layout, rank), with_fans(work[i], _rows_of_token(op, layout, rank))
            of_blocks = rows.reshape(-1, op.domain.blocks)
            for k, some in ((0, of_blocks[:, :-1].reshape(-1)), (2, of_blocks[:, -1])):
                tiles = works[k:k + 2], (op.grid[2] - 1, 1)
                busy[op.unit] += sum(n * _task_us(w, some, machine) for w, n in zip(*tiles, strict=True))
                l2 += sum(n * _touched(w, some).sum() for w, n in zip(*tiles, strict=True))
            busy[op.unit] += machine.signal_us * signals[i][_unit_rows(op, layout, rank)[0] > 0].sum()
    if machine.unified:
        busy["aiv"] += busy["aic"]
    shares = {u: us / max(1, len(machine.queues_of(u))) for u, us in busy.items()}
    rates = np.array([machine.link_bytes_per_us] * 2 + [machine.node_link_bytes_per_us] * 2)
    us = links / rates
    of_aic, of_all = (_workers_at_once(machine, units) for units in (("aic",), ("aic", "aiv")))
    weights, memory = _touched_bytes(flow, costs, layout, rank) / [
        min(machine.memory_bytes_per_us, workers * machine.worker_memory_bytes_per_us) for workers in (of_aic, of_all)]
    l2 /= min(machine.l2_bytes_per_us, of_all * machine.worker_l2_bytes_per_us)
    before, after = paths.before(rank), paths.after(rank)
    matrix = [i for i, op in enumerate(flow.ops) if op.unit == "aic" and len(_task_rows(op, layout, rank))]
    fill, drain = (max(0.0, min((times[i] for i in matrix), default=0.0)) for times in (before, after))
    return Bound(shares["aic"], shares["aiv"], max(us[0], us[2]), max(us[1], us[3]), weights, memory, l2, fill, drain,
                 min((paths.landing(*mover) for mover in movers), default=0.0))


def _workers_at_once(machine: Machine, units: Sequence[str]) -> int:
    """Workers of some units that can be in tasks at a time."""
    workers = len({queue for unit in units for queue in machine.queues_of(unit)})
    return math.ceil(machine.host_cores) or workers


def _touched_bytes(flow: tf.Taskflow, costs: Work, layout: Layout, rank: int) -> np.ndarray:
    """Bytes of all parts of arrays that matrix tasks alone touch, and of all that any task does, [2].

    What is written is touched first by a writer, so its readers do not count; of what readers touch first, the least that
    one does of a slot's rows, after which L2 takes all of them as held. Of arrays that are one part only, little is
    known of the first touch, so they are left out.
    """
    least, by_vector = np.full(costs.touches.num_parts, np.inf), np.zeros(costs.touches.num_parts, bool)
    streamed = np.zeros(2)
    for writes in (True, False):
        is_new = np.isinf(least)
        for op, tile, (first, kind, fixed, row) in _known_touches(flow, costs, writes):
            rows, experts = _unit_rows(op, layout, rank)
            if kind == STREAM:
                streamed += [fixed * (rows > 0).sum() * (op.unit == "aic"), fixed * (rows > 0).sum()]
                continue
            of_units = layout.slots[op.domain.route][rank].rows if kind == OF_EXPERT else rows
            units = np.flatnonzero(of_units)
            places = first + (experts[units] * op.grid[2] + tile if kind == WEIGHT else units)
            by_vector[places] |= op.unit == "aiv"
            fresh = is_new[places]
            np.minimum.at(least, places[fresh], fixed + row * (of_units[units[fresh]] if not op.num_peers else 1.0))
    least[np.isinf(least)] = 0.0
    return streamed + [least[~by_vector].sum(), least.sum()]


def _known_touches(flow: tf.Taskflow, costs: Work, writes: bool) -> Iterator[tuple[tf.TileOp, int, Touch]]:
    """Each operation, its column tiles and the parts of arrays that tasks of these write, or read; see Touches.of."""
    for op in flow.ops:
        most, last = block_heights(flow, op)
        mean_height = most + (last - most) / op.domain.blocks
        operands = range(op.num_outputs) if writes else range(op.num_outputs, len(op.operands))
        for i, (tile, (_, cols)) in itertools.product(operands, enumerate(op.col_ranges())):
            touch = costs.touches.of(op, i, cols, mean_height)
            if touch is not None and touch.part in (UNIT, WEIGHT, OF_EXPERT, STREAM):
                yield op, tile, touch


def _of_row(op: tf.TileOp, of_tiles: np.ndarray) -> float:
    """Of a transferred row, all its parts together, what a part in a full tile of columns and one in the last take."""
    return float((op.grid[2] - 1) * of_tiles[0] + of_tiles[1])


def _touched(work: np.void, rows: np.ndarray) -> np.ndarray:
    """Bytes that tasks of these numbers of rows touch, each."""
    used = work["touches"][:work["num_touches"]]
    return used["fixed"].sum() + rows * used["row"].sum()


def _task_us(work: np.void, rows: np.ndarray, machine: Machine) -> float:
    """Microseconds of tasks of these numbers of rows together, each alone on the machine."""
    core = machine.task_us + core_us(work, rows)
    if machine.host_cores:  # a task that waits for L2 takes no core
        return float(core.sum())
    return float(np.maximum(core, _touched(work, rows) / min(machine.worker_l2_bytes_per_us, machine.l2_bytes_per_us)).sum())


def _task_rows(op: tf.TileOp, layout: Layout, rank: int) -> np.ndarray:
    """Rows of each task of one column range of a local operation that is not empty."""
    rows, _ = _unit_rows(op, layout, rank)
    return rows if op.domain.kind == "experts" else rows[rows > 0]


def _rows_of_token(op: tf.TileOp, layout: Layout, rank: int) -> float:
    """Of tokens sent once, the rows that the rank's experts have of each; see Work.by_routing."""
    routing = layout.routings[op.domain.route] if op.opcode.startswith("FAN") else None
    return routing.experts.num_rows(rank) / max(1, routing.num_rows(rank)) if routing else 0.0


def _unit_rows(op: tf.TileOp, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each unit of an operation on a rank, and the expert they are of."""
    route = op.domain.route
    if op.domain.kind == "slots":
        slots = layout.slots[route][rank]
        return slots.rows.astype(float), slots.expert
    if op.domain.kind == "tiles":
        tiles = [layout.tile(rank, op.domain, i) for i in range(op.domain.size)]
        rows = np.array([t.stop - t.start for t in tiles], float)
    elif op.domain.kind == "experts":
        first = op.first_row // op.domain.blocks
        rows = layout.routings[route].tokens_per_expert(rank) if route >= 0 else np.array([op.params[1]])
        rows = rows[first:first + op.domain.num_rows]
        return np.repeat(rows, op.domain.blocks).astype(float), np.repeat(np.arange(len(rows)), op.domain.blocks)
    else:
        rows = np.ones(1)
    return rows, np.zeros(len(rows), int)


def _moved(flow: tf.Taskflow, op: tf.TileOp, layout: Layout, machine: Machine, rank: int) -> tuple[np.ndarray, float]:
    """Rows of a put that leave and reach the rank, inside its node and between nodes, [4]; and those that stay."""
    out = np.zeros(4)
    if op.opcode == "NOTIFY":
        return out, 0.0
    routing = layout.routings[op.domain.route]
    to_rank = routing.counts.reshape(flow.ep_size, flow.ep_size, -1).sum(axis=2)
    if op.moves_copies:
        to_rank = np.zeros_like(to_rank)
        for owner, copies in enumerate(routing.placement.copies):
            np.add.at(to_rank[owner], [copy.host for copy in copies], op.params[1])
    sent = to_rank.T if op.opcode in ("PUT_BACK", "RETURN_GRADS") else to_rank
    for peer in range(flow.ep_size):
        if peer != rank:
            first = 0 if peer // machine.node_size == rank // machine.node_size else 2
            out[first] += sent[rank, peer]
            out[first + 1] += sent[peer, rank]
    return out, float(sent[rank, rank])
