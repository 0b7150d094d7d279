"""Machines whose constants are elsewhere in the ranges that they may lie in."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpmoe.machines.constant import Constant
from hpmoe.machines.machine import Machine


def uncertain(machine: Machine) -> dict[str, Constant]:
    """The constants of a machine that are not sure."""
    return {name: constant for name, constant in machine.constants if not constant.is_sure}


def drawn(machine: Machine, count: int, seed: int = 0) -> Iterator[Machine]:
    """Machines with every constant drawn from its range, evenly in its logarithm, each in turn from another part of it.

    Example:
        >>> import hpmoe
        >>> machines = list(drawn(hpmoe.ascend_a3, 4))
        >>> sorted(int(m.poll_us >= 1.0) for m in machines)  # of 0.5 to 2, whose middle is 1
        [0, 0, 1, 1]
    """
    rng, constants = np.random.default_rng(seed), uncertain(machine)
    parts = [rng.permutation(count) + rng.random(count) for _ in constants]
    for place in np.transpose(parts) / count if constants else ():
        yield machine.replace(**{name: _as_in(machine, name, _between(known, share))
                                 for (name, known), share in zip(constants.items(), place.tolist(), strict=True)})


def at_ends(machine: Machine) -> Iterator[tuple[str, Machine, Machine]]:
    """For each constant that is not sure, its name, and the machine with it at the low and at the high end."""
    for name, known in uncertain(machine).items():
        low, high = (machine.replace(**{name: _as_in(machine, name, end)}) for end in (known.low, known.high))
        yield name, low, high


def _as_in(machine: Machine, name: str, value: float) -> float:
    return round(value) if isinstance(getattr(machine, name), int) else value


def _between(known: Constant, share: float) -> float:
    return min(known.high, known.low * math.exp(share * math.log(known.high / known.low)))
