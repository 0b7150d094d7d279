"""A MoE-FFN layer of given sizes and routing on a modelled machine: fused, unfused, and its bound."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

import hpmoe
from hpmoe.commands.options import Options
from hpmoe.costs.bound import rank_bounds
from hpmoe.costs.start import start_us
from hpmoe.ir.avals import RouteAval
from hpmoe.ir.program import Program
from hpmoe.kernels.simulate import Outline, outline
from hpmoe.routing.balance import place_replicas
from hpmoe.routing.placement import WHOLE, Placement
from hpmoe.routing.workload import balanced_ids, imbalanced_ids, sampled_ids
from hpmoe.runtime.planned_rows import (
    PlannedRows,
    routes_of,
    rows_at_start,
    rows_of_any,
    rows_of_received,
    with_planned_rows,
)
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.trees import Function
from hpmoe.tile_ops.row_formats import FORMATS
from hpmoe.tiling.rebuild import rebuild
from hpmoe.timelines.run import RATES
from hpmoe.transforms.assign_queues import Policy

ROUTINGS = "balanced", "uniform", "zipf"
ROW_CAPACITY = "received", "bucket", "all"
QUANTISED = *FORMATS, *(f"{dtype}+combine" for dtype in FORMATS)
MOST_DECODED = 512  # tokens of a rank, up to which an unfused program has the kernels of decoding
# Candidates for min_load, as fractions of the row count whose matmul takes as long as sending one expert's weights. The
# last candidate is so large that no expert is replicated.
MIN_LOADS = 1.0, 0.7, 0.5, 0.35, 0.25, 0.1, 0.0, 1e6
REPOLL_US = 20.0  # between two looks of a waiting worker in the paper's public implementation: tens of microseconds there


def ids_of(o: Options, imbalance: float = 1.0, routing: str = "balanced", seed: int = 0) -> np.ndarray:
    """Returns topk_ids of all ranks, [ep, T, K], for sizes by the names of a command's flags."""
    sizes = o.ep, o.tokens, o.top_k, o.experts
    if routing != "balanced":
        return sampled_ids(*sizes, is_zipf=routing == "zipf", seed=seed)
    return balanced_ids(*sizes) if imbalance == 1 else imbalanced_ids(*sizes, imbalance=imbalance, seed=seed)


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """Taskflows and simulated times of one configuration."""

    o: Options  # sizes, dtype, as the flags of a command name them
    direction: str  # "forward" or "backward"
    machine: hpmoe.Machine
    ids: np.ndarray  # topk_ids of all ranks, [ep, T, K]
    replicas: int = 0  # the most expert replicas of a rank, placed by the loads that `ids` cause
    tuned: bool = False  # tiles and puts are of the sizes that the machine model chooses, if the flags give none
    scheme: str = "direct"  # of send_rows; nodes are those of the machine
    quantize: str | None = None  # one of QUANTISED, the format of dispatched rows, "+combine" also of returned ones
    row_capacity: str = "received"  # rows that a plan has buffers for: of the fullest rank, their "bucket", or "all"
    prefetch: bool = False  # matrix workers of the persistent kernel read weights while they wait for rows
    plan: int | None = None  # index of one of the plans that a kernel chooses from at its start; None for a single plan
    rank_capacity_factor: float | None = None  # of hpmoe.limit_rows, by which there are fewer of "all"

    @property
    def imbalance(self) -> float:
        """Largest over mean number of rows that a rank receives, before any expert has replicas."""
        received = self.loads.reshape(self.o.ep, -1).sum(axis=1)
        return float(received.max() / max(1e-9, received.mean()))

    @property
    def loads(self) -> np.ndarray:
        """Number of entries of all ranks for each expert, [num_experts]."""
        return np.bincount(self.ids[self.ids >= 0], minlength=self.o.experts)

    @functools.cached_property
    def min_load(self) -> float:
        """Least rows of a replica: --min_load, or by default the number with the least estimated time, see copies_us.

        A link that is idle for the time of a copy's weights makes the copy free; a busy link makes it cost their time.
        """
        given = getattr(self.o, "min_load", None)
        if given is not None:
            return given
        flops = self.machine.num_aic * self.machine.cube.rate(self.o.dtype)
        hidden = flops / 2 * numpy_dtype(self.o.dtype).itemsize / self.machine.link.rate(self.o.ep)
        return min((hidden * share for share in MIN_LOADS), key=self._copies_us)

    def _copies_us(self, min_load: float) -> float:
        """Returns estimated microseconds of the rank that takes longest: of its products, its memory or its link."""
        o, machine = self.o, self.machine
        placement = place_replicas(self.loads, ep_size=o.ep, replicas=self.replicas, min_load=min_load)
        size, of_expert = numpy_dtype(o.dtype).itemsize, 3.0 * o.hidden * o.intermediate
        busiest = rows_of_ranks(placement, self.loads)
        held = np.full(o.ep, placement.num_own) + [sum(e >= 0 for e in slots) for slots in placement.experts]
        given = np.array([len(copies) for copies in placement.copies])
        rows = busiest + o.tokens * o.top_k  # that a rank returns and sends
        link = (given * of_expert + (1 - 1 / o.ep) * rows * o.hidden) * size / machine.link.rate(o.ep)
        core = 2 * busiest * of_expert / (machine.num_aic * machine.cube.rate(o.dtype))
        memory = held * of_expert * size / machine.memory.bytes_per_us
        return float(np.max([core, memory, link]))

    def with_copies(self, f: Function) -> Function:
        """Returns the function with up to `self.replicas` expert replicas on each rank."""
        if not self.replicas:
            return f
        return hpmoe.replicate_experts(f, loads=self.loads, replicas=self.replicas, min_load=self.min_load)

    def with_quantised_rows(self, f: Function) -> Function:
        """Returns the function with rows sent in the format that `self.quantize` names."""
        dtype, combine = quantised_rows(self.quantize)
        return hpmoe.quantize_rows(f, dtype=dtype, combine=combine) if dtype else f

    def traced(self, is_planned: bool = True, has_nodes: bool = False) -> Program:
        """Returns the layer's program, planned for the rows of `row_capacity` if `is_planned`.

        `has_nodes` puts the machine's nodes into the mesh if all nodes are full.
        """
        return self._program(self.replicas, self.scheme, self.row_capacity if is_planned else None, has_nodes)

    @functools.cached_property
    def tiles(self) -> hpmoe.rewriting.Taskflow:
        return self._tiles(self.replicas, self.tuned, self.scheme, self.row_capacity)

    def _program(self, replicas: int, scheme: str, row_capacity: str | None, has_nodes: bool = False) -> Program:
        def rewritten(program: Program) -> Program:
            if replicas:
                program = hpmoe.replicate_experts.apply_to(program, loads=self.loads, replicas=replicas,
                                                           min_load=self.min_load)
            if self.rank_capacity_factor is None:
                return program
            return hpmoe.limit_rows.apply_to(program, rank_capacity_factor=self.rank_capacity_factor)

        is_hierarchical, node_size = "hierarchical" in scheme, self.machine.link.node_size
        nodes = self.o.ep // node_size if is_hierarchical or has_nodes and self.o.ep % node_size == 0 else None
        traced = program(self.o, self.direction, rewritten, nodes=nodes)
        if row_capacity is not None:
            traced = with_planned_rows(traced, [self._planned_rows(r.aval, row_capacity) for r in routes_of(traced)])
        traced = hpmoe.send_rows.apply_to(traced, scheme=scheme) if scheme != "direct" else traced
        dtype, combine = quantised_rows(self.quantize)
        return hpmoe.quantize_rows.apply_to(traced, dtype=dtype, combine=combine) if dtype else traced

    def _tiles(self, replicas: int, tuned: bool, scheme: str, row_capacity: str) -> hpmoe.rewriting.Taskflow:
        rows, cols = (getattr(self.o, n, None) or ("auto" if tuned else None) for n in ("tile_rows", "tile_cols"))
        return hpmoe.tile_partition.apply_to(self._program(replicas, scheme, row_capacity), rows=rows, cols=cols,
                                             machine=self.machine)

    def _planned_rows(self, aval: RouteAval, row_capacity: str) -> PlannedRows:
        if row_capacity == "all":
            every = rows_of_any(aval)
            return every if self.plan is None else rows_at_start(every, aval.balanced_rows)[self.plan]
        rows = max(aval.kind.by_ids.received(self.ids))
        return rows_of_received(rows, aval) if row_capacity == "bucket" else PlannedRows(rows, rows)

    def fused(self, policy: str | Policy = "critical_path", machine: hpmoe.Machine | None = None,
              **comm: str | int | None) -> hpmoe.Timeline:
        """Simulates the persistent kernel on the layer's machine, planned for this machine or another one."""
        return self.run(self.fused_flow(policy, machine, **comm))

    def run(self, flow: hpmoe.rewriting.Taskflow) -> hpmoe.Timeline:
        return hpmoe.simulate(flow, routing=self.ids)

    def outline(self, flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine | None = None) -> Outline:
        """Simulates a run and returns its totals, in less memory and time than a Timeline takes."""
        return outline(flow, machine, routing=self.ids)

    def fused_flow(self, policy: str | Policy = "critical_path", machine: hpmoe.Machine | None = None,
                   **comm: str | int | None) -> hpmoe.rewriting.Taskflow:
        """Returns the persistent kernel; expert_barrier has the signals, events and waits of the paper's implementation."""
        machine = machine or self.machine
        comm = {"signal": "expert", **comm} if policy == "expert_barrier" else comm
        tuned = {"put_cols": "auto", "returns": 2} if self.tuned else {}
        flow = hpmoe.overlap_comm.apply_to(self.tiles, **tuned | comm)
        flow = hpmoe.prefetch_weights.apply_to(flow) if self.prefetch else flow
        if policy == "expert_barrier":
            flow, machine = wait_for_experts.apply_to(flow), machine.replace({"sync.repoll_us": REPOLL_US})
        return hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy)

    def autotuned_flow(self, is_known: bool = False) -> hpmoe.rewriting.Taskflow:
        """Returns the persistent kernel that autotune makes, for the layer's routing or for sampled routings."""
        topk_ids = self.ids if is_known else None
        return hpmoe.autotune.apply_to(self.traced(), machine=self.machine, topk_ids=topk_ids)

    def baseline(self, scheme: str = "direct", is_direct: bool | None = None) -> hpmoe.Timeline:
        """Simulates the unfused program; see baseline_flow."""
        return self.run(self.baseline_flow(scheme, is_direct))

    def baseline_flow(self, scheme: str = "direct", is_direct: bool | None = None) -> hpmoe.rewriting.Taskflow:
        """Returns one kernel after another, without replicas, for the actual rows; each deals its tiles out in turn.

        `is_direct`: exchanges write rows to their places, see launch_kernels; by default with few tokens.
        """
        tiles = self._tiles(replicas=0, tuned=False, scheme=scheme, row_capacity="received")
        is_direct = self.o.tokens <= MOST_DECODED if is_direct is None else is_direct
        flow = hpmoe.launch_kernels.apply_to(tiles, direct=is_direct)
        return hpmoe.assign_queues.apply_to(flow, machine=self.machine, policy="round_robin")

    def least_us(self, flow: hpmoe.rewriting.Taskflow) -> float:
        """Returns a lower bound in microseconds on one launch of a fused taskflow: start, plus the slowest rank's bound."""
        return start_us(flow, self.machine) + max(b.total for b in rank_bounds(flow, self.machine, self.ids))

    def launch_us(self, flow: hpmoe.rewriting.Taskflow) -> float:
        """Simulates one launch of a fused taskflow and returns its microseconds; see span_us."""
        return start_us(flow, self.machine) + self.outline(flow).span

    def span_us(self, line: hpmoe.Timeline) -> float:
        """Returns microseconds of a simulated run of a fused taskflow, from its launch on."""
        return start_us(line.flow, self.machine) + line.span


