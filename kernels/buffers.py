"""Places the buffers of a launch: inputs as they are, the rest in memory of the pool, sized from the real counts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.ir.taskflow import Taskflow, memory_of
from hpmoe.kernels.memory import ALIGNMENT, Lease, Pool
from hpmoe.support.dtypes import stored
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.support.loading import address, array_at

Received = tuple[tuple[int, ...], ...]  # for each rank, the rows that it receives through each route


class Layout(NamedTuple):
    """Sizes of a launch for some received rows.

    Attributes:
        rows: for each rank, the rows of each buffer.
        sizes: bytes of each memory, of all ranks together.
        offsets: for each rank, where its buffers lie in the memories, as (buffer, memory, offset).
    """

    rows: list[list[int]]
    sizes: list[int]
    offsets: list[list[tuple[int, int, int]]]


class Places:
    """Properties of a taskflow's buffers before a launch.

    Attributes:
        buffers: buffers of the taskflow.
        dtypes: dtype of each buffer's array.
        arrays: buffers that are arrays of their own, and which input they are; None for outputs of known size.
        home: the storage whose memory each other buffer uses.
        memory_of: index of the memory of each home; temporaries, allocated and freed together, share one memory.
        shared: buffers that lie where an array of `arrays` does, and which that is.
        layout: the Layout for received rows, a function that keeps the last 64 results.
    """

    def __init__(self, flow: Taskflow):
        self.buffers = flow.buffers
        self.dtypes = [buffer.stored_dtype for buffer in flow.buffers]
        position = {b: i for i, b in enumerate(flow.inputs)}
        self.arrays = {b: position.get(b) for b, buffer in enumerate(flow.buffers)
                       if buffer.storage == b and (b in position or (buffer.role == "output" and buffer.route < 0))}
        self.home = {b: memory_of(flow.buffers, b) for b, buffer in enumerate(flow.buffers)
                     if buffer.storage not in self.arrays}
        self.shared = [(b, buffer.storage) for b, buffer in enumerate(flow.buffers)
                       if buffer.storage in self.arrays and buffer.storage != b]
        stay = {self.home[b] for b in flow.outputs if b in self.home}
        self.memory_of = {home: i for i, home in enumerate(stay)}
        for home in self.home.values():
            self.memory_of.setdefault(home, len(stay))
        self.layout = functools.lru_cache(maxsize=64)(self._layout)

    def _layout(self, received: Received) -> Layout:
        sizes, offsets, rows = [0] * len(set(self.memory_of.values())), [], []
        for mine in received:
            rows.append([known(buffer.num_rows) if buffer.route < 0 else mine[buffer.route] for buffer in self.buffers])
            starts = {}
            for home, size in self._sizes(rows[-1]).items():
                memory = self.memory_of[home]
                starts[home], sizes[memory] = sizes[memory], sizes[memory] + size
            offsets.append([(b, self.memory_of[home], starts[home]) for b, home in self.home.items()])
        return Layout(rows, sizes, offsets)

    def _sizes(self, rows: Sequence[int]) -> dict[int, int]:
        """Returns the bytes of each home on a rank whose buffers have `rows` rows, at least one, in whole cache lines."""
        sizes = dict.fromkeys(self.home.values(), 0)
        for b, home in self.home.items():
            sizes[home] = max(sizes[home], self.buffers[b].row_bytes * max(rows[b], 1))
        return {home: -(-size // ALIGNMENT) * ALIGNMENT for home, size in sizes.items()}


class Placed:
    """The buffers of one launch; it keeps their memory.

    Attributes:
        addresses: for each rank, where each buffer begins.
        received: for each rank, the capacity in rows for each route.
    """

    def __init__(self, places: Places, pool: Pool, inputs: Sequence[Sequence[np.ndarray]],
                 received: Sequence[Sequence[int]], padded: bool, into: Mapping[int, Sequence[np.ndarray]]):
        """`padded`: results begin as zeros, as no task writes padding. `into`: for some results, by buffer, the array
        of each rank to write them to."""
        self._places, self.received = places, received
        self._layout = layout = places.layout(tuple(map(tuple, received)))
        self._arrays: list[dict[int, np.ndarray]] = [{} for _ in inputs]
        self._held: list[np.ndarray] = []
        self.addresses = [[0] * len(places.buffers) for _ in inputs]
        for b, i in places.arrays.items():
            if i is None and b not in into:
                self._make_result(b, pool, padded)
                continue
            for rank, mine in enumerate(inputs):
                self.addresses[rank][b] = self._address_of(rank, b, into[b][rank] if i is None else mine[i], i is not None)
        self._memories: list[Lease] = [pool.lease([size]) for size in layout.sizes]
        starts = [memory.address(0) for memory in self._memories]
        for mine, offsets in zip(self.addresses, layout.offsets, strict=True):
            for b, memory, offset in offsets:
                mine[b] = starts[memory] + offset
            for b, other in places.shared:
                mine[b] = mine[other]

    def _make_result(self, b: int, pool: Pool, padded: bool) -> None:
        """Allocates a result of all ranks as one array, which stacking them does not copy."""
        buffer, dtype, num_rows = self._places.buffers[b], self._places.dtypes[b], self._layout.rows[0][b]
        rows = max(num_rows, 1)
        step = rows * buffer.cols * dtype.itemsize
        memory = pool.lease([len(self.addresses) * step])
        start = memory.address(0)
        together = array_at(start, (len(self.addresses), rows, buffer.cols), dtype, memory)
        if padded:
            together[...] = 0
        for rank in range(len(self.addresses)):
            self._arrays[rank][b] = together[rank, :num_rows]
            self.addresses[rank][b] = start + rank * step

    def _address_of(self, rank: int, b: int, array: np.ndarray, is_input: bool) -> int:
        """Checks a caller's array and returns its address; for an array without rows, that of an unused row."""
        cols, dtype, rows = self._places.buffers[b].cols, self._places.dtypes[b], self._layout.rows[rank][b]
        if is_input:  # also a rank's scalar, which has no memory of its own
            array = np.ascontiguousarray(array) if array.dtype == dtype else stored(array, self._places.buffers[b].dtype)
        if array.dtype != dtype or array.size != rows * cols or not array.flags.c_contiguous:
            check_argument(False, "launch", f"buffers[{rank}][{b}]", describe(array),
                           f"a contiguous {dtype} array of {rows} rows and {cols} columns")
        self._arrays[rank][b] = array
        if array.size == 0:
            array = np.zeros((1, cols), dtype)
            self._held.append(array)
        return address(array)

    def array(self, rank: int, b: int) -> np.ndarray:
        """Returns a buffer of a rank, [rows, columns]."""
        places = self._places
        shape = self._layout.rows[rank][b], places.buffers[b].cols
        if b not in places.home:
            return self._arrays[rank][places.buffers[b].storage].reshape(shape)
        return array_at(self.addresses[rank][b], shape, places.dtypes[b], self._memories[places.memory_of[places.home[b]]])

    def ranks(self) -> list[list[np.ndarray]]:
        """Returns every buffer of every rank."""
        return [[self.array(rank, b) for b in range(len(self._places.buffers))] for rank in range(len(self._arrays))]

    def read_ranks(self) -> list[list[np.ndarray]]:
        """Returns the arrays as a launch takes them; an array without rows becomes an unused row."""
        return [[a if a.size else np.zeros((1, a.shape[1]), a.dtype) for a in mine] for mine in self.ranks()]


def describe(array: np.ndarray) -> str:
    """Returns dtype, shape and layout, as messages show an array."""
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.c_contiguous else ' with gaps'}"
