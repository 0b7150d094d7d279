"""Processes find each other: all come, one does not, ends before, is another's, or says something else."""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import struct
import threading
import time

import pytest

from hpmoe import LaunchError
from hpmoe.ranks import messages, points, rendezvous
from hpmoe.ranks.hosts import Place, connect, meet_all
from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.points import HostPoint, NetPoint
from hpmoe.ranks.rendezvous import meet, tell_ends
from hpmoe.ranks.starting import free_address


def names_of(size):
    return [f"rank {rank}" for rank in range(size)]


def size_of(meeting):
    meeting.close()
    return len(meeting.names)


def is_running(member):
    return not select.select([member.pidfd], [], [], 0)[0]


def on_threads(size, f, ranks=None):
    """What f(rank) returns or raises on each rank, on a thread each."""
    found = {}

    def run(rank):
        try:
            found[rank] = f(rank)
        except LaunchError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (range(size) if ranks is None else ranks)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    return [found[rank] for rank in sorted(found)]


@pytest.fixture
def run():
    return secrets.token_bytes(32)


class Patience:
    """Instead of the clock of meetings: time passes at once, when all that is to happen before has."""

    def __init__(self, monkeypatch):
        self._is_over, self._began, self.sleep = threading.Event(), time.monotonic(), time.sleep
        self.end = self._is_over.set
        monkeypatch.setattr(rendezvous, "time", self)

    def monotonic(self):
        return self._began + 1000 * self._is_over.is_set()


def after_letting_in(monkeypatch, then):
    """Calls then(ranks that are there) whenever rank 0 has let one in."""
    real = rendezvous.Hub._let_in

    def let_in(hub, *arrived):
        real(hub, *arrived)
        then(sorted(hub.found))
    monkeypatch.setattr(rendezvous.Hub, "_let_in", let_in)


@pytest.mark.parametrize("size", [2, 5])
def test_all_meet_and_give_each_other_bytes_and_files(run, size):
    def rank_of(rank):
        _, group = meet_all(Launched("threads", rank, size, run), names_of(size), 10)
        read, write = os.pipe()
        os.write(write, bytes([rank]))
        files = group.share(read)
        given = group.all_gather("numbers", bytes(range(rank)))
        group.close()
        return group, given, files

    groups = on_threads(size, rank_of)
    for rank, (group, given, _) in enumerate(groups):
        assert (group.rank, group.size) == (rank, size) and given == [bytes(range(r)) for r in range(size)]
        assert [m.name for m in group.members] == names_of(size) and {m.pid for m in group.members} == {os.getpid()}
        assert all(map(is_running, group.members)) and group.sockets == [None] * size
    assert [os.read(file, 1) for file in groups[-1][2]] == [bytes([r]) for r in range(size)]


def test_a_large_message_with_files_arrives_whole():
    ends = socket.socketpair()
    data = os.urandom(3_000_000)
    sender = threading.Thread(target=messages.send, args=(ends[0], {"a": [1, "b"]}, data, [0, 1, 2]))
    sender.start()
    words, got, files = messages.receive(ends[1], time.monotonic() + 10)
    sender.join()
    [end.close() for end in ends]
    assert (words, got, len(files)) == ({"a": [1, "b"]}, data, 3)
    assert all(os.get_inheritable(file) is False for file in files)


def test_who_is_missing_is_named_on_all_that_came(run, monkeypatch):
    patience = Patience(monkeypatch)
    after_letting_in(monkeypatch, lambda ranks: patience.end())
    errors = on_threads(4, lambda rank: meet(HostPoint(run, ""), rank, names_of(4), 0.4), ranks=(0, 2))
    assert [str(e) for e in errors] == ["rank 1 and rank 3 did not come to hpmoe.world() within 0.4 s"] * 2
    assert errors[0].status == {"rank": 1}


def test_rank_0_is_named_where_it_is_missing(run):
    (error,) = on_threads(2, lambda rank: meet(HostPoint(run, ""), rank, names_of(2), 0.3), ranks=(1,))
    assert str(error) == "rank 0 did not come to hpmoe.world() within 0.3 s" and error.status == {"rank": 0}


def test_a_late_rank_is_waited_for(run):
    def rank_of(rank):
        time.sleep(0.4 * (rank == 0))
        return size_of(meet(HostPoint(run, ""), rank, names_of(2), 10))

    assert on_threads(2, rank_of) == [2, 2]


