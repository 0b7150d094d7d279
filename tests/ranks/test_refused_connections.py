"""Connections from processes outside the run: another user, nonsense, silence. They are refused and delay no rank."""

import contextlib
import json
import os
import queue
import secrets
import socket
import struct
import threading
import time

import pytest
from rank_threads import Patience, listening, names_of, on_threads, size_of

from hpmoe.ranks import messages, points, rendezvous
from hpmoe.ranks.arrivals import Arrivals
from hpmoe.ranks.hosts import Place, connect
from hpmoe.ranks.points import HostPoint, NetPoint
from hpmoe.ranks.rendezvous import meet
from hpmoe.ranks.starting import free_address


@pytest.fixture
def run():
    return secrets.token_bytes(32)


def test_a_process_of_another_user_is_refused(run, monkeypatch):
    monkeypatch.setattr(points, "user_of", lambda connection: os.getuid() + 1)
    patience = Patience(monkeypatch)

    def rank_of(rank):
        try:
            meet(HostPoint(run, ""), rank, names_of(2), 0.5)
        finally:
            patience.end()

    errors = on_threads(2, rank_of)
    assert str(errors[0]) == "rank 1 did not come to hpmoe.world() within 0.5 s."
    assert str(errors[1]) == f"a process of user {os.getuid() + 1} listens at the socket of this run instead of rank 0, " \
                             "and is refused."


def message(text, data=b"", files=0):
    return struct.pack("<IQI", len(text), len(data), files) + text + data


NONSENSE = [b"\0" * 16 + b"GET / HTTP/1.1", message(b"[]"), message(b"{}"), message(b"[" * 200_000), message(b'"rank"'),
            struct.pack("<IQI", 2**31, 0, 0), *(message(json.dumps(words).encode()) for words in (
                {"ended": 1}, {"ended": 7, "fault": "x"}, {"ended": True, "fault": "x"}, {"ended": 1, "fault": None},
                *({"rank": rank, "version": "0.1", "names": names_of(2)} for rank in ("a", 99, 2, 0, -1, None, True, 0.5)),
                {"rank": 1, "version": "0.1", "names": "two"}, {"rank": 1, "version": "0.1", "names": [1, 2]},
                {"rank": 1, "version": None, "names": names_of(2)}, {"rank": 1, "names": names_of(2)}))]


