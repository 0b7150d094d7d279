"""Link: what the processes of a group do together; the kernels, which share memory with each other, have what makes one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np

from hpmoe.ranks.hosts import Group

ENGINES = ("tcp", "ucx")  # what carries messages to other hosts; see kernels/link/engine.h


class Traffic(NamedTuple):
    """Messages that a rank has sent to other hosts, without heartbeats.

    Attributes:
        messages, bytes: number and bytes of all messages.
        row_messages: number of messages that carry rows or signals.
        rows, row_bytes: number of rows in messages, and the bytes of rows only.
    """

    messages: int
    bytes: int
    row_messages: int
    rows: int
    row_bytes: int


class Link(Protocol):
    """Group of processes that make the same calls in the same order.

    A call that fails on one rank fails on all its ranks, and the next one starts fresh. Only a rank that has ended makes
    every further call fail. Every method raises LaunchError for what goes wrong on another rank, which it names.

    Attributes:
        rank, size: rank of this process in the group, and the number of ranks.
        exchanges: number of exchanges of counts so far.
        shares_memory: True if all ranks share memory, as they are on one host.
        waits: float64 [size], the seconds that this rank has waited for each one.
        traffic: messages sent to other hosts so far.
    """

    rank: int
    size: int
    exchanges: int
    shares_memory: bool

    @property
    def waits(self) -> np.ndarray: ...

    @property
    def traffic(self) -> Traffic: ...

    def calling(self, what: str) -> AbstractContextManager[None]:
        """Context of a whole call: an error inside it, unknown to the other ranks, is raised by their calls too."""
        ...

    def meet(self, what: str, payload: bytes, key: bytes = b"") -> list[bytes]:
        """Returns each rank's payload after all have called. `what` describes the call; `key` must be equal on all ranks."""
        ...

    def exchange(self, what: str, counts: np.ndarray, key: bytes = b"") -> np.ndarray:
        """Returns the int32 counts of each rank, [size, ...]."""
        ...

    def sum(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the sum over ranks of each array: in float32, in the order of ranks, rounded once to its dtype."""
        ...


_makers: list[Callable[[Group, str], Link]] = []


def register_link(make: Callable[[Group, str], Link]) -> None:
    """Registers the function that makes the Link of a group, with the engine of its messages to other hosts."""
    _makers[:] = [make]


def make_link(group: Group, engine: str) -> Link:
    """Makes the Link of a group and closes the group's connections."""
    link = _makers[0](group, engine)
    group.close()
    return link