def test_another_version_or_number_of_ranks_is_refused_on_both_sides(run, monkeypatch):
    errors = on_threads(2, lambda rank: meet(HostPoint(run, ""), rank, names_of(2 + rank), 10))
    words = "a process came to hpmoe.world() as rank 1 of rank 0, rank 1, rank 2, where rank 0, rank 1 meet"
    assert [str(e) for e in errors] == [words] * 2
    real = messages.send
    monkeypatch.setattr(rendezvous, "send", lambda c, words, *more, **files: real(
        c, {**words, "version": "9"} if "version" in words else words, *more, **files))
    errors = on_threads(2, lambda rank: meet(HostPoint(run, "other"), rank, names_of(2), 10))
    assert [str(e) for e in errors] == [f"rank 1 has hpmoe 9, and rank 0 has {rendezvous.__version__}"] * 2


def test_two_processes_of_one_rank_are_refused(run):
    errors = on_threads(4, lambda i: meet(HostPoint(run, ""), (0, 1, 1)[i], names_of(3), 10), ranks=(0, 1, 2))
    assert all("as rank 1 of rank 0, rank 1, rank 2" in str(e) and str(e).endswith("there already") for e in errors)


def test_a_process_of_another_user_is_refused(run, monkeypatch):
    monkeypatch.setattr(points, "user_of", lambda connection: os.getuid() + 1)
    patience = Patience(monkeypatch)

    def rank_of(rank):
        try:
            meet(HostPoint(run, ""), rank, names_of(2), 0.5)
        finally:
            patience.end()

    errors = on_threads(2, rank_of)
    assert str(errors[0]) == "rank 1 did not come to hpmoe.world() within 0.5 s"
    assert str(errors[1]) == f"a process of user {os.getuid() + 1} listens at the socket of this run in place of rank 0, " \
                             "and is refused"


def message(text, data=b"", files=0):
    return struct.pack("<IQI", len(text), len(data), files) + text + data


NONSENSE = [b"\0" * 16 + b"GET / HTTP/1.1", message(b"[]"), message(b"{}"), message(b"[" * 200_000), message(b'"rank"'),
            struct.pack("<IQI", 2**31, 0, 0), *(message(json.dumps(words).encode()) for words in (
                {"ended": 1}, {"ended": 7, "fault": "x"}, {"ended": True, "fault": "x"}, {"ended": 1, "fault": None},
                *({"rank": rank, "version": "0.1", "names": names_of(2)} for rank in ("a", 99, 2, 0, -1, None, True, 0.5)),
                {"rank": 1, "version": "0.1", "names": "two"}, {"rank": 1, "version": "0.1", "names": [1, 2]},
                {"rank": 1, "version": None, "names": names_of(2)}, {"rank": 1, "names": names_of(2)}))]


