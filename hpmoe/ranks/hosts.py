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
from typing import NamedTuple

from hpmoe.ranks.arrivals import AGAIN_S, Arrivals
from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.messages import GoneError, process_of, receive, send
from hpmoe.ranks.points import HostPoint, NetPoint, Point, at_port, meeting_point, secret_of
from hpmoe.ranks.rendezvous import PROOF_S, WORLD, attend, await_kept, check_answer, failed, meet
from hpmoe.support.errors import LaunchError, is_int

TOLD_S = 1.0  # until others have told why a rank that cannot be reached has given up
Gather = Callable[[str, bytes], list[bytes]]  # what each of the ranks gives, once all have


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of a process in a run.

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
        name: name in errors, such as "rank 1".
        pid: process id; 0 on another host.
        pidfd: descriptor that becomes readable when the process ends; -1 on another host.
    """

    name: str
    pid: int
    pidfd: int


@dataclasses.dataclass(eq=False)
class Group:
    """Ranks that are connected to each other. All of them make the same calls in the same order.

    Attributes:
        rank: number of this process among the ranks.
        members: a Member for each rank, in the order of ranks.
        all_gather: function of a name for errors and this rank's bytes; returns the bytes of each rank, in order.
        neighbours: connections to ranks of this host, by rank.
        hub: connections by which the ranks met, by rank; all_gather may use them.
        sockets: for each rank of another host a connection, which the link that is made of it closes, else None.
        secret: 16 bytes that messages between hosts carry.
        timeout: seconds that a call waits for another rank before it raises LaunchError.
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
        """Returns a descriptor of the file of each rank of this host; -1 for other ranks.

        Raises:
            LaunchError: a rank is gone, or sends no file within `timeout`.
        """
        files = [-1] * self.size
        files[self.rank] = os.dup(file)
        for rank, connection in self.neighbours.items():
            with self._blaming(rank):
                send(connection, {}, files=[file])
        for rank, connection in self.neighbours.items():
            with self._blaming(rank):
                files[rank] = receive(connection, time.monotonic() + self.timeout)[2][0]
        return files

    @contextlib.contextmanager
    def _blaming(self, rank: int) -> Iterator[None]:
        try:
            yield
        except GoneError as error:
            raise failed(f"{self.members[rank].name} is gone: {error}", rank) from None


def connect(place: Place, tag: str, gather: Gather, rank: int, names: Sequence[str], timeout: float,
            hub: Mapping[int, socket.socket] | None = None) -> Group:
    """Connects a rank to all other ranks of a group; all of them call this.

    Args:
        place: Place of this process.
        tag: name that distinguishes this group from others of the run.
        gather: all-gather among these ranks.
        rank, names: rank of this process, and the names of all ranks.
        timeout: seconds in which all ranks must connect.
        hub: existing connections to some ranks, by which their end is noticed.

    Raises:
        LaunchError: a rank is gone, or cannot be reached.
    """
    finder = _Finder(place, tag, rank, names, time.monotonic() + timeout, hub or {})
    listeners = {point.listen(): point for point in finder.points(rank, at_port(place.host, 0))}
    address = at_port(place.host, [*listeners][-1].getsockname()[1]) if place.host else ""
    with contextlib.closing(Arrivals(listeners, finder.introduce)) as arrivals, finder.telling():
        told = gather("an address", address.encode())
        for other in range(rank):
            finder.reach(other, told[other].decode())
        finder.admit(arrivals)
    members = [finder.members.get(r, Member(name, 0, -1)) for r, name in enumerate(names)]
    members[rank] = Member(names[rank], os.getpid(), os.pidfd_open(os.getpid()))
    sockets = [finder.away.get(r) for r in range(len(names))]
    return Group(rank, members, gather, finder.neighbours, hub or {}, sockets, secret_of(place.run, tag), timeout)


def meet_all(launched: Launched, names: Sequence[str], timeout: float) -> tuple[Place, Group]:
    """Finds all processes of a run through rank 0, and connects this process to them.

    Raises:
        LaunchError: a rank did not connect in time, or cannot be reached.
    """
    point = meeting_point(launched)
    meeting = meet(point, launched.rank, names, timeout)
    host = point.host if isinstance(point, NetPoint) else ""
    if host and launched.rank > 0:
        host = meeting.connections[0].getsockname()[0]
    place = Place(launched.run, host, launched.node)
    others = range(1, launched.size) if launched.rank == 0 else (0,)
    hub = dict(zip(others, meeting.connections, strict=True))
    return place, connect(place, "", meeting.all_gather, launched.rank, names, timeout, hub)


