"""Processes of several hosts: which of them are on the same one, and a connection to each of the others.

Whoever can be reached under a name of this host, and hand over files there, is on the same host; nobody's word is taken for
it. The others are reached at an address that each tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import HostPoint, NetPoint, Point, at_port, secret_of
from hpmoe.ranks.rendezvous import HELLO_S, WORLD, Group, Member, check_answer, failed, meet
from hpmoe.support.errors import LaunchError

TOLD_S = 1.0  # until others have told why a rank that cannot be reached has given up
Gather = Callable[[str, bytes], list[bytes]]  # what each of the ranks gives, once all have


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a process of a run is.

    Attributes:
        run: a secret of the run.
        host: under which others reach this process.
        node: ranks of one host that give others count as being on another host.
    """

    run: bytes
    host: str
    node: str


class HostsGroup(Group):
    """Ranks of several hosts; see Group."""

    def __init__(self, rank: int, members: Sequence[Member], gather: Gather, neighbours: Mapping[int, socket.socket],
                 sockets: Sequence[socket.socket | None], secret: bytes, timeout: float):
        super().__init__(rank, members, list(neighbours.values()), timeout)
        self.sockets, self.secret, self._gather, self._neighbours = sockets, secret, gather, neighbours

    def close(self) -> None:
        super().close()
        for connection in self.sockets:
            if connection is not None:  # and is no link's yet
                connection.close()

    def all_gather(self, what: str, data: bytes) -> list[bytes]:
        return self._gather(what, data)

    def share(self, file: int) -> list[int]:
        """A descriptor of the file of each rank of this host; -1 of others."""
        files = [-1] * self.size
        files[self.rank] = os.dup(file)
        for connection in self._neighbours.values():
            send(connection, {}, files=[file])
        for rank, connection in self._neighbours.items():
            try:
                files[rank] = receive(connection, time.monotonic() + self._timeout)[2][0]
            except OSError as error:
                raise failed(f"{self.members[rank].name} is gone: {error}", rank) from None
        return files


def find_hosts(place: Place, tag: str, gather: Gather, rank: int, names: Sequence[str], timeout: float,
               hub: Mapping[int, socket.socket] | None = None) -> HostsGroup:
    """Connects a rank to all others; all of them call this.

    Args:
        place: of this process.
        tag: tells this group from others of the run.
        gather: among these ranks.
        rank, names: of this process, and of all.
        timeout: seconds for all to come.
        hub: connections to some of them that there are already, whose end is noticed.

    Raises:
        LaunchError: a rank is gone, or cannot be reached.
    """
    finder = _Finder(place, tag, rank, names, time.monotonic() + timeout, hub or {})
    listeners = NetPoint(place.run, at_port(place.host, 0)).listen(), finder.near(rank).listen()
    with contextlib.closing(listeners[0]) as away, contextlib.closing(listeners[1]) as near, finder.telling():
        told = gather("an address", at_port(place.host, away.getsockname()[1]).encode())
        for other in range(rank):
            finder.reach(other, told[other].decode())
        finder.admit(near, away)
    members = [finder.members.get(r, Member(name, 0, -1)) for r, name in enumerate(names)]
    members[rank] = Member(names[rank], os.getpid(), os.pidfd_open(os.getpid()))
    sockets = [finder.away.get(r) for r in range(len(names))]
    return HostsGroup(rank, members, gather, finder.neighbours, sockets, secret_of(place.run, tag), timeout)


def meet_all(launched: Launched, names: Sequence[str], timeout: float) -> tuple[Place | None, Group]:
    """Finds all processes of a run, by way of rank 0, and where they are on several hosts connects this one to the others.

    Raises:
        LaunchError: a rank did not come, or cannot be reached.
    """
    if not launched.rendezvous:
        return None, meet(HostPoint(launched.run, ""), launched.rank, names, timeout)
    point = NetPoint(launched.run, launched.rendezvous)
    hub = meet(point, launched.rank, names, timeout)
    host = point.host if launched.rank == 0 else hub.connections[0].getsockname()[0]
    place = Place(launched.run, host, launched.node)
    others = range(1, launched.size) if launched.rank == 0 else (0,)
    known = dict(zip(others, hub.connections, strict=True))
    group = find_hosts(place, "", hub.all_gather, launched.rank, names, timeout, known)
    group.connections = [*group.connections, *hub.connections]
    return place, group


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

    def near(self, rank: int) -> HostPoint:
        return HostPoint(self._place.run, f"{self._tag} at rank {rank}", self._place.node)

    def reach(self, rank: int, address: str) -> None:
        """A rank that listens already: on this host, or at an address."""
        problem = ""
        for point in (self.near(rank), NetPoint(self._place.run, address)):
            try:
                connection = point.connect(max(0.1, self._deadline - time.monotonic()))
            except OSError as error:
                problem = f"cannot be reached at {address}: {error.strerror or error}"
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

    def admit(self, near: socket.socket, away: socket.socket) -> None:
        """Those that come to this rank."""
        points = {near: self.near(self._rank), away: NetPoint(self._place.run, "")}
        while len(self.neighbours) + len(self.away) < len(self._names) - 1:
            self._check_connected()
            for listener, point in points.items():
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
        rank = int(words["rank"])
        if point.takes_files:
            self.neighbours[rank] = connection
            self.members[rank] = Member(self._names[rank], words["pid"], files[0])
        else:
            self.away[rank] = connection
