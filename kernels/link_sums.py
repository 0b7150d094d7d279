"""Sums over ranks that are processes: in float32, in the order of ranks, rounded once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hpmoe.kernels.memory import Lease, Pool
from hpmoe.support.dtypes import dtype_name, rounded, widen


class Ranks(Protocol):
    """Protocol with the members of `Link` that a sum over ranks uses."""

    rank: int
    size: int
    pool: Pool

    def meet(self, what: str, payload: bytes, key: bytes = b"") -> list[bytes]: ...
    def heap(self, rank: int) -> int: ...
    def keep_until_met(self, *memory: object) -> None: ...


def sum_in_memory(link: Ranks, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Sums if all ranks share memory: each rank sums a part of each array and reads the others' parts."""
    key = _key(arrays)
    mine, sums = (link.pool.lease([a.nbytes for a in arrays]) for _ in range(2))
    for i, array in enumerate(arrays):
        mine.array(i)[...] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    parts = _arrays_of_ranks(link, "a sum over ranks", mine, arrays, key)
    for i, array in enumerate(arrays):
        own, out = _part(link, array.size, link.rank), sums.array(i).view(array.dtype)
        total = sum(widen(of_rank[i][own]) for of_rank in parts)
        out[own] = rounded(np.asarray(total), dtype_name(array.dtype))
    found = _arrays_of_ranks(link, "the sums of all ranks", sums, arrays, key)
    results = []
    for i, array in enumerate(arrays):
        pieces = [found[rank][i][_part(link, array.size, rank)] for rank in range(link.size)]
        results.append(np.concatenate(pieces).reshape(array.shape))
    link.keep_until_met(mine, sums)
    return results


def sum_of_copies(link: Ranks, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Sums if not all ranks share memory: each rank receives the arrays of all."""
    told = link.meet("a sum over ranks", b"".join(np.ascontiguousarray(a).tobytes() for a in arrays), _key(arrays))
    ends = np.cumsum([0, *(a.nbytes for a in arrays)])
    results = []
    for array, start, end in zip(arrays, ends, ends[1:], strict=False):
        parts = [np.frombuffer(data[start:end], array.dtype) for data in told]
        total = np.asarray(sum(widen(part) for part in parts))
        results.append(rounded(total, dtype_name(array.dtype)).reshape(array.shape))
    return results


def _key(arrays: Sequence[np.ndarray]) -> bytes:
    return str([(dtype_name(a.dtype), a.shape) for a in arrays]).encode()


def _part(link: Ranks, size: int, rank: int) -> slice:
    return slice(size * rank // link.size, size * (rank + 1) // link.size)


def _arrays_of_ranks(link: Ranks, what: str, lease: Lease, arrays: Sequence[np.ndarray],
                     key: bytes) -> list[list[np.ndarray]]:
    """Returns the flat arrays that each rank has placed in a lease of its own heap."""
    offsets = np.array([lease.address(i) - link.heap(link.rank) for i in range(len(arrays))], np.int64)
    told = link.meet(what, offsets.tobytes(), key)
    return [[_array_at(link.heap(rank) + int(offset), array.size, array.dtype)
             for offset, array in zip(np.frombuffer(data, np.int64), arrays, strict=True)]
            for rank, data in enumerate(told)]


def _array_at(start: int, size: int, dtype: np.dtype) -> np.ndarray:
    if not size:
        return np.zeros(0, dtype)
    return np.ctypeslib.as_array((ctypes.c_uint8 * (size * dtype.itemsize)).from_address(start)).view(dtype)
