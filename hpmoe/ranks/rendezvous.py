"""Processes of a run find each other: rank 0 listens at a point of the run, and all others connect to it."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import Point
from hpmoe.support.errors import LaunchError, is_int
from hpmoe.support.kept_files import Fields
from hpmoe.support.versions import __version__

AGAIN_S = 0.02  # between two attempts to reach rank 0
HELLO_S = 10.0  # for what a process says first
WORLD = "hpmoe.world()"


class Meeting:
    """Processes that have met, each connected to rank 0. All ranks make the same calls in the same order.

    Attributes:
        rank, names: of this process, and of all.
        connections: rank 0 holds one to each other rank, in order; the others hold one to rank 0.
    """

    def __init__(self, rank: int, names: Sequence[str], connections: Sequence[socket.socket], timeout: float):
        self.rank, self.names, self.connections, self._timeout = rank, names, connections, timeout

    def close(self) -> None:
        """Closes the connections."""
        for connection in self.connections:
            connection.close()

    def all_gather(self, what: str, data: bytes) -> list[bytes]:
        """Returns what each rank gives, in the order of ranks. `what` says in words what that is, and is equal on all ranks.

        Raises:
            LaunchError: a rank ended, did not give anything in time, or gave something else.
        """
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            return self._collect(what, data, deadline)
        (hub,) = self.connections
        try:
            send(hub, {"what": what}, data)
            words, together, _ = receive(hub, deadline)
        except GoneError as error:
            raise failed(f"{self.names[0]} is gone: {error}", 0) from None
        check_answer(words)
        ends = [0, *words.get("ends", [])]
        if len(ends) != len(self.names) + 1 or ends[-1] != len(together):
            raise failed(f"{self.names[0]} does not answer what was asked", 0)
        return [together[a:b] for a, b in zip(ends, ends[1:], strict=False)]

    def _collect(self, what: str, data: bytes, deadline: float) -> list[bytes]:
        parts = [data]
        for rank, connection in enumerate(self.connections, 1):
            try:
                words, part, _ = receive(connection, deadline)
            except GoneError as error:
                tell_fault(self.connections, f"{self.names[rank]} is gone: {error}", rank)
            if words.get("what") != what:
                given = words.get("what")
                tell_fault(self.connections, f"{self.names[rank]} gives {given} where {self.names[0]} gives {what}", rank)
            parts.append(part)
        ends = [sum(map(len, parts[:i + 1])) for i in range(len(parts))]
        for rank, connection in enumerate(self.connections, 1):
            try:
                send(connection, {"ends": ends}, b"".join(parts))
            except GoneError as error:
                tell_fault(self.connections, f"{self.names[rank]} is gone: {error}", rank)
        return parts


def failed(text: str, rank: int) -> LaunchError:
    """The error of a rank that is to blame."""
    error = LaunchError(text)
    error.status = {"rank": rank}
    return error


def tell_fault(connections: Sequence[socket.socket], text: str, rank: int) -> None:
    """Tells all others of a fault of one rank, and raises it."""
    for connection in connections:
        with contextlib.suppress(GoneError):
            send(connection, {"fault": text, "rank": rank})
    raise failed(text, rank)


def check_answer(words: Fields) -> None:
    """Raises what rank 0 tells of a fault."""
    if "fault" in words:
        rank = words.get("rank")
        raise failed(str(words["fault"]), rank if is_int(rank, 0) else 0)


def meet(point: Point, rank: int, names: Sequence[str], timeout: float) -> Meeting:
    """Finds the other processes of a run; all of them call this.

    Args:
        point: where rank 0 listens.
        rank, names: of this process, and of all, in the order of their ranks.
        timeout: seconds for all to come.

    Raises:
        LaunchError: a rank did not come in time, ended before that, was started as another one of as many, has another
            version of hpmoe, or is of another user.
    """
    hello = {"rank": rank, "names": list(names), "version": __version__}
    deadline = time.monotonic() + timeout
    if rank == 0:
        return Hub(point, hello, names, deadline).meeting(timeout)
    hub = _reach(point, names[0], deadline, timeout)
    try:
        send(hub, hello)
        check_answer(receive(hub, deadline + HELLO_S)[0])  # rank 0 says who is missing
    except OSError as error:
        hub.close()
        raise failed(f"{names[0]} is gone from {WORLD}: {error}", 0) from None
    except LaunchError:
        hub.close()
        raise
    return Meeting(rank, names, [hub], timeout)


def _reach(point: Point, name: str, deadline: float, timeout: float) -> socket.socket:
    """A connection to rank 0, once that listens."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = point.connect(left)
        except OSError:
            time.sleep(AGAIN_S)
            continue
        if stranger := point.stranger(connection, listens=False):
            connection.close()
            raise failed(f"{stranger} listens in place of {name}, and is refused", 0)
        return connection
    raise failed(f"{name} did not come to {WORLD} within {timeout:g} s", 0)


