"""Reports of ranks to the `hpmoe launch` that started them: why they fail, and which rank is to blame."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time

from hpmoe.ranks.arrivals import Arrivals
from hpmoe.ranks.launchers import LAUNCHER
from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import HostPoint, Point
from hpmoe.support.errors import is_int

ANSWER_S = 2.0  # for the launcher to note a report


class Reports:
    """Faults that ranks of this launcher have reported.

    Attributes:
        name: the value of HPMOE_LAUNCHER for the ranks.
        faults: by rank, the last LaunchError that ended what it did, as (the rank to blame, text).
    """

    def __init__(self) -> None:
        self.name, self.faults = secrets.token_hex(16), dict[int, tuple[int, str]]()
        point = _point(self.name)
        self._arrivals: Arrivals[None] = Arrivals({point.listen(): point}, self._note)

    def close(self) -> None:
        self._arrivals.close()

    def _note(self, connection: socket.socket, point: Point, deadline: float) -> None:
        if stranger := point.stranger(connection, True, deadline):
            raise GoneError(stranger)
        words = receive(connection, deadline)[0]
        rank, blamed, fault = (words.get(name) for name in ("rank", "blamed", "fault"))
        if is_int(rank, 0) and is_int(blamed, 0) and isinstance(fault, str):
            self.faults[rank] = blamed, fault
            send(connection, {})
        raise GoneError("it has reported")


def report(rank: int, blamed: int, fault: str) -> None:
    """Tells the launcher of this process, if it is `hpmoe launch`, why this rank fails, and which rank is to blame."""
    if LAUNCHER not in os.environ:
        return
    with contextlib.suppress(OSError), _point(os.environ[LAUNCHER]).connect(ANSWER_S) as connection:
        send(connection, {"rank": rank, "blamed": blamed, "fault": fault})
        receive(connection, time.monotonic() + ANSWER_S)


def has_launcher_ended() -> bool:
    """Returns whether the variables of this process are those of an `hpmoe launch` that has ended."""
    if LAUNCHER not in os.environ:
        return False
    try:
        _point(os.environ[LAUNCHER]).connect(ANSWER_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _point(name: str) -> HostPoint:
    return HostPoint(name.encode(), "launcher")
