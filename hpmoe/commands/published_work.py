"""The kinds of work that others publish times of, simulated: products, exchanges of rows, and whole layers."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
from mindspore import Tensor

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.ir.program import Program
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.workload import balanced_ids, drawn_ids
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows

BYTES = "l2_bytes", "l2_bytes_per_us", "worker_l2_bytes_per_us", "memory_bytes_per_us", "worker_memory_bytes_per_us"


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
    routing: str = "uniform"

    @property
    def ids(self) -> np.ndarray:
        """topk_ids of all ranks, drawn alike for all experts, which is what such tests do, or balanced."""
        if self.routing == "balanced":
            return balanced_ids(self.ep, self.tokens, self.top_k, self.experts)
        return drawn_ids(self.ep, self.tokens, self.top_k, self.experts, is_zipf=False, seed=0)


def of_bytes(machine: hpmoe.Machine) -> hpmoe.Machine:
    """A machine that brings twice the bytes to its workers and multiplies twice as fast: what products of numbers of one
    byte are to it, simulated as bfloat16. Rows travel in what they are, and vector instructions work on floats."""
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
def exchange_us(machine: hpmoe.Machine, way: str, sizes: Sizes, dedup: bool = False, quantised: str = "") -> float:
    """Rows to the ranks of their experts, "dispatch", or back and summed, "combine", by one-sided puts of one kernel.

    With `quantised`, "int8" or "float8_e4m3fn", the kernel also makes rows of that, with a scale for each row or each 128
    columns, and leaves them so where they arrive. The time is the kernel's own, without a launch: tests that publish such
    figures take what a profiler says of kernels.
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
    program = _quantised(program, quantised) if quantised else program
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=machine)
    flow = hpmoe.overlap_comm.apply_to(flow, cols="auto", returns=2)
    return hpmoe.simulate(hpmoe.assign_queues.apply_to(flow, machine=machine), routing=ids).span


def _quantised(program: Program, dtype: str) -> Program:
    program = hpmoe.quantize_rows.apply_to(program, dtype=dtype, scale=128 if dtype.startswith("float8") else None)
    *before, as_floats = program.equations
    return program.replace(equations=tuple(before), outputs=as_floats.inputs[:1])


@functools.lru_cache(maxsize=16)
def kernels_us(machine: hpmoe.Machine, sizes: Sizes, quantize: str | None = None) -> dict[str, float]:
    """How long each kernel of an unfused layer runs on the first rank, without its launch; one of a second product, or of a
    second quantisation, has a 2 after its name."""
    line = Layer(SimpleNamespace(**dataclasses.asdict(sizes)), "forward", machine, sizes.ids, quantize=quantize).baseline()
    op, out = line.flow.tasks["op"][line.task], {}
    for i, known in ((i, known) for i, known in enumerate(line.flow.ops) if not known.primitive.is_launch):
        mine = (op == i) & (line.rank == 0)
        name = f"{known.label}2" if known.label in out else known.label
        out[name] = float(line.end[mine].max() - line.begin[mine].min()) if mine.any() else 0.0
    return out


def step_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool) -> float:
    """A layer forward and backward."""
    return sum(layer_us(machine, sizes, is_fused, direction) for direction in ("forward", "backward"))


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
def layer_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool, direction: str = "forward",
             quantize: str | None = None, int8_weights: bool = False) -> float:
    """A MoE-FFN from dispatch to combine, in one kernel or in one after another; rows are dispatched in the format that
    `quantize` names, and with `int8_weights` multiplied as int8 (W8A8)."""
    o = SimpleNamespace(**dataclasses.asdict(sizes))
    layer = Layer(o, direction, machine, sizes.ids, tuned=True, quantize=quantize, int8_weights=int8_weights)
    return layer.span_us(layer.fused()) if is_fused else layer.baseline().span


def sent_bytes(sizes: Sizes, dedup: bool) -> float:
    """What a rank sends to experts, its own among them: of each token a row for each expert, or once for each rank."""
    copies = float(sizes.top_k)
    if dedup:
        of_rank = np.sort(sizes.ids // (sizes.experts // sizes.ep), axis=-1)
        copies = float((1 + (np.diff(of_rank, axis=-1) > 0).sum(axis=-1)).mean())
    return sizes.tokens * copies * sizes.hidden * 2.0
