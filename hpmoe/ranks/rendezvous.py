"""How processes find each other: rank 0 listens at a point of the run, and all others come to it.

On a host only processes of the same user are let in, and each hands over a file that can be read once it has ended, a pidfd,
so that everybody knows of everybody's end. Between hosts only those are that have the secret of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import Point
from hpmoe.support.errors import LaunchError
from hpmoe.support.kept_files import Fields
from hpmoe.support.versions import __version__

AGAIN_S = 0.02  # between two attempts to reach rank 0
HELLO_S = 10.0  # for what a process says first
WORLD = "hpmoe.world()"


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of a group.

    Attributes:
        name: as errors call it, such as "rank 1".
        pid: its number.
        pidfd: a file of this process that can be read once that one has ended; -1 where it is on another host.
    """

    name: str
    pid: int
    pidfd: int


class Group:
    """Processes that have met, in the order of their ranks; what all of them call, each does.

    Attributes:
        rank, size: of this process among them.
        members: one for each rank.
        connections: of rank 0 to all others, in order; of others to rank 0 alone.
        sockets: for each rank of another host a connection to it, which is its link's from then on, else None.
        secret: what messages between hosts carry to be let in.
    """

    sockets: Sequence[socket.socket | None] = ()
    secret = b""

    def __init__(self, rank: int, members: Sequence[Member], connections: Sequence[socket.socket], timeout: float):
        self.rank, self.size, self.members = rank, len(members), tuple(members)
        self.connections, self._timeout = connections, timeout

    def close(self) -> None:
        """Closes the connections; members stay known."""
        for connection in self.connections:
            connection.close()

    def all_gather(self, what: str, data: bytes) -> list[bytes]:
        """What each rank gives, in the order of ranks. `what` says in words what that is, and is the same on all.

        Raises:
            LaunchError: a rank ended, did not give anything in time, or gave something else.
        """
        return self._gathered(what, data, [])[0]

    def share(self, file: int) -> list[int]:
        """A descriptor of each rank's file, in the order of ranks; this process's own among them."""
        return self._gathered("a file", b"", [file])[1]

    def _gathered(self, what: str, data: bytes, files: list[int]) -> tuple[list[bytes], list[int]]:
        deadline = time.monotonic() + self._timeout
        if self.rank == 0:
            return self._collect(what, data, files, deadline)
        (hub,) = self.connections
        try:
            send(hub, {"what": what}, data, files)
            words, together, shared = receive(hub, deadline)
        except GoneError as error:
            raise failed(f"{self.members[0].name} is gone: {error}", 0) from None
        check_answer(words)
        ends = [0, *words["ends"]]
        return [together[a:b] for a, b in zip(ends, ends[1:], strict=False)], shared

    def _collect(self, what: str, data: bytes, files: list[int], deadline: float) -> tuple[list[bytes], list[int]]:
        parts, shared = [data], [os.dup(file) for file in files]
        for rank, connection in enumerate(self.connections, 1):
            try:
                words, part, theirs = receive(connection, deadline)
            except GoneError as error:
                tell_fault(self.connections, f"{self.members[rank].name} is gone: {error}", rank)
            if words["what"] != what:
                tell_fault(self.connections, f"{self.members[rank].name} gives {words['what']} where "
                                              f"{self.members[0].name} gives {what}", rank)
            parts.append(part)
            shared += theirs
        ends = [sum(map(len, parts[:i + 1])) for i in range(len(parts))]
        for rank, connection in enumerate(self.connections, 1):
            try:
                send(connection, {"ends": ends}, b"".join(parts), shared)
            except GoneError as error:
                tell_fault(self.connections, f"{self.members[rank].name} is gone: {error}", rank)
        return parts, shared


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
        raise failed(words["fault"], words["rank"])


