"""The lower bound of every schedule of a Taskflow's tasks on a machine, for one routing: what its resources need."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.costs.bound_paths import LeastPaths, rows_of_tasks
from hpmoe.costs.footprint import DENSE, OF_EXPERT, STREAM, TOGETHER, UNIT, WEIGHT, is_transfer
from hpmoe.costs.work import Work, core_us, with_fans
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.machines.machine import Machine
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.known import known
from hpmoe.tile_ops.params import Relayed


@dataclasses.dataclass(frozen=True)
class Bound:
    """Least microseconds of a rank; if the ranks are threads of one computer, of all ranks together.

    Attributes:
        aic: matrix tasks, each at the speed of a worker that has the machine to itself, divided evenly among their workers.
            The signals that a taskflow with queues sends are included.
        aiv: vector tasks; all tasks if the machine is unified.
        egress, ingress: the rank's link at full rate.
        weights: memory at full rate, for the bytes that only matrix tasks touch.
        late: weights without those that are read before rows arrive.
        memory: memory at full rate, for the bytes of all tasks and of arriving rows.
        l2: L2 at full rate.
        fill: time before the first matrix task can begin, see LeastPaths.
        drain: time after the last matrix task until its rows are summed at their destination.
        landing: time after the last row of a link arrives.
        last: time until the last full slot arrived, was multiplied and was summed, see LeastPaths.last_full.
    """

    aic: float
    aiv: float
    egress: float
    ingress: float
    weights: float
    late: float
    memory: float
    l2: float
    fill: float
    drain: float
    landing: float
    last: float

    @property
    def total(self) -> float:
        matrix = max(self.fill + max(self.aic, self.late), self.weights) + self.drain
        link = max(self.egress, self.ingress)
        return max(matrix, self.memory, self.l2, self.aiv, self.last, link + self.landing if link else 0.0)


def rank_bounds(flow: tf.Taskflow, machine: Machine, ids: np.ndarray) -> list[Bound]:
    """Returns the Bound of each rank; the bound of a launch is the largest of them.

    Args:
        flow: a taskflow under overlap_comm, with or without queues.
        machine: the machine that runs it.
        ids: topk_ids of all ranks, [ep, T, K], the same for every route.

    Example:
        >>> import hpmoe
        >>> from hpmoe.routing.workload import balanced_ids
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=128,
        ...                             cols=256).lower(hpmoe.ShapeDtypeStruct((8192, 4096), "bfloat16"))
        >>> [round(b.total) for b in rank_bounds(flow, hpmoe.machines.ascend_a3, balanced_ids(1, 8, 1, 1))]
        [79]
    """
    zeros = [[np.zeros(r.shape, numpy_dtype("float32")) for r in ids] if plan.weights >= 0 else None for plan in flow.routes]
    bounds_of = _RankBounds(flow, machine, Layout(flow, [list(ids)] * len(flow.routes), None, zeros))
    bounds = [bounds_of.rank(rank) for rank in range(flow.ep_size)]
    return _on_one_computer(bounds, machine) if machine.host.cores else bounds


def _on_one_computer(bounds: list[Bound], machine: Machine) -> list[Bound]:
    """Returns the bounds of ranks that share cores, memory and L2: each needs the sum of all ranks' work."""
    totals: dict[str, float] = {n: sum(getattr(b, n) for b in bounds) for n in ("weights", "late", "memory", "l2")}
    matrix, vector = (sum(getattr(b, unit) for b in bounds) * len(machine.queues_of(unit)) / machine.host.cores
                      for unit in ("aic", "aiv"))
    totals["aic"] = max(matrix, *(b.aic for b in bounds))
    totals["aiv"] = max(vector if machine.unified else matrix + vector, *(b.aiv for b in bounds))
    for name in ("fill", "drain"):  # matrix work of any rank may be the first, and the last
        totals[name] = min((getattr(b, name) for b in bounds if max(b.aic, b.weights) > 0), default=0.0)
    return [dataclasses.replace(b, **totals) for b in bounds]


class Needs(NamedTuple):
    """Resources that the tasks of one operation on a rank need.

    Attributes:
        us: microseconds of the workers of its unit, each task with the machine to itself.
        l2: bytes through L2.
        links: bytes that leave and reach the rank, inside its node and between nodes, [4].
    """

    us: float
    l2: float
    links: np.ndarray


