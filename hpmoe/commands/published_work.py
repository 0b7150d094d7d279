"""The kinds of work that others publish times of, simulated: products, exchanges of rows, and whole layers."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
from mindspore import Tensor

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.workload import drawn_ids
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows

BYTES = ("vector_bytes_per_us", "copy_bytes_per_us", "l2_bytes", "l2_bytes_per_us", "worker_l2_bytes_per_us",
         "memory_bytes_per_us", "worker_memory_bytes_per_us", "link_bytes_per_us", "worker_link_bytes_per_us",
         "far_link_bytes_per_us", "node_link_bytes_per_us")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a layer on each rank, named as the flags of commands are."""

    ep: int
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    dtype: str = "bfloat16"

    @property
    def ids(self) -> np.ndarray:
        """topk_ids of all ranks, drawn alike for all experts, which is what such tests do."""
        return drawn_ids(self.ep, self.tokens, self.top_k, self.experts, is_zipf=False, seed=0)


def of_bytes(machine: hpmoe.Machine) -> hpmoe.Machine:
    """A machine that takes as long for two bytes as this one for one, and multiplies twice as fast: what numbers of one byte
    are to it, simulated as bfloat16."""
    changes: dict[str, float] = {name: min(1e30, 2 * getattr(machine, name)) for name in BYTES}
    return machine.replace(**changes, matmul_flops_per_us=2 * machine.matmul_flops_per_us)


def product_us(machine: hpmoe.Machine, rows: int, inner: int, cols: int) -> float:
    """A matrix product as a kernel of its own."""
    flow = hpmoe.tile_partition.apply_to(
        hpmoe.trace(lambda x, w: x @ w, hpmoe.Aval((rows, inner), "bfloat16"), hpmoe.Aval((inner, cols), "bfloat16")),
        rows="auto", cols="auto", machine=machine)
    flow = hpmoe.assign_queues.apply_to(hpmoe.launch_kernels.apply_to(flow), machine=machine, policy="round_robin")
    return hpmoe.simulate(flow).span


@functools.lru_cache(maxsize=64)
def exchange_us(machine: hpmoe.Machine, way: str, sizes: Sizes, dedup: bool = False) -> float:
    """Rows to the ranks of their experts, "dispatch", or back and summed, "combine", by one-sided puts of one kernel.

    The kernel's own time, which is what profilers and the tests of such libraries say, without a launch.
    """
    def dispatch(x: Tensor, ids: Tensor) -> Tensor:
        return hpmoe.dispatch(x, ids, num_local_experts=sizes.experts // sizes.ep)[0]
    ids = sizes.ids
    program = hpmoe.trace(dispatch, hpmoe.Aval((sizes.tokens, sizes.hidden), sizes.dtype),
                          hpmoe.Aval((sizes.tokens, sizes.top_k), "int32"), mesh=hpmoe.Mesh(sizes.ep))
    program = hpmoe.vjp(program) if way == "combine" else program  # whose rows come back the same way
    rows = max(rows_of_ranks(ids, sizes.experts))
    program = with_planned_rows(program, [PlannedRows(rows, rows)] * len(routes_of(program)))
    program = hpmoe.deduplicate_rows.apply_to(program) if dedup else program
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=machine)
    flow = hpmoe.overlap_comm.apply_to(flow, cols="auto", returns=2)
    return hpmoe.simulate(hpmoe.assign_queues.apply_to(flow, machine=machine), routing=ids).span


def two_level_us(machine: hpmoe.Machine, way: str, sizes: Sizes, node_size: int) -> float:
    """The same where a token goes to each node once, and is spread there while others come: the longer of both ways.

    Between nodes every rank sends to the one of its place; inside, as many rows go as all ranks of a node get.
    """
    between = dataclasses.replace(sizes, ep=sizes.ep // node_size)
    inside = dataclasses.replace(sizes, ep=node_size)
    more = sent_bytes(sizes, True) / sent_bytes(inside, True)
    inside = dataclasses.replace(inside, tokens=round(sizes.tokens * more))
    return max(exchange_us(machine.replace(node_size=1), way, between, True), exchange_us(machine, way, inside, True))


@functools.lru_cache(maxsize=64)
def layer_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool, direction: str = "forward") -> float:
    """A MoE-FFN from dispatch to combine, in one kernel or in one after another."""
    layer = Layer(SimpleNamespace(**dataclasses.asdict(sizes)), direction, machine, sizes.ids, tuned=True)
    return layer.span_us(layer.fused()) if is_fused else layer.baseline().span


def sent_bytes(sizes: Sizes, dedup: bool) -> float:
    """What a rank sends to experts, its own among them: of each token a row for each expert, or once for each rank."""
    copies = float(sizes.top_k)
    if dedup:
        of_rank = np.sort(sizes.ids // (sizes.experts // sizes.ep), axis=-1)
        copies = float((1 + (np.diff(of_rank, axis=-1) > 0).sum(axis=-1)).mean())
    return sizes.tokens * copies * sizes.hidden * 2.0
