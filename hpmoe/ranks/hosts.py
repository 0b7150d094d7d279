"""Ranks of a group find out which of them are on the same host, and connect to each other.

A rank is on this host if it can be reached under a name of this host, where it hands over open files. Ranks of other hosts
are reached at the address that each gives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import HostPoint, NetPoint, Point, at_port, secret_of
from hpmoe.ranks.rendezvous import HELLO_S, WORLD, check_answer, failed, meet
from hpmoe.support.errors import LaunchError, is_int
from hpmoe.support.kept_files import Fields

TOLD_S = 1.0  # until others have told why a rank that cannot be reached has given up
Gather = Callable[[str, bytes], list[bytes]]  # what each of the ranks gives, once all have


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process of a run is.

    Attributes:
        run: a secret of the run.
        host: the address under which other hosts reach this process; empty if all ranks are on this host.
        node: ranks of one host with different nodes count as ranks of different hosts.
    """

    run: bytes = dataclasses.field(repr=False)
    host: str
    node: str


@dataclasses.dataclass(frozen=True)
class Member:
    """A process of a group.

    Attributes:
        name: as errors call it, such as "rank 1".
        pid: its number; 0 on another host.
        pidfd: a file of this process that can be read once that process has ended; -1 on another host.
    """

    name: str
    pid: int
    pidfd: int


@dataclasses.dataclass(eq=False)
class Group:
    """Ranks that are connected to each other. All of them make the same calls in the same order.

    Attributes:
        rank: of this process.
        members: one for each rank.
        all_gather: returns what each rank gives, in the order of ranks.
        neighbours: connections to ranks of this host.
        hub: connections by which ranks met, which all_gather may use.
        sockets: for each rank of another host a connection, which its link owns from then on, else None.
        secret: 16 bytes that messages between hosts carry.
        timeout: seconds that a call waits.
    """

    rank: int
    members: Sequence[Member]
    all_gather: Gather
    neighbours: Mapping[int, socket.socket]
    hub: Mapping[int, socket.socket]
    sockets: Sequence[socket.socket | None]
    secret: bytes = dataclasses.field(repr=False)
    timeout: float

    @property
    def size(self) -> int:
        return len(self.members)

    def close(self) -> None:
        """Closes the connections that no link owns; members stay known."""
        for connection in (*self.neighbours.values(), *self.hub.values(), *self.sockets):
            if connection is not None:
                connection.close()

    def share(self, file: int) -> list[int]:
        """Returns a descriptor of the file of each rank of this host; -1 for other ranks."""
        files = [-1] * self.size
        files[self.rank] = os.dup(file)
        for connection in self.neighbours.values():
            send(connection, {}, files=[file])
        for rank, connection in self.neighbours.items():
            try:
                files[rank] = receive(connection, time.monotonic() + self.timeout)[2][0]
            except OSError as error:
                raise failed(f"{self.members[rank].name} is gone: {error}", rank) from None
        return files


def connect(place: Place, tag: str, gather: Gather, rank: int, names: Sequence[str], timeout: float,
            hub: Mapping[int, socket.socket] | None = None) -> Group:
    """Connects a rank to all other ranks of a group; all of them call this.

    Args:
        place: of this process.
        tag: tells this group from others of the run.
        gather: among these ranks.
        rank, names: of this process, and of all.
        timeout: seconds for all to come.
        hub: connections to some of them that exist already, whose end is noticed.

    Raises:
        LaunchError: a rank is gone, or cannot be reached.
    """
    finder = _Finder(place, tag, rank, names, time.monotonic() + timeout, hub or {})
    with contextlib.ExitStack() as open_listeners, finder.telling():
        listeners: dict[socket.socket, Point] = {}
        for point in finder.points(rank, at_port(place.host, 0)):
            listeners[open_listeners.enter_context(contextlib.closing(point.listen()))] = point
        *_, last = listeners
        told = gather("an address", at_port(place.host, last.getsockname()[1]).encode() if place.host else b"")
        for other in range(rank):
            finder.reach(other, told[other].decode())
        finder.admit(listeners)
    members = [finder.members.get(r, Member(name, 0, -1)) for r, name in enumerate(names)]
    members[rank] = Member(names[rank], os.getpid(), os.pidfd_open(os.getpid()))
    sockets = [finder.away.get(r) for r in range(len(names))]
    return Group(rank, members, gather, finder.neighbours, hub or {}, sockets, secret_of(place.run, tag), timeout)


def meet_all(launched: Launched, names: Sequence[str], timeout: float) -> tuple[Place, Group]:
    """Finds all processes of a run, by way of rank 0, and connects this one to them.

    Raises:
        LaunchError: a rank did not come, or cannot be reached.
    """
    point = NetPoint(launched.run, launched.rendezvous) if launched.rendezvous else HostPoint(launched.run, "")
    meeting = meet(point, launched.rank, names, timeout)
    host = point.host if isinstance(point, NetPoint) else ""
    if host and launched.rank > 0:
        host = meeting.connections[0].getsockname()[0]
    place = Place(launched.run, host, launched.node)
    others = range(1, launched.size) if launched.rank == 0 else (0,)
    hub = dict(zip(others, meeting.connections, strict=True))
    return place, connect(place, "", meeting.all_gather, launched.rank, names, timeout, hub)


