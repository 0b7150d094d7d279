"""What ranks reach each other through: the kernels bring it, and it is found here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from hpmoe.ranks.rendezvous import Group


class Link(Protocol):
    """Memory that the processes of a group share. What all of them call, each does.

    Attributes:
        rank, size: of this process in the group.
        num_threads: this process's share of the cores.
        exchanges: of counts, so far.
        waits: float64 [size], the seconds that this rank has waited for each one.
    """

    rank: int
    size: int
    num_threads: int
    exchanges: int

    @property
    def waits(self) -> np.ndarray: ...

    def meet(self, what: str, payload: bytes, key: bytes = b"") -> list[bytes]:
        """What each rank gives. `what` says in words what that is; `key` is the same on all ranks."""
        ...

    def exchange(self, what: str, counts: np.ndarray, key: bytes = b"") -> np.ndarray:
        """The int32 counts of each rank, [size, ...]."""
        ...

    def sum(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The sum over ranks of each array, in float32 in the order of ranks, rounded once."""
        ...

    def calling(self, what: str) -> AbstractContextManager[None]:
        """Around all of a call: an error inside is raised by the calls of all other ranks too."""
        ...


_MAKERS: list[Callable[[Group], Link]] = []


def register_link(make: Callable[[Group], Link]) -> None:
    """Says what makes a Link between the processes of a group."""
    _MAKERS.append(make)


def make_link(group: Group) -> Link:
    return _MAKERS[-1](group)