class Hub:
    """Rank 0 until all have come."""

    def __init__(self, point: Point, hello: Fields, names: Sequence[str], deadline: float):
        self.point, self.hello, self.names, self.deadline = point, hello, names, deadline
        self.found: dict[int, socket.socket] = {}  # by rank
        self.listener = listen(point, deadline, names[0])

    def meeting(self, timeout: float) -> Meeting:
        while len(self.found) < len(self.names) - 1:
            self._wait(timeout)
        self.listener.close()
        connections = [self.found[rank] for rank in sorted(self.found)]
        for rank, connection in enumerate(connections, 1):
            try:
                send(connection, {})
            except GoneError:
                self._fail(f"{self.names[rank]} died in {WORLD}", rank)
        return Meeting(0, self.names, connections, timeout)

    def _wait(self, timeout: float) -> None:
        """Until somebody comes, or ends."""
        poll, left = select.poll(), self.deadline - time.monotonic()
        poll.register(self.listener, select.POLLIN)
        ends = {connection.fileno(): rank for rank, connection in self.found.items()}
        for file in ends:
            poll.register(file, select.POLLIN)
        ready = [file for file, _ in poll.poll(max(0.0, left) * 1e3)]
        for file in ready:
            if file in ends:
                self._fail(f"{self.names[ends[file]]} died in {WORLD}", ends[file])
        if ready:
            self._let_in(self.listener.accept()[0])
        elif left <= 0:
            missing = [r for r in range(1, len(self.names)) if r not in self.found]
            self._fail(f"{' and '.join(self.names[r] for r in missing)} did not come to {WORLD} within {timeout:g} s",
                       missing[0])

    def _let_in(self, connection: socket.socket) -> None:
        if self.point.stranger(connection, listens=True):
            return connection.close()
        try:
            hello, _, _ = receive(connection, time.monotonic() + HELLO_S)
        except OSError:  # who says nothing, or nonsense, is no rank
            return connection.close()
        if not _is_hello(hello) and not _is_end(hello, len(self.names)):
            return connection.close()
        if "ended" in hello:
            connection.close()
            self._fail(f"rank {hello['ended']} {hello['how']} before it came to {WORLD}", hello["ended"])
        rank, connections = hello["rank"], [connection]
        if hello["version"] != self.hello["version"]:
            self._fail(f"rank {rank} has hpmoe {hello['version']}, and rank 0 has {self.hello['version']}", rank,
                       connections)
        if hello["names"] != self.hello["names"] or rank in self.found:
            self._fail(f"a process came to {WORLD} as rank {rank} of {', '.join(hello['names'])}, where "
                       f"{', '.join(self.names)} meet{' and that one is there already' if rank in self.found else ''}",
                       rank, connections)
        self.found[rank] = connection
        return None

    def _fail(self, text: str, rank: int, more: Sequence[socket.socket] = ()) -> None:
        """Raises on all: those who come later are told as well."""
        if self.listener.fileno() >= 0:
            words = {"fault": text, "rank": rank}
            threading.Thread(target=_answer_all, daemon=True, args=(
                self.point, self.listener, words, lambda: time.monotonic() > self.deadline)).start()
        connections = [*self.found.values(), *more]
        try:
            tell_fault(connections, text, rank)
        finally:
            for connection in connections:
                connection.close()


def _is_hello(words: Fields) -> bool:
    """Returns whether `words` hold a rank above 0, the names of all ranks and the version of hpmoe."""
    names = words.get("names")
    return ("ended" not in words and isinstance(words.get("version"), str) and isinstance(names, list) and
            all(isinstance(name, str) for name in names) and is_int(words.get("rank"), 1, len(names) - 1))


def _is_end(words: Fields, num_ranks: int) -> bool:
    """Returns whether `words` hold the rank that has ended and how, as a launcher reports it."""
    return is_int(words.get("ended"), 0, num_ranks - 1) and isinstance(words.get("how"), str)


def listen(point: Point, deadline: float, name: str) -> socket.socket:
    """A socket that listens there, once nobody else does."""
    while True:
        try:
            return point.listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise failed(f"{name} cannot listen for the others: {error.strerror}; does another process with the same "
                             "rank run?", 0) from None
            time.sleep(AGAIN_S)


def tell_end(point: Point, rank: int, how: str, is_over: threading.Event) -> None:
    """Tells those who still wait for a rank that it has ended, in place of rank 0 if it was that one. For launchers."""
    words = {"ended": rank, "how": how}
    fault = {"fault": f"rank {rank} {how} before it came to {WORLD}", "rank": rank}
    while not is_over.wait(0.1):
        with contextlib.suppress(OSError, LaunchError):
            if rank == 0:
                return _answer_all(point, listen(point, 0.0, "the launcher"), fault, is_over.is_set)
            with point.connect(HELLO_S) as connection:
                if not point.stranger(connection, listens=False):
                    return send(connection, words)


def _answer_all(point: Point, listener: socket.socket, fault: Fields, is_over: Callable[[], bool]) -> None:
    with listener:
        listener.settimeout(0.1)
        while not is_over():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    if not point.stranger(connection, listens=True):
                        receive(connection, time.monotonic() + HELLO_S)
                        send(connection, fault)
