"""The kinds of work that others publish times of, simulated: products, exchanges of rows, and whole layers."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from types import SimpleNamespace

import numpy as np
from operator_formulas import fused_us, matmul_us

import hpmoe
from hpmoe.calibration.kernel_flows import exchange_flow, function_flow, kernel_us
from hpmoe.commands.layer import MOST_DECODED, Layer
from hpmoe.ir.program import Program
from hpmoe.primitives.quantize_weight import quantize_weight
from hpmoe.routing.workload import balanced_ids, sampled_ids

BYTES = "l2.bytes", "l2.bytes_per_us", "l2.worker_bytes_per_us", "memory.bytes_per_us", "memory.worker_bytes_per_us"
DRAWS = 8  # of ids
FP4_BYTES = 0.5 + 1 / 32  # of a weight, with a scale of a byte for each 32
# What a profiler's time of a kernel on an NPU has besides its work: its beginning and end, by the vendor's documents. Fitted
# to SwiGLU of sgl-kernel-npu's PR 809.
BEGIN_END_US = 4.0


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
    seed: int = 0

    @property
    def ids(self) -> np.ndarray:
        """topk_ids of all ranks, uniformly random, as such tests do, or balanced."""
        if self.routing == "balanced":
            return balanced_ids(self.ep, self.tokens, self.top_k, self.experts)
        return sampled_ids(self.ep, self.tokens, self.top_k, self.experts, is_zipf=False, seed=self.seed)


def of_bytes(machine: hpmoe.Machine) -> hpmoe.Machine:
    """A machine that brings twice the bytes to its workers and multiplies twice as fast: what products of numbers of one
    byte are to it, simulated as bfloat16. Rows travel in what they are, and vector instructions work on floats."""
    return machine.replace({name: min(1e30, 2 * machine[name]) for name in (*BYTES, "cube.flops_per_us")})


def product_us(machine: hpmoe.Machine, rows: int, inner: int, cols: int, quantized: bool = False) -> float:
    """A matrix product as a kernel of its own."""
    return float(matmul_us(machine, rows, cols, inner, quantized)[0])


def mega_us(machine: hpmoe.Machine, sizes: Sizes) -> float:
    """DeepGEMM's kernel of fp8 rows and FP4 weights with a shared expert of the same size, on the fullest rank."""
    loads = np.bincount(sizes.ids.ravel(), minlength=sizes.experts).reshape(sizes.ep, -1)
    fullest = loads[loads.sum(axis=1).argmax()]
    return fused_us(machine, fullest, sizes.hidden, sizes.intermediate, sizes.ep, True, FP4_BYTES, sizes.tokens)