@pytest.mark.parametrize("said", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_on_the_socket_harms_nobody(run, said):
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
def test_who_greets_as_no_rank_is_refused_and_the_others_meet(run, words, files):
    """Greets a rank; -1 files stands for a file that is no process."""
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


def fork(f):
    pid = os.fork()
    if pid == 0:
        try:
            f()
        finally:
            os._exit(0)
    return pid


def test_a_rank_that_is_killed_is_noticed_in_a_meeting_and_after_it(run, monkeypatch):
    def killed():
        meet(HostPoint(run, ""), 1, names_of(3), 10)
        signal.pause()

    pid = fork(killed)
    with monkeypatch.context() as patch, pytest.raises(LaunchError, match=r"rank 1 died in hpmoe\.world\(\)"):
        after_letting_in(patch, lambda ranks: os.kill(pid, signal.SIGKILL))
        meet(HostPoint(run, ""), 0, names_of(3), 10)
    os.waitpid(pid, 0)
    pid = fork(lambda: (meet_all(Launched("forks", 1, 2, run[::-1]), names_of(2), 10), signal.pause()))
    _, group = meet_all(Launched("forks", 0, 2, run[::-1]), names_of(2), 10)
    assert is_running(group.members[1]) and group.members[1].pid == pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert not is_running(group.members[1])
    with pytest.raises(LaunchError, match="rank 1 is gone"):
        group.all_gather("numbers", b"")
    group.close()


@pytest.mark.parametrize("dead", [0, 1])
def test_a_launcher_tells_of_a_rank_that_ended_before_it_came(run, dead):
    is_over, others = threading.Event(), [rank for rank in range(3) if rank != dead]
    fault = {"rank": dead, "fault": f"rank {dead} ended"}
    teller = threading.Thread(target=tell_ends, args=(HostPoint(run, ""), lambda: fault, lambda: dead == 0, is_over.is_set))
    teller.start()
    errors = on_threads(3, lambda rank: meet(HostPoint(run, ""), rank, names_of(3), 10), ranks=others)
    assert [(str(e), e.status) for e in errors] == [(f"rank {dead} ended", {"rank": dead})] * 2
    is_over.set()
    teller.join()


def test_ranks_that_give_different_things_are_told(run):
    def rank_of(rank):
        with contextlib.closing(meet(HostPoint(run, ""), rank, names_of(2), 10)) as group:
            return group.all_gather(("counts", "a heap")[rank], b"")

    assert [str(e) for e in on_threads(2, rank_of)] == ["rank 1 gives a heap where rank 0 gives counts"] * 2


class Strangers:
    """Connections to a listener, a third each of which says nothing, drips bytes, or has sent garbage."""

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
    """What rank_of(rank, strangers) returns on each rank."""
    with contextlib.ExitStack() as kept:
        strangers, is_over = Strangers(kept), threading.Event()
        dripper = threading.Thread(target=strangers.drip, args=(is_over,))
        dripper.start()
        try:
            return on_threads(size, lambda rank: rank_of(rank, strangers))
        finally:
            is_over.set()
            dripper.join()


def listening(point):
    """The connect function of a point, once somebody listens there."""
    while True:
        with contextlib.suppress(OSError), point.connect(5):
            return lambda: point.connect(5)
        time.sleep(0.01)


@pytest.mark.parametrize("is_net", [False, True])
@pytest.mark.parametrize("when", ["before", "between"])
def test_silent_strangers_do_not_delay_a_meeting(run, is_net, when):
    """One proof at a time would take 200 times the time for one, which is above the timeout of this meeting."""
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


def test_silent_strangers_at_a_ranks_own_ports_delay_nobody(run):
    """At the name on this host and at the address for other hosts."""
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


def test_who_says_the_hello_of_a_rank_and_then_nothing_is_no_rank(run):
    """Neither in place of the rank nor beside it."""
    with contextlib.ExitStack() as kept:
        def rank_of(rank):
            if rank == 1:
                silent = kept.enter_context(listening(HostPoint(run, ""))())
                messages.send(silent, {"rank": 1, "names": names_of(2), "version": rendezvous.__version__})
                messages.receive(silent, time.monotonic() + 10)  # it is asked something
            return size_of(meet(HostPoint(run, ""), rank, names_of(2), 9))

        assert on_threads(2, rank_of) == [2, 2]


def test_a_listener_with_too_many_open_files_still_lets_ranks_in(run, monkeypatch):
    """Strangers may use up what a process may open."""
    monkeypatch.setattr("hpmoe.ranks.arrivals.MOST_UNPROVEN", 10)
    assert on_threads_among_strangers(2, lambda rank, strangers: (
        strangers.come(listening(HostPoint(run, "")), 50) if rank == 1 else None,
        size_of(meet(HostPoint(run, ""), rank, names_of(2), 9)))) == [(None, 2)] * 2


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_port_that_is_taken_is_said_on_every_rank(run, is_silent, monkeypatch):
    """With address and port, while nobody of the run listens at the port."""
    monkeypatch.setattr(rendezvous, "PROOF_S", 0.3)
    address = free_address()
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))) as taken:
        def close_all():
            with contextlib.suppress(OSError):
                while True:
                    taken.accept()[0].close()

        closer = threading.Thread(target=close_all, daemon=True)
        None if is_silent else closer.start()
        errors = on_threads(3, lambda rank: meet(NetPoint(run, address), rank, names_of(3), 9))
        taken.shutdown(socket.SHUT_RDWR)
    said = f"rank 0 cannot listen at {address}: Address already in use; another process listens there; give another port " \
           "in --rendezvous or HPMOE_RENDEZVOUS"
    assert [str(e) for e in errors] == [said] * 3


def test_a_second_rank_0_is_refused_at_once(run):
    with contextlib.closing(HostPoint(run, "").listen()), pytest.raises(LaunchError) as error:
        meet(HostPoint(run, ""), 0, names_of(2), 60)
    assert str(error.value) == "rank 0 cannot listen at the socket of this run: Address already in use; another process " \
                               "is rank 0 of this run"


def test_who_comes_after_rank_0_has_gone_hears_the_first_cause(run, monkeypatch):
    """Rank 0 hears of the end of rank 1, and goes; rank 3, which has heard it too, tells rank 2."""
    def rank_0():
        with contextlib.suppress(LaunchError):
            meet(HostPoint(run, ""), 0, names_of(4), 9)

    pid, is_in, has_heard, real = fork(rank_0), threading.Event(), threading.Event(), rendezvous._come
    monkeypatch.setattr(rendezvous, "_come", lambda *args: (real(*args), is_in.set())[0])

    def rank_of(rank):
        if rank == 1:
            is_in.wait(10)
            with listening(HostPoint(run, ""))() as connection:
                messages.send(connection, {"ended": 1, "fault": "rank 1 ended early"})
            os.waitpid(pid, 0)
            return None
        if rank == 2:
            has_heard.wait(10)
        try:
            return meet(HostPoint(run, ""), rank, names_of(4), 9)
        finally:
            has_heard.set()

    assert [str(e) for e in on_threads(4, rank_of, (1, 2, 3))] == ["None", "rank 1 ended early", "rank 1 ended early"]
