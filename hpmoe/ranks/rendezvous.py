"""Processes of a run find each other: rank 0 listens at a point of the run, and all others connect to it."""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence

from hpmoe.ranks.arrivals import AGAIN_S, HELLO_S, Arrivals
from hpmoe.ranks.launchers import RENDEZVOUS
from hpmoe.ranks.messages import GoneError, receive, send
from hpmoe.ranks.points import Point
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import LaunchError, is_int
from hpmoe.support.versions import __version__

PROOF_S = 3.0  # for the other end of a connection to prove what it is; then the next attempt
BESIDE_S = 5.0  # for others to be told that the port of rank 0 is taken
WORLD = "hpmoe.world()"


class Meeting:
    """Processes that have met, each connected to rank 0. All ranks make the same calls in the same order.

    Attributes:
        rank, names: rank of this process, and the names of all ranks.
        connections: rank 0 holds one to each other rank, in order; the others hold one to rank 0.
        timeout: seconds that a call waits for another rank.
    """

    def __init__(self, rank: int, names: Sequence[str], connections: Sequence[socket.socket], timeout: float):
        self.rank, self.names, self.connections, self.timeout = rank, names, connections, timeout

    def close(self) -> None:
        """Closes the connections."""
        for connection in self.connections:
            connection.close()

    def all_gather(self, what: str, data: bytes) -> list[bytes]:
        """Returns what each rank gives, in the order of ranks. `what` says in words what that is, and is equal on all ranks.

        Raises:
            LaunchError: a rank ended, did not give anything in time, or gave something else.
        """
        deadline = time.monotonic() + self.timeout
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
    """Returns the error of a rank that is to blame."""
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
        rank, names: rank of this process, and the names of all ranks, in order.
        timeout: seconds in which all ranks must connect.

    Raises:
        LaunchError: a rank did not come in time, ended before that, was started as another one of as many, has another
            version of hpmoe, or is of another user.
    """
    hello = {"rank": rank, "names": list(names), "version": __version__}
    deadline = time.monotonic() + timeout
    if rank == 0:
        return Hub(point, hello, names, deadline).meeting(timeout)
    hub = _reach(point, hello, names[0], deadline, timeout)
    try:
        words = receive(hub, deadline + HELLO_S)[0]  # rank 0 says who is missing
    except OSError as error:
        words = {"fault": f"{names[0]} is gone from {WORLD}: {error}", "rank": 0}
    if words:
        hub.close()
        if point.takes_files:  # who comes later may find this rank, and not rank 0
            threading.Thread(target=answer, daemon=True,
                             args=(point, lambda: words, lambda: time.monotonic() > deadline)).start()
        check_answer(words)
    return Meeting(rank, names, [hub], timeout)


def attend(connection: socket.socket, listens: bool, deadline: float) -> None:
    """Waits until the process at the other end has answered a question; the end that listens answers last.

    A process that repeats what a rank has said, and then is silent, does not count as the rank. The end that has connected
    finally says that it keeps the connection: a listener that answers too late gets a second connection instead.

    Raises:
        GoneError: it does not answer.
        LaunchError: it says that a rank has failed.
    """
    question = secrets.token_hex(8)
    send(connection, {"question": question})
    theirs = receive(connection, deadline)[0]
    check_answer(theirs)
    for is_asked in (not listens, listens):
        if is_asked:
            send(connection, {"answer": theirs.get("question")})
        elif receive(connection, deadline)[0].get("answer") != question:
            raise GoneError("it does not answer")
    if not listens:
        send(connection, {"kept": True})


def await_kept(connection: socket.socket, deadline: float) -> None:
    """Waits until the process that has connected keeps the connection.

    Raises:
        GoneError: the process has closed it, as one does that connects again, or says nothing before `deadline`.
    """
    if receive(connection, deadline)[0].get("kept") is not True:
        raise GoneError("its connection is not kept")


def _reach(point: Point, hello: Fields, name: str, deadline: float, timeout: float) -> socket.socket:
    """Returns a connection to rank 0, which knows this rank; tries again while the listener is absent or silent."""
    problem = ""
    while time.monotonic() < deadline:
        if problem and point.beside is not None:
            check_answer(_hear_beside(point.beside, hello, deadline))
        try:
            return _come(point, hello, deadline)
        except GoneError as error:
            problem = f"; whoever listens at {point} does not prove to be of this run ({error})"
        except OSError:
            problem = ""
        time.sleep(AGAIN_S)
    raise failed(f"{name} did not come to {WORLD} within {timeout:g} s{problem}", 0)


def _hear_beside(point: Point, hello: Fields, deadline: float) -> Fields:
    """Returns what rank 0 or its launcher tells there, {} if neither listens."""
    with contextlib.suppress(OSError, LaunchError), _come(point, hello, deadline) as connection:
        return receive(connection, time.monotonic() + PROOF_S)[0]
    return {}


def _come(point: Point, hello: Fields, deadline: float) -> socket.socket:
    """Returns a connection to rank 0, which knows this rank.

    Raises:
        GoneError: whoever listens is gone, or silent.
        OSError: no process listens.
        LaunchError: a stranger listens, or a rank has failed.
    """
    connection = point.connect(max(0.0, deadline - time.monotonic()))
    try:
        until = min(deadline, time.monotonic() + PROOF_S)
        if stranger := point.stranger(connection, False, until):
            raise failed(f"{stranger} listens at {point} instead of rank 0, and is refused", 0)
        send(connection, hello)
        attend(connection, False, until)
    except (OSError, LaunchError):
        connection.close()
        raise
    return connection


class Hub:
    """Rank 0 until all ranks have connected."""

    def __init__(self, point: Point, hello: Fields, names: Sequence[str], deadline: float):
        self.point, self.hello, self.names, self.deadline = point, hello, names, deadline
        self.found: dict[int, socket.socket] = {}  # by rank
        self.arrivals = Arrivals({listen(point): point}, introduce)

    def meeting(self, timeout: float) -> Meeting:
        while len(self.found) < len(self.names) - 1:
            self._wait(timeout)
        self.arrivals.close()
        connections = [self.found[rank] for rank in sorted(self.found)]
        for rank, connection in enumerate(connections, 1):
            try:
                send(connection, {})
            except GoneError:
                self._fail(f"{self.names[rank]} died in {WORLD}", rank)
        return Meeting(0, self.names, connections, timeout)

    def _wait(self, timeout: float) -> None:
        """Accepts ranks that come soon, and checks which ranks have ended."""
        poll, ends = select.poll(), {connection.fileno(): rank for rank, connection in self.found.items()}
        for file in ends:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(0):
            self._fail(f"{self.names[ends[file]]} died in {WORLD}", ends[file])
        if (arrived := self.arrivals.next(AGAIN_S)) is not None:
            return self._let_in(*arrived)
        if time.monotonic() > self.deadline:
            missing = [r for r in range(1, len(self.names)) if r not in self.found]
            self._fail(f"{' and '.join(self.names[r] for r in missing)} did not come to {WORLD} within {timeout:g} s",
                       missing[0])
        return None

    def _let_in(self, connection: socket.socket, hello: Fields) -> None:
        if "ended" in hello:
            connection.close()
            if is_int(hello["ended"], 0, len(self.names) - 1):
                self._fail(hello["fault"], hello["ended"])
            return
        try:
            await_kept(connection, self.deadline)
        except GoneError:
            connection.close()
            return
        rank, connections = hello["rank"], [connection]
        if hello["version"] != self.hello["version"]:
            self._fail(f"rank {rank} has hpmoe {hello['version']}, and rank 0 has {self.hello['version']}", rank,
                       connections)
        if hello["names"] != self.hello["names"] or rank in self.found:
            self._fail(f"a process came to {WORLD} as rank {rank} of {', '.join(hello['names'])}, where "
                       f"{', '.join(self.names)} meet{' and that one is there already' if rank in self.found else ''}",
                       rank, connections)
        self.found[rank] = connection

    def _fail(self, text: str, rank: int, more: Sequence[socket.socket] = ()) -> None:
        """Raises on all: those who come later are told as well."""
        connections, words = [*self.found.values(), *more], {"fault": text, "rank": rank}
        if len(self.found) < len(self.names) - 1:
            connections += [_once_kept(connection) for connection, _ in self.arrivals.rest()]
            threading.Thread(target=_answer_all, daemon=True, args=(
                self.arrivals, lambda: words, lambda: time.monotonic() > self.deadline)).start()
        try:
            tell_fault(connections, text, rank)
        finally:
            for connection in connections:
                connection.close()


def introduce(connection: socket.socket, point: Point, deadline: float) -> Fields:
    """Returns what a process says that comes to rank 0: its rank, or as a launcher the end of a rank.

    Raises:
        OSError: it is none of this run, says something else, or says too little until `deadline`.
    """
    if stranger := point.stranger(connection, True, deadline):
        raise GoneError(stranger)
    words = receive(connection, deadline)[0]
    if _is_hello(words):
        attend(connection, True, deadline)
    elif not _is_end(words):
        raise GoneError("it sent no hello")
    return words


def _is_hello(words: Fields) -> bool:
    """Returns whether `words` hold a rank above 0, the names of all ranks and the version of hpmoe."""
    names = words.get("names")
    return ("ended" not in words and isinstance(words.get("version"), str) and isinstance(names, list) and
            all(isinstance(name, str) for name in names) and is_int(words.get("rank"), 1, len(names) - 1))


def _is_end(words: Fields) -> bool:
    """Returns whether `words` hold a rank that has ended and the fault, as a launcher tells it."""
    return is_int(words.get("ended"), 0) and isinstance(words.get("fault"), str)


def listen(point: Point) -> socket.socket:
    """Returns rank 0's listening socket. Where another process has it, others are told for a while, at the port beside."""
    try:
        return point.listen()
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        text = f"rank 0 cannot listen at {point}: {error.strerror}; " + (
            "expected an address of the host of rank 0" if not is_taken else
            "another process is rank 0 of this run" if point.beside is None else
            f"another process listens there; give another port in --rendezvous or {RENDEZVOUS}")
        if is_taken and point.beside is not None:
            until = time.monotonic() + BESIDE_S
            threading.Thread(target=answer, args=(
                point, lambda: {"fault": text, "rank": 0}, lambda: time.monotonic() > until)).start()
        raise failed(text, 0) from None


