"""Native links of this process: their handles and heap memory, and what other ranks receive when the process ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence

from hpmoe.kernels.native import load
from hpmoe.ranks.reports import report


class NativeLink:
    """A link of the native library and the files it needs: this rank's heap, and a pidfd for each rank of its host.

    Attributes:
        handle: handle of the native link; None after `close`.
        is_forked: True if this process was forked from the rank that opened the link.
    """

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


class HeapBlock:
    """Whole pages of this rank's heap."""

    __slots__ = ("_native", "_offset", "nbytes", "start")

    def __init__(self, native: NativeLink, heap: int, size: int):
        self._native, self.nbytes = native, size
        self._offset = load().hpmoe_link_take(native.handle, size)
        if self._offset < 0:
            raise MemoryError(f"hpmoe: the memory that processes share has no room for {size} bytes more")
        self.start = heap + self._offset

    def __del__(self) -> None:
        if getattr(self, "_offset", -1) >= 0 and self._native.handle is not None:
            load().hpmoe_link_give(self._native.handle, self._offset)


_open: set[NativeLink] = set()
_blamed: list[tuple[BaseException, int, int]] = []  # the last error that blames another rank, this rank, and that rank


def note_blamed(error: BaseException, rank: int, blamed: int, *, is_final: bool) -> None:
    """Keeps the error that blames another rank, to report it to the launcher if the error ends the program.

    If `is_final`, reports it at once: all later calls fail as well.
    """
    _blamed[:] = [(error, rank, blamed)]
    if is_final:
        report(rank, blamed, str(error))


def leave_links() -> None:
    """Sends the error that ended the program, as Python printed it, to the ranks of all open links."""
    error = getattr(sys, "last_value", None)
    for known, rank, blamed in _blamed:
        if error is known:
            report(rank, blamed, str(error))
    words = "" if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
    for native in _open:
        load().hpmoe_link_leave(native.handle, words.encode())


def _forget_in_child() -> None:
    """Marks links as forked, so that the end of a child process does not count as the end of its rank."""
    for native in _open:
        native.is_forked = True
    _open.clear()


atexit.register(leave_links)
os.register_at_fork(after_in_child=_forget_in_child)
