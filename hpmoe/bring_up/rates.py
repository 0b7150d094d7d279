"""Rates of what checks ran on, measured with kernels alone, and the machine that they make."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import hpmoe
from hpmoe.bring_up.device import Arrays, Device, random
from hpmoe.bring_up.layers import layer_inputs, moved
from hpmoe.machines.constant import Constant
from hpmoe.machines.machine import Machine
from hpmoe.support.trees import Function, PyTree

REPEATS, LAUNCHES = 5, 20
LEAST_US = 1e-3  # what a launch took at least, besides that of nothing


@dataclasses.dataclass(frozen=True)
class Rate:
    """A number of a Machine as measured: the median of some repeats, and the least and the largest of them."""

    field: str
    value: float
    low: float
    high: float
    unit: str
    what: str

    @staticmethod
    def of(field: str, found: Sequence[float], unit: str, what: str) -> Rate:
        return Rate(field, float(np.median(found)), min(found), max(found), unit, what)


def measured_machine(device: Device, name: str, progress: Callable[[str], None]) -> tuple[Machine, list[Rate]]:
    """Returns the machine that kernels of a device are planned for, with measured rates, and the rates."""
    rates: list[Rate] = []
    for rate in _rates(device):
        progress(f"measured {rate.field}")
        rates.append(rate)
    source = f"hpmoe ascend-check, {datetime.date.today().isoformat()}"
    if device.is_small:
        source += ", on the emulator: times of this CPU, no NPU's"
    known = [(rate.field, Constant(f"{source}: {rate.what}", rate.low, rate.high, rate.unit)) for rate in rates]
    machine = device.machine.replace(name=name, **{rate.field: rate.value for rate in rates})
    return machine.replace(constants=(*machine.constants, *known)), rates


def _rates(device: Device) -> Iterator[Rate]:
    launch = times_us(device, lambda x: x * 2.0, [[np.ones((16, 16), np.float32)]])
    yield Rate.of("host.launch_us", launch, "us", "a launch of one small task, of many in a row")
    nothing, rng = float(np.median(launch)), np.random.default_rng(0)

    def besides(found: list[float]) -> list[float]:
        return [max(us - nothing, LEAST_US) for us in found]

    blocks, edge = device.machine.num_aic, 64 if device.is_small else 4096
    square = [random(rng, edge, edge) for _ in range(2)]
    took = besides(times_us(device, lambda x, w: x @ w, [square], blocks=blocks, tile=(128, 256)))
    full_us = 2.0 * edge ** 3 / blocks / device.machine.cube.flops_per_us
    yield Rate.of("cube.efficiency", [min(1.0, full_us / us) for us in took], "share",
                  f"a bfloat16 product of {edge} x {edge} x {edge} on {blocks} AIC")
    x = random(rng, 256 if device.is_small else 1 << 16, 1024)
    for field, used, of in (("memory.worker_bytes_per_us", 1, 2), ("memory.bytes_per_us", blocks, 1)):
        took = besides(times_us(device, lambda x: x * 2.0, [[x]], blocks=used, tile=(64, 1024)))
        yield Rate.of(field, [2.0 * x.nbytes / of / us for us in took], "GB/s",
                      f"{len(x)} x 1024 numbers of bfloat16 read, doubled and written by {2 * used} AIV")
    if device.num_ranks > 1:
        ranks, tokens, hidden = device.num_ranks, 64 if device.is_small else 4096, 256 if device.is_small else 7168
        inputs = [mine[:2] for mine in layer_inputs(ranks, tokens, hidden, experts=2 * ranks, top_k=1)]
        sent = 2.0 * inputs[0][0].nbytes * (ranks - 1) / ranks
        took = besides(times_us(device, moved, inputs, blocks=blocks, tile=(128, hidden)))
        yield Rate.of("link.bytes_per_us", [sent / us for us in took], "GB/s",
                      f"{tokens} rows of {hidden} numbers of bfloat16 to {ranks} ranks and back")


def times_us(device: Device, f: Function, inputs: Sequence[Arrays], **options: PyTree) -> list[float]:
    """Returns the microseconds of a launch in each repeat, of a row of launches without waits in between."""
    kernel, tensors = device.bind(f, len(inputs), **options), device.tensors(inputs)
    count, found = 2 if device.is_small else LAUNCHES, []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        outputs = [kernel(*tensors) for _ in range(count)]
        hpmoe.ranks.synchronize()
        outputs[-1].asnumpy()
        found.append((time.perf_counter() - begin) * 1e6 / count)
    return found[1:]  # the first one plans
