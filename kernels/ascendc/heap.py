"""The symmetric heap of a rank: all ranks of MindSpore's world open it together, once, large enough for many kernels.

Ranks run the same calls in the same order, so every rank computes the same sizes and opens its heap at the same call. The
ranks exchange only the id that rank 0 makes for each opening. A kernel that does not fit makes all ranks open a larger heap.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from mindspore import Tensor, communication, ops

from hpmoe.support.errors import LaunchError, check_argument
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import wait_for_calls

ROUNDING = 2 << 20  # a page of the device
MESSAGE_WORDS = 512  # of what rank 0 tells the others: its length and its bytes
MOST_BYTES = 40 << 30  # of a heap of aclshmem
KERNELS_AT_FIRST = 3  # as large as the first one: its gradient, and one for other shapes
NUMBERS = itertools.count()  # of kernels that graphs launch


class Ranks(Protocol):
    """The processes that launch together."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def share(self, make: Callable[[], bytes]) -> bytes:
        """Returns rank 0's value on every rank."""
        ...


@dataclasses.dataclass(frozen=True)
class WorldRanks:
    """The ranks of MindSpore's world."""

    rank: int
    size: int

    def share(self, make: Callable[[], bytes]) -> bytes:
        if self.size == 1:
            return make()
        words = np.zeros(MESSAGE_WORDS, np.int32)
        if self.rank == 0:
            made = make()
            words[0], words[1:1 + len(made)] = len(made), list(made)
        words = known(ops.Broadcast(0)((Tensor(words),)))[0].asnumpy()
        return bytes(words[1:1 + words[0]].tolist())


def world_ranks(ep_size: int) -> Ranks:
    """Returns this process among the ranks of a mesh; raises ArgumentError if MindSpore's world has another size."""
    if ep_size == 1:
        return WorldRanks(0, 1)
    who = 'fuse_persistent(target="ascend")'
    check_argument(communication.GlobalComm.INITED, who, "MindSpore's world", "not initialised",
                   "one process for each rank of the mesh", "Call mindspore.communication.init() first, in processes that "
                   "msrun starts.")
    size = communication.get_group_size()
    check_argument(size == ep_size, who, "mesh.ep", ep_size, f"{size}, the size of MindSpore's world")
    return WorldRanks(communication.get_rank(), size)


class Bound(Protocol):
    """A kernel that can be bound to a device; see AscendState. Devices and kernels belong to the operator's module."""

    @property
    def name(self) -> str: ...
    @property
    def symmetric_bytes(self) -> int: ...
    def bind(self, device: Any, rank: int) -> Any: ...
    def check(self, kernel: Any, wait: bool = False) -> None: ...


@dataclasses.dataclass
class Reservation:
    """Least bytes of a heap when it first opens."""

    num_bytes: int = 1 << 30


RESERVATION = Reservation()


def reserve_heap(num_bytes: int) -> None:
    """Sets the bytes of each rank's symmetric heap; call it before the first launch, as a later call has no effect.

    The first launch opens a heap of this size, 1 GiB if it is not set, or of three times what the first kernel needs if that
    is more. If a later kernel does not fit, all ranks close the heap and open a larger one. All ranks pass the same number.

    Raises:
        ArgumentError: num_bytes is no int from 1 byte to 40 GiB.
    """
    check_argument(isinstance(num_bytes, int) and 0 < num_bytes <= MOST_BYTES, "reserve_heap", "num_bytes", num_bytes,
                   f"an int in 1..{MOST_BYTES}")
    RESERVATION.num_bytes = num_bytes


class SymmetricHeap:
    """The device of this rank, and the kernels bound to it.

    Attributes:
        operator: the module that opens devices and binds kernels to them.
        ranks: the processes that open the heap together.
        size: bytes of the heap, or of its first opening.
    """

    def __init__(self, operator: Any, ranks: Ranks, size: int = 0):
        self.operator, self.ranks, self.size = operator, ranks, size
        self._used = 0
        self._device: Any = None
        self._kernels: weakref.WeakKeyDictionary[Bound, Any] = weakref.WeakKeyDictionary()
        self._evicted: weakref.WeakSet[Bound] = weakref.WeakSet()
        self._numbers: dict[Bound, int] = {}

    def kernel_of(self, executable: Bound) -> Any:
        """Returns the executable's kernel, which it binds if it is not bound yet."""
        if executable not in self._kernels:
            need = _need(executable)
            kept = sum(map(_need, self._numbers))
            if self._device is None:
                self._reopen(max(self.size, KERNELS_AT_FIRST * need))
            elif self._used + need > self.size:
                self._reopen(self.size + need if executable in self._evicted else max(self.size, kept + need))
            self._bind(executable)
        return self._kernels[executable]

    def number_of(self, executable: Bound) -> int:
        """Returns the number by which a compiled graph finds the executable's kernel, which stays in the heap from now on.
        """
        kernel = self.kernel_of(executable)
        if executable not in self._numbers:
            self._numbers[executable] = next(NUMBERS)
            self.operator.name_kernel(self._numbers[executable], kernel)
        return self._numbers[executable]

    def _bind(self, executable: Bound) -> None:
        try:
            self._kernels[executable] = executable.bind(self._device, self.ranks.rank)
        except RuntimeError as error:
            raise LaunchError(f"{executable.name}: {error}") from None
        self._used += _need(executable)

    def kernels(self) -> list[tuple[Bound, Any]]:
        """Returns the executables and their kernels."""
        return list(self._kernels.items())

    def _reopen(self, size: int) -> None:
        """Replaces the heap by one of `size` bytes; each kernel is bound again at its next call.

        The heap grows only for kernels that had to leave it before. Memory of kernels that are no longer called is freed.
        """
        self._close()
        try:
            unique_id = self.ranks.share(self.operator.make_unique_id)
            self._device = self.operator.open_device(self.ranks.rank, self.ranks.size, unique_id, size)
        except RuntimeError as error:
            raise LaunchError(f"a symmetric heap of {size} bytes does not open on rank {self.ranks.rank} of "
                              f"{self.ranks.size}: {error}") from None
        self.size = size
        for executable, number in self._numbers.items():
            self._bind(executable)
            self.operator.name_kernel(number, self._kernels[executable])

    def _close(self) -> None:
        """Waits for all launches and lets go of what holds the device: a process may have one open at a time."""
        wait_for_calls()
        for executable, kernel in self.kernels():
            executable.check(kernel, wait=True)
            self._evicted.add(executable)
        for number in self._numbers.values():
            self.operator.name_kernel(number, None)
        self._kernels.clear()
        self._device, self._used = None, 0


def _need(executable: Bound) -> int:
    return -(-executable.symmetric_bytes // ROUNDING) * ROUNDING
