"""Checks of the first hour: the build, one launch, one put, ranks that reach each other, and the time of a launch."""

from __future__ import annotations

import numpy as np

from hpmoe.bring_up.device import CheckFailed, Device
from hpmoe.bring_up.layers import layer_inputs, moved
from hpmoe.bring_up.rates import times_us
from hpmoe.runtime.targets import find_target

MOST_LAUNCH_US = 1000.0  # of a launch of one small task on an NPU, in a row of launches


def built(device: Device) -> str:
    """Kernel and operator are built for this machine."""
    missing = find_target(device.target).missing()
    if missing:
        raise CheckFailed("; ".join(missing))
    return f"target {device.target}"


def one_launch(device: Device) -> str:
    """Launches one task on one core and compares its result; returns the line that the report prints."""
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    device.compare(lambda x: x * 2.0, [[x]], exact=True)
    return "64 numbers doubled"


def one_put(device: Device) -> str:
    """Rows of one rank are dispatched to itself and combined."""
    device.compare(moved, [layer_inputs(1, tokens=3, top_k=1)[0][:2]], exact=True)
    return "3 rows, bit for bit"


def reachability(device: Device) -> str:
    """All ranks open the symmetric heap, put a word to each other rank and read it back."""
    ranks = device.num_ranks
    device.compare(lambda x: x * 2.0, [[np.full((4, 16), rank, np.float32)] for rank in range(ranks)], exact=True)
    return f"{ranks} ranks"


def timing(device: Device) -> str:
    """The time of a launch in a row of launches; on an NPU at most a millisecond."""
    found = float(np.median(times_us(device, lambda x: x * 2.0, [[np.ones((16, 16), np.float32)]])))
    if not device.is_small and found > MOST_LAUNCH_US:
        raise CheckFailed(f"a launch of one small task took {found:.0f} us; expected at most {MOST_LAUNCH_US:.0f}")
    return f"a launch took {found:.0f} us" + (" on this CPU" if device.is_small else "")