class _Greeting(NamedTuple):
    """First message of a process: its rank, and on this host its number and a pidfd."""

    rank: int
    pid: int
    files: list[int]


class _Finder:
    """Connections of a rank so far: to ranks of this host, with their identities, and to ranks of other hosts."""

    def __init__(self, place: Place, tag: str, rank: int, names: Sequence[str], deadline: float,
                 hub: Mapping[int, socket.socket]):
        self._place, self._tag, self._rank, self._names, self._deadline = place, tag, rank, names, deadline
        self._hub = hub
        self.members: dict[int, Member] = {}
        self.neighbours: dict[int, socket.socket] = {}
        self.away: dict[int, socket.socket] = {}

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Context that tells all connected processes which rank failed, so that they stop waiting."""
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
        """Raises if a connected process has ended or reports an end; no process closes before all are connected."""
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
        """Connects to a rank that listens already: on this host, or at an address."""
        problem = ""
        for point in self.points(rank, address):
            while time.monotonic() < self._deadline:
                try:
                    connection = point.connect(max(0.1, self._deadline - time.monotonic()))
                except OSError as error:
                    problem = f"cannot be reached{address and ' at ' + address}: {error.strerror or error}"
                    break
                try:
                    until = min(self._deadline, time.monotonic() + PROOF_S)
                    if stranger := point.stranger(connection, False, until):
                        problem = f"is not who listens at {address}, {stranger} is"
                        connection.close()
                        break
                    return self._register(connection, self._greet(connection, point, False, until))
                except GoneError as error:  # it has ended, which the next attempt shows, or is slow
                    connection.close()
                    problem = f"is gone: {error}"
                    time.sleep(AGAIN_S)
        self._check_connected(TOLD_S)
        raise failed(f"{self._names[rank]} {problem}", rank)

    def introduce(self, connection: socket.socket, point: Point, deadline: float) -> _Greeting:
        """Returns the greeting of a process that comes to this rank; see Arrivals."""
        if stranger := point.stranger(connection, True, deadline):
            raise GoneError(stranger)
        return self._greet(connection, point, True, deadline)

    def admit(self, arrivals: Arrivals[_Greeting]) -> None:
        """Accepts the ranks that connect to this one."""
        while len(self.neighbours) + len(self.away) < len(self._names) - 1:
            self._check_connected()
            if (arrived := arrivals.next(AGAIN_S)) is not None:
                self._let_in(*arrived)
            if time.monotonic() > self._deadline:
                missing = [r for r in range(len(self._names)) if r != self._rank and r not in (self.neighbours | self.away)]
                raise failed(f"{self._names[missing[0]]} did not come to {self._names[self._rank]} in time", missing[0])

    def _greet(self, connection: socket.socket, point: Point, listens: bool, deadline: float) -> _Greeting:
        """Exchanges the identities of both ends; on one host, also pidfds, which become readable when a process ends."""
        own = os.pidfd_open(os.getpid())
        try:
            send(connection, {"rank": self._rank}, files=[own] if point.takes_files else [])
        finally:
            os.close(own)
        words, _, files = receive(connection, deadline)
        try:
            check_answer(words)
            rank, pid = words.get("rank"), process_of(connection) if point.takes_files else 0
            if not is_int(rank, 0, len(self._names) - 1) or len(files) != point.takes_files or (
                    files and not _is_running(files[0], pid)):
                raise GoneError("its greeting is not that of a rank")
            attend(connection, listens, deadline)
        except (OSError, LaunchError):
            for file in files:
                os.close(file)
            raise
        return _Greeting(int(rank), pid, files)

    def _let_in(self, connection: socket.socket, greeting: _Greeting) -> None:
        """Registers an arrival, unless its process has closed the connection or its rank is connected already."""
        try:
            await_kept(connection, self._deadline)
            self._register(connection, greeting)
        except GoneError:
            for file in greeting.files:
                os.close(file)
            connection.close()

    def _register(self, connection: socket.socket, greeting: _Greeting) -> None:
        """Raises GoneError for a rank that is connected already."""
        rank, pid, files = greeting
        if rank in {self._rank, *self.neighbours, *self.away}:
            raise GoneError("its greeting is that of another rank")
        if files:
            self.neighbours[rank] = connection
            self.members[rank] = Member(self._names[rank], pid, files[0])
        else:
            self.away[rank] = connection


def _is_running(file: int, pid: int) -> bool:
    """Returns whether `file` is a pidfd of a process of this number that has not ended."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return f"\nPid:\t{pid}\n" in Path(f"/proc/self/fdinfo/{file}").read_text(encoding="ascii") and not poll.poll(0)