@functools.lru_cache(maxsize=64)
def exchange_us(machine: hpmoe.Machine, leg: str, sizes: Sizes, dedup: bool = False, quantised: str = "") -> float:
    """Rows to the ranks of their experts, or back and summed, by one kernel; see exchange_flow.

    The time is the kernel's own, without a launch: tests that publish such figures take what a profiler says of kernels. Of
    few tokens it is the quicker one of two sizes of puts, as others have chosen theirs by measuring too.
    """
    if leg == "combine":
        share = machine.operators.combine_share
        machine = machine.replace({name: share * machine[name] for name in ("link.bytes_per_us", "link.far_bytes_per_us")})

    def run(put_cols: int | str) -> float:
        flow = exchange_flow(machine, leg, sizes.ids, sizes.experts, sizes.hidden, sizes.dtype, dedup, quantised, put_cols)
        return hpmoe.simulate(flow, routing=sizes.ids).span
    return min(run(cols) for cols in (("auto", sizes.hidden // 4) if sizes.tokens <= MOST_DECODED else ("auto",)))


@functools.lru_cache(maxsize=16)
def kernels_us(machine: hpmoe.Machine, sizes: Sizes, quantize: str | None = None) -> dict[str, float]:
    """Returns the time of each kernel of an unfused layer on the first rank; see kernel_us."""
    o = SimpleNamespace(**dataclasses.asdict(sizes))
    return kernel_us(Layer(o, "forward", machine, sizes.ids, quantize=quantize).baseline())


def step_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool) -> float:
    """A layer forward and backward."""
    return sum(layer_us(machine, sizes, is_fused, direction) for direction in ("forward", "backward"))


def two_level_us(machine: hpmoe.Machine, leg: str, sizes: Sizes, node_size: int) -> float:
    """Returns the time if a token goes to each node once and is spread there at the same time: the longer of both hops.

    Between nodes every rank sends to the one of its place; inside, as many rows go as all ranks of a node get.
    """
    between = dataclasses.replace(sizes, ep=sizes.ep // node_size)
    inside = dataclasses.replace(sizes, ep=node_size)
    more = sent_bytes(sizes, True) / sent_bytes(inside, True)
    inside = dataclasses.replace(inside, tokens=round(sizes.tokens * more))
    apart = machine.replace({"link.node_size": 1})
    return max(exchange_us(apart, leg, between, True), exchange_us(machine, leg, inside, True))


@functools.lru_cache(maxsize=64)
def layer_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool, direction: str = "forward",
             quantize: str | None = None, int8_weights: bool = False) -> float:
    """Returns microseconds of a MoE-FFN from dispatch to combine, as one fused kernel or as a sequence of kernels.

    Rows are dispatched in the format that `quantize` names. `int8_weights` multiplies them as int8 (W8A8). The fused kernel
    starts before ranks have exchanged their row counts, so its forward plan has buffers for any routing.
    """
    o = SimpleNamespace(**dataclasses.asdict(sizes))
    kind = _Int8Layer if int8_weights else Layer
    layer = kind(o, direction, machine, sizes.ids, tuned=True, quantize=quantize,
                 row_capacity="all" if is_fused and direction == "forward" else "received")
    return layer.span_us(layer.fused()) if is_fused else layer.baseline().span


def replayed_us(machine: hpmoe.Machine, sizes: Sizes, quantize: str) -> float:
    """Returns microseconds of an unfused layer whose kernels are replayed as a graph, without launches, and whose exchanges
    write rows to their places: the other side of DeepGEMM's tests."""
    o = SimpleNamespace(**dataclasses.asdict(sizes))
    return Layer(o, "forward", machine.replace({"host.launch_us": 0.0}), sizes.ids, quantize=quantize).baseline(
        is_direct=True).span


@dataclasses.dataclass(frozen=True, eq=False)
class _Int8Layer(Layer):
    """A layer that is given its experts' weights quantised, as inference is, and multiplies rows as int8."""

    def _program(self, replicas: int, scheme: str, row_capacity: str | None, has_nodes: bool = False) -> Program:
        program = super()._program(replicas, scheme, row_capacity, has_nodes)
        program = hpmoe.quantize_weights.apply_to(program, row_dtype="int8")
        quantising = [e for e in program.equations if e.primitive is quantize_weight]
        floats = {a for e in quantising for a in e.inputs}
        kept = [(v, name) for v, name in zip(program.inputs, program.input_names, strict=True) if v not in floats]
        made = [(v, f"{what}_{i}") for i, e in enumerate(quantising)
                for v, what in zip(e.outputs, ("weight", "scale"), strict=True)]
        return program.replace(inputs=tuple(v for v, _ in kept + made), input_names=tuple(name for _, name in kept + made),
                               equations=tuple(e for e in program.equations if e.primitive is not quantize_weight))


def mean_layer_us(machine: hpmoe.Machine, sizes: Sizes, is_fused: bool, quantize: str) -> float:
    """The mean over draws of ids, for so few tokens that how many experts of a rank have any is a matter of luck."""
    return statistics.fmean(layer_us(machine, dataclasses.replace(sizes, seed=seed), is_fused, quantize=quantize)
                            for seed in range(DRAWS))


def dense_us(machine: hpmoe.Machine, rows: int, hidden: int, intermediate: int) -> float:
    """The products and the SwiGLU of an expert that has all rows, as kernels, without their launches."""
    shapes = (rows, hidden), (hidden, 2 * intermediate), (intermediate, hidden)
    flow = function_flow(machine, lambda x, up, down: hpmoe.swiglu(x @ up) @ down, shapes, "bfloat16")
    return sum(kernel_us(hpmoe.simulate(flow)).values())


def sent_bytes(sizes: Sizes, dedup: bool) -> float:
    """Returns the bytes that a rank sends to experts, its own included: a row per expert, or once per rank."""
    copies = float(sizes.top_k)
    if dedup:
        of_rank = np.sort(sizes.ids // (sizes.experts // sizes.ep), axis=-1)
        copies = float((1 + (np.diff(of_rank, axis=-1) > 0).sum(axis=-1)).mean())
    return sizes.tokens * copies * sizes.hidden * 2.0
