"""Machines whose constants are elsewhere in the ranges that they may lie in."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpmoe.machines.constant import Constant
from hpmoe.machines.machine import CONSTANTS, OPTIONAL, Machine


def uncertain(machine: Machine) -> dict[str, Constant]:
    """Returns the constants of a machine that are not sure, those that a machine may leave out last."""
    known = dict(machine.constants)
    return {name: known[name] for name in sorted(CONSTANTS, key=OPTIONAL.__contains__)
            if name in known and not known[name].is_sure}


def drawn(machine: Machine, count: int, seed: int = 0) -> Iterator[Machine]:
    """Yields `count` machines with every uncertain constant sampled from its range, evenly in its logarithm.

    Each machine takes a constant from another of `count` equal parts of its range.

    Example:
        >>> import hpmoe
        >>> machines = list(drawn(hpmoe.machines.ascend_a3, 4))
        >>> sorted(int(m.sync.poll_us >= 1.0) for m in machines)  # of 0.5 to 2, whose middle is 1
        [0, 0, 1, 1]
    """
    rng, constants = np.random.default_rng(seed), uncertain(machine)
    parts = [rng.permutation(count) + rng.random(count) for _ in constants]
    for place in np.transpose(parts) / count if constants else ():
        yield machine.replace({name: _as_in(machine, name, _between(known, share))
                               for (name, known), share in zip(constants.items(), place.tolist(), strict=True)})


def at_ends(machine: Machine) -> Iterator[tuple[str, Machine, Machine]]:
    """Yields the name of each uncertain constant, and the machine with its low and its high end."""
    for name, known in uncertain(machine).items():
        low, high = (machine.replace({name: _as_in(machine, name, end)}) for end in (known.low, known.high))
        yield name, low, high


def _as_in(machine: Machine, name: str, value: float) -> float:
    return round(value) if isinstance(machine[name], int) else value


def _between(known: Constant, share: float) -> float:
    return min(known.high, known.low * math.exp(share * math.log(known.high / known.low)))
