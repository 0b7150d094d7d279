"""Memory for a launch's buffers, kept from one launch to the next: fresh pages cost more than the work done in them."""

from __future__ import annotations

import collections
import math
import weakref
from typing import Any

import numpy as np

from hpmoe.locks import new_plain_lock
from hpmoe.native.loading import address

ALIGNMENT = 64


class Pool:
    """Hands out arrays and takes their memory back when the last view of them is gone.

    It never holds more than was once in use at the same time.

    Attributes:
        peak_bytes: the most bytes in use at the same time, alignment included.

    Example:
        >>> pool = Pool()
        >>> first = pool.empty((4, 8), np.float32)
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.empty((4, 8), np.float32).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._free: list[_Block] = []
        self._leased: set[_Leased] = set()
        self._returned: collections.deque[_Leased] = collections.deque()
        self._used_bytes = self.peak_bytes = 0
        self._lock = new_plain_lock()

    def lease(self, size: int) -> Lease:
        """So many uninitialised bytes, aligned to cache lines; new ones where the pool is being asked already."""
        if self._lock.acquire(blocking=False):
            try:
                lease = Lease(self._take(max(1, size)), size)
                self._leased.add(_Leased(lease, self._returned.append))
                return lease
            finally:
                self._lock.release()
        # another thread is asking, or this one was before a signal's handler ran
        return Lease(_Block(max(1, size)), size)

    def empty(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        """An uninitialised array in memory of the pool."""
        dtype = np.dtype(dtype)
        return np.asarray(self.lease(math.prod(shape) * dtype.itemsize)).view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def _take(self, size: int) -> _Block:
        """The tightest free block that is not twice too large, or a new one; what would exceed the peak is let go."""
        block = self._find(size)
        self._used_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return block

    def _find(self, size: int) -> _Block:
        while self._returned:
            leased = self._returned.popleft()
            self._leased.discard(leased)
            block = leased.block
            self._used_bytes -= block.nbytes
            self._free.append(block)
        fitting = [(b.nbytes, i) for i, b in enumerate(self._free) if size <= b.nbytes - ALIGNMENT <= 2 * size]
        if fitting:
            return self._free.pop(min(fitting)[1])
        while self._free and sum(b.nbytes for b in self._free) + self._used_bytes + size > self.peak_bytes:
            self._free.pop(0)
        return _Block(size)


class _Block:
    """Memory of the system's, with room to align what is in it."""

    __slots__ = ("array", "nbytes", "start")

    def __init__(self, size: int):
        self.array = np.empty(size + ALIGNMENT, np.uint8)
        self.nbytes = self.array.nbytes
        self.start = -(-address(self.array) // ALIGNMENT) * ALIGNMENT


class Lease:
    """Owns a block while it or a view of its array lives.

    Attributes:
        address: where its bytes begin.
    """

    __slots__ = ("__weakref__", "address", "block", "_size")

    def __init__(self, block: _Block, size: int):
        self.block, self._size = block, size
        self.address = block.start

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self._size,), "typestr": "|u1", "data": (self.address, False), "version": 3}


class _Leased(weakref.ref):
    """A block that comes back when its lease has ended; no lock is taken then, and no Python runs where Ctrl-C is lost."""

    __slots__ = ("block",)

    def __init__(self, lease: Lease, give_back: Any):
        super().__init__(lease, give_back)
        self.block = lease.block
