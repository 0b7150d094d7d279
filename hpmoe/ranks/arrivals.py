"""Accepts the connections of listeners side by side: a stranger that says nothing, or nonsense, delays no rank."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from hpmoe.ranks.points import Point
from hpmoe.support.errors import LaunchError

HELLO_S = 10.0  # until a connection has proven what it is
MOST_UNPROVEN = 256  # connections at once; one more ends the oldest, whose rank connects again
SETTLE_S = 0.2  # until a connection that has just proven what it is has arrived
AGAIN_S = 0.02  # until the next attempt of what the system refused

Known = TypeVar("Known")


class Arrivals(Generic[Known]):
    """Accepts connections on threads, and `next` and `rest` return those that have introduced themselves.

    Args:
        listeners: listening sockets, each with its Point (an address). Arrivals owns the sockets.
        introduce: called on a thread for each connection, with its point and a deadline of time.monotonic(); returns what
            is known of the other end. Raises OSError or LaunchError to refuse the connection.
    """

    def __init__(self, listeners: Mapping[socket.socket, Point],
                 introduce: Callable[[socket.socket, Point, float], Known]):
        self._listeners, self._introduce, self._is_closed = listeners, introduce, False
        self._arrived: queue.SimpleQueue[tuple[socket.socket, Known]] = queue.SimpleQueue()
        self._unproven: dict[socket.socket, None] = {}
        self._lock = threading.Lock()  # held while a connection arrives: one that has arrived is not ended as unproven
        self._acceptors = [threading.Thread(target=self._accept, args=each, daemon=True) for each in listeners.items()]
        for thread in self._acceptors:
            thread.start()

    def next(self, timeout: float) -> tuple[socket.socket, Known] | None:
        """Returns the next connection and what is known of it, or None if none is there within `timeout` seconds."""
        try:
            return self._arrived.get(timeout=timeout)
        except queue.Empty:
            return None

    def rest(self) -> Iterator[tuple[socket.socket, Known]]:
        """Yields the connections that have arrived, and those that do so within SETTLE_S."""
        until = time.monotonic() + SETTLE_S
        while True:
            is_last = not self._unproven or time.monotonic() > until
            while (arrived := self.next(0)) is not None:
                yield arrived
            if is_last:
                return
            time.sleep(AGAIN_S)

    def close(self) -> None:
        """Closes the listeners and all connections that `next` has not returned."""
        self._is_closed = True
        for listener in self._listeners:
            _end(listener)
        for thread in self._acceptors:
            thread.join()
        with self._lock:
            for connection in [*self._unproven]:
                _end(connection)
        self._close_arrived()

    def _accept(self, listener: socket.socket, point: Point) -> None:
        with listener:
            while not self._is_closed:
                if len(self._unproven) >= MOST_UNPROVEN:
                    self._end_oldest()
                try:
                    connection, _ = listener.accept()
                except OSError:  # too many files are open, or close() was called
                    if not self._is_closed:
                        self._end_oldest()
                        time.sleep(AGAIN_S)
                    continue
                self._unproven[connection] = None
                threading.Thread(target=self._prove, args=(connection, point), daemon=True).start()

    def _prove(self, connection: socket.socket, point: Point) -> None:
        try:
            known = self._introduce(connection, point, time.monotonic() + HELLO_S)
        except (OSError, LaunchError):
            connection.close()
            self._unproven.pop(connection, None)
        else:
            with self._lock:
                self._arrived.put((connection, known))
                self._unproven.pop(connection, None)
        if self._is_closed:
            self._close_arrived()

    def _close_arrived(self) -> None:
        while (left := self.next(0)) is not None:
            left[0].close()

    def _end_oldest(self) -> None:
        with self._lock, contextlib.suppress(StopIteration, RuntimeError):  # another thread has just ended one
            connection = next(iter(self._unproven))
            self._unproven.pop(connection, None)
            _end(connection)


def _end(sock: socket.socket) -> None:
    """Ends what a thread waits for on a socket; the thread closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
