"""The lower bound of every schedule of a Taskflow's tasks on a machine, for one routing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from hpmoe.costs.least_paths import LeastPaths
from hpmoe.costs.least_traffic import LeastTraffic
from hpmoe.costs.least_work import LeastWork, Needs
from hpmoe.costs.rank_rows import RankRows
from hpmoe.costs.work import Work
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.machines.machine import Machine
from hpmoe.support.dtypes import numpy_dtype


@dataclasses.dataclass(frozen=True)
class Bound:
    """Microseconds that a rank needs at least; where ranks are threads of one computer, all of them together.

    Attributes:
        aic: work of its matrix tasks, each alone on the machine, shared evenly among the workers that take them; of a
            taskflow with queues with the signals that these tasks send.
        aiv: the same of its vector tasks, or of all tasks where they take the same workers.
        egress, ingress: of its link, at full rate.
        weights: of its memory, at full rate, for what matrix tasks alone touch; see LeastTraffic.
        late: the same without weights that are read early, before rows have come.
        memory: the same for all tasks, with rows that come.
        l2: of its L2, at full rate, for all that any task touches.
        fill: before any of its matrix tasks can begin: all rows of one slot have come, see LeastPaths.
        drain: after the last one has ended, until the rows that it made are summed where they are wanted.
        landing: after the last row of a link has come, in the same way.
        last: until the last full slot has come, was multiplied and is summed where it is wanted, see LeastPaths.last_full.
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
    """The Bound of each rank of a taskflow under overlap_comm; that of a launch is the largest of all ranks.

    Args:
        flow: with or without queues.
        machine: what it runs on.
        ids: topk_ids of all ranks, [ep, T, K], the same for every route.

    Example:
        >>> import hpmoe
        >>> from hpmoe.routing.workload import balanced_ids
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256).lower(hpmoe.Aval((8192, 4096), "bfloat16"))
        >>> [round(b.total) for b in rank_bounds(flow, hpmoe.ascend_a3, balanced_ids(1, 8, 1, 1))]
        [87]
    """
    zeros = [[np.zeros(r.shape, numpy_dtype("float32")) for r in ids] if plan.weights >= 0 else None for plan in flow.routes]
    bounds_of = _RankBounds(flow, machine, Layout(flow, [list(ids)] * len(flow.routes), None, zeros))
    bounds = [bounds_of.rank(rank) for rank in range(flow.ep_size)]
    return _on_one_computer(bounds, machine) if machine.host_cores else bounds


def _on_one_computer(bounds: list[Bound], machine: Machine) -> list[Bound]:
    """Those of ranks that share cores, memory and L2, from what each would need alone: every one has to do all."""
    totals: dict[str, float] = {n: sum(getattr(b, n) for b in bounds) for n in ("weights", "late", "memory", "l2")}
    matrix, vector = (sum(getattr(b, unit) for b in bounds) * len(machine.queues_of(unit)) / machine.host_cores
                      for unit in ("aic", "aiv"))
    totals["aic"] = max(matrix, *(b.aic for b in bounds))
    totals["aiv"] = max(vector if machine.unified else matrix + vector, *(b.aiv for b in bounds))
    for name in ("fill", "drain"):  # matrix work of any rank may be the first, and the last
        totals[name] = min((getattr(b, name) for b in bounds if max(b.aic, b.weights) > 0), default=0.0)
    return [dataclasses.replace(b, **totals) for b in bounds]


class _RankBounds:
    """What each rank would need alone, from the least work of its tasks and the least paths before and after them."""

    def __init__(self, flow: tf.Taskflow, machine: Machine, layout: Layout):
        self.flow, self.machine, self.rows = flow, machine, RankRows(flow, layout)
        work = Work(flow, machine)
        self.work = LeastWork(flow, machine, work, self.rows)
        self.traffic = LeastTraffic(flow, machine, work, self.rows)
        self.paths = LeastPaths(flow, machine, work.by_routing, layout, self.rows.of_tasks,
                                [of_op.max(initial=0.0) for of_op in self.work.signals])

    def rank(self, rank: int) -> Bound:
        needs = self.work.of_ops(rank)
        return Bound(*self._shares_us(needs), *self._links_us(needs), *self._memory_us(rank), self._l2_us(needs),
                     *self._ends_us(rank), self._landing_us(needs), self.paths.last_full(rank))

    def _shares_us(self, needs: Sequence[Needs]) -> tuple[float, float]:
        """aic, aiv."""
        busy = {"aic": 0.0, "aiv": 0.0}
        for op, of_op in zip(self.flow.ops, needs, strict=True):
            busy[op.unit] += of_op.us
        if self.machine.unified:
            busy["aiv"] += busy["aic"]
        aic, aiv = (us / max(1, len(self.machine.queues_of(unit))) for unit, us in busy.items())
        return aic, aiv

    def _links_us(self, needs: Sequence[Needs]) -> tuple[float, float]:
        """egress, ingress: each the slower of links in the node and between nodes."""
        rates = [[self.machine.link_rate(self.flow.ep_size)], [self.machine.node_link_bytes_per_us]]
        egress, ingress = (sum((n.links for n in needs), np.zeros(4)).reshape(2, 2) / rates).max(axis=0)
        return egress, ingress

    def _memory_us(self, rank: int) -> tuple[float, float, float]:
        """weights, late, memory."""
        machine = self.machine
        of_workers = self._workers_at_once(("aic",)) * machine.worker_memory_bytes_per_us
        of_matrix = min(machine.memory_bytes_per_us, of_workers)
        rates = of_matrix, of_matrix, machine.memory_bytes_per_us  # rows come by others' workers too
        weights, late, memory = self.traffic.bytes_of(rank) / rates
        return weights, late, memory

    def _l2_us(self, needs: Sequence[Needs]) -> float:
        workers = self._workers_at_once(("aic", "aiv"))
        return sum(n.l2 for n in needs) / min(self.machine.l2_bytes_per_us, workers * self.machine.worker_l2_bytes_per_us)

    def _ends_us(self, rank: int) -> tuple[float, float]:
        """fill, drain: the least of all matrix operations that have tasks."""
        matrix = [i for i, op in enumerate(self.flow.ops) if op.unit == "aic" and len(self.rows.of_tasks(op, rank))]
        fill, drain = (max(0.0, min((times[i] for i in matrix), default=0.0))
                       for times in (self.paths.before(rank), self.paths.after(rank)))
        return fill, drain

    def _landing_us(self, needs: Sequence[Needs]) -> float:
        ways = ((i, stays_in_node, out_and_in) for i, n in enumerate(needs)
                for stays_in_node, out_and_in in zip((True, False), n.links.reshape(2, 2), strict=True))
        return min((self.paths.landing(i, stays_in_node) for i, stays_in_node, out_and_in in ways if out_and_in.any()),
                   default=0.0)

    def _workers_at_once(self, units: Sequence[str]) -> int:
        """Workers of some units that can be in tasks at a time."""
        workers = len({queue for unit in units for queue in self.machine.queues_of(unit)})
        return math.ceil(self.machine.host_cores) or workers