class _RankBounds:
    """Computes the Bound of each rank."""

    def __init__(self, flow: tf.Taskflow, machine: Machine, layout: Layout):
        self.flow, self.machine, self.layout, self.work = flow, machine, layout, Work(flow, machine)
        self.signals = _signals(flow, machine)
        self.paths = LeastPaths(flow, machine, self.work.by_routing, layout,
                                [of_op.max(initial=0.0) for of_op in self.signals])

    def rank(self, rank: int) -> Bound:
        needs = [self._needs_of_moved(i, op, rank) if op.num_peers or op.primitive.moves_copies
                 else self._needs_of_tiles(i, op, rank) for i, op in enumerate(self.flow.ops)]
        return Bound(*self._shares_us(needs), *self._links_us(needs), *self._memory_us(rank), self._l2_us(needs),
                     *self._ends_us(rank), self._landing_us(needs), self.paths.last_full(rank))

    def _needs_of_moved(self, index: int, op: tf.TileOp, rank: int) -> Needs:
        """Returns the Needs of an operation that moves rows or weights between ranks."""
        machine, work = self.machine, self.work.by_routing[index]
        moved, own = _moved(self.layout, op, rank, machine.link.node_size)
        rows, links = moved[::2].sum() + own, moved * _of_row(op, work["link_row"])
        peers = -(-self.flow.ep_size // (op.num_peers or 1))  # of a task; each gets as much as one worker may send
        takes_core = machine.host.cores == math.ceil(machine.host.cores)  # else more threads than cores, some on links
        on_link = links[::2].sum() / peers / machine.link.worker_bytes_per_us if takes_core else 0.0
        l2 = rows * _of_row(op, work["footprints"]["row"].sum(axis=1)) + own * _of_row(op, work["link_row"])
        return Needs(max(on_link, rows * _of_row(op, work["core_row"])), l2, links)

    def _needs_of_tiles(self, index: int, op: tf.TileOp, rank: int) -> Needs:
        """Returns the Needs of an operation on the rank's own rows."""
        rows, works = rows_of_tasks(self.layout, op, rank), self._works_with_fans(index, op, rank)
        of_blocks, us, l2 = rows.reshape(-1, op.domain.blocks), 0.0, 0.0
        for k, some in ((0, of_blocks[:, :-1].reshape(-1)), (2, of_blocks[:, -1])):
            for num_cols, work in zip((op.num_col_tiles - 1, 1), works[k:k + 2], strict=True):
                us += num_cols * self._tasks_us(work, some)
                l2 += num_cols * _touched(work, some).sum()
        has_rows = op.rows_of_parts(op.domain.rows_of_units(self.layout, rank)[0], self.flow.tile_rows) > 0
        return Needs(us + self.machine.sync.signal_us * (self.signals[index] * has_rows).sum(), l2, np.zeros(4))

    def _works_with_fans(self, index: int, op: tf.TileOp, rank: int) -> np.ndarray:
        """Returns the operation's `Work.by_routing` for the rows that the rank's experts have of a token sent once."""
        fans = 0.0
        if op.has_fan:
            routing = self.layout.routings[op.domain.route]
            rows = self.layout.relayed[op.params.route].kept[rank].sum() if isinstance(op.params, Relayed) else \
                known(routing.experts).num_rows(rank)
            fans = float(rows) / max(1, routing.num_rows(rank))
        return with_fans(self.work.by_routing[index], fans)

    def _tasks_us(self, work: np.void, rows: np.ndarray) -> float:
        """Returns the microseconds of tasks with these numbers of rows, each with the machine to itself."""
        machine = self.machine
        core = machine.sync.task_us + core_us(work, rows)
        if machine.host.cores:  # a task that waits for L2 takes no core
            return float(core.sum())
        l2_bytes_per_us = min(machine.l2.worker_bytes_per_us, machine.l2.bytes_per_us)
        return float(np.maximum(core, _touched(work, rows) / l2_bytes_per_us).sum())

    def _shares_us(self, needs: Sequence[Needs]) -> tuple[float, float]:
        """Returns aic and aiv."""
        busy = {"aic": 0.0, "aiv": 0.0}
        for op, of_op in zip(self.flow.ops, needs, strict=True):
            busy[op.unit] += of_op.us
        if self.machine.unified:
            busy["aiv"] += busy["aic"]
        aic, aiv = (us / max(1, len(self.machine.queues_of(unit))) for unit, us in busy.items())
        return aic, aiv

    def _links_us(self, needs: Sequence[Needs]) -> tuple[float, float]:
        """Returns egress and ingress: each the slower of the links inside the node and between nodes."""
        rates = [[self.machine.link.rate(self.flow.ep_size)], [self.machine.link.node_bytes_per_us]]
        egress, ingress = (sum((n.links for n in needs), np.zeros(4)).reshape(2, 2) / rates).max(axis=0)
        return egress, ingress

    def _memory_us(self, rank: int) -> tuple[float, float, float]:
        """Returns weights, late and memory."""
        machine = self.machine
        of_workers = self._workers_at_once(("aic",)) * machine.memory.worker_bytes_per_us
        of_matrix = min(machine.memory.bytes_per_us, of_workers)
        rates = of_matrix, of_matrix, machine.memory.bytes_per_us  # workers of other ranks bring rows, too
        traffic = _Traffic(self.flow, machine, self.work, self.layout, rank)
        for index, op in enumerate(self.flow.ops):
            if is_transfer(op):
                traffic.add_transfer(index, op)
            else:
                traffic.add_local(op, self._works_with_fans(index, op, rank))
        weights, late, memory = traffic.least_bytes() / rates
        return weights, late, memory

    def _l2_us(self, needs: Sequence[Needs]) -> float:
        workers = self._workers_at_once(("aic", "aiv"))
        return sum(n.l2 for n in needs) / min(self.machine.l2.bytes_per_us, workers * self.machine.l2.worker_bytes_per_us)

    def _ends_us(self, rank: int) -> tuple[float, float]:
        """Returns fill and drain: the least of all matrix operations that have tasks."""
        matrix = [i for i, op in enumerate(self.flow.ops) if op.unit == "aic" and len(rows_of_tasks(self.layout, op, rank))]
        fill, drain = (max(0.0, min((times[i] for i in matrix), default=0.0))
                       for times in (self.paths.before(rank), self.paths.after(rank)))
        return fill, drain

    def _landing_us(self, needs: Sequence[Needs]) -> float:
        ways = ((i, stays_in_node, out_and_in) for i, n in enumerate(needs)
                for stays_in_node, out_and_in in zip((True, False), n.links.reshape(2, 2), strict=True))
        return min((self.paths.landing(i, stays_in_node) for i, stays_in_node, out_and_in in ways if out_and_in.any()),
                   default=0.0)

    def _workers_at_once(self, units: Sequence[str]) -> int:
        """Returns how many workers of some units can be in tasks at a time."""
        workers = len({queue for unit in units for queue in self.machine.queues_of(unit)})
        return math.ceil(self.machine.host.cores) or workers


class _Traffic:
    """Least bytes that memory moves for a rank, whichever worker runs its tasks in whichever order; see Footprint.cost.

    Each byte costs what the cheapest touch of its part costs, since any may be the one that L2 does not hold.
    Tasks that together touch at least `whole` bytes of a part move `whole` bytes, as the part stays in L2; others move all
    that they touch. Rows gathered from an array that is one part, and rows that land in it, follow L2::gather and L2::land.
    """

    def __init__(self, flow: tf.Taskflow, machine: Machine, work: Work, layout: Layout, rank: int):
        self.flow, self.machine, self.work, self.layout, self.rank = flow, machine, work, layout, rank
        self.by_vector, self.early = np.zeros((2, work.footprints.num_parts), bool)
        self.cost = np.full(work.footprints.num_parts, np.inf)
        self.touched: list[np.ndarray] = [np.zeros((3, 0))]  # (part, bytes touched, bytes of the part)
        # (part, its bytes): bytes gathered, bytes landed, and the least costs of these
        self.gathered: dict[tuple[int, float], list[float]] = {}
        self.streamed = np.zeros(2)  # by matrix tasks, by all

    def least_bytes(self) -> np.ndarray:
        """Returns [3] bytes times costs: of arrays only matrix tasks touch, of those without weights read early, of all."""
        of_parts, of_arrays, is_alone = self._least_touched(), self._least_gathered(), ~self.by_vector
        alone = sum(least for part, least in of_arrays.items() if is_alone[part])
        weights, late = (of_parts[which].sum() + alone for which in (is_alone, is_alone & ~self.early))
        of_matrix, of_all = self.streamed
        return np.array([of_matrix + weights, of_matrix + late, of_all + of_parts.sum() + sum(of_arrays.values())])

    def _least_touched(self) -> np.ndarray:
        """Returns bytes of each part, [num_parts]."""
        places, touched, whole = np.concatenate(self.touched, axis=1)
        order = np.lexsort((-whole, places))
        places, touched, whole = places[order].astype(int), touched[order], whole[order]
        sums = np.cumsum(touched)  # of each part from its largest whole on
        begins = np.searchsorted(places, places)
        out = np.zeros(len(self.by_vector))
        np.maximum.at(out, places, np.minimum(whole, sums - (sums - touched)[begins]))
        return out * np.where(out > 0, self.cost, 0.0)

    def _least_gathered(self) -> dict[int, float]:
        """Returns the least bytes of memory traffic for gathered arrays, times costs, by the index of the array's part.

        The bytes are all rows that landed from links and the gathered rows that L2 does not hold. L2 holds most if all rows
        have landed before the first is gathered.
        """
        out: dict[int, float] = {}
        for (part, whole), (gathered, landed, read_cost, landing_cost) in self.gathered.items():
            new = gathered
            if whole:
                held, l2_bytes = min(landed, whole), min(self.machine.l2.bytes, whole)
                new = max(-(whole - held) * math.expm1(-gathered / whole), gathered * (1 - l2_bytes / whole))
            of_landed, of_new = (amount * cost if amount else 0.0 for amount, cost in
                                 ((landed, landing_cost), (new, read_cost)))
            out[part] = max(out.get(part, 0.0), of_landed + of_new)
        return out

    def add_local(self, op: tf.TileOp, works: np.ndarray) -> None:
        """Adds the arrays of an operation on the rank's own rows."""
        rows, experts = op.domain.rows_of_units(self.layout, self.rank)
        is_vector = op.unit != "aic"
        for is_last, tiles, work in _tiles(op, works):
            units = np.arange(len(rows))
            units = units[(units % op.domain.blocks == op.domain.blocks - 1) == is_last]
            units = units if op.domain.sums_rows and op.domain.route >= 0 else units[rows[units] > 0]
            of_units = rows[units]
            for first, part, fixed, row, whole, cost in work["footprints"][:work["num_footprints"]].tolist():
                touched = fixed + row * of_units
                if part == STREAM:
                    self.streamed += cost * len(tiles) * touched.sum() * np.array([not is_vector, True])
                elif part == TOGETHER:
                    self._gather(first, whole, is_vector, cost, gathered=len(tiles) * touched.sum())
                elif part in (WEIGHT, DENSE):
                    of_expert = experts[units] * op.num_col_tiles * (part == WEIGHT)
                    places = first + (of_expert + tiles[:, None]).reshape(-1)
                    self._touch(places, np.tile(touched, len(tiles)), np.full(len(places), whole), is_vector, cost)
                    self.early[places] |= op.params.is_early
                elif part == OF_EXPERT:
                    times = np.bincount(experts[units] + op.domain.first_expert)
                    self._touch_slots(op, first, row * len(tiles), whole, is_vector, cost, times)
                else:
                    self._touch(first + units, touched * len(tiles), whole * of_units if whole else touched, is_vector, cost)

    def add_transfer(self, index: int, op: tf.TileOp) -> None:
        """Adds the rows or weights that leave the rank, and those that arrive."""
        moved, own = _moved(self.layout, op, self.rank, self.machine.link.node_size)
        sent, came = moved[::2].sum() + own, moved[1::2].sum() + own
        for is_last, tiles, work in _tiles(op, self.work.by_routing[index]):
            if not is_last:
                continue
            for first, part, _, row, whole, cost in work["footprints"][:work["num_footprints"]].tolist():
                if op.primitive.moves_copies:
                    self._touch(np.array([first]), np.array([sent * row]), np.array([sent * row]), True, cost)
                elif part == TOGETHER:
                    self._gather(first, whole, True, cost, gathered=len(tiles) * sent * row)
                elif part == UNIT:
                    self._touch_slots(op, first, row * len(tiles), whole, True, cost)
            first, part, _, row, whole, cost = work["landing"].tolist()
            if part == TOGETHER:
                self._gather(first, whole, True, cost, landed=len(tiles) * came * row)
            elif row:
                self._touch_slots(op, first, row * len(tiles), whole, True, cost)

    def _touch(self, parts: np.ndarray, touched: np.ndarray, whole: np.ndarray, is_vector: bool, cost: float) -> None:
        some = touched > 0
        self.cost[parts[some]] = np.minimum(self.cost[parts[some]], cost)
        self.by_vector[parts[some]] |= is_vector
        self.touched.append(np.stack([parts, touched, whole])[:, some])

    def _gather(self, part: int, whole: float, is_vector: bool, cost: float, gathered: float = 0.0,
                landed: float = 0.0) -> None:
        amounts = self.gathered.setdefault((part, whole), [0.0, 0.0, math.inf, math.inf])
        for i, amount in enumerate((gathered, landed)):
            amounts[i] += amount
            amounts[i + 2] = min(amounts[i + 2], cost) if amount else amounts[i + 2]
        self.by_vector[part] |= is_vector

    def _touch_slots(self, op: tf.TileOp, first: int, row: float, whole: float, is_vector: bool, cost: float,
                     times: np.ndarray | None = None) -> None:
        """Adds all rows of the rank's slots; with `times`, [num_experts], the rows of each expert that many times."""
        slots = self.layout.slots[op.domain.route][self.rank]
        rows = slots.rows.astype(float)
        often = np.append(times, 0)[np.minimum(slots.expert, len(times))] if times is not None else 1
        self._touch(first + np.arange(len(rows)), rows * row * often, rows * (whole or row), is_vector, cost)


def _tiles(op: tf.TileOp, works: np.ndarray) -> Iterator[tuple[bool, np.ndarray, np.void]]:
    """Yields, for each kind of task, (True for the last block of rows, column tile numbers, the WORK record).

    `works` are the four records of `op` in `Work.by_routing`; kinds that no task of `op` has are left out.
    """
    tiles = np.arange(op.num_col_tiles)
    for k, work in enumerate(works):
        of_work = tiles[-1:] if k % 2 else tiles[:-1]
        if len(of_work):
            yield k >= 2, of_work, work


def _moved(layout: Layout, op: tf.TileOp, rank: int, node_size: int) -> tuple[np.ndarray, float]:
    """Returns rows of a put that leave and reach the rank, inside its node and between nodes, [4]; and rows that stay."""
    out, ep_size = np.zeros(4), layout.flow.ep_size
    if op.primitive.is_completion_flag:
        return out, 0.0
    routing = layout.routings[op.domain.route]
    to_rank = routing.counts.reshape(ep_size, ep_size, -1).sum(axis=2)
    if op.is_relayed:
        to_rank = np.stack([np.bincount(of, minlength=ep_size) for of in layout.sent_by(op).source_of_row], axis=1)
    if op.primitive.moves_copies:
        to_rank = np.zeros_like(to_rank)
        for owner, copies in enumerate(known(routing.placement).copies):
            np.add.at(to_rank[owner], [copy.host for copy in copies], op.params.height)
    sent = to_rank.T if op.primitive.is_back else to_rank
    ranks = np.arange(ep_size)
    in_node = ranks // node_size == rank // node_size
    for first, which in ((0, in_node & (ranks != rank)), (2, ~in_node)):
        out[first:first + 2] = sent[rank, which].sum(), sent[which, rank].sum()
    return out, float(sent[rank, rank])


def _signals(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """Returns how many signals each task of each operation surely sends, if it has rows, [units, column ranges].

    A taskflow without queues has none, as the order decides which are needed. Threads of a host send signals while others
    use its cores.
    """
    if not flow.queues or machine.host.cores:
        return [np.zeros((op.domain.size, 1)) for op in flow.ops]
    signals = flow.deps.signals
    counts = np.bincount(signals["task"][signals["kind"] != tf.ENTRY_TILE], minlength=flow.num_tasks)
    firsts = np.cumsum([0] + [math.prod(op.grid) for op in flow.ops])
    return [counts[first:last].reshape(op.grid[0], op.grid[1] * op.grid[2]) * (not op.num_peers)
            for op, first, last in zip(flow.ops, firsts, firsts[1:], strict=False)]


def _of_row(op: tf.TileOp, of_tiles: np.ndarray) -> float:
    """Returns the sum over the parts of a transferred row: full tiles of columns, and the last one."""
    return float((op.num_col_tiles - 1) * of_tiles[0] + of_tiles[1])


def _touched(work: np.void, rows: np.ndarray) -> np.ndarray:
    """Returns the bytes that each task of these numbers of rows touches."""
    used = work["footprints"][:work["num_footprints"]]
    return used["fixed"].sum() + rows * used["row"].sum()
