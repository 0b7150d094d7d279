"""Memory for a launch's buffers, kept from one launch to the next: fresh pages cost more than the work done in them."""

from __future__ import annotations

import collections
import math

import numpy as np

from hpmoe.locks import new_plain_lock

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
        self._free: list[np.ndarray] = []
        self._returned: collections.deque[np.ndarray] = collections.deque()
        self._used_bytes = self.peak_bytes = 0
        self._lock = new_plain_lock()

    def empty(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        """An uninitialised array, aligned to cache lines; a new one of its own where the pool is being asked already."""
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        if self._lock.acquire(blocking=False):
            try:
                lease = _Lease(self._returned, self._take(size), size)
            finally:
                self._lock.release()
        else:  # another thread is asking, or this one was before a signal's handler ran
            lease = _Lease(collections.deque(), _new_block(size), size)
        return np.asarray(lease)[:math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def _take(self, size: int) -> np.ndarray:
        """The tightest free block that is not twice too large, or a new one; what would exceed the peak is let go."""
        block = self._find(size)
        self._used_bytes += block.nbytes
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        return block

    def _find(self, size: int) -> np.ndarray:
        while self._returned:
            block = self._returned.popleft()
            self._used_bytes -= block.nbytes
            self._free.append(block)
        fitting = [i for i, b in enumerate(self._free) if size <= b.nbytes - ALIGNMENT <= 2 * size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        while self._free and sum(b.nbytes for b in self._free) + self._used_bytes + size > self.peak_bytes:
            self._free.pop(0)
        return _new_block(size)


def _new_block(size: int) -> np.ndarray:
    return np.empty(size + ALIGNMENT, np.uint8)


class _Lease:
    """Owns a block while any view of its array lives, then queues it: a destructor can run anywhere, and takes no lock."""

    def __init__(self, returned: collections.deque[np.ndarray], block: np.ndarray, size: int):
        self._returned, self._block = returned, block
        start = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, False), "version": 3}

    def __del__(self) -> None:
        self._returned.append(self._block)
