"""Messages between processes over sockets: words, bytes, and over those of one host open files with them."""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence

from hpmoe.support.cached_files import Fields

_HEADER = struct.Struct("<IQI")  # bytes of the words, of the data, and how many files
_CREDENTIALS = struct.Struct("3i")  # of a peer: process, user, group
MOST_FILES = 253  # that Linux takes with one message
LOOK_S = 3600.0  # of a wait without end
MOST_WORDS = 1 << 20  # bytes of the words of a message


class GoneError(OSError):
    """The other end has closed, or was not there in time."""


def user_of(connection: socket.socket) -> int:
    """Returns the user whose process is at the other end."""
    return _credentials(connection)[1]


def process_of(connection: socket.socket) -> int:
    """Returns the number of the process at the other end; 0 if this process's namespace has none for it."""
    return _credentials(connection)[0]


def _credentials(connection: socket.socket) -> tuple[int, ...]:
    return _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))


def send(connection: socket.socket, words: Fields, data: bytes = b"", files: Sequence[int] = ()) -> None:
    """Sends a message; `files` are descriptors, of which the other end gets its own.

    Raises:
        GoneError: the other end has closed.
    """
    text = json.dumps(words).encode()
    head = _HEADER.pack(len(text), len(data), len(files))
    if files:
        try:
            socket.send_fds(connection, [head], files)
        except OSError as error:
            raise _gone(error) from None
        head = b""
    send_bytes(connection, head + text + data)


def send_bytes(connection: socket.socket, data: bytes) -> None:
    """Raises GoneError if the other end has closed."""
    try:
        connection.sendall(data)
    except OSError as error:
        raise _gone(error) from None


def _gone(error: OSError) -> GoneError:
    return GoneError("the other end has closed") if isinstance(error, ConnectionError) else GoneError(*error.args)


def receive(connection: socket.socket, deadline: float) -> tuple[Fields, bytes, list[int]]:
    """Returns a received message: its words, data, and files, which are closed on exec.

    Raises:
        GoneError: the other end has closed or sent no message of hpmoe, or no whole message arrived before `deadline`, of
            time.monotonic().
    """
    head, files = b"", array.array("i")
    while len(head) < _HEADER.size:
        _wait_for(connection, deadline)
        try:
            got, ancillary, _, _ = connection.recvmsg(
                _HEADER.size - len(head), socket.CMSG_SPACE(MOST_FILES * files.itemsize), socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise GoneError("the other end has closed") from error
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(content[:len(content) - len(content) % files.itemsize])
        if not got:
            _close(files)
            raise GoneError("the other end has closed")
        head += got
    num_words, num_data, num_files = _HEADER.unpack(head)
    try:
        words = _words_of(receive_bytes(connection, num_words, deadline)) if num_words <= MOST_WORDS else None
        if words is None:
            raise GoneError("it sent no message of hpmoe")
        body = receive_bytes(connection, num_data, deadline)
    except OSError:
        _close(files)
        raise
    if len(files) != num_files:
        _close(files)
        raise GoneError(f"{num_files} open files were sent and {len(files)} came: the limit of open files is reached")
    return words, body, list(files)


def _words_of(text: bytes) -> Fields | None:
    """Returns the words of a message, or None if `text` is not a JSON object."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return words if isinstance(words, dict) else None


def receive_bytes(connection: socket.socket, count: int, deadline: float) -> bytes:
    """Returns `count` received bytes.

    Raises:
        GoneError: the other end has closed, or they did not come before `deadline`, of time.monotonic().
    """
    body = bytearray()
    while len(body) < count:
        _wait_for(connection, deadline)
        try:
            got = connection.recv(min(count - len(body), 1 << 20))
        except ConnectionError as error:
            raise GoneError("the other end has closed") from error
        if not got:
            raise GoneError("the other end has closed")
        body += got
    return bytes(body)


def _wait_for(connection: socket.socket, deadline: float) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(min(max(0.0, deadline - time.monotonic()), LOOK_S) * 1e3):
        if time.monotonic() >= deadline:
            raise GoneError("no answer in time")


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