def rows_of_ranks(placement: Placement, loads: np.ndarray) -> np.ndarray:
    """Returns rows of each rank with replicas, if the loads are those that they were planned for, [ep]."""
    expert, first, last = placement.parts.T
    rows = np.where(expert >= 0, loads[expert], 0.0) * (last - first) / WHOLE
    return rows.reshape(placement.ep_size, -1).sum(axis=1)


@hpmoe.transform(requires="tiles")
def wait_for_experts(flow: hpmoe.rewriting.Taskflow) -> hpmoe.rewriting.Taskflow:
    """Gives a flow one event for all rows of an expert between any two operations, as in the paper's public implementation.
    """
    return rebuild(flow, tuple(
        op.replace(signal="expert") if op.domain.is_slots and not op.num_peers else op for op in flow.ops))


def quantised_rows(quantize: str | None) -> tuple[str, bool]:
    """Returns the dtype and `combine` of hpmoe.quantize_rows for one of QUANTISED."""
    dtype, _, back = (quantize or "").partition("+")
    return dtype, bool(back)


def sent_bytes(found: Outline) -> float:
    """Returns the bytes that a rank sends to others, mean of all ranks."""
    return float(found.traffic[:, [RATES.index("egress"), RATES.index("node_egress")], 0].sum(axis=1).mean())


