"""Ranks of a run connect through rank 0: all come, or every rank raises the error that names the rank at fault."""

import contextlib
import os
import secrets
import select
import signal
import socket
import threading
import time

import pytest
from rank_threads import Patience, listening, names_of, on_threads, size_of

from hpmoe import LaunchError
from hpmoe.ranks import messages, rendezvous
from hpmoe.ranks.hosts import meet_all
from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.points import HostPoint, NetPoint
from hpmoe.ranks.rendezvous import meet, tell_ends
from hpmoe.ranks.starting import free_address


def is_running(member):
    return not select.select([member.pidfd], [], [], 0)[0]


@pytest.fixture
def run():
    return secrets.token_bytes(32)


def after_letting_in(monkeypatch, then):
    """Calls then(connected ranks) each time rank 0 accepts a rank."""
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


@pytest.mark.parametrize("when", ["before", "while"])
def test_sharing_files_names_a_rank_that_is_gone(run, when):
    def rank_of(rank):
        _, group = meet_all(Launched("threads", rank, 2, run), names_of(2), 10)
        with contextlib.closing(group):
            if rank == 1:
                if when == "while":
                    messages.receive(group.neighbours[0], time.monotonic() + 10)
                return ended.set()
            if when == "before":
                ended.wait(10)
                select.select([group.neighbours[1]], [], [], 10)
            group.share(0)

    ended = threading.Event()
    assert str(on_threads(2, rank_of)[0]).startswith("rank 1 is gone: ")


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


def test_missing_ranks_are_named_on_all_ranks_that_came(run, monkeypatch):
    patience = Patience(monkeypatch)
    after_letting_in(monkeypatch, lambda ranks: patience.end())
    errors = on_threads(4, lambda rank: meet(HostPoint(run, ""), rank, names_of(4), 0.4), ranks=(0, 2))
    assert [str(e) for e in errors] == ["rank 1 and rank 3 did not come to hpmoe.world() within 0.4 s."] * 2
    assert errors[0].status == {"rank": 1}


def test_rank_0_is_named_where_it_is_missing(run):
    (error,) = on_threads(2, lambda rank: meet(HostPoint(run, ""), rank, names_of(2), 0.3), ranks=(1,))
    assert str(error) == "rank 0 did not come to hpmoe.world() within 0.3 s." and error.status == {"rank": 0}


def test_a_late_rank_is_waited_for(run):
    def rank_of(rank):
        time.sleep(0.4 * (rank == 0))
        return size_of(meet(HostPoint(run, ""), rank, names_of(2), 10))

    assert on_threads(2, rank_of) == [2, 2]


def test_another_version_or_size_is_refused_on_both_sides(run, monkeypatch):
    errors = on_threads(2, lambda rank: meet(HostPoint(run, ""), rank, names_of(2 + rank), 10))
    words = "a process came to hpmoe.world() as rank 1 of rank 0, rank 1, rank 2, where rank 0, rank 1 meet."
    assert [str(e) for e in errors] == [words] * 2
    real = messages.send
    monkeypatch.setattr(rendezvous, "send", lambda c, words, *more, **files: real(
        c, {**words, "version": "9"} if "version" in words else words, *more, **files))
    errors = on_threads(2, lambda rank: meet(HostPoint(run, "other"), rank, names_of(2), 10))
    assert [str(e) for e in errors] == [f"rank 1 has hpmoe 9, and rank 0 has {rendezvous.__version__}."] * 2


def test_two_processes_of_one_rank_are_refused(run):
    errors = on_threads(4, lambda i: meet(HostPoint(run, ""), (0, 1, 1)[i], names_of(3), 10), ranks=(0, 1, 2))
    assert all("as rank 1 of rank 0, rank 1, rank 2" in str(e) and str(e).endswith("there already.") for e in errors)


def fork(f):
    pid = os.fork()
    if pid == 0:
        try:
            f()
        finally:
            os._exit(0)
    return pid


def test_a_killed_rank_is_noticed_during_and_after_a_meeting(run, monkeypatch):
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
def test_a_launcher_reports_a_rank_that_ended_early(run, dead):
    is_over, others = threading.Event(), [rank for rank in range(3) if rank != dead]
    fault = {"rank": dead, "fault": f"rank {dead} ended"}
    teller = threading.Thread(target=tell_ends, args=(HostPoint(run, ""), lambda: fault, lambda: dead == 0, is_over.is_set))
    teller.start()
    errors = on_threads(3, lambda rank: meet(HostPoint(run, ""), rank, names_of(3), 10), ranks=others)
    assert [(str(e), e.status) for e in errors] == [(f"rank {dead} ended.", {"rank": dead})] * 2
    is_over.set()
    teller.join()


def test_all_gathers_of_different_things_are_refused(run):
    def rank_of(rank):
        with contextlib.closing(meet(HostPoint(run, ""), rank, names_of(2), 10)) as group:
            return group.all_gather(("counts", "a heap")[rank], b"")

    assert [str(e) for e in on_threads(2, rank_of)] == ["rank 1 gives a heap where rank 0 gives counts."] * 2


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_port_that_is_taken_is_said_on_every_rank(run, is_silent, monkeypatch):
    """Every rank raises the error of rank 0, which names the address and the port."""
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
           "in --rendezvous or HPMOE_RENDEZVOUS."
    assert [str(e) for e in errors] == [said] * 3


def test_a_second_rank_0_is_refused_at_once(run):
    with contextlib.closing(HostPoint(run, "").listen()), pytest.raises(LaunchError) as error:
        meet(HostPoint(run, ""), 0, names_of(2), 60)
    assert str(error.value) == "rank 0 cannot listen at the socket of this run: Address already in use; another process " \
                               "is rank 0 of this run."


def test_a_rank_later_than_rank_0s_end_raises_the_first_cause(run, monkeypatch):
    """Rank 0 receives the end of rank 1 and exits; rank 3 received it too and sends it to rank 2."""
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

    assert [str(e) for e in on_threads(4, rank_of, (1, 2, 3))] == ["None", "rank 1 ended early.", "rank 1 ended early."]
