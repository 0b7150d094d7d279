"""The symmetric heap of a rank: opened together by all ranks of MindSpore's world, larger again where a kernel needs more.

Ranks run the same calls in the same order, so that every rank comes to the same sizes and opens its heap anew at the same
place; nothing else needs to be agreed on but the id that rank 0 makes for each opening.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from hpmoe.errors import LaunchError, check_argument

ROUNDING = 2 << 20  # a page of the device


class Ranks(Protocol):
    """The processes that launch together."""

    rank: int
    size: int

    def share(self, make: Callable[[], bytes]) -> bytes:
        """What rank 0 makes, on every rank."""


@dataclasses.dataclass(frozen=True)
class WorldRanks:
    """The ranks of MindSpore's world."""

    rank: int
    size: int

    def share(self, make: Callable[[], bytes]) -> bytes:
        if self.size == 1:
            return make()
        from mindspore.mint import distributed
        box = [make() if self.rank == 0 else None]
        distributed.broadcast_object_list(box, src=0)
        return box[0]


def world_ranks(ep_size: int) -> Ranks:
    """This process among the ranks of a mesh. Raises ArgumentError where MindSpore's world has another size."""
    if ep_size == 1:
        return WorldRanks(0, 1)
    from mindspore.mint import distributed
    who = 'fuse_persistent(target="ascend")'
    check_argument(distributed.is_initialized(), who, "MindSpore's world", "not initialised",
                   "one process for each rank of the mesh", "Call mindspore.mint.distributed.init_process_group() first, in "
                   "processes that msrun starts.")
    size = distributed.get_world_size()
    check_argument(size == ep_size, who, "mesh.ep_size", ep_size, f"{size}, the size of MindSpore's world")
    return WorldRanks(distributed.get_rank(), size)


class SymmetricHeap:
    """The device of this rank, and the kernels bound to it.

    Attributes:
        operator: the module that opens devices and binds kernels to them.
        ranks: who opens the heap together.
        size: bytes of the heap.
    """

    def __init__(self, operator: Any, ranks: Ranks, size: int = 0):
        self.operator, self.ranks, self.size = operator, ranks, size
        self._used = 0
        self._device: Any = None
        self._kernels: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._evicted: weakref.WeakSet[Any] = weakref.WeakSet()

    def kernel_of(self, executable: Any) -> Any:
        """The executable's kernel, bound where it is not."""
        if executable not in self._kernels:
            need = -(-executable.symmetric_bytes // ROUNDING) * ROUNDING
            if self._device is None or self._used + need > self.size:
                self._reopen(self.size + need if executable in self._evicted else max(self.size, need))
            self._kernels[executable] = executable.bind(self._device, self.ranks.rank)
            self._used += need
        return self._kernels[executable]

    def kernels(self) -> list[tuple[Any, Any]]:
        """Executables and their kernels."""
        return list(self._kernels.items())

    def _reopen(self, size: int) -> None:
        """Opens a heap of `size` bytes in place of the one there was; kernels are bound anew when they are next called.

        It grows for those only that had to leave it before: the room of kernels that nobody calls any more is free again.
        """
        for executable, kernel in self.kernels():
            executable.check(kernel, wait=True)
            self._evicted.add(executable)
        self._kernels.clear()
        self._device, self._used = None, 0  # which closes it: a process may have one open at a time
        try:
            unique_id = self.ranks.share(self.operator.make_unique_id)
            self._device = self.operator.open_device(self.ranks.rank, self.ranks.size, unique_id, size)
        except RuntimeError as error:
            raise LaunchError(f"a symmetric heap of {size} bytes does not open on rank {self.ranks.rank} of "
                              f"{self.ranks.size}: {error}") from None
        self.size = size