def utilisation(found: Outline, machine: hpmoe.Machine) -> dict[str, float]:
    """Returns shares of the span, mean of all ranks: workers in task bodies, links and memory at their full rates."""
    busy, ep_size = found.utilisation, len(found.traffic)
    out = {unit: float(busy[:, list(machine.queues_of(unit))].mean()) for unit in ("aic", "aiv")}
    shared = ep_size if machine.host.cores else 1  # ranks that have one memory, whose traffic is that of the first
    of_rate: dict[str, float] = dict(zip(
        RATES, (found.traffic[:, :, 0].mean(axis=0) / max(found.span, 1e-9)).tolist(), strict=True))
    for name in ("egress", "ingress"):
        out[name] = float(max(of_rate[name] / machine.link.rate(ep_size),
                              of_rate[f"node_{name}"] / machine.link.node_bytes_per_us))
    return {**out, "memory": float(of_rate["memory"] * shared / machine.memory.bytes_per_us)}


def program(o: Options, direction: str,
            rewrite: Callable[[Program], Program] = lambda p: p, nodes: int | None = None) -> Program:
    """Returns the traced MoE-FFN of these sizes, from shapes; `rewrite` is applied before its gradient is taken."""
    mesh = hpmoe.Mesh(o.ep, tp=shards_of(o), nodes=nodes)
    traced = rewrite(hpmoe.trace(hpmoe.moe_ffn, *avals(o), mesh=mesh))
    return traced if direction == "forward" else hpmoe.rewriting.vjp(traced)


def avals(o: Options) -> list[hpmoe.ShapeDtypeStruct]:
    """Returns the avals of moe_ffn's arguments on one rank."""
    local, inner = o.experts // o.ep, o.intermediate // shards_of(o)
    shapes = [(o.dtype, o.tokens, o.hidden), ("int32", o.tokens, o.top_k), ("float32", o.tokens, o.top_k),
              (o.dtype, local, o.hidden, 2 * inner), (o.dtype, local, inner, o.hidden)]
    return [hpmoe.ShapeDtypeStruct(tuple(s), dtype) for dtype, *s in shapes]


def shards_of(o: Options) -> int:
    """Returns the number of ranks that share an expert; 1 if the sizes do not say it."""
    return getattr(o, "tp", None) or 1
