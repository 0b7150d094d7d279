"""Places the buffers of a launch: inputs as they are, the rest in memory of the pool, sized from the real counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.taskflow import Taskflow, memory_of
from hpmoe.kernels.memory import ALIGNMENT, Lease, Pool
from hpmoe.support.dtypes import stored
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.support.loading import address


class Places:
    """Properties of a taskflow's buffers before a launch.

    Attributes:
        buffers: of the taskflow.
        dtypes: of each buffer's array.
        arrays: buffers that are arrays of their own, and which input they are; None for outputs of known size.
        home: of every other buffer, the storage whose memory it lies in.
        leases: the memories that are taken and given back together; those that results lie in stay, each is one of its own.
        shared: buffers that lie where another one does, and which that is.
    """

    def __init__(self, flow: Taskflow):
        self.buffers = flow.buffers
        self.dtypes = [buffer.stored_dtype for buffer in flow.buffers]
        position = {b: i for i, b in enumerate(flow.inputs)}
        self.arrays = {b: position.get(b) for b, buffer in enumerate(flow.buffers)
                       if buffer.storage == b and (b in position or (buffer.role == "output" and buffer.route < 0))}
        self.home = {b: memory_of(flow.buffers, b) for b, buffer in enumerate(flow.buffers)
                     if buffer.storage not in self.arrays}
        stay = {self.home[b] for b in flow.outputs if b in self.home}
        temporaries = [home for home in dict.fromkeys(self.home.values()) if home not in stay]
        self.leases = [[home] for home in stay] + ([temporaries] if temporaries else [])
        where = [self.home.get(b, buffer.storage) for b, buffer in enumerate(flow.buffers)]
        self.shared = [(b, other) for b, other in enumerate(where) if other != b]
        self._static_bytes = dict.fromkeys(self.home.values(), 0)
        self._row_bytes: dict[int, dict[int, int]] = {home: {} for home in self._static_bytes}  # by route
        for b, home in self.home.items():
            buffer, size = flow.buffers[b], flow.buffers[b].row_bytes
            self._static_bytes[home] = max(self._static_bytes[home], size * max(buffer.num_rows or 0, 1))
            if buffer.route >= 0:
                self._row_bytes[home][buffer.route] = max(self._row_bytes[home].get(buffer.route, 0), size)

    def num_rows(self, b: int, received: Sequence[int]) -> int:
        """Rows of a buffer on a rank that receives `received` rows through each route."""
        buffer = self.buffers[b]
        return known(buffer.num_rows) if buffer.route < 0 else received[buffer.route]

    def sizes(self, received: Sequence[int]) -> dict[int, int]:
        """Bytes of each memory on such a rank, of a row at least, in whole cache lines."""
        out = {}
        for home, static in self._static_bytes.items():
            size = max([static, *[received[route] * row for route, row in self._row_bytes[home].items()]])
            out[home] = -(-size // ALIGNMENT) * ALIGNMENT
        return out


class Placed:
    """The buffers of one launch; it keeps their memory.

    Attributes:
        addresses: for each rank, where each buffer begins.
        received: for each rank, the rows that there is room for of those it receives through each route.
    """

    def __init__(self, places: Places, pool: Pool, inputs: Sequence[Sequence[np.ndarray]],
                 received: Sequence[Sequence[int]], padded: bool, into: Mapping[int, Sequence[np.ndarray]]):
        """`padded`: results begin as zeros, as no task writes padding. `into`: for some results, by buffer, the array
        of each rank to write them to."""
        self._places, self.received = places, received
        self._arrays: list[dict[int, np.ndarray]] = [{} for _ in inputs]
        self._memories: dict[int, tuple[Lease, int]] = {}
        self._held: list[np.ndarray] = []
        self.addresses = [[0] * len(places.buffers) for _ in inputs]
        for b, i in places.arrays.items():
            if i is None and b not in into:
                self._make_result(b, pool, padded)
                continue
            for rank, mine in enumerate(inputs):
                array = into[b][rank] if i is None else stored(mine[i], places.buffers[b].dtype)
                self.addresses[rank][b] = self._address_of(rank, b, array)
        self._make_memories(pool)
        for mine in self.addresses:
            for b, other in places.shared:
                mine[b] = mine[other]

    def _make_result(self, b: int, pool: Pool, padded: bool) -> None:
        """The ranks' parts lie one after the other, so that they are one array for whoever stacks them."""
        places, buffer = self._places, self._places.buffers[b]
        rows = max(known(buffer.num_rows), 1)
        step = rows * buffer.row_bytes
        memory = pool.lease([len(self.addresses) * step])
        together = memory.array(0).view(places.dtypes[b]).reshape(len(self.addresses), rows, buffer.cols)
        if padded:
            together[...] = 0
        for rank in range(len(self.addresses)):
            self._arrays[rank][b] = together[rank, :buffer.num_rows]
            self.addresses[rank][b] = memory.address(0) + rank * step

    def _make_memories(self, pool: Pool) -> None:
        """Each memory of all ranks together: what they receive changes with the routing, its sum does not."""
        sizes = [self._places.sizes(rows) for rows in self.received]
        for homes in self._places.leases:
            memory = pool.lease([sum([of_rank[home] for of_rank in sizes]) for home in homes])
            for i, home in enumerate(homes):
                self._memories[home], address = (memory, i), memory.address(i)
                for mine, of_rank in zip(self.addresses, sizes, strict=True):
                    mine[home] = address
                    address += of_rank[home]

    def _address_of(self, rank: int, b: int, array: np.ndarray) -> int:
        """Checks a caller's array and returns its address; for an array without rows, that of an unused row."""
        places, buffer = self._places, self._places.buffers[b]
        rows, dtype = places.num_rows(b, self.received[rank]), places.dtypes[b]
        if array.dtype != dtype or array.size != rows * buffer.cols or not array.flags.c_contiguous:
            check_argument(False, "launch", f"buffers[{rank}][{b}]", describe(array),
                           f"a contiguous {dtype} array of {rows} rows and {buffer.cols} columns")
        self._arrays[rank][b] = array
        if array.size == 0:
            array = np.zeros((1, buffer.cols), dtype)
            self._held.append(array)
        return address(array)

    def array(self, rank: int, b: int) -> np.ndarray:
        """A buffer of a rank, [rows, columns]."""
        places, buffer = self._places, self._places.buffers[b]
        rows, dtype = places.num_rows(b, self.received[rank]), places.dtypes[b]
        if b in places.home:
            memory, i = self._memories[places.home[b]]
            start = self.addresses[rank][b] - memory.address(i)
            array = memory.array(i)[start:start + rows * buffer.cols * dtype.itemsize].view(dtype)
        else:
            array = self._arrays[rank][buffer.storage]
        return array.reshape(rows, buffer.cols)

    def ranks(self) -> list[list[np.ndarray]]:
        """Every buffer of every rank."""
        return [[self.array(rank, b) for b in range(len(self._places.buffers))] for rank in range(len(self._arrays))]

    def read_ranks(self) -> list[list[np.ndarray]]:
        """Returns the arrays as a launch takes them; an array without rows becomes an unused row."""
        return [[a if a.size else np.zeros((1, a.shape[1]), a.dtype) for a in mine] for mine in self.ranks()]


def describe(array: np.ndarray) -> str:
    """Dtype, shape and layout, as messages show an array."""
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.c_contiguous else ' with gaps'}"
