"""Memory for a launch's buffers, kept from one launch to the next: fresh pages cost more than the work done in them."""

from __future__ import annotations

import collections
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from hpmoe.support.loading import address, array_at
from hpmoe.support.locks import new_plain_lock

ALIGNMENT = 64
BYTE = np.dtype(np.uint8)


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

    def __init__(self, make: Callable[[int], Block] | None = None) -> None:
        """`make` allocates a block of a number of bytes; None allocates this process's memory."""
        self._make = make or _Block
        self._free: list[Block] = []
        self._leased: set[_Leased] = set()
        self._returned: collections.deque[_Leased] = collections.deque()
        self._used_bytes = self.peak_bytes = 0
        self._lock = new_plain_lock()

    def lease(self, sizes: Sequence[int]) -> Lease:
        """Returns uninitialised blocks of `sizes` bytes, aligned to cache lines; new ones if the pool is in use."""
        lease, take = Lease(sizes), self._make
        is_mine = self._lock.acquire(blocking=False)  # or another thread asks, or this one did before a signal's handler ran
        try:
            if is_mine:
                self._take_back()
                self._leased.add(_Leased(lease, self._returned.append))
                take = self._take
            for size in sizes:
                lease.blocks.append(take(max(1, size)) if is_mine else take(max(1, size) + ALIGNMENT))
        finally:
            if is_mine:
                self._lock.release()
        return lease

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Returns an uninitialised array in memory of the pool."""
        dtype = np.dtype(dtype)
        return self.lease([math.prod(shape) * dtype.itemsize]).array(0).view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def _take(self, size: int) -> Block:
        """Returns the smallest fitting free block up to twice the size, or a new one; frees blocks beyond the peak."""
        block = self._find(size)
        self._used_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return block

    def _take_back(self) -> None:
        while self._returned:
            leased = self._returned.popleft()
            self._leased.discard(leased)
            self._used_bytes -= sum([block.nbytes for block in leased.blocks])
            self._free += leased.blocks

    def _find(self, size: int) -> Block:
        fitting = [(b.nbytes, i) for i, b in enumerate(self._free) if size <= b.nbytes - ALIGNMENT <= 2 * size]
        if fitting:
            return self._free.pop(min(fitting)[1])
        while self._free and sum(b.nbytes for b in self._free) + self._used_bytes + size > self.peak_bytes:
            self._free.pop(0)
        return self._make(size + ALIGNMENT)


class Block(Protocol):
    """Memory that is free again when nothing refers to this.

    Attributes:
        nbytes: of all of it; ALIGNMENT fewer may be used.
        start: where these begin, on a cache line.
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def start(self) -> int: ...


class _Block:
    """Memory of this process."""

    __slots__ = ("array", "nbytes", "start")

    def __init__(self, size: int):
        self.array = np.empty(size, np.uint8)
        self.nbytes = self.array.nbytes
        self.start = -(-address(self.array) // ALIGNMENT) * ALIGNMENT


class Lease:
    """Owns blocks of these sizes while it or a view of one of its arrays lives."""

    __slots__ = ("__weakref__", "_sizes", "blocks")

    def __init__(self, sizes: Sequence[int]):
        self._sizes, self.blocks = sizes, list[Block]()

    def address(self, i: int) -> int:
        """Returns the address of the i-th block."""
        return self.blocks[i].start

    def array(self, i: int) -> np.ndarray:
        """Returns the bytes of array number i."""
        return array_at(self.address(i), (self._sizes[i],), BYTE, self)


class _Leased(weakref.ref):
    """Blocks that come back when their lease has ended; no lock is taken then, and no Python runs where Ctrl-C is lost."""

    __slots__ = ("blocks",)

    def __init__(self, lease: Lease, give_back: Callable[[_Leased], None]):
        super().__init__(lease, give_back)  # pyright: ignore[reportCallIssue]  typeshed has its arguments in __new__ alone
        self.blocks = lease.blocks
