"""Copies what several processes write to this process's stdout and stderr, so that no line holds text of two of them."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time

QUIET_S = 0.2  # then the beginning of a line is copied too: it may be a prompt
DRAIN_S = 2.0  # after the end, for what is still in pipes that a child of a rank holds open
MOST_BYTES = 1 << 20  # of a line; the rest counts as another line


class WholeLines:
    """Pipes of processes, copied line by line on a thread."""

    def __init__(self) -> None:
        self._selector, self._lock, self._is_over = selectors.DefaultSelector(), threading.Lock(), threading.Event()
        self._held: dict[int, bytes] = {}  # by pipe, the beginning of a line
        self._began: dict[tuple[int, int], int] = {}  # by file, the pipe whose line has no end yet
        self._thread: threading.Thread | None = None
        self._closed_at = 0.0

    def pipe(self, to: int) -> int:
        """Returns the write end of a pipe for a child process, whose output is copied to the descriptor `to` by whole lines.

        The caller closes the write end once the child has started, so that the pipe ends with the child.
        """
        source, end = os.pipe()
        self._held[source] = b""
        self._selector.register(source, selectors.EVENT_READ, to)
        if self._thread is None:
            self._thread = threading.Thread(target=self._copy, daemon=True)
            self._thread.start()
        return end

    def say(self, text: str) -> None:
        """Writes a line of this process to stderr."""
        self._write(-1, 2, f"{text}\n".encode())

    def close(self) -> None:
        """Copies the rest of all pipes, and ends the thread."""
        self._closed_at = time.monotonic()
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _copy(self) -> None:
        heard = time.monotonic()
        while not self._is_over.is_set() or (self._held and time.monotonic() - max(heard, self._closed_at) < DRAIN_S):
            ready = self._selector.select(QUIET_S / 2)
            for key, _ in ready:
                heard = time.monotonic()
                self._read(key.fd, key.data)
            if not ready and time.monotonic() - heard > QUIET_S:
                self._pass_on()
        self._pass_on()

    def _read(self, source: int, to: int) -> None:
        data = os.read(source, 1 << 16)
        lines, end, rest = (self._held[source] + data).rpartition(b"\n")
        if not data or len(rest) > MOST_BYTES:
            lines, end, rest = lines + end + rest, b"", b""
        self._held[source] = rest
        try:
            self._write(source, to, lines + end)
        except OSError:  # no reader: the process must see the error
            data = b""
        if not data:
            self._selector.unregister(source)
            del self._held[source]
            os.close(source)

    def _pass_on(self) -> None:
        """Copies the beginnings of lines."""
        for key in [*self._selector.get_map().values()]:
            data, self._held[key.fd] = self._held[key.fd], b""
            with contextlib.suppress(OSError):
                self._write(key.fd, key.data, data)

    def _write(self, source: int, to: int, data: bytes) -> None:
        if not data:
            return
        with self._lock:
            at = os.fstat(to)
            file = at.st_dev, at.st_ino
            if self._began.get(file, source) != source:
                data = b"\n" + data
            self._began.pop(file, None)
            if not data.endswith(b"\n"):
                self._began[file] = source
            while data:
                data = data[os.write(to, data):]
