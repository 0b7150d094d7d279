"""MindSpore's scheduler under msrun, which runs the user's script in a process of its own beside the ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path

from mindspore import communication

LOOK_S = 0.5  # between two looks at the ranks
COME_S = 60.0  # for the first rank to be seen
PR_SET_PDEATHSIG = 1
_SCHEDULER = ("MS_SCHED_HOST", "MS_SCHED_PORT")


def serve_scheduler() -> None:
    """Serves the ranks that use MindSpore's own collectives, until the last rank of this host has ended; then exits with 0.

    Nothing comes back from MindSpore's scheduler, and it waits for ranks that never ask for it. So it is a process of its
    own.
    """
    server = os.fork()
    if server == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        try:
            communication.init("mccl")
            signal.pause()  # the server is a thread of this process
        finally:
            os._exit(0)
    begin, were_seen = time.monotonic(), False
    while True:
        are_there = any(map(_is_rank, Path("/proc").iterdir()))
        were_seen |= are_there
        if not are_there and (were_seen or time.monotonic() - begin > COME_S):
            os.kill(server, signal.SIGKILL)
            os._exit(0)
        time.sleep(LOOK_S)


def _is_rank(process: Path) -> bool:
    """Returns True if a process is a running rank of this scheduler."""
    if not process.name.isdecimal():
        return False
    try:
        told = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return False
    wanted = [b"MS_ROLE=MS_WORKER", *(f"{name}={os.environ.get(name, '')}".encode() for name in _SCHEDULER)]
    return all(entry in told for entry in wanted)
