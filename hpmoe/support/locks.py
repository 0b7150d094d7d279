"""Locks that a forked process finds free: the threads that held them are not in it."""

import os
import threading
import types
import weakref
from typing import Any, Protocol


class Lock(Protocol):
    """Protocol of Python's locks, whose classes have no names to annotate with."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None, /) -> None: ...


_LOCKS: weakref.WeakSet[Any] = weakref.WeakSet()  # of locks, of whose reset after a fork Python's annotations say nothing


def new_lock() -> Lock:
    """Returns a lock that its thread may take again, as a signal handler does that makes a call during another."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def new_plain_lock() -> Lock:
    """Returns a lock that its own thread cannot take twice; take it without waiting."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_after_fork() -> None:
    for lock in list(_LOCKS):
        is_owned = getattr(lock, "_is_owned", None)
        if is_owned is None or not is_owned():  # what this very thread holds it will release
            lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_after_fork)
