"""ascend_a3 as it would be had a source of measurements that it was fitted to not been there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from published import SGL
from published_work import Sizes, layer_us

import hpmoe
from hpmoe.machines.machine import Machine

PAPER = "HyperParallel-MoE (arXiv 2605.23764)"
STEPS = 5  # of a bisection, to a fortieth of a constant's range

# What others say of constants that come from the paper (see hpmoe machine ascend_a3), or the middle of their ranges.
WITHOUT_PAPER: Mapping[str, float] = {
    "l2.worker_bytes_per_us": 145e3,  # a public cost model
    "vector.bytes_per_us": 108e3,  # the same
    "memory.bytes_per_us": 0.84 * 1.6e6,  # CloudMatrix384: what attention reaches of the documents' peak
    "host.collective_us": math.sqrt(10 * 200), "sync.task_us": math.sqrt(0.05 * 0.3)}
# Links from the paper's unfused forward passes of EP 8 and 16, in microseconds, instead of from the table of combine.
WITHOUT_SGL = ("link.bytes_per_us", 8, 17.3e3), ("link.far_bytes_per_us", 16, 18.4e3)
LEAST_LINK, MOST_LINK = 50e3, 196e3


def without(source: str, machine: Machine = hpmoe.machines.ascend_a3) -> Machine:
    """The machine with the constants that were fitted to a source from elsewhere; itself where there are none.

    Example:
        >>> import hpmoe
        >>> without("HyperParallel-MoE (arXiv 2605.23764)").vector.bytes_per_us
        108000.0
        >>> without("another") == hpmoe.machines.ascend_a3
        True
    """
    if source == PAPER:
        return machine.replace(WITHOUT_PAPER)
    for name, ep, us in WITHOUT_SGL if source == SGL else ():
        machine = machine.replace({name: _rate_of(machine, name, ep, us)})
    return machine


def _rate_of(machine: Machine, name: str, ep: int, us: float) -> float:
    """The link rate at which the paper's unfused layer takes so long."""
    sizes = Sizes(ep, 4096, 7168, 2048, 8 * ep, 8, routing="balanced")
    return bisected(lambda rate: layer_us(machine.replace({name: rate}), sizes, False) - us)


def bisected(too_slow: Callable[[float], float], low: float = LEAST_LINK, high: float = MOST_LINK) -> float:
    """The rate between two at which something that falls with it is 0; an end where it is not 0 between them.

    Example:
        >>> round(bisected(lambda rate: 1e10 / rate - 1e5) / 1e3)
        101
    """
    if too_slow(high) >= 0:
        return high
    for _ in range(STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if too_slow(middle) >= 0 else (low, middle)
    return math.sqrt(low * high)
