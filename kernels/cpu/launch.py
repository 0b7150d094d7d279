"""Runs packed images on this machine: the queues of every rank, served by as many threads as there are cores."""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import threading
from _signal import getsignal  # pyright: ignore[reportMissingImports]  faster than that of signal
from array import array as c_array
from collections.abc import Sequence
from signal import SIGINT

import numpy as np

from hpmoe.kernels.buffers import describe
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.image import Sections, unpack_image
from hpmoe.kernels.native import Rank, Status, load
from hpmoe.kernels.protocol import PRIMITIVES, Code, Domain, Dtype, Rows
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError, check_argument
from hpmoe.support.loading import address

ANY_ROWS = 2**63 - 1
ELEMENT_TYPES = {code: numpy_dtype(code.name.lower()) for code in Dtype}


def launch(image: np.ndarray, buffers: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int], counters: np.ndarray,
           bases: np.ndarray, timeout: float, trace: np.ndarray | None = None) -> None:
    """Runs an image once on all its ranks and returns when every worker has left; Ctrl-C ends it early.

    Args:
        image: uint8 [image_bytes], as pack_image makes it.
        buffers: for each rank, its arrays in the order of the image's buffers: C-contiguous, of their dtypes.
        num_tokens: for each rank, the number of its real token rows.
        counters: int64 [ep_size, num_events], zeros before the first launch and then left alone by the caller.
        bases: int64 [ep_size, num_events], the same.
        timeout: seconds without any task ending, anywhere, after which a wait fails.
        trace: None, or int64 [ep_size, num_tasks, 3] for the steady-clock nanoseconds at which each task began to
            wait, began its body and had signalled.

    Raises:
        ArgumentError: an array has another shape, dtype or layout than the image states.
        LaunchError: the launch failed; its `status` is the native status as a dict. Counters and bases stay usable.
    """
    _check_image(image)
    demands = Demands.read(image)
    if demands is None:
        raise _broken(image)
    demands.check_arrays(buffers, num_tokens, counters, bases, trace)
    addresses = [[address(x) for x in arrays] for arrays in buffers]
    Launches(image, counters, bases).launch(addresses, demands.row_capacities(buffers), num_tokens, timeout, trace)


class Launches:
    """Launches of an image with checked arrays, whose fixed addresses are looked up once."""

    def __init__(self, image: np.ndarray, counters: np.ndarray, bases: np.ndarray):
        self.image, self._kept = image, (counters, bases)
        self._num_routes = int(unpack_image(image)[0]["num_routes"])
        self._image_address = address(image)
        step = counters.strides[0]
        self._ranks = (Rank * len(counters))(*(Rank(counters=address(counters) + r * step, bases=address(bases) + r * step)
                                               for r in range(len(counters))))

    def launch(self, addresses: Sequence[Sequence[int]], row_capacity: Sequence[Sequence[int]], num_tokens: Sequence[int],
               timeout: float, trace: np.ndarray | None = None, moved: np.ndarray | None = None) -> None:
        """Launches all ranks.

        Args:
            addresses: for each rank, where each of its buffers begins.
            row_capacity: for each rank and each route, the received rows that the buffers can hold.
            num_tokens, timeout, trace: as of the function `launch`.
            moved: int64 [ep_size, ep_size], to which the bytes are added that each rank copies to arrays of each other one.
        """
        tables = [c_array("q", [*rows, *mine]) for rows, mine in zip(row_capacity, addresses, strict=True)]
        ranks = type(self._ranks).from_buffer_copy(self._ranks)  # a signal's handler may launch amid this
        for rank, table, count in zip(ranks, tables, num_tokens, strict=True):
            rank.row_capacity, _ = table.buffer_info()
            rank.buffers, rank.num_tokens = rank.row_capacity + 8 * self._num_routes, count
        status = Status()
        handler = getsignal(SIGINT)
        is_interruptible = callable(handler) and runs_for_main_thread()
        load().hpmoe_launch(
            self._image_address, self.image.nbytes, ranks, len(tables), 0, timeout,
            None if trace is None else address(trace), None if moved is None else address(moved),
            is_interruptible, ctypes.byref(status))
        if status.code == Code.INTERRUPTED:
            handler(SIGINT, sys._getframe())  # raises KeyboardInterrupt, unless the user has a handler of their own
        if status.code and not _has_ended(status):
            raise make_error(status, self.image)


def runs_for_main_thread() -> bool:
    """Returns True on the main thread, or one that Python did not start: MindSpore calls kernels of a graph on its own.

    No other code there handles Ctrl-C, and MindSpore's handler would end the process.
    """
    if threading.get_ident() == threading.main_thread().ident:
        return True
    thread = threading.current_thread()
    return thread is threading.main_thread() or isinstance(thread, threading._DummyThread)


def _has_ended(status: Status) -> bool:
    """Returns True if all tasks were done when the interrupt came."""
    return status.code == Code.INTERRUPTED and status.rank < 0


def _check_image(image: np.ndarray) -> None:
    if image.dtype != np.uint8 or image.ndim != 1 or not image.flags.c_contiguous:
        check_argument(False, "launch", "image", describe(image), "a contiguous uint8[image_bytes]")