def tell_ends(point: Point, fault_of: Callable[[], Fields], is_rank_0_gone: Callable[[], bool],
              is_over: Callable[[], bool]) -> None:
    """Tells waiting processes which rank has ended, instead of rank 0 if that is gone. For launchers.

    Args:
        point: where rank 0 listens.
        fault_of: returns the fault to tell, {} if there is none so far.
        is_rank_0_gone: returns whether rank 0, which this launcher started, has ended.
        is_over: returns whether to end.
    """
    while not is_over():
        if is_rank_0_gone():
            return answer(point, fault_of, is_over)
        if fault := fault_of():
            with contextlib.suppress(OSError), point.connect(HELLO_S) as connection:
                if not point.stranger(connection, False, time.monotonic() + PROOF_S):
                    send(connection, {"ended": fault["rank"], "fault": fault["fault"]})
        time.sleep(5 * AGAIN_S)


def answer(point: Point, fault_of: Callable[[], Fields], is_over: Callable[[], bool]) -> None:
    """Tells a fault to all that come to a point, as soon as no other process listens there, and beside it."""
    while not is_over():
        for each in (point, point.beside):
            with contextlib.suppress(OSError):
                if each is not None:
                    return _answer_all(Arrivals({each.listen(): each}, introduce), fault_of, is_over)
        time.sleep(5 * AGAIN_S)


def _once_kept(connection: socket.socket) -> socket.socket:
    """Returns a connection with nothing left to read: closing one with unread bytes may lose what was sent over TCP."""
    with contextlib.suppress(GoneError):
        await_kept(connection, time.monotonic() + PROOF_S)
    return connection


def _answer_all(arrivals: Arrivals[Fields], fault_of: Callable[[], Fields], is_over: Callable[[], bool]) -> None:
    with contextlib.closing(arrivals):
        while not is_over():
            if (arrived := arrivals.next(0.1)) is not None:
                with _once_kept(arrived[0]) as connection, contextlib.suppress(GoneError):
                    send(connection, fault_of())
