"""What others have measured, each row with the work that is simulated beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import hpmoe
from hpmoe.commands.published_work import Sizes, exchange_us, layer_us, of_bytes, product_us, sent_bytes, two_level_us
from hpmoe.machines.machine_files import load_machine

SGL = "sgl-kernel-npu README, A3"
DEEPEP = "DeepEP V1 legacy document, H800"


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


def published() -> Iterator[Published]:
    """All but HyperParallel-MoE's, which paper_table has."""
    yield from _ascend()
    yield from _ascend_950()
    yield from _nvidia()


def _ascend() -> Iterator[Published]:
    a3 = hpmoe.ascend_a3
    yield Published("vendor profile, A2/A3 class", "bf16 product of 8192^3", 269, "TFLOP/s",
                    lambda: 2 * 8192**3 / product_us(a3, 8192, 8192, 8192) / 1e6,
                    missing="clock under power limits, and the order of the vendor's tiles")
    for ep, gbs in ((8, 125), (16, 103), (32, 95), (64, 91)):
        sizes = Sizes(ep, 4096, 7168, 2048, 256, 8)
        yield Published(SGL, f"combine, 4096 tokens, EP {ep}", gbs, "GB/s",
                        lambda sizes=sizes: sent_bytes(sizes, False) / exchange_us(a3, "combine", sizes) / 1e3,
                        is_blind=ep in (16, 32))
    for ep, us in ((8, 126), (16, 135), (32, 151)):
        sizes = Sizes(ep, 128, 7168, 2048, 256, 8)
        yield Published(SGL, f"low-latency combine, 128 tokens, EP {ep}", us, "us",
                        lambda sizes=sizes: exchange_us(a3, "combine", sizes))
    yield Published("CloudMatrix384 (second-hand)", "low-latency combine, 128 tokens, EP 8", 118, "us",
                    lambda: exchange_us(a3, "combine", Sizes(8, 128, 7168, 2048, 256, 8)))
    bytes_a3, sizes = of_bytes(a3), Sizes(16, 256, 7168, 2048, 256, 8)
    missing = "combine in two bytes; quantising rows"
    unfused, fused = (lambda is_fused=f: layer_us(bytes_a3, sizes, is_fused) for f in (False, True))
    source = "sgl-kernel-npu PR 400, A3"
    yield Published(source, "W8A8 layer, 256 tokens, EP 16, unfused", 1397, "us", unfused, missing=missing)
    yield Published(source, "the same, fused", 1019, "us", fused, missing=missing)
    yield Published(source, "the same, speed-up", 1397 / 1019, "x", lambda: unfused() / fused(), missing=missing)


def _ascend_950() -> Iterator[Published]:
    machine, sizes = of_bytes(load_machine("ascend_950pr")), Sizes(4, 32, 7168, 3072, 128, 6)
    summed = machine.replace(launch_us=0.0)  # what is published of kernels in turn is the sum of their own times
    source, missing = "sgl-kernel-npu PR 809, 950", "combine in two bytes; quantising rows"
    yield Published(source, "fp8 layer, 32 tokens, EP 4, unfused", 1432, "us", lambda: layer_us(summed, sizes, False),
                    missing=missing)
    yield Published(source, "the same, fused", 1401, "us", lambda: layer_us(machine, sizes, True), missing=missing)
    yield Published(source, "its dispatch", 26, "us", lambda: exchange_us(machine, "dispatch", sizes),
                    missing="quantising rows")
    yield Published(source, "its combine", 37, "us", lambda: exchange_us(load_machine("ascend_950pr"), "combine", sizes))
    few = Sizes(4, 1, 7168, 3072, 48, 6)
    source, missing = "sgl-kernel-npu PR 771, 950", "the source does not say the ranks, here 4"
    yield Published(source, "fp8 layer, 1 token, E 48, unfused", 320, "us", lambda: layer_us(summed, few, False),
                    missing=missing)
    yield Published(source, "the same, fused", 311, "us", lambda: layer_us(machine, few, True), missing=missing)


