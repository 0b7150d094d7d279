"""Published measurements, each row with the work that is simulated beside it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from published_work import (
    BEGIN_END_US,
    Sizes,
    dense_us,
    exchange_us,
    kernels_us,
    layer_us,
    mean_layer_us,
    mega_us,
    of_bytes,
    product_us,
    replayed_us,
    sent_bytes,
    step_us,
    two_level_us,
)

import hpmoe
from hpmoe.machines.machine_files import load_machine

SGL = "sgl-kernel-npu README, A3"
PR_809 = "sgl-kernel-npu PR 809, 950"
CLOUDMATRIX = "CloudMatrix384 (second-hand)"
DEEPEP = "DeepEP V1 legacy document, H800"
MACHINES = Path(__file__).parent / "machines"
EXCHANGES = "dispatch", "combine"
AS_FLOATS = "products that read quantised rows: here a task, or a kernel, makes floats of them before"
STARTS = "that ranks start at different times; the source does not say which rank's time it is, here that of the slowest"
SWITCHES = "contention in the switches of NVLink"
FORWARDED = "that rows pass through buffers of their receivers and of forwarding ranks"


class Published(NamedTuple):
    """A published figure.

    Attributes:
        source, work: whose it is, and of what.
        figure, unit: what was measured.
        simulate: the same by the model, in the same unit.
        is_blind: no constant of a machine was fitted to it.
        missing: what of the work the model does not have; empty where nothing is known to be.
    """

    source: str
    work: str
    figure: float
    unit: str
    simulate: Callable[[], float]
    is_blind: bool = True
    missing: str = ""


def published(a3: hpmoe.Machine = hpmoe.machines.ascend_a3, begin_end_us: float = BEGIN_END_US) -> Iterator[Published]:
    """All but HyperParallel-MoE's, which paper_table has; those of an A3 on a model of it. Kernels of NPUs take that long
    besides their work."""
    yield from _ascend(a3, begin_end_us)
    yield from _ascend_950(begin_end_us)
    yield from _ascend_950dt()
    yield from _nvidia()


def _ascend(a3: hpmoe.Machine, begin_end_us: float) -> Iterator[Published]:
    yield Published("vendor profile, A2/A3 class", "bf16 product of 8192^3", 269, "TFLOP/s",
                    lambda: 2 * 8192**3 / product_us(a3, 8192, 8192, 8192) / 1e6, missing="limits of clock and power")
    for ep, gbs in ((8, 125), (16, 103), (32, 95), (64, 91)):
        sizes = Sizes(ep, 4096, 7168, 2048, 256, 8)
        yield Published(SGL, f"combine, 4096 tokens, EP {ep}", gbs, "GB/s",
                        lambda sizes=sizes: sent_bytes(sizes, False) / exchange_us(a3, "combine", sizes) / 1e3,
                        is_blind=ep in (16, 32))
    for ep, us in ((8, 126), (16, 135), (32, 151)):
        sizes = Sizes(ep, 128, 7168, 2048, 256, 8)
        yield Published(SGL, f"low-latency combine, 128 tokens, EP {ep}", us, "us",
                        lambda sizes=sizes: begin_end_us + exchange_us(a3, "combine", sizes), missing=STARTS)
    yield Published(CLOUDMATRIX, "low-latency combine, 128 tokens, EP 8", 118, "us",
                    lambda: begin_end_us + exchange_us(a3, "combine", Sizes(8, 128, 7168, 2048, 256, 8)),
                    missing=STARTS)
    yield Published(CLOUDMATRIX, "memory-bound attention, of the peak of memory, 1.6 TB/s", 84, "%",
                    lambda: 100 * 2 * 8192 * 65536 / product_us(a3, 16, 8192, 65536) / 1.6e6,
                    missing="attention: a product of 16 rows with 1 GB stands for it")
    sizes = Sizes(16, 256, 7168, 2048, 256, 8)
    unfused, fused = (lambda is_fused=f: layer_us(a3, sizes, is_fused, quantize="int8", int8_weights=True)
                      for f in (False, True))
    source, as_one = "sgl-kernel-npu PR 400, A3", "SwiGLU and what quantises its rows are one kernel there"
    yield Published(source, "W8A8 layer, 256 tokens, EP 16, unfused", 1397, "us", unfused, missing=as_one)
    yield Published(source, "the same, fused", 1019, "us", fused, missing="how much of the int32 sums leaves L2")
    yield Published(source, "the same, speed-up", 1397 / 1019, "x", lambda: unfused() / fused(), missing=as_one)


def _ascend_950(begin_end_us: float) -> Iterator[Published]:
    as_it_is = load_machine("ascend_950pr")
    machine, sizes, fp8 = of_bytes(as_it_is), Sizes(4, 32, 7168, 3072, 128, 6), "float8_e4m3fn"
    # The published time of separate kernels is the sum of the times of the kernels.
    summed = machine.replace({"host.launch_us": begin_end_us})
    source = PR_809
    yield Published(source, "fp8 layer, 32 tokens, EP 4, unfused", 1432, "us",
                    lambda: layer_us(summed, sizes, False, quantize=fp8), missing=AS_FLOATS)
    yield Published(source, "the same, fused", 1401, "us", lambda: layer_us(machine, sizes, True, quantize=fp8),
                    missing=AS_FLOATS)
    yield Published(source, "its dispatch", 26, "us",
                    lambda: begin_end_us + exchange_us(as_it_is, "dispatch", sizes, quantised=fp8), missing=STARTS)
    yield Published(source, "its combine", 37, "us", lambda: begin_end_us + exchange_us(as_it_is, "combine", sizes),
                    missing=STARTS)
    for name, kernel, us in (("first product", "grouped_matmul", 903), ("SwiGLU", "swiglu", 8),
                             ("second product", "grouped_matmul2", 452)):
        yield Published(source, f"its {name}", us, "us",
                        lambda kernel=kernel: begin_end_us + kernels_us(machine, sizes)[kernel], is_blind=kernel != "swiglu")
    of_results = Sizes(4, 32, 3072, 3072, 128, 6)  # rows of what SwiGLU makes
    yield Published(source, "its requantisation", 6, "us",
                    lambda: begin_end_us + kernels_us(as_it_is, of_results, f"{fp8}+combine")["quantize2"])
    few = Sizes(4, 1, 7168, 3072, 48, 6)
    source, missing = "sgl-kernel-npu PR 771, 950", "the source does not say the ranks, here 4"
    yield Published(source, "fp8 layer, 1 token, E 48, unfused", 320, "us",
                    lambda: mean_layer_us(summed, few, False, fp8), missing=missing)
    yield Published(source, "the same, fused", 311, "us", lambda: mean_layer_us(machine, few, True, fp8),
                    missing=missing)


def _ascend_950dt() -> Iterator[Published]:
    machine, source = load_machine("ascend_950dt"), "DeepGEMM-Ascend (September 2026), 950DT"
    for experts, hidden, intermediate, tokens, us in ((96, 5120, 2304, 256, 225.5), (96, 7168, 3072, 64, 222.2),
                                                      (384, 5120, 2304, 4096, 2567.7), (384, 7168, 3072, 16384, 17904.2)):
        sizes = Sizes(8, tokens, hidden, intermediate, experts, 6)
        yield Published(source, f"FP8 x FP4 layer, H {hidden}, E {experts}, {tokens} tokens, EP 8", us, "us",
                        lambda sizes=sizes: mega_us(machine, sizes), is_blind=False)
    for name, quantized, us in (("FP8", True, 1117.6), ("BF16", False, 2229.9)):
        yield Published(source, f"{name} product of 4096 x 7168 x 16384", us, "us",
                        lambda quantized=quantized: product_us(machine, 4096, 7168, 16384, quantized), is_blind=False)


def _nvidia() -> Iterator[Published]:
    gb200, h100 = (load_machine(MACHINES / f"{name}.toml") for name in ("gb200_nvl72", "h100_nvl8"))
    yield from _mixture_of_kittens(gb200)
    yield from _hybrid_ep(gb200)
    # NVLink of 200 GB/s each way
    yield from _deepep(h100.replace({"link.bytes_per_us": h100.link.bytes_per_us * 200 / 450}, name="h800"))
    yield from _deepgemm(of_bytes(h100.replace({"memory.bytes_per_us": h100.memory.bytes_per_us * 4.8 / 3.35}, name="h200")))


def _mixture_of_kittens(gb200: hpmoe.Machine) -> Iterator[Published]:
    mok, sizes = "Mixture-of-Kittens, GB200", Sizes(4, 2048, 7168, 3072, 384, 6)
    shared = 2048, 7168, 3072  # an expert for all tokens, of the size of the others
    yield Published(mok, "forward, 2048 tokens, EP 4, bf16", 3.71, "ms",
                    lambda: (layer_us(gb200, sizes, True) + dense_us(gb200, *shared)) / 1e3,
                    missing="how large its shared expert is, here as the others; the source is read second-hand")
    yield Published(mok, "the same, MXFP8", 2.56, "ms", lambda: (
        layer_us(of_bytes(gb200), sizes, True, quantize="mxfp8") + dense_us(of_bytes(gb200), *shared)) / 1e3,
                    missing="the same, and results between the products made MXFP8 again")
    for ep, ratio in ((4, 1.50), (16, 1.36), (32, 1.32)):
        of = Sizes(ep, 2048, 7168, 3072, 384, 6)
        yield Published(mok, f"step over HybridEP, EP {ep}", ratio, "x",
                        lambda of=of: step_us(gb200, of, False) / step_us(gb200, of, True),
                        missing="all of a step but its routed experts; the source is read second-hand")


def _hybrid_ep(gb200: hpmoe.Machine) -> Iterator[Published]:
    for ep, dispatch, combine in ((8, 764, 737), (16, 707, 666), (32, 642, 605)):
        of = Sizes(ep, 4096, 7168, 2048, 8 * ep, 8)
        for leg, gbs in (("dispatch", dispatch), ("combine", combine)):
            yield Published("DeepEP hybrid-ep branch, GB200", f"{leg}, 4096 tokens, EP {ep}", gbs, "GB/s",
                            lambda leg=leg, of=of: sent_bytes(of, True) / exchange_us(gb200, leg, of, True) / 1e3,
                            missing=SWITCHES)


def _deepep(h800: hpmoe.Machine) -> Iterator[Published]:
    for ep, *latency in zip((8, 16, 32, 64, 128, 256), (77, 118, 155, 173, 192, 194), (114, 195, 273, 314, 369, 360),
                            strict=True):
        of = Sizes(ep, 128, 7168, 2048, 256, 8)
        for leg, us in zip(EXCHANGES, latency, strict=True):
            yield Published(DEEPEP, f"low-latency {leg}, 128 tokens, EP {ep}", us, "us",
                            lambda leg=leg, of=of: low_latency_us(h800, leg, of), missing=STARTS)
    apart = h800.replace({"link.node_size": 1})  # its kernels did not use NVLink: "pure RDMA", 46 GB/s
    for leg, us in zip(EXCHANGES, (163, 318), strict=True):
        yield Published("DeepEP, an older README, H800", f"low-latency {leg} without NVLink, 128 tokens, EP 8", us, "us",
                        lambda leg=leg: low_latency_us(apart, leg, Sizes(8, 128, 7168, 2048, 256, 8)),
                        missing=STARTS)
    of = Sizes(8, 4096, 7168, 2048, 256, 8)
    for leg, gbs in (("dispatch", 153), ("combine", 158)):
        yield Published(DEEPEP, f"{leg}, 4096 tokens, EP 8", gbs, "GB/s",
                        lambda leg=leg: sent_bytes(of, True) / exchange_us(h800, leg, of, True) / 1e3,
                        missing=FORWARDED)
    for ep, dispatch, combine in ((16, 43, 43), (32, 58, 57), (64, 51, 50)):
        on_nodes, spread = Sizes(ep // 8, 4096, 7168, 2048, 256, 8), Sizes(ep, 4096, 7168, 2048, 256, 8)
        for leg, gbs in (("dispatch", dispatch), ("combine", combine)):
            yield Published(DEEPEP, f"{leg}, 4096 tokens, EP {ep}, bytes to nodes", gbs, "GB/s",
                            lambda leg=leg, on=on_nodes, of=spread:
                            sent_bytes(on, True) / two_level_us(h800, leg, of, 8) / 1e3,
                            missing=FORWARDED if ep < 64 else f"{FORWARDED}; a token goes to four nodes at most")


def _deepgemm(h200: hpmoe.Machine) -> Iterator[Published]:
    for tokens, fused, unfused in ((512, 1005, 1179), (2048, 2406, 2679), (8192, 7939, 9208)):
        of = Sizes(8, tokens, 7168, 3072, 384, 6)
        for name, us, simulated_us in (("fused", fused, functools.partial(layer_us, is_fused=True)),
                                       ("unfused", unfused, replayed_us)):
            yield Published("DeepGEMM PR 383, H200", f"FP8 layer, {tokens} tokens, EP 8, {name}", us, "us",
                            lambda of=of, simulated_us=simulated_us: simulated_us(h200, of, quantize="float8_e4m3fn"),
                            missing=AS_FLOATS)


def low_latency_us(machine: hpmoe.Machine, leg: str, sizes: Sizes) -> float:
    """DeepEP's: dispatch makes rows fp8, and copies those that have arrived, with their scales, out of the buffers of their
    senders. Rows return in bfloat16."""
    if leg == "combine":
        return exchange_us(machine, leg, sizes)
    copied = sizes.tokens * sizes.top_k * sizes.hidden * (1 + 4 / 128)  # a float32 scale for 128 columns
    return exchange_us(machine, leg, sizes, quantised="float8_e4m3fn") + 2 * copied / machine.memory.bytes_per_us
