"""The ladder: checks in the order in which one stands on another, each with what it found or why it failed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from hpmoe.bring_up import bodies, layers, router_bodies
from hpmoe.bring_up.device import CheckFailed, Device
from hpmoe.support.errors import ArgumentError, LaunchError

LADDER: dict[str, Callable[[Device], str]] = {**bodies.CHECKS, **router_bodies.CHECKS, **layers.ONE_RANK, **layers.ALL_RANKS}


@dataclasses.dataclass(frozen=True)
class Rung:
    """A check that was done: its name, whether it passed (None where it was left out), what it says, and seconds."""

    name: str
    passed: bool | None
    says: str
    seconds: float


def climb(device: Device, goes_on: bool, progress: Callable[[str], None]) -> Iterator[Rung]:
    """Does the checks one by one; after one that failed no other, unless it `goes_on`."""
    for number, (name, check) in enumerate(LADDER.items(), 1):
        progress(f"{number} of {len(LADDER)}: {name}")
        begin = time.monotonic()
        needed = layers.ranks_lacking(name, device.most_ranks)
        if needed:
            yield Rung(name, None, f"left out: it needs {needed} ranks; start it under msrun --worker_num={needed}", 0.0)
            continue
        try:
            passed, says = True, check(device)
        except (CheckFailed, ArgumentError, LaunchError) as error:
            passed, says = False, f"{'' if isinstance(error, CheckFailed) else type(error).__name__ + ': '}{error}"
        yield Rung(name, passed, says, time.monotonic() - begin)
        if not passed and not goes_on:
            return