def meet(point: Point, rank: int, names: Sequence[str], timeout: float,
         known: Mapping[str, Member] | None = None) -> Group:
    """Finds the other processes of a group; all of them call this.

    Args:
        point: of this group of the run.
        rank: of this process in the group.
        names: of the members, in the order of their ranks.
        timeout: seconds for all to come.
        known: members that have met before, by name: their end is noticed here.

    Raises:
        LaunchError: a rank did not come in time, ended before that, was started as another one of as many, has another
            version of hpmoe, or is of another user.
    """
    hello = {"rank": rank, "names": list(names), "version": __version__, "pid": os.getpid()}
    deadline, known = time.monotonic() + timeout, known or {}
    if rank == 0:
        return Hub(point, hello, names, deadline, known).group(timeout)
    hub, own = _reach(point, names[0], deadline, timeout, known.get(names[0])), os.pidfd_open(os.getpid())
    try:
        send(hub, hello, files=[own] if point.takes_files else [])
        words, _, files = receive(hub, deadline + HELLO_S)  # rank 0 says who is missing
        check_answer(words)
    except OSError as error:
        hub.close()
        raise failed(f"{names[0]} is gone from {WORLD}: {error}", 0) from None
    except LaunchError:
        hub.close()
        raise
    finally:
        os.close(own)
    return Group(rank, _members(names, words["pids"], files), [hub], timeout)


def _members(names: Sequence[str], pids: Sequence[int], files: Sequence[int]) -> list[Member]:
    files = files or [-1] * len(names)
    return [Member(*each) for each in zip(names, pids, files, strict=True)]


def _reach(point: Point, name: str, deadline: float, timeout: float, known: Member | None) -> socket.socket:
    """A connection to rank 0, once that listens."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = point.connect(left)
        except OSError:
            if known is not None and has_ended(known):
                raise failed(f"{name} died before it came to {WORLD}", 0) from None
            time.sleep(AGAIN_S)
            continue
        if stranger := point.stranger(connection, listens=False):
            connection.close()
            raise failed(f"{stranger} listens in place of {name}, and is refused", 0)
        return connection
    raise failed(f"{name} did not come to {WORLD} within {timeout:g} s", 0)


def has_ended(member: Member) -> bool:
    poll = select.poll()
    poll.register(member.pidfd, select.POLLIN)
    return bool(poll.poll(0))


class Hub:
    """Rank 0 until all have come."""

    def __init__(self, point: Point, hello: Fields, names: Sequence[str], deadline: float, known: Mapping[str, Member]):
        self.point, self.hello, self.names, self.deadline, self.known = point, hello, names, deadline, known
        self.found: dict[int, tuple[socket.socket, int, int]] = {}  # by rank: connection, number, pidfd or -1
        self.listener = listen(point, deadline, names[0])

    def group(self, timeout: float) -> Group:
        while len(self.found) < len(self.names) - 1:
            self._wait(timeout)
        self.listener.close()
        mine = os.getpid(), os.pidfd_open(os.getpid())
        pids, files = zip(mine, *(self.found[rank][1:] for rank in sorted(self.found)), strict=True)
        if not self.point.takes_files:
            os.close(mine[1])
            files = ()
        connections = [self.found[rank][0] for rank in sorted(self.found)]
        for rank, connection in enumerate(connections, 1):
            try:
                send(connection, {"pids": pids}, files=files)
            except GoneError:
                self._fail(f"{self.names[rank]} died in {WORLD}", rank)
        return Group(0, _members(self.names, pids, files), connections, timeout)

    def _wait(self, timeout: float) -> None:
        """Until somebody comes, or ends."""
        poll, left = select.poll(), self.deadline - time.monotonic()
        poll.register(self.listener, select.POLLIN)
        ends = {connection.fileno() if pidfd < 0 else pidfd: rank for rank, (connection, _, pidfd) in self.found.items()}
        ends |= {self.known[name].pidfd: rank for rank, name in enumerate(self.names) if name in self.known and rank}
        for pidfd in ends:
            poll.register(pidfd, select.POLLIN)
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
            hello, _, files = receive(connection, time.monotonic() + HELLO_S)
        except (OSError, ValueError):  # who says nothing, or nonsense, is no rank
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
        self.found[rank] = connection, hello["pid"], files[0] if files else -1
        return None

    def _fail(self, text: str, rank: int, more: Sequence[socket.socket] = ()) -> None:
        """Raises on all: those who come later are told as well."""
        if self.listener.fileno() >= 0:
            words = {"fault": text, "rank": rank}
            threading.Thread(target=_answer_all, daemon=True, args=(
                self.point, self.listener, words, lambda: time.monotonic() > self.deadline)).start()
        connections = [*(connection for connection, _, _ in self.found.values()), *more]
        try:
            tell_fault(connections, text, rank)
        finally:
            for connection in connections:
                connection.close()


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