@pytest.mark.parametrize("said", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_on_the_socket_is_ignored(run, said):
    def rank_of(rank):
        if rank == 1:
            with socket.socket(socket.AF_UNIX) as connection:
                while connection.connect_ex(HostPoint(run, "")._name):
                    time.sleep(0.01)
                with contextlib.suppress(OSError):
                    connection.sendall(said)
        return size_of(meet(HostPoint(run, ""), rank, names_of(2), 10))

    assert on_threads(2, rank_of) == [2, 2]


@pytest.mark.parametrize("words, files", [
    ({"rank": 1, "pid": 1}, 0), ({"rank": 7, "pid": 1}, 1), ({"rank": 0, "pid": 1}, 1), ({"rank": "a", "pid": 1}, 1),
    ({"pid": 1}, 1), ({"rank": 1, "pid": None}, 1), ({"rank": 1}, 1), ({"rank": 1, "pid": 1}, 2),
    ({"rank": 1, "pid": 1}, -1)])
def test_a_false_greeting_is_refused_and_the_ranks_connect(run, words, files):
    """Sends `words` and `files` pidfds to a rank; -1 files sends one file that is not a pidfd."""
    place, are_there = Place(run, "", ""), threading.Barrier(2)

    def rank_of(rank):
        def gather(what, data):
            are_there.wait(10)  # rank 0 listens
            if rank == 1:
                say_as_stranger()
            return [b"", b""]
        group = connect(place, "group", gather, rank, names_of(2), 10)
        group.close()
        return len(group.members)

    def say_as_stranger():
        own = os.open(os.devnull, os.O_RDONLY) if files < 0 else os.pidfd_open(os.getpid())
        with HostPoint(run, "group at rank 0", "").connect(5) as connection, contextlib.suppress(messages.GoneError):
            messages.send(connection, words, files=[own] * abs(files))
            messages.receive(connection, time.monotonic() + 0.2)
        os.close(own)

    assert on_threads(2, rank_of) == [2, 2]


class Strangers:
    """Connections to a listener. A third of them sends nothing, a third sends single bytes, a third sends random bytes."""

    def __init__(self, kept):
        self._kept, self._dripping = kept, []

    def come(self, connect, count=200):
        for number in range(count):
            connection = self._kept.enter_context(connect())
            if number % 3 == 1:
                self._dripping.append(connection)
            if number % 3 == 2:
                with contextlib.suppress(OSError):
                    connection.sendall(os.urandom(100))

    def drip(self, is_over):
        while not is_over.wait(0.05):
            for connection in self._dripping:
                with contextlib.suppress(OSError):
                    connection.send(b"\0")


def on_threads_among_strangers(size, rank_of):
    """Calls rank_of(rank, strangers) on one thread for each rank, while strangers send single bytes; returns the results."""
    with contextlib.ExitStack() as kept:
        strangers, is_over = Strangers(kept), threading.Event()
        dripper = threading.Thread(target=strangers.drip, args=(is_over,))
        dripper.start()
        try:
            return on_threads(size, lambda rank: rank_of(rank, strangers))
        finally:
            is_over.set()
            dripper.join()


@pytest.mark.parametrize("is_net", [False, True])
@pytest.mark.parametrize("when", ["before", "between"])
def test_silent_strangers_do_not_delay_a_meeting(run, is_net, when):
    """Checking connections one after the other would take 200 times PROOF_S, longer than the timeout of this meeting."""
    point = NetPoint(run, free_address()) if is_net else HostPoint(run, "")
    first, are_there = threading.Event(), threading.Event()

    def rank_of(rank, strangers):
        if rank == 1:
            if when == "between":
                first.wait(10)
            strangers.come(listening(point))
            are_there.set()
        elif rank == 2 and when == "before":
            are_there.wait(10)
        elif rank == 2:
            threading.Timer(0.3, first.set).start()
        return size_of(meet(point, rank, names_of(3), 9))

    assert on_threads_among_strangers(3, rank_of) == [3, 3, 3]


def test_silent_strangers_at_a_ranks_ports_delay_no_rank(run):
    """Strangers connect to the Unix socket for ranks of this host, and to the TCP port for ranks of other hosts."""
    barrier, addresses = threading.Barrier(2), [b"", b""]

    def rank_of(rank, strangers):
        def gather(what, data):
            addresses[rank] = data
            barrier.wait(10)
            if rank == 1:
                strangers.come(lambda: NetPoint(run, addresses[0].decode()).connect(5))
                strangers.come(lambda: HostPoint(run, "group at rank 0", "0").connect(5))
            return addresses

        group = connect(Place(run, "127.0.0.1", str(rank)), "group", gather, rank, names_of(2), 9)
        group.close()
        return len(group.members)

    assert on_threads_among_strangers(2, rank_of) == [2, 2]


def test_a_silent_process_that_copies_a_ranks_hello_is_refused(run):
    """The real rank connects although a process that repeats its hello, and then sends nothing, connected before it."""
    with contextlib.ExitStack() as kept:
        def rank_of(rank):
            if rank == 1:
                silent = kept.enter_context(listening(HostPoint(run, ""))())
                messages.send(silent, {"rank": 1, "names": names_of(2), "version": rendezvous.__version__})
                messages.receive(silent, time.monotonic() + 10)  # it is asked something
            return size_of(meet(HostPoint(run, ""), rank, names_of(2), 9))

        assert on_threads(2, rank_of) == [2, 2]


def give_up(connection, hello, files=()):
    """Introduces a rank on a connection and closes it, as a rank does that has waited too long for the last answer."""
    with connection:
        messages.send(connection, hello, files=files)
        if files:
            messages.receive(connection, time.monotonic() + 10)
        messages.send(connection, {"question": "0"})
        question = messages.receive(connection, time.monotonic() + 10)[0]["question"]
        messages.send(connection, {"answer": question})
        messages.receive(connection, time.monotonic() + 10)


@pytest.mark.parametrize("is_net", [False, True])
def test_a_rank_that_gives_up_a_connection_meets(run, is_net):
    point = NetPoint(run, free_address()) if is_net else HostPoint(run, "")

    def rank_of(rank):
        if rank == 1:
            connection = listening(point)()
            assert not point.stranger(connection, False, time.monotonic() + 10)
            give_up(connection, {"rank": 1, "names": names_of(2), "version": rendezvous.__version__})
        return size_of(meet(point, rank, names_of(2), 9))

    assert on_threads(2, rank_of) == [2, 2]


def test_a_rank_that_gives_up_a_connection_shares_files(run):
    are_there = threading.Barrier(2)

    def rank_of(rank):
        def gather(what, data):
            are_there.wait(10)
            if rank == 1:
                own = os.pidfd_open(os.getpid())
                give_up(HostPoint(run, "group at rank 0", "").connect(5), {"rank": 1}, [own])
                os.close(own)
            return [b"", b""]

        with contextlib.closing(connect(Place(run, "", ""), "group", gather, rank, names_of(2), 10)) as group, \
                open(os.devnull) as file:
            shared = group.share(file.fileno())
            [os.close(each) for each in shared]
        return len(shared)

    assert on_threads(2, rank_of) == [2, 2]


class SlowQueue(queue.SimpleQueue):
    """Queue whose put() returns long after another thread may have taken the item."""

    def put(self, item):
        super().put(item)
        time.sleep(0.2)


def test_a_connection_that_has_arrived_outlives_the_listener(run):
    point = HostPoint(run, "")
    arrivals = Arrivals({point.listen(): point}, lambda connection, point, deadline: None)
    arrivals._arrived = SlowQueue()
    with point.connect(5) as there:
        here, _ = arrivals.next(5)
        with here:
            arrivals.close()
            messages.send(here, {"are you": "there"})
            assert messages.receive(there, time.monotonic() + 5)[0] == {"are you": "there"}


def test_ranks_connect_among_more_strangers_than_the_limit(run, monkeypatch):
    """MOST_UNPROVEN limits connections that have not been checked, so that strangers do not use up the open files."""
    monkeypatch.setattr("hpmoe.ranks.arrivals.MOST_UNPROVEN", 10)
    assert on_threads_among_strangers(2, lambda rank, strangers: (
        strangers.come(listening(HostPoint(run, "")), 50) if rank == 1 else None,
        size_of(meet(HostPoint(run, ""), rank, names_of(2), 9)))) == [(None, 2)] * 2
