"""Ranks of several hosts, declared on one: they meet over TCP with a secret, send messages, and learn who is gone."""

import contextlib
import secrets
import socket
import threading
import time

import mindspore as ms
import needs
import numpy as np
import pytest
from crossings import across_nodes, bytes_between
from failing_calls import RANKS, assert_errors_of_all, failing_calls
from noted_launches import counts_of, noted_launches
from rank_threads import names_of, on_threads
from running_time import now, running_clock

import hpmoe
from hpmoe import LaunchError
from hpmoe.kernels.link import Link
from hpmoe.kernels.link_errors import At, failed_call
from hpmoe.kernels.native import Failure, Status
from hpmoe.kernels.protocol import Code
from hpmoe.ranks.hosts import meet_all
from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.link import ENGINES, Traffic
from hpmoe.ranks.points import NetPoint
from hpmoe.ranks.rendezvous import Meeting
from hpmoe.ranks.starting import free_address


def hosts_of(engine):
    """Runs f(link) on each rank, `node_size` ranks on a host, and returns the results or errors."""
    opened = []

    def run(size, f, node_size=1, between=None, **options):
        run_of, address = secrets.token_bytes(32), free_address()

        def rank_of(rank):
            launched = Launched("threads", rank, size, run_of, address, str(rank // node_size))
            _, group = meet_all(launched, names_of(size), 10)
            opened.append(group)
            if between is not None:
                group.sockets = [each and between(rank, other, each) for other, each in enumerate(group.sockets)]
            assert [each is None for each in group.sockets] == [r // node_size == rank // node_size for r in range(size)]
            chosen = engine if isinstance(engine, str) else engine(rank)
            opened.append(link := Link(group, engine=chosen, timeout=20.0, heap_bytes=1 << 24, **options))
            return f(link)
        return on_threads(size, rank_of)

    yield run
    [each.close() for each in opened]


@pytest.fixture(params=ENGINES)
def run_hosts(request):
    if request.param == "ucx":
        needs.has_ucx()
    yield from hosts_of(request.param)


@pytest.fixture
def run_sockets():
    """By TCP, what is between two ranks is all that they hear of each other."""
    yield from hosts_of("tcp")


@pytest.mark.parametrize("node_size", [1, 2])
def test_ranks_give_each_other_bytes_in_parts(run_hosts, node_size):
    def f(link):
        return [link.meet("bytes", bytes([link.rank, step]) * 20_000) for step in range(5)]

    for found in run_hosts(4, f, node_size, message_bytes=4096):
        assert found == [[bytes([r, step]) * 20_000 for r in range(4)] for step in range(5)]


def test_sums_are_those_of_one_host(run_hosts):
    rng = np.random.default_rng(0)
    parts = [[(rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(np.float32) for n in (1001, 0, 3)]
             for _ in range(3)]
    wanted = [(a + b + c).tobytes() for a, b, c in zip(*parts, strict=True)]
    for found in run_hosts(3, lambda link: link.sum(parts[link.rank]), 2):
        assert [a.tobytes() for a in found] == wanted


def test_an_error_reaches_all_ranks_and_the_next_call_is_fresh(run_hosts):
    assert_errors_of_all(run_hosts(RANKS, failing_calls, 2))


def launches_of(f, ids, hidden, node_size=None):
    """Forward and backward of a layer on virtual ranks; see noted_launches."""
    (size, tokens, top_k), rng, num_local = ids.shape, np.random.default_rng(0), 32 // len(ids)
    args = [ms.Tensor(a.astype(np.float32)) if a is not ids else ms.Tensor(ids) for a in (
        rng.standard_normal((size, tokens, hidden)), ids, rng.random((size, tokens, top_k)),
        rng.standard_normal((size, num_local, hidden, 16)), rng.standard_normal((size, num_local, 8, hidden)))]
    to_kernel = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    layer = hpmoe.spmd(to_kernel(f), hpmoe.Mesh(size, nodes=node_size and size // node_size))
    with noted_launches() as launches:
        ms.grad(lambda *a: (layer(*a) ** 2).sum(), (0, 2, 3, 4))(*args)
    return launches


def sent_again(link, launches):
    """Returns the traffic of each launch to other hosts; checks its results against virtual ranks bit for bit."""
    found = []
    for executable, inputs, _, outputs in launches:
        link.meet("before a launch", b"")
        before = link.traffic
        mine = executable.run_rank(link, inputs[link.rank], counts_of(executable, inputs))
        assert all(np.array_equal(a, b) for a, b in zip(mine, outputs[link.rank], strict=True))
        link.meet("after a launch", b"")  # who has come to it has all that was sent in the launch
        found.append(Traffic(*(now - then for now, then in zip(link.traffic, before, strict=True))))
    return found


def test_far_fewer_messages_than_rows_of_balanced_top_8_routing(run_hosts):
    """Seed: 78 % fewer packets than one for each (token, expert)."""
    size, tokens, num_experts, top_k = 2, 128, 32, 8
    balanced = (8 * np.arange(tokens)[:, None] + np.arange(top_k)) % num_experts  # as many tokens for each expert
    launches = launches_of(hpmoe.moe_ffn, np.stack([balanced] * size).astype(np.int32), hidden=16)
    for found in run_hosts(size, lambda link: sent_again(link, launches)):
        for sent in found:
            times, left = divmod(sent.rows, tokens * top_k // size)
            assert left == 0 and times >= 2, "each entry for the other host goes there and back"
            assert sent.row_messages <= 0.22 * sent.rows and sent.row_bytes <= sent.bytes <= 1.5 * sent.row_bytes, sent


@pytest.mark.parametrize("scheme", ["direct", "deduplicated", "hierarchical"])
def test_bytes_between_hosts_are_those_of_the_formula(run_hosts, scheme):
    size, node, hidden, rng = 4, 2, 8, np.random.default_rng(3)
    ids = rng.random((size, 9, 32)).argsort(-1)[..., :4].astype(np.int32)
    ids[rng.random(ids.shape) < 0.2] = -1
    launches = launches_of(hpmoe.send_rows(scheme=scheme)(hpmoe.moe_ffn), ids, hidden, node)
    wanted = [across_nodes(b, node).tolist() for b in bytes_between(scheme, ids, 8, node, 4 * hidden)]
    found = run_hosts(size, lambda link: [sent.row_bytes for sent in sent_again(link, launches)], node)
    assert list(map(list, zip(*found, strict=True))) == wanted


def test_who_has_not_the_secret_is_refused_and_harms_nobody():
    run_of, address, are_there = secrets.token_bytes(32), free_address(), threading.Barrier(2)

    def rank_of(rank):
        if rank == 1:
            host, port = address.split(":")
            while True:
                with socket.socket() as foreign, contextlib.suppress(OSError):
                    if foreign.connect_ex((host, int(port))) == 0:
                        foreign.sendall(b"GET / HTTP/1.1\r\n" * 9)
                        break
                time.sleep(0.01)
            with contextlib.suppress(LaunchError):
                _, group = meet_all(Launched("threads", rank, 2, secrets.token_bytes(32), address), names_of(2), 1)
                raise AssertionError("a process without the secret is let in")
        _, group = meet_all(Launched("threads", rank, 2, run_of, address), names_of(2), 10)
        are_there.wait(10)
        group.close()
        return [member.pid > 0 for member in group.members]

    assert on_threads(2, rank_of) == [[True, True]] * 2


@pytest.mark.parametrize("node_size", [1, 2])
@pytest.mark.parametrize("dead", [1, 3])
def test_a_rank_that_ends_while_connecting_is_named_on_all(dead, node_size, monkeypatch):
    """Once it has told its address, and before it comes to anybody."""
    run_of, address, real = secrets.token_bytes(32), free_address(), Meeting.all_gather

    def gather(group, what, data):
        told = real(group, what, data)
        if group.rank == dead:
            [connection.close() for connection in group.connections]
            raise InterruptedError
        return told

    monkeypatch.setattr(Meeting, "all_gather", gather)

    def rank_of(rank):
        with contextlib.suppress(InterruptedError):
            meet_all(Launched("threads", rank, 4, run_of, address, str(rank // node_size)), names_of(4), 60)

    began = time.monotonic()
    found = on_threads(4, rank_of)
    assert time.monotonic() - began < 20
    for rank, error in enumerate(found):
        assert rank == dead or error.status == {"rank": dead} and str(error).startswith(f"rank {dead} "), (rank, error)


def test_where_there_is_nobody_rank_0_is_named():
    launched = Launched("threads", 1, 2, b"x" * 32, free_address())
    with pytest.raises(LaunchError, match=r"rank 0 did not come to hpmoe\.world\(\) within 0\.3 s"):
        meet_all(launched, names_of(2), 0.3)


class Cable:
    """Between two sockets, until it is cut; then both ends hear nothing any more, not even that the other is closed."""

    def __init__(self, kept):
        self.is_cut, self.kept = threading.Event(), kept

    def between(self, rank, other, end):
        near, far = socket.socketpair()
        for a, b in ((end, far), (far, end)):
            threading.Thread(target=self.carry, args=(self.kept.enter_context(a), b), daemon=True).start()
        return near

    def carry(self, a, b):
        with contextlib.suppress(OSError):
            while (data := a.recv(1 << 16)) and not self.is_cut.is_set():
                b.sendall(data)


def test_a_cut_link_ends_the_call_on_every_rank(run_sockets, monkeypatch):
    def f(link):
        began = now()
        try:
            link.meet("before", b"")
            if link.rank == 0:
                cable.is_cut.set()
            for _ in range(10**6):
                link.meet("on and on", b"")
        except LaunchError as error:
            return error.status["rank"], str(error), now() - began

    with contextlib.ExitStack() as kept, running_clock(monkeypatch):
        cable = Cable(kept)
        for rank, (blamed, text, seconds) in enumerate(run_sockets(2, f, between=cable.between)):
            assert blamed == 1 - rank and text.startswith(f"rank {blamed} was not heard of for 3."), text
            assert seconds < 5


def test_who_is_told_that_it_is_lost_does_not_say_so_of_itself():
    """One way a cable is cut: what rank 2 has not heard of rank 1, rank 0 has told it."""
    lost = Status(code=Code.PEER_LOST, rank=1, value=3100)
    said = [failed_call(lost, Failure(status=lost, origin=2), At("a step", 4, rank, names_of(3), None)) for rank in (0, 1)]
    assert str(said[0]).startswith("rank 1 was not heard of for 3.1 s during a step") and said[0].status == {"rank": 1}
    assert str(said[1]).startswith("rank 2 has not heard of this rank, rank 1, for 3.1 s") and said[1].status == {"rank": 2}


def test_a_rank_that_sends_nonsense_is_named(run_sockets):
    def spoiled(rank, other, end):
        if rank == 1:  # as many bytes as it says, of no kind that there is
            end.sendall((100).to_bytes(8, "little") + bytes(100))
        return end

    def f(link):
        with pytest.raises(LaunchError) as error:
            while True:  # rank 1 may have heard of rank 0 before that refuses what it sent
                link.meet("all", b"")
        return str(error.value)

    texts = run_sockets(2, f, between=spoiled)
    assert texts[0] == "rank 1 failed: what it sent is refused, as a message is not of this run."
    assert texts[1].startswith(("rank 0 died during all", "rank 0 failed")), texts[1]


def test_addresses_of_both_families():
    assert (NetPoint(b"", "[::1]:80").host, NetPoint(b"", "[::1]:80").port) == ("::1", "80")