class _Finder:
    """Connections of a rank so far: to those of this host, with what is known of them, and to others."""

    def __init__(self, place: Place, tag: str, rank: int, names: Sequence[str], deadline: float,
                 hub: Mapping[int, socket.socket]):
        self._place, self._tag, self._rank, self._names, self._deadline = place, tag, rank, names, deadline
        self._hub = hub
        self.members: dict[int, Member] = {}
        self.neighbours: dict[int, socket.socket] = {}
        self.away: dict[int, socket.socket] = {}

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Around what may fail: whoever is connected is told who is to blame, and waits for nobody any more."""
        try:
            yield
        except LaunchError as error:
            for _, connection in self._connected():
                with contextlib.closing(connection), contextlib.suppress(GoneError):
                    send(connection, {"fault": str(error), "rank": (error.status or {}).get("rank", self._rank)})
            raise

    def _connected(self) -> list[tuple[int, socket.socket]]:
        return [*self._hub.items(), *self.neighbours.items(), *self.away.items()]

    def _check_connected(self, wait_s: float = 0.0) -> None:
        """Raises where one that is connected has ended, or tells that another one has: nobody closes before all are here."""
        poll, ends = select.poll(), {connection.fileno(): (rank, connection) for rank, connection in self._connected()}
        for file in ends:
            poll.register(file, select.POLLRDHUP)
        for file, _ in poll.poll(wait_s * 1e3):
            rank, connection = ends[file]
            with contextlib.suppress(GoneError):  # it had no time to tell
                check_answer(receive(connection, time.monotonic())[0])
            raise failed(f"{self._names[rank]} died in {WORLD}", rank)

    def points(self, rank: int, address: str) -> list[Point]:
        """Returns the points at which a rank listens: on this host, and at its address if there are several hosts."""
        near = HostPoint(self._place.run, f"{self._tag} at rank {rank}", self._place.node)
        return [near, NetPoint(self._place.run, address)] if self._place.host else [near]

    def reach(self, rank: int, address: str) -> None:
        """A rank that listens already: on this host, or at an address."""
        problem = ""
        for point in self.points(rank, address):
            try:
                connection = point.connect(max(0.1, self._deadline - time.monotonic()))
            except OSError as error:
                problem = f"cannot be reached{address and ' at ' + address}: {error.strerror or error}"
                continue
            if stranger := point.stranger(connection, listens=False):
                problem = f"is not who listens at {address}, {stranger} is"
                connection.close()
                continue
            try:
                return self._greet(connection, point)
            except GoneError as error:
                problem = f"is gone: {error}"
        self._check_connected(TOLD_S)
        raise failed(f"{self._names[rank]} {problem}", rank)

    def admit(self, listeners: Mapping[socket.socket, Point]) -> None:
        """Accepts the ranks that connect to this one."""
        while len(self.neighbours) + len(self.away) < len(self._names) - 1:
            self._check_connected()
            for listener, point in listeners.items():
                listener.settimeout(0.02)
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    connection.settimeout(None)
                    if point.stranger(connection, listens=True):
                        connection.close()
                        continue
                    with contextlib.suppress(GoneError):
                        self._greet(connection, point)
            if time.monotonic() > self._deadline:
                missing = [r for r in range(len(self._names)) if r != self._rank and r not in (self.neighbours | self.away)]
                raise failed(f"{self._names[missing[0]]} did not come to {self._names[self._rank]} in time", missing[0])

    def _greet(self, connection: socket.socket, point: Point) -> None:
        """Both ends say who they are; on one host they hand over what can be read once they have ended."""
        own = os.pidfd_open(os.getpid())
        try:
            send(connection, {"rank": self._rank, "pid": os.getpid()}, files=[own] if point.takes_files else [])
            words, _, files = receive(connection, time.monotonic() + HELLO_S)
        except GoneError:
            connection.close()
            raise
        finally:
            os.close(own)
        if not self._is_greeting(words, files if point.takes_files else None):
            for file in files:
                os.close(file)
            connection.close()
            raise GoneError("its greeting is not that of a rank")
        rank = int(words["rank"])
        if point.takes_files:
            self.neighbours[rank] = connection
            self.members[rank] = Member(self._names[rank], words["pid"], files[0])
        else:
            self.away[rank] = connection

    def _is_greeting(self, words: Fields, files: Sequence[int] | None) -> bool:
        """Returns whether `words` name a rank that is not connected yet and, on this host, `files` show that it runs."""
        rank, is_alive = words.get("rank"), files is None or (len(files) == 1 and _is_running(files[0]))
        known = {self._rank, *self.neighbours, *self.away}
        is_new = is_int(rank, 0, len(self._names) - 1) and rank not in known
        return is_new and is_int(words.get("pid"), 1, 2**31) and is_alive


def _is_running(file: int) -> bool:
    """Returns whether `file` is a pidfd of a process that has not ended."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return "\nPid:" in Path(f"/proc/self/fdinfo/{file}").read_text(encoding="ascii") and not poll.poll(0)
