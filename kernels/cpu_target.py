"""Runs packed images on this machine: the queues of every rank, served by as many threads as there are cores."""

import ctypes
import signal
import sys
import threading

import numpy as np

from hpmoe.dtypes import numpy_dtype
from hpmoe.errors import check_argument
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Rank, Status, load
from hpmoe.kernels.protocol import Code, Dtype, unpack_image

ELEMENT_TYPES = {code: numpy_dtype(code.name.lower()) for code in Dtype}


def launch(image, buffers, num_tokens, counters, bases, timeout, trace=None):
    """Runs an image once on all its ranks and returns when every worker has left; Ctrl-C ends it early.

    Args:
        image: uint8 [image_bytes], as pack_image makes it.
        buffers: for each rank, its arrays in the order of the image's buffers: C-contiguous, of their dtypes.
        num_tokens: for each rank, how many of its token rows are real.
        counters: int64 [ep_size, num_events], zeros before the first launch and then left alone by the caller.
        bases: int64 [ep_size, num_events], the same.
        timeout: seconds without any task ending, anywhere, after which a wait fails.
        trace: None, or int64 [ep_size, num_tasks, 3] for the steady-clock nanoseconds at which each task began to
            wait, began its body and had signalled.

    Raises:
        ArgumentError: an array has another shape, dtype or layout than the image states.
        LaunchError: the launch failed; its `status` is the native status as a dict. Counters and bases stay usable.
    """
    library = load()
    _check_image(library, image)
    header, sections = unpack_image(image)
    _check_arrays(header, sections, buffers, num_tokens, counters, bases, trace)
    ranks = _make_ranks(buffers, num_tokens, counters, bases)
    trace_pointer = None if trace is None else trace.ctypes.data
    status = Status()
    handler = signal.getsignal(signal.SIGINT)
    is_interruptible = callable(handler) and _runs_for_main_thread()
    library.hpmoe_launch(
        *(image.ctypes.data, image.nbytes, ranks, len(ranks)),
        *(0, timeout, trace_pointer, is_interruptible, ctypes.byref(status)),
    )
    if status.code == Code.INTERRUPTED:
        handler(signal.SIGINT, sys._getframe())  # raises KeyboardInterrupt, unless the user has a handler of their own
    if status.code and not _has_ended(status):
        raise make_error(status, image)


def _runs_for_main_thread():
    """Whether this is the main thread, or one that Python did not start: MindSpore calls kernels of a graph on its own.

    There nobody else minds Ctrl-C, and MindSpore's handler would end the process.
    """
    thread = threading.current_thread()
    return thread is threading.main_thread() or isinstance(thread, threading._DummyThread)


def _has_ended(status):
    """Whether all tasks were done when the interrupt came."""
    return status.code == Code.INTERRUPTED and status.rank < 0


def _check_image(library, image):
    if image.dtype != np.uint8 or image.ndim != 1 or not image.flags.c_contiguous:
        check_argument(False, "launch", "image", _describe(image), "a contiguous uint8[image_bytes]")
    fault = library.hpmoe_image_fault(image.ctypes.data, image.nbytes)
    if fault is not None:
        raise make_error(Status(code=Code.BAD_IMAGE), fault=fault.decode())


def _check_arrays(header, sections, buffers, num_tokens, counters, bases, trace):
    ep_size, num_events = int(header["ep_size"]), int(header["num_events"])
    check_argument(len(buffers) == ep_size, "launch", "len(buffers)", len(buffers), f"{ep_size}, one list a rank")
    check_argument(len(num_tokens) == ep_size, "launch", "len(num_tokens)", len(num_tokens), f"{ep_size}, one a rank")
    for name, array, shape in (
        ("counters", counters, (ep_size, num_events)),
        ("bases", bases, (ep_size, num_events)),
        ("trace", trace, (ep_size, int(header["num_tasks"]), 3)),
    ):
        if array is not None and (array.dtype != np.int64 or array.shape != shape or not array.flags.c_contiguous):
            check_argument(False, "launch", name, _describe(array), f"a contiguous int64{list(shape)}")
    most = min(sections["routes"]["num_tokens"].tolist(), default=None)
    for rank, count in enumerate(num_tokens):
        if count < 0 or (most is not None and count > most):
            check_argument(False, "launch", f"num_tokens[{rank}]", count, f"between 0 and {most}")
    table = sections["buffers"]
    dtypes = map(ELEMENT_TYPES.get, table["dtype"].tolist())
    expected = list(zip(table["cols"].tolist(), table["rows"].tolist(), dtypes, strict=True))
    for rank, arrays in enumerate(buffers):
        check_argument(len(arrays) == len(expected), "launch", f"len(buffers[{rank}])", len(arrays), len(expected))
        for i, (array, (cols, rows, dtype)) in enumerate(zip(arrays, expected, strict=True)):
            if array.dtype != dtype or array.size % cols or array.size < rows * cols or not array.flags.c_contiguous:
                wanted = f"a contiguous {dtype} array of {rows or 'some'} rows and {cols} columns"
                check_argument(False, "launch", f"buffers[{rank}][{i}]", _describe(array), wanted)


def _describe(array):
    return f"{array.dtype}{list(array.shape)}{'' if array.flags.c_contiguous else ' with gaps'}"


def _make_ranks(buffers, num_tokens, counters, bases):
    ranks = (Rank * len(buffers))()
    for rank, arrays in enumerate(buffers):
        pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
        ranks[rank].buffers = pointers  # keeps the pointers alive as long as the structure
        ranks[rank].num_tokens = num_tokens[rank]
        ranks[rank].counters, ranks[rank].bases = counters[rank].ctypes.data, bases[rank].ctypes.data
    return ranks