def _broken(image: np.ndarray) -> LaunchError:
    fault = load().hpmoe_image_fault(image.ctypes.data, image.nbytes)
    return make_error(Status(code=Code.BAD_IMAGE), fault=fault.decode())


@dataclasses.dataclass(frozen=True)
class Demands:
    """Requirements of an image for the arrays of a launch.

    Attributes:
        ep_size, num_events, num_tasks: sizes of the image.
        max_tokens: the most tokens of a rank, or None where any number will do.
        buffers: columns, rows (0 for what is received) and dtype of each.
        received: for each route, those of the buffers without rows that hold what a rank receives through it.
    """

    ep_size: int
    num_events: int
    num_tasks: int
    max_tokens: int | None
    buffers: list[tuple[int, int, np.dtype | None]]
    received: list[list[int]]

    @staticmethod
    def read(image: np.ndarray) -> Demands | None:
        """Returns the demands of a sound image, or None for a broken one."""
        if load().hpmoe_image_fault(image.ctypes.data, image.nbytes) is not None:
            return None
        header, sections = unpack_image(image)
        table = sections["buffers"]
        dtypes = map(ELEMENT_TYPES.get, table["dtype"].tolist())
        return Demands(
            int(header["ep_size"]), int(header["num_events"]), int(header["num_tasks"]),
            min(sections["routes"]["num_tokens"].tolist(), default=None),
            list(zip(table["cols"].tolist(), table["rows"].tolist(), dtypes, strict=True)),
            _received_buffers(sections),
        )

    def row_capacities(self, buffers: Sequence[Sequence[np.ndarray]]) -> list[list[int]]:
        """Returns, for each rank and each route, the received rows that the arrays of a launch can hold."""
        return [[min((arrays[b].size // self.buffers[b][0] for b in mine), default=ANY_ROWS) for mine in self.received]
                for arrays in buffers]

    def counters_fault(self, counters: np.ndarray, bases: np.ndarray,
                       trace: np.ndarray | None = None) -> tuple[str, np.ndarray, tuple[int, ...]] | None:
        """Returns the first array of launches that is not of the image's sizes, as (name, array, shape wanted); or None."""
        for name, array, shape in (
            ("counters", counters, (self.ep_size, self.num_events)),
            ("bases", bases, (self.ep_size, self.num_events)),
            ("trace", trace, (self.ep_size, self.num_tasks, 3)),
        ):
            if array is not None and (array.dtype != np.int64 or array.shape != shape or not array.flags.c_contiguous):
                return name, array, shape
        return None

    def check_num_tokens(self, num_tokens: Sequence[int]) -> None:
        check_argument(len(num_tokens) == self.ep_size, "launch", "len(num_tokens)", len(num_tokens),
                       f"{self.ep_size}, one a rank")
        for rank, count in enumerate(num_tokens):
            if count < 0 or (self.max_tokens is not None and count > self.max_tokens):
                check_argument(False, "launch", f"num_tokens[{rank}]", count, f"between 0 and {self.max_tokens}")

    def check_arrays(self, buffers: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int], counters: np.ndarray,
                     bases: np.ndarray, trace: np.ndarray | None) -> None:
        check_argument(len(buffers) == self.ep_size, "launch", "len(buffers)", len(buffers),
                       f"{self.ep_size}, one list a rank")
        self.check_num_tokens(num_tokens)
        if fault := self.counters_fault(counters, bases, trace):
            name, array, shape = fault
            check_argument(False, "launch", name, describe(array), f"a contiguous int64{list(shape)}")
        for rank, arrays in enumerate(buffers):
            check_argument(len(arrays) == len(self.buffers), "launch", f"len(buffers[{rank}])", len(arrays),
                           str(len(self.buffers)))
            for i, (array, (cols, rows, dtype)) in enumerate(zip(arrays, self.buffers, strict=True)):
                if array.dtype != dtype or array.size % cols or array.size < rows * cols or not array.flags.c_contiguous:
                    wanted = f"a contiguous {dtype} array of {rows or 'some'} rows and {cols} columns"
                    check_argument(False, "launch", f"buffers[{rank}][{i}]", describe(array), wanted)


def _received_buffers(sections: Sections) -> list[list[int]]:
    """Returns, for each route, the buffers that have a row for each row that a rank receives through it."""
    found: list[set[int]] = [set() for _ in sections["routes"]]
    stated, experts_of = sections["buffers"]["rows"], sections["routes"]["of"]
    for op in sections["ops"]:
        received = {Rows["PEER"], Rows["EXPERT"], Rows["FAN"]}
        primitive = PRIMITIVES.get(int(op["opcode"]))
        if op["domain"] == Domain["SLOTS"] or primitive and primitive.is_blocking and primitive.is_back:
            received.add(Rows["OWN"])
        for operand in op["operands"][:op["num_operands"]]:
            if op["route"] >= 0 and operand["rows"] in received and operand["buffer"] >= 0 and not stated[operand["buffer"]]:
                route = experts_of[op["route"]] if operand["rows"] == Rows["FAN"] else op["route"]
                found[route].add(int(operand["buffer"]))
    return [sorted(buffers) for buffers in found]
