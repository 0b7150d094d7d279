"""Link: calls and launches that all processes of a group make together; the Python side of link/."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import sys
import weakref
from _signal import getsignal  # pyright: ignore[reportMissingImports]  faster than that of signal
from collections.abc import Callable, Iterator, Sequence
from signal import SIGINT
from types import FrameType
from typing import Protocol

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.cpu.launch import runs_for_main_thread
from hpmoe.kernels.link_errors import At, failed_call
from hpmoe.kernels.link_native import HeapBlock, note_blamed
from hpmoe.kernels.link_opening import cores_of_ranks, open_native
from hpmoe.kernels.link_sums import sum_in_memory, sum_of_copies
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Failure, Rank, Status, Traffic as NativeTraffic, load
from hpmoe.kernels.protocol import Code
from hpmoe.ranks.hosts import Group
from hpmoe.ranks.link import ENGINES, Traffic, register_link
from hpmoe.support.errors import LaunchError
from hpmoe.support.loading import address
from hpmoe.support.locks import new_lock

Handler = Callable[[int, FrameType | None], object]
TIMEOUT_S = 300.0  # until all ranks make a call
MESSAGE_BYTES = 1 << 20  # largest message to another host
COUNTER_WORDS = 8  # from one counter to the next: a cache line
_ENDS = (Code.PEER_DIED, Code.PEER_LEFT, Code.PEER_LOST)  # after which every call fails


class Launched(Protocol):
    """An Executable as a link launches it."""

    @property
    def name(self) -> str: ...
    @property
    def image(self) -> np.ndarray: ...
    @functools.cached_property
    def image_key(self) -> int: ...
    @property
    def timeout(self) -> float: ...
    @property
    def flow(self) -> Taskflow: ...


class Link:
    """Connects the processes of a group; see hpmoe.ranks.link.Link for the methods that all ranks call together.

    Each rank has a heap, a file without a name that all ranks of its host map. The file disappears when these ranks end.
    Ranks of other hosts receive messages.

    Attributes:
        rank, size: rank of this process in the group, and the number of ranks.
        num_threads: number of cores that are this process's share.
        exchanges: number of exchanges of counts so far.
        pool: memory in this rank's heap.
        shares_memory: True if all ranks are on one host.
    """

    def __init__(self, group: Group, engine: str = ENGINES[0], timeout: float = TIMEOUT_S,
                 heap_bytes: int | None = None, message_bytes: int = MESSAGE_BYTES):
        self.rank, self.size, self.timeout, self.exchanges = group.rank, group.size, timeout, 0
        self._names = [member.name for member in group.members]
        self.shares_memory = not any(group.sockets)
        cores = cores_of_ranks(group, engine)
        shared = [theirs for theirs, socket in zip(cores, group.sockets, strict=True) if socket is None]
        share = sum(1 / sum(core in theirs for theirs in shared) for core in cores[self.rank])
        self.num_threads = max(1, int(share))
        self._heap_bytes = heap_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._native = open_native(group, engine, self._heap_bytes, message_bytes)
        load().hpmoe_link_set_crowded(self._native.handle, share < 0.99)
        self._heaps = [load().hpmoe_link_heap(self._native.handle, r) for r in range(self.size)]
        self.pool = Pool(functools.partial(HeapBlock, self._native, self._heaps[self.rank]))
        self._counters: weakref.WeakKeyDictionary[Launched, tuple[np.ndarray, np.ndarray]] = weakref.WeakKeyDictionary()
        self._kept: list[object] = []  # memory that other ranks may read or write until the next call of all ranks
        self._depth, self._has_told, self._lock = 0, False, new_lock()
        self._turn = new_lock()  # held by the thread that makes a call
        self._calls, self._has_met = 0, False  # number of calls in which all ranks met, or this rank failed

    def meet(self, what: str, payload: bytes, key: bytes = b"") -> list[bytes]:
        """Returns the payload of each rank. `what` describes the payload in words; `key` is the same on all ranks.

        Raises:
            LaunchError: a rank died, ended, failed, makes another call or did not come in time; `status` names the rank.
        """
        self._check_process()
        with self._lock:
            library, length = load(), ctypes.c_int64()
            status, handler = self._meet(what, payload, key)
            self._check(status, what, handler)
            self._kept.clear()
            told = []
            for rank in range(self.size):
                at = library.hpmoe_link_told(self._native.handle, rank, ctypes.byref(length))
                told.append(ctypes.string_at(at, length.value))
            return told

    def _meet(self, what: str, payload: bytes, key: bytes) -> tuple[Status, Handler]:
        self._count_call()
        status, handler, words = Status(), getsignal(SIGINT), self._numbered(what)
        load().hpmoe_link_meet(self._native.handle, words, _key(words, key), payload, len(payload), self.timeout,
                               callable(handler) and runs_for_main_thread(), status)
        return status, handler

    def _check_process(self) -> None:
        """Raises LaunchError in a child forked from a rank."""
        if self._native.is_forked:
            raise LaunchError(f"this process was forked from {self._names[self.rank]} and is no rank: calls are made by the "
                              "process that the launcher started")

    def _count_call(self) -> None:
        if self._depth > 0 and not self._has_met:
            self._calls, self._has_met = self._calls + 1, True

    def _numbered(self, what: str) -> bytes:
        """Returns the name of a call with its number, as ranks compare them: calls with different numbers never match."""
        return f"{what[:80]}#{self._calls}".encode()

    def exchange(self, what: str, counts: np.ndarray, key: bytes = b"") -> np.ndarray:
        """Returns the int32 counts of each rank, [size, ...]."""
        told = self.meet(what, np.ascontiguousarray(counts, np.int32).tobytes(), key + str(counts.shape).encode())
        self.exchanges += 1
        return np.stack([np.frombuffer(data, np.int32).reshape(counts.shape) for data in told])

    def sum(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the sum over ranks of each array: in float32, in the order of ranks, rounded once to its dtype."""
        return sum_in_memory(self, arrays) if self.shares_memory else sum_of_copies(self, arrays)

    def close(self) -> None:
        """Leaves the group and unmaps the heaps. No rank may use memory of this rank's heap afterwards."""
        self._native.close()

    def keep_until_met(self, *memory: object) -> None:
        """Keeps memory alive until the next call of all ranks has ended: other ranks may read or write it."""
        self._kept += memory

    def heap(self, rank: int) -> int:
        """Returns the address at which this process maps the heap of a rank of its host."""
        return self._heaps[rank]

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Wraps a whole call: an error inside is raised by the same call of all other ranks too.

        A call in which ranks met ends when all ranks have reached its end. Such a call fails on all ranks or on no rank, so
        programs that catch the error continue with the same call. Calls from several threads at once raise LaunchError,
        because each rank could order them differently.
        """
        self._check_process()
        is_alone = self._turn.acquire(blocking=False) or not self._turn.acquire()
        if self._depth == 0:
            self._has_told = self._has_met = False
        self._depth += 1
        try:
            if not is_alone:
                raise LaunchError(f"{what} began on one thread while another one's call was under way: ranks that are "
                                  "processes make calls one after the other, in the same order on all")
            yield
            if self._depth == 1 and self._has_met:
                self._end(what)
        except BaseException as error:
            if self._depth == 1 and not self._has_told:
                self._count_call()
                load().hpmoe_link_fail(self._native.handle, f"{what}: {type(error).__name__}: {error}".encode())
            raise
        finally:
            self._depth -= 1
            self._turn.release()

    def _end(self, what: str) -> None:
        with self._lock:
            status, handler = self._meet(f"the end of {what}", b"", b"")
            self._has_told = True  # a later interrupt does not belong to this call
            self._check(status, what, handler)
            self._kept.clear()

    @property
    def waits(self) -> np.ndarray:
        """Seconds that this rank has waited for each rank in calls of all ranks, float64 [size]."""
        return np.array([load().hpmoe_link_waited_ns(self._native.handle, r) for r in range(self.size)], np.float64) * 1e-9

    @property
    def traffic(self) -> Traffic:
        """Messages that this rank has sent to other hosts so far."""
        found = NativeTraffic()
        load().hpmoe_link_traffic(self._native.handle, found)
        return Traffic(*(getattr(found, name) for name in Traffic._fields))

    def launch(self, executable: Launched, addresses: Sequence[int], row_capacity: Sequence[int], counts: np.ndarray,
               num_tokens: int, record: Sequence[np.ndarray | None], keep: object) -> None:
        """Launches the part of a kernel that belongs to this rank.

        Args:
            executable: the kernel, the same on all ranks.
            addresses, row_capacity: addresses and capacities of this rank's buffers, in the order of the kernel's buffers.
            counts: int32 counts of all routes by ids.
            num_tokens: number of this rank's tokens.
            record: arrays to fill, or None: a trace, and the bytes moved.
            keep: the memory that other ranks write to.

        Raises:
            LaunchError: the launch failed on this rank or on another one, which the error names.
        """
        self._check_process()
        with self._lock:
            counters, bases = self._counters_of(executable)
            buffers, row_capacities = (np.array(x, np.int64) for x in (addresses, row_capacity))
            mine = Rank(address(buffers), address(row_capacities), num_tokens, address(counters), address(bases))
            self._count_call()
            status, handler, what = Status(), getsignal(SIGINT), self._numbered(executable.name)
            load().hpmoe_link_launch(
                self._native.handle, what, executable.image_key ^ _key(what), address(executable.image),
                executable.image.nbytes, mine, address(counts), self.num_threads, executable.timeout,
                *(None if array is None else address(array) for array in record),
                callable(handler) and runs_for_main_thread(), status)
            if status.code:
                keep = keep, self._counters.pop(executable)
            self._end_launch(status, executable, handler, keep)

    def launch_by(self, run_rank: int, of: int, executable: Launched, payload: np.ndarray, keep: object) -> None:
        """Launches a kernel that another library runs; see hpmoe_link_launch_by in core/abi.h.

        Args:
            run_rank, of: addresses of the library's function and of the function's argument.
            executable: the kernel.
            payload: bytes that each rank sends to all ranks before the launch.
            keep: the memory that other ranks write to.

        Raises:
            LaunchError: as `launch`.
        """
        self._check_process()
        with self._lock:
            self._count_call()
            status, handler, what = Status(), getsignal(SIGINT), self._numbered(executable.name)
            load().hpmoe_link_launch_by(
                self._native.handle, run_rank, of, what, executable.image_key ^ _key(what), payload.tobytes(),
                payload.nbytes, executable.timeout, callable(handler) and runs_for_main_thread(), status)
            self._end_launch(status, executable, handler, keep)

    def _end_launch(self, status: Status, executable: Launched, handler: Handler, keep: object) -> None:
        """Raises the error of a failed launch and keeps its memory, which other ranks may still write."""
        if not status.code:
            return self._kept.clear()
        self._kept.append(keep)
        return self._check(status, executable.name, handler, executable.image)

    def offset_of(self, place: int) -> int:
        """Returns the offset of an address in this rank's heap, -1 outside the heap."""
        offset = place - self._heaps[self.rank]
        return offset if 0 <= offset < self._heap_bytes else -1

    def _counters_of(self, executable: Launched) -> tuple[np.ndarray, np.ndarray]:
        if executable not in self._counters:
            num_events = len(executable.flow.deps.events)
            counters = self.pool.zeros((max(num_events, 1) * COUNTER_WORDS,), np.int64)
            self._counters[executable] = counters, np.zeros(max(num_events, 1), np.int64)
        return self._counters[executable]

    def _check(self, status: Status, what: str, handler: Handler,
               image: np.ndarray | None = None) -> None:
        """Raises the error of a call that failed, on this rank or on another one."""
        if not status.code:
            return
        self._has_told |= status.rank >= 0
        if status.code == Code.OUT_OF_MEMORY and status.rank < 0:
            raise MemoryError(f"{what}: the memory that processes share has no room for it")
        if status.code == Code.INTERRUPTED:
            handler(SIGINT, sys._getframe())  # raises KeyboardInterrupt, unless the user has a handler of their own
            if status.rank < 0:
                return
        failure = Failure()
        load().hpmoe_link_failure(self._native.handle, failure)
        error = failed_call(status, failure, At(what, self._calls, self.rank, self._names, image))
        blamed = (error.status or {}).get("rank") if isinstance(error, LaunchError) else None
        if isinstance(blamed, int) and blamed != self.rank:
            mine, theirs = (int(self._names[rank].rpartition(" ")[2]) for rank in (self.rank, blamed))
            note_blamed(error, mine, theirs, is_final=status.code in _ENDS)
        raise error


def _key(*parts: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


register_link(Link)
