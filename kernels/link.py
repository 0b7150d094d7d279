"""Link: processes that launch together, through memory that those of a machine map; the Python side of link/."""

from __future__ import annotations

import ast
import atexit
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
from hpmoe.kernels.link_errors import At, failed, failed_call
from hpmoe.kernels.link_sums import sum_in_memory, sum_of_copies
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import (
    ABI_VERSION,
    Failure,
    Hosts,
    Rank,
    Status,
    Traffic as NativeTraffic,
    find_ucx,
    load,
    ucx_fault,
)
from hpmoe.kernels.protocol import VERSION, Code
from hpmoe.ranks.hosts import Group
from hpmoe.ranks.link import ENGINES, Traffic, register_link
from hpmoe.ranks.reports import report
from hpmoe.support.errors import LaunchError
from hpmoe.support.loading import address
from hpmoe.support.locks import new_lock
from hpmoe.support.trees import PyTree

Handler = Callable[[int, FrameType | None], object]
TIMEOUT_S = 300.0  # for the last rank to come to a meeting
MESSAGE_BYTES = 1 << 20  # of a message to another host, at most
COUNTER_WORDS = 8  # from one counter to the next: a cache line


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
    """Memory that the processes of a group share; what all of them call, each does.

    Each rank has a heap that all of its host map: a file without a name, gone when they are. To those of other hosts go
    messages.

    Attributes:
        rank, size: of this process in the group.
        num_threads: this process's share of the cores.
        exchanges: of counts, so far.
        pool: memory in this rank's heap.
        shares_memory: whether all ranks do: they are on one host.
    """

    def __init__(self, group: Group, engine: str = ENGINES[0], timeout: float = TIMEOUT_S,
                 heap_bytes: int | None = None, message_bytes: int = MESSAGE_BYTES):
        self.message_bytes, self.engine = message_bytes, engine
        self.rank, self.size, self.timeout, self.exchanges = group.rank, group.size, timeout, 0
        self._names = [member.name for member in group.members]
        is_here = [socket is None for socket in group.sockets]
        self.shares_memory = all(is_here)
        cores = self._cores(group)
        shared = [theirs for theirs, is_near in zip(cores, is_here, strict=True) if is_near]
        share = sum(1 / sum(core in theirs for theirs in shared) for core in cores[self.rank])
        self.num_threads = max(1, int(share))
        self._heap_bytes = heap_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._native = self._open_heaps(group)
        load().hpmoe_link_set_crowded(self._native.handle, share < 0.99)
        self._heaps = [load().hpmoe_link_heap(self._native.handle, r) for r in range(self.size)]
        self.pool = Pool(functools.partial(_HeapBlock, self._native, self._heaps[self.rank]))
        self._counters: weakref.WeakKeyDictionary[Launched, tuple[np.ndarray, np.ndarray]] = weakref.WeakKeyDictionary()
        self._kept: list[object] = []  # what others may read or write until all have met again
        self._depth, self._has_told, self._lock = 0, False, new_lock()
        self._turn = new_lock()  # of the thread whose call it is
        self._calls, self._has_met = 0, False  # calls in which all have met, or this rank has failed

    def _cores(self, group: Group) -> list[list[int]]:
        """Those of each rank, all of which have these kernels and this engine."""
        fault = ucx_fault() if self.engine == "ucx" and any(group.sockets) else ""
        said = [(ABI_VERSION, VERSION), sorted(os.sched_getaffinity(0)), (self.engine, fault)]
        told = [_read_words(data) for data in group.all_gather("a heap", repr(said).encode())]
        for rank, (version, _, (engine, problem)) in enumerate(told):
            who = self._names[rank]
            if version != said[0]:
                raise failed(f"{who} has another version of hpmoe's kernels", rank)
            if problem:
                raise failed(f"hpmoe.world: engine=\"ucx\" does not work on {who}: {problem}", rank)
            if engine != self.engine:
                raise failed(f"hpmoe.world: {who} passes engine=\"{engine}\" and this rank engine=\"{self.engine}\"; pass "
                             "the same engine on all ranks", rank)
        return [cores for _, cores, _ in told]

    def _open_heaps(self, group: Group) -> _Native:
        """Makes this rank's heap and maps those of its host."""
        file = load().hpmoe_heap_make(self._heap_bytes)
        if file < 0:
            raise LaunchError(f"hpmoe.world: no memory for processes to share: {os.strerror(-file)}")
        files = group.share(file)
        os.close(file)
        words = [(ctypes.c_int32 * self.size)(*each) for each in (
            files, [m.pid for m in group.members], [m.pidfd for m in group.members])]
        handle = load().hpmoe_link_open(self.rank, self.size, *words, self._hosts(group))
        native = _Native(handle, [file for file in (files.pop(self.rank), *(m.pidfd for m in group.members)) if file >= 0])
        for each in files:  # which are mapped, or of other hosts
            if each >= 0:
                os.close(each)
        for rank, is_open in enumerate(group.all_gather("a map of the heaps", b"1" if handle else b"")):
            if not is_open:
                native.close()
                raise failed(f"{self._names[rank]} has no address space for the memory that processes share", rank)
        return native

    def _hosts(self, group: Group) -> Hosts | None:
        """What reaches ranks of other hosts, with the sockets, which are no longer the group's."""
        if self.shares_memory:
            return None
        sockets = [-1 if each is None else each.detach() for each in group.sockets]
        ucx = str(find_ucx()).encode() if self.engine == "ucx" else None
        return Hosts((ctypes.c_int32 * self.size)(*sockets), group.secret, self.message_bytes, ucx)

    def meet(self, what: str, payload: bytes, key: bytes = b"", timeout: float | None = None) -> list[bytes]:
        """What each rank gives. `what` says in words what that is; `key` is the same on all ranks.

        Raises:
            LaunchError: a rank died, ended, failed, is at another call or did not come in time; `status["rank"]` is the one.
        """
        self._check_process()
        with self._lock:
            library, length = load(), ctypes.c_int64()
            status, handler = self._meet(what, payload, key, timeout)
            self._check(status, what, handler)
            self._kept.clear()
            told = []
            for rank in range(self.size):
                at = library.hpmoe_link_told(self._native.handle, rank, length)
                told.append(ctypes.string_at(at, length.value))
            return told

    def _meet(self, what: str, payload: bytes, key: bytes, timeout: float | None) -> tuple[Status, Handler]:
        self._count_call()
        status, handler, words = Status(), getsignal(SIGINT), self._numbered(what)
        load().hpmoe_link_meet(self._native.handle, words, _key(words, key), payload, len(payload), timeout or self.timeout,
                               callable(handler) and runs_for_main_thread(), status)
        return status, handler

    def _check_process(self) -> None:
        """A child would speak in its parent's name."""
        if self._native.is_forked:
            raise LaunchError(f"this process was forked from {self._names[self.rank]} and is no rank: calls are made by the "
                              "process that the launcher started")

    def _count_call(self) -> None:
        if self._depth > 0 and not self._has_met:
            self._calls, self._has_met = self._calls + 1, True

    def _numbered(self, what: str) -> bytes:
        """With the number of the call: ranks whose numbers differ are at different calls, whatever these are."""
        return f"{what[:80]}#{self._calls}".encode()

    def exchange(self, what: str, counts: np.ndarray, key: bytes = b"") -> np.ndarray:
        """The int32 counts of each rank, [size, ...]."""
        told = self.meet(what, np.ascontiguousarray(counts, np.int32).tobytes(), key + str(counts.shape).encode())
        self.exchanges += 1
        return np.stack([np.frombuffer(data, np.int32).reshape(counts.shape) for data in told])

    def sum(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """The sum over ranks of each array, in float32 in the order of ranks, rounded once."""
        return sum_in_memory(self, arrays) if self.shares_memory else sum_of_copies(self, arrays)

    def close(self) -> None:
        """Leaves the group. Nothing that lies in its heaps may be used any more, by no rank of it."""
        self._native.close()

    def keep_until_met(self, *memory: object) -> None:
        """Others may read or write it until all have met again."""
        self._kept += memory

    def heap(self, rank: int) -> int:
        """Where this process has mapped the heap of a rank of its host."""
        return self._heaps[rank]

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[None]:
        """Around all of a call: an error inside is raised by the calls of all other ranks too.

        A call in which ranks have met ends when all have come to its end: it fails on all of them or on none, so that
        programs that catch the error stay at the same call. Calls of several threads at once are refused: each rank might
        begin with another one.
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
            status, handler = self._meet(f"the end of {what}", b"", b"", None)
            self._has_told = True  # an interrupt from here on is one after the call
            self._check(status, what, handler)
            self._kept.clear()

    @property
    def waits(self) -> np.ndarray:
        """float64 [size], the seconds that this rank has waited for each one to come to what all call."""
        return np.array([load().hpmoe_link_waited_ns(self._native.handle, r) for r in range(self.size)], np.float64) * 1e-9

    @property
    def traffic(self) -> Traffic:
        """What has been sent to other hosts so far."""
        found = NativeTraffic()
        load().hpmoe_link_traffic(self._native.handle, found)
        return Traffic(*(getattr(found, name) for name in Traffic._fields))

    def launch(self, executable: Launched, addresses: Sequence[int], row_capacity: Sequence[int], counts: np.ndarray,
               num_tokens: int, record: Sequence[np.ndarray | None], keep: object) -> None:
        """This rank's part of a launch. `counts`: int32, of all routes by ids; `record`: what is filled, a trace and the
        bytes moved; `keep`: the memory that others write to."""
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
        """The same where another library runs the kernel: see hpmoe_link_launch_by of core/abi.h.

        Args:
            run_rank, of: the address of its function, and of what that is called with.
            executable: what it runs.
            payload: what all ranks tell each other first.
            keep: the memory that others write to.
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
        """After a launch that failed others may still write to what it kept."""
        if not status.code:
            return self._kept.clear()
        self._kept.append(keep)
        return self._check(status, executable.name, handler, executable.image)

    def offset_of(self, place: int) -> int:
        """Where an address lies in this rank's heap; -1 outside."""
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
        """Raises what has gone wrong, on this rank or on another one."""
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
            _blamed[:] = [(error, mine, theirs)]
            if status.code in _ENDS:
                report(mine, theirs, str(error))
        raise error


class _HeapBlock:
    """Whole pages of this rank's heap."""

    __slots__ = ("_native", "_offset", "nbytes", "start")

    def __init__(self, native: _Native, heap: int, size: int):
        self._native, self.nbytes = native, size
        self._offset = load().hpmoe_link_take(native.handle, size)
        if self._offset < 0:
            raise MemoryError(f"hpmoe: the memory that processes share has no room for {size} bytes more")
        self.start = heap + self._offset

    def __del__(self) -> None:
        if getattr(self, "_offset", -1) >= 0 and self._native.handle is not None:
            load().hpmoe_link_give(self._native.handle, self._offset)


class _Native:
    """A native link, and the files that it needs: this rank's heap, and what tells of the end of each rank of its host."""

    def __init__(self, handle: int | None, files: Sequence[int]):
        self.handle, self._files, self.is_forked = handle, files, False
        _open.add(self)

    def close(self) -> None:
        if self.handle is not None:
            load().hpmoe_link_leave(self.handle, b"")
            load().hpmoe_link_close(self.handle)
        for file in self._files:
            os.close(file)
        self.handle, self._files = None, ()
        _open.discard(self)


def _read_words(data: bytes) -> PyTree:
    """What `repr` wrote of tuples and numbers."""
    return ast.literal_eval(data.decode())


def _key(*parts: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(b"\0".join(parts), digest_size=8).digest(), "little")


_ENDS = (Code.PEER_DIED, Code.PEER_LEFT, Code.PEER_LOST)  # after which every call fails
_open: set[_Native] = set()
_blamed: list[tuple[BaseException, int, int]] = []  # the last error of another rank, this rank and that one


def _leave() -> None:
    """What Python has printed of an error that ended the program is told to the other ranks."""
    error = getattr(sys, "last_value", None)
    for known, rank, blamed in _blamed:
        if error is known:
            report(rank, blamed, str(error))
    words = "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
    for native in _open:
        load().hpmoe_link_leave(native.handle, words.encode())


def _forget_in_child() -> None:
    """Whose end is not that of the rank."""
    for native in _open:
        native.is_forked = True
    _open.clear()


atexit.register(_leave)
os.register_at_fork(after_in_child=_forget_in_child)
register_link(Link)