def _nvidia() -> Iterator[Published]:
    gb200, h100 = load_machine("gb200_nvl72"), load_machine("h100_nvl8")
    mok, sizes = "Mixture-of-Kittens, GB200", Sizes(4, 2048, 7168, 3072, 384, 6)
    yield Published(mok, "forward, 2048 tokens, EP 4, bf16", 3.71, "ms", lambda: layer_us(gb200, sizes, True) / 1e3,
                    missing="its shared expert; the source is read second-hand")
    yield Published(mok, "the same, MXFP8", 2.56, "ms", lambda: layer_us(of_bytes(gb200), sizes, True) / 1e3,
                    missing="the same, and combine in two bytes")
    for ep, dispatch, combine in ((8, 764, 737), (16, 707, 666), (32, 642, 605)):
        of = Sizes(ep, 4096, 7168, 2048, 8 * ep, 8)
        for way, gbs in (("dispatch", dispatch), ("combine", combine)):
            yield Published("DeepEP hybrid-ep branch, GB200", f"{way}, 4096 tokens, EP {ep}", gbs, "GB/s",
                            lambda way=way, of=of: sent_bytes(of, True) / exchange_us(gb200, way, of, True) / 1e3)
    h800 = h100.replace(name="h800", link_bytes_per_us=h100.link_bytes_per_us * 200 / 450)  # NVLink of 200 GB/s each way
    for ep, *latency in zip((8, 16, 32, 64, 128, 256), (77, 118, 155, 173, 192, 194), (114, 195, 273, 314, 369, 360),
                            strict=True):
        for way, us in zip(("dispatch", "combine"), latency, strict=True):
            on, of = of_bytes(h800) if way == "dispatch" else h800, Sizes(ep, 128, 7168, 2048, 256, 8)
            yield Published(DEEPEP, f"low-latency {way}, 128 tokens, EP {ep}", us, "us",
                            lambda way=way, on=on, of=of: exchange_us(on, way, of),
                            missing="quantising rows" if way == "dispatch" else "")
    of = Sizes(8, 4096, 7168, 2048, 256, 8)
    for way, gbs in (("dispatch", 153), ("combine", 158)):
        yield Published(DEEPEP, f"{way}, 4096 tokens, EP 8", gbs, "GB/s",
                        lambda way=way: sent_bytes(of, True) / exchange_us(h800, way, of, True) / 1e3)
    for ep, dispatch, combine in ((16, 43, 43), (32, 58, 57), (64, 51, 50)):
        on_nodes, spread = Sizes(ep // 8, 4096, 7168, 2048, 256, 8), Sizes(ep, 4096, 7168, 2048, 256, 8)
        for way, gbs in (("dispatch", dispatch), ("combine", combine)):
            yield Published(DEEPEP, f"{way}, 4096 tokens, EP {ep}, bytes to nodes", gbs, "GB/s",
                            lambda way=way, on=on_nodes, of=spread:
                            sent_bytes(on, True) / two_level_us(h800, way, of, 8) / 1e3,
                            missing="" if ep < 64 else "a token goes to four nodes at most")
    h200 = of_bytes(h100.replace(name="h200", memory_bytes_per_us=h100.memory_bytes_per_us * 4.8 / 3.35))
    for tokens, fused, unfused in ((512, 1005, 1179), (2048, 2406, 2679), (8192, 7939, 9208)):
        of = Sizes(8, tokens, 7168, 3072, 384, 6)
        for is_fused, us in ((True, fused), (False, unfused)):
            yield Published("DeepGEMM PR 383, H200", f"FP8 layer, {tokens} tokens, EP 8, {'' if is_fused else 'un'}fused",
                            us, "us", lambda of=of, is_fused=is_fused: layer_us(h200, of, is_fused),
                            missing="combine in two bytes")
