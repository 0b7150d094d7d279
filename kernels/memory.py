"""Memory for a launch's buffers, kept from one launch to the next: fresh pages cost more than the work done in them."""

from __future__ import annotations

import collections
import math
import threading

import numpy as np

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
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        """An uninitialised array, aligned to cache lines."""
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        with self._lock:
            block = self._take(size)
            self._used_bytes += block.nbytes
            self.peak_bytes = max(self.peak_bytes, self._used_bytes)
        lease = _Lease(self._returned, block, size)
        return np.asarray(lease)[:math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def zeros(self, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
        out = self.empty(shape, dtype)
        out[...] = 0
        return out

    def _take(self, size: int) -> np.ndarray:
        """The tightest free block that is not twice too large, or a new one; what would exceed the peak is let go."""
        while self._returned:
            block = self._returned.popleft()
            self._used_bytes -= block.nbytes
            self._free.append(block)
        fitting = [i for i, b in enumerate(self._free) if size <= b.nbytes - ALIGNMENT <= 2 * size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        while self._free and sum(b.nbytes for b in self._free) + self._used_bytes + size > self.peak_bytes:
            self._free.pop(0)
        return np.empty(size + ALIGNMENT, np.uint8)


class _Lease:
    """Owns a block while any view of its array lives, then queues it: a destructor can run anywhere, and takes no lock."""

    def __init__(self, returned: collections.deque[np.ndarray], block: np.ndarray, size: int):
        self._returned, self._block = returned, block
        start = -(-block.ctypes.data // ALIGNMENT) * ALIGNMENT
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (start, False), "version": 3}

    def __del__(self) -> None:
        self._returned.append(self._block)
